"""Every test file that a page of the documentation mentions exists, under that path."""

from __future__ import annotations

import re

import pytest

from tests.docs.pages import PAGES, ROOT, text_of

NAMED = re.compile(r"(?<![\w/.])((?:\w+/)*test_\w+)(?:\.py)?\b")
FILES = [str(path.relative_to(ROOT)) for path in (ROOT / "tests").rglob("test_*.py")]
OTHERS = {"pytorch/test/test_dataloader", "test/stateful_dataloader/test_state_dict"}
"""Tests of PyTorch and torchdata, which were run here too."""


@pytest.mark.parametrize("page", [page for page in PAGES if NAMED.search(text_of(page))])
def test_the_tests_that_a_page_mentions_exist(page: str) -> None:
    named = set(NAMED.findall(text_of(page))) - OTHERS
    gone = [name for name in named if not any(f"/{file}".endswith(f"/{name}.py") for file in FILES)]
    assert sorted(gone) == []
