"""Packed folders: read as entries, and written from entries.

Entries may come in any order, but a hard link must follow its file. Contents become records as they
arrive, and the index with their names is written at the end. So a tar is packed while it is read.
Only names and attributes are kept in memory.
"""

from __future__ import annotations

import stat
from array import array
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from ffrecord.aliases import Bytes
from ffrecord.archive.archive import Archive, Naming
from ffrecord.archive.counts import Counts, count_index
from ffrecord.archive.index import ROOT
from ffrecord.archive.index.build import Xattrs
from ffrecord.archive.index.columns import MISSING
from ffrecord.archive.index.unordered import UnorderedEntries, split_path
from ffrecord.archive.names import to_bytes, to_text
from ffrecord.archive.packer import write_index
from ffrecord.archive.scan import LATEST_NS
from ffrecord.archive.walk import descend
from ffrecord.convert.shapes import ConvertOptions, FileEntry, NamedFiles, Written
from ffrecord.errors import ConversionError
from ffrecord.format import padding
from ffrecord.format.checksum import crc32, crc32_joined
from ffrecord.format.index import BLOCK, LARGEST_XATTR, LONGEST_NAME, LONGEST_TARGET
from ffrecord.records.writer import ArchiveWriter, FileWriter

_IMPLIED = stat.S_IFDIR | 0o755
_MOST_ID = (1 << 32) - 1


# ---- reading -------------------------------------------------------------------------------


@contextmanager
def read(path: str, options: ConvertOptions) -> Iterator[NamedFiles]:
    with Archive.open(path) as archive:
        yield NamedFiles(_entries(archive), count_index(archive.index).names)


def count(path: str) -> Counts:
    with Archive.open(path) as archive:
        return count_index(archive.index)


def _entries(archive: Archive) -> Iterator[FileEntry]:
    """Yield the top folder, then everything depth first, each folder before its contents."""
    seen: dict[int, bytes] = {}  # the first path of an inode with several names
    yield _entry(archive, b"", ROOT, seen)
    for item in descend(archive.index, ROOT, recursive=True):
        yield _entry(archive, to_bytes(item.path), item.inode, seen)


def _entry(archive: Archive, path: bytes, inode: int, seen: dict[int, bytes]) -> FileEntry:
    index, status = archive.index, archive.index.status(inode)
    first = path
    if status.links > 1 and not status.is_folder:
        first = seen.setdefault(inode, path)
    return FileEntry(
        path, status.mode, status.uid, status.gid, status.mtime_ns,
        size=status.size if status.is_file else 0,
        target=index.target(inode) if status.is_symlink else b"",
        hard_link=b"" if first == path else first,
        xattrs=tuple(index.xattrs(inode).items()),
        content=lambda: _content(archive, path, inode),
    )  # fmt: skip


def _content(archive: Archive, path: bytes, inode: int) -> Iterator[Bytes]:
    with Naming(to_text(path)):
        yield from archive.stream(inode)


# ---- writing -------------------------------------------------------------------------------


def write(path: str, files: NamedFiles, options: ConvertOptions) -> Written:
    align = padding.checked(options.align)
    with ArchiveWriter(path, align=align) as writer:
        packing = _Packing(path, writer, align)
        for entry in files.items:
            packing.add(entry)
        packing.write_index()
    return Written(packing.names, packing.replaced)


