"""`ffrecord verify FILE…`: every checksum of every file, on all cores.

Of a packed folder also its index: that it makes sense, that its checksums of blocks belong to its
records, and that the index for the original FFRecord, if there is one, says the same. Of a typed
dataset also that its files are those it was written with.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import sys
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from tqdm import tqdm

from ffrecord.archive import Archive
from ffrecord.audit import audit, shown_path
from ffrecord.dataset.reader import DatasetReader
from ffrecord.dataset.sharded import SHARD_NAME
from ffrecord.dataset.spec import SEQUENCE, SPEC_NAME, load
from ffrecord.errors import DatasetError, FFRecordError, NotPackedFolderError
from ffrecord.names import to_text
from ffrecord.reader import FileReader
from ffrecord.terminal import EXIT_DAMAGED, EXIT_SYSTEM, counted, printable

Ints: TypeAlias = npt.NDArray[np.int64]
Damage: TypeAlias = "tuple[int, FFRecordError]"

SHOWN_PATHS = 3


def add_command(commands: Any) -> None:
    parser = commands.add_parser("verify", help="check every checksum; exit 1 if one is wrong")
    parser.add_argument(
        "file", nargs="+", help="record files, packed folders, folders of shards, datasets"
    )
    parser.add_argument("--no-progress", action="store_true", help="no progress bar")
    parser.set_defaults(run=run, more_paths="file")


def run(options: argparse.Namespace) -> int:
    """All files are looked at, also after one that is damaged."""
    paths = [part for path in options.file for part in _parts(path)]
    codes = {_verify(path, options.no_progress) for path in paths}
    # Damage is what was asked for: it is not hidden by a file that could not be read.
    return next((code for code in (EXIT_DAMAGED, EXIT_SYSTEM) if code in codes), 0)


def _parts(path: str) -> list[str]:
    """The shards of a sharded dataset, each of which is a dataset; else the path itself."""
    shards: list[str] = []
    with contextlib.suppress(OSError):  # what cannot be listed is told of when its turn comes
        if os.path.isdir(path) and not _is_dataset(path):
            shards = sorted(name for name in os.listdir(path) if re.fullmatch(SHARD_NAME, name))
    return [os.path.join(path, name) for name in shards] or [path]


def _is_dataset(path: str) -> bool:
    return os.path.isfile(os.path.join(path, SPEC_NAME))


def _check_dataset(path: str) -> None:
    """Whether its spec and its files belong together. Values are not decoded."""
    texts = [text.removesuffix(SEQUENCE) for text in load(path).spec.values()]
    types = {text.rpartition("+")[0] or text for text in texts}
    try:
        DatasetReader(path, dict.fromkeys(types, bytes)).close()
    except FileNotFoundError as error:
        raise DatasetError(f"{error.filename}: this file of the dataset is missing") from None


def _verify(path: str, no_progress: bool) -> int:
    damaged = 0
    try:
        if _is_dataset(path):
            _check_dataset(path)
        with FileReader(path) as reader:
            names = _Names(reader)
            if names.problem is not None:
                _say(f"BAD: {names.problem}")
                damaged += 1
            for record, error in _damage(reader, quiet=no_progress or not sys.stderr.isatty()):
                _say(f"BAD: {error}{names.of(record)}")
                damaged += 1
            verdict = f"{damaged} damaged of" if damaged else "OK,"
            _say(f"{path}: {verdict} {reader.n} records{names.summary}")
    except BrokenPipeError:
        raise
    except FFRecordError as error:
        _say(f"BAD: {error}")
        return EXIT_DAMAGED
    except OSError as error:
        _say(f"{path}: NOT READ: {error.strerror or error}")
        return EXIT_SYSTEM
    return EXIT_DAMAGED if damaged else 0


class _Names:
    """What a packed folder's index adds: which files a record is, and its own checks."""

    def __init__(self, reader: FileReader) -> None:
        self.problem: FFRecordError | None = None
        self.summary = ""
        self._archive: Archive | None = None
        try:
            self._archive = archive = Archive(reader)
            self.summary = f", {counted(len(archive.index.tables.entries), 'name')}"
            audit(archive)
        except NotPackedFolderError:
            pass
        except FFRecordError as error:
            self.problem = error

    def of(self, record: int) -> str:
        """` (its/path)` for a file's record; of many paths the first few."""
        if self._archive is None:
            return ""
        index, (inodes, records) = self._archive.index, self._by_record
        first, last = records.searchsorted([record, record + 1]).tolist()
        paths = [
            to_text(shown_path(index, index.parent(inode), index.last_name(inode)))
            for inode in inodes[first : min(last, first + SHOWN_PATHS)].tolist()
        ]
        more = last - first - len(paths)
        return f" ({', '.join(paths)}{f' and {more} more' if more else ''})" if paths else ""

    @cached_property
    def _by_record(self) -> tuple[Ints, Ints]:
        """All inodes in the order of their records, and those."""
        assert self._archive is not None
        index = self._archive.index
        records = index.records(np.arange(len(index)))
        inodes = np.argsort(records, kind="stable")
        return inodes, records[inodes]


def _say(line: str) -> None:
    print(printable(line), flush=True)


def _damage(reader: FileReader, quiet: bool) -> Iterator[Damage]:
    """What is damaged, in order. Checksums release the GIL, so threads use all cores."""
    cores = len(os.sched_getaffinity(0))
    waiting: deque[tuple[int, Future[list[Damage]]]] = deque()
    with (
        ThreadPoolExecutor(cores) as pool,
        tqdm(total=reader.n, unit=" records", unit_scale=True, leave=False, disable=quiet) as bar,
    ):
        for start, stop in reader.steps():
            waiting.append((stop - start, pool.submit(reader.find_damaged, start, stop)))
            while len(waiting) > 2 * cores:
                yield from _next(waiting, bar)
        while waiting:
            yield from _next(waiting, bar)


def _next(waiting: deque[tuple[int, Future[list[Damage]]]], bar: Any) -> list[Damage]:
    count, future = waiting.popleft()
    damage = future.result()
    bar.update(count)
    return damage
