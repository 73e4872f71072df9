"""Folders of an image: which there are, and their entries in blocks of bytes.

A block begins with the entries, 12 bytes each, and the names follow. Names are sorted by bytes over
all blocks of a folder, and so are "." and "..", which stand among the other names.
"""

from __future__ import annotations

import stat
from bisect import bisect_right
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ffrecord.aliases import Bytes, Ints, Mask
from ffrecord.archive.counts import kinds_of
from ffrecord.archive.index import ROOT, Index
from ffrecord.format import erofs
from ffrecord_fuse.kernel import ranges

_DOT, _DOTS = -1, -2  # instead of the number of an entry: "." and ".."
_DOT_BYTE = ord(".")


@dataclass(frozen=True, slots=True)
class Subtree:
    """The inodes below a folder of an archive, that folder first."""

    inodes: Ints
    folders: Ints  # the folder itself first
    parents: Ints  # of each folder; the first is its own parent

    @classmethod
    def of(cls, index: Index, root: int) -> Subtree:
        tables = index.tables
        folders = (kinds_of(index) == stat.S_IFDIR).nonzero()[0]
        named_by = tables.inodes["entry"][folders[1:]]
        parents = np.concatenate([[ROOT], tables.entries["parent"][named_by].astype(np.int64)])
        if root == ROOT:
            return cls(np.arange(len(index)), folders, parents)
        inside = _ancestors(folders, parents, root) == root
        folders, parents = folders[inside], parents[inside]
        parents[0] = root
        entries = ranges.numbers(*_entries_of(index, folders))
        is_there = np.zeros(len(index), bool)
        is_there[tables.entries["inode"][entries]] = True
        inodes = np.concatenate([[root], is_there.nonzero()[0]])
        return cls(inodes, folders, parents)


def _ancestors(folders: Ints, parents: Ints, root: int) -> Ints:
    """Return for each folder `root` if that is above it or the folder itself, otherwise ROOT."""
    above = np.searchsorted(folders, parents)
    above[np.searchsorted(folders, root)] = np.searchsorted(folders, root)
    while True:  # each turn doubles the number of levels that are climbed
        higher = above[above]
        if (higher == above).all():
            return folders[above]
        above = higher


def _entries_of(index: Index, folders: Ints) -> tuple[Ints, Ints]:
    """Return the first entry and the number of entries of each folder."""
    rows = index.tables.inodes[folders]
    return rows["data"].astype(np.int64), rows["length"].astype(np.int64)


