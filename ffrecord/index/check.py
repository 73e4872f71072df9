"""What must hold of an index before anything is looked up in it.

An archive may be damaged, or made to harm. After these checks every number in the tables is in
range, the folders form a tree, every name is one that a folder can hold, and no two entries of a
folder have the same name. Each check is a few numpy operations over whole columns: a million
files take some tens of milliseconds.

Not checked here: the hashes (a wrong one is only slow, see `lookup`), the names of extended
attributes and NULs in symlinks (looked at when they are asked for), and the shards (compared with
the files that are there, see `archive`).
"""

from __future__ import annotations

import itertools
import stat
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ffrecord.errors import IndexStructureError
from ffrecord.index.layout import (
    BLOCK,
    DEEPEST,
    LONGEST_NAME,
    LONGEST_TARGET,
    NO_ENTRY,
    Image,
)

Ints: TypeAlias = npt.NDArray[np.int64]
Mask: TypeAlias = npt.NDArray[np.bool_]
Column: TypeAlias = npt.NDArray[Any]

NAMES_AT_A_TIME = 1 << 16
LARGEST_XATTR = 1 << 16


def check(path: str, image: Image, record_sizes: Ints) -> None:
    """Raise IndexStructureError unless all of an image makes sense.

    `record_sizes` are the bytes of each record that a file may be (so without the index's own).
    """
    checks = _Checks(path, image)
    checks.attributes()
    checks.inodes(record_sizes)
    checks.entries()
    checks.folders()
    checks.links()
    checks.names()
    checks.large_files()


