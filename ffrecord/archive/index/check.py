"""Checks that an index must pass before anything is looked up in it.

An archive may be damaged, or made to harm. After these checks every number in the tables is in
range, the folders form a tree, every name is one that a folder can hold, and no two entries of a
folder have the same name. Each check is a few numpy operations over thousands of rows: a million
files take some tens of milliseconds.

Not checked here: the hashes (a wrong one is only slow, see `lookup`), the names of extended
attributes and NULs in symlinks (looked at when they are asked for), all of which `audit` looks at;
and the shards (compared with the files that are there, see `archive`).
"""

from __future__ import annotations

import itertools
import stat
from collections.abc import Callable
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from ffrecord.aliases import Ints, Mask
from ffrecord.errors import IndexStructureError
from ffrecord.format.index import (
    BLOCK,
    DEEPEST,
    LARGEST_XATTR,
    LONGEST_NAME,
    LONGEST_TARGET,
    NO_ENTRY,
    Image,
    Rows,
)

Column: TypeAlias = npt.NDArray[Any]
WaitFor: TypeAlias = "Callable[[str, int | None], None]"

AT_A_TIME = 1 << 14
"""Rows. Results of this many come from memory that malloc has at hand; fresh pages cost more."""

PADDING = 8
MOST_XATTRS = 16 << 20
"""Bytes of all that one inode has. No file system takes nearly as much."""

_FOLDER, _FILE, _SYMLINK = (kind >> 12 for kind in (stat.S_IFDIR, stat.S_IFREG, stat.S_IFLNK))


class RecordSizes(Protocol):
    """The bytes of each record that a file may be: an array, or what can be asked like one."""

    def __len__(self) -> int: ...
    def __getitem__(self, records: Ints, /) -> Ints: ...


def nothing_to_wait_for(part: str, rows: int | None) -> None:
    """For an image that is all there."""


def check(path: str, image: Image, record_sizes: RecordSizes, wait_for: WaitFor) -> None:
    """Raise IndexStructureError unless all of an image makes sense.

    `wait_for` is called with one of `format.index.parts` and how many of its rows, or None for all
    of it, before those are looked at.
    """
    checks = _Checks(path, image, wait_for)
    checks.attributes()
    checks.inodes(record_sizes)
    checks.folders()
    checks.entries()
    checks.links()
    checks.large_files()
    checks.hashes()
    checks.padding()


