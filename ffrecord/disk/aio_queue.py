"""Queue of AIO reads: makes, submits and reaps them, and reports the result of each.

The library's fetches and the mount's cold reads both use `AioQueue`. `fill` makes the requests of
a whole batch, `put` makes one. `land` reports every read exactly once, with the number of bytes or
an error. This includes reads that the kernel refused or never reported. The owner of the queue
finishes such reads with plain reads (`Source.read_into`); `bytes_got` says where to begin.

The queue keeps its memory until the kernel no longer writes to it: `close` always waits for that.
A signal handler may raise (Ctrl-C does) between a system call and the line that stores its result.
Then the number of reads in flight is unknown, so the context is destroyed and not reused.
io_destroy waits for all reads, and no signal interrupts it.

AIO is asynchronous only on O_DIRECT descriptors. On buffered ones io_submit is synchronous, which
makes it a way to copy a whole batch out of the page cache in one system call.
"""

from __future__ import annotations

import errno
import os
import struct

import numpy as np

from ffrecord.aliases import Bytes, Ints
from ffrecord.disk import aio
from ffrecord.disk.aio import BUF, FD, FLAGS, NBYTES, NOTIFY, OFFSET, RW_FLAGS, UPPER_HALF
from ffrecord.disk.source import SourceSet

_IOCB = struct.Struct(f"<{aio.IOCB_WORDS}q")


