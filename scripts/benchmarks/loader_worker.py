"""One epoch of a loader, inside its fresh process.

1. Warm: the data is read once, through the mount if there is one.
2. A few batches are loaded that do not count: workers have started, everything is imported and
   open. (WebDataset cannot load a given number of batches, so it loads an epoch.)
3. Cold: caches are dropped.
4. The clock starts, and an epoch is requested.

The consumer only takes the batches.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from . import harness, loader_archives, processes
from .decode import Decoder
from .loaders import CONTESTANTS, Orders, Task
from .pictures import PictureSet

if TYPE_CHECKING:
    from .loaders import Loaded

REHEARSAL_BATCHES = 8

Values = dict[str, float]


class WrongSamplesError(Exception):
    """Raised when a contestant does not load every sample once, or not in the requested order."""


def measure(
    *,
    contestant: str,
    root: str,
    point: str,
    mean: int,
    count: int,
    per_class: int,
    batch: int,
    workers: int,
    loops: int,
    cold: bool,
    seed: int,
) -> Values:
    """Return the samples per second of an epoch, and the other figures of the table."""
    taken, data, chosen = PictureSet(mean, count, per_class), Path(root), CONTESTANTS[contestant]
    random = np.random.default_rng(seed)
    order = random.permutation(count)
    rehearsed = random.permutation(count)[: REHEARSAL_BATCHES * batch]
    orders = Orders([rehearsed.tolist(), order.tolist()])
    task = Task(Decoder(loops), orders, taken.labels(), batch, workers)
    source = loader_archives.source(chosen.layout, taken, data)
    with chosen.opened(source, Path(point), taken.path(0)) as opened:
        if not cold:
            harness.read_through(opened if opened.is_dir() else opened.parent)
            harness.sync()
        loader = chosen.loader(opened, task)
        for _ in loader:
            pass
        if cold:
            harness.drop_caches()
        values, seen, read = _clock(loader, count, point)
    if cold:
        values["read_per_byte"] = read / taken.payload(data)
    checksums = taken.checksums(data)
    wanted = checksums[order] if chosen.ordered else np.sort(checksums)
    _check(seen if chosen.ordered else np.sort(seen), wanted)
    return values


def _clock(loader: Loaded, count: int, mark: str) -> tuple[Values, npt.NDArray[np.int64], int]:
    """Time an epoch from its request to its last batch.

    Also return the received checksums, and the bytes that were read from the disk.
    """
    seen: list[int] = []
    first = 0.0
    pids = _serving(mark)
    before, read_before = _cpu_seconds(pids), processes.read_bytes(["self", *pids])
    began = time.perf_counter()
    for checksums, _ in loader:
        first = first or time.perf_counter() - began
        seen += checksums.tolist()
    seconds = time.perf_counter() - began
    cpu = _cpu_seconds(pids) - before
    read = processes.read_bytes(["self", *pids]) - read_before
    values = {
        "samples_per_s": count / seconds,
        "seconds": seconds,
        "first_batch_s": first,
        "cpu_s_per_sample": cpu / count,
    }
    return values, np.array(seen, np.int64), read


def _serving(mark: str) -> list[int]:
    """Return the workers, and the processes that serve the mount at `mark`."""
    workers = [child.pid for child in multiprocessing.active_children() if child.pid is not None]
    return [*workers, *processes.marked(mark)]


def _cpu_seconds(pids: Sequence[int]) -> float:
    return sum(map(processes.cpu_seconds, pids))


def _check(seen: npt.NDArray[np.int64], wanted: npt.NDArray[np.int64]) -> None:
    if not np.array_equal(seen, wanted):
        raise WrongSamplesError(
            f"got {len(seen)} samples, and the sum of their checksums is {seen.sum()}; expected "
            f"{len(wanted)} samples and {wanted.sum()}, in the requested order"
        )
