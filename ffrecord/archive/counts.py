"""Counts of files, folders and links, the same for a folder, an archive and a tar.

A file with several names counts as one file, and its further names count as hard links. The top
folder is not counted. So packing, extracting and converting the same tree report the same numbers.
"""

from __future__ import annotations

import stat
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ffrecord.archive.index import Index
from ffrecord.archive.index.build import Tree


@dataclass(slots=True)
class Counts:
    """Counts of the files, folders and links in a folder, an archive or a tar."""

    files: int = 0
    folders: int = 0
    symlinks: int = 0
    hard_links: int = 0
    bytes: int = 0

    @property
    def names(self) -> int:
        """Number of names, except names of folders."""
        return self.files + self.symlinks + self.hard_links


def count_name(counts: Counts, mode: int, size: int, *, is_hard_link: bool) -> None:
    """Add a name below the top to the counts.

    Not a method: reports, which are subclasses of `Counts`, would offer it to users.
    """
    if is_hard_link:
        counts.hard_links += 1
    elif stat.S_ISDIR(mode):
        counts.folders += 1
    elif stat.S_ISLNK(mode):
        counts.symlinks += 1
    else:
        counts.files += 1
        counts.bytes += size


def count_index(index: Index) -> Counts:
    """Count the contents of an archive."""
    tables = index.tables
    return _counted(kinds_of(index), tables.inodes["length"], len(tables.entries))


def kinds_of(index: Index) -> npt.NDArray[np.uint32]:
    """Return the kind of each inode, as `stat.S_IFMT` returns it."""
    tables = index.tables
    modes = tables.attributes["mode"] & np.uint32(0o170000)
    kinds: npt.NDArray[np.uint32] = modes[tables.inodes["attributes"]]
    return kinds


def count_tree(tree: Tree) -> Counts:
    """Count the contents of a folder that was walked."""
    return _counted(tree.kinds(), np.frombuffer(tree.length, np.uint64), len(tree.names))


def _counted(
    kinds: npt.NDArray[np.uint32], lengths: npt.NDArray[np.uint64], entries: int
) -> Counts:
    """Count inodes by kind. The root is an inode without an entry."""
    is_file = kinds == stat.S_IFREG
    return Counts(
        files=int(is_file.sum()),
        folders=int((kinds == stat.S_IFDIR).sum()) - 1,
        symlinks=int((kinds == stat.S_IFLNK).sum()),
        hard_links=entries - len(kinds) + 1,
        bytes=int(lengths[is_file].sum()),
    )
