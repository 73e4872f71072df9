"""Reads by AIO: made, submitted, reaped, and told of with the bytes that they got.

The library's fetches and the mount's cold reads both go through `AioQueue`: `fill` makes the
requests of a whole batch, `put` makes one. `land` reports every read once, with the bytes it got
or an error, also a read that the kernel has refused or does not tell of. The owner of the queue
finishes such reads with plain reads (`Source.read_into`), from the byte on that `bytes_got` says.

The queue keeps memory and context together: `close` waits until the kernel has let go of the
memory, whatever happened before. That includes a signal handler that raises, Ctrl-C for one: it
may do so between a system call and the line that notes its result, so that nobody knows what is in
flight. Such a context is destroyed, not reused; io_destroy waits for everything, and no signal cuts
it short.

AIO pays only on O_DIRECT descriptors: io_submit is synchronous on buffered ones. That in turn
makes it a way to copy a whole batch out of the page cache in one system call.
"""

from __future__ import annotations

import errno
import os
import struct

import numpy as np

from ffrecord.aliases import Bytes, Ints
from ffrecord.disk import aio
from ffrecord.disk.aio import BUF, DATA, FD, NBYTES, NOTIFY, OFFSET, RW_FLAGS, UPPER_HALF
from ffrecord.disk.source import SourceSet

_IOCB = struct.Struct(f"<{aio.IOCB_WORDS}q")


class AioQueue:
    """Reads in rows, submitted in order and landing in any. Belongs to one thread at a time.

    Args:
        context: for the requests; the queue gives it back when it is closed.
        rows: how many reads there may be at a time.
    """

    def __init__(self, context: aio.Context, rows: int) -> None:
        self._context: aio.Context | None = context
        self._pid = os.getpid()
        self._settled = True  # what is in flight is known
        self._queued = self._sent = 0  # pointers, and those of them that the kernel has seen
        self.flying = 0
        self._refused: list[tuple[int, int]] = []
        # Which reads `land` has reported, so that the others are known if the kernel fails to tell:
        # of a batch those that it has, by wave, and of single ones those that it has not. (A dict
        # of a batch's rows cost 4 % of 512 cached records.) The kernel writes into the memory,
        # which must live that long.
        self._untold = 0
        self._told: list[list[int]] = []
        self._filled: Bytes | None = None
        self._single: dict[int, Bytes] = {}
        words = np.zeros(rows * (aio.IOCB_WORDS + 1), "<i8")
        self._iocbs = words[:-rows].reshape(rows, aio.IOCB_WORDS)
        self._iocbs_at = words.ctypes.data
        self._iocb_bytes = self._iocbs.data
        self._pointers = words[-rows:]
        self._pointers_at = self._iocbs_at + self._iocbs.nbytes

    def fill(
        self, memory: Bytes, fds: Ints | int, place: Ints, offset: Ints, length: Ints,
        rw_flags: int = 0,
    ) -> None:  # fmt: skip
        """Make a read for every row, each to its place in `memory`: fast for many."""
        iocbs, rows = self._iocbs, len(self._iocbs)
        numbers = np.arange(rows)
        iocbs[:, DATA] = numbers
        iocbs[:, RW_FLAGS] = rw_flags * UPPER_HALF
        iocbs[:, FD] = fds * UPPER_HALF
        iocbs[:, BUF] = place + memory.ctypes.data
        iocbs[:, NBYTES] = length
        iocbs[:, OFFSET] = offset
        self._filled = memory
        self._pointers[:] = numbers * _IOCB.size + self._iocbs_at
        self._queued = self._untold = rows

    def put(
        self, row: int, fd: int, memory: Bytes, address: int, offset: int, length: int, eventfd: int
    ) -> None:
        """Make one read, into `memory` at `address`, whose end is announced: fast for one."""
        if self._queued == len(self._pointers):  # make room: those in front were taken
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

    @property
    def unsent(self) -> int:
        return self._queued - self._sent

    @property
    def done(self) -> bool:
        """Whether `land` has reported every read."""
        return not self._untold

    @property
    def is_usable(self) -> bool:
        """Whether further reads can be made: not after the kernel failed to tell of one."""
        return self._context is not None

    @property
    def mine(self) -> bool:
        """False in a child process: its parent's reads will never land there."""
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
            else:  # this one request is refused: its owner reads it another way
                row = (int(self._pointers[self._sent]) - self._iocbs_at) // _IOCB.size
                self._refused.append((row, took or -errno.EAGAIN))
                self._sent += 1
        self._settled = True

    def land(self, at_least: int) -> tuple[list[int], list[int]]:
        """Return rows and results (bytes read, or a negative errno) of reads that have landed.

        Waits for so many, or for all that are in flight; `at_least` 0 does not wait. Refused reads
        are reported with those that have landed by then: an eventfd tells of these only once.
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

    def _give_up(self, context: aio.Context) -> tuple[list[int], list[int]]:
        """The kernel does not tell what has landed: wait for all of it, use it no more, and have
        every read that was not reported done another way."""
        context.close()
        self._context = None
        self.flying, self._sent = 0, self._queued
        filled = range(0 if self._filled is None else self._queued)
        rows = sorted(self._single.keys() | set(filled).difference(*self._told))
        return rows, [-errno.EIO] * len(rows)

    def close(self) -> None:
        """Wait for everything that was submitted, and give the context back if it can be."""
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
    """Return how many bytes a read of `sources` got that was refused, failed or came back short."""
    if result == -errno.EINVAL:
        sources.give_up_direct()
    return max(result, 0)
