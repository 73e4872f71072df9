"""Start or resume the unfinished file of a resumable writer.

`.NAME.partial` has room for the header, then the records in the same form as the finished file.
`.NAME.partial.journal` lists the end and the checksum of each record. A record counts once its
journal entry is written, and that happens after its bytes are on disk. A writer that resumes cuts
off everything after the last such record. docs/format.md specifies both files.

Nothing here moves or overwrites a flushed record, so all flushed records can be found again until
the finished file has its name. If a writer with the same `n` is run again after its file was
finished, it finds all records, and does not write, rename or touch the file.
"""

from __future__ import annotations

import contextlib
import os
import stat
import warnings
from array import array
from collections.abc import Sequence

from ffrecord.atomic import locks
from ffrecord.atomic.clone import take_over, whole_blocks
from ffrecord.atomic.direct import write_all
from ffrecord.atomic.file import Naming, NewFile, mode_for, sync_folder
from ffrecord.disk.source import Recheck, Source, whole_file
from ffrecord.errors import (
    ChangedError,
    CountError,
    FFRecordError,
    ReadFailedError,
    SampleChecksumError,
    StructureError,
)
from ffrecord.format import journal
from ffrecord.format import records as record_layout
from ffrecord.format.journal import JournalEntry, journal_path, partial_path
from ffrecord.records.draft import Draft
from ffrecord.records.opening import read_header

ROOM = 1 << 20
"""Bytes reserved for the header when the number of records is unknown: enough for 87,380 records.
The room is a hole until the header is written."""

MOST_GAP = 16  # at most 1/16 of a finished file may be a gap between header and records


def begin(path: str, n: int | None) -> Draft:
    """Resume the unfinished file for `path`, or start one.

    If `path` is already a whole file of `n` records, it stays unchanged.
    """
    partial = partial_path(path)
    beside = journal_path(partial)
    # Checksums of small records reveal their content: the journal gets the same mode as the file.
    mode = mode_for(path) | stat.S_IRUSR | stat.S_IWUSR
    log = Journal(beside, locks.open_locked(beside, mode, target=path))
    with contextlib.ExitStack() as on_failure:
        on_failure.callback(log.close)  # releases the lock even if the exception is kept for long
        there = os.path.lexists(partial)
        done = None if there or n is None else _finished(path, n)
        if done is not None:
            log.remove()
            return done
        file = NewFile(_Partial(path, partial, log))
        on_failure.callback(file.abandon)
        content = log.read()
        if content is not None and there:
            begun = _continued(file, path, content, n, log)
        elif content is None and os.fstat(file.fd).st_size:
            raise StructureError(
                f"{partial}: cannot be resumed, because its journal is missing or damaged; "
                "remove both files to start again"
            )
        else:  # nothing was flushed yet, or the journal is left over from a finished file
            room = _room(n)
            log.start(n, room)
            sync_folder(os.path.dirname(path))
            begun = Draft(file, room, room, note=log.add)
        on_failure.pop_all()
        return begun


def _room(n: int | None) -> int:
    """Return the offset of the first record in an unfinished file."""
    return ROOM if n is None else record_layout.header_size(n)


# ---- an already finished file -------------------------------------------------------------


def _finished(path: str, n: int) -> Draft | None:
    """Return a draft of the whole file of `n` records at `path`; None if there is no such file."""
    try:
        source = Source(path, direct=False)
        locks.refuse_planted(source.fd, path)
        header = read_header(source, check=True)
        if _is_cut_off(source, header):
            return None
    except ReadFailedError:  # the file may be whole, and must not be replaced
        raise
    except (FFRecordError, FileNotFoundError):
        return None
    if header.n > n:  # perhaps records were appended
        warnings.warn(
            f"{path}: this finished file has {header.n} records, more than n={n}; close() will "
            f"replace it; pass n={header.n} to keep it",
            stacklevel=5,
        )
    if header.n != n:
        return None
    checksums = array("I", header.checksums.tobytes())
    offsets = array("q", header.offsets[:-1].tobytes())
    room = int(header.offsets[0]) if n else record_layout.header_size(0)
    end = int(header.offsets[-1])
    file = NewFile(_Finished(path, source))
    return Draft(file, room, end, checksums, offsets, is_finished=True)


def _is_cut_off(source: Source, header: record_layout.Header) -> bool:
    """Return True if the file was truncated: then its last record has a wrong checksum."""
    if not header.n:
        return False
    begin, end = header.offsets[-2:].tolist()
    return Recheck(source).checksum(begin, end) != int(header.checksums[-1])


class _Finished(Naming):
    """Naming of a finished file, which already has its name."""

    def __init__(self, target: str, source: Source) -> None:
        super().__init__(target)
        self._source = source

    def open(self) -> tuple[int, None]:
        fd = os.dup(self._source.fd)
        del self._source  # a closed writer may live on, and must not keep the file open
        return fd, None


# ---- an unfinished file ----------------------------------------------------------------------