class Folders:
    """The entries of folders, "." and ".." among them, cut into blocks.

    `sizes` has the bytes of each folder: whole blocks, and the used part of the last one.
    `blocks_of` has the number of blocks of each folder.
    """

    def __init__(self, index: Index, tree: Subtree, block: int) -> None:
        self._index = index
        self._tree = tree
        first, count = _entries_of(index, tree.folders)
        self._entry, ends = self._merged(first, count)
        self._cut(ends, block)

    def _merged(self, first: Ints, count: Ints) -> tuple[Ints, Ints]:
        """Return the entries of all folders in order of names, and where each folder ends."""
        begin, _ = self._names(ranges.numbers(first, count))
        names = self._index.tables.names
        letter = names[begin]
        is_below = letter < _DOT_BYTE
        below_dot = _sums(is_below, count)
        dotted = (letter == _DOT_BYTE).nonzero()[0]  # these names are longer: "." is not a name
        is_below[dotted[names[begin[dotted] + 1] < _DOT_BYTE]] = True
        below_dots = _sums(is_below, count)
        ends = np.cumsum(count + 2)
        begins = ends - count - 2
        entry = np.zeros(int(ends[-1]), np.int64)
        entry[begins + below_dot], entry[begins + below_dots + 1] = _DOT, _DOTS
        entry[entry == 0] = ranges.numbers(first, count)
        return entry, ends

    def _names(self, entry: Ints) -> tuple[Ints, Ints]:
        """Return where the names of entries begin, and their lengths. "." and ".." begin at 0."""
        ends = self._index.tables.entries["name_end"]
        end, begin = _taken(ends, entry), _taken(ends, entry - 1)
        begin[entry <= 0] = 0
        length = end - begin
        is_special = entry < 0
        length[is_special] = -entry[is_special]
        return begin, length

    def _cut(self, ends: Ints, block: int) -> None:
        """Cut the entries of each folder into blocks, as few as possible."""
        _, length = self._names(self._entry)
        length += erofs.DIRENT.itemsize
        until = np.cumsum(length)
        begins = np.concatenate([[0], ends[:-1]])
        before = until[begins] - length[begins]
        size = until[ends - 1] - before
        first = begins
        large = (size > block).nonzero()[0]
        if large.size:
            more = [_cuts(until.data, begins[row], ends[row], block) for row in large.tolist()]
            first = np.sort(np.concatenate([begins, *map(np.array, more)]))
        self._first = first
        self._count = np.diff(first, append=ends[-1])
        self._block_sizes = until[first + self._count - 1] - until[first] + length[first]
        self.first_block = np.searchsorted(first, begins)
        self.blocks_of = np.diff(self.first_block, append=len(first))
        last = self.first_block + self.blocks_of - 1
        self.sizes = (self.blocks_of - 1) * block + self._block_sizes[last]
        self._folder = np.repeat(np.arange(len(begins)), self.blocks_of)

    def write(self, out: Bytes, at: Ints, blocks: Ints, numbers: Ints) -> None:
        """Write some blocks to their places in `out`, which is all zeros there.

        `numbers` has the number in the image of each inode of the archive. Places are multiples
        of 4.
        """
        count = self._count[blocks]
        row = ranges.numbers(self._first[blocks], count)
        entry = self._entry[row]
        begin, length = self._names(entry)
        inode, kind = self._targets(entry, np.repeat(self._folder[blocks], count))
        until = np.cumsum(length)
        first = np.cumsum(count) - count
        in_names = until - length - np.repeat(until[first] - length[first], count)
        name = in_names + np.repeat(erofs.DIRENT.itemsize * count, count)
        words = out.view("<u4")
        place = np.repeat(at, count)
        dirent = (
            place + erofs.DIRENT.itemsize * (np.arange(len(row)) - np.repeat(first, count))
        ) // 4
        words[dirent] = numbers[inode]
        words[dirent + 2] = name | kind.astype(np.int64) << 16
        special = (entry < 0).nonzero()[0]
        for more in (0, 1):
            longer = special[length[special] > more]
            out[place[longer] + name[longer] + more] = _DOT_BYTE
        plain = (entry >= 0).nonzero()[0]
        names = self._index.tables.names
        ranges.copy(out, (place + name)[plain], names, begin[plain], length[plain])

    def _targets(self, entry: Ints, folder: Ints) -> tuple[Ints, Bytes]:
        """Return the inodes of the archive that entries name, and the kinds of these inodes."""
        tables = self._index.tables
        inode = _taken(tables.entries["inode"], entry)
        for special, target in ((_DOT, self._tree.folders), (_DOTS, self._tree.parents)):
            rows = (entry == special).nonzero()[0]
            inode[rows] = target[folder[rows]]
        mode = tables.attributes["mode"][tables.inodes["attributes"][inode]]
        return inode, erofs.DIRENT_KINDS[mode >> 12]


def _taken(column: npt.NDArray[Any], rows: Ints) -> Ints:
    """Return values of a column of entries; any value for a row that does not exist."""
    if not len(column):  # the archive is an empty folder
        return np.zeros(len(rows), np.int64)
    return column.take(rows, mode="clip").astype(np.int64)


def _sums(values: Mask, count: Ints) -> Ints:
    """Return the number of true values in each of several ranges, which follow one another."""
    until = np.concatenate([[0], np.cumsum(values)])
    ends = np.cumsum(count)
    sums: Ints = until[ends] - until[ends - count]
    return sums


def _cuts(until: memoryview, begin: int, end: int, block: int) -> list[int]:
    """Return the first entries of all blocks of a folder but the first.

    `until` has the sum of the sizes up to each entry.
    """
    cuts: list[int] = []
    most = block // erofs.DIRENT.itemsize
    while True:
        before = until[begin - 1] if begin else 0
        begin = bisect_right(until, before + block, begin, min(begin + most, end))
        if begin == end:
            return cuts
        cuts.append(begin)
