"""`ffrecord verify FILE…`: check every checksum of every file, on all cores.

For a packed folder, also check that its index is consistent, that its block checksums agree with
its records, and that the index for the original FFRecord (if present) agrees with it. For a typed
dataset, also check that its files were written together.
"""

from __future__ import annotations

import argparse
import json
import os
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np

from ffrecord.aliases import Ints
from ffrecord.archive.archive import Archive
from ffrecord.archive.audit import audit, shown_path
from ffrecord.archive.detect import open_if_packed
from ffrecord.archive.names import json_facts, to_text
from ffrecord.cli import datasets
from ffrecord.cli.common import READ_RECORDS, shows_progress
from ffrecord.errors import FFRecordError, SampleChecksumError
from ffrecord.progress import bar
from ffrecord.records.reader import STEP_BYTES, STEP_RECORDS, FileReader
from ffrecord.terminal import EXIT_DAMAGED, EXIT_SYSTEM, printable
from ffrecord.text import counted, for_shell

Damage: TypeAlias = "tuple[int, FFRecordError]"

UNUSED = " (padding, or left over: no file uses this record)"
SHOWN_PATHS = 3  # paths printed for one damaged record, which thousands of files can share


@dataclass(frozen=True, slots=True)
class Paths:
    """Paths of the files whose content is one record: the first few, and the number of others.

    `is_unused` is True for padding, and for any other record that is the content of no file.
    """

    shown: tuple[str, ...] = ()
    more: int = 0
    is_unused: bool = False

    def __str__(self) -> str:
        """Return ` (its/path)`, to append to a message."""
        if not self.shown:
            return UNUSED if self.is_unused else ""
        return f" ({', '.join(self.shown)}{f' and {self.more:,} more' if self.more else ''})"


NO_PATHS = Paths()


def run(options: argparse.Namespace) -> int:
    """Check all files, even after one that is damaged."""
    say = (lambda line: None) if options.json else _say  # --json prints one object at the end
    shown = shows_progress(options.no_progress)
    paths = [part for path in options.file for part in datasets.parts(path)]
    verdicts = [_verify(path, shown, say) for path in paths]
    if options.json:
        ok = all(verdict.is_ok for verdict in verdicts)
        facts = {"ok": ok, "files": [verdict.facts() for verdict in verdicts]}
        print(json.dumps(facts, indent=2))
    codes = {verdict.code for verdict in verdicts}
    # Damage takes precedence over an unreadable file: a script asks `verify` about damage.
    return next((code for code in (EXIT_DAMAGED, EXIT_SYSTEM) if code in codes), 0)


@dataclass(slots=True)
class _Verdict:
    """Result of checking one file."""

    path: str
    records: int | None = None
    names: int | None = None
    problems: list[dict[str, Any]] = field(default_factory=list)
    not_read: str | None = None

    @property
    def is_ok(self) -> bool:
        return not self.problems and self.not_read is None

    @property
    def code(self) -> int:
        if self.problems:
            return EXIT_DAMAGED
        return 0 if self.not_read is None else EXIT_SYSTEM

    def add(self, error: FFRecordError, record: int | None = None, paths: Paths = NO_PATHS) -> None:
        problem: dict[str, Any] = {"error": type(error).__name__, "message": for_shell(error)}
        if record is not None:
            problem["record"] = record
            problem["paths"] = [json_facts("path", path) for path in paths.shown]
            problem["more_paths"] = paths.more
        self.problems.append(problem)

    def facts(self) -> dict[str, Any]:
        verdict = "ok" if self.is_ok else "damaged" if self.problems else "not read"
        return {
            **json_facts("file", self.path), "verdict": verdict, "records": self.records,
            "names": self.names, "problems": self.problems, "not_read": self.not_read,
        }  # fmt: skip


def _verify(path: str, shown: bool, say: Callable[[str], None]) -> _Verdict:
    verdict = _Verdict(path)
    try:
        _check(verdict, shown, say)
    except BrokenPipeError:
        raise
    except FFRecordError as error:
        say(f"BAD: {for_shell(error)}")
        verdict.add(error)
    except OSError as error:
        verdict.not_read = for_shell(error.strerror or error)
        say(f"{path}: NOT READ: {verdict.not_read}")
    return verdict


