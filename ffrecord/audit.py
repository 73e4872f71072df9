"""What `ffrecord verify` asks of an index beyond what it must be for the archive to open."""

from __future__ import annotations

import itertools
import stat
from collections.abc import Iterator
from typing import Any

import numpy as np

from ffrecord.archive import Archive
from ffrecord.checksum import crc32, crc32_joined
from ffrecord.errors import IndexStructureError
from ffrecord.index import legacy
from ffrecord.index.layout import BLOCK, LEGACY_MAGIC
from ffrecord.index.resolve import resolve

AT_A_TIME = 4096


def audit(archive: Archive) -> None:
    """Raise IndexStructureError for the first thing in an index that is not as it should be.

    The checksums of blocks must give those of their records, each hash must be that of its path,
    and the index for the original FFRecord, if there is one, must name the same files.
    """
    _audit_blocks(archive)
    _audit_hashes(archive)
    if archive.legacy_size:
        _audit_legacy(archive)


def _audit_blocks(archive: Archive) -> None:
    index, reader = archive.index, archive.reader
    checksums = np.concatenate([reader.get_checksums(file) for file in range(len(reader.fnames))])
    for inode in index.tables.large["inode"].tolist():
        blocks = index.block_checksums(inode)
        assert blocks is not None
        joined = crc32_joined(blocks.tolist(), BLOCK, index.status(inode).size)
        if joined != checksums[index.record(inode)]:
            raise _wrong(archive, f"blocks of {index.inode_path(inode)!r} with other checksums")


def _audit_hashes(archive: Archive) -> None:
    tables = archive.index.tables
    entries = range(len(tables.entries))
    paths = map(archive.index.entry_path, entries)
    due = np.fromiter(map(crc32, paths), np.uint32, len(entries))
    if not (due[tables.hashed] == tables.hashes).all() or not (np.sort(due) == tables.hashes).all():
        raise _wrong(archive, "hashes that are not those of the paths")


def _audit_legacy(archive: Archive) -> None:
    index = archive.index
    raw = np.empty(archive.legacy_size, np.uint8)
    archive.reader.read_unchecked(archive.reader.n - 1, 0, raw)
    before = raw.tobytes()
    if not before.startswith(LEGACY_MAGIC):
        raise _wrong(archive, "bytes before it that are no index of the original's")
    files = 0
    most = legacy.most_entries(len(index.tables.entries))
    flat = _flat(legacy.parse(archive.path, before, len(LEGACY_MAGIC), most))
    while some := list(itertools.islice(flat, AT_A_TIME)):
        files += _audit_some(archive, [path for path, _ in some], [record for _, record in some])
    names = int((index.records(index.tables.entries["inode"].astype(np.int64)) >= 0).sum())
    if files != names:
        raise _wrong(archive, f"{names} files, and {files} for the original FFRecord")


def _audit_some(archive: Archive, paths: list[bytes], records: list[int | None]) -> int:
    """How many of the original's names are files; an error if one is not where it should be.

    Symlinks to files are files there.
    """
    index = archive.index
    files = 0
    for inode, path, record in zip(index.find(paths).tolist(), paths, records, strict=True):
        try:
            if inode < 0:
                inode = resolve(index, path, follow=False)
            files += stat.S_ISREG(index.mode(inode))
            if stat.S_ISLNK(index.mode(inode)):
                inode = resolve(index, path)
        except OSError:
            raise _wrong(archive, f"{path!r} only for the original FFRecord") from None
        right = stat.S_ISDIR(index.mode(inode)) if record is None else index.record(inode) == record
        if not right:
            raise _wrong(archive, f"{path!r} as something else for the original FFRecord")
    return files


def _flat(structure: dict[str, Any]) -> Iterator[tuple[bytes, int | None]]:
    """Every path in nested dictionaries, with its record, or None for a folder."""
    waiting: list[tuple[bytes, Any]] = [(b"", structure)]
    while waiting:
        path, value = waiting.pop()
        if path:
            yield path, None if isinstance(value, dict) else value
        if isinstance(value, dict):
            prefix = path + b"/" if path else b""
            waiting += [
                (prefix + name.encode("utf-8", "surrogateescape"), inner)
                for name, inner in value.items()
            ]


def _wrong(archive: Archive, what: str) -> IndexStructureError:
    return IndexStructureError(f"{archive.path}: its index has {what}")