class _Partial(Naming):
    """Naming of an unfinished file that outlives its writer until it is published or discarded.

    Flushed records must not be moved: shifting blocks is not atomic in a power cut.
    """

    finds_again = True

    def __init__(self, target: str, path: str, log: Journal) -> None:
        super().__init__(target)
        self._path = path
        self._log = log

    def open(self) -> tuple[int, str]:
        return locks.open_own(self._path, mode_for(self.target)), self._path

    def prepare(self, fd: int) -> None:
        # Users who may not read the old file may not read this one.
        with contextlib.suppress(FileNotFoundError):
            os.fchmod(fd, stat.S_IMODE(os.stat(self.target).st_mode))

    def with_room(self, file: NewFile, begin: int, room: int) -> tuple[NewFile, int]:
        """Return the file itself if the header fits and wastes little room; otherwise a copy."""
        file.flush()
        end = file.position
        if room <= begin and (begin - room) * MOST_GAP <= end - begin + room:
            return file, 0
        shift = whole_blocks(room - begin)
        copy = NewFile(_CopyOf(file, self.target))
        try:
            take_over(Source(self._path, direct=False), begin, end, copy, begin + shift)
        except BaseException:
            copy.close()
            raise
        return copy, shift

    def end(self, *, kept: bool) -> None:
        # The journal goes last: without it the records cannot be found.
        (self._log.close if kept else self._log.remove)()


class _CopyOf(Naming):
    """Naming of a copy that is published instead of a partial file, which is removed afterwards."""

    def __init__(self, partial: NewFile, target: str) -> None:
        super().__init__(target)
        self._partial = partial

    def end(self, *, kept: bool) -> None:
        (self._partial.abandon if kept else self._partial.discard)()


def _continued(
    file: NewFile, target: str, content: journal.ParsedJournal, n: int | None, log: Journal
) -> Draft:
    path = partial_path(target)
    if content.n != n:
        raise CountError(
            f"{path}: was started with n={content.n}, not n={n}; pass n={content.n} to resume, "
            "or remove this file and its journal to start again"
        )
    if content.begin != _room(n):
        raise StructureError(
            f"{log.path}: places the first record at byte {content.begin} instead of "
            f"{_room(n)}, so no FileWriter wrote it; remove it and {path} to start again"
        )
    entries = _whole(path, content)
    _refuse_if_finished_since(file, path, target, entries)
    ends = [content.begin, *(entry.end for entry in entries)]
    os.ftruncate(file.fd, ends[-1])
    os.fsync(file.fd)  # bytes that a killed writer had not flushed may still be only in memory
    log.resume(content, len(entries))
    checksums = array("I", (entry.crc for entry in entries))
    return Draft(file, content.begin, ends[-1], checksums, array("q", ends[:-1]), note=log.add)


def _whole(path: str, content: journal.ParsedJournal) -> list[JournalEntry]:
    """Return the journal entries of all whole records. Each record is read and checked."""
    recheck = Recheck(Source(path, direct=False))

    def verify(number: int, begin: int, entry: JournalEntry) -> None:
        computed = recheck.checksum(begin, entry.end)
        if computed != entry.crc:
            raise SampleChecksumError(path, number, entry.crc, computed)

    return journal.whole(path, content, content.begin, os.path.getsize(path), verify)


def _refuse_if_finished_since(
    file: NewFile, path: str, target: str, entries: list[JournalEntry]
) -> None:
    """Raise ChangedError if another writer has finished the target: resuming would replace it.

    A target that begins with the same records is allowed: its writer was killed after it published
    the target and before it removed the partial file.
    """
    try:
        if os.stat(target).st_mtime_ns <= os.fstat(file.fd).st_mtime_ns:
            return
        there = read_header(Source(target, direct=False), check=True).checksums
    except (FFRecordError, FileNotFoundError):  # no whole record file that needs protection
        return
    if there[: len(entries)].tolist() != [entry.crc for entry in entries]:
        raise ChangedError(
            f"{target}: another writer finished this file after {path} was interrupted; remove "
            "that partial file and its journal to start again, or remove this file to resume"
        )


class Journal:
    """An open journal, locked by its writer. Owns the descriptor passed to it."""

    def __init__(self, path: str, fd: int) -> None:
        self.path = path
        self._fd = fd
        self._crc = 0
        self._count = 0

    def read(self) -> journal.ParsedJournal | None:
        return journal.parse(whole_file(self.path))

    def start(self, n: int | None, begin: int) -> None:
        """Make this the journal of a file without records."""
        raw, self._crc = journal.header(n, begin, int.from_bytes(os.urandom(8), "little"))
        self._count = 0
        os.ftruncate(self._fd, 0)
        write_all(self._fd, raw, 0)
        os.fsync(self._fd)

    def resume(self, content: journal.ParsedJournal, count: int) -> None:
        """Keep the first `count` entries, whose records were verified, and cut off the rest."""
        self._crc, self._count = content.crc, count
        os.ftruncate(self._fd, journal.entry_at(count))
        os.fsync(self._fd)

    def add(self, ends: Sequence[int], checksums: Sequence[int]) -> None:
        """Add entries for records that are on disk. All earlier entries become settled."""
        write_all(self._fd, journal.settled(self._count, self._crc), journal.SETTLED_AT)
        raw = journal.entries(ends, checksums, self._count, self._crc)
        write_all(self._fd, raw, journal.entry_at(self._count))
        os.fsync(self._fd)
        self._count += len(ends)

    def remove(self) -> None:
        """Delete the journal, unless it is closed: then the name may belong to another writer."""
        if self._fd >= 0:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.path)
        self.close()

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        self.close()
