"""Entries that arrive in any order, and the `Tree` that is made of them."""

from __future__ import annotations

import stat
from array import array
from collections.abc import Mapping

import numpy as np

from ffrecord.archive.index.build import Tree, Xattrs
from ffrecord.archive.index.columns import MISSING, RowTable
from ffrecord.archive.index.lookup import ROOT
from ffrecord.archive.names import to_text
from ffrecord.errors import ConversionError
from ffrecord.format.index import DEEPEST, LONGEST_NAME


class UnorderedEntries:
    """Inodes and entries in columns, in the order of arrival. Inode 0 is the root.

    Inodes that were replaced stay without a name until `in_order` drops them.
    """

    def __init__(self) -> None:
        self.found = Tree()
        self._by_name = RowTable()  # entries by folder and name

    def place(self, folder: int, name: bytes) -> int:
        """Return the entry of a name in a folder, or MISSING."""
        found = self.found
        return self._by_name.find(
            hash((folder, name)),
            lambda place: found.parent[place] == folder and found.names[place] == name,
        )

    def add(self, folder: int, name: bytes, inode: int) -> None:
        """Add an entry, which must not be there yet."""
        self._by_name.add(hash((folder, name)), len(self.found.names))
        self.found.add_entry(folder, name, inode)

    def inode(self, folder: int, name: bytes) -> int:
        """Return the inode of a name in a folder, or MISSING."""
        place = self.place(folder, name)
        return MISSING if place == MISSING else self.found.inode[place]

    def in_order(self, folder_xattrs: Mapping[int, Xattrs] | None = None) -> Tree:
        """Return the tree breadth first, with sorted names and without nameless inodes."""
        found, tree = self.found, Tree()
        parents = np.frombuffer(found.parent, np.uint32)
        by_folder = np.argsort(parents, kind="stable").astype(np.uint32)
        parents = parents[by_folder]
        numbers = array("I", bytes(4 * len(found)))  # 0: the root, or not numbered yet
        folders = array("I", [ROOT])
        _copy_inode(found, ROOT, tree)
        for folder in folders:  # the list grows during the loop
            begin, end = np.searchsorted(parents, np.array([folder, folder + 1], np.uint32))
            for place in sorted(by_folder[begin:end].tolist(), key=found.names.__getitem__):
                inode = found.inode[place]
                if not numbers[inode]:
                    numbers[inode] = _copy_inode(found, inode, tree)
                    if found.is_folder(inode):
                        folders.append(inode)
                tree.add_entry(numbers[folder], found.names[place], numbers[inode])
        number = np.frombuffer(numbers, np.uint32).astype(np.int64)
        tree.xattrs = found.xattrs.renumbered(number > 0, number)
        tree.blocks = found.blocks.renumbered(number > 0, number)
        for inode, xattrs in (folder_xattrs or {}).items():
            tree.xattrs[numbers[inode]] = xattrs
        return tree


def _copy_inode(found: Tree, inode: int, tree: Tree) -> int:
    number = tree.add_inode(*(column[inode] for column in found.columns))
    if stat.S_ISLNK(found.mode[inode]):
        tree.targets[number] = found.targets[inode]
    return number


def split_path(path: bytes) -> list[bytes]:
    """Return the names in an entry's path; an empty list for the top folder.

    Raises:
        ConversionError: The path leads out of the top folder, or is not a valid path.
    """
    if not path:
        return []
    names = path.split(b"/")
    if (reason := _why_impossible(names)) is not None:
        shown = to_text(path)
        shown = repr(shown) if len(shown) <= 200 else f"{shown[:200]!r}…"
        raise ConversionError(
            f"an archive cannot have a file with the path {shown}: {reason}; rename the file"
        )
    return names


def _why_impossible(names: list[bytes]) -> str | None:
    for name in names:
        if name in (b"", b".", b".."):
            return "it contains an empty name, '.' or '..'"
        if b"\0" in name:
            return "it contains a NUL"
        if len(name) > LONGEST_NAME:
            return f"it contains a name of {len(name)} bytes, and the limit is {LONGEST_NAME}"
    if len(names) > DEEPEST:
        return f"it has {len(names)} levels of folders, and the limit is {DEEPEST}"
    return None