class _Checks:
    def __init__(self, path: str, image: Image, wait_for: WaitFor) -> None:
        self._path = path
        self._image = image
        self._wait_for = wait_for
        self._scratch = _Scratch()

    def _require(self, right: Any, what: str, start: int = 0) -> None:
        """All of `right`, or the error that `what` names with the first row that is wrong."""
        if not np.all(right):
            row = "" if np.ndim(right) == 0 else f" (row {start + int(np.argmin(right))})"
            raise IndexStructureError(f"{self._path}: its index is wrong: {what}{row}")

    def attributes(self) -> None:
        """Some rows at a time: those of a hole are refused before more of it is looked at."""
        rows, xattrs = self._image.attributes, self._image.xattrs
        allowed = np.array([_FOLDER, _FILE, _SYMLINK], np.uint32)
        self._kinds = np.empty(len(rows), np.uint8)
        for start in range(0, len(rows), AT_A_TIME):
            some = rows[start : start + AT_A_TIME]
            self._wait_for("attributes", start + len(some))
            kinds = some["mode"] >> 12
            known = np.isin(kinds, allowed)
            self._require(known, "a mode of no file, folder or symlink", start)
            self._kinds[start : start + len(kinds)] = kinds
        until = np.zeros(len(xattrs) + 1, np.int64)  # bytes of all xattrs before each
        for start in range(0, len(xattrs), AT_A_TIME):
            some = xattrs[start : start + AT_A_TIME]
            self._wait_for("xattrs", start + len(some))
            until[start + 1 : start + 1 + len(some)] = self._some_xattrs(some)
        np.cumsum(until, out=until)
        first = rows["xattr"].astype(np.int64)
        last = first + rows["xattrs"]
        self._require(last <= len(xattrs), "extended attributes that are not there")
        self._require(until[last] - until[first] <= MOST_XATTRS, "too many extended attributes")

    def _some_xattrs(self, rows: Rows) -> Column:
        """How many bytes each has."""
        name, value = rows["name"], rows["value"]
        self._require((name > 0) | (value > 0), "an extended attribute without a byte")
        self._require(name <= LONGEST_NAME, "an extended attribute's name is too long")
        self._require(value <= LARGEST_XATTR, "an extended attribute is too large")
        size: Column = name + value
        self._within_texts(rows["text"], size, "attributes")
        return size

    def inodes(self, record_sizes: RecordSizes) -> None:
        """Also finds out which are folders, files larger than a block, or have several names."""
        rows = self._image.inodes
        self._require(len(rows) > 0, "there is no root")
        self._is_folder = np.empty(len(rows), bool)
        self._is_linked = np.empty(len(rows), bool)
        large = []
        for start in range(0, len(rows), AT_A_TIME):
            some = rows[start : start + AT_A_TIME]
            self._wait_for("inodes", start + len(some))
            large.append(start + self._some_inodes(start, some, record_sizes))
        self._large = np.concatenate(large)
        self.folder_inodes: Ints = self._is_folder.nonzero()[0]
        self._require(self._is_folder[0], "the root is not a folder")
        self._require(rows["entry"][0] == NO_ENTRY, "the root has a name")

    def _some_inodes(self, start: int, rows: Rows, record_sizes: RecordSizes) -> Ints:
        attributes, data, length = rows["attributes"], rows["data"], rows["length"]
        self._require(attributes < len(self._kinds), "attributes that are not there", start)
        kind = self._kinds[attributes]
        links = self._image.attributes["links"][attributes]
        self._is_folder[start : start + len(rows)] = kind == _FOLDER
        self._is_linked[start : start + len(rows)] = (kind != _FOLDER) & (links > 1)
        self._require(links > 0, "a file without links", start)

        files = (kind == _FILE).nonzero()[0]
        record, size = data[files], length[files]
        self._require(record < len(record_sizes), "a file's record is not there")
        self._require(size == record_sizes[record.view(np.int64)], "a size is not its record's")

        symlinks = (kind == _SYMLINK).nonzero()[0]
        target = length[symlinks]
        self._require((target > 0) & (target <= LONGEST_TARGET), "a symlink's target is too long")
        self._within_texts(data[symlinks], target, "symlinks")
        # No entry names two. Each one's is looked at later; those of a hole are all the same.
        entry = rows["entry"][not start :]  # the root has none
        self._require(entry[1:] != entry[:-1], "two inodes with one entry", start + (not start))
        large: Ints = files[size > BLOCK]
        return large

    def folders(self) -> None:
        """They share the entries out among them, in order."""
        inodes, entries = self._image.inodes, self._image.entries
        count = inodes["length"][self.folder_inodes]
        self._require(count <= len(entries), "a folder has more entries than there are")
        self._until = np.cumsum(count.astype(np.int64))
        self._require(self._until[-1] == len(entries), "folders leave entries over, or want more")
        first = self._until - count.astype(np.int64)
        self._require(inodes["data"][self.folder_inodes] == first, "folders overlap")

    def entries(self) -> None:
        """They name what is there, and the folders form a tree of bearable depth."""
        inodes, entries = self._image.inodes, self._image.entries
        inner = []
        for start in range(0, len(entries), AT_A_TIME):
            rows = entries[start : start + AT_A_TIME]
            self._wait_for("entries", start + len(rows))
            inner.append(start + self._some_entries(start, rows))
            self._some_names(start, start + len(rows))
        total = int(entries["name_end"][-1]) if len(entries) else 0
        self._require(total == len(self._image.names), "names are left over, or not there")
        for start in range(1, len(inodes), AT_A_TIME):
            first = inodes["entry"][start:][:AT_A_TIME]
            self._require(first < len(entries), "an inode's entry is not there", start)
            due = np.arange(start, start + len(first))
            self._require(entries["inode"][first] == due, "an inode's entry is another's", start)
        self._tree(entries[np.concatenate(inner) if inner else np.empty(0, np.int64)])

    def _some_entries(self, start: int, rows: Rows) -> Ints:
        """The places of folders among them."""
        inode = rows["inode"]
        self._require(inode < len(self._image.inodes), "an entry's inode is not there", start)
        stop = start + len(rows)
        folders = slice(
            int(np.searchsorted(self._until, start, "right")),
            int(np.searchsorted(self._until, stop - 1, "right")) + 1,
        )
        until = np.minimum(self._until[folders], stop) - start
        count = np.diff(until, prepend=0)
        due = np.repeat(self.folder_inodes[folders], count)
        self._require(rows["parent"] == due, "an entry is in another folder than it says", start)
        inner: Ints = self._is_folder[inode].nonzero()[0]
        return inner

    def _tree(self, rows: Rows) -> None:
        """Breadth first: each folder but the root is named once, in order, after its parent."""
        inode, self._parents = rows["inode"], rows["parent"]
        self._require(len(rows) == len(self.folder_inodes) - 1, "a folder has no name, or two")
        self._require(inode == self.folder_inodes[1:], "folders are not numbered breadth first")
        self._require(inode > self._parents, "a folder is inside itself")
        # Folders of one level lie next to each other, so do those of the next.
        parents = np.searchsorted(self.folder_inodes, self._parents)
        until, depth = 1, 0
        while until < len(self.folder_inodes):
            until = int(np.searchsorted(parents, until)) + 1
            depth += 1
            self._require(depth <= DEEPEST, f"folders are more than {DEEPEST} levels deep")

    def links(self) -> None:
        """Every inode has a name; so if those with several have as many as they say, and the
        total is right, then the others have one."""
        inodes, entries = self._image.inodes, self._image.entries
        links = self._image.attributes["links"]
        inner = np.searchsorted(self.folder_inodes, self._parents)
        due = 2 + np.bincount(inner, minlength=len(self.folder_inodes))
        self._require(links[inodes["attributes"][self.folder_inodes]] == due, "a folder's links")
        several = self._is_linked.nonzero()[0]
        stated = links[inodes["attributes"][several]].astype(np.int64)
        names = len(inodes) - 1 - len(several) + int(stated.sum())
        self._require(names == len(entries), "more or fewer names than links")
        if several.size:
            named = entries["inode"][self._is_linked[entries["inode"]]]
            counted = np.bincount(np.searchsorted(several, named), minlength=len(several))
            self._require(counted == stated, "a count of links is wrong")

    def _some_names(self, start: int, stop: int) -> None:
        """Names of entries `start` up to `stop`, and how the first compares with the one before."""
        start = max(0, start - 1)
        rows = self._image.entries[start:stop]
        low = int(self._image.entries["name_end"][start - 1]) if start else 0
        end = rows["name_end"].astype(np.int64)
        self._require(rows["name_end"] <= len(self._image.names), "a name is not there", start)
        begin = np.concatenate([[low], end[:-1]])
        length = end - begin
        self._require((length > 0) & (length <= LONGEST_NAME), "an empty or too long name", start)
        self._wait_for("names", int(end[-1]))
        raw = self._scratch.copy_of(self._image.names[low : int(end[-1])])
        self._require(raw.find(b"\0", 0, int(end[-1]) - low) < 0, "a name has a NUL in it")
        self._require(raw.find(b"/", 0, int(end[-1]) - low) < 0, "a name has a slash in it")
        for row in (length <= 2).nonzero()[0].tolist():
            name = bytes(raw[begin[row] - low : end[row] - low])
            self._require(name not in (b".", b".."), f"an entry is called {name!r}")
        siblings = rows["parent"][1:] == rows["parent"][:-1]
        self._require(
            _in_order(raw, begin - low, length, siblings),
            f"names from entry {start} on are not in order, or two of a folder are the same",
        )

    def hashes(self) -> None:
        """Only that they lead somewhere: a wrong one is slow, not wrong."""
        self._wait_for("hashes", None)
        hashed, entries = self._image.hashed, len(self._image.entries)
        self._require(len(hashed) == entries, "there are more or fewer hashes than entries")
        for start in range(0, entries, AT_A_TIME):
            some = hashed[start : start + AT_A_TIME]
            self._require(some < entries, "a hash's entry is not there", start)

    def large_files(self) -> None:
        inodes, large = self._image.inodes, self._image.large
        if not len(large) and not len(self._image.blocks):  # as the original's: for none, then
            return
        due = self._large
        self._require(large["zero"] == 0, "something is where zeros are due")
        self._require(len(large) == len(due), "large files without checksums, or more than those")
        self._require(large["inode"] == due, "checksums for other files than the large ones")
        blocks = -(-inodes["length"][due].astype(np.int64) // BLOCK)
        until = np.cumsum(blocks)
        self._require(large["first"] == until - blocks, "checksums of large files overlap")
        total = int(until[-1]) if len(until) else 0
        self._require(total == len(self._image.blocks), "checksums of blocks are left over")

    def padding(self) -> None:
        """All but the end of the names was waited for before."""
        self._wait_for("names", None)
        for between in self._image.padding:
            self._require(not between.any(), "something is between its tables, where zeros are due")

    def _within_texts(self, begin: Column, length: Column, what: str) -> None:
        total = len(self._image.texts)
        begin, length = begin.astype(np.uint64), length.astype(np.uint64)
        fits = (begin <= total) & (length <= total)
        self._require(fits & (begin + np.where(fits, length, 0) <= total), f"{what} out of range")


class _Scratch:
    """A place for copies that is used again and again: fresh memory costs more than a copy."""

    def __init__(self) -> None:
        self._memory = bytearray()

    def copy_of(self, source: npt.NDArray[np.uint8]) -> bytearray:
        """The bytes, and at least PADDING more of which nothing is known."""
        if len(self._memory) < len(source) + PADDING:  # a new one: the old may be in use
            self._memory = bytearray(2 * len(source) + PADDING)
        np.frombuffer(self._memory, np.uint8)[: len(source)] = source
        return self._memory


def _in_order(raw: bytearray, begin: Ints, length: Ints, siblings: Mask) -> bool:
    """Whether each name is less than the next one, where those two are siblings.

    Names of one length, as numbered files have, lie there as an array of strings that numpy
    compares by itself. All others are compared eight bytes at a time. After the last name there
    are at least PADDING bytes of whatever kind.
    """
    changes = (length[1:] != length[:-1]).nonzero()[0] + 1
    words = _Words(raw, begin, length)
    if len(changes) > len(length) // 32:
        return words.in_order(siblings)
    right = ~siblings
    for start, stop in itertools.pairwise([0, *changes.tolist(), len(length)]):
        run = np.frombuffer(raw, f"S{length[start]}", stop - start, int(begin[start]))
        right[start : stop - 1] |= run[:-1] < run[1:]
        right[stop - 1 : stop] = True  # of another length
    across = changes[siblings[changes - 1]] - 1
    return bool(right.all()) and words.pairs_in_order(across, 0)


class _Words:
    """Names as big-endian numbers, eight bytes of them at a time."""

    def __init__(self, raw: bytearray, begin: Ints, length: Ints) -> None:
        self._begin = begin
        self._length = length
        self._end = len(raw) - PADDING
        # The eight bytes from each byte on.
        self._windows = np.ndarray((self._end + 1,), ">u8", raw, strides=(1,))

    def in_order(self, siblings: Mask) -> bool:
        """All names against the next, for as long as that decides little, then what is left."""
        at = 0
        while 4 * np.count_nonzero(siblings) > len(siblings):
            words = self._at(at, slice(None))
            undecided = siblings & (words[:-1] == words[1:])
            if (siblings & (words[:-1] > words[1:])).any():
                return False
            at += 8
            if (undecided & (self._length[1:] <= at)).any():  # the same, or a beginning of it
                return False
            siblings = undecided
        return self.pairs_in_order(siblings.nonzero()[0], at)

    def pairs_in_order(self, pairs: Ints, at: int) -> bool:
        """Names k and k + 1 for each k of `pairs`, which are the same up to byte `at`."""
        while pairs.size:
            lower, upper = self._at(at, pairs), self._at(at, pairs + 1)
            undecided = lower == upper
            at += 8
            if (lower > upper).any() or (undecided & (self._length[pairs + 1] <= at)).any():
                return False
            pairs = pairs[undecided]
        return True

    def _at(self, at: int, rows: Ints | slice) -> npt.NDArray[np.uint64]:
        """Eight bytes of each name, with zeros for those beyond its end."""
        left = self._length[rows] - at
        place = np.minimum(self._begin[rows] + at, self._end)
        words: npt.NDArray[np.uint64] = self._windows[place].astype(np.uint64)
        if left.min() < 8:
            words &= _KEPT.take(left, mode="clip")
        return words


_KEPT = np.array([0] + [(1 << 64) - (1 << (64 - 8 * k)) for k in range(1, 9)], np.uint64)
"""Which bits of a word belong to a name that has so many bytes left."""
