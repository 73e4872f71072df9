"""Batches that a worker will get, and the decision how many of them are read at a time.

One batch ahead is enough if its requests keep the disk busy. A disk that answers late, such as a
network file system, needs more requests in flight than a small batch has. So each batch that had to
wait for the disk adds one, within limits of requests and memory.
"""

from __future__ import annotations

import contextlib
from collections import deque
from typing import Any, Protocol

from torch.utils.data import get_worker_info

from ffrecord.disk.tally import TALLY
from ffrecord.errors import FFRecordError
from ffrecord.machine import memory

MOST_AHEAD = 8  # batches
ENOUGH_READS = 256  # in flight for any disk; `fetch.WINDOW_READS` is the same for plain reads
MOST_MEMORY = 256 << 20  # bytes of a worker's batches in flight: as many as `slabs` keeps
MEMORY_SHARE = 1 / 8  # of the available memory, for the batches in flight of all workers
ALONE = 8 << 20
"""Bytes from which the first batch is read alone. The next one would take half of the bandwidth, so
the first one would come twice as late."""

LATE = 0.001  # seconds of waiting for the disk that are worth another batch in flight


class Readable(Protocol):
    """A dataset that can read ahead."""

    def prefetch(self, indices: list[int]) -> None: ...
    def drop_prefetched(self) -> None: ...


class Lookahead:
    """The next batches of one worker, in order. The first `_begun` of them are being read."""

    def __init__(self) -> None:
        self._next: deque[list[Any]] = deque()
        self._begun = 0
        self._depth = 1
        self._reads = self._size = 0  # of the batch that was begun last
        self._was_early = False  # True if the present batch was begun at an earlier turn
        self._waited = 0.0  # `TALLY.waited` at the present turn

    def turn_to(
        self, dataset: Readable, batch: list[Any], following: list[list[Any]] | None
    ) -> None:
        """Begin to read the batches after `batch`. `following` are further ones to come."""
        waited, self._waited = TALLY.waited - self._waited, TALLY.waited
        if self._was_early and waited >= LATE:
            self._go_deeper()
        is_first = not self._next or self._next[0] != batch
        self._was_early = self._take(dataset, batch)
        self._next.extend(following or ())
        if self._next and not self._was_early:
            self._begin(dataset, list(batch))  # before the next batches: it is needed first
            if is_first and self._size >= ALONE:
                return
        for place in range(self._begun, min(self._depth, len(self._next))):
            self._begin(dataset, self._next[place])
            self._begun += 1

    def _take(self, dataset: Readable, batch: list[Any]) -> bool:
        """Remove the present batch, and return True if it is being read."""
        if self._next and self._next[0] == batch:
            self._next.popleft()
            begun, self._begun = self._begun > 0, max(self._begun - 1, 0)
            return begun
        if self._begun:
            dataset.drop_prefetched()  # the program left an epoch early
        self._next.clear()
        self._begun = 0
        return False

    def _go_deeper(self) -> None:
        """Read one batch more at a time, if enough memory is available."""
        worker = get_worker_info()
        share = MEMORY_SHARE / (1 if worker is None else worker.num_workers)
        allowed = min(MOST_MEMORY, int(memory.available() * share)) // max(self._size, 1)
        enough = -(-ENOUGH_READS // max(self._reads, 1))
        self._depth = max(1, min(self._depth + 1, enough, allowed, MOST_AHEAD))

    def _begin(self, dataset: Readable, batch: list[Any]) -> None:
        reads, size = TALLY.missed, TALLY.memory
        # Errors in this batch, or keys that are not indices, are raised when it is read.
        with contextlib.suppress(FFRecordError, OSError, LookupError, TypeError, ValueError):
            dataset.prefetch(batch)
        self._reads, self._size = TALLY.missed - reads, TALLY.memory - size
