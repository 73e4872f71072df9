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
from collections.abc import Iterator
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ffrecord import aio
from ffrecord.engine import SourceSet
from ffrecord.errors import FFRecordError
from ffrecord.slabs import SlabPool

Bytes: TypeAlias = npt.NDArray[np.uint8]

SLOTS = 256
IDLE_BYTES = 64 << 20
_NOTIFY = 1  # IOCB_FLAG_RESFD


class ColdReads:
    """The reads of one worker. Each has a token, which comes back with its memory."""

    def __init__(self, sources: SourceSet) -> None:
        self._sources = sources
        self.eventfd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._context = aio.contexts.borrow(SLOTS) if sources.direct else None
        self._slabs = SlabPool(IDLE_BYTES)
        slots = self._context.capacity if self._context is not None else 0
        self._free = list(range(slots))
        self._iocbs = np.zeros((slots, aio.IOCB_WORDS), "<i8")
        self._iocbs_at = self._iocbs.ctypes.data
        self._pointers = (ctypes.c_uint64 * max(slots, 1))()
        self._pending: list[int] = []  # slots to submit
        self._reads: dict[int, tuple[Any, int, int, int, Bytes]] = {}
        self._done: list[tuple[Any, memoryview | FFRecordError]] = []

    @property
    def busy(self) -> bool:
        """Whether `landed` may still have something to tell."""
        return bool(self._reads or self._done)

    def add(self, token: object, file: int, begin: int, length: int) -> None:
        """A read that `submit` puts on its way, or that is done here if there is no room."""
        align = self._sources.align
        low = begin & -align
        high = begin + length + align - 1 & -align
        memory = self._slabs.take(high - low)
        if not self._free:
            self._read_by_hand(token, file, begin, memory[begin - low :][:length], 0)
            return
        slot = self._free.pop()
        self._iocbs[slot] = (
            slot, 0, int(self._sources.direct_fds[file]) << 32, memory.ctypes.data, high - low, low,
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
                self._pointers[place] = self._iocbs_at + 8 * aio.IOCB_WORDS * slot
            took = context.submit(ctypes.addressof(self._pointers), len(pending))
            if took > 0:
                del pending[:took]
            else:  # this one is refused: it is read another way
                self._land(pending.pop(0), took or -errno.EAGAIN)

    def landed(self) -> Iterator[tuple[Any, memoryview | FFRecordError]]:
        """What has arrived, or failed for good, since the last time. Does not wait."""
        self.has_landed()
        while self._done:
            yield self._done.pop()

    def has_landed(self) -> bool:
        """Whether `landed` has something to tell. A look into memory, not a system call."""
        if self._reads and self._context is not None:
            for slot, result in self._context.reap_now():
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

    def _land(self, slot: int, result: int) -> None:
        token, file, begin, length, memory = self._reads.pop(slot)
        self._free.append(slot)
        if result == -errno.EINVAL:  # O_DIRECT opens here but does not read
            self._sources.give_up_direct()
            self._free.clear()
        skip = begin & (self._sources.align - 1)
        wanted = memory[skip : skip + length]
        have = max(0, min(result - skip, length))
        if have < length:
            self._read_by_hand(token, file, begin, wanted, have)
        else:
            self._done.append((token, wanted.data))

    def _read_by_hand(self, token: object, file: int, begin: int, memory: Bytes, have: int) -> None:
        try:
            self._sources[file].read_into(memory[have:], begin + have)
        except FFRecordError as error:
            self._done.append((token, error))
        else:
            self._done.append((token, memory.data))
