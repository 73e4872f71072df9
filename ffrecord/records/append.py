"""Adding records to a finished file: a new one that begins with the old one's records replaces it.

Never in place. The last record ends where the file does, so bytes added to it make that record
wrong until the header says otherwise, and a header of more than a sector is not written in one
step: a crash in between would leave a damaged file to whoever opens it next. The new file shares
the old one's blocks where the file system can (XFS, btrfs), else they are copied; the header grows
by whole blocks so that sharing stays possible.
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
"""Room in the header for at least so many more, or an eighth, when nobody says how many come."""


def begin(path: str, n: int | None) -> Draft:
    """Return a draft that has the records of the file at `path` and is to replace it; `n` more
    will come. Without such a file the draft has no records, and is to be the first one there."""
    if not os.path.exists(path):
        return draft.new(_First(path), n)
    reader = _open_locked(path)
    old = table_of(reader).require_open()[0]
    try:
        _refuse_packed_folder(reader)
        refuse_damage(reader)
        return _copied(reader, reader.n, NewFile(_Grown(path, old)), n)
    except BaseException:
        unlock(old.fd)
        raise
    finally:
        reader.close()  # the new file has what it needs of it


def begin_with(reader: FileReader, records: int, path: str) -> Draft:
    """A new file at `path` that has the first records of another; more will come."""
    return _copied(reader, records, NewFile(Naming(path)), None)


class _First(Naming):
    """Replaces nothing: another writer may have begun the same file meanwhile."""

    def check(self) -> None:
        if os.path.lexists(self.target):
            raise ChangedError(
                f"{self.target}: another writer made it while it was begun here; nothing was added"
            )


class _Grown(Naming):
    """Replaces the old file, which is locked until then; takes over its owner and attributes."""

    def __init__(self, target: str, old: Source) -> None:
        super().__init__(target)
        self._old: Source | None = old  # the lock ends with the last who holds it

    def prepare(self, fd: int) -> None:
        assert self._old is not None
        inherit(fd, self._old.fd, self.target)

    def check(self) -> None:
        assert self._old is not None
        if not is_at(self._old.fd, self.target):
            raise ChangedError(
                f"{self.target}: was replaced while it was appended to; nothing was added"
            )

    def end(self, *, kept: bool) -> None:
        self._old = None


def _open_locked(path: str) -> FileReader:
    while True:
        with contextlib.ExitStack() as unless_locked:
            reader = unless_locked.enter_context(FileReader(path, mode="buffered"))
            if lock(table_of(reader).require_open()[0].fd, path):
                unless_locked.pop_all()
                return reader


def _refuse_packed_folder(reader: FileReader) -> None:
    """Names are found in the last record, which would be the last no more; and an index beside its
    shards knows their headers."""
    path = reader.fnames[0]
    if _has_index(reader):
        raise AppendError(
            f"{path}: a packed folder, whose last record is its index, cannot be appended to; "
            "pack the folder again"
        )
    folder, name = os.path.split(path)
    beside = os.path.join(folder, INDEX_NAME)
    if record_layout.PART_NAME.fullmatch(name) and os.path.isfile(beside):
        with FileReader(beside, mode="buffered") as index:
            if _has_index(index):
                raise AppendError(f"{path}: a shard of a packed folder cannot be appended to")


def _has_index(reader: FileReader) -> bool:
    if not reader.n:
        return False
    begin, end = reader.get_offsets(0)[-2:].tolist()
    source = table_of(reader).require_open()[0]
    return is_index(end - begin, lambda at, count: source.read_bytes(begin + at, count))


def refuse_damage(reader: FileReader) -> None:
    """The last record shows whether the file was cut off. A header without a checksum is proven
    by every record's, before the new one is given a checksum."""
    last = range(max(0, reader.n - 1), reader.n)
    proven = [last] if reader.header_crc(0) else reader.tasks(STEP_RECORDS, STEP_BYTES)
    for records in proven:
        for _, error in reader.find_damaged(records.start, records.stop):
            raise error


def _copied(reader: FileReader, records: int, file: NewFile, n: int | None) -> Draft:
    """The first records of a file in a new one; `n` more will come."""
    offsets = reader.get_offsets(0)[: records + 1]
    more = max(SPARE_RECORDS, records // 8) if n is None else n
    room = record_layout.header_size(records + more)
    begin, end = (int(offsets[0]), int(offsets[-1])) if records else (room, room)
    shift = max(0, whole_blocks(room - begin))
    try:
        take_over(table_of(reader).require_open()[0], begin, end, file, begin + shift)
    except BaseException:
        file.discard()
        raise
    checksums = array("I", reader.get_checksums(0)[:records].tobytes())
    moved = array("q", (offsets[:-1] + shift).tobytes())
    return Draft(file, begin + shift, end + shift, checksums, moved)
