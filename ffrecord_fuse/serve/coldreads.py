"""Read from the disk: many reads in flight, and an eventfd that announces their completion.

Reads use O_DIRECT, so that data is cached once, for the mount, and not a second time for the
archive. Each worker has one `AioQueue` with a fixed number of slots.

A plain read in a thread replaces a read that cannot be queued (no O_DIRECT, no AIO, no free slot).
A plain read also completes a read that failed or returned too few bytes. The result is an error
only if the plain read fails. The loop does not wait for reads; `reading` names two exceptions.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from ffrecord.aliases import Bytes
from ffrecord.disk import aio, slabs
from ffrecord.disk.aio_queue import AioQueue, bytes_got
from ffrecord.disk.source import SourceSet
from ffrecord_fuse.serve.background import Background, problem_with
from ffrecord_fuse.serve.piecereads import Facts, PieceReads

SLOTS = 256
"""The most queued reads."""
SLOT_BYTES = 32 << 10
"""The memory of each slot. Larger reads get separate memory."""
NO_SLOT = -1
IDLE_BYTES = 64 << 20
"""The most unused memory to keep for later reads."""
THREADS = 8
"""The most plain reads at a time. A network disk answers several reads in the time of one."""


class ColdReads:
    """The disk reads of one worker. Each read has a token, which `landed` yields with the data."""

    def __init__(
        self, sources: SourceSet, tell_disk: Callable[[Facts], None] = lambda facts: None,
        eventfd: int | None = None,
    ) -> None:  # fmt: skip
        self._sources = sources
        self.pieces = PieceReads(sources, tell_disk)
        if eventfd is None:
            eventfd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.eventfd = eventfd  # `close` closes it
        context = aio.contexts.borrow(SLOTS) if sources.direct else None
        slots = context.capacity if context is not None else 0
        self._queue = AioQueue(context, slots) if context is not None else None
        self._direct_fds: list[int] = sources.direct_fds.tolist()
        self._free = list(range(slots))
        # Each slot has its memory for small reads, because allocating takes longer than filling.
        self._slabs = slabs.SlabPool(IDLE_BYTES)
        memory = self._slabs.take(max(slots, 1) * SLOT_BYTES)
        self._memory = [memory[SLOT_BYTES * slot :][:SLOT_BYTES] for slot in range(slots)]
        self._memory_at = memory.ctypes.data
        self._reads: dict[int, tuple[Any, int, int, int, Bytes, bool]] = {}  # slot -> queued read
        self._plain = Background(self.eventfd, THREADS)
        self._done: list[tuple[Any, memoryview | Exception, int]] = []  # token, result, slot

    @property
    def busy(self) -> bool:
        """True while reads are in flight, or have ended but were not yielded by `landed`."""
        return bool(self._reads or self._done or self._plain.under_way)

    @property
    def has_room(self) -> bool:
        """True if over half of the slots are free. Reads without a slot share a few threads."""
        return len(self._free) > len(self._memory) // 2

    def add(self, token: object, file: int, begin: int, length: int, *, kept: bool = False) -> None:
        """Add a read for `submit` to send. Without a free slot, a thread reads at once.

        The read uses the memory of its slot. A large read, or a read with `kept`, gets separate
        memory.
        """
        piece = 0 if kept else self.pieces.piece_for(length)
        if piece:
            memory = self._slabs.take(length)
            self._run(
                (token, memory, NO_SLOT), partial(self.pieces.read, file, begin, memory, piece)
            )
            return
        if self._queue is None or not self._free:
            self._finish(token, file, begin, self._slabs.take(length), 0, NO_SLOT)
            return
        align = self._sources.align
        low = begin & -align
        high = begin + length + align - 1 & -align
        if high - low <= SLOT_BYTES and not kept:
            slot = self._free.pop()
            memory, address = self._memory[slot], self._memory_at + SLOT_BYTES * slot
        else:
            # Take at least SMALLEST: smaller slabs are not reused, and allocating takes as long as
            # filling. Take the memory before the slot: if that fails, no slot is lost.
            memory = self._slabs.take(max(high - low, slabs.SMALLEST))
            slot = self._free.pop()
            address = memory.ctypes.data
        fd = self._direct_fds[file]
        self._reads[slot] = (token, file, begin, length, memory, kept)
        self._queue.put(slot, fd, memory, address, low, high - low, self.eventfd)

    def submit(self) -> None:
        """Send all reads that were added since the last call, in one system call."""
        if self._queue is not None and self._queue.unsent:
            self._queue.launch(len(self._memory))

    def landed(self) -> Iterator[tuple[Any, memoryview | Exception]]:
        """Yield the token and the data, or the error, of each completed read. Does not wait.

        The data is valid only until the next item, unless the read was added with `kept`.
        """
        self.has_landed()
        while self._done:
            token, result, slot = self._done.pop()
            yield token, result
            if slot != NO_SLOT and self._uses_slots:
                self._free.append(slot)

    def has_landed(self) -> bool:
        """Return True if `landed` has something to yield. Looks into memory, no system call."""
        if self._reads and self._queue is not None:
            for slot, result in zip(*self._queue.land(0), strict=True):
                self._land(slot, result)
        if self._plain.under_way:
            for (token, memory, slot), problem in self._plain.ended():
                self._note(token, memory, slot, problem)
        return bool(self._done)

    def clear_event(self) -> None:
        """Reset the eventfd."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self.eventfd)

    def close(self) -> None:
        """Wait until the kernel and all threads have finished with the memory."""
        if self._queue is not None:
            self._queue.close()
        self._plain.close()
        os.close(self.eventfd)

    @property
    def _uses_slots(self) -> bool:
        return self._queue is not None and self._queue.is_usable and self._sources.direct

    def _land(self, slot: int, result: int) -> None:
        token, file, begin, length, memory, kept = self._reads.pop(slot)
        if not kept:
            self.pieces.landed(length)
        skip = begin & (self._sources.align - 1)
        wanted = memory[skip : skip + length]
        if result >= skip + length:
            self._done.append((token, wanted.data, slot))
            return
        have = max(0, bytes_got(self._sources, result) - skip)
        if not self._uses_slots:  # AIO or O_DIRECT failed for good: queue no more reads
            self._free.clear()
        self._finish(token, file, begin, wanted, have, slot)

    def _note(self, token: object, memory: Bytes, slot: int, problem: Exception | None) -> None:
        self._done.append((token, memory.data if problem is None else problem, slot))

    def _finish(
        self, token: object, file: int, begin: int, memory: Bytes, have: int, slot: int
    ) -> None:
        """Read the missing bytes in a thread, or right here if no thread can be started."""
        read = partial(self._sources[file].read_into, memory[have:], begin + have)
        self._run((token, memory, slot), read)

    def _run(self, read: tuple[object, Bytes, int], work: Callable[[], None]) -> None:
        try:
            self._plain.run(read, work)
        except RuntimeError:
            self._note(*read, problem_with(work))
