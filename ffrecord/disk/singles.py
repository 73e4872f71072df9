"""Read one record at a time through the page cache, and with its whole piece on a slow disk.

A program that reads single records waits for each of them. So a request costs it the latency of the
disk, not the time that the disk needs for each of many requests. A fast disk may have a latency of
0.1 ms and still do 100,000 requests a second. Therefore single reads have their own `Meter`, and
disks with a latency below SLOW count as fast.

Cached reads do not count. Their short time tells them from others, because that costs nothing. On a
slow disk, `cachestat` is asked first: a plain read of a record that is not cached would spend a
request on that record alone.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ffrecord.aliases import Bytes
from ffrecord.disk.costs import seconds_without_core

if TYPE_CHECKING:
    from ffrecord.disk.pagecache import PageCache
    from ffrecord.disk.pieces import Pieces
    from ffrecord.disk.source import Source

# Seconds. Local flash answers in 0.1 ms, cloud volumes in 0.3 to 1 ms, hard disks in 5 to 15 ms.
SLOW = 150e-6
LONG_WAIT = 0.02  # seconds; longer waits for a disk are not waits for the interpreter

# A cached read takes about 1 µs, and its bytes are copied at more than 2 GB/s.
CACHED = 20e-6
CACHED_BYTE = 1 / 2e9

QUICK_READS = 32  # that are measured together: measuring takes 15 µs, a third of a read's time
MEAN_OF = 32  # reads that have two thirds of the weight in the mean size
HITS_TO_BE_WARM = 8  # hits in a row after which `cachestat` is not asked


class SingleReads:
    """Single reads of the files of one reader. Any thread may use it: lost counts do no harm."""

    def __init__(self, sources: Sequence[Source], cache: PageCache, pieces: Pieces) -> None:
        self._sources = sources
        self._cache = cache
        self._pieces = pieces
        self._piece = 0  # bytes to read for a miss; 0: only its record
        self._mean = 0.0  # bytes of a read, so that one large record does not change the decision
        self._hits = 0  # in a row
        self._quick = 0, 0, 0.0  # number, bytes and seconds of quick reads from the disk
        self._looked = 0, 0.0  # thread of the last look at its seconds without a core, and these

    def read_into(self, file: int, memory: Bytes, offset: int) -> None:
        """Fill `memory` with the bytes of a file from `offset` on."""
        source, length = self._sources[file], len(memory)
        in_order = source.read_ahead(offset, length)
        asks = self._piece and self._hits < HITS_TO_BE_WARM and not in_order
        if asks and not self._cache.has(source.fd, offset, length):
            self._read_piece(file, memory, offset)
            return
        began = time.perf_counter()
        source.fill(memory, offset)
        seconds = time.perf_counter() - began
        if seconds < CACHED + length * CACHED_BYTE:
            self._hits += 1
            self._pieces.note(1, 0, judged=self._piece > 0)
        else:
            self._hits = 0
            self._waited(length, seconds, in_order)

    def _read_piece(self, file: int, memory: Bytes, offset: int) -> None:
        """Read a piece for a miss, if that still pays."""
        source, pieces = self._sources[file], self._pieces
        self._hits = 0
        self._decide(len(memory))
        pieces.note(0, 1, judged=True)
        began, asked_for = time.perf_counter(), (0, 0)
        if self._piece:
            asked_for = pieces.fill_one(file, offset, len(memory), self._piece)
        source.fill(memory, offset)
        pieces.arrived(*asked_for, time.perf_counter() - began, single=True)

    def _decide(self, length: int) -> None:
        self._mean += (length - self._mean) / MEAN_OF if self._mean else length
        # Measuring pieces lowers the cost of a request. That alone must not end the pieces.
        least = SLOW / 2 if self._piece else SLOW
        self._piece = self._pieces.size_for(self._mean, least, single=True)

    def _waited(self, length: int, seconds: float, in_order: bool) -> None:
        """Measure the disk by a read of `length` bytes that took `seconds`.

        A busy machine makes a fast disk look slow. So a slow read counts without the time in which
        this thread had no core since the last look. If other threads may have had the interpreter,
        it counts only from LONG_WAIT on.
        """
        self._pieces.note(0, 1, judged=False)
        if in_order or self._pieces.reads_rest:  # the disk was busy before this read
            return
        reads, size, total = self._quick
        if seconds < SLOW:
            reads, size, total = reads + 1, size + length, total + seconds
            self._quick = reads, size, total
            if reads < QUICK_READS and self._mean:  # the first read is measured alone
                return
            self._without_core_since_last_look()
        else:
            seconds -= self._without_core_since_last_look()
            if seconds > 0 and (seconds >= LONG_WAIT or threading.active_count() == 1):
                reads, size, total = reads + 1, size + length, total + seconds
        self._quick = 0, 0, 0.0
        self._pieces.single_meter.observe_reads(reads, size, total)
        self._decide(length)

    def _without_core_since_last_look(self) -> float:
        """Return the seconds without a core; infinity if another thread looked last."""
        before = self._looked
        self._looked = threading.get_ident(), seconds_without_core()
        return self._looked[1] - before[1] if self._looked[0] == before[0] else math.inf
