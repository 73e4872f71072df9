"""Append records to a finished file by replacing it with a new one.

The new file begins with the records of the old one. The old file is never changed in place, because
a crash would damage it. The last record ends at the end of the file, so added bytes make that
record wrong until the header is updated. A header longer than one sector is not written atomically
either.

The new file shares the blocks of the old one where the file system allows it (XFS, btrfs).
Elsewhere the records are copied. The header grows by whole blocks so that sharing stays possible.
"""

from __future__ import annotations

import contextlib
import os
from array import array

from ffrecord.atomic.clone import inherit, take_over, whole_blocks
from ffrecord.atomic.file import Naming, NewFile
from ffrecord.atomic.locks import is_at, lock, unlock
from ffrecord.disk.source import Source
from ffrecord.errors import AppendError, ChangedError
from ffrecord.format import records as record_layout
from ffrecord.format.index import INDEX_NAME, is_index
from ffrecord.records import draft
from ffrecord.records.draft import Draft
from ffrecord.records.reader import STEP_BYTES, STEP_RECORDS, FileReader, table_of

SPARE_RECORDS = 1024
"""Records that can be added before the header runs out of room, if `n` is not given. An eighth of
the old records, if that is more."""


def begin(path: str, n: int | None) -> Draft:
    """Return a draft that starts with the records of the file at `path` and will replace it.

    If no such file exists, return an empty draft. Publishing it fails if another writer has created
    the file in the meantime. `n` is the number of records to be added, if known.
    """
    if not os.path.exists(path):
        return draft.new(_First(path), n)
    reader = _open_locked(path)
    old = table_of(reader).require_files()[0]
    try:
        _refuse_packed_folder(reader)
        refuse_damage(reader)
        return _copied(reader, reader.n, NewFile(_Grown(path, old)), n)
    except BaseException:
        unlock(old.fd)
        raise
    finally:
        reader.close()  # the draft needs only the locked source


def begin_with(reader: FileReader, records: int, path: str) -> Draft:
    """Return a draft for a new file at `path` that starts with the first `records` of `reader`."""
    return _copied(reader, records, NewFile(Naming(path)), None)


class _First(Naming):
    """Naming of a file that must not exist yet, because another writer may create it too."""

    def check(self) -> None:
        if os.path.lexists(self.target):
            raise ChangedError(
                f"{self.target}: another writer created this file in the meantime, so nothing was "
                "added; append again"
            )


class _Grown(Naming):
    """Naming of a file that replaces the old one and inherits its owner and attributes.

    The old file stays locked until the new one is published or discarded.
    """

    def __init__(self, target: str, old: Source) -> None:
        super().__init__(target)
        self._old: Source | None = old  # the lock is held as long as this reference exists

    def prepare(self, fd: int) -> None:
        assert self._old is not None
        inherit(fd, self._old.fd, self.target)

    def check(self) -> None:
        assert self._old is not None
        if not is_at(self._old.fd, self.target):
            raise ChangedError(
                f"{self.target}: was replaced by another program during the append, so nothing was "
                "added; append again"
            )

    def end(self, *, kept: bool) -> None:
        self._old = None


def _open_locked(path: str) -> FileReader:
    """Open and lock the file at `path`; retry if it was replaced before it was locked."""
    while True:
        with contextlib.ExitStack() as unless_locked:
            reader = unless_locked.enter_context(FileReader(path, mode="buffered"))
            if lock(table_of(reader).require_files()[0].fd, path):
                unless_locked.pop_all()
                return reader


def _refuse_packed_folder(reader: FileReader) -> None:
    """Raise AppendError for a packed folder or one of its shards.

    The index must stay the last record. If there are several shards, the index also stores the
    checksum of each shard's header.
    """
    path = reader.fnames[0]
    if _has_index(reader):
        raise AppendError(
            f"{path}: cannot append to a packed folder, because its last record is its index; "
            "pack the folder again"
        )
    folder, name = os.path.split(path)
    beside = os.path.join(folder, INDEX_NAME)
    if record_layout.PART_NAME.fullmatch(name) and os.path.isfile(beside):
        with FileReader(beside, mode="buffered") as index:
            if _has_index(index):
                raise AppendError(
                    f"{path}: cannot append to a shard of a packed folder; pack the folder again"
                )


def _has_index(reader: FileReader) -> bool:
    if not reader.n:
        return False
    begin, end = reader.get_offsets(0)[-2:].tolist()
    source = table_of(reader).require_files()[0]
    return is_index(end - begin, lambda at, count: source.read_bytes(begin + at, count))


def refuse_damage(reader: FileReader) -> None:
    """Raise the first error found in a file that is about to be copied.

    The last record shows whether the file was truncated. If the header has no checksum, all records
    are checked, because the new header will get a checksum and must be right.
    """
    last = range(max(0, reader.n - 1), reader.n)
    proven = [last] if reader.header_crc(0) else reader.tasks(STEP_RECORDS, STEP_BYTES)
    for records in proven:
        for _, error in reader.find_damaged(records.start, records.stop):
            raise error


def _copied(reader: FileReader, records: int, file: NewFile, n: int | None) -> Draft:
    """Return a draft in `file` with the first `records` of `reader` and room for `n` more."""
    offsets = reader.get_offsets(0)[: records + 1]
    more = max(SPARE_RECORDS, records // 8) if n is None else n
    room = record_layout.header_size(records + more)
    begin, end = (int(offsets[0]), int(offsets[-1])) if records else (room, room)
    shift = max(0, whole_blocks(room - begin))
    try:
        take_over(table_of(reader).require_files()[0], begin, end, file, begin + shift)
    except BaseException:
        file.discard()
        raise
    checksums = array("I", reader.get_checksums(0)[:records].tobytes())
    moved = array("q", (offsets[:-1] + shift).tobytes())
    return Draft(file, begin + shift, end + shift, checksums, moved)
