"""A resumable writer's unfinished file: found again by its name, and checked by its journal.

`.NAME.partial` has the records as the finished file will have them, with room for the header in
front, and `.NAME.partial.journal` says where each one ends and what its checksum is. A record
counts from the moment its entry is written, which happens when its bytes are on disk. Everything
behind the last such record is cut off. docs/format.md has the bytes of both files.

Nothing here moves or overwrites a record that was flushed: until the finished file has its name,
everything can be found again. A writer that is run once more after its file was finished finds all
records there, and does not write, rename or touch the file.
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
"""In front of the records when their number is not known: 87,380 fit. It is a hole until then."""

MOST_GAP = 16  # a finished file may have one part in so many between its header and its records


def begin(path: str, n: int | None) -> Draft:
    """Go on with the unfinished file for `path`, or begin one; if `path` is a whole file of `n`
    records already, it stays as it is."""
    partial = partial_path(path)
    beside = journal_path(partial)
    # Checksums of small records give them away: the journal is for those who may read the file.
    log = Journal(beside, locks.open_locked(beside, mode_for(path) | stat.S_IRUSR | stat.S_IWUSR))
    with contextlib.ExitStack() as on_failure:
        on_failure.callback(log.close)  # and with it the lock, however long the exception is kept
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
                f"{partial}: cannot be continued: its journal is missing or damaged; "
                "remove both to begin anew"
            )
        else:  # nothing was flushed yet; or the journal is what a finished file has left behind
            room = _room(n)
            log.start(n, room)
            sync_folder(os.path.dirname(path))
            begun = Draft(file, room, room, note=log.add)
        on_failure.pop_all()
        return begun


def _room(n: int | None) -> int:
    """Where the records of an unfinished file begin."""
    return ROOM if n is None else record_layout.header_size(n)


# ---- a file that is finished already ---------------------------------------------------------


def _finished(path: str, n: int) -> Draft | None:
    """The whole file of `n` records at `path`; None if something else is there, or nothing."""
    try:
        source = Source(path, direct=False)
        locks.refuse_planted(source.fd, path)
        header = read_header(source, check=True)
        if _is_cut_off(source, header):
            return None
    except ReadFailedError:  # it may well be whole, and would be replaced
        raise
    except (FFRecordError, FileNotFoundError):
        return None
    if header.n > n:  # appended to, perhaps
        warnings.warn(
            f"{path}: a finished file of {header.n} records, more than n={n}, will be replaced",
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
    """Only the last record shows it: it ends where the file does."""
    if not header.n:
        return False
    begin, end = header.offsets[-2:].tolist()
    return Recheck(source).checksum(begin, end) != int(header.checksums[-1])


class _Finished(Naming):
    """The file has its name."""

    def __init__(self, target: str, source: Source) -> None:
        super().__init__(target)
        self._source = source

    def open(self) -> tuple[int, None]:
        fd = os.dup(self._source.fd)
        del self._source  # a writer that was closed may live on: it is to keep no file open
        return fd, None


# ---- an unfinished file ----------------------------------------------------------------------


class _Partial(Naming):
    """The file has a name of its own, and outlives its writer until it is published or given up.
    Nothing that was flushed may be moved: shifting blocks is not one step to a power cut."""

    finds_again = True

    def __init__(self, target: str, path: str, log: Journal) -> None:
        super().__init__(target)
        self._path = path
        self._log = log

    def open(self) -> tuple[int, str]:
        return locks.open_own(self._path, mode_for(self.target)), self._path

    def prepare(self, fd: int) -> None:
        with contextlib.suppress(FileNotFoundError):  # who may not read the one may not this
            os.fchmod(fd, stat.S_IMODE(os.stat(self.target).st_mode))

    def with_room(self, file: NewFile, begin: int, room: int) -> tuple[NewFile, int]:
        """The file itself, if the header fits and not much is wasted; else a copy."""
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
        # Only after the records: without a journal they would be of no use.
        (self._log.close if kept else self._log.remove)()


class _CopyOf(Naming):
    """The file is published in a partial one's place, which is removed then and not before."""

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
            f"{path}: was begun with n={content.n}, not with n={n}; "
            "go on as it was begun, or remove it and its journal"
        )
    if content.begin != _room(n):
        raise StructureError(
            f"{log.path}: its records would begin at byte {content.begin}, "
            f"not at {_room(n)}: it was not written by a FileWriter"
        )
    entries = _whole(path, content)
    _refuse_if_finished_since(file, path, target, entries)
    ends = [content.begin, *(entry.end for entry in entries)]
    os.ftruncate(file.fd, ends[-1])
    os.fsync(file.fd)  # what a killed writer had not flushed may be in memory only
    log.resume(content, len(entries))
    checksums = array("I", (entry.crc for entry in entries))
    return Draft(file, content.begin, ends[-1], checksums, array("q", ends[:-1]), note=log.add)


def _whole(path: str, content: journal.ParsedJournal) -> list[JournalEntry]:
    """The entries to go on after: all records in front are read and checked."""
    recheck = Recheck(Source(path, direct=False))

    def verify(number: int, begin: int, entry: JournalEntry) -> None:
        computed = recheck.checksum(begin, entry.end)
        if computed != entry.crc:
            raise SampleChecksumError(path, number, entry.crc, computed)

    return journal.whole(path, content, content.begin, os.path.getsize(path), verify)


def _refuse_if_finished_since(
    file: NewFile, path: str, target: str, entries: list[JournalEntry]
) -> None:
    """Going on with old records would replace what another writer has finished meanwhile.

    A writer that was killed between finishing the file and removing these is not another one.
    """
    try:
        if os.stat(target).st_mtime_ns <= os.fstat(file.fd).st_mtime_ns:
            return
        there = read_header(Source(target, direct=False), check=True).checksums
    except (FFRecordError, FileNotFoundError):  # what is there is none of ours to protect
        return
    if there[: len(entries)].tolist() != [entry.crc for entry in entries]:
        raise ChangedError(
            f"{target}: was written since {path} was left; "
            "remove that one and its journal to begin anew, or the file to go on"
        )


class Journal:
    """An open journal, locked by its writer. It owns the descriptor that it is given."""

    def __init__(self, path: str, fd: int) -> None:
        self.path = path
        self._fd = fd
        self._crc = 0
        self._count = 0

    def read(self) -> journal.ParsedJournal | None:
        return journal.parse(whole_file(self.path))

    def start(self, n: int | None, begin: int) -> None:
        """Make it the journal of a file without records."""
        raw, self._crc = journal.header(n, begin, int.from_bytes(os.urandom(8), "little"))
        self._count = 0
        os.ftruncate(self._fd, 0)
        write_all(self._fd, raw, 0)
        os.fsync(self._fd)

    def resume(self, content: journal.ParsedJournal, count: int) -> None:
        """Go on after the first `count` entries, which from now on are certain."""
        self._crc, self._count = content.crc, count
        os.ftruncate(self._fd, journal.entry_at(count))
        os.fsync(self._fd)

    def add(self, ends: Sequence[int], checksums: Sequence[int]) -> None:
        """Add records that are on disk; those before them are settled by now."""
        write_all(self._fd, journal.settled(self._count, self._crc), journal.SETTLED_AT)
        raw = journal.entries(ends, checksums, self._count, self._crc)
        write_all(self._fd, raw, journal.entry_at(self._count))
        os.fsync(self._fd)
        self._count += len(ends)

    def remove(self) -> None:
        """Unless it is closed: then another writer may have one of that name."""
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
