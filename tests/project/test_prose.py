"""Docstrings begin with a verb or a noun, so that a stranger knows at once what a thing is for."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PLACES = ("ffrecord", "ffrecord_fuse", "scripts", "tests")
AVOIDED = ("What", "Who", "Whoever", "Of", "That")
"""Words that begin a clause, not a phrase: the reader waits for the rest of the sentence."""


def docstrings(source: str) -> Iterator[tuple[int, str]]:
    """Yield the line and the text of every docstring, including docstrings of attributes."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            value = node.value.value
            if isinstance(value, str) and value.strip():
                yield node.lineno, value.strip()


def badly_begun(source: str) -> list[tuple[int, str]]:
    return [
        (line, text.splitlines()[0])
        for line, text in docstrings(source)
        if text.split()[0].rstrip(",.:;…") in AVOIDED
    ]


@pytest.mark.parametrize("place", PLACES)
def test_docstrings_begin_with_a_verb_or_a_noun(place: str) -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {first}"
        for path in sorted((ROOT / place).rglob("*.py"))
        for line, first in badly_begun(path.read_text(encoding="utf-8"))
    ]
    assert found == []


@pytest.mark.parametrize("word", AVOIDED)
def test_a_bad_beginning_is_found_in_every_kind_of_docstring(word: str) -> None:
    doc = f'"""{word} it is."""'
    source = f"{doc}\nclass A:\n    {doc}\n    x = 1\n    {doc}\n    def f(self):\n        {doc}\n"
    assert [line for line, _ in badly_begun(source)] == [1, 3, 5, 7]


def test_a_longer_word_with_the_same_beginning_is_allowed() -> None:
    assert badly_begun('"""Whole files."""\n"""Offsets of records."""\n') == []
