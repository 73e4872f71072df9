"""The kernel's AIO calls: contexts, submit, reap, and a pool of idle contexts.

The libaio package supplies the shared library; its Python objects are not used (each costs some
10 µs). Requests are handed to the kernel by address; `aio_queue` makes and finishes them.

io_submit may take fewer requests than asked and io_getevents may be interrupted: both are loops.
"""

from __future__ import annotations

import ctypes
import errno
import os
from collections import deque
from typing import Any

import numpy as np

# struct iocb and struct io_event are 64-bit words. Words are filled faster than a structured
# array's named fields: 64 iocbs were made in 21 µs instead of 27.
#   iocb   0 data | 1 key u32, rw_flags i32 | 2 opcode u16, reqprio i16, fd u32
#          3 buf  | 4 nbytes | 5 offset | 6 reserved | 7 flags u32, resfd u32
#   event  0 data | 1 address of the iocb | 2 result | 3 0
# Words that are not set are 0, and so is the opcode of a read.
IOCB_WORDS = 8
EVENT_WORDS = 4
DATA, RW_FLAGS, FD, BUF, NBYTES, OFFSET = range(6)
UPPER_HALF = 1 << 32  # little endian: the second u32 of a word
NOTIFY = 1  # IOCB_FLAG_RESFD: the completion is announced on an eventfd

# fs.aio-max-nr (65536 by default) is shared by the whole machine: take what a batch needs, not
# more, and make do with less when it is used up.
CAPACITIES = (32, 64, 128, 256, 512, 1024)
IDLE_EACH = 2


def _load() -> Any:
    """The shared library that the libaio package finds, or None where there is none."""
    try:
        from libaio import libaio
    except (ImportError, OSError):
        return None
    return libaio.libaio


_no_time = (ctypes.c_long * 2)()  # struct timespec: do not wait
_NO_TIME_AT = ctypes.addressof(_no_time)
_lib = _load()
if _lib is not None:
    _ptr, _int, _long = ctypes.c_void_p, ctypes.c_int, ctypes.c_long
    _io_setup = ctypes.CFUNCTYPE(_int, _int, _ptr)(("io_setup", _lib))
    _io_destroy = ctypes.CFUNCTYPE(_int, _ptr)(("io_destroy", _lib))
    _io_submit = ctypes.CFUNCTYPE(_int, _ptr, _long, _ptr)(("io_submit", _lib))
    _io_getevents = ctypes.CFUNCTYPE(_int, _ptr, _long, _long, _ptr, _ptr)(("io_getevents", _lib))


def is_available() -> bool:
    """Whether there is a libaio. The kernel may refuse a context all the same."""
    return _lib is not None


class Context:
    """One kernel AIO context. Belongs to one queue at a time, and to the process that made it."""

    def __init__(self, capacity: int) -> None:
        if _lib is None:
            raise OSError(errno.ENOSYS, "libaio is not installed")
        handle = ctypes.c_void_p()
        code = _io_setup(capacity, ctypes.addressof(handle))
        if code < 0:
            raise OSError(-code, f"io_setup: {os.strerror(-code)}")
        self.capacity = capacity
        self._handle: ctypes.c_void_p | None = handle
        self._pid = os.getpid()
        events = np.zeros(capacity * EVENT_WORDS, np.int64)
        self._events = events.data
        self._events_at = events.ctypes.data

    def submit(self, iocbs_at: int, count: int) -> int:
        """How many of `count` iocb pointers the kernel took, or a negative errno for none."""
        code = -errno.EINTR
        while code == -errno.EINTR:
            code = _io_submit(self._handle, min(count, self.capacity), iocbs_at)
        return int(code)

    def reap(self, at_least: int) -> tuple[list[int], list[int]]:
        """Return data and results of completions: at least that many, or `capacity` if that is
        less. (More may be in flight: the kernel rounds a context's size up.)

        With `at_least` 0 it does not wait, and is a look into memory, not a system call.
        """
        code = -errno.EINTR
        most = self.capacity
        least, timeout_at = (min(at_least, most), None) if at_least else (0, _NO_TIME_AT)
        while code == -errno.EINTR:
            code = _io_getevents(self._handle, least, most, self._events_at, timeout_at)
        if not code:
            return [], []
        if code < 0:
            raise OSError(-code, f"io_getevents: {os.strerror(-code)}")
        # Strides of a memoryview: as fast as an array for many, and faster for a few.
        end = code * EVENT_WORDS
        return self._events[:end:EVENT_WORDS].tolist(), self._events[2:end:EVENT_WORDS].tolist()

    def close(self) -> None:
        """Wait for everything in flight and destroy it. In a forked child there is nothing to."""
        if self._handle is not None and self._pid == os.getpid():
            _io_destroy(self._handle)
        self._handle = None

    def __del__(self) -> None:
        if getattr(self, "_handle", None) is not None:
            self.close()


class ContextPool:
    """Idle contexts of this process. io_destroy waits for an RCU period: reuse is worth it."""

    def __init__(self) -> None:
        self._idle: dict[int, deque[Context]] = {c: deque() for c in CAPACITIES}

    def borrow(self, wanted: int) -> Context | None:
        """A context, for `wanted` requests if possible; None when the machine has none left."""
        fitting = next((c for c in CAPACITIES if c >= wanted), CAPACITIES[-1])
        for capacity in reversed(CAPACITIES[: CAPACITIES.index(fitting) + 1]):
            try:
                return self._idle[capacity].pop()
            except IndexError:
                pass
            try:
                return Context(capacity)
            except OSError:  # EAGAIN: used up; ENOSYS: a sandbox, or no libaio
                continue
        return None

    def give_back(self, context: Context) -> None:
        idle = self._idle[context.capacity]
        if len(idle) < IDLE_EACH:
            idle.append(context)
        else:
            context.close()

    def clear(self) -> None:
        for idle in self._idle.values():
            idle.clear()


contexts = ContextPool()
# A context does not survive a fork: the child forgets its parent's.
os.register_at_fork(after_in_child=contexts.clear)
