"""Unfinished files of resumable writers, and readers that follow them."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ffrecord import FileReader, FileWriter
from ffrecord.format.journal import journal_path, partial_path
from tests.support import handmade

RECORDS = handmade.random_records([5, 0, 3000, 1, 70_000, 0, 12, 4096, 1])
COUNTS = [None, len(RECORDS)]


def data_of(path: Path) -> Path:
    return Path(partial_path(os.fspath(path)))


def journal_of(path: Path) -> Path:
    return Path(journal_path(os.fspath(data_of(path))))


def flushed(path: Path, records: list[bytes], n: int | None = None) -> FileWriter:
    """Return an open writer that has flushed these records one by one."""
    writer = FileWriter(path, n, resumable=True)
    for record in records[writer.count :]:
        writer.write_one(record)
        writer.flush()
    return writer


def interrupted(path: Path, records: list[bytes], n: int | None = None) -> None:
    """Leave an unfinished file, as a writer that was killed after flushing these records does."""
    writer = flushed(path, records, n)
    writer._file.abandon()


def follow(path: Path, **options: Any) -> FileReader:
    return FileReader(path, unfinished=True, **options)


def all_of(reader: FileReader) -> list[bytes]:
    return handmade.as_bytes(reader)


def add(writer: FileWriter, *records: bytes) -> Callable[[], None]:
    def flush() -> None:
        writer.write(records)
        writer.flush()

    return flush
