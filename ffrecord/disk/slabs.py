"""Memory for batches: aligned, on huge pages, and reused.

Fresh anonymous memory costs as much as reading into it, because the kernel zeroes every page on
first touch. And a request to the disk needs a descriptor for each 4 KiB page. On this project's
machines, a batch of 64 x 110 kB by O_DIRECT took 2.3 ms into small pages and 1.3 ms into huge ones.
So slabs are private anonymous mappings with MADV_HUGEPAGE, and a pool keeps unused slabs.

`take` returns a numpy array over a slab. Every view of the array keeps the slab in use. When the
last view is gone, the slab returns to the pool by itself. Small batches get ordinary memory, so
that one small record that the caller keeps does not keep a whole slab.

The pool is safe for any number of threads. It uses deques and no lock, because a slab may return
during a garbage collection, on any thread.
"""

from __future__ import annotations

import contextlib
import mmap
import weakref
from collections import deque
from dataclasses import dataclass

import numpy as np

from ffrecord.aliases import Bytes

HUGE_PAGE = 2 << 20
SMALLEST = 256 << 10  # smaller batches get ordinary memory
IDLE_LIMIT = 256 << 20
ALIGN = 4096


class SlabPool:
    """Pool of slabs in sizes of powers of two. Keeps at most `idle_limit` unused bytes."""

    def __init__(self, idle_limit: int = IDLE_LIMIT) -> None:
        self._idle: dict[int, deque[_Slab]] = {}
        self._idle_limit = idle_limit
        # By id, because a weak reference to an array cannot be hashed.
        self._leases: dict[int, weakref.ref[Bytes]] = {}

    @property
    def idle_bytes(self) -> int:
        return sum(size * len(slabs) for size, slabs in list(self._idle.items()))

    def take(self, size: int) -> Bytes:
        """Return `size` bytes of undefined content, at an address that is a multiple of 4096."""
        if size < SMALLEST:
            memory = np.empty(size + ALIGN, np.uint8)
            skip = -memory.ctypes.data % ALIGN
            return memory[skip : skip + size]
        capacity = 1 << (size - 1).bit_length()
        idle = self._idle.setdefault(capacity, deque())
        try:
            slab = idle.pop()
        except IndexError:
            slab = _map(capacity)
        # Views must keep alive exactly the array that the weak reference watches. A view's base
        # in numpy is the outermost array over the buffer, so this array is made from the buffer.
        lease = np.frombuffer(slab.mapping, np.uint8, size, slab.skip)

        def give_back(ref: weakref.ref[Bytes]) -> None:
            self._leases.pop(id(ref), None)
            if self.idle_bytes + capacity <= self._idle_limit:
                idle.append(slab)

        watch = weakref.ref(lease, give_back)
        self._leases[id(watch)] = watch
        return lease


@dataclass(frozen=True, slots=True)
class _Slab:
    mapping: mmap.mmap
    skip: int  # bytes from the start of the mapping to its first huge page


def _map(capacity: int) -> _Slab:
    """Return a new slab, a private mapping. Shared mappings have no huge pages by default."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    if capacity < HUGE_PAGE:
        return _Slab(mmap.mmap(-1, capacity, flags=flags), 0)
    mapping = mmap.mmap(-1, capacity + HUGE_PAGE, flags=flags)
    # A kernel without huge pages refuses. Small pages are slower, but work.
    with contextlib.suppress(OSError):
        mapping.madvise(mmap.MADV_HUGEPAGE)
    return _Slab(mapping, -np.frombuffer(mapping, np.uint8).ctypes.data % HUGE_PAGE)
