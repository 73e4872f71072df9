"""Checks of an index for `ffrecord verify`, beyond those that it passes when an archive is opened.

Whole paths are put together for a message only: an archive of some hundred kilobytes can have
thousands of them that are a megabyte long. Everything here goes from folder to folder, by names.
"""

from __future__ import annotations

import os
import stat
from array import array

import numpy as np

from ffrecord.archive.archive import Archive
from ffrecord.archive.counts import kinds_of
from ffrecord.archive.index import ROOT, Index, legacy
from ffrecord.archive.index.build import Tree
from ffrecord.archive.index.resolve import readable_record
from ffrecord.archive.names import to_text
from ffrecord.errors import IndexStructureError
from ffrecord.format.checksum import crc32, crc32_joined
from ffrecord.format.index import BLOCK, LEGACY_MAGIC
from ffrecord.records.reader import table_of

LONGEST_SHOWN = 4096

# What an entry is to the original, unless it is a file: that is its record.
_FOLDER, _NOTHING = -1, -2


def audit(archive: Archive) -> None:
    """Raise IndexStructureError for the first thing in an index that is not as it should be.

    The checksums of blocks must give those of their records, targets of symlinks and names of
    extended attributes must be possible ones, each hash must be that of its path, and the index for
    the original FFRecord, if there is one beside ours, must say the same.
    """
    _audit_blocks(archive)
    _audit_symlinks(archive.index)
    _audit_xattrs(archive)
    _audit_hashes(archive)
    if 0 < archive.legacy_size < archive.reader.record_size(archive.reader.n - 1):
        _audit_legacy(archive)


def shown_path(index: Index, folder: int, name: bytes) -> bytes:
    """The path of a name in a folder, for a message: its end, if it is longer than any may be."""
    names, size = [name], len(name)
    while folder != ROOT and size < LONGEST_SHOWN:
        names.append(index.last_name(folder))
        size += len(names[-1]) + 1
        folder = index.parent(folder)
    if folder != ROOT:
        names.append("…".encode())
    return b"/".join(reversed(names))


def _audit_blocks(archive: Archive) -> None:
    index, checksums = archive.index, archive.reader.checksums
    for inode in index.tables.large["inode"].tolist():
        blocks = index.block_checksums(inode)
        assert blocks is not None
        joined = crc32_joined(blocks.tolist(), BLOCK, index.status(inode).size)
        if joined != checksums[index.record(inode)]:
            path = _shown(shown_path(index, index.parent(inode), index.last_name(inode)))
            raise _wrong(archive, f"blocks of {path} with other checksums")


def _audit_symlinks(index: Index) -> None:
    for inode in (kinds_of(index) == stat.S_IFLNK).nonzero()[0].tolist():
        index.target(inode)  # raises if it has a NUL in it


def _audit_xattrs(archive: Archive) -> None:
    """Row by row, and not inode by inode: those may share rows, and so have any number."""
    tables = archive.index.tables
    last_row: dict[bytes, int] = {}  # of each name, so far
    latest = -1
    # For each row, the last one before which there was the name of that or an earlier row.
    again = array("q")
    for row, (text, length, _) in enumerate(tables.xattrs.tolist()):
        name = tables.texts[text : text + length].tobytes()
        if not name.startswith(b"user.") or b"\0" in name:
            raise _wrong(archive, f"an extended attribute called {name!r}")
        latest = max(latest, last_row.get(name, -1))
        last_row[name] = row
        again.append(latest)
    sets = tables.attributes[tables.attributes["xattrs"] > 0]
    first = sets["xattr"].astype(np.int64)
    if (np.array(again, np.int64)[first + sets["xattrs"] - 1] >= first).any():
        raise _wrong(archive, "a file that has an extended attribute twice")


def _audit_hashes(archive: Archive) -> None:
    index, tables = archive.index, archive.index.tables
    named_by = tables.inodes["entry"]
    crcs = array("I")
    for folder in (kinds_of(index) == stat.S_IFDIR).nonzero()[0].tolist():
        # Folders come after their parents, and their entries are all entries in order.
        prefix = crc32(b"/", crcs[named_by[folder]]) if folder != ROOT else 0
        crcs.extend(crc32(name, prefix) for name, _ in index.children(folder))
    due, hashed, hashes = np.array(crcs, np.uint32), tables.hashed, tables.hashes
    every_entry = (np.sort(hashed) == np.arange(len(due))).all()
    if not every_entry or (due[hashed] != hashes).any() or (hashes[:-1] > hashes[1:]).any():
        raise _wrong(archive, "hashes that are not those of the paths")


def _audit_legacy(archive: Archive) -> None:
    """Folder by folder, beside ours."""
    index, theirs = archive.index, _read_legacy(archive)
    records = index.records(np.arange(len(index)))
    folders = [(ROOT, 0)]  # ours and theirs
    for ours, other in folders:  # it grows while it is gone through
        entries = theirs.entries(other)
        said = {theirs.names[entry]: theirs.inode[entry] for entry in entries}
        if len(said) < len(entries):
            raise _wrong(archive, "a name that is there twice for the original FFRecord")
        for name, inode in index.children(ours):
            there = said.pop(name, None)
            record = int(records[inode])
            due = record if record >= 0 else _seen(index, ours, name, inode)
            if due != _said(theirs, there):
                path = _shown(shown_path(index, ours, name))
                raise _wrong(archive, f"{path} as something else for the original FFRecord")
            if due == _FOLDER and there is not None:
                folders.append((inode, there))
        if said:
            path = _shown(shown_path(index, ours, min(said)))
            raise _wrong(archive, f"{path} only for the original FFRecord")


def _read_legacy(archive: Archive) -> Tree:
    reader, size = archive.reader, archive.legacy_size
    names = len(archive.index.tables.entries)
    if size > legacy.most_bytes(names):
        raise _wrong(archive, f"{size} bytes for the original FFRecord, more than its names need")
    raw = bytearray(size)
    table_of(reader).read_unchecked(reader.n - 1, 0, np.frombuffer(raw, np.uint8))
    if not raw.startswith(LEGACY_MAGIC):
        raise _wrong(archive, "bytes before it that are no index of the original's")
    sizes = reader.record_sizes()[:-1].tolist()
    most = legacy.most_entries(names)
    return legacy.read_tree(archive.path, raw, sizes, os.stat(archive.path), most)


def _seen(index: Index, folder: int, name: bytes, inode: int) -> int:
    """How the original is to see a folder or symlink: those that lead to files are files."""
    if stat.S_ISDIR(index.mode(inode)):
        return _FOLDER
    record = readable_record(index, folder, name, inode)
    return _NOTHING if record is None else record


def _said(theirs: Tree, inode: int | None) -> int:
    if inode is None:
        return _NOTHING
    return _FOLDER if theirs.is_folder(inode) else theirs.record[inode]


def _shown(path: bytes) -> str:
    return repr(to_text(path))


def _wrong(archive: Archive, what: str) -> IndexStructureError:
    return IndexStructureError(f"{archive.path}: its index has {what}")
