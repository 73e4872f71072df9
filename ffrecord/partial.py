"""The unfinished file of a resumable writer: found again by its name, and checked by its journal.

`.NAME.partial` has the records as the finished file will have them, with room for the header in
front, and `.NAME.partial.journal` says where each one ends and what its checksum is. A record
counts from the moment that its entry is there, which is written when its bytes are on disk. What
lies behind the last of them is cut off. docs/format.md has the bytes of both.

Nothing here moves or overwrites a record that was flushed: up to the moment when the finished file
has its name, everything can be found again.
"""

from __future__ import annotations

import contextlib
import os
import stat
from array import array
from collections.abc import Iterable

from ffrecord import finished, journal, layout
from ffrecord.beginning import Beginning
from ffrecord.engine import Source
from ffrecord.errors import (
    ChangedError,
    CountError,
    FFRecordError,
    SampleChecksumError,
    StructureError,
)
from ffrecord.journal import Entry, Journal, journal_path, partial_path
from ffrecord.locks import open_locked, open_own
from ffrecord.newfile import NewFile, mode_for, sync_folder
from ffrecord.opening import read_header
from ffrecord.recheck import Recheck
from ffrecord.sharing import take_over, whole_blocks

ROOM = 1 << 20
"""In front of the records when their number is not known: 87,380 fit. It is a hole until then."""

MOST_GAP = 16  # a finished file may have one part in so many between its header and its records


def _room(n: int | None) -> int:
    """Where the records of an unfinished file begin."""
    return ROOM if n is None else layout.header_size(n)


def begin(path: str, n: int | None) -> Beginning:
    """Go on with the unfinished file for `path`, or begin one; if `path` is a whole file of `n`
    records already, it stays as it is."""
    unfinished = partial_path(path)
    beside = journal_path(unfinished)
    # Checksums of small records give them away: the journal is for those who may read the file.
    log = Journal(beside, open_locked(beside, mode_for(path) | stat.S_IRUSR | stat.S_IWUSR))
    there = os.path.lexists(unfinished)
    try:
        done = None if there or n is None else finished.begin(path, n)
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


def _refuse_if_finished_since(file: PartialFile, path: str, entries: list[Entry]) -> None:
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


def _resume(file: PartialFile, path: str, content: journal.Content, n: int | None) -> Beginning:
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


def _whole(path: str, content: journal.Content) -> list[Entry]:
    """The entries to go on after: all records in front are read and checked."""
    recheck = Recheck(Source(path, direct=False))

    def verify(number: int, begin: int, entry: Entry) -> None:
        computed = recheck.checksum(begin, entry.end)
        if computed != entry.crc:
            raise SampleChecksumError(path, number, entry.crc, computed)

    return journal.whole(path, content, content.begin, os.path.getsize(path), verify)
