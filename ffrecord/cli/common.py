"""Checks, warnings and summaries that several commands share."""

from __future__ import annotations

import argparse
import contextlib
import errno
import os
import sys
from collections.abc import Iterator

from ffrecord.archive.counts import Counts
from ffrecord.archive.index import Index
from ffrecord.errors import FFRecordError
from ffrecord.remote.options import CACHE, CACHE_SIZE
from ffrecord.remote.urls import is_url, shown
from ffrecord.text import counted, human

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


@contextlib.contextmanager
def caching(options: argparse.Namespace) -> Iterator[None]:
    """Let `--cache` and `--cache-size` hold for everything that the command opens.

    The environment is used, because datasets and conversions open many files in many places.
    """
    given = vars(options)
    words = [word for value in given.values() for word in (value if _is_list(value) else [value])]
    if options.command != "cache" and not any(map(is_url, words)):
        options.parser.error("--cache and --cache-size are for URLs, and no URL was given")
    sizes = str(given["cache_size"]) if given.get("cache_size") else None
    wanted = {CACHE: given["cache"], CACHE_SIZE: sizes}
    before = {name: os.environ.get(name) for name in wanted}
    try:
        os.environ.update({name: value for name, value in wanted.items() if value is not None})
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


def _is_list(value: object) -> bool:
    return isinstance(value, list)


@contextlib.contextmanager
def errors_naming(
    archive: str, index: Index, path: str, options: argparse.Namespace
) -> Iterator[None]:
    """Add the archive's name to errors about a path in it: `photos.ffr: cats: No such file …`.

    If the path does not exist, add a hint that fits the options of the command.
    """
    archive = shown(archive)  # a URL may contain a signature
    try:
        yield
    except FFRecordError:
        raise
    except OSError as error:
        if error.filename is None:
            raise
        why = error.strerror
        if error.errno == errno.ENOENT:
            from ffrecord.cli.missing import explain  # needed only here

            why = explain(archive, index, path, options)
        raise OSError(error.errno, why, f"{archive}: {error.filename}") from error


def refuse_dash(options: argparse.Namespace, out: str) -> None:
    """End with an error if the file to write is `-`: archives do not go to standard output."""
    if out == "-":
        what = "- would be a file of this name, because archives are not written to standard output"
        options.parser.error(f"{what}; name a file, or write ./-")


def refuse_datasets(path: str) -> None:
    """Raise an error if the path is a typed dataset. For commands that take packed folders."""
    if os.path.isdir(path) or is_url(path):
        from ffrecord.cli import datasets

        datasets.refuse(path)


def refuse_records_of_datasets(path: str) -> None:
    """Raise an error if the path is a typed dataset. For commands that take one record file."""
    if os.path.isdir(path) or is_url(path):
        from ffrecord.cli import datasets

        datasets.refuse_records(path)
