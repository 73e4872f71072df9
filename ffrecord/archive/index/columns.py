"""Columns of a tree: byte strings, and row numbers that are found by hash.

A Python object for each file would take a few hundred bytes per file. Here a million names take one
piece of memory and one array.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterator
from typing import TypeAlias

import numpy as np

from ffrecord.aliases import Ints, Mask

Xattrs: TypeAlias = "tuple[tuple[bytes, bytes], ...]"

MISSING = -1
AT_A_TIME = 1 << 12  # strings that are copied out at once
_LENGTHS = struct.Struct("=II")
_FEWEST_SLOTS = 1 << 6


class Texts:
    """Byte strings end to end. Each string takes eight bytes more than its length."""

    def __init__(self) -> None:
        self.bytes = bytearray()
        self.ends = array("Q")

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, row: int) -> bytes:
        ends = self.ends
        return bytes(self.bytes[ends[row - 1] if row else 0 : ends[row]])

    def append(self, text: bytes) -> None:
        self.bytes += text
        self.ends.append(len(self.bytes))

    def __iter__(self) -> Iterator[bytes]:
        return self.some(0, len(self))

    def some(self, start: int, stop: int) -> Iterator[bytes]:
        """Yield the strings of rows `start` up to `stop`, faster than one by one."""
        for first in range(start, stop, AT_A_TIME):
            low = at = self.begin(first)
            ends = self.ends[first : min(first + AT_A_TIME, stop)]
            raw = bytes(self.bytes[low : ends[-1]])
            for end in ends:
                yield raw[at - low : end - low]
                at = end

    def begin(self, row: int) -> int:
        """Return where a string begins in `bytes`."""
        return self.ends[row - 1] if row else 0


class RowTable:
    """Hash table in one array, from the hash of a row's contents to the row number.

    The table stores hashes and row numbers; the caller stores the rows. A slot takes eight bytes,
    and between a third and two thirds of the slots are in use.
    """

    def __init__(self) -> None:
        self._slots = array("Q", bytes(8 * _FEWEST_SLOTS))  # 0: a free slot
        self._used = 0

    def find(self, hashed: int, is_it: Callable[[int], bool]) -> int:
        """Return the row with this hash for which `is_it` is true, or MISSING."""
        slots, mask = self._slots, len(self._slots) - 1
        hashed &= 0xFFFFFFFF
        at = hashed & mask
        while slot := slots[at]:
            if slot >> 32 == hashed and is_it(row := (slot & 0xFFFFFFFF) - 1):
                return row
            at = (at + 1) & mask
        return MISSING

    def add(self, hashed: int, row: int) -> None:
        """Add a row that is not in the table yet."""
        if 3 * self._used >= 2 * len(self._slots):
            self._grow()
        _put(self._slots, (hashed & 0xFFFFFFFF) << 32 | row + 1)
        self._used += 1

    def _grow(self) -> None:
        old = self._slots
        self._slots = array("Q", bytes(2 * old.itemsize * len(old)))
        for slot in filter(None, old):
            _put(self._slots, slot)


def _put(slots: array[int], slot: int) -> None:
    mask = len(slots) - 1
    at = slot >> 32 & mask
    while slots[at]:
        at = (at + 1) & mask
    slots[at] = slot


class DistinctTexts(Texts):
    """Distinct byte strings: each is stored once."""

    def __init__(self) -> None:
        super().__init__()
        self._rows = RowTable()

    def add(self, text: bytes) -> int:
        """Return the row of a string; add the string if it is new."""
        hashed = hash(text)
        row = self._rows.find(hashed, lambda row: self[row] == text)
        if row == MISSING:
            row = len(self)
            self._rows.add(hashed, row)
            self.append(text)
        return row


class TextsOf:
    """A byte string for some inodes, which must be added in ascending order."""

    def __init__(self) -> None:
        self.inodes = array("I")
        self.texts = Texts()

    def __setitem__(self, inode: int, text: bytes) -> None:
        if self.inodes and inode <= self.inodes[-1]:
            last = self.inodes[-1]
            raise ValueError(
                f"inode {inode} comes after inode {last}; add inodes in ascending order"
            )
        self.inodes.append(inode)
        self.texts.append(text)

    def __contains__(self, inode: int) -> bool:
        return self._row(inode) != MISSING

    def __getitem__(self, inode: int) -> bytes:
        row = self._row(inode)
        if row == MISSING:
            raise KeyError(inode)
        return self.texts[row]

    def get(self, inode: int, default: bytes) -> bytes:
        row = self._row(inode)
        return default if row == MISSING else self.texts[row]

    def renumbered(self, number: Ints) -> TextsOf:
        """Return a copy with the new numbers of the inodes, which are in the same order."""
        other = TextsOf()
        other.inodes = _taken(number, self.inodes)
        other.texts = self.texts
        return other

    def _row(self, inode: int) -> int:
        row = bisect_left(self.inodes, inode)
        return row if row < len(self.inodes) and self.inodes[row] == inode else MISSING


class XattrsOf:
    """The extended attributes of some inodes, in any order. Equal sets are kept once."""

    def __init__(self) -> None:
        self.inodes = array("I")
        self.sets = array("I")  # the number of each inode's set
        self._distinct = DistinctTexts()

    def __setitem__(self, inode: int, xattrs: Xattrs) -> None:
        self.inodes.append(inode)
        self.sets.append(self._distinct.add(_encoded(xattrs)))

    def set(self, number: int) -> Xattrs:
        return tuple(_decoded(self._distinct[number]))

    def items(self) -> Iterator[tuple[int, Xattrs]]:
        """Yield each inode and its extended attributes."""
        for inode, number in zip(self.inodes, self.sets, strict=True):
            yield inode, self.set(number)

    def renumbered(self, keep: Mask, number: Ints) -> XattrsOf:
        """Return a copy for the kept inodes, with their new numbers."""
        other = XattrsOf()
        rows = keep[np.frombuffer(self.inodes, np.uint32)].nonzero()[0].tolist()
        other.inodes = _taken(number, array("I", (self.inodes[row] for row in rows)))
        other.sets = array("I", (self.sets[row] for row in rows))
        other._distinct = self._distinct
        return other


def _encoded(xattrs: Xattrs) -> bytes:
    return b"".join(_LENGTHS.pack(len(name), len(value)) + name + value for name, value in xattrs)


def _decoded(raw: bytes) -> Iterator[tuple[bytes, bytes]]:
    at = 0
    while at < len(raw):
        name, value = _LENGTHS.unpack_from(raw, at)
        at += _LENGTHS.size
        yield raw[at : at + name], raw[at + name : at + name + value]
        at += name + value


class BlocksOf:
    """The checksums of the blocks of some inodes, in any order."""

    def __init__(self) -> None:
        self.inodes = array("I")
        self.ends = array("Q")
        self.checksums = array("I")

    def __setitem__(self, inode: int, checksums: array[int]) -> None:
        self.inodes.append(inode)
        self.checksums += checksums
        self.ends.append(len(self.checksums))

    def items(self) -> Iterator[tuple[int, array[int]]]:
        """Yield each inode and its checksums."""
        begin = 0
        for inode, end in zip(self.inodes, self.ends, strict=True):
            yield inode, self.checksums[begin:end]
            begin = end

    def renumbered(self, keep: Mask, number: Ints) -> BlocksOf:
        """Return a copy for the kept inodes, with their new numbers."""
        other = BlocksOf()
        for inode, checksums in self.items():
            if keep[inode]:
                other[int(number[inode])] = checksums
        return other


def _taken(number: Ints, inodes: array[int]) -> array[int]:
    return array("I", number[np.frombuffer(inodes, np.uint32)].astype(np.uint32).tobytes())