class _Packing:
    """The tree of the entries, in columns, in the order of arrival."""

    def __init__(self, path: str, writer: FileWriter, align: int) -> None:
        self.names = 0  # entries that are not folders
        self.replaced = 0
        self._path = path
        self._writer = writer
        self._align = align
        self._entries = UnorderedEntries()
        self._found = self._entries.found
        self._folder_xattrs: dict[int, Xattrs] = {}
        self._last_folder = (b"", ROOT)  # the folder of the previous entry
        self._sizes = array("q")  # of all records, with those of padding

    def add(self, entry: FileEntry) -> None:
        names = split_path(entry.path)
        if not self._found:
            self._add_inode(entry, _IMPLIED)  # the root
        folder = self._folder(names[:-1], entry)
        place = self._entries.place(folder, names[-1]) if names else MISSING
        there = self._found.inode[place] if place != MISSING else MISSING
        if not names or (there != MISSING and self._found.is_folder(there)):
            self._take_attributes(there if names else ROOT, entry)
            return
        inode = self._linked(entry) if entry.hard_link else self._new_inode(entry)
        if not self._found.is_folder(inode):
            self.names += there == MISSING
            self.replaced += there != MISSING
        elif there != MISSING:
            raise _contradiction(entry)
        if there != MISSING:
            self._found.inode[place] = inode
        else:
            self._entries.add(folder, names[-1], inode)

    def write_index(self) -> None:
        """Write the index as the last record."""
        if not self._found:
            self._found.add_inode(_IMPLIED, 0, 0, 0)
        tree = self._entries.in_order(self._folder_xattrs)
        del self._found, self._entries
        write_index(self._writer, self._path, tree, np.frombuffer(self._sizes, np.int64))

    def _new_inode(self, entry: FileEntry) -> int:
        _require_xattrs(entry)
        found = self._found
        if entry.is_symlink:
            if not 0 < len(entry.target) <= LONGEST_TARGET or b"\0" in entry.target:
                raise ConversionError(
                    f"{to_text(entry.path)!r}: the target of this symlink has {len(entry.target)} "
                    f"bytes or contains a NUL; it must have 1 to {LONGEST_TARGET} bytes without NUL"
                )
            inode = self._add_inode(entry, entry.mode, len(entry.target))
            found.targets[inode] = entry.target
        elif entry.is_file:
            record = len(self._sizes)
            blocks, size = self._store(entry)
            inode = self._add_inode(entry, entry.mode, size, record)
            if len(blocks) > 1:
                found.blocks[inode] = blocks
        else:
            inode = self._add_inode(entry, entry.mode)
        self._set_xattrs(inode, entry)
        return inode

    def _add_inode(self, entry: FileEntry, mode: int, length: int = 0, record: int = 0) -> int:
        uid, gid, mtime = _owner_and_time(entry)
        return self._found.add_inode(mode, uid, gid, mtime, length, record)

    def _set_xattrs(self, inode: int, entry: FileEntry) -> None:
        """Set extended attributes. Folders' are kept apart: a later entry may change them."""
        if self._found.is_folder(inode):
            self._folder_xattrs.pop(inode, None)
        if entry.xattrs:
            of = self._folder_xattrs if self._found.is_folder(inode) else self._found.xattrs
            of[inode] = tuple(sorted(entry.xattrs))

    def _linked(self, entry: FileEntry) -> int:
        """Return the inode that a hard link refers to."""
        inode = ROOT
        for name in split_path(entry.hard_link):
            place = self._entries.place(inode, name)
            inode = self._found.inode[place] if place != MISSING else MISSING
            if inode == MISSING:
                break
        if inode == MISSING or self._found.is_folder(inode):
            raise ConversionError(
                f"{to_text(entry.path)!r}: a hard link to {to_text(entry.hard_link)!r}, which is "
                "not an earlier file of the source"
            )
        return inode

    def _store(self, entry: FileEntry) -> tuple[array[int], int]:
        """Write a file's content as the next record, and padding if that is needed.

        Return the checksums of the file's blocks, and its size.
        """
        blocks = array("I")
        crc = filled = size = 0
        for piece in entry.content():
            data = memoryview(piece).cast("B")
            if not len(data):
                continue
            self._writer.append(data)
            size += len(data)
            while len(data):
                part = data[: BLOCK - filled]
                crc, filled, data = crc32(part, crc), filled + len(part), data[len(part) :]
                if filled == BLOCK:
                    blocks.append(crc)
                    crc = filled = 0
        if filled or not blocks:
            blocks.append(crc)
        self._writer.append(memoryview(padding.ZEROS)[: -size % self._align])
        lengths, checksums = padding.with_padding(
            [size], [crc32_joined(blocks, BLOCK, size)], self._align
        )
        self._writer.seal(lengths, checksums)
        self._sizes.extend(lengths)
        return blocks, size

    def _folder(self, names: list[bytes], entry: FileEntry) -> int:
        """Return the inode of a folder, which is created if it had no entry yet."""
        path = b"/".join(names)
        if path == self._last_folder[0]:
            return self._last_folder[1]
        folder = ROOT
        for name in names:
            place = self._entries.place(folder, name)
            if place == MISSING:
                inode = self._add_inode(entry, _IMPLIED)
                self._entries.add(folder, name, inode)
            else:
                inode = self._found.inode[place]
            if not self._found.is_folder(inode):
                raise _contradiction(entry)
            folder = inode
        self._last_folder = (path, folder)
        return folder

    def _take_attributes(self, folder: int, entry: FileEntry) -> None:
        """Set a folder's attributes. Its entry may come after its contents, and more than once."""
        if entry.hard_link or not entry.is_folder:
            raise _contradiction(entry)
        _require_xattrs(entry)
        found = self._found
        found.mode[folder] = entry.mode
        found.uid[folder], found.gid[folder], found.mtime[folder] = _owner_and_time(entry)
        self._set_xattrs(folder, entry)


def _contradiction(entry: FileEntry) -> ConversionError:
    return ConversionError(
        f"{to_text(entry.path)!r}: is a folder in one entry of the source and not in another"
    )


def _require_xattrs(entry: FileEntry) -> None:
    for name, value in entry.xattrs:
        if len(name) > LONGEST_NAME or len(value) > LARGEST_XATTR or b"\0" in name:
            raise ConversionError(
                f"{to_text(entry.path)!r}: the attribute {to_text(name)[:100]!r} has a name of "
                f"{len(name)} and a value of {len(value)} bytes; the limits are {LONGEST_NAME} "
                f"bytes without NUL and {LARGEST_XATTR}"
            )


def _owner_and_time(entry: FileEntry) -> tuple[int, int, int]:
    if not (0 <= entry.uid <= _MOST_ID and 0 <= entry.gid <= _MOST_ID):
        raise ConversionError(
            f"{to_text(entry.path)!r}: the owner {entry.uid} or the group {entry.gid} is out of "
            f"range; both must be 0 to {_MOST_ID}"
        )
    return entry.uid, entry.gid, max(-LATEST_NS, min(LATEST_NS, entry.mtime_ns))
