"""Linux AIO on numpy arrays: iocbs, contexts, submit, reap.

The libaio package supplies the shared library; its Python objects are not used (each costs some
10 µs). A batch's iocbs are one array, handed to the kernel by address.

io_submit may take fewer requests than asked and io_getevents may be interrupted: both are loops.
A request that the kernel refuses, or ends short or with an error, is reported to the caller with
what it got; finishing it is the engine's business. `Flight` keeps memory and context together:
`close` waits until the kernel has let go of the memory, whatever happened before. That includes a
signal handler that raises, Ctrl-C for one: it may do so between a system call and the line that
notes its result, so that nobody knows what is in flight. Such a context is destroyed, not reused;
io_destroy waits for everything, and no signal cuts it short.

AIO pays only on O_DIRECT descriptors: io_submit is synchronous on buffered ones. That in turn
makes it a way to copy a whole batch out of the page cache in one system call.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from collections import deque
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ffrecord.aliases import Bytes, Ints

Events: TypeAlias = npt.NDArray[np.void]

# struct iocb is 64 bytes. Eight 64-bit words are filled faster than a structured array's named
# fields: a flight of 64 was made in 21 µs instead of 27. What is not set is 0; so is the opcode of
# a read.
#   word  0 data | 1 key u32, rw_flags i32 | 2 opcode u16, reqprio i16, fd u32
#         3 buf  | 4 nbytes | 5 offset | 6 reserved | 7 flags u32, resfd u32
IOCB_WORDS = 8
DATA, RW_FLAGS, FD, BUF, NBYTES, OFFSET = range(6)
UPPER_HALF = 1 << 32  # little endian: the second u32 of a word
_EVENT = struct.Struct("<Q8xq8x")  # data and res of an event
EVENT = np.dtype([("data", "<u8"), ("obj", "<u8"), ("res", "<i8"), ("res2", "<i8")])

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
    """One kernel AIO context. Belongs to one flight at a time, and to the process that made it."""

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
        self._events = np.zeros(capacity, EVENT)
        self._events_at = self._events.ctypes.data
        self._event_bytes = memoryview(self._events.view(np.uint8))  # type: ignore[arg-type]

    def submit(self, iocbs_at: int, count: int) -> int:
        """How many of `count` iocb pointers the kernel took, or a negative errno for none."""
        code = -errno.EINTR
        while code == -errno.EINTR:
            code = _io_submit(self._handle, min(count, self.capacity), iocbs_at)
        return int(code)

    def reap(self, at_least: int) -> Events:
        """Completions, at least that many, or `capacity` if that is less. Valid until the next
        call. (More may be in flight: the kernel rounds a context's size up.)"""
        code = -errno.EINTR
        at_least = min(at_least, self.capacity)
        while code == -errno.EINTR:
            code = _io_getevents(self._handle, at_least, self.capacity, self._events_at, None)
        if code < 0:
            raise OSError(-code, f"io_getevents: {os.strerror(-code)}")
        return self._events[:code]

    def reap_now(self) -> list[tuple[int, int]]:
        """(data, result) of what has completed; does not wait."""
        code = -errno.EINTR
        while code == -errno.EINTR:
            code = _io_getevents(self._handle, 0, self.capacity, self._events_at, _NO_TIME_AT)
        if code < 0:
            raise OSError(-code, f"io_getevents: {os.strerror(-code)}")
        return list(_EVENT.iter_unpack(self._event_bytes[: code * EVENT.itemsize]))

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


class Flight:
    """Reads into one piece of memory, submitted in order and landing in any."""

    def __init__(
        self, context: Context, memory: Bytes, fds: Ints | int,
        place: Ints, offset: Ints, length: Ints, rw_flags: int = 0,
    ) -> None:  # fmt: skip
        self._context: Context | None = context
        self._settled = True  # what is in flight is known
        self._total = self._sent = self._landed = 0
        self._refused: list[tuple[int, int]] = []
        self._told: list[list[int]] = []  # what has landed, by wave
        self._pid = os.getpid()
        self._memory = memory  # the kernel writes into it: it must live until everything landed
        count = len(offset)
        numbers = np.arange(count)
        iocbs = np.zeros((count, IOCB_WORDS), "<i8")
        iocbs[:, DATA] = numbers
        iocbs[:, RW_FLAGS] = rw_flags * UPPER_HALF
        iocbs[:, FD] = fds * UPPER_HALF
        iocbs[:, BUF] = place + memory.ctypes.data
        iocbs[:, NBYTES] = length
        iocbs[:, OFFSET] = offset
        self._iocbs = iocbs
        self._pointers = numbers * iocbs.strides[0] + iocbs.ctypes.data
        self._pointers_at = self._pointers.ctypes.data
        self._total = count

    @property
    def flying(self) -> int:
        return self._sent - self._landed

    @property
    def unsent(self) -> int:
        return self._total - self._sent

    def launch(self, up_to: int) -> None:
        """Submit reads until `up_to` are in flight or the kernel takes no more for now."""
        context = self._context
        assert context is not None
        self._settled = False
        while self._sent < self._total and self.flying < up_to:
            count = min(self._total - self._sent, up_to - self.flying)
            took = context.submit(self._pointers_at + 8 * self._sent, count)
            if took > 0:
                self._sent += took
            elif took in (0, -errno.EAGAIN) and self.flying:
                break
            else:  # this one request is refused: the caller reads it another way
                self._refused.append((self._sent, took or -errno.EAGAIN))
                self._sent += 1
                self._landed += 1
        self._settled = True

    def land(self, at_least: int) -> tuple[list[int], list[int]]:
        """(read numbers, results) of what has landed: bytes read, or a negative errno."""
        context = self._context
        assert context is not None
        if self._refused:
            refused, self._refused = self._refused, []
            numbers = [number for number, _ in refused]
            self._told.append(numbers)
            return numbers, [result for _, result in refused]
        self._settled = False
        try:
            events = context.reap(min(max(at_least, 1), self.flying))
        except OSError:
            return self._ditch(context)
        self._landed += len(events)
        self._settled = True
        numbers = events["data"].tolist()
        self._told.append(numbers)
        return numbers, events["res"].tolist()

    def _ditch(self, context: Context) -> tuple[list[int], list[int]]:
        """When the kernel does not tell what has landed: wait for all of it, and have whatever was
        not told of read another way."""
        context.close()
        self._context = None
        missing = sorted(set(range(self._total)).difference(*self._told))
        self._sent = self._landed = self._total
        self._settled = True
        return missing, [-errno.EIO] * len(missing)

    @property
    def done(self) -> bool:
        return self._landed == self._total and not self._refused

    @property
    def mine(self) -> bool:
        """False in a child process: its parent's reads will never land there."""
        return self._pid == os.getpid()

    def close(self) -> None:
        """Wait for everything that was submitted, and give the context back if it can be."""
        context = self._context
        if context is None or not self.mine:
            return
        while self._settled and self.flying:
            self.land(self.flying)
        if self._context is None:
            return
        if self._settled:
            self._context = None
            contexts.give_back(context)
        else:
            context.close()
            self._context = None

    def __del__(self) -> None:
        if hasattr(self, "_pid"):
            self.close()
