"""The measurements of `remote`, each inside its fresh process.

An epoch's clock runs from the opening of the data. Libraries are loaded before. The object itself
is in the page cache of the server.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from . import batches, memory, remote_archives, remote_readers
from .datasets import RecordSet
from .read_worker import check, rates
from .remote_loaders import CONTESTANTS, Site, Task, checksum
from .remote_server import Server

if TYPE_CHECKING:
    from .remote_loaders import Loaded

UNTIMED_BATCHES = 2

LATER = 2.0
"""Seconds of epochs after the first one. From the local disk, one epoch takes 0.2 s."""

MB = 1e6

Values = dict[str, float]


class WrongRecordsError(Exception):
    """Raised when a contestant does not load every record."""


def epochs(
    *, contestant: str, url: str, answers: str, root: str, name: str, mean: int, count: int,
    batch: int, workers: int, seed: int, budget: float,
) -> Values:  # fmt: skip
    """Return the figures of the first epoch of a loader, and of the next ones.

    An epoch that takes longer than `budget` is stopped, and is then the only one.
    """
    records, chosen = RecordSet(name, mean, count), CONTESTANTS[contestant]
    server = Server(url, url, Path(answers))
    with _site(server, Path(root)) as site:
        chosen.prepare()
        before = server.counted()
        began = time.perf_counter()
        loader = chosen.loader(site, Task(records, batch, workers, seed))
        seen, first, seconds = _epoch(loader, began, budget)
        after = server.counted()
        values = {
            "share": len(seen) / count,
            "first_batch_s": first,
            # An epoch that was stopped has no speed that could be compared.
            "samples_per_s" if seconds < budget else "part_per_s": len(seen) / seconds,
            "requests": (after[0] - before[0]) / len(seen),
            "bytes": (after[1] - before[1]) / (mean * len(seen)),
        }
        if seconds < budget:
            every = {checksum(record) for record in records.records()}
            _check(seen, every)
            loaded, seconds = 0, 0.0
            while seconds < LATER:
                seen, _, taken = _epoch(loader, time.perf_counter(), budget)
                _check(seen, every)
                loaded, seconds = loaded + len(seen), seconds + taken
            values["second_samples_per_s"] = loaded / seconds
            values["second_requests"] = (server.counted()[0] - after[0]) / loaded
    return values


def random_batches(
    *, reader: str, url: str, answers: str, root: str, name: str, mean: int, count: int,
    batch: int, seed: int, budget: float, most_batches: int,
) -> Values:  # fmt: skip
    """Return the figures of random batches, of which the next is requested when one is there."""
    records, chosen = RecordSet(name, mean, count), remote_readers.READERS[reader]
    server = Server(url, url, Path(answers))
    batch = min(batch, chosen.most)
    order = batches.shuffled(count, batch, seed)[: most_batches + UNTIMED_BATCHES]
    with _site(server, Path(root)) as site:
        stream = chosen.open(site, records, order.tolist())
        batches.exhaust(stream(order[:UNTIMED_BATCHES].tolist()))
        timed = order[UNTIMED_BATCHES:].tolist()
        before = server.counted()
        done, seconds, last = batches.clock(stream(timed), budget)
        after = server.counted()
    check(last, timed[done - 1], records)
    read = np.array(timed[:done])
    return {
        **rates(read, seconds, records),
        "requests": (after[0] - before[0]) / read.size,
        "bytes": (after[1] - before[1]) / float(records.lengths()[read].sum()),
    }


def capacity(*, url: str, root: str, name: str, mean: int, count: int, requests: int) -> Values:
    """Return the requests per second that the server answers to obstore, without any delay."""
    with _site(Server(url, url, Path()), Path(root)):
        answered = remote_readers.hammer(RecordSet(name, mean, count), requests)
    return {"records_per_s": answered, "bytes_per_s": answered * mean}


def peak_memory(*, url: str, root: str, file: str, batch: int, number: int, seed: int) -> Values:
    """Return the peak memory of a process that reads random batches, and neighbours, of an object.

    `number` batches are read at random, and as many records in order.
    """
    from ffrecord import FileReader

    with _site(Server(url, url, Path()), Path(root)):
        reader = FileReader(f"s3://{remote_archives.BUCKET}/{file}")
        opened = memory.peak()
        drawn = np.random.default_rng(seed)
        for _ in range(number):
            reader.read(drawn.integers(0, reader.n, batch))
        for first in range(0, number * batch, batch):
            reader.read(range(first, first + batch))
    return {"opened_mb": opened / MB, "peak_mb": memory.peak() / MB, "records": reader.n}


@contextmanager
def _site(server: Server, root: Path) -> Iterator[Site]:
    scratch = Path(tempfile.mkdtemp(dir=root))
    site = Site(server.url, root, scratch)
    site.enter()
    try:
        yield site
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _epoch(loader: Loaded, began: float, budget: float) -> tuple[list[int], float, float]:
    """Return the received checksums, and the seconds to the first batch and to the last one."""
    seen: list[int] = []
    first = now = 0.0
    for each in loader:
        now = time.perf_counter() - began
        first = first or now
        seen += each.tolist()
        if now >= budget:
            break
    return seen, first, now


def _check(seen: list[int], every: set[int]) -> None:
    """Compare the received checksums with those of the written records.

    Loaders may repeat a few records, to give all workers the same number.
    """
    if set(seen) != every or len(seen) > 1.1 * len(every):
        raise WrongRecordsError(
            f"{len(seen):,} records came, {len(every & set(seen)):,} of the {len(every):,}"
        )
