"""`Index`: looks up the inode of a name, and the attributes and the record of an inode.

Inodes are numbers in breadth-first order; the root is 0. Names are bytes. A whole path is found by
its hash, and a batch of paths in a few numpy operations. The path that a hash finds is compared
byte by byte. If the path differs, the name is searched among the sorted names of its folder. So a
wrong hash in an archive only costs time.

Any number of threads may use an `Index`: only its caches of folder paths ever change.
"""

from __future__ import annotations

import errno
import stat
import struct
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ffrecord.aliases import Ints
from ffrecord.archive.index.check import (
    RecordSizes,
    WaitFor,
    check,
    nothing_to_wait_for,
)
from ffrecord.archive.index.columns import MISSING as MISSING
from ffrecord.archive.index.pathrows import PathRows
from ffrecord.errors import IndexStructureError
from ffrecord.format import index as index_layout
from ffrecord.format.checksum import crc32
from ffrecord.format.index import BLOCK, WAY_OUT, Buffer

ROOT = 0
FOLDER_SIZE = 4096  # st_size of a folder, as on ext4
LONGEST_PREFIX = 4096  # bytes; longer paths are resolved name by name
NEAR = 8  # hashes compared in one search; a bucket has about one, and hardly ever more than this

_INODE = struct.Struct("<QQqII")
_ENTRY = struct.Struct("<QII")
_TWO_ENTRIES = struct.Struct("<Q8xQII")  # a name begins where the name before it ends
_ATTRIBUTES = struct.Struct("<6I")


