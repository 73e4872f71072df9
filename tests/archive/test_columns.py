"""Byte strings and hash tables in columns are compared with Python's lists and dictionaries."""

from __future__ import annotations

from array import array

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ffrecord.archive.index.columns import (
    MISSING,
    BlocksOf,
    DistinctTexts,
    RowTable,
    Texts,
    TextsOf,
    XattrsOf,
)

TEXTS = st.lists(st.binary(max_size=5))


@given(TEXTS, st.data())
def test_texts_behave_like_a_list_of_byte_strings(due: list[bytes], data: st.DataObject) -> None:
    texts = Texts()
    for each in due:
        texts.append(each)
    assert len(texts) == len(due)
    assert list(texts) == due
    assert [texts[row] for row in range(len(due))] == due
    start, stop = sorted(data.draw(st.tuples(*[st.integers(0, len(due))] * 2)))
    assert list(texts.some(start, stop)) == due[start:stop]
    with pytest.raises(IndexError):
        texts[len(due)]


@given(st.lists(st.binary(max_size=2), max_size=300))
def test_distinct_texts_are_numbered_in_order_of_appearance(added: list[bytes]) -> None:
    texts = DistinctTexts()
    due = list(dict.fromkeys(added))
    assert [texts.add(each) for each in added] == [due.index(each) for each in added]
    assert list(texts) == due
    for row, each in enumerate(due):
        assert texts.bytes[texts.begin(row) :].startswith(each)


@given(st.lists(st.tuples(st.integers(-(1 << 63), (1 << 63) - 1), st.integers(0, 7)), max_size=400))
def test_a_row_table_finds_rows_like_a_dictionary(added: list[tuple[int, int]]) -> None:
    """Hashes may be equal, or differ only in bits that the table does not store."""
    table, rows = RowTable(), list(dict.fromkeys(added))
    for row, key in enumerate(rows):
        assert table.find(key[1], lambda row, key=key: rows[row] == key) == MISSING  # type: ignore[misc]
        table.add(key[1], row)
    for row, key in enumerate(rows):
        assert table.find(key[1], lambda row, key=key: rows[row] == key) == row  # type: ignore[misc]


def test_a_row_table_accepts_the_highest_row_and_hash() -> None:
    table = RowTable()
    table.add(-1, 0xFFFFFFFE)
    assert table.find(0xFFFFFFFF, lambda row: True) == 0xFFFFFFFE


@given(st.dictionaries(st.integers(0, 40), st.binary(max_size=5)))
def test_texts_of_inodes_are_found_by_inode(due: dict[int, bytes]) -> None:
    texts = TextsOf()
    for inode in sorted(due):
        texts[inode] = due[inode]
    for inode in range(42):
        assert (inode in texts) == (inode in due)
        assert texts.get(inode, b"none") == due.get(inode, b"none")
    assert all(texts[inode] == text for inode, text in due.items())
    with pytest.raises(KeyError):
        texts[41]


def test_texts_of_inodes_must_be_added_in_ascending_order() -> None:
    texts = TextsOf()
    texts[5] = b"five"
    with pytest.raises(ValueError, match="inode 5 comes after inode 5"):
        texts[5] = b"again"


PAIRS = st.lists(st.tuples(st.binary(max_size=3), st.binary(max_size=3)), max_size=2).map(tuple)


@given(st.lists(PAIRS, max_size=20), st.data())
def test_attributes_of_kept_inodes_get_the_new_numbers(
    sets: list[tuple[tuple[bytes, bytes], ...]], data: st.DataObject
) -> None:
    order = data.draw(st.permutations(range(len(sets))))
    keep = np.array(
        data.draw(st.lists(st.booleans(), min_size=len(sets), max_size=len(sets))), bool
    )
    xattrs, blocks = XattrsOf(), BlocksOf()
    for inode in order:
        xattrs[inode] = sets[inode]
        blocks[inode] = array("I", range(inode, inode + len(sets[inode])))
    number = np.cumsum(keep) - 1
    kept, kept_blocks = xattrs.renumbered(keep, number), blocks.renumbered(keep, number)
    due = [inode for inode in order if keep[inode]]
    assert list(kept.inodes) == list(kept_blocks.inodes) == [number[inode] for inode in due]
    assert [kept.set(each) for each in kept.sets] == [sets[inode] for inode in due]
    assert list(kept_blocks.checksums) == [
        inode + k for inode in due for k in range(len(sets[inode]))
    ]
