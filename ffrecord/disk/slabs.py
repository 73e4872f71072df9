"""Memory for batches: aligned, on huge pages, used again.

Fresh anonymous memory costs as much as reading into it (every page is zeroed on first touch), and
4 KiB pages cost the disk a descriptor each: on this project's machines a batch of 64 x 110 kB by
O_DIRECT took 2.3 ms into small pages and 1.3 ms into huge ones. So slabs are private anonymous
mappings with MADV_HUGEPAGE, and a pool keeps those that are no longer in use.

`take` hands out a numpy array over a slab. Every view of it keeps it alive; when the last one is
gone the slab goes back to the pool by itself. Small batches get ordinary memory, so that keeping
one small record does not keep a whole slab. Safe from any number of threads: the pool is a deque
and takes no lock, because a slab may come back inside a garbage collection, on any thread.
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
SMALLEST = 256 << 10
IDLE_LIMIT = 256 << 20
ALIGN = 4096


class SlabPool:
    """Slabs by size class (powers of two), at most `idle_limit` bytes of them unused."""

    def __init__(self, idle_limit: int = IDLE_LIMIT) -> None:
        self._idle: dict[int, deque[_Slab]] = {}
        self._idle_limit = idle_limit
        # By id: a reference hashes as its array does, which is not at all.
        self._leases: dict[int, weakref.ref[Bytes]] = {}

    @property
    def idle_bytes(self) -> int:
        return sum(size * len(slabs) for size, slabs in list(self._idle.items()))

    def take(self, size: int) -> Bytes:
        """`size` bytes at an address that is a multiple of 4096, contents undefined."""
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
        # The array that views keep alive must be the one that is watched. numpy lets a view's
        # base be the outermost array over the same buffer, so this one is made from the buffer.
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
    skip: int  # from the mapping's start to the first huge page in it


def _map(capacity: int) -> _Slab:
    """A private mapping (shared ones are tmpfs, which has no huge pages by default)."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    if capacity < HUGE_PAGE:
        return _Slab(mmap.mmap(-1, capacity, flags=flags), 0)
    mapping = mmap.mmap(-1, capacity + HUGE_PAGE, flags=flags)
    # A kernel without huge pages refuses: slower, not wrong.
    with contextlib.suppress(OSError):
        mapping.madvise(mmap.MADV_HUGEPAGE)
    return _Slab(mapping, -np.frombuffer(mapping, np.uint8).ctypes.data % HUGE_PAGE)
