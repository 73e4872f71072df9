"""Do many O_DIRECT reads at once by system calls: Linux AIO and io_uring.

`python -m tests.support.direct ENGINE PATH OFFSET:SIZE …` prints the length or errno of each read,
and the MD5 of its bytes. This module does not use the package.
"""

from __future__ import annotations

import ctypes
import hashlib
import mmap
import os
import platform
import struct
import sys
from collections.abc import Callable, Sequence
from typing import NamedTuple

PAGE = 4096
_ON_ARM = platform.machine() == "aarch64"
_IO_SETUP, _IO_DESTROY, _IO_SUBMIT, _IO_GETEVENTS = (
    (0, 1, 2, 4) if _ON_ARM else (206, 207, 209, 208)
)
_IO_URING_SETUP, _IO_URING_ENTER, _IORING_OP_READ = 425, 426, 22
_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


class Read(NamedTuple):
    offset: int
    size: int


class Outcome(NamedTuple):
    result: int  # number of bytes, or a negative errno
    content: bytes


def _call(number: int, *arguments: object) -> int:
    done: int = _libc.syscall(ctypes.c_long(number), *arguments)
    if done < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return done


class _Memory:
    """A page-aligned buffer for each read."""

    def __init__(self, reads: Sequence[Read]) -> None:
        self._maps = [mmap.mmap(-1, max(read.size, 1)) for read in reads]
        self.addresses = [ctypes.addressof(ctypes.c_char.from_buffer(each)) for each in self._maps]

    def outcome(self, number: int, result: int) -> Outcome:
        return Outcome(result, self._maps[number][: max(result, 0)])


def by_aio(path: str, reads: Sequence[Read]) -> list[Outcome]:
    """Do all reads with one io_submit."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
    memory, context = _Memory(reads), ctypes.c_ulong(0)
    _call(_IO_SETUP, ctypes.c_uint(len(reads)), ctypes.byref(context))
    iocbs = b"".join(
        struct.pack(
            "=QIiHhIQQqQII", number, 0, 0, 0, 0, fd, address, read.size, read.offset, 0, 0, 0
        )
        for number, (read, address) in enumerate(zip(reads, memory.addresses, strict=True))
    )
    raw = ctypes.create_string_buffer(iocbs, len(iocbs))
    at = [ctypes.addressof(raw) + 64 * number for number in range(len(reads))]
    pointers = (ctypes.c_void_p * len(reads))(*at)
    count = ctypes.c_long(len(reads))
    assert _call(_IO_SUBMIT, context, count, pointers) == len(reads)
    events = ctypes.create_string_buffer(32 * len(reads))
    assert _call(_IO_GETEVENTS, context, count, count, events, None) == len(reads)
    _call(_IO_DESTROY, context)
    os.close(fd)
    results = {number: result for number, _, result, _ in struct.iter_unpack("=QQqq", events.raw)}
    return [memory.outcome(number, results[number]) for number in range(len(reads))]


def by_uring(path: str, reads: Sequence[Read]) -> list[Outcome]:
    """Do all reads with one io_uring_enter."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
    memory, params = _Memory(reads), ctypes.create_string_buffer(120)
    ring = _call(_IO_URING_SETUP, ctypes.c_uint(len(reads)), params)
    sq_entries, cq_entries = struct.unpack_from("=II", params, 0)
    _, sq_tail, _, _, _, _, sq_array = struct.unpack_from("=7I", params, 40)
    cq_head, cq_tail, cq_mask, _, _, cqes = struct.unpack_from("=6I", params, 80)
    size = max(sq_array + 4 * sq_entries, cqes + 16 * cq_entries)
    rings = mmap.mmap(ring, size, mmap.MAP_SHARED)
    entries = mmap.mmap(ring, 64 * sq_entries, mmap.MAP_SHARED, offset=0x1000_0000)
    for number, (read, address) in enumerate(zip(reads, memory.addresses, strict=True)):
        # 22: IORING_OP_READ
        entry = struct.pack(
            "=BBHiQQIIQ24x", 22, 0, 0, fd, read.offset, address, read.size, 0, number
        )
        entries[64 * number : 64 * (number + 1)] = entry
        struct.pack_into("=I", rings, sq_array + 4 * number, number)
    struct.pack_into("=I", rings, sq_tail, len(reads))
    count, get_events = ctypes.c_uint(len(reads)), ctypes.c_uint(1)
    _call(_IO_URING_ENTER, ctypes.c_uint(ring), count, count, get_events, None, ctypes.c_size_t(0))
    (head,), (tail,) = (struct.unpack_from("=I", rings, at) for at in (cq_head, cq_tail))
    (mask,) = struct.unpack_from("=I", rings, cq_mask)
    assert tail - head == len(reads)
    results: dict[int, int] = {}
    for place in range(head, tail):
        number, result = struct.unpack_from("=Qi", rings, cqes + 16 * (place & mask))
        results[number] = result
    os.close(ring)
    os.close(fd)
    return [memory.outcome(number, results[number]) for number in range(len(reads))]


ENGINES: dict[str, Callable[[str, Sequence[Read]], list[Outcome]]] = {
    "aio": by_aio, "io_uring": by_uring
}  # fmt: skip


def why_not(engine: str) -> str | None:
    """Return the reason why this machine cannot use an engine; None if it can."""
    try:
        if engine == "aio":
            context = ctypes.c_ulong(0)
            _call(_IO_SETUP, ctypes.c_uint(1), ctypes.byref(context))
            _call(_IO_DESTROY, context)
        else:
            params = ctypes.create_string_buffer(120)
            os.close(_call(_IO_URING_SETUP, ctypes.c_uint(1), params))
    except OSError as error:
        return f"{engine} is not available: {error.strerror}"
    return None


def main() -> None:
    engine, path, *pairs = sys.argv[1:]
    reads = [Read(*map(int, pair.split(":"))) for pair in pairs]
    for result, content in ENGINES[engine](path, reads):
        print(result, hashlib.md5(content).hexdigest(), flush=True)


if __name__ == "__main__":
    main()
