"""Reads that go to the disk: many in flight, completions announced on an eventfd.

O_DIRECT, so that what is read is cached once, in the pages of the mount, and not in those of the
archive too. One context and a fixed number of slots for as long as a worker lives. What the
kernel does not take, fails or ends short is finished by a plain read, and only what that cannot
read is an error.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import struct
from collections.abc import Iterator
from typing import Any

import numpy as np

from ffrecord.aliases import Bytes
from ffrecord.disk import aio, slabs
from ffrecord.disk.source import SourceSet
from ffrecord.errors import FFRecordError

SLOTS = 256
SLOT_BYTES = 32 << 10
NO_SLOT = -1
IDLE_BYTES = 64 << 20
_IOCB = struct.Struct(f"<{aio.IOCB_WORDS}q")
_NOTIFY = 1  # IOCB_FLAG_RESFD


class ColdReads:
    """The reads of one worker. Each has a token, which comes back with its memory."""

    def __init__(self, sources: SourceSet) -> None:
        self._sources = sources
        self.eventfd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._context = aio.contexts.borrow(SLOTS) if sources.direct else None
        self._direct_fds: list[int] = sources.direct_fds.tolist()
        slots = self._context.capacity if self._context is not None else 0
        self._free = list(range(slots))
        # Small reads have memory of their slot's own: to get some takes longer than to fill it.
        self._slabs = slabs.SlabPool(IDLE_BYTES)
        memory = self._slabs.take(max(slots, 1) * SLOT_BYTES)
        self._memory = [memory[SLOT_BYTES * slot :][:SLOT_BYTES] for slot in range(slots)]
        self._memory_at = memory.ctypes.data
        self._iocbs = bytearray(_IOCB.size * max(slots, 1))
        self._iocbs_at = np.frombuffer(self._iocbs, np.uint8).ctypes.data
        self._pointers = (ctypes.c_uint64 * max(slots, 1))()
        self._pointers_at = ctypes.addressof(self._pointers)
        self._pending: list[int] = []  # slots to submit
        self._reads: dict[int, tuple[Any, int, int, int, Bytes]] = {}
        self._done: list[tuple[Any, memoryview | FFRecordError, int]] = []  # with its slot

    @property
    def busy(self) -> bool:
        """Whether `landed` may still have something to tell."""
        return bool(self._reads or self._done)

    @property
    def has_room(self) -> bool:
        """Whether there is room to spare: without any, `add` waits for what it reads."""
        return len(self._free) > len(self._memory) // 2

    def add(self, token: object, file: int, begin: int, length: int, *, kept: bool = False) -> None:
        """A read that `submit` puts on its way, or that is done here if there is no room.

        Its memory is that of its slot, unless it is large, or is to be `kept`.
        """
        align = self._sources.align
        low = begin & -align
        high = begin + length + align - 1 & -align
        if not self._free:
            memory = self._slabs.take(length)
            self._read_by_hand(token, file, begin, memory, 0, NO_SLOT)
            return
        if high - low <= SLOT_BYTES and not kept:
            slot = self._free.pop()
            memory, address = self._memory[slot], self._memory_at + SLOT_BYTES * slot
        else:
            # Smaller memory is not used again, and fresh memory takes as long as filling it does.
            # Before the slot, which would be lost where there is none.
            memory = self._slabs.take(max(high - low, slabs.SMALLEST))
            slot = self._free.pop()
            address = memory.ctypes.data
        _IOCB.pack_into(
            self._iocbs, _IOCB.size * slot,
            slot, 0, self._direct_fds[file] << 32, address, high - low, low,
            0, _NOTIFY | self.eventfd << 32,
        )  # fmt: skip
        self._reads[slot] = (token, file, begin, length, memory)
        self._pending.append(slot)

    def submit(self) -> None:
        """Put everything on its way that was added since the last time, in one system call."""
        pending, context = self._pending, self._context
        while pending:
            assert context is not None
            for place, slot in enumerate(pending):
                self._pointers[place] = self._iocbs_at + _IOCB.size * slot
            took = context.submit(self._pointers_at, len(pending))
            if took > 0:
                del pending[:took]
            else:  # this one is refused: it is read another way
                self._land(pending.pop(0), took or -errno.EAGAIN)

    def landed(self) -> Iterator[tuple[Any, memoryview | FFRecordError]]:
        """What has arrived, or failed for good, since the last time. Does not wait.

        The memory of each that was not to be kept is there until the next is asked for.
        """
        self.has_landed()
        while self._done:
            token, result, slot = self._done.pop()
            yield token, result
            if slot != NO_SLOT and self._uses_slots:
                self._free.append(slot)

    def has_landed(self) -> bool:
        """Whether `landed` has something to tell. A look into memory, not a system call."""
        if self._reads and self._context is not None:
            try:
                landed = self._context.reap_now()
            except OSError:
                self._go_on_by_hand(self._context)
            else:
                for slot, result in landed:
                    self._land(slot, result)
        return bool(self._done)

    def clear_event(self) -> None:
        """Take note of what the eventfd has told."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self.eventfd)

    def close(self) -> None:
        """Wait until the kernel has let go of the memory."""
        if self._context is not None:
            self._context.close()
            self._context = None
        os.close(self.eventfd)

    @property
    def _uses_slots(self) -> bool:
        return self._context is not None and self._sources.direct

    def _go_on_by_hand(self, context: aio.Context) -> None:
        """The kernel does not tell what has landed: wait for all of it, and use it no more."""
        context.close()
        self._context = None
        self._pending.clear()
        self._free.clear()
        for slot in list(self._reads):
            self._land(slot, -errno.EIO)

    def _land(self, slot: int, result: int) -> None:
        token, file, begin, length, memory = self._reads.pop(slot)
        if result == -errno.EINVAL:  # O_DIRECT opens here but does not read: no slot is used again
            self._sources.give_up_direct()
            self._free.clear()
        if not self._uses_slots:
            slot = NO_SLOT
        skip = begin & (self._sources.align - 1)
        wanted = memory[skip : skip + length]
        have = max(0, min(result - skip, length))
        if have < length:
            self._read_by_hand(token, file, begin, wanted, have, slot)
        else:
            self._done.append((token, wanted.data, slot))

    def _read_by_hand(
        self, token: object, file: int, begin: int, memory: Bytes, have: int, slot: int
    ) -> None:
        try:
            self._sources[file].read_into(memory[have:], begin + have)
        except FFRecordError as error:
            self._done.append((token, error, slot))
        else:
            self._done.append((token, memory.data, slot))
