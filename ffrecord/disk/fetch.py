"""Do the reads of a plan in the fastest way, and in another way if that fails.

Cached reads are copied out of the page cache with one io_submit. Other reads use AIO with O_DIRECT,
which bypasses the cache. If the kernel refuses a read, ends it short or fails it, the rest is read
with a plain `preadv`; only a failure of that is an error. Without an AIO context all reads are
plain, after `posix_fadvise` has let the disk start on them.

A `Fetch` belongs to one thread at a time. `Source`s are shared by all threads.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from ffrecord.aliases import Bytes, Ints
from ffrecord.disk import aio
from ffrecord.disk.aio_queue import AioQueue, bytes_got
from ffrecord.disk.extents import Plan
from ffrecord.disk.source import Source, SourceSet

# The window: how much `read` keeps in flight. (`read_async` submits everything at once.) A virtual
# disk reports completions when its queue runs empty. With everything submitted at once, no checksum
# overlaps with the disk; with little in flight, the disk often idles. Suppose each wave costs a
# fixed pause, and the last wave's checksums are computed at the end. Then the best number of waves
# grows with the square root of the batch size: 3 for 7 MB. (This is a model; 2 to 4 waves measure
# alike.) The window doubles when a disk needs longer than SLOW_WINDOW seconds to answer.
WINDOW_UNIT = 3 << 18
WINDOW_READS = 256
SLOW_WINDOW = 0.004

BLOCKING_WAVE = 16  # reads of a wave without AIO


class Fetch:
    """Reads of one plan, into `memory`. Call `start`, iterate over `waves`, then call `close`.

    The disk idles until `start` has submitted, and again between waves. So `start` does little, and
    the lists for the waves are made after the first submission.
    """

    def __init__(self, sources: SourceSet, plan: Plan, memory: Bytes, mode: str) -> None:
        self._sources = sources
        self._plan = plan
        self._memory = memory
        self._mode = mode
        self._arrived: list[int] = []  # reads that were copied from the page cache
        self._queue: AioQueue | None = None
        self._left: Ints | None = None  # the other reads, by AIO or plain; None: all reads

    def start(self, *, everything: bool) -> None:
        """Copy the cached reads and submit the others: everything at once, or one window."""
        reads: Ints | None = None  # all of them
        cached_fds = self._descriptors(self._sources.fds)
        if self._mode == "auto":
            hot = self._sources.cache.has_each(cached_fds, self._plan.offset, self._plan.need)
            if hot.any():
                reads = self._copy_cached(cached_fds, hot)
                if not reads.size:
                    self._left = reads
                    return
        direct = self._mode != "buffered" and self._sources.direct
        fds = self._descriptors(self._sources.direct_fds) if direct else cached_fds
        self._queue = self._queue_for(fds, reads, 0)
        self._left = reads
        if self._queue is None or not direct:
            self._advise(reads)
        if self._queue is not None:
            self._queue.launch(self._queue.unsent if everything else self._window())

    def waves(self) -> Iterator[list[int]]:
        """Yield the numbers of complete reads, in groups as they arrive."""
        if self._arrived:
            yield self._arrived
        left = range(len(self._plan.offset)) if self._left is None else self._left.tolist()
        if self._queue is None:
            for at in range(0, len(left), BLOCKING_WAVE):
                wave = list(left[at : at + BLOCKING_WAVE])
                for read in wave:
                    self._read_by_hand(read, 0)
                yield wave
            return
        queue, window, need = self._queue, self._window(), self._plan.need.tolist()
        while not queue.done:
            began = time.perf_counter()
            rows, results = queue.land(1)
            if queue.unsent:
                if time.perf_counter() - began > SLOW_WINDOW:
                    window *= 2
                queue.launch(window)
            reads = rows if self._left is None else [left[row] for row in rows]
            for read, result in zip(reads, results, strict=True):
                if result < need[read]:
                    self._read_by_hand(read, bytes_got(self._sources, result))
            yield reads

    @property
    def mine(self) -> bool:
        """True unless a parent process began the AIO reads: those never arrive in a child."""
        return self._queue is None or self._queue.mine

    def close(self) -> None:
        """Wait until the kernel no longer writes into the memory."""
        if self._queue is not None:
            self._queue.close()

    def _copy_cached(self, fds: Ints | int, hot: npt.NDArray[np.bool_]) -> Ints:
        """Copy the hot reads out of the page cache, and return the reads that remain."""
        reads = hot.nonzero()[0]
        queue = self._queue_for(fds, reads, self._sources.cache.rw_flags)
        left = np.ones(len(hot), bool)
        if queue is not None:
            try:
                while not queue.done:
                    queue.launch(len(reads))
                    rows, results = queue.land(queue.flying)
                    landed = reads[rows]
                    left[landed] = np.array(results) < self._plan.need[landed]
            finally:
                queue.close()
        self._arrived = (~left).nonzero()[0].tolist()
        return left.nonzero()[0]

    def _queue_for(self, fds: Ints | int, reads: Ints | None, rw_flags: int) -> AioQueue | None:
        """Return a queue with these reads (None: all reads); None if no context is available."""
        plan = self._plan
        place, offset, length = plan.place, plan.offset, plan.length
        if reads is not None:
            place, offset, length = place[reads], offset[reads], length[reads]
            fds = fds if isinstance(fds, int) else fds[reads]
        context = aio.contexts.borrow(len(offset))
        if context is None:
            return None
        queue = AioQueue(context, len(offset))
        queue.fill(self._memory, fds, place, offset, length, rw_flags)
        return queue

    def _descriptors(self, each: Ints) -> Ints | int:
        """Return the descriptor of every read, or one number if all reads share it."""
        return int(each[0]) if self._plan.file is None else each[self._plan.file]

    def _source_of(self, read: int) -> Source:
        return self._sources[0 if self._plan.file is None else int(self._plan.file[read])]

    def _window(self) -> int:
        """Return the number of reads to keep in flight if not all are submitted at once."""
        waves = max(1, round(math.sqrt(self._plan.size / WINDOW_UNIT)))
        return min(WINDOW_READS, -(-len(self._plan.offset) // waves))

    def _advise(self, reads: Ints | None) -> None:
        """Let the disk begin with reads that will go through the page cache one by one."""
        offset, length = self._plan.offset.tolist(), self._plan.length.tolist()
        for read in range(len(offset)) if reads is None else reads.tolist():
            self._source_of(read).will_need(offset[read], length[read])

    def _read_by_hand(self, read: int, have: int) -> None:
        plan = self._plan
        place, need = int(plan.place[read]), int(plan.need[read])
        target = self._memory[place + have : place + need]
        self._source_of(read).read_into(target, int(plan.offset[read]) + have)
