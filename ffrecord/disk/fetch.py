"""Do the reads of a plan in the fastest way, and in another way if that fails.

Cached reads are copied out of the page cache with one io_submit. Other reads use AIO with O_DIRECT,
which bypasses the cache. On slow disks, pieces around these reads are read into the page cache
instead (see `pieces`). If the kernel refuses a read, ends it short or fails it, the rest is read
with a plain `preadv`; only a failure of that is an error. Without an AIO context all reads are
plain, after `posix_fadvise` has let the disk start on them.

A `Fetch` belongs to one thread at a time. `Source`s are shared by all threads.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence

import numpy as np

from ffrecord.aliases import Ints
from ffrecord.disk import aio, extents
from ffrecord.disk.aio_queue import AioQueue, bytes_got
from ffrecord.disk.costs import SLOW_REQUEST, seconds_without_core
from ffrecord.disk.extents import Plan
from ffrecord.disk.singles import LONG_WAIT
from ffrecord.disk.slabs import SlabPool
from ffrecord.disk.source import Source, SourceSet
from ffrecord.disk.tally import TALLY

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
MOST_WAVES = 8  # of reads through the page cache, because each wave has a queue of its own
MEASURING_READS = 16  # in flight while nothing is known about the disk

_NONE = np.empty(0, np.int64)


class Fetch:
    """Reads of the records [begin, end). Call `start`, iterate over `waves`, then call `close`.

    `plan` says where in `memory` the records will be. `file` is None if all are in one file.

    The disk idles until `start` has submitted, and again between waves. So `start` does little, and
    the lists for the waves are made after the first submission.
    """

    def __init__(
        self, sources: SourceSet, file: Ints | None, begin: Ints, end: Ints, mode: str,
        slabs: SlabPool,
    ) -> None:  # fmt: skip
        self._sources = sources
        self._mode = mode
        self._cached: bool | None = False  # None: some of the reads are in the page cache
        self.plan = self._planned(file, begin, end)
        self.memory = slabs.take(self.plan.size)
        self._arrived: Sequence[int] = ()  # reads that were copied from the page cache
        self._queue: AioQueue | None = None
        self._left: Ints | None = None  # the other reads, by AIO or plain; None: all reads
        self._pieces = sources.pieces if mode == "auto" else None
        self._through_cache: Ints = _NONE  # reads whose pieces the disk reads into the page cache
        self._asked_for = 0, 0  # requests and bytes of those pieces
        self._requested = 0  # reads in pieces of earlier batches
        self._asked_at = 0.0  # time of asking for those pieces
        self._looked = 0.0  # time of the last look for completed reads
        self._delayed = 0.0  # seconds that this thread had waited for a core before

    def _planned(self, file: Ints | None, begin: Ints, end: Ints) -> Plan:
        """Return the plan for these records, after asking about the page cache."""
        plan = extents.plan_cached(file, begin, end) if self._mode == "auto" else None
        if plan is not None:
            self._cached = self._has_most(plan)
            if self._cached:
                return plan
        asked, plan = plan is not None, extents.plan(file, begin, end, self._sources.align)
        if self._mode == "auto" and not asked:
            self._cached = self._has_most(plan)
        return plan

    def _has_most(self, plan: Plan) -> bool | None:
        fds = _descriptors(self._sources.fds, plan.file)
        return self._sources.cache.has_most(fds, plan.offset, plan.need)

    def start(self, *, everything: bool) -> None:
        """Copy the cached reads and start the others: everything at once, or one window."""
        TALLY.memory += self.plan.size
        cached_fds = _descriptors(self._sources.fds, self.plan.file)
        piece = 0
        if self._mode == "auto":
            piece = self._piece()
            self._copy_cached(cached_fds, judged=piece > 0)
            if self._left is not None and not len(self._left):
                return
        reads = self._left
        TALLY.missed += len(self.plan.offset) if reads is None else len(reads)
        if piece:
            self._read_pieces(self._numbers(reads), piece)
            return
        if self.plan.order is None:  # not aligned, so not for O_DIRECT
            self._advise(reads)
            self._through_cache = self._numbers(reads)
            return
        direct = self._mode != "buffered" and self._sources.direct
        fds = _descriptors(self._sources.direct_fds, self.plan.file) if direct else cached_fds
        self._queue = self._queue_for(fds, reads, 0)
        if self._queue is None or not direct:
            self._advise(reads)
        if self._queue is not None:
            if everything and not self._measuring:
                self._queue.launch(self._queue.unsent)
            else:
                self._queue.launch(self._window())
            self._looked = time.perf_counter()
            if self._measuring:
                self._delayed = seconds_without_core()

    @property
    def is_complete(self) -> bool:
        """True if `start` has copied every read from the page cache."""
        return len(self._arrived) == len(self.plan.offset)

    def waves(self) -> Iterator[Sequence[int]]:
        """Yield the numbers of complete reads, in groups as they arrive."""
        if self._arrived:
            yield self._arrived
        if self._queue is not None:
            yield from self._queued()
        elif not len(self._through_cache):
            left = range(len(self.plan.offset)) if self._left is None else self._left.tolist()
            for at in range(0, len(left), BLOCKING_WAVE):
                wave = list(left[at : at + BLOCKING_WAVE])
                for read in wave:
                    self._read_by_hand(read, 0)
                yield wave
        yield from self._through()

    def _queued(self) -> Iterator[list[int]]:
        """Yield the reads of the queue. Reads not submitted yet may be read as pieces instead."""
        queue = self._queue
        assert queue is not None
        left = None if self._left is None else self._left.tolist()
        window, need = self._window(), self.plan.need.tolist()
        while not queue.done:
            began = time.perf_counter()
            away = began - self._looked > LONG_WAIT
            # Reads that have landed while the caller did other work say nothing about the disk.
            rows, results = queue.land(0 if away else 1)
            now = time.perf_counter()
            TALLY.waited += now - began
            if away:
                self._looked = now
                if self._pieces is not None:
                    self._pieces.meter.skip_reads(len(rows))
            elif self._pieces is not None:
                self._observe(len(rows), now, still_busy=queue.flying > 0)
            if queue.unsent:
                if now - began > SLOW_WINDOW:
                    window *= 2
                piece = self._piece()
                if piece:
                    unsent = np.array(queue.take_unsent())
                    self._read_pieces(
                        unsent if left is None else self._numbers(self._left)[unsent], piece
                    )
                elif not queue.done:
                    queue.launch(
                        MEASURING_READS if self._measuring else max(window, self._window())
                    )
            reads = rows if left is None else [left[row] for row in rows]
            for read, result in zip(reads, results, strict=True):
                if result < need[read]:
                    self._read_by_hand(read, bytes_got(self._sources, result))
            if reads:
                yield reads

    # ---- pieces --------------------------------------------------------------------------

    @property
    def _measuring(self) -> bool:
        """True while little is known about the disk, so that little should be in flight."""
        return self._pieces is not None and self._pieces.meter.is_new

    def _piece(self) -> int:
        """Return the size of the piece to read for a miss; 0 to read only the requested bytes."""
        if self._pieces is None or not self._sources.direct:
            return 0
        return self._pieces.size_for(self.plan.size / len(self.plan.offset))

    def _hot(self, fds: Ints | int, *, asking_for_each: bool) -> Ints | None:
        """Return the reads that are in memory, as far as that is known; None for all reads."""
        cache, plan = self._sources.cache, self.plan
        if asking_for_each and self._pieces is not None:
            hot = self._pieces.have(plan.file, plan.offset, plan.need)
            self._requested = int(np.count_nonzero(hot))
            others = (~hot).nonzero()[0]
            some = fds if isinstance(fds, int) else fds[others]
            which = some, plan.offset[others], plan.need[others]
            # If a few looks find none of them, `Pieces.fill` asks about whole pieces: fewer calls.
            if len(others) and cache.use_cachestat and cache.has_most(*which) is not False:
                hot[others] = cache.has_each(*which)
        elif self._cached is None:
            hot = cache.has_each(fds, plan.offset, plan.need)
        else:
            return None if self._cached else _NONE
        return None if hot.all() else hot.nonzero()[0]

    def _read_pieces(self, reads: Ints, piece: int) -> None:
        """Let the disk begin to read the pieces of these reads. `_through` copies them later."""
        assert self._pieces is not None
        plan = self.plan
        if plan.order is None:  # in the order of the batch
            keys = (plan.offset[reads], 0 * reads if plan.file is None else plan.file[reads])
            reads = reads[np.lexsort(keys)]
        self._through_cache = reads
        file = None if plan.file is None else plan.file[reads]
        self._asked_at = time.perf_counter()
        self._asked_for = self._pieces.fill(file, plan.offset[reads], plan.need[reads], piece)

    def _through(self) -> Iterator[list[int]]:
        """Yield the reads whose pieces the disk is reading, as their pages arrive."""
        fds, waited = _descriptors(self._sources.fds, self.plan.file), 0.0
        step = max(BLOCKING_WAVE, -(-len(self._through_cache) // MOST_WAVES))
        for at in range(0, len(self._through_cache), step):
            reads = self._through_cache[at : at + step]
            began = time.perf_counter()
            self._copy(fds, reads)
            waited += time.perf_counter() - began
            yield reads.tolist()
        TALLY.waited += waited
        if self._pieces is not None and len(self._through_cache):
            now = time.perf_counter()
            # Pieces of an earlier batch were read first, and a caller that did not wait for these
            # ones cannot tell when they arrived.
            seconds = now - max(self._asked_at, self._pieces.arrived_at)
            self._pieces.arrived_at = now
            if waited > seconds / 2:
                self._pieces.arrived(*self._asked_for, seconds)

    def _copy(self, fds: Ints | int, reads: Ints) -> None:
        """Read through the page cache, and wait for pages that are still on their way."""
        got = self._copied(fds, reads, 0)
        for row in (got < self.plan.need[reads]).nonzero()[0].tolist():
            self._read_by_hand(int(reads[row]), max(int(got[row]), 0))

    def _observe(self, landed: int, now: float, *, still_busy: bool) -> None:
        """Measure the disk by the reads that have landed since the last look."""
        assert self._pieces is not None
        seconds, self._looked = now - self._looked, now
        length = self.plan.size / len(self.plan.offset)
        if not still_busy and seconds >= SLOW_REQUEST * landed:
            # The disk may have been done long before this thread looked again: because other
            # processes had the cores, or other threads the interpreter (5 ms at a time).
            delayed, self._delayed = self._delayed, seconds_without_core()
            if seconds - (self._delayed - delayed) < LONG_WAIT:
                self._pieces.meter.skip_reads(landed)
                return
        self._pieces.meter.observe_reads(landed, round(landed * length), seconds)

    def _numbers(self, reads: Ints | None) -> Ints:
        return np.arange(len(self.plan.offset)) if reads is None else reads

    @property
    def mine(self) -> bool:
        """True unless a parent process began the AIO reads: those never arrive in a child."""
        return self._queue is None or self._queue.mine

    def close(self) -> None:
        """Wait until the kernel no longer writes into the memory."""
        if self._queue is not None:
            self._queue.close()

    def _copy_cached(self, fds: Ints | int, *, judged: bool) -> None:
        """Copy the reads that are in the page cache. Sets `_arrived` and `_left`."""
        reads, n = self._hot(fds, asking_for_each=judged), len(self.plan.offset)
        hits = 0
        if reads is None or len(reads):
            which = slice(None) if reads is None else reads
            short = self._copied(fds, reads, self._sources.cache.rw_flags) < self.plan.need[which]
            if reads is None and not short.any():
                self._arrived, self._left, hits = range(n), _NONE, n
            else:
                left = np.ones(n, bool)
                left[which] = short
                self._arrived, self._left = (~left).nonzero()[0].tolist(), left.nonzero()[0]
                hits = len(self._arrived)
        if self._pieces is not None:
            self._pieces.note(hits, n - hits, judged=judged, used=self._requested)

    def _copied(self, fds: Ints | int, reads: Ints | None, rw_flags: int) -> Ints:
        """Read through the page cache; return the bytes, or a negative errno, for each read."""
        queue = self._queue_for(fds, reads, rw_flags)
        if queue is None:
            return np.zeros(len(self.plan.offset if reads is None else reads), np.int64)
        try:
            return queue.finish()
        finally:
            queue.close()

    def _queue_for(self, fds: Ints | int, reads: Ints | None, rw_flags: int) -> AioQueue | None:
        """Return a queue with these reads (None: all reads); None if no context is available."""
        plan = self.plan
        place, offset, length = plan.place, plan.offset, plan.length
        if reads is not None:
            place, offset, length = place[reads], offset[reads], length[reads]
            fds = fds if isinstance(fds, int) else fds[reads]
        context = aio.contexts.borrow(len(offset))
        if context is None:
            return None
        queue = AioQueue(context, len(offset))
        queue.fill(self.memory, fds, place, offset, length, rw_flags)
        return queue

    def _source_of(self, read: int) -> Source:
        return self._sources[0 if self.plan.file is None else int(self.plan.file[read])]

    def _window(self) -> int:
        """Return the number of reads to keep in flight if not all are submitted at once."""
        if self._measuring:
            return MEASURING_READS
        waves = max(1, round(math.sqrt(self.plan.size / WINDOW_UNIT)))
        return min(WINDOW_READS, -(-len(self.plan.offset) // waves))

    def _advise(self, reads: Ints | None) -> None:
        """Let the disk begin with reads that will go through the page cache one by one."""
        offset, length = self.plan.offset.tolist(), self.plan.length.tolist()
        for read in range(len(offset)) if reads is None else reads.tolist():
            self._source_of(read).will_need(offset[read], length[read])

    def _read_by_hand(self, read: int, have: int) -> None:
        plan = self.plan
        place, need = int(plan.place[read]), int(plan.need[read])
        target = self.memory[place + have : place + need]
        self._source_of(read).read_into(target, int(plan.offset[read]) + have)


def _descriptors(each: Ints, file: Ints | None) -> Ints | int:
    """Return the descriptor of every read, or one number if all reads are of one file."""
    return int(each[0]) if file is None else each[file]
