"""Checks that an index must pass before it is used.

An archive may be damaged or hostile. After these checks every number in the tables is in range, the
folders form a tree, every name is valid, and no folder has the same name twice. Each check is a few
numpy operations on thousands of rows: checking a million files takes some tens of milliseconds.

Some things are not checked here:

- values of hashes: a wrong hash only costs time, see `lookup`; `audit` checks them
- names of extended attributes, and NULs in symlinks: checked on access, and by `audit`
- shards: `archive` compares them with the existing files
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
    WAY_OUT,
    Image,
    Rows,
)

Column: TypeAlias = npt.NDArray[Any]
WaitFor: TypeAlias = "Callable[[str, int | None], None]"

AT_A_TIME = 1 << 14
"""Number of rows checked at once. For this many, malloc reuses memory; fresh pages cost more."""

PADDING = 8  # bytes after the last name, so that a read of eight bytes can begin at any byte of it
MOST_XATTRS = 16 << 20
"""Most bytes of all extended attributes of one inode. No file system allows nearly as much."""

_FOLDER, _FILE, _SYMLINK = (kind >> 12 for kind in (stat.S_IFDIR, stat.S_IFREG, stat.S_IFLNK))


class RecordSizes(Protocol):
    """Sizes of the records that can hold files: an array, or an object that is indexed like one."""

    def __len__(self) -> int: ...
    def __getitem__(self, records: Ints, /) -> Ints: ...


def nothing_to_wait_for(part: str, rows: int | None) -> None:
    """Return at once. This is the `WaitFor` of an image that is complete."""


def check(path: str, image: Image, record_sizes: RecordSizes, wait_for: WaitFor) -> None:
    """Raise `IndexStructureError` unless an image is valid.

    Before any rows are read, `wait_for` is called with the name of the part (see
    `format.index.parts`) and the number of rows needed, or None for all.
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
    """The checks of one image, in the order in which `check` calls them."""

    def __init__(self, path: str, image: Image, wait_for: WaitFor) -> None:
        self._path = path
        self._image = image
        self._wait_for = wait_for
        self._scratch = _Scratch()

    def _require(self, right: Any, what: str, start: int = 0) -> None:
        """Raise an error with `what` and the first wrong row, unless all of `right` is true."""
        if not np.all(right):
            row = "" if np.ndim(right) == 0 else f" (row {start + int(np.argmin(right))})"
            raise IndexStructureError(f"{self._path}: its index is wrong: {what}{row}; {WAY_OUT}")

    def attributes(self) -> None:
        """Check attributes, some rows at a time: a hole is rejected before much of it is read."""
        rows, xattrs = self._image.attributes, self._image.xattrs
        allowed = np.array([_FOLDER, _FILE, _SYMLINK], np.uint32)
        self._kinds = np.empty(len(rows), np.uint8)
        for start in range(0, len(rows), AT_A_TIME):
            some = rows[start : start + AT_A_TIME]
            self._wait_for("attributes", start + len(some))
            kinds = some["mode"] >> 12
            known = np.isin(kinds, allowed)
            self._require(known, "a mode belongs to no file, folder or symlink", start)
            self._kinds[start : start + len(kinds)] = kinds
        until = np.zeros(len(xattrs) + 1, np.int64)  # total bytes of all rows before each row
        for start in range(0, len(xattrs), AT_A_TIME):
            some = xattrs[start : start + AT_A_TIME]
            self._wait_for("xattrs", start + len(some))
            until[start + 1 : start + 1 + len(some)] = self._some_xattrs(some)
        np.cumsum(until, out=until)
        first = rows["xattr"].astype(np.int64)
        last = first + rows["xattrs"]
        self._require(last <= len(xattrs), "extended attributes are missing")
        size = until[last] - until[first]
        self._require(size <= MOST_XATTRS, "a file has too many extended attributes")

    def _some_xattrs(self, rows: Rows) -> Column:
        """Check extended attributes; return the size of each in bytes."""
        name, value = rows["name"], rows["value"]
        self._require((name > 0) | (value > 0), "an extended attribute is empty")
        self._require(name <= LONGEST_NAME, "the name of an extended attribute is too long")
        self._require(value <= LARGEST_XATTR, "an extended attribute is too large")
        size: Column = name + value
        self._within_texts(rows["text"], size, "extended attributes")
        return size

    def inodes(self, record_sizes: RecordSizes) -> None:
        """Check inodes; note which are folders, large files, or have several names."""
        rows = self._image.inodes
        self._require(len(rows) > 0, "there is no root folder")
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
        self._require(
            attributes < len(self._kinds), "the attributes of an inode are missing", start
        )
        kind = self._kinds[attributes]
        links = self._image.attributes["links"][attributes]
        self._is_folder[start : start + len(rows)] = kind == _FOLDER
        self._is_linked[start : start + len(rows)] = (kind != _FOLDER) & (links > 1)
        self._require(links > 0, "the number of links of an inode is 0", start)

        files = (kind == _FILE).nonzero()[0]
        record, size = data[files], length[files]
        self._require(record < len(record_sizes), "the record of a file is missing")
        same = size == record_sizes[record.view(np.int64)]
        self._require(same, "the size of a file is not the size of its record")

        symlinks = (kind == _SYMLINK).nonzero()[0]
        target = length[symlinks]
        fits = (target > 0) & (target <= LONGEST_TARGET)
        self._require(fits, "the target of a symlink is empty or too long")
        self._within_texts(data[symlinks], target, "targets of symlinks")
        # Comparing neighbours rejects a hole, where all entries are 0. `entries` checks the rest.
        entry = rows["entry"][not start :]  # the root has no entry
        different = entry[1:] != entry[:-1]
        self._require(different, "two inodes have the same entry", start + (not start))
        large: Ints = files[size > BLOCK]
        return large

    def folders(self) -> None:
        """Check that the folders' ranges of entries are in order and cover all entries."""
        inodes, entries = self._image.inodes, self._image.entries
        count = inodes["length"][self.folder_inodes]
        self._require(count <= len(entries), "a folder has more entries than the index")
        self._until = np.cumsum(count.astype(np.int64))
        is_all = self._until[-1] == len(entries)
        self._require(is_all, "the folders have more or fewer entries than the index")
        first = self._until - count.astype(np.int64)
        self._require(inodes["data"][self.folder_inodes] == first, "folders share entries")

    def entries(self) -> None:
        """Check that entries name existing inodes, and that folders form a tree."""
        inodes, entries = self._image.inodes, self._image.entries
        inner = []
        for start in range(0, len(entries), AT_A_TIME):
            rows = entries[start : start + AT_A_TIME]
            self._wait_for("entries", start + len(rows))
            inner.append(start + self._some_entries(start, rows))
            self._some_names(start, start + len(rows))
        total = int(entries["name_end"][-1]) if len(entries) else 0
        self._require(total == len(self._image.names), "names are left over or missing")
        for start in range(1, len(inodes), AT_A_TIME):
            first = inodes["entry"][start:][:AT_A_TIME]
            self._require(first < len(entries), "the entry of an inode is missing", start)
            is_own = entries["inode"][first] == np.arange(start, start + len(first))
            self._require(is_own, "the entry of an inode names another inode", start)
        self._tree(entries[np.concatenate(inner) if inner else np.empty(0, np.int64)])

    def _some_entries(self, start: int, rows: Rows) -> Ints:
        """Check entries; return the positions of those that name folders."""
        inode = rows["inode"]
        self._require(inode < len(self._image.inodes), "the inode of an entry is missing", start)
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
        """Check that each folder except the root is named once, in breadth-first order."""
        inode, self._parents = rows["inode"], rows["parent"]
        is_named = len(rows) == len(self.folder_inodes) - 1
        self._require(is_named, "a folder has no name, or more than one")
        self._require(inode == self.folder_inodes[1:], "folders are not numbered breadth first")
        self._require(inode > self._parents, "a folder is inside itself")
        # The folders of one level are next to each other, in order of depth.
        parents = np.searchsorted(self.folder_inodes, self._parents)
        until, depth = 1, 0
        while until < len(self.folder_inodes):
            until = int(np.searchsorted(parents, until)) + 1
            depth += 1
            self._require(depth <= DEEPEST, f"folders are more than {DEEPEST} levels deep")

    def links(self) -> None:
        """Check the number of links of each inode.

        Every inode except the root has at least one name. If inodes with several links have that
        many names, and the total is right, then all other inodes have exactly one.
        """
        inodes, entries = self._image.inodes, self._image.entries
        links = self._image.attributes["links"]
        inner = np.searchsorted(self.folder_inodes, self._parents)
        due = 2 + np.bincount(inner, minlength=len(self.folder_inodes))
        is_right = links[inodes["attributes"][self.folder_inodes]] == due
        self._require(is_right, "the number of links of a folder is wrong")
        several = self._is_linked.nonzero()[0]
        stated = links[inodes["attributes"][several]].astype(np.int64)
        names = len(inodes) - 1 - len(several) + int(stated.sum())
        self._require(names == len(entries), "there are more or fewer names than links")
        if several.size:
            named = entries["inode"][self._is_linked[entries["inode"]]]
            counted = np.bincount(np.searchsorted(several, named), minlength=len(several))
            self._require(counted == stated, "the number of links of a file is wrong")

    def _some_names(self, start: int, stop: int) -> None:
        """Check the names of entries `start` up to `stop`, and their order.

        The name before `start` is included, to compare it with the name at `start`.
        """
        start = max(0, start - 1)
        rows = self._image.entries[start:stop]
        low = int(self._image.entries["name_end"][start - 1]) if start else 0
        end = rows["name_end"].astype(np.int64)
        self._require(rows["name_end"] <= len(self._image.names), "a name is missing", start)
        begin = np.concatenate([[low], end[:-1]])
        length = end - begin
        fits = (length > 0) & (length <= LONGEST_NAME)
        self._require(fits, "a name is empty or too long", start)
        self._wait_for("names", int(end[-1]))
        raw = self._scratch.copy_of(self._image.names[low : int(end[-1])])
        self._require(raw.find(b"\0", 0, int(end[-1]) - low) < 0, "a name contains a NUL")
        self._require(raw.find(b"/", 0, int(end[-1]) - low) < 0, "a name contains a slash")
        for row in (length <= 2).nonzero()[0].tolist():
            name = bytes(raw[begin[row] - low : end[row] - low])
            self._require(name not in (b".", b".."), f"an entry is called {name!r}")
        siblings = rows["parent"][1:] == rows["parent"][:-1]
        self._require(
            _in_order(raw, begin - low, length, siblings),
            f"names from entry {start} on are not in order, or two in a folder are the same",
        )

    def hashes(self) -> None:
        """Check that hashes lead to entries. A wrong hash only costs time."""
        self._wait_for("hashes", None)
        hashed, entries = self._image.hashed, len(self._image.entries)
        self._require(len(hashed) == entries, "there are more or fewer hashes than entries")
        for start in range(0, entries, AT_A_TIME):
            some = hashed[start : start + AT_A_TIME]
            self._require(some < entries, "the entry of a hash is missing", start)

    def large_files(self) -> None:
        """Check that all large files have block checksums, in order, or that no file has any."""
        inodes, large = self._image.inodes, self._image.large
        if not len(large) and not len(self._image.blocks):  # an archive of the original FFRecord
            return
        due = self._large
        self._require(
            large["zero"] == 0, "bytes in the table of large files that must be zero are not zero"
        )
        is_all = len(large) == len(due)
        what = "the number of files with block checksums is not the number of large files"
        self._require(is_all, what)
        self._require(large["inode"] == due, "block checksums belong to files that are not large")
        blocks = -(-inodes["length"][due].astype(np.int64) // BLOCK)
        until = np.cumsum(blocks)
        self._require(large["first"] == until - blocks, "block checksums of large files overlap")
        total = int(until[-1]) if len(until) else 0
        is_all = total == len(self._image.blocks)
        self._require(is_all, "block checksums are left over or missing")

    def padding(self) -> None:
        """Check that the bytes between the tables are zero."""
        self._wait_for("names", None)  # the checks before have waited for all other parts
        for between in self._image.padding:
            self._require(not between.any(), "bytes between its tables are not zero")

    def _within_texts(self, begin: Column, length: Column, what: str) -> None:
        total = len(self._image.texts)
        begin, length = begin.astype(np.uint64), length.astype(np.uint64)
        fits = (begin <= total) & (length <= total)
        fits &= begin + np.where(fits, length, 0) <= total
        self._require(fits, f"{what} are out of range")


class _Scratch:
    """Memory for copies that is reused: fresh memory costs more than a copy."""

    def __init__(self) -> None:
        self._memory = bytearray()

    def copy_of(self, source: npt.NDArray[np.uint8]) -> bytearray:
        """Return a copy of the bytes, followed by at least PADDING bytes of any value."""
        if len(self._memory) < len(source) + PADDING:  # not resized: arrays may use the old memory
            self._memory = bytearray(2 * len(source) + PADDING)
        np.frombuffer(self._memory, np.uint8)[: len(source)] = source
        return self._memory


def _in_order(raw: bytearray, begin: Ints, length: Ints, siblings: Mask) -> bool:
    """Return True if each name is less than the next one, for names in the same folder.

    numpy compares runs of names of one length, such as numbered files, as arrays of strings. All
    other names are compared eight bytes at a time. `raw` has at least PADDING bytes of any
    value after the last name.
    """
    changes = (length[1:] != length[:-1]).nonzero()[0] + 1
    words = _Words(raw, begin, length)
    if len(changes) > len(length) // 32:
        return words.in_order(siblings)
    right = ~siblings
    for start, stop in itertools.pairwise([0, *changes.tolist(), len(length)]):
        run = np.frombuffer(raw, f"S{length[start]}", stop - start, int(begin[start]))
        right[start : stop - 1] |= run[:-1] < run[1:]
        right[stop - 1 : stop] = True  # the next name has another length: compared below
    across = changes[siblings[changes - 1]] - 1
    return bool(right.all()) and words.pairs_in_order(across, 0)


class _Words:
    """Names as big-endian numbers, eight bytes at a time."""

    def __init__(self, raw: bytearray, begin: Ints, length: Ints) -> None:
        self._begin = begin
        self._length = length
        self._end = len(raw) - PADDING
        # A word of eight bytes begins at each byte.
        self._windows = np.ndarray((self._end + 1,), ">u8", raw, strides=(1,))

    def in_order(self, siblings: Mask) -> bool:
        """Return True if siblings are in order.

        While most pairs are undecided, all names are compared; then only the undecided pairs.
        """
        at = 0
        while 4 * np.count_nonzero(siblings) > len(siblings):
            words = self._at(at, slice(None))
            undecided = siblings & (words[:-1] == words[1:])
            if (siblings & (words[:-1] > words[1:])).any():
                return False
            at += 8
            # The second name ends here: it equals the first, or the first begins with it.
            if (undecided & (self._length[1:] <= at)).any():
                return False
            siblings = undecided
        return self.pairs_in_order(siblings.nonzero()[0], at)

    def pairs_in_order(self, pairs: Ints, at: int) -> bool:
        """Return True if names k and k + 1 are in order for each k in `pairs`.

        Both names of a pair are the same up to byte `at`.
        """
        while pairs.size:
            lower, upper = self._at(at, pairs), self._at(at, pairs + 1)
            undecided = lower == upper
            at += 8
            if (lower > upper).any() or (undecided & (self._length[pairs + 1] <= at)).any():
                return False
            pairs = pairs[undecided]
        return True

    def _at(self, at: int, rows: Ints | slice) -> npt.NDArray[np.uint64]:
        """Return eight bytes of each name from byte `at` on, with zeros beyond its end."""
        left = self._length[rows] - at
        place = np.minimum(self._begin[rows] + at, self._end)
        words: npt.NDArray[np.uint64] = self._windows[place].astype(np.uint64)
        if left.min() < 8:
            words &= _KEPT.take(left, mode="clip")
        return words


_KEPT = np.array([0] + [(1 << 64) - (1 << (64 - 8 * k)) for k in range(1, 9)], np.uint64)
"""Masks: the bits of a word that belong to a name with 0 to 8 bytes left."""
