"""Checks and sentences that several commands share."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from ffrecord.archive.counts import Counts
from ffrecord.errors import FFRecordError
from ffrecord.terminal import complain
from ffrecord.text import counted, human, parse_size


def tally(contents: Counts, shards: int = 0) -> str:
    """`3 files, 1 folder, 12.0 kB`: of what there is, but how many files there are in any case."""
    counts = {
        "file": contents.files, "folder": contents.folders, "symlink": contents.symlinks,
        "hard link": contents.hard_links, "shard": shards,
    }  # fmt: skip
    there = [counted(count, kind) for kind, count in counts.items() if count or kind == "file"]
    return ", ".join([*there, human(contents.bytes)])


LEAST_LIKELY = 1_000_000
"""Bytes. Who wants shards that small writes a unit: `20kB`, `100B`."""


def warn_of_bytes(size: str | None) -> None:
    """Before the work begins: `10` for 10GB makes a shard of every file."""
    if size is None or not size.strip()[-1:].isdecimal():
        return
    number, bytes_ = size.strip(), parse_size(size)
    if bytes_ < LEAST_LIKELY:
        meant = f"is a unit missing, as in {number}MB or {number}GB?"
        complain(f"--shard-size {number} is {counted(bytes_, 'byte')}: {meant}", warning=True)


@contextlib.contextmanager
def inside(archive: str) -> Iterator[None]:
    """Have them name both: `photos.ffr: cats: No such file or directory`."""
    try:
        yield
    except FFRecordError:
        raise
    except OSError as error:
        if error.filename is None:
            raise
        raise OSError(error.errno, error.strerror, f"{archive}: {error.filename}") from error


def refuse_datasets(path: str) -> None:
    """An error if that is one, for commands that take packed folders."""
    if os.path.isdir(path):
        from ffrecord.cli import datasets

        datasets.refuse(path)


def refuse_records_of_datasets(path: str) -> None:
    """An error if that is one, for commands that take records: those are in more than one file."""
    if os.path.isdir(path):
        from ffrecord.cli import datasets

        datasets.refuse_records(path)
