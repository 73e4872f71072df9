"""Checks, warnings and summaries that several commands share."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator

from ffrecord.archive.counts import Counts
from ffrecord.errors import FFRecordError
from ffrecord.terminal import complain
from ffrecord.text import counted, human, parse_size

SMALLEST_LIKELY_SHARD = 1_000_000
"""Bytes. For smaller shards a unit has to be written: `20kB`, `100B`."""


def describe_counts(counts: Counts, shards: int = 0) -> str:
    """Return `3 files, 1 folder, 12.0 kB`: kinds that there are none of are left out, but files."""
    numbers = {
        "file": counts.files, "folder": counts.folders, "symlink": counts.symlinks,
        "hard link": counts.hard_links, "shard": shards,
    }  # fmt: skip
    there = [counted(number, kind) for kind, number in numbers.items() if number or kind == "file"]
    return ", ".join([*there, human(counts.bytes)])


def shows_progress(unwanted: bool) -> bool:
    """Return whether to draw a progress bar, which is on standard error."""
    return not unwanted and sys.stderr.isatty()


def warn_of_missing_unit(shard_size: str | None) -> None:
    """Warn before the work begins: `10` for 10GB makes a shard of every file."""
    if shard_size is None or not shard_size.strip()[-1:].isdecimal():
        return
    number, size = shard_size.strip(), parse_size(shard_size)
    if size < SMALLEST_LIKELY_SHARD:
        meant = f"is a unit missing, as in {number}MB or {number}GB?"
        complain(f"--shard-size {number} is {counted(size, 'byte')}: {meant}", warning=True)


@contextlib.contextmanager
def errors_naming(archive: str) -> Iterator[None]:
    """Name the archive in errors about paths in it: `photos.ffr: cats: No such file …`."""
    try:
        yield
    except FFRecordError:
        raise
    except OSError as error:
        if error.filename is None:
            raise
        raise OSError(error.errno, error.strerror, f"{archive}: {error.filename}") from error


def refuse_datasets(path: str) -> None:
    """Raise an error for a typed dataset, in commands that take packed folders."""
    if os.path.isdir(path):
        from ffrecord.cli import datasets

        datasets.refuse(path)


def refuse_records_of_datasets(path: str) -> None:
    """Raise an error for a typed dataset, in commands that take one file of records."""
    if os.path.isdir(path):
        from ffrecord.cli import datasets

        datasets.refuse_records(path)
