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
"""Smallest size, in bytes, that needs no unit. A smaller number without a unit is warned about."""

READ_RECORDS = "`ffrecord cat --record N` writes one"
"""Advice for plain records whose last record may be a damaged index of a packed folder."""


def describe_counts(counts: Counts, shards: int = 0) -> str:
    """Return `3 files, 1 folder, 12.0 kB`. Kinds with a count of 0 are left out, except files."""
    numbers = {
        "file": counts.files, "folder": counts.folders, "symlink": counts.symlinks,
        "hard link": counts.hard_links, "shard": shards,
    }  # fmt: skip
    there = [counted(number, kind) for kind, number in numbers.items() if number or kind == "file"]
    return ", ".join([*there, human(counts.bytes)])


def shows_progress(unwanted: bool) -> bool:
    """Return True if a progress bar should be drawn on standard error."""
    return not unwanted and sys.stderr.isatty()


def warn_of_missing_unit(shard_size: str | None) -> None:
    """Warn about a small size without a unit, such as `--shard-size 10`, before the work begins.

    The user probably meant 10GB: shards of 10 bytes have one file each. A small size with a unit,
    such as `20kB`, gives no warning.
    """
    if shard_size is None or not shard_size.strip()[-1:].isdecimal():
        return
    number, size = shard_size.strip(), parse_size(shard_size)
    if size < SMALLEST_LIKELY_SHARD:
        meant = f"did you mean {number}MB or {number}GB?"
        complain(f"--shard-size {number} is {counted(size, 'byte')}; {meant}", warning=True)


@contextlib.contextmanager
def errors_naming(archive: str) -> Iterator[None]:
    """Add the archive's name to errors about paths in it: `photos.ffr: cats: No such file …`."""
    try:
        yield
    except FFRecordError:
        raise
    except OSError as error:
        if error.filename is None:
            raise
        raise OSError(error.errno, error.strerror, f"{archive}: {error.filename}") from error


def refuse_datasets(path: str) -> None:
    """Raise an error if the path is a typed dataset. For commands that take packed folders."""
    if os.path.isdir(path):
        from ffrecord.cli import datasets

        datasets.refuse(path)


def refuse_records_of_datasets(path: str) -> None:
    """Raise an error if the path is a typed dataset. For commands that take one record file."""
    if os.path.isdir(path):
        from ffrecord.cli import datasets

        datasets.refuse_records(path)