class AioQueue:
    """Reads that are submitted in order and complete ("land") in any order.

    Each read has a row number. A queue belongs to one thread at a time.

    Args:
        context: AIO context for the requests; the queue returns it to the pool when it is closed.
        rows: most reads that may be pending at a time.
    """

    def __init__(self, context: aio.Context, rows: int) -> None:
        self._context: aio.Context | None = context
        self._pid = os.getpid()
        self._settled = True  # False while `flying` may be wrong: during a system call
        self._queued = self._sent = 0  # pointers made, and pointers that the kernel has seen
        self.flying = 0
        self._refused: list[tuple[int, int]] = []
        # If io_getevents fails, `land` must know which reads it has not reported yet. For a batch,
        # `_told` has the reported rows by wave; for single reads, `_single` has the unreported
        # rows. (A dict of a batch's rows cost 4 % of the time of 512 cached records.) `_filled`
        # and `_single` also keep the memory alive that the kernel writes into.
        self._untold = 0
        self._told: list[list[int]] = []
        self._filled: Bytes | None = None
        self._single: dict[int, Bytes] = {}
        requests = context.requests(rows)
        self._iocbs, self._iocb_bytes = requests.iocbs[:rows], requests.data
        self._iocbs_at, self._addresses = requests.at, requests.addresses[:rows]
        self._pointers, self._pointers_at = requests.pointers[:rows], requests.pointers_at

    def fill(
        self, memory: Bytes, fds: Ints | int, place: Ints, offset: Ints, length: Ints,
        rw_flags: int = 0,
    ) -> None:  # fmt: skip
        """Make one read for every row, each into its place in `memory`. Fast for many reads."""
        iocbs, rows = self._iocbs, len(self._iocbs)
        iocbs[:, RW_FLAGS] = rw_flags * UPPER_HALF
        iocbs[:, FD] = fds * UPPER_HALF
        iocbs[:, BUF] = place + memory.ctypes.data
        iocbs[:, NBYTES] = length
        iocbs[:, OFFSET] = offset
        iocbs[:, FLAGS] = 0  # `put` of an earlier queue may have set them
        self._filled = memory
        self._pointers[:] = self._addresses
        self._queued = self._untold = rows

    def put(
        self, row: int, fd: int, memory: Bytes, address: int, offset: int, length: int, eventfd: int
    ) -> None:
        """Make one read into `memory` at `address`. Its completion is announced on `eventfd`."""
        if self._queued == len(self._pointers):  # move the unsent pointers to the front
            unsent = self._pointers[self._sent :].copy()
            self._sent, self._queued = 0, len(unsent)
            self._pointers[: self._queued] = unsent
        at = _IOCB.size * row
        _IOCB.pack_into(
            self._iocb_bytes, at,
            row, 0, fd * UPPER_HALF, address, length, offset, 0, NOTIFY + eventfd * UPPER_HALF,
        )  # fmt: skip
        self._single[row] = memory
        self._untold += 1
        self._pointers[self._queued] = self._iocbs_at + at
        self._queued += 1

    def take_unsent(self) -> list[int]:
        """Remove the reads of a filled queue that were not submitted yet, and return their rows."""
        rows = (self._pointers[self._sent : self._queued] - self._iocbs_at) // _IOCB.size
        self._queued = self._sent
        self._untold -= len(rows)
        taken: list[int] = rows.tolist()
        self._told.append(taken)  # the owner knows about them
        return taken

    @property
    def unsent(self) -> int:
        return self._queued - self._sent

    @property
    def done(self) -> bool:
        """True when `land` has reported every read."""
        return not self._untold

    @property
    def is_usable(self) -> bool:
        """True while reads can be added; False after the kernel failed to report one."""
        return self._context is not None

    @property
    def mine(self) -> bool:
        """True in the process that made the queue. Its reads never land in a forked child."""
        return self._pid == os.getpid()

    def launch(self, up_to: int) -> None:
        """Submit reads until `up_to` are in flight or the kernel takes no more for now."""
        context = self._context
        assert context is not None
        self._settled = False
        while self._sent < self._queued and self.flying < up_to:
            count = min(self._queued - self._sent, up_to - self.flying)
            took = context.submit(self._pointers_at + 8 * self._sent, count)
            if took > 0:
                self._sent += took
                self.flying += took
            elif took in (0, -errno.EAGAIN) and self.flying:
                break
            else:  # the kernel refuses this request: the owner reads it another way
                row = (int(self._pointers[self._sent]) - self._iocbs_at) // _IOCB.size
                self._refused.append((row, took or -errno.EAGAIN))
                self._sent += 1
        self._settled = True

    def land(self, at_least: int) -> tuple[list[int], list[int]]:
        """Return the rows and results (bytes read, or a negative errno) of reads that have landed.

        Waits for `at_least` reads, or for all in flight if those are fewer; 0 does not wait.
        Refused reads are reported together with the reads that have landed by then, because the
        eventfd announces landed reads only once.
        """
        rows, results = [row for row, _ in self._refused], [code for _, code in self._refused]
        if self.flying:
            context = self._context
            assert context is not None
            self._settled = False
            try:
                landed = context.reap(0 if rows else min(at_least, self.flying))
                self.flying -= len(landed[0])
                rows, results = rows + landed[0], results + landed[1]
            except OSError:
                rows, results = self._give_up(context)
            self._settled = True
        self._refused = []
        self._untold -= len(rows)
        if self._filled is not None:
            self._told.append(rows)
        else:
            for row in rows:
                del self._single[row]
        return rows, results

    def finish(self) -> Ints:
        """Submit every read of a filled queue, wait for all, and return the result of each row.

        For synchronous reads: faster than `launch` and `land`, which make lists.
        """
        context = self._context
        assert context is not None
        results = np.full(self._queued, -errno.EIO)
        while self._sent < self._queued or self.flying:
            self.launch(self._queued)
            self._settled = False
            try:
                self.flying -= context.reap_into(results, self.flying)
            except OSError:
                self._give_up(context)
            self._settled = True
        for row, code in self._refused:
            results[row] = code
        self._refused, self._untold = [], 0
        return results

    def _give_up(self, context: aio.Context) -> tuple[list[int], list[int]]:
        """Give up AIO after io_getevents has failed: report all unreported reads as failed.

        Closing the context waits for all reads. The queue takes no further reads.
        """
        context.close()
        self._context = None
        self.flying, self._sent = 0, self._queued
        filled = range(0 if self._filled is None else self._queued)
        rows = sorted(self._single.keys() | set(filled).difference(*self._told))
        return rows, [-errno.EIO] * len(rows)

    def close(self) -> None:
        """Wait for everything that was submitted. Return the context to the pool if possible."""
        if self._context is None or not self.mine:
            return
        while self._settled and self.flying:
            self.land(self.flying)
        if self._context is None:
            return
        if self._settled:
            context, self._context = self._context, None
            aio.contexts.give_back(context)
        else:
            self._context.close()
            self._context = None

    def __del__(self) -> None:
        if hasattr(self, "_single"):
            self.close()


def bytes_got(sources: SourceSet, result: int) -> int:
    """Return the number of bytes that an incomplete read of `sources` got.

    After EINVAL, stop using O_DIRECT: the file system opens files with it but does not read them.
    """
    if result == -errno.EINVAL:
        sources.give_up_direct()
    return max(result, 0)
