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
from collections.abc import Iterable, Sequence
from typing import NoReturn

from ffrecord.aliases import Bytes
from ffrecord.atomic import locks
from ffrecord.atomic.clone import take_over, whole_blocks
from ffrecord.atomic.file import NewFile, mode_for, sync_folder, write_all
from ffrecord.atomic.locks import open_locked, open_own
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
from ffrecord.records.beginning import Beginning
from ffrecord.records.opening import read_header

ROOM = 1 << 20
"""In front of the records when their number is not known: 87,380 fit. It is a hole until then."""

MOST_GAP = 16  # a finished file may have one part in so many between its header and its records


def _room(n: int | None) -> int:
    """Where the records of an unfinished file begin."""
    return ROOM if n is None else record_layout.header_size(n)


def begin(path: str, n: int | None) -> Beginning:
    """Go on with the unfinished file for `path`, or begin one; if `path` is a whole file of `n`
    records already, it stays as it is."""
    unfinished = partial_path(path)
    beside = journal_path(unfinished)
    # Checksums of small records give them away: the journal is for those who may read the file.
    log = Journal(beside, open_locked(beside, mode_for(path) | stat.S_IRUSR | stat.S_IWUSR))
    there = os.path.lexists(unfinished)
    try:
        done = None if there or n is None else _finished_already(path, n)
        if done is not None:
            log.remove()
            return done
        file = PartialFile(path, unfinished, log)
    except BaseException:
        log.close()  # and with it the lock, however long the exception is kept
        raise
    try:
        content = log.read()
        if content is not None and there:
            return _resume(file, unfinished, content, n)
        if content is None and os.fstat(file.fd).st_size:
            raise StructureError(
                f"{unfinished}: cannot be continued: its journal is missing or damaged; "
                "remove both to begin anew"
            )
        # Nothing was flushed yet; or the journal is what a finished file has left behind.
        room = _room(n)
        log.start(n, room)
        sync_folder(os.path.dirname(path))
        file.rewind(room)
        return Beginning(file, room, room, array("I"), array("q"))
    except BaseException:
        file.abandon()
        raise


class PartialFile(NewFile):
    """A file that outlives its writer, until it is published or given up."""

    def __init__(self, target: str, path: str, log: Journal) -> None:
        fd = open_own(path, mode_for(target))
        try:
            with contextlib.suppress(FileNotFoundError):  # who may not read the one may not this
                os.fchmod(fd, stat.S_IMODE(os.stat(target).st_mode))
        except BaseException:
            os.close(fd)
            raise
        super().__init__(target, fd, path)
        self.log = log

    def keep(self, ends: Iterable[int], checksums: Iterable[int]) -> None:
        super().keep(ends, checksums)
        self.log.add(list(ends), list(checksums))

    def with_room(self, begin: int, room: int) -> tuple[NewFile, int]:
        """This file, if the header fits and not much is wasted; else a copy, since nothing that
        was flushed may be moved: shifting blocks is not one step to a power cut."""
        self.flush()
        end = self.position
        if room <= begin and (begin - room) * MOST_GAP <= end - begin + room:
            return self, 0
        shift = whole_blocks(room - begin)
        copy = _FinishedCopy(self._target, self)
        try:
            assert self._name is not None
            take_over(Source(self._name, direct=False), begin, end, copy, begin + shift)
        except BaseException:
            copy.discard()
            raise
        return copy, shift

    def publish(self) -> None:
        super().publish()
        self.log.remove()

    def discard(self) -> None:
        """Give it up: the records are gone."""
        super().discard()
        self.log.remove()  # after the records: without a journal they would be of no use

    def abandon(self) -> None:
        """Close it, and leave it for another time."""
        self._name = None
        super().discard()
        self.log.close()


class _FinishedCopy(NewFile):
    """What is published in a partial file's place, which is removed then and not before."""

    def __init__(self, target: str, partial: PartialFile) -> None:
        super().__init__(target)
        self._partial = partial

    def publish(self) -> None:
        super().publish()
        self._partial.discard()

    def abandon(self) -> None:
        super().discard()
        self._partial.abandon()


def _refuse_if_finished_since(file: PartialFile, path: str, entries: list[JournalEntry]) -> None:
    """Going on with old records would replace what another writer has finished meanwhile.

    A writer that was killed between finishing the file and removing these is not another one.
    """
    target = file._target
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


def _resume(
    file: PartialFile, path: str, content: journal.ParsedJournal, n: int | None
) -> Beginning:
    if content.n != n:
        raise CountError(
            f"{path}: was begun with n={content.n}, not with n={n}; "
            "go on as it was begun, or remove it and its journal"
        )
    if content.begin != _room(n):
        raise StructureError(
            f"{journal_path(path)}: its records would begin at byte {content.begin}, "
            f"not at {_room(n)}: it was not written by a FileWriter"
        )
    entries = _whole(path, content)
    _refuse_if_finished_since(file, path, entries)
    ends = [content.begin, *(entry.end for entry in entries)]
    file.rewind(ends[-1])
    os.ftruncate(file.fd, ends[-1])
    os.fsync(file.fd)  # what a killed writer had not flushed may be in memory only
    file.log.resume(content, len(entries))
    checksums = array("I", (entry.crc for entry in entries))
    return Beginning(file, content.begin, ends[-1], checksums, array("q", ends[:-1]))


def _whole(path: str, content: journal.ParsedJournal) -> list[JournalEntry]:
    """The entries to go on after: all records in front are read and checked."""
    recheck = Recheck(Source(path, direct=False))

    def verify(number: int, begin: int, entry: JournalEntry) -> None:
        computed = recheck.checksum(begin, entry.end)
        if computed != entry.crc:
            raise SampleChecksumError(path, number, entry.crc, computed)

    return journal.whole(path, content, content.begin, os.path.getsize(path), verify)


def _finished_already(path: str, n: int) -> Beginning | None:
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
            stacklevel=4,
        )
    if header.n != n:
        return None
    checksums = array("I", header.checksums.tobytes())
    offsets = array("q", header.offsets[:-1].tobytes())
    room = int(header.offsets[0]) if n else record_layout.header_size(0)
    return Beginning(FinishedFile(path, source), room, int(header.offsets[-1]), checksums, offsets)


def _is_cut_off(source: Source, header: record_layout.Header) -> bool:
    """Only the last record shows it: it ends where the file does."""
    if not header.n:
        return False
    begin, end = header.offsets[-2:].tolist()
    return Recheck(source).checksum(begin, end) != int(header.checksums[-1])


class FinishedFile(NewFile):
    """A file that has all of its records, its header and its name."""

    def __init__(self, target: str, source: Source) -> None:
        super().__init__(target, os.dup(source.fd))

    def write(self, buffer: Bytes) -> NoReturn:
        raise CountError(f"{self._target}: already holds all of its records")

    def write_at(self, offset: int, data: bytes | memoryview) -> None:
        pass

    def keep(self, ends: Iterable[int], checksums: Iterable[int]) -> None:
        pass

    def publish(self) -> None:
        pass


class Journal:
    """An open journal, locked by its writer. Who opened the descriptor gives it away to this."""

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
