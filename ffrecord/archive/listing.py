"""Entries of many folders at once: names, inodes and attributes as columns.

`walk` goes from entry to entry, which suits a search that ends early. This module suits whole
listings: a level of a tree takes a few numpy operations, however many entries it has. Python
objects are made only for the names that a caller asks for.
"""

from __future__ import annotations

import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ffrecord.aliases import Ints, Mask
from ffrecord.archive.index import Index
from ffrecord.archive.index.resolve import leads_to
from ffrecord.archive.names import to_text
from ffrecord.format.index import Rows

_KIND = np.uint32(0o170000)  # the bits of a mode that say file, folder or symlink


@dataclass(frozen=True, slots=True)
class Entries:
    """Entries of an index, in any order.

    `numbers` are the numbers of the entries. `place` is the position of each entry's folder in the
    list of folders that was asked for.
    """

    index: Index
    numbers: Ints
    place: Ints

    @classmethod
    def of(cls, index: Index, folders: Ints) -> Entries:
        """Return the entries of folders, folder by folder, sorted by name in each."""
        rows = index.tables.inodes[folders]
        first, count = rows["data"].astype(np.int64), rows["length"].astype(np.int64)
        place = np.repeat(np.arange(len(folders)), count)
        # The numbers in a folder are consecutive: count on from its first entry.
        before = np.cumsum(count) - count
        return cls(index, np.arange(len(place)) + np.repeat(first - before, count), place)

    def __len__(self) -> int:
        return len(self.numbers)

    def some(self, which: Mask | Ints) -> Entries:
        """Return a part of the entries."""
        return Entries(self.index, self.numbers[which], self.place[which])

    @property
    def inodes(self) -> Ints:
        return self.index.tables.entries["inode"][self.numbers].astype(np.int64)

    def names(self) -> list[str]:
        """Return the name of each entry."""
        if not len(self):
            return []
        tables = self.index.tables
        end = tables.entries["name_end"][self.numbers].astype(np.int64)
        begin = tables.entries["name_end"][self.numbers - 1].astype(np.int64)
        begin[self.numbers == 0] = 0  # no name ends before the first
        low = int(begin.min())
        raw = tables.names[low : int(end.max())].tobytes()
        spans = zip((begin - low).tolist(), (end - low).tolist(), strict=True)
        if raw.isascii():  # decode once: each name has as many letters as bytes
            text = raw.decode("ascii")
            return [text[start:stop] for start, stop in spans]
        return [to_text(raw[start:stop]) for start, stop in spans]

    def paths(self, prefixes: Sequence[str]) -> list[str]:
        """Return the path of each entry. `prefixes` has one for each folder that was asked for."""
        if len(prefixes) == 1:
            (prefix,) = prefixes
            return self.names() if not prefix else [prefix + name for name in self.names()]
        pairs = zip(self.place.tolist(), self.names(), strict=True)
        return [prefixes[place] + name for place, name in pairs]

    def targets(self) -> Ints:
        """Return the inode of each entry, or of the file or folder that a symlink leads to.

        A symlink that is broken, or leads out of the archive, has its own inode.
        """
        index, inodes = self.index, self.inodes
        for row in are(index, inodes, stat.S_IFLNK).nonzero()[0].tolist():
            entry = int(self.numbers[row])
            folder = int(index.tables.entries["parent"][entry])
            inodes[row] = leads_to(index, folder, index.name(entry), int(inodes[row]))
        return inodes


@dataclass(frozen=True, slots=True)
class Level:
    """The entries at one depth below a folder, and their paths."""

    entries: Entries
    paths: list[str]

    def some(self, which: Mask) -> Level:
        """Return a part of the level."""
        if which.all():
            return self
        rows = which.nonzero()[0]
        return Level(self.entries.some(rows), [self.paths[row] for row in rows.tolist()])


def below(
    index: Index, folders: Ints, prefixes: Sequence[str], depth: int | None = None
) -> Iterator[Level]:
    """Yield the levels below folders, at most `depth` of them. Symlinks are not entered.

    `prefixes` has one text for each folder. It begins the paths below that folder, and it is empty
    or ends in a slash.
    """
    while len(folders) and depth != 0:
        entries = Entries.of(index, folders)
        level = Level(entries, entries.paths(prefixes))
        yield level
        inodes = entries.inodes
        inner = are(index, inodes, stat.S_IFDIR)
        folders = inodes[inner]
        prefixes = [f"{level.paths[row]}/" for row in inner.nonzero()[0].tolist()]
        depth = None if depth is None else depth - 1


def are(index: Index, inodes: Ints, kind: int) -> Mask:
    """Return True for each inode of a kind, such as `stat.S_IFDIR`."""
    found: Mask = attributes(index, inodes)["mode"] & _KIND == kind
    return found


def attributes(index: Index, inodes: Ints) -> Rows:
    """Return the row of attributes of each inode: mode, owner, group, links."""
    tables = index.tables
    rows: Rows = tables.attributes[tables.inodes["attributes"][inodes]]
    return rows
