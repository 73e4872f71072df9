"""Extended attributes of an image.

Each attribute is stored once, in the part of an image that inodes share. An inode lists numbers of
up to 255 shared attributes. An inode with more has the others inline. EROFS limits a value to
65,535 bytes, and the inline attributes of an inode to 256 KiB; what is larger is left out.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ffrecord.aliases import Bytes, Ints
from ffrecord.archive.index import Index
from ffrecord.format import erofs
from ffrecord_fuse.kernel import ranges

_PREFIX = len(b"user.")  # in front of every name; the image has a number instead


class Xattrs:
    """The extended attributes of an index, in the form of an image."""

    def __init__(self, index: Index) -> None:
        self._index = index
        tables = index.tables
        rows = tables.xattrs
        is_kept = rows["value"] <= erofs.LARGEST_XATTR
        self.left_out = [self._name(row) for row in (~is_kept).nonzero()[0].tolist()]
        self._kept = is_kept.nonzero()[0]
        length = rows["name"][self._kept].astype(np.int64) - _PREFIX + rows["value"][self._kept]
        self._entry_sizes = -(-(erofs.XATTR.itemsize + length) // 4) * 4
        until = np.cumsum(self._entry_sizes)
        self._at = until - self._entry_sizes
        self.size = int(until[-1]) if len(until) else 0
        before = np.concatenate([[0], np.cumsum(is_kept)])
        first = tables.attributes["xattr"].astype(np.int64)
        self._first = before[first]  # per row of attributes, among those that are kept
        count = before[first + tables.attributes["xattrs"]] - self._first
        self._shared = np.minimum(count, erofs.MOST_SHARED)
        self._inline = {
            row: self._inline_of(int(self._first[row]), int(count[row]))
            for row in (count > erofs.MOST_SHARED).nonzero()[0].tolist()
        }
        listed = erofs.XATTR_HEADER.itemsize + 4 * self._shared
        for row, inline in self._inline.items():
            listed[row] += len(inline)
        self._sizes = np.where(count > 0, listed, 0)

    def _name(self, row: int) -> bytes:
        text, length, _ = self._index.tables.xattrs[row].tolist()
        return self._index.tables.texts[text : text + length].tobytes()

    def _inline_of(self, first: int, count: int) -> bytes:
        """Return the attributes of a set that the list of shared ones has no room for."""
        rows = np.arange(first + erofs.MOST_SHARED, first + count)
        room = erofs.MOST_INLINE - 4 * erofs.MOST_SHARED
        fits = np.cumsum(self._entry_sizes[rows]) <= room
        self.left_out += [self._name(row) for row in self._kept[rows[~fits]].tolist()]
        return self._entries(rows[fits]).tobytes()

    def _rows(self, inodes: Ints) -> Ints:
        return self._index.tables.inodes["attributes"][inodes].astype(np.int64)

    def sizes(self, inodes: Ints) -> Ints:
        """Return the bytes between each inode and its data."""
        return self._sizes[self._rows(inodes)]

    def words(self, inodes: Ints) -> Ints:
        """Return the number of words after the header, and 1 for the header."""
        size = self.sizes(inodes)
        return np.where(size > 0, (size - erofs.XATTR_HEADER.itemsize) // 4 + 1, 0)

    def put(self, out: Bytes, at: Ints, inodes: Ints) -> None:
        """Write the headers and lists of inodes to their places in `out`, multiples of 4."""
        row = self._rows(inodes)
        which = (self._sizes[row] > 0).nonzero()[0]
        if not len(which):
            return
        at, row = at[which], row[which]
        words = out.view("<u4")
        shared = self._shared[row]
        words[at // 4 + 1] = shared
        listed = at + erofs.XATTR_HEADER.itemsize
        numbers = self._at[ranges.numbers(self._first[row], shared)] // 4
        words[ranges.numbers(listed // 4, shared)] = numbers
        if self._inline:
            for end, each in zip((listed + 4 * shared).tolist(), row.tolist(), strict=True):
                inline = self._inline.get(each, b"")
                out[end : end + len(inline)] = np.frombuffer(inline, np.uint8)

    def shared(self, step: int) -> Iterator[tuple[Bytes, int]]:
        """Yield the bytes that inodes share in pieces, each with its offset."""
        for low, high in ranges.up_to(step, len(self._kept)):
            yield self._entries(np.arange(low, high)), int(self._at[low])

    def _entries(self, which: Ints) -> Bytes:
        """Return some of the attributes that are kept, one after the other."""
        tables = self._index.tables
        rows, sizes = tables.xattrs[self._kept[which]], self._entry_sizes[which]
        at = np.cumsum(sizes) - sizes
        out = np.zeros(int(sizes.sum()), np.uint8)
        heads = np.zeros(len(rows), erofs.XATTR)
        heads["name"], heads["value"] = rows["name"] - _PREFIX, rows["value"]
        heads["prefix"] = erofs.USER_PREFIX
        out.view(erofs.XATTR)[at // 4] = heads
        begin = rows["text"].astype(np.int64) + _PREFIX
        length = rows["name"].astype(np.int64) - _PREFIX + rows["value"]
        ranges.copy(out, at + erofs.XATTR.itemsize, tables.texts, begin, length)
        return out
