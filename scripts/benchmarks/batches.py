"""Batches of random indices, and the clock around a contestant that reads them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

Batch = TypeVar("Batch")
Arriving = TypeVar("Arriving", covariant=True)


class Pending(Protocol[Arriving]):
    """A batch that is being read."""

    def result(self) -> Arriving:
        """Wait for the batch and return it."""
        ...


def whole_batches(indices: npt.NDArray[np.int64], batch: int) -> npt.NDArray[np.int64]:
    """Return one batch per row; a remainder at the end is left out."""
    return indices[: len(indices) - len(indices) % batch].reshape(-1, batch)


def shuffled(count: int, batch: int, seed: int) -> npt.NDArray[np.int64]:
    """Return every index at most once, in random order, one batch per row."""
    return whole_batches(np.random.default_rng(seed).permutation(count), batch)


def one_ahead(
    begin: Callable[[list[int]], Pending[Batch]], batches: Iterable[list[int]]
) -> Iterator[Batch]:
    """Read batches, and start each one before the previous one is handed out."""
    handles = map(begin, batches)
    pending = next(handles)
    try:
        for following in handles:
            current, pending = pending, following
            yield current.result()
    finally:
        last = pending.result()
    yield last


def exhaust(batches: Iterable[Any]) -> None:
    """Read batches, and drop each one."""
    for _ in batches:
        pass


def clock(batches: Iterable[Batch], budget: float) -> tuple[int, float, Batch]:
    """Take batches as a training loop does: keep each one until the next one arrives.

    Returns their number, the seconds they took, and the last batch.
    """
    start = now = time.perf_counter()
    done = 0
    for batch in batches:
        last = batch
        done += 1
        now = time.perf_counter()
        if now - start >= budget:
            break
    return done, now - start, last
