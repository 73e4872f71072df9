"""What docs/datasets.md shows is run exactly as printed, and what it says of bytes is so."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ffrecord import decoders
from ffrecord.dataset.compression import LARGEST_VALUE, LEVELS
from ffrecord.dataset.images import MOST_PIXELS
from tests.printed import ROOT, blocks, run_python

PAGE = "docs/datasets.md"


def test_the_python_blocks_work_one_after_the_other(tmp_path: Path) -> None:
    codes = blocks(PAGE, "python")
    assert len(codes) >= 8
    for code in codes:
        if "torch" in code:
            pytest.importorskip("torch")
        printed = run_python(code, tmp_path)
        for said in re.findall(r"print\(.*?\)  # (\{.*?)(?:\.\.\.|$)", code, re.MULTILINE):
            assert said in printed


def test_the_tables_name_every_type_and_compression() -> None:
    text = (ROOT / PAGE).read_text()
    formats = text[text.index("## The bytes of each type") :]
    named = set(re.findall(r"^\| `(\w+)` \|", formats, re.MULTILINE))
    assert named == set(decoders)
    assert set(re.findall(r"^\| `\+(\w+)` \|", formats, re.MULTILINE)) == set(LEVELS)
    assert f"{LARGEST_VALUE:,}" in text
    assert f"{MOST_PIXELS:,}" in text
