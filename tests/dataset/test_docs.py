"""Comparison of the tables in docs/datasets.md with the source. tests/docs runs its code blocks."""

from __future__ import annotations

import re

from ffrecord import decoders
from ffrecord.dataset.compression import LARGEST_VALUE, LEVELS
from ffrecord.dataset.images import MOST_PIXELS
from tests.docs.pages import text_of

PAGE = "docs/datasets.md"


def test_the_tables_name_every_type_and_compression() -> None:
    text = text_of(PAGE)
    formats = text[text.index("## The bytes of each type") :]
    named = set(re.findall(r"^\| `(\w+)` \|", formats, re.MULTILINE))
    assert named == set(decoders)
    assert set(re.findall(r"^\| `\+(\w+)` \|", formats, re.MULTILINE)) == set(LEVELS)
    assert f"{LARGEST_VALUE:,}" in text
    assert f"{MOST_PIXELS:,}" in text