class _Checks:
    def __init__(self, path: str, image: Image) -> None:
        self._path = path
        self._image = image

    def _require(self, right: Any, what: str) -> None:
        """All of `right`, or the error that `what` names with the first row that is wrong."""
        if not np.all(right):
            row = "" if np.ndim(right) == 0 else f" (row {int(np.argmin(right))})"
            raise IndexStructureError(f"{self._path}: its index is wrong: {what}{row}")

    def attributes(self) -> None:
        rows, xattrs = self._image.attributes, self._image.xattrs
        kinds = rows["mode"] & ~np.uint32(0o7777)
        allowed = np.array([stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK], np.uint32)
        self._require(np.isin(kinds, allowed), "a mode that is no file, folder or symlink")
        last = rows["xattr"].astype(np.uint64) + rows["xattrs"]
        self._require(last <= len(xattrs), "extended attributes that are not there")
        self._require(xattrs["name"] <= LONGEST_NAME, "an extended attribute's name is too long")
        self._require(xattrs["value"] <= LARGEST_XATTR, "an extended attribute is too large")
        self._within_texts(xattrs["text"], xattrs["name"] + xattrs["value"], "attributes")

    def inodes(self, record_sizes: Ints) -> None:
        """Also sorts the inodes into kinds, for the checks that follow."""
        rows = self._image.inodes
        self._require(len(rows) > 0, "there is no root")
        self._require(rows["attributes"] < len(self._image.attributes), "attributes not there")
        # The kind's four bits as one byte: a column of a million takes no time to sort out.
        kind = (self._image.attributes["mode"] >> 12).astype(np.uint8)[rows["attributes"]]
        self._is_folder: Mask = kind == stat.S_IFDIR >> 12
        self._folders: Ints = self._is_folder.nonzero()[0]
        self._files: Ints = (kind == stat.S_IFREG >> 12).nonzero()[0]
        self._require(self._is_folder[0], "the root is not a folder")
        self._require(rows["entry"][0] == NO_ENTRY, "the root has a name")

        record = rows["data"][self._files]
        self._require(record < len(record_sizes), "a file's record is not there")
        size = rows["length"][self._files]
        self._require(size == record_sizes[record.view(np.int64)], "a size is not its record's")

        links = (kind == stat.S_IFLNK >> 12).nonzero()[0]
        length = rows["length"][links]
        self._require((length > 0) & (length <= LONGEST_TARGET), "a symlink's target is too long")
        self._within_texts(rows["data"][links], length, "symlinks")

    def entries(self) -> None:
        inodes, entries = self._image.inodes, self._image.entries
        self._require(entries["inode"] < len(inodes), "an entry's inode is not there")
        self._require(self._image.hashed < len(entries), "a hash's entry is not there")
        self._require(
            len(self._image.hashes) == len(entries), "there are more or fewer hashes than entries"
        )
        first = inodes["entry"][1:]
        self._require(first < len(entries), "an inode's entry is not there")
        named = entries["inode"][first]
        self._require(named == np.arange(1, len(inodes)), "an inode's entry names another inode")

    def folders(self) -> None:
        """They share the entries out among them, in order, and form a tree of bearable depth."""
        inodes, entries, folders = self._image.inodes, self._image.entries, self._folders
        count = inodes["length"][folders]
        self._require(count <= len(entries), "a folder has more entries than there are")
        until = np.cumsum(count)
        self._require(until[-1] == len(entries), "folders leave entries over, or want more")
        self._require(inodes["data"][folders] == until - count, "folders overlap")
        self._require(
            entries["parent"] == np.repeat(folders, count.astype(np.int64)),
            "an entry is in another folder than it says",
        )
        # Breadth first: each folder but the root is named once, in order, after its parent.
        self._inner = self._is_folder[entries["inode"]].nonzero()[0]
        inner = entries["inode"][self._inner]
        self._require(len(inner) == len(folders) - 1, "a folder has no name, or two")
        self._require(inner == folders[1:], "folders are not numbered breadth first")
        self._parents: Column = entries["parent"][self._inner]
        self._require(inner > self._parents, "a folder is inside itself")
        self._require_depth()

    def _require_depth(self) -> None:
        # Folders of one level lie next to each other, so do those of the next.
        parents = np.searchsorted(self._folders, self._parents)
        until, depth = 1, 0
        while until < len(self._folders):
            until = int(np.searchsorted(parents, until)) + 1
            depth += 1
            self._require(depth <= DEEPEST, f"folders are more than {DEEPEST} levels deep")

    def links(self) -> None:
        inodes, entries = self._image.inodes, self._image.entries
        due = np.bincount(entries["inode"], minlength=len(inodes))
        due[self._folders] = 2
        due += np.bincount(self._parents, minlength=len(inodes))
        links = self._image.attributes["links"][inodes["attributes"]]
        self._require(links == due, "a count of links is wrong")

    def names(self) -> None:
        entries, names = self._image.entries, self._image.names
        end = entries["name_end"]
        self._require(end <= len(names), "a name is not there")
        self._require(len(names) == (int(end[-1]) if len(end) else 0), "names are left over")
        self._require(end[1:] > end[:-1], "a name is empty")
        self._require(not len(end) or end[0] > 0, "a name is empty")
        for start in range(0, len(entries), NAMES_AT_A_TIME):
            self._some_names(start, min(start + NAMES_AT_A_TIME, len(entries)))

    def _some_names(self, start: int, stop: int) -> None:
        """Names of entries `start` up to `stop`, and how the first compares with the one before."""
        start = max(0, start - 1)
        rows = self._image.entries[start:stop]
        end = rows["name_end"].astype(np.int64)
        low = int(self._image.entries["name_end"][start - 1]) if start else 0
        begin = np.concatenate([[low], end[:-1]])
        length = end - begin
        self._require(length <= LONGEST_NAME, "a name is too long")
        raw = self._image.names[low : int(end[-1])].tobytes()
        self._require(b"\0" not in raw, "a name has a NUL in it")
        self._require(b"/" not in raw, "a name has a slash in it")
        for row in (length <= 2).nonzero()[0].tolist():
            name = raw[begin[row] - low : end[row] - low]
            self._require(name not in (b".", b".."), f"an entry is called {name.decode()!r}")
        siblings = rows["parent"][1:] == rows["parent"][:-1]
        self._require(
            _in_order(raw, begin - low, length, siblings),
            "names are not in order, or two of a folder are the same",
        )

    def large_files(self) -> None:
        inodes, large = self._image.inodes, self._image.large
        if not len(large) and not len(self._image.blocks):  # as the original's: for none, then
            return
        length = inodes["length"][self._files]
        due = self._files[length > BLOCK]
        self._require(len(large) == len(due), "large files without checksums, or more than those")
        self._require(large["inode"] == due, "checksums for other files than the large ones")
        blocks = -(-inodes["length"][due].astype(np.int64) // BLOCK)
        until = np.cumsum(blocks)
        self._require(large["first"] == until - blocks, "checksums of large files overlap")
        total = int(until[-1]) if len(until) else 0
        self._require(total == len(self._image.blocks), "checksums of blocks are left over")

    def _within_texts(self, begin: Column, length: Column, what: str) -> None:
        total = len(self._image.texts)
        begin, length = begin.astype(np.uint64), length.astype(np.uint64)
        fits = (begin <= total) & (length <= total)
        self._require(fits & (begin + np.where(fits, length, 0) <= total), f"{what} out of range")


def _in_order(raw: bytes, begin: Ints, length: Ints, siblings: Mask) -> bool:
    """Whether each name is less than the next one, where those two are siblings.

    Names of one length, as numbered files have, lie there as an array of strings that numpy
    compares by itself. All others are compared eight bytes at a time.
    """
    changes = (length[1:] != length[:-1]).nonzero()[0] + 1
    if len(changes) > len(length) // 32:
        return _in_order_by_words(raw, begin, length, siblings.nonzero()[0])
    right = ~siblings
    for start, stop in itertools.pairwise([0, *changes.tolist(), len(length)]):
        run = np.frombuffer(raw, f"S{length[start]}", stop - start, int(begin[start]))
        right[start : stop - 1] |= run[:-1] < run[1:]
        right[stop - 1 : stop] = True  # of another length
    across = changes[siblings[changes - 1]] - 1
    return bool(right.all()) and _in_order_by_words(raw, begin, length, across)


def _in_order_by_words(raw: bytes, begin: Ints, length: Ints, pairs: Ints) -> bool:
    """As big-endian numbers of eight bytes; pairs that differ are decided, the rest goes on."""
    padded = np.frombuffer(raw + bytes(8), np.uint8)
    # The eight bytes from each byte on.
    windows = np.ndarray((len(raw) + 1,), ">u8", padded, strides=(1,))
    keep = np.array([0] + [(1 << 64) - (1 << (64 - 8 * k)) for k in range(1, 9)], np.uint64)
    at = 0
    while pairs.size:
        key = []
        for row in (pairs, pairs + 1):
            left = np.clip(length[row] - at, 0, 8)
            window = windows[np.minimum(begin[row] + at, len(raw))].astype(np.uint64)
            key.append(window & keep[left])
        undecided = key[0] == key[1]
        if (key[0] > key[1]).any() or (undecided & (length[pairs + 1] <= at + 8)).any():
            return False
        pairs = pairs[undecided]
        at += 8
    return True
