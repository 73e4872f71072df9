"""`ffrecord verify FILE…`: every checksum of every file, on all cores."""

from __future__ import annotations

import argparse
import os
import sys
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeAlias

from tqdm import tqdm

from ffrecord.errors import FFRecordError
from ffrecord.reader import FileReader

Damage: TypeAlias = "tuple[int, FFRecordError]"

EXIT_DAMAGED = 1
EXIT_SYSTEM = 13


def add_command(commands: Any) -> None:
    parser = commands.add_parser("verify", help="check every checksum; exit 1 if one is wrong")
    parser.add_argument("file", nargs="+", help="record files, or folders of them")
    parser.add_argument("--no-progress", action="store_true", help="no progress bar")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """All files are looked at, also after one that is damaged."""
    worst = 0
    for path in options.file:
        try:
            worst = max(worst, _verify(path, options.no_progress))
        except FFRecordError as error:
            print(f"BAD: {error}")
            worst = max(worst, EXIT_DAMAGED)
        except OSError as error:
            print(f"{path}: NOT READ: {error.strerror or error}")
            worst = max(worst, EXIT_SYSTEM)
    return worst


def _verify(path: str, no_progress: bool) -> int:
    with FileReader(path) as reader:
        damaged = 0
        for _, error in _damage(reader, quiet=no_progress or not sys.stderr.isatty()):
            print(f"BAD: {error}", flush=True)
            damaged += 1
        verdict = f"{damaged} damaged of" if damaged else "OK,"
        print(f"{path}: {verdict} {reader.n} records")
    return EXIT_DAMAGED if damaged else 0


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
