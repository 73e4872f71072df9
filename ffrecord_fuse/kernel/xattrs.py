"""Extended attributes of an image.

Each attribute is stored once, in the part of an image that inodes share. An inode lists numbers of
up to 255 shared attributes. An inode with more has the others inline. EROFS limits a value to
65,535 bytes, and the inline attributes of an inode to 256 KiB; what is larger is left out.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ffrecord.aliases import Bytes, Ints, Mask
from ffrecord.archive.index import Index
from ffrecord.format import erofs
from ffrecord_fuse.kernel import ranges

_PREFIX = len(b"user.")  # in front of every name; the image has a number instead


class Xattrs:
    """The extended attributes of an index, in the form of an image.

    Many inodes may share a row of attributes, and many rows may share an extended attribute. So
    sizes are computed as columns, and bytes are made only when they are written.
    """

    def __init__(self, index: Index) -> None:
        self._index = index
        attributes, rows = index.tables.attributes, index.tables.xattrs
        is_kept = rows["value"] <= erofs.LARGEST_XATTR
        self._kept = is_kept.nonzero()[0]
        length = rows["name"][self._kept].astype(np.int64) - _PREFIX + rows["value"][self._kept]
        self._entry_sizes = -(-(erofs.XATTR.itemsize + length) // 4) * 4
        self._at = np.concatenate([[0], np.cumsum(self._entry_sizes)])
        self.size = int(self._at[-1])
        """Bytes of all extended attributes, each stored once."""
        before = np.concatenate([[0], np.cumsum(is_kept)])
        first = attributes["xattr"].astype(np.int64)
        # From here on, numbers count only those that are kept.
        self._first = before[first]
        end = before[first + attributes["xattrs"]]
        self._shared = np.minimum(end - self._first, erofs.MOST_SHARED)
        self._inline = self._first + self._shared
        room = self._at[self._inline] + erofs.MOST_INLINE - 4 * erofs.MOST_SHARED
        self._end = np.minimum(end, np.searchsorted(self._at, room, side="right") - 1)
        listed = erofs.XATTR_HEADER.itemsize + 4 * self._shared
        listed += self._at[self._end] - self._at[self._inline]
        self._sizes = np.where(end > self._first, listed, 0)
        is_left_out = ~is_kept
        is_left_out[self._kept[_covered(self._end, end, len(self._kept))]] = True
        self.left_out: Ints = is_left_out.nonzero()[0]
        """The rows of extended attributes that an inode has in the archive and not in the image."""

    def name(self, row: int) -> bytes:
        """Return the name of an extended attribute."""
        text, length, _ = self._index.tables.xattrs[row].tolist()
        return self._index.tables.texts[text : text + length].tobytes()

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
        for each in (self._inline[row] < self._end[row]).nonzero()[0].tolist():
            inline = self._entries(np.arange(self._inline[row[each]], self._end[row[each]]))
            begin = int(listed[each] + 4 * shared[each])
            out[begin : begin + len(inline)] = inline

    def shared(self, step: int) -> Iterator[tuple[Bytes, int]]:
        """Yield the bytes that inodes share in pieces of about `step` bytes, with their offsets."""
        low = 0
        while low < len(self._kept):
            high = int(np.searchsorted(self._at, self._at[low] + step, side="right")) - 1
            high = max(high, low + 1)
            yield self._entries(np.arange(low, high)), int(self._at[low])
            low = high

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


def _covered(first: Ints, end: Ints, count: int) -> Mask:
    """Return which of `count` numbers are in at least one of several ranges."""
    changes = np.bincount(first, minlength=count + 1) - np.bincount(end, minlength=count + 1)
    covered: Mask = np.cumsum(changes)[:count] > 0
    return covered
