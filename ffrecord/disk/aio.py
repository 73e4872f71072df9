"""Linux AIO system calls: contexts, submit, reap, and a pool of idle contexts.

The libaio package supplies the shared library. Its Python objects are not used: each costs some
10 µs. Requests are passed to the kernel by address; `aio_queue` makes and finishes them.

io_submit and io_getevents are repeated here if a signal interrupts them. io_submit may also accept
fewer requests than it is given: `AioQueue.launch` submits the rest.
"""

from __future__ import annotations

import ctypes
import errno
import os
from collections import deque
from typing import Any

import numpy as np

from ffrecord.aliases import Ints

# struct iocb and struct io_event as 64-bit words. Filling words is faster than filling the named
# fields of a structured array: 64 iocbs took 21 µs instead of 27.
#   iocb   0 data | 1 key u32, rw_flags i32 | 2 opcode u16, reqprio i16, fd u32
#          3 buf  | 4 nbytes | 5 offset | 6 reserved | 7 flags u32, resfd u32
#   event  0 data | 1 address of the iocb | 2 result | 3 0
# Unset words are 0. The opcode of a read is 0 too.
IOCB_WORDS = 8
EVENT_WORDS = 4
DATA, RW_FLAGS, FD, BUF, NBYTES, OFFSET, _RESERVED, FLAGS = range(IOCB_WORDS)
UPPER_HALF = 1 << 32  # little endian: the second u32 of a word
NOTIFY = 1  # IOCB_FLAG_RESFD: the completion is announced on an eventfd

# The whole machine shares fs.aio-max-nr requests (65536 by default). So a batch gets a context of
# the size that it needs, or a smaller one when the machine has no more.
CAPACITIES = (32, 64, 128, 256, 512, 1024)
IDLE_EACH = 2  # idle contexts that are kept for each capacity


def _load() -> Any:
    """Return the system's libaio, which the Python package libaio loads; None if one is missing."""
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
    """Return True if libaio is installed. The kernel may still refuse a context."""
    return _lib is not None


class Requests:
    """Memory for one iocb per row, with the row number as data, and for pointers to iocbs."""

    def __init__(self, rows: int) -> None:
        words = np.zeros(rows * (IOCB_WORDS + 1), "<i8")
        self.iocbs = words[:-rows].reshape(rows, IOCB_WORDS)
        self.iocbs[:, DATA] = np.arange(rows)
        self.at = words.ctypes.data
        self.data = self.iocbs.data
        self.addresses = np.arange(rows) * (IOCB_WORDS * words.itemsize) + self.at
        self.pointers = words[-rows:]
        self.pointers_at = self.at + self.iocbs.nbytes


class Context:
    """One AIO context of the kernel.

    It belongs to one queue at a time, and to the process that created it.
    """

    def __init__(self, capacity: int) -> None:
        if _lib is None:
            what = "libaio is not installed; install the system package libaio1 or libaio1t64"
            raise OSError(errno.ENOSYS, what)
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
        self._event_rows = events.reshape(capacity, EVENT_WORDS)
        self._requests: Requests | None = None

    def requests(self, rows: int) -> Requests:
        """Return memory for at least `rows` requests. It is reused, because new memory is slow."""
        if rows > self.capacity:
            return Requests(rows)
        self._requests = self._requests or Requests(self.capacity)
        return self._requests

    def submit(self, iocbs_at: int, count: int) -> int:
        """Submit `count` iocb pointers; return how many the kernel took, or a negative errno."""
        code = -errno.EINTR
        while code == -errno.EINTR:
            code = _io_submit(self._handle, min(count, self.capacity), iocbs_at)
        return int(code)

    def reap(self, at_least: int) -> tuple[list[int], list[int]]:
        """Wait for completions; return their data words and their results."""
        # A memoryview with strides is as fast as an array for many events, and faster for a few.
        end = self._wait(at_least) * EVENT_WORDS
        return self._events[:end:EVENT_WORDS].tolist(), self._events[2:end:EVENT_WORDS].tolist()

    def reap_into(self, results: Ints, at_least: int) -> int:
        """Wait for completions; store each result at its data word, and return their number."""
        count = self._wait(at_least)
        events = self._event_rows[:count]
        results[events[:, 0]] = events[:, 2]
        return count

    def _wait(self, at_least: int) -> int:
        """Wait for completions, and return their number.

        Waits for `at_least` completions, or for `capacity` if that is less. (More requests may be
        in flight, because the kernel rounds a context's size up.) With `at_least` 0 it does not
        wait, and libaio looks into shared memory without a system call.
        """
        code = -errno.EINTR
        most = self.capacity
        least, timeout_at = (min(at_least, most), None) if at_least else (0, _NO_TIME_AT)
        while code == -errno.EINTR:
            code = _io_getevents(self._handle, least, most, self._events_at, timeout_at)
        if code < 0:
            raise OSError(-code, f"io_getevents: {os.strerror(-code)}")
        return int(code)

    def close(self) -> None:
        """Wait for everything in flight, and destroy the context; a no-op in a forked child."""
        if self._handle is not None and self._pid == os.getpid():
            _io_destroy(self._handle)
        self._handle = None

    def __del__(self) -> None:
        if getattr(self, "_handle", None) is not None:
            self.close()


class ContextPool:
    """Idle contexts of this process, for reuse: io_destroy is slow (it waits for RCU)."""

    def __init__(self) -> None:
        self._idle: dict[int, deque[Context]] = {c: deque() for c in CAPACITIES}

    def borrow(self, wanted: int) -> Context | None:
        """Return a context for `wanted` requests, or a smaller one; None if none is available."""
        fitting = next((c for c in CAPACITIES if c >= wanted), CAPACITIES[-1])
        for capacity in reversed(CAPACITIES[: CAPACITIES.index(fitting) + 1]):
            try:
                return self._idle[capacity].pop()
            except IndexError:
                pass
            try:
                return Context(capacity)
            except OSError:  # EAGAIN: fs.aio-max-nr is used up; ENOSYS: a sandbox, or no libaio
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
# Contexts do not survive a fork, so a forked child forgets its parent's contexts.
os.register_at_fork(after_in_child=contexts.clear)
