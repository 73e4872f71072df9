"""Read the unfinished file of a resumable writer, without locks and without writing.

The writer adds the journal entry of a record after the record's bytes, so a record is visible once
its entry is whole. Settled entries never change. A writer that resumes after a crash may cut off
entries that are not settled. If this reader has seen one of those, it raises ChangedError.

A file is finished in one of two ways: the partial file is renamed, or a copy with other offsets
gets the name. A reader recognises both in the same way: the partial file is no longer at its path,
and the target is a new file that begins with the records seen so far.

Use an `UnfinishedFile` from one thread at a time. Any thread may use the tables that it returns.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from ffrecord.disk.source import Source, SourceSet
from ffrecord.errors import ChangedError, FFRecordError, UnfinishedError
from ffrecord.format import journal
from ffrecord.format import records as record_layout
from ffrecord.format.checksum import crc32
from ffrecord.format.journal import JournalEntry, ParsedJournal, journal_path, partial_path
from ffrecord.records.opening import open_files, refuse_other_kinds, sources_for
from ffrecord.records.table import KeptTable
from ffrecord.text import counted

State: TypeAlias = "tuple[int, ...]"

TRIES = 100
"""Attempts to open. A writer that starts or ends during an attempt makes it fail."""

FIRST_ROOM = 1024  # records; doubled when it is full


class UnfinishedFile:
    """Records flushed so far for the file at `path`, until that file is finished.

    `table` has the records found by the last `look`. After unpickling it has exactly the records
    that the pickled reader had: `seen` is their number, and the CRC-32 of their checksums.
    """

    def __init__(
        self, path: str, mode: str, check: bool, seen: tuple[int, int] | None = None,
        memory: int | None = None,
    ) -> None:  # fmt: skip
        self._shown = path
        self._target = os.path.realpath(path)  # writers go through symlinks too
        self._partial = partial_path(self._target)
        self._journal = journal_path(self._partial)
        self._mode = mode
        self._check = check
        self._memory = memory
        self._attempt: _Attempt | None = None
        self._before: State | None = None  # state of the target while the writer was running
        # The last target compared, and the number of records it was compared with.
        self._compared: tuple[State, int] | None = None
        self._finished: KeptTable | None = None
        self.table = self._begin()
        if seen is not None:
            self.table = self._first(*seen)

    @property
    def finished(self) -> bool:
        """True once the table belongs to the finished file and will not grow."""
        return self.table is self._finished

    def look(self) -> None:
        """Update the table with the records added since the last look."""
        if self._finished is not None:
            self.table = self._finished
        elif self._attempt is None or not self.table.n:
            # No record was seen, so none can be gone: a writer may give up and start again.
            with contextlib.suppress(FileNotFoundError):
                self.table = self._begin()
        else:
            try:
                self.table = self._grow(self._attempt)
            except _GoneError:
                self.table = self._finished_since(self.table)

    def _first(self, n: int, crc: int) -> KeptTable:
        """Return a table of the first `n` records if `crc` is the CRC-32 of their checksums."""
        if not _is_first(self.table, n, crc):
            # The file may be finished, and another one started since.
            with contextlib.suppress(FFRecordError, OSError):
                self.table = self._finish(self._open_target())
        table = self.table
        if not _is_first(table, n, crc):
            raise ChangedError(
                f"{self._shown}: its writer started again: the {counted(n, 'record')} that this "
                "reader saw before it was pickled are gone; open it again"
            )
        return self._table_of(table.require_files(), table.checksums[:n], table.offsets[: n + 1])

    # ---- the first look ------------------------------------------------------------------

    def _begin(self) -> KeptTable:
        for _ in range(TRIES):
            with contextlib.suppress(_GoneError):
                return self._try_to_begin()
        raise ChangedError(
            f"{self._shown}: its writer was restarted {TRIES} times while the file was being "
            "opened; open it again when one writer keeps running"
        )

    def _try_to_begin(self) -> KeptTable:
        # Look at the target first: a file that gets the name later has another state.
        before = _state(self._target)
        try:
            refuse_other_kinds(self._partial, "a writer's unfinished file")
            sources = sources_for([self._partial], self._mode)
        except FileNotFoundError:
            return self._without_partial()
        found = _look_at(self._journal)
        size = self._size_of_partial(sources)
        content = self._journal_of(found, size)
        if content is None or (not size and _has_bytes(content)):
            # The writer has not started its journal yet. An earlier one may still exist.
            self._before, self._attempt = before, None
            return self._table_of(sources, np.empty(0, np.uint32), np.zeros(1, np.int64))
        again = _look_at(self._journal, len(content.entries))
        if again is None or again.content is None or again.content.crc != content.crc:
            raise _GoneError
        self._before = before
        assert found is not None
        self._attempt = _Attempt(self._partial, sources, content, self._mode)
        return self._take(self._attempt, found, content, size)

    def _without_partial(self) -> KeptTable:
        now = _state(self._target)
        if now is None or now == self._before:
            why = (
                "neither this file nor an unfinished one of that name exists; a writer with "
                "resumable=True creates one"
            )
            raise FileNotFoundError(errno.ENOENT, why, self._shown)
        return self._finish(self._open_target())

    # ---- later looks ---------------------------------------------------------------------

    def _grow(self, attempt: _Attempt) -> KeptTable:
        found = _look_at(self._journal, attempt.sure, attempt.unsure, attempt.state)
        size = self._size_of_partial(attempt.sources)
        if found is not None and found.state == attempt.state:
            return self._or_finished(self._table_of(attempt.sources, *attempt.columns))
        content = self._journal_of(found, size)
        if content is None or content.crc != attempt.crc:
            raise _GoneError
        assert found is not None
        return self._take(attempt, found, content, size)

    def _take(
        self, attempt: _Attempt, found: _Look, content: ParsedJournal, size: int
    ) -> KeptTable:
        attempt.take(found, content, size)
        return self._or_finished(self._table_of(attempt.sources, *attempt.columns))

    def _table_of(
        self, sources: SourceSet, checksums: record_layout.Checksums, offsets: record_layout.Offsets
    ) -> KeptTable:
        header = record_layout.Header(0, checksums, offsets)  # 0: there is no header checksum yet
        return KeptTable.of(sources, [header], self._shown, self._mode, self._check)

    def _size_of_partial(self, sources: SourceSet) -> int:
        """Return the size of the partial file, or raise _GoneError if it is not at its path.

        The file is opened again, because only that is sure to ask a file server. The status of an
        open file may come from a cache.
        """
        try:
            fd = os.open(self._partial, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except FileNotFoundError:
            raise _GoneError from None
        try:
            found = os.fstat(fd)
        finally:
            os.close(fd)
        if not os.path.samestat(found, os.fstat(sources[0].fd)):
            raise _GoneError
        return found.st_size

    def _journal_of(self, found: _Look | None, size: int) -> ParsedJournal | None:
        """Return the journal of a partial file of `size` bytes; None if it has no header yet.

        Call it only while the partial file is at its path: afterwards the journal may be gone too.
        """
        if found is not None and (found.content is not None or not size):
            return found.content
        what = "missing" if found is None else "damaged"
        raise UnfinishedError(
            f"{self._partial}: its journal is {what}, so its records cannot be found; remove this "
            "file and write it again"
        )

    # ---- the finished file ---------------------------------------------------------------

    def _finished_since(self, seen: KeptTable) -> KeptTable:
        """Return the target if it is a new file that begins with the records seen."""
        if _state(self._target) not in (None, self._before):
            with contextlib.suppress(FileNotFoundError):
                found = self._open_target()
                if _begins_with(found, seen):
                    return self._finish(found)
        raise ChangedError(
            f"{self._shown}: its writer started again or gave up: the {counted(seen.n, 'record')} "
            "that this reader has seen are gone; open it again"
        )

    def _or_finished(self, table: KeptTable) -> KeptTable:
        """Return the target if it is a finished copy of exactly these records; otherwise `table`.

        Both exist if the writer was killed after naming the copy and before removing the partial
        file.
        """
        now = _state(self._target)
        if now is None or self._compared == (now, table.n):
            return table
        self._compared = now, table.n
        # Errors mean that the target is another kind of file, or gone.
        with contextlib.suppress(FFRecordError, OSError):
            if os.stat(self._target).st_mtime_ns > os.stat(self._partial).st_mtime_ns:
                found = self._open_target()
                if found.n == table.n and _begins_with(found, table):
                    return self._finish(found)
        return table

    def _open_target(self) -> KeptTable:
        return open_files([self._target], self._mode, self._check, self._memory)

    def _finish(self, table: KeptTable) -> KeptTable:
        self._finished, self._attempt = table, None
        return table


class _GoneError(Exception):
    """The partial file or its journal was removed or replaced."""


class _Attempt:
    """Records seen so far in the partial file of one writer."""

    def __init__(self, partial: str, sources: SourceSet, content: ParsedJournal, mode: str) -> None:
        self.sources = sources
        self.crc = content.crc
        self.state: State = ()  # state of the journal when all its entries were taken
        self.sure = 0  # entries that never change
        self.unsure = b""  # raw bytes of the later entries that were taken
        self._partial = partial
        self._mode = mode
        self._n = 0
        self._offsets = np.empty(FIRST_ROOM + 1, np.int64)
        self._offsets[0] = content.begin
        self._checksums = np.empty(FIRST_ROOM, np.uint32)

    @property
    def columns(self) -> tuple[record_layout.Checksums, record_layout.Offsets]:
        """All checksums and offsets so far. Taking more entries does not change these views."""
        return self._checksums[: self._n], self._offsets[: self._n + 1]

    def take(self, found: _Look, content: ParsedJournal, size: int) -> None:
        """Take the entries of a journal, from `content.first` on; some may be known already.

        The partial file has `size` bytes.
        """
        first = content.first
        entries = journal.whole(self._partial, content, int(self._offsets[first]), size)
        known = self._n - first
        if entries[:known] != self._taken(first):
            raise ChangedError(
                f"{self._partial}: a writer that resumed after a crash has cut off records that "
                f"this reader has seen, from record {first} on; open it again"
            )
        self._add(entries[known:])
        self._prepare(size)
        sure = max(self.sure, min(content.settled, self._n))
        at = journal.entry_at(self.sure)
        self.unsure = found.raw[journal.entry_at(sure) - at : journal.entry_at(self._n) - at]
        self.sure, self.state = sure, found.state

    def _taken(self, first: int) -> list[JournalEntry]:
        ends = self._offsets[first + 1 : self._n + 1].tolist()
        crcs = self._checksums[first : self._n].tolist()
        return [JournalEntry(end, crc) for end, crc in zip(ends, crcs, strict=True)]

    def _add(self, entries: Sequence[JournalEntry]) -> None:
        n = self._n + len(entries)
        if n > len(self._checksums):
            room = max(n, 2 * len(self._checksums))
            self._offsets = np.resize(self._offsets, room + 1)
            self._checksums = np.resize(self._checksums, room)
        self._offsets[self._n + 1 : n + 1] = [entry.end for entry in entries]
        self._checksums[self._n : n] = [entry.crc for entry in entries]
        self._n = n

    def _prepare(self, size: int) -> None:
        """Prepare the files for reading the records taken so far."""
        if self._mode == "mmap":
            # Map only these records: a writer that resumes may cut off the bytes after them.
            self.sources.map_all(min(size, int(self._offsets[self._n])))
        elif self._mode == "auto" and size and not self.state:
            self.sources[0].read_bytes(0, 1)  # now one page is certainly cached
            self.sources.ask_about_the_cache()


@dataclass(frozen=True, slots=True)
class _Look:
    """A journal as it was found.

    `content` is None if its header is not whole, or if `state` has not changed. `raw` has the bytes
    of the entries that were read.
    """

    state: State
    content: ParsedJournal | None = None
    raw: bytes = b""


def _look_at(path: str, first: int = 0, known: bytes = b"", before: State = ()) -> _Look | None:
    """Read a journal's header and its entries from number `first` on.

    If the entries start with the bytes `known`, only the entries after those are parsed. If the
    state is still `before`, nothing is read. Return None if the journal does not exist.
    """
    try:
        refuse_other_kinds(path, "a journal")
        source = Source(path, direct=False)
    except FileNotFoundError:
        return None
    # Take the state before reading: entries added from now on change it.
    state = _state_of(os.fstat(source.fd))
    if state == before:
        return _Look(state)
    head = source.read_there(0, journal.ENTRIES_AT)
    raw = source.read_there(journal.entry_at(first))
    skip = len(known) if raw.startswith(known) else 0
    at = first + journal.count_in(skip)
    return _Look(state, journal.parse(head + raw[skip:], at), raw)


def _has_bytes(content: ParsedJournal) -> bool:
    """Return True if a journal lists a record that is not empty."""
    return any(entry is not None and entry.end > content.begin for entry in content.entries)


def _is_first(table: KeptTable, n: int, crc: int) -> bool:
    return table.n >= n and crc32(table.checksums[:n].tobytes()) == crc


def _begins_with(found: KeptTable, seen: KeptTable) -> bool:
    return np.array_equal(found.checksums[: seen.n], seen.checksums)


def _state(path: str) -> State | None:
    try:
        return _state_of(os.stat(path))
    except FileNotFoundError:
        return None


def _state_of(found: os.stat_result) -> State:
    """Return numbers that differ once the file is changed or replaced."""
    return (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)
