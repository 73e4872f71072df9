"""Further checks of an index, for `ffrecord verify`. Opening an archive makes the basic checks.

Whole paths are built only for messages, because an archive of a few hundred kilobytes can contain
thousands of paths that are a megabyte long. The checks go from folder to folder, name by name.
"""

from __future__ import annotations

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
from ffrecord.format.index import BLOCK, LEGACY_MAGIC, WAY_OUT
from ffrecord.records.reader import table_of

LONGEST_SHOWN = 4096  # bytes of a path in a message: Linux allows no longer path

# How the original sees an entry: as a folder, not at all, or as a file, by its record number.
_FOLDER, _NOTHING = -1, -2
_FOR_ORIGINAL = "the index for the original FFRecord"


def audit(archive: Archive) -> None:
    """Raise `IndexStructureError` for the first mistake in an index.

    The rules: the checksums of a file's blocks combine to the checksum of its record; symlink
    targets and names of extended attributes are valid; each hash matches its path; and the index
    for the original FFRecord, if the archive has one, describes the same files.
    """
    _audit_blocks(archive)
    audit_texts(archive)
    _audit_hashes(archive)
    if 0 < archive.legacy_size < archive.reader.record_size(archive.reader.n - 1):
        _audit_legacy(archive)


def audit_texts(archive: Archive) -> None:
    """Raise `IndexStructureError` for a wrong symlink target, or a wrong extended attribute."""
    _audit_symlinks(archive.index)
    _audit_xattrs(archive)


def shown_path(index: Index, folder: int, name: bytes) -> bytes:
    """Return the path of a name in a folder, for a message. A long path is cut at the front."""
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
            raise _wrong(archive, f"block checksums of {path} do not match its record's checksum")


def _audit_symlinks(index: Index) -> None:
    inodes = (kinds_of(index) == stat.S_IFLNK).nonzero()[0]
    begin = index.tables.inodes["data"][inodes]
    end = begin + index.tables.inodes["length"][inodes]
    nuls = (index.tables.texts == 0).nonzero()[0]
    has_nul = nuls.searchsorted(begin) < nuls.searchsorted(end)
    for inode in inodes[has_nul][:1].tolist():
        index.target(inode)  # raises


def _audit_xattrs(archive: Archive) -> None:
    """Check extended attributes row by row: many inodes may share the same rows."""
    tables = archive.index.tables
    last_row: dict[bytes, int] = {}  # the last row so far with each name
    latest = -1
    # again[r]: considering rows 0 to r, the last row whose name occurs again after it; or -1.
    again = array("q")
    for row, (text, length, _) in enumerate(tables.xattrs.tolist()):
        name = tables.texts[text : text + length].tobytes()
        if not name.startswith(b"user.") or b"\0" in name:
            raise _wrong(archive, f"{name!r} is not a valid name of an extended attribute")
        latest = max(latest, last_row.get(name, -1))
        last_row[name] = row
        again.append(latest)
    sets = tables.attributes[tables.attributes["xattrs"] > 0]
    first = sets["xattr"].astype(np.int64)
    if (np.array(again, np.int64)[first + sets["xattrs"] - 1] >= first).any():
        raise _wrong(archive, "a file has the same extended attribute twice")


def _audit_hashes(archive: Archive) -> None:
    index, tables = archive.index, archive.index.tables
    named_by = tables.inodes["entry"]
    crcs = array("I")
    for folder in (kinds_of(index) == stat.S_IFDIR).nonzero()[0].tolist():
        # A folder comes after its parent, so the CRC of the folder's own entry is in `crcs` by now.
        prefix = crc32(b"/", crcs[named_by[folder]]) if folder != ROOT else 0
        crcs.extend(crc32(name, prefix) for name, _ in index.children(folder))
    due, hashed, hashes = np.array(crcs, np.uint32), tables.hashed, tables.hashes
    every_entry = (np.sort(hashed) == np.arange(len(due))).all()
    if not every_entry or (due[hashed] != hashes).any() or (hashes[:-1] > hashes[1:]).any():
        raise _wrong(archive, "the hashes do not match the paths")


def _audit_legacy(archive: Archive) -> None:
    """Compare the original's index with ours, folder by folder."""
    index, theirs = archive.index, _read_legacy(archive)
    records = index.records(np.arange(len(index)))
    folders = [(ROOT, 0)]  # inode in our index, inode in the original's
    for ours, other in folders:  # the list grows during the loop
        entries = theirs.entries(other)
        said = {theirs.names[entry]: theirs.inode[entry] for entry in entries}
        if len(said) < len(entries):
            raise _wrong(archive, f"{_FOR_ORIGINAL} has the same name twice in a folder")
        for name, inode in index.children(ours):
            there = said.pop(name, None)
            record = int(records[inode])
            due = record if record >= 0 else _seen(index, ours, name, inode)
            if due != _said(theirs, there):
                path = _shown(shown_path(index, ours, name))
                raise _wrong(archive, f"{_FOR_ORIGINAL} describes {path} differently")
            if due == _FOLDER and there is not None:
                folders.append((inode, there))
        if said:
            path = _shown(shown_path(index, ours, min(said)))
            raise _wrong(archive, f"only {_FOR_ORIGINAL} contains {path}")


def _read_legacy(archive: Archive) -> Tree:
    reader, size = archive.reader, archive.legacy_size
    names = len(archive.index.tables.entries)
    if size > legacy.most_bytes(names):
        raise _wrong(archive, f"{_FOR_ORIGINAL} has {size} bytes, more than its names can need")
    raw = bytearray(size)
    table_of(reader).read_unchecked(reader.n - 1, 0, np.frombuffer(raw, np.uint8))
    if not raw.startswith(LEGACY_MAGIC):
        raise _wrong(archive, f"the bytes before it are not {_FOR_ORIGINAL}")
    sizes = reader.record_sizes()[:-1]
    most = legacy.most_entries(names)
    return legacy.read_tree(archive.path, raw, sizes, archive.status(), most)


def _seen(index: Index, folder: int, name: bytes, inode: int) -> int:
    """Return how the original sees a folder or symlink. A symlink to a file is a file."""
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
    return IndexStructureError(f"{archive.path}: its index is wrong: {what}; {WAY_OUT}")
