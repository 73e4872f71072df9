"""Read whole pieces for misses on slow disks, and let the page cache keep them.

`costs` measures the disk, `memory` says how much memory is available, and `policy` decides. This
module applies the decision to the files of one reader.

Pieces are kept in the page cache, not in memory of this process. All processes on the machine
then share them, the kernel can free them at any time, and `fetch` already copies cached reads fast.
POSIX_FADV_WILLNEED fetches a piece with one request to the disk. (Measured: 400 pieces of 768 KiB
made 400 requests, and came at 142 of the disk's 150 MB/s.)

Any thread may use a `Pieces`, and forked processes share what they have asked for: the workers of a
loader would otherwise ask for parts of each other's pieces, with more and shorter requests. Lost
counts and repeated advice do no harm.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
import weakref
from collections.abc import Iterator, Sequence
from ctypes import c_double, c_int64
from typing import TYPE_CHECKING, Any

import numpy as np

from ffrecord.aliases import Ints, Mask
from ffrecord.disk import shared
from ffrecord.disk.costs import meter_of
from ffrecord.disk.policy import SMALLEST, Costs, Decision, Pattern, decide, extents
from ffrecord.disk.shared import Shared
from ffrecord.disk.warming import STEP, Range, announced
from ffrecord.errors import TruncatedError
from ffrecord.machine import memory

if TYPE_CHECKING:
    from ffrecord.disk.source import Source

GRANULE = SMALLEST  # pieces are multiples of it
MEMORY_SECONDS = 1.0  # the available memory is looked up again after this time
REST_SECONDS = 2.0  # after this time without a step, the process that read the rest is gone


class _Totals(Shared):
    """Counts of all processes that share a `Pieces`."""

    bytes: int  # in pieces
    used: int
    expected: float
    rest_at: float  # time of the latest step of the rest; -inf: nobody reads the rest

    _fields_ = (
        ("bytes", c_int64), ("used", c_int64), ("expected", c_double), ("rest_at", c_double),
    )  # fmt: skip


class Pieces:
    """Pieces of the files of one reader.

    Args:
        sources: the files. All count as files on the disk of the first one.
        limit: bytes that may be kept in memory. None: a share of the available memory.
    """

    def __init__(self, sources: Sequence[Source], limit: int | None = None) -> None:
        self._sources = sources
        self._limit = limit
        device = os.fstat(sources[0].fd).st_dev
        self.meter = meter_of(device)
        self.single_meter = meter_of(device, single=True)
        self._sizes = np.array([os.fstat(source.fd).st_size for source in sources])
        self._size = int(self._sizes.sum())
        self._first = np.concatenate([[0], np.cumsum(-(-self._sizes // GRANULE))])
        self._filled: Mask = shared.flags(int(self._first[-1]))  # granules that were requested
        self._memory, self._asked_at = 0, float("-inf")
        self._hits = self._misses = 0
        self._totals = _Totals()
        self._totals.rest_at = float("-inf")
        self._decision = Decision(0, "nothing was read from the disk yet")
        self.arrived_at = 0.0  # time at which the last batch of pieces had arrived
        self._costs: Costs | None = None  # of the decision

    def size_for(self, length: float, least_request: float = 0.0, *, single: bool = False) -> int:
        """Return the size of the piece to read for a miss of `length` bytes; 0 for no piece.

        If a request takes less than `least_request` seconds, no pieces are read. `single`: the
        caller waits for this read before it makes the next one.
        """
        totals = self._totals
        pattern = Pattern(length, totals.used, totals.expected, totals.bytes)
        costs = self.single_meter.costs if single else None
        self._costs = costs or self.meter.costs
        self._decision = decide(self._costs, self._size, self._allowed(), pattern, least_request)
        return self._decision.piece

    def _allowed(self) -> int:
        """Return the bytes that may be in memory."""
        if self._limit is not None:
            return self._limit
        now = time.monotonic()
        if now - self._asked_at > MEMORY_SECONDS:
            self._asked_at, self._memory = now, int(memory.available() * memory.SHARE)
        return self._memory

    def have(self, file: Ints | None, offset: Ints, length: Ints) -> Mask:
        """Return a mask of the reads whose first and last granules were requested before.

        The mask is a hint: the kernel may have freed these pages.
        """
        first = 0 if file is None else self._first[file]
        begin, end = first + offset // GRANULE, first + (offset + length - 1) // GRANULE
        return np.asarray(self._filled[begin] & self._filled[end])

    def note(self, hits: int, misses: int, *, judged: bool, used: int = 0) -> None:
        """Count reads that were found in memory, and reads that were not.

        `judged`: each read was looked up, so the hits show whether pieces are used again. `used` is
        the number of reads in pieces that were requested before. These pieces may still be on their
        way, for a caller that reads several batches ahead.
        """
        self._hits += hits
        self._misses += misses
        if judged:
            totals = self._totals
            totals.used += max(hits, used)
            totals.expected += (hits + misses) * min(1.0, totals.bytes / self._size)

    def fill(self, file: Ints | None, offset: Ints, length: Ints, piece: int) -> tuple[int, int]:
        """Let the disk begin to read the pieces of these reads. The reads are in file order.

        Returns:
            The number of pieces and of bytes that the disk must read, as far as that is known.
        """
        requests = total = 0
        asked_before = []
        file = np.zeros_like(offset) if file is None else file
        for run, is_new in self._claimed(*self._joined(file, offset, length, piece)):
            if not is_new:
                asked_before.append(run)
                continue
            # Another process may have read the piece. Its time says nothing about the disk.
            missing = run.size - run.cached()
            run.announce()
            requests += -(-missing // piece)
            total += missing
        # Either another process asked for them a moment ago, or the kernel has freed them since.
        # Two processes that ask at the same time would get every second page each.
        for run in asked_before:
            if run.cached() < run.size:
                run.announce()
        if self._decision.rest and self._totals.bytes < self._size and not self.reads_rest:
            self._start_rest()
        return requests, total

    def fill_one(self, file: int, offset: int, length: int, piece: int) -> tuple[int, int]:
        """Do the same as `fill` for one read."""
        return self.fill(np.array([file]), np.array([offset]), np.array([length]), piece)

    def _joined(
        self, file: Ints, offset: Ints, length: Ints, piece: int
    ) -> tuple[Ints, Ints, Ints]:
        """Return the file, begin and end of each range to read. Adjacent ranges are joined."""
        begin, end = extents(offset, offset + length, piece, self._sizes[file])
        # Positions in all files, one after the other: an earlier range may end last.
        at = GRANULE * self._first[file]
        until = np.maximum.accumulate(at + end)
        opens = np.ones(len(file), bool)
        opens[1:] = ((at + begin)[1:] > until[:-1]) | (file[1:] != file[:-1])
        heads, tails = _bounds(opens)
        return file[heads], begin[heads], until[tails] - at[tails]

    def _claimed(self, file: Ints, begin: Ints, end: Ints) -> Iterator[tuple[Range, bool]]:
        """Yield runs of the granules of ranges; True if the run was not requested before.

        A new run is marked when it is yielded. The caller requests it at once, because other
        processes take marked granules for cached ones.
        """
        first = self._first[file]
        low, high = first + begin // GRANULE, first - (-end // GRANULE)
        count = high - low
        row = np.arange(len(file)).repeat(count)  # the range of each granule
        granule = np.arange(len(row)) + (low - (count.cumsum() - count))[row]
        old = self._filled[granule]
        opens = np.ones(len(row), bool)
        opens[1:] = (row[1:] != row[:-1]) | (old[1:] != old[:-1])
        heads, tails = _bounds(opens)
        row, low, high = row[heads], granule[heads], granule[tails] + 1
        begins = GRANULE * (low - first[row])
        ends = np.minimum(GRANULE * (high - first[row]), end[row])
        # A range that ends with a read may have only a part of its last granule.
        high -= (ends % GRANULE > 0) & (ends < self._sizes[file[row]])
        columns = (file[row], begins, ends, ~old[heads], low, high)
        for number, start, stop, is_new, *marks in zip(*(c.tolist() for c in columns), strict=True):
            if is_new:
                self._mark(*marks)
            yield Range(self._sources[number], start, stop), is_new

    def _mark(self, begin: int, end: int) -> None:
        """Mark granules as requested."""
        granules = self._filled[begin:end]
        self._totals.bytes += GRANULE * (end - begin - int(np.count_nonzero(granules)))
        granules[:] = True

    @property
    def reads_rest(self) -> bool:
        """True while a thread of any process reads the rest in the background."""
        return time.monotonic() - self._totals.rest_at < REST_SECONDS

    def _start_rest(self) -> None:
        """Read the rest in a thread. If no thread can be started, misses read it."""
        arguments = weakref.ref(self), tuple(self._sources)
        thread = threading.Thread(target=_read_rest, args=arguments, daemon=True)
        self._totals.rest_at = time.monotonic()
        try:
            thread.start()
        except RuntimeError:
            self.rest_ended()

    def rest_ended(self) -> None:
        """Note that nobody reads the rest any more. It may be started again."""
        self._totals.rest_at = float("-inf")

    def arrived(self, pieces: int, size: int, seconds: float, *, single: bool = False) -> None:
        """Learn from pieces that have arrived, unless the disk also reads in the background.

        Pieces that were requested before say nothing: nobody knows how much of them was missing.
        """
        if size and not self.reads_rest:
            meter = self.single_meter if single else self.meter
            meter.observe_pieces(pieces, size, seconds)

    def next_step(self, file: int, offset: int) -> tuple[int, int] | None:
        """Return a range that starts with the next unrequested granule, and mark it as requested.

        Returns None if the rest of the file was requested, or if pieces are no longer read.
        """
        first, last = int(self._first[file]), int(self._first[file + 1])
        if not self._decision.piece or self._allowed() < self._size:
            return None
        self._totals.rest_at = time.monotonic()
        low = first + offset // GRANULE
        left = self._filled[low:last]
        if left.all():
            return None
        begin = low + int(left.argmin())
        end = min(begin + STEP // GRANULE, last)
        self._mark(begin, end)
        size = int(self._sizes[file])
        return (begin - first) * GRANULE, min((end - first) * GRANULE, size)

    def stats(self) -> dict[str, Any]:
        """Return the decision with its reason, the costs, and the counts of reads and bytes."""
        costs = self._costs
        return {
            "piece": self._decision.piece,
            "why": self._decision.why,
            "request_seconds": None if costs is None else costs.request,
            "byte_seconds": None if costs is None else costs.byte,
            "hits": self._hits,
            "misses": self._misses,
            "piece_bytes": self._totals.bytes,
        }


def _bounds(opens: Mask) -> tuple[Ints, Ints]:
    """Return the first and last rows of groups; `opens` is True for the first ones."""
    heads = opens.nonzero()[0]
    return heads, np.append(heads[1:], len(opens)) - 1


def _read_rest(pieces: weakref.ref[Pieces], sources: Sequence[Source]) -> None:
    """Read everything that is missing into the page cache, in order, while `pieces` is in use."""
    for step in announced(_missing_steps(pieces, sources)):
        # A reader that needs these bytes reports the error.
        with contextlib.suppress(OSError, TruncatedError):
            step.wait()
    owner = pieces()
    if owner is not None:
        owner.rest_ended()


def _missing_steps(pieces: weakref.ref[Pieces], sources: Sequence[Source]) -> Iterator[Range]:
    for file, source in enumerate(sources):
        offset = 0
        while True:
            owner = pieces()
            step = None if owner is None else owner.next_step(file, offset)
            del owner
            if step is None:
                break
            yield Range(source, *step)
            offset = step[1]