def _check(verdict: _Verdict, shown: bool, say: Callable[[str], None]) -> None:
    if datasets.is_dataset(verdict.path):
        datasets.check(verdict.path)
    with FileReader(verdict.path) as reader:
        names = _Names(reader)
        verdict.records, verdict.names = reader.n, names.count
        if names.problem is not None:
            say(f"BAD: {for_shell(names.problem)}")
            verdict.add(names.problem)
        for record, error in _damage(reader, shown):
            paths, error = names.of(record), names.narrowed(record, error)
            say(f"BAD: {error}{paths}")
            verdict.add(error, record, paths)
        found = len(verdict.problems)
        summary = f"{found:,} damaged of" if found else "OK,"
        of_names = "" if names.count is None else f", {counted(names.count, 'name')}"
        say(f"{verdict.path}: {summary} {counted(reader.n, 'record')}{of_names}")


class _Names:
    """Index of a packed folder: the paths of a record's files, and the checks of the index."""

    def __init__(self, reader: FileReader) -> None:
        self.problem: FFRecordError | None = None
        self.count: int | None = None
        self._archive: Archive | None = None
        try:
            self._archive = archive = open_if_packed(reader, READ_RECORDS)
            if archive is not None:
                self.count = len(archive.index.tables.entries)
                audit(archive)
        except FFRecordError as error:
            self.problem = error

    def of(self, record: int) -> Paths:
        """Return the paths of the files whose content is this record."""
        if self._archive is None:
            return NO_PATHS
        index, inodes = self._archive.index, self._inodes(record)
        shown = [
            to_text(shown_path(index, index.parent(inode), index.last_name(inode)))
            for inode in inodes[:SHOWN_PATHS].tolist()
        ]
        is_index = record == self._archive.reader.n - 1
        return Paths(tuple(shown), len(inodes) - len(shown), not shown and not is_index)

    def narrowed(self, record: int, error: FFRecordError) -> FFRecordError:
        """Return the error of the first damaged block, if the record is a large file.

        Readers of the file get that error too. For other records, return `error` itself.
        """
        archive = self._archive
        if archive is None or self.problem is not None:
            return error
        inodes = self._inodes(record)[:1].tolist()
        has_blocks = any(archive.index.block_checksums(inode) is not None for inode in inodes)
        if not has_blocks or not isinstance(error, SampleChecksumError):
            return error
        try:
            deque(archive.stream(inodes[0]), maxlen=0)
        except SampleChecksumError as narrower:
            return narrower
        except FFRecordError:  # the file has become unreadable in the meantime
            return error
        return error

    def _inodes(self, record: int) -> Ints:
        """Return the inodes whose content is this record."""
        inodes, records = self._by_record
        first, last = records.searchsorted([record, record + 1]).tolist()
        return inodes[first:last]

    @cached_property
    def _by_record(self) -> tuple[Ints, Ints]:
        """All inodes sorted by their records, and these records."""
        assert self._archive is not None
        index = self._archive.index
        records = index.records(np.arange(len(index)))
        inodes = np.argsort(records, kind="stable")
        return inodes, records[inodes]


def _say(line: str) -> None:
    print(printable(line), flush=True)


def _damage(reader: FileReader, shown: bool) -> Iterator[Damage]:
    """Yield the damaged records, in order.

    Threads use all cores, because checksums release the GIL.
    """
    cores = len(os.sched_getaffinity(0))
    waiting: deque[tuple[int, Future[list[Damage]]]] = deque()
    with (
        ThreadPoolExecutor(cores) as pool,
        bar(shown=shown, total=reader.n, unit=" records", unit_scale=True, leave=False) as drawn,
    ):
        for records in reader.tasks(STEP_RECORDS, STEP_BYTES):
            damaged = pool.submit(reader.find_damaged, records.start, records.stop)
            waiting.append((len(records), damaged))
            while len(waiting) > 2 * cores:
                yield from _next(waiting, drawn)
        while waiting:
            yield from _next(waiting, drawn)


def _next(waiting: deque[tuple[int, Future[list[Damage]]]], drawn: Any) -> list[Damage]:
    count, future = waiting.popleft()
    damage = future.result()
    drawn.update(count)
    return damage
