"""`ffrecord verify FILE…`: check every checksum of every file, on all cores.

For a packed folder, also check that its index is consistent, that its block checksums agree with
its records, and that the index for the original FFRecord (if present) agrees with it. For a typed
dataset, also check that its files were written together.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ffrecord.archive.names import json_facts
from ffrecord.archive.owners import NO_PATHS, Paths, RecordNames
from ffrecord.cli.common import READ_RECORDS, shows_progress
from ffrecord.dataset import folders
from ffrecord.errors import FFRecordError
from ffrecord.records.damage import find_damage
from ffrecord.records.reader import FileReader
from ffrecord.remote.urls import is_url
from ffrecord.remote.urls import shown as displayed
from ffrecord.terminal import EXIT_DAMAGED, EXIT_SYSTEM, printable
from ffrecord.text import counted, for_shell


def run(options: argparse.Namespace) -> int:
    """Check all files, even after one that is damaged."""
    say = (lambda line: None) if options.json else _say  # --json prints one object at the end
    shown = shows_progress(options.no_progress)
    paths = [part for path in options.file for part in folders.parts(path)]
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
    verdict = _Verdict(displayed(path))
    try:
        _check(path, verdict, shown, say)
    except BrokenPipeError:
        raise
    except FFRecordError as error:
        say(f"BAD: {for_shell(error)}")
        verdict.add(error)
    except OSError as error:
        verdict.not_read = for_shell(error.strerror or error)
        say(f"{verdict.path}: NOT READ: {verdict.not_read}")
    return verdict


def _check(path: str, verdict: _Verdict, shown: bool, say: Callable[[str], None]) -> None:
    files: str | list[str] = path
    if folders.is_dataset(path):
        folders.check(path)
        files = folders.files(path) if is_url(path) else path
    with FileReader(files) as reader:
        names = RecordNames(reader, READ_RECORDS)
        verdict.records, verdict.names = reader.n, names.count
        if names.problem is not None:
            say(f"BAD: {for_shell(names.problem)}")
            verdict.add(names.problem)
        for record, error in find_damage(reader, shown):
            paths, error = names.of(record), names.narrowed(record, error)
            say(f"BAD: {error}{paths}")
            verdict.add(error, record, paths)
        found = len(verdict.problems)
        summary = f"{found:,} damaged of" if found else "OK,"
        of_names = "" if names.count is None else f", {counted(names.count, 'name')}"
        say(f"{verdict.path}: {summary} {counted(reader.n, 'record')}{of_names}")


def _say(line: str) -> None:
    print(printable(line), flush=True)