class Status(NamedTuple):
    """The attributes of an inode, as in stat(2), as far as an archive stores them.

    A tuple, because it is fast: the mount makes one for every request.
    """

    inode: int
    mode: int
    links: int
    uid: int
    gid: int
    size: int
    mtime_ns: int

    @property
    def blocks(self) -> int:
        """The size in units of 512 bytes, like st_blocks."""
        return -(-self.size // 512)

    @property
    def is_folder(self) -> bool:
        return stat.S_ISDIR(self.mode)

    @property
    def is_file(self) -> bool:
        return stat.S_ISREG(self.mode)

    @property
    def is_symlink(self) -> bool:
        return stat.S_ISLNK(self.mode)


class Index:
    """A checked index. The bytes of its image must not change.

    Args:
        path: the path of the archive, for messages.
        image: bytes, or an object whose slices are bytes, such as a `mmap`.
        record_sizes: the sizes of all records that can hold files.
        wait_for: called before rows of the image are read, see `check`.
    """

    def __init__(
        self, path: str, image: Buffer, record_sizes: RecordSizes,
        wait_for: WaitFor = nothing_to_wait_for,
    ) -> None:  # fmt: skip
        self.archive = path
        self._raw = image
        self.tables = tables = index_layout.parse(path, image)
        check(path, tables, record_sizes, wait_for)
        self._count = len(tables.inodes)
        self._inodes_at = index_layout.section_offset(tables, "inodes")
        self._entries_at = index_layout.section_offset(tables, "entries")
        self._attributes_at = index_layout.section_offset(tables, "attributes")
        self._names_at = index_layout.section_offset(tables, "names")
        self._hashes = tables.hashes.data
        self._hashed = tables.hashed.data
        self._path_crcs = {ROOT: 0}
        self._regular = (tables.attributes["mode"] & np.uint32(0o170000)) == stat.S_IFREG
        self._is_regular: list[bool] = self._regular.tolist()
        # Cache: for each folder, its path and a slash, to put in front of its names.
        self._prefixes = {ROOT: b""}
        self._far_down: set[int] = set()  # folders whose prefix would be too long
        self._path_rows = PathRows(image, self._names_at, len(tables.inodes))
        self._path_rows.add(ROOT, b"")
        # All numbers that are used in these rows were checked to be less than 2**63.
        self._inode_rows = tables.inodes.view("V32")
        self._entry_rows = tables.entries.view("c16")

    @cached_property
    def _buckets(self) -> _Buckets:
        return _Buckets(self._raw, self.tables)

    def __len__(self) -> int:
        """Return the number of inodes."""
        return self._count

    # ---- inodes --------------------------------------------------------------------------

    def status(self, inode: int) -> Status:
        """Return the attributes of an inode."""
        _, length, mtime, row, _ = self._inode(inode)
        mode, uid, gid, links, _, _ = self._attributes(row)
        # The length of a folder is its number of entries.
        size = FOLDER_SIZE if stat.S_ISDIR(mode) else length
        return Status(inode, mode, links, uid, gid, size, mtime)

    def mode(self, inode: int) -> int:
        return self._attributes(self._inode(inode)[3])[0]

    def record(self, inode: int) -> int:
        """Return the record that holds a regular file."""
        return self._inode(inode)[0]

    def record_and_length(self, inode: int) -> tuple[int, int]:
        """Return the record and the length of a regular file; raise OSError for anything else."""
        record, length, _, row, _ = self._inode(inode)
        if not self._is_regular[row]:
            raise OSError(errno.EISDIR, "not a file")
        return record, length

    def target(self, inode: int) -> bytes:
        """Return the target of a symlink."""
        begin, length, *_ = self._inode(inode)
        target = self.tables.texts[begin : begin + length].tobytes()
        if b"\0" in target:
            what = "the target of a symlink contains a NUL"
            raise IndexStructureError(f"{self.archive}: its index is wrong: {what}; {WAY_OUT}")
        return target

    def xattrs(self, inode: int) -> dict[bytes, bytes]:
        """Return the extended attributes of an inode, by name."""
        *_, first, count = self._attributes(self._inode(inode)[3])
        found = {}
        for text, name_length, length in self.tables.xattrs[first : first + count].tolist():
            both = self.tables.texts[text : text + name_length + length].tobytes()
            name = both[:name_length]
            if not name.startswith(b"user.") or b"\0" in name or name in found:
                what = f"{name!r} is not a valid name of an extended attribute"
                if name in found:
                    what = f"a file has the extended attribute {name!r} twice"
                raise IndexStructureError(f"{self.archive}: its index is wrong: {what}; {WAY_OUT}")
            found[name] = both[name_length:]
        return found

    def block_checksums(self, inode: int) -> npt.NDArray[np.uint32] | None:
        """Return the CRC-32 of each block of a file, or None if the index has none.

        The index has none for files of one block, which use the checksum of their record, and for
        archives of the original FFRecord.
        """
        size = self._inode(inode)[1]
        first = self.first_block(inode) if size > BLOCK else None
        return None if first is None else self.tables.blocks[first : first + -(-size // BLOCK)]

    def first_block(self, inode: int) -> int | None:
        """Return where the checksums of a large file begin in the table of blocks.

        Return None if the archive has no such table, like archives of the original FFRecord.
        """
        large = self.tables.large
        if not len(large):
            return None
        return int(large["first"][large["inode"].searchsorted(np.uint32(inode))])

    def inode_path(self, inode: int) -> bytes:
        """Return the path of an inode, without a leading slash; empty for the root."""
        names: list[bytes] = []
        while inode != ROOT:
            names.append(self.last_name(inode))
            inode = self.parent(inode)
        return b"/".join(reversed(names))

    def last_name(self, inode: int) -> bytes:
        """Return the first name of an inode, without its folders."""
        return self.name(self._inode(inode)[4])

    def parent(self, inode: int) -> int:
        """Return the folder that contains the first name of an inode; for the root, the root."""
        return ROOT if inode == ROOT else self._entry(self._inode(inode)[4])[2]

    # ---- folders -------------------------------------------------------------------------

    def entries(self, folder: int) -> range:
        """Return the numbers of a folder's entries, in the order of their names."""
        first, count, *_ = self._inode(folder)
        return range(first, first + count)

    def name(self, entry: int) -> bytes:
        begin, end, *_ = self._named(entry)
        return self._raw[self._names_at + begin : self._names_at + end]

    def children(self, folder: int) -> Iterator[tuple[bytes, int]]:
        """Yield the names in a folder and their inodes, sorted by name."""
        entries = self.entries(folder)
        rows = self.tables.entries[entries.start : entries.stop]
        at = self._entry(entries.start - 1)[0] if entries.start else 0
        for end, inode in zip(rows["name_end"].tolist(), rows["inode"].tolist(), strict=True):
            yield self._raw[self._names_at + at : self._names_at + end], inode
            at = end

    def child(self, folder: int, name: bytes) -> int:
        """Return the inode of a name in a folder; MISSING if there is no such name or folder."""
        crc = self._path_crcs.get(folder)
        if crc is None:
            if not stat.S_ISDIR(self.mode(folder)):
                return MISSING
            crc = self._path_crc(folder)
        at = bisect_left(self._hashes, crc32(name, crc))
        if at < len(self._hashes):
            entry: int = self._hashed[at]
            begin, end, inode, parent = self._named(entry)
            at = self._names_at
            if parent == folder and self._raw[at + begin : at + end] == name:
                return inode
        return self._search(folder, name)

    def _path_crc(self, folder: int) -> int:
        """Return the CRC-32 of a folder's path and a slash: the beginning of all paths in it."""
        way = []
        while folder not in self._path_crcs:
            way.append(folder)
            folder = self.parent(folder)
        crc = self._path_crcs[folder]
        for folder in reversed(way):
            crc = self._path_crcs[folder] = crc32(b"/", crc32(self.last_name(folder), crc))
        return crc

    def _search(self, folder: int, name: bytes) -> int:
        entry = self.entry(folder, name)
        return MISSING if entry == MISSING else self._entry(entry)[1]

    def entry(self, folder: int, name: bytes) -> int:
        """Return the number of a folder's entry; MISSING if there is no such name."""
        entries = self.entries(folder)
        at = bisect_left(entries, name, key=self.name)
        if at == len(entries) or self.name(entries[at]) != name:
            return MISSING
        return entries[at]

    # ---- batches of paths ----------------------------------------------------------------

    def find(self, paths: list[bytes]) -> Ints:
        """Return the inode of each path, or MISSING if the hash does not find it.

        A path here is names joined by single slashes. No symlink is followed, and ".." is not
        special. A path that is MISSING here may still exist: `resolve` finds out.
        """
        tables = self.tables
        if not len(tables.entries):
            return np.full(len(paths), MISSING)
        wanted = np.fromiter(map(crc32, paths), np.uint32, len(paths))
        entry = tables.hashed.take(self._buckets.places(wanted), mode="clip").astype(np.int64)
        # Rows of 16 bytes, as complex numbers: numpy's `take` is fastest for this type.
        rows = self._entry_rows.take(entry).view(np.int64)
        end, inodes_and_parents = rows[::2], rows[1::2]
        begin = self._entry_rows.take(entry - 1, mode="wrap").view(np.int64)[::2]
        parents = inodes_and_parents >> 32
        there: Sequence[bytes | None] | None = self._path_rows.paths(parents, begin, end)
        if there is None:
            begin[entry == 0] = 0  # no name ends before the first
            there = self._paths(parents, begin, end)
        inodes = inodes_and_parents & 0xFFFFFFFF
        if there != paths:
            inodes[[row for row, path in enumerate(paths) if there[row] != path]] = MISSING
        return inodes

    def _paths(self, folders: Ints, begin: Ints, end: Ints) -> list[bytes | None]:
        """Return the paths of entries, one by one; None if the path is too long.

        `PathRows.paths` is faster, but cannot handle all folders.
        """
        raw, prefixes, parents = self._raw, self._prefixes, folders.tolist()
        for folder in set(parents).difference(prefixes):
            self._prefix(folder)
        # Touch all names at once, so that the processor waits for memory once, not for each name.
        self.tables.names.take(begin, mode="clip")
        starts, stops = (begin + self._names_at).tolist(), (end + self._names_at).tolist()
        # Three lists, not one list of tuples, which would trigger the garbage collector.
        return [
            prefixes[parent] + raw[start:stop] if parent in prefixes else None
            for parent, start, stop in zip(parents, starts, stops, strict=True)
        ]

    def records(self, inodes: Ints) -> Ints:
        """Return the record of each inode; MISSING if it is MISSING, or not a regular file."""
        # "clip" turns MISSING into the root, which is not a regular file.
        rows = self._inode_rows.take(inodes, mode="clip").view("<i8")
        records = rows[::4]
        regular = self._regular.take(rows[3::4] & 0xFFFFFFFF)
        records[~regular] = MISSING
        return records

    def _prefix(self, folder: int) -> bytes | None:
        """Return the path of a folder and a slash; None if it is longer than LONGEST_PREFIX."""
        way = []
        while folder not in self._prefixes and folder not in self._far_down:
            way.append(folder)
            folder = self.parent(folder)
        prefix = self._prefixes.get(folder)
        for folder in reversed(way):
            if prefix is not None:
                prefix += self.last_name(folder) + b"/"
            if prefix is None or len(prefix) > LONGEST_PREFIX:
                prefix = None
                self._far_down.add(folder)
            else:
                self._prefixes[folder] = prefix
                self._path_rows.add(folder, prefix)
        return prefix

    # ---- rows ----------------------------------------------------------------------------

    def _inode(self, inode: int) -> tuple[int, int, int, int, int]:
        if not 0 <= inode < self._count:
            raise IndexError(f"{self.archive}: inode {inode} is not among its {self._count} inodes")
        row: tuple[int, int, int, int, int] = _INODE.unpack_from(
            self._raw, self._inodes_at + _INODE.size * inode
        )
        return row

    def _named(self, entry: int) -> tuple[int, int, int, int]:
        """Return where the name of an entry begins and ends, its inode, and its folder."""
        if not entry:
            return (0, *self._entry(0))
        row: tuple[int, int, int, int] = _TWO_ENTRIES.unpack_from(
            self._raw, self._entries_at + _ENTRY.size * (entry - 1)
        )
        return row

    def _entry(self, entry: int) -> tuple[int, int, int]:
        row: tuple[int, int, int] = _ENTRY.unpack_from(
            self._raw, self._entries_at + _ENTRY.size * entry
        )
        return row

    def _attributes(self, row: int) -> tuple[int, int, int, int, int, int]:
        found: tuple[int, int, int, int, int, int] = _ATTRIBUTES.unpack_from(
            self._raw, self._attributes_at + _ATTRIBUTES.size * row
        )
        return found


class _Buckets:
    """Table of the places in the sorted hashes where each value of the leading bits begins.

    A binary search waits for memory at each step. This table needs two memory accesses.
    """

    def __init__(self, image: Buffer, tables: index_layout.Image) -> None:
        hashes = tables.hashes
        bits = len(hashes).bit_length()
        self._shift = np.uint32(32 - bits)
        # The last rows reach into the next tables. Those bytes can match only by chance, and every
        # match is compared with the path.
        at = index_layout.section_offset(tables, "hashes")
        row = f"V{NEAR * index_layout.HASH.itemsize}"
        self._near = np.ndarray(1 + len(hashes), row, image, at, strides=index_layout.HASH.itemsize)
        counts = np.bincount(hashes >> self._shift, minlength=1 << bits)
        self._start = (np.cumsum(counts) - counts).astype(np.uint32)

    def places(self, wanted: npt.NDArray[np.uint32]) -> Ints:
        """Return the place of each hash in the sorted hashes; any place if it is not near."""
        start = self._start.take(wanted >> self._shift).astype(np.int64)
        near = self._near[start].view(index_layout.HASH).reshape(-1, NEAR)
        places: Ints = (near == wanted[:, None]).argmax(axis=1)
        places += start
        return places
