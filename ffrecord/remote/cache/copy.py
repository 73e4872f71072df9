"""One version of an object in the cache: the blocks that are there, reads, writes.

A block passes through three steps. It is written into the copy, with a recent entry in the map.
From then on all processes of the machine read it, because they share the page cache. The copy is
flushed to disk. Then the recent entry is replaced by a durable one. The last two steps are done for
many blocks at once, by the thread of `publisher`. Recent entries end with the run of the kernel, so
after a power cut every entry that counts leads to a block that is on disk.

A block that was found in the map is THERE. Records that are checked may be read from it. All other
bytes are read from VERIFIED blocks only: those that this process has written or has checked.

Any number of threads may use a `Copy`, and so may a forked process.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import threading
import time
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from ffrecord.aliases import Bytes, Ints, Mask
from ffrecord.atomic.direct import write_all
from ffrecord.format import cachemap
from ffrecord.format.cachemap import BLOCK, MapHeader
from ffrecord.format.checksum import crc32
from ffrecord.remote.cache import publisher, trouble
from ffrecord.remote.cache.folder import COPY, CacheFolder, recent_seed, seeds

MISSING, THERE, VERIFIED = 0, 1, 2

Crcs: TypeAlias = npt.NDArray[np.uint32]

LOOK_AGAIN = 0.25
"""Seconds between two looks at the whole map, for blocks that other processes have added. The
entries of blocks that would have to be requested are looked at each time."""

LOOK_AT = 512
"""Entries that are read with that of a missing block: 4 KiB of the map, 32 MiB of the object."""

MOST_ENTRIES = 1 << 17
"""Entries of the map that are read at once. The map of a large object is longer than 100 MB."""

MOST_UNPUBLISHED = 64 << 20
"""Bytes after which blocks are flushed at once. A flush that has more to do holds up other users of
the disk."""

_notes = itertools.count()


@dataclass(frozen=True, slots=True)
class LocalCopy:
    """A whole object on the local disk. Its bytes stay there while this object is in use.

    The lock belongs to the open file `pin`. It also lasts while another process has a duplicate of
    `pin`, for example a child that inherited it.
    """

    path: str
    fd: int
    pin: int
    copy: Copy


class Copy:
    """The local copy of one version of an object."""

    def __init__(self, folder: CacheFolder, name: str, header: MapHeader) -> None:
        self._folder = folder
        self.path = folder.file(name, COPY)
        self.header, self._fd, self._map_fd = folder.open_files(name, header)
        self._descriptors = _Descriptors(self._fd, self._map_fd)
        self.usable = True
        self._writable = True
        self._lock = threading.Lock()
        self._flushing = threading.Lock()  # while entries are written, no block is put right
        self._process = os.getpid()
        self._seeds, self._recent_seed = seeds(self.header), recent_seed(self.header)
        self._state = np.zeros(self.header.blocks, np.uint8)
        self._crcs = np.zeros(self.header.blocks, np.uint32)
        self._expected: dict[int, tuple[int, int]] = {}  # runs of blocks that are on their way
        self._unpublished: list[int] = []
        self._whole = False
        self._looked, self._changed = 0.0, -1
        self._look()
        _copies.add(self)

    @property
    def size(self) -> int:
        """Size of the object."""
        return self.header.size

    @property
    def is_named(self) -> bool:
        """True unless the files were removed, for example by `ffrecord cache rm`."""
        return all(os.fstat(fd).st_nlink for fd in (self._fd, self._map_fd))

    # ---- the blocks that are there -------------------------------------------------------

    @property
    def is_whole(self) -> bool:
        """True if all blocks are there."""
        if not self._whole:
            self._whole = self.usable and bool(self._state.all())
        return self._whole and self.usable

    @property
    def bytes_there(self) -> int:
        """Bytes of all blocks that are there."""
        last = self.size - (self.header.blocks - 1) * BLOCK
        blocks = int(np.count_nonzero(self._state))
        return blocks * BLOCK - (BLOCK - last if blocks and self._state[-1] else 0)

    def has_each(self, begin: Ints, end: Ints, *, verified: bool) -> Mask:
        """Return a mask of the ranges whose blocks are all there. No range is empty."""
        if not self.usable:
            return np.zeros(len(begin), bool)
        blocks, starts = _blocks_of(begin, end)
        mask = self._have(blocks, starts, verified)
        if not mask.all() and (self._look() | self._look_at(blocks)):
            mask = self._have(blocks, starts, verified)
        return mask

    def _have(self, blocks: Ints, starts: Ints, verified: bool) -> Mask:
        """Return a mask of the runs in `blocks`, which begin at `starts`, that are all there."""
        if verified:
            self._verify(np.unique(blocks))
        least = VERIFIED if verified else THERE
        mask: Mask = np.minimum.reduceat(self._state[blocks], starts) >= least
        return mask

    # No locks here: a garbage collection may drop a batch that nobody wants, in any thread.

    @property
    def expects_any(self) -> bool:
        """True if blocks are on their way, and can be kept."""
        if not self._expected:
            return False
        return self.usable and self._writable and not self._folder.is_paused

    def expect(self, begin: int, end: int) -> int:
        """Note that the bytes [begin, end) are on their way; return a number for the note."""
        number = next(_notes)
        self._expected[number] = begin // BLOCK, -(-end // BLOCK)
        return number

    def expect_no_more(self, number: int) -> None:
        """Forget a note: the bytes have been put into the copy, or will not come."""
        self._expected.pop(number, None)

    def expects_each(self, begin: Ints, end: Ints) -> Mask:
        """Return a mask of the ranges whose blocks are all there or on their way."""
        spans = np.array(sorted(self._expected.copy().values()) or [(0, 0)])
        first, last = spans[:, 0], np.maximum.accumulate(spans[:, 1])
        blocks, starts = _blocks_of(begin, end)
        place = first.searchsorted(blocks, side="right") - 1
        expected = (place >= 0) & (blocks < last[place])
        mask: Mask = np.logical_and.reduceat(expected | (self._state[blocks] != MISSING), starts)
        return mask

    def _verify(self, numbers: Ints) -> None:
        """Check those of these blocks that this process has not checked yet. Drop damaged ones."""
        for number in numbers[self._state[numbers] == THERE].tolist():
            if self._is_right(number):
                self._state[number] = VERIFIED
            else:
                self._forget(number)

    def _is_right(self, number: int) -> bool:
        block = self._read(number * BLOCK, min(BLOCK, self.size - number * BLOCK))
        return block is not None and crc32(block) == self._crcs[number]

    def _forget(self, number: int) -> None:
        """Remove a block from the map. Its bytes stay, for readers that verify by themselves."""
        self._state[number] = MISSING
        self._whole = False
        self._write_entries(number, bytes(cachemap.ENTRY.itemsize))

    def run(self, begin: int, end: int, *, verified: bool = True) -> tuple[bool, int]:
        """Return whether the byte at `begin` is in a block that is there, and how far that holds.

        Blocks are `verified` up to `end`. The second value is at most `end`.
        """
        first, last = begin // BLOCK, -(-end // BLOCK)
        if verified:
            self._verify(np.arange(first, last))
        there = self._state[first:last] >= (VERIFIED if verified else THERE)
        other = np.flatnonzero(there != there[0])
        return bool(there[0]), min(end, (first + int(other[0])) * BLOCK) if len(other) else end

    def _look(self) -> bool:
        """Look for blocks that other processes have added; return True if there are any."""
        now = time.monotonic()
        if now - self._looked < LOOK_AGAIN and self._changed >= 0:
            return False
        self._looked = now
        try:
            changed = os.fstat(self._map_fd).st_mtime_ns
        except OSError as error:
            self.give_up(error)
            return False
        if changed == self._changed:
            return False
        self._changed = changed
        return self._read_entries(0, self.header.blocks)

    def _look_at(self, blocks: Ints) -> bool:
        """Look for some blocks that other processes have added; return True if there are any."""
        is_looked_at = np.zeros(self.header.blocks // LOOK_AT + 1, bool)
        is_looked_at[blocks[self._state[blocks] == MISSING] // LOOK_AT] = True
        places = is_looked_at.nonzero()[0]  # np.unique would load numpy.ma, which takes 15 ms
        found = [
            self._read_entries(int(run[0]) * LOOK_AT, (int(run[-1]) + 1) * LOOK_AT)
            for run in _runs(places)
        ]
        return any(found)

    def _read_entries(self, first: int, last: int) -> bool:
        """Take note of the entries [first, last) of the map; return True if blocks are new."""
        last = min(last, self.header.blocks)
        parts = range(first, last, MOST_ENTRIES)
        found = [self._read_part(at, min(at + MOST_ENTRIES, last)) for at in parts]
        return any(found)

    def _read_part(self, first: int, last: int) -> bool:
        length = (last - first) * cachemap.ENTRY.itemsize
        try:
            raw = os.pread(self._map_fd, length, cachemap.entry_at(first))
        except OSError as error:
            self.give_up(error)
            return False
        there, crcs = cachemap.there(self._seeds, first, raw.ljust(length, b"\0"))
        with self._lock:
            new = np.flatnonzero(there & (self._state[first:last] == MISSING))
            self._crcs[first + new] = crcs[new]
            self._state[first + new] = THERE
        return len(new) > 0

    # ---- reading -------------------------------------------------------------------------

    def read_into(self, memory: Bytes, offset: int) -> bool:
        """Fill `memory` with bytes of blocks that are there; return False if that fails."""
        found = self._read(offset, len(memory))
        if found is None:
            return False
        memory[:] = found
        return True

    def _read(self, offset: int, length: int) -> Bytes | None:
        memory = np.empty(length, np.uint8)
        done = 0
        try:
            while done < length:
                count = os.preadv(self._fd, [memory[done:].data], offset + done)
                if not count:
                    raise OSError(errno.EIO, "it was truncated", self.path)
                done += count
        except OSError as error:
            self.give_up(error)
            return None
        return memory

    @property
    def open_path(self) -> str:
        """Path that leads to the open file, whatever its name is now."""
        return f"/proc/self/fd/{self._fd}"

    def pinned(self) -> LocalCopy | None:
        """Return the whole copy for other readers, or None if blocks are missing."""
        if not self.is_whole:
            return None
        self.publish()
        return LocalCopy(self.path, self._fd, self._map_fd, self)

    # ---- writing -------------------------------------------------------------------------

    def put(self, pieces: Sequence[tuple[int, Bytes]], *, again: bool = False) -> None:
        """Write the whole blocks in `pieces` (offset, bytes), unless they are there already.

        `again`: they are written in any case, because the bytes in the copy are wrong.
        """
        if not (self.usable and self._writable) or self._folder.is_paused:
            return
        if again:
            with self._flushing:
                for offset, data in pieces:
                    self._distrust(*self._whole_blocks(offset, data))
        else:
            spans = [self._whole_blocks(offset, data) for offset, data in pieces]
            self._look_at(np.concatenate([np.arange(*span) for span in spans]))
        runs = [run for offset, data in pieces for run in self._new_runs(offset, data)]
        if not runs or not self.usable:
            return
        crcs = [_crcs_of(data) for _, data in runs]
        try:
            with self._folder.locked():
                if not self.is_named:  # nobody would find the bytes, and they would not be counted
                    self._writable = False
                    return
                if not self._folder.reserve(sum(len(data) for _, data in runs)):
                    trouble.warn_full(self._folder.path)
                    return
                self._write(runs, crcs)
        except OSError as error:
            self._writable = isinstance(error, TimeoutError)
            trouble.warn(self._folder.path, error)
            return
        with self._lock:
            self._own()
            for (first, _), some in zip(runs, crcs, strict=True):
                self._crcs[first : first + len(some)] = some
                self._state[first : first + len(some)] = VERIFIED
                self._unpublished += range(first, first + len(some))
            waiting = len(self._unpublished) * BLOCK
        publisher.note(self, hurry=waiting >= MOST_UNPUBLISHED)

    def _write(self, runs: Sequence[tuple[int, Bytes]], crcs: Sequence[Crcs]) -> None:
        """Write runs of blocks, and recent entries for them."""
        for (first, data), some in zip(runs, crcs, strict=True):
            write_all(self._fd, data.data, first * BLOCK)
            if self._recent_seed is not None:
                raw = cachemap.entries(self._recent_seed, first, some)
                write_all(self._map_fd, raw, cachemap.entry_at(first))

    def _whole_blocks(self, offset: int, data: Bytes) -> tuple[int, int]:
        """Return the numbers of the first whole block, and of the one after the last."""
        end = offset + len(data)
        last = self.header.blocks if end == self.size else end // BLOCK
        return -(-offset // BLOCK), last

    def _new_runs(self, offset: int, data: Bytes) -> list[tuple[int, Bytes]]:
        """Return runs of whole blocks that are missing: number of the first block, and bytes."""
        first, last = self._whole_blocks(offset, data)
        if last <= first:
            return []
        new = np.zeros(last - first + 2, bool)
        new[1:-1] = self._state[first:last] == MISSING
        edges = np.flatnonzero(new[1:] != new[:-1]).tolist()
        spans = [(first + a, first + b) for a, b in zip(edges[::2], edges[1::2], strict=True)]
        return [(a, data[a * BLOCK - offset : b * BLOCK - offset]) for a, b in spans]

    def _distrust(self, first: int, last: int) -> None:
        """Remove blocks from the map on disk, because their bytes are wrong."""
        if last > first:
            with self._lock:
                self._own()
                self._state[first:last] = MISSING
                self._whole = False
                self._unpublished = [n for n in self._unpublished if not first <= n < last]
            zeros = bytes(cachemap.ENTRY.itemsize * (last - first))
            self._write_entries(first, zeros, durably=True)

    def publish(self) -> None:
        """Flush the blocks that this process has written, then add them to the map."""
        with self._flushing:
            with self._lock:
                self._own()
                numbers, self._unpublished = sorted(set(self._unpublished)), []
            if not numbers or not self.usable:
                return
            runs = _runs(np.array(numbers))
            try:
                os.fdatasync(self._fd)
            except OSError as error:
                for run in runs:
                    self._write_entries(int(run[0]), bytes(cachemap.ENTRY.itemsize * len(run)))
                self.give_up(error)
                return
            for run in runs:
                first = int(run[0])
                raw = cachemap.entries(self.header.seed, first, self._crcs[run])
                if not self._write_entries(first, raw):
                    break

    def _own(self) -> None:
        """Leave the blocks of a parent process to the parent, which is going to publish them."""
        if self._process != os.getpid():
            self._process, self._unpublished = os.getpid(), []

    def _write_entries(self, first: int, raw: bytes, *, durably: bool = False) -> bool:
        try:
            write_all(self._map_fd, raw, cachemap.entry_at(first))
            if durably:
                os.fdatasync(self._map_fd)
        except OSError as error:
            self.give_up(error)
            return False
        return True

    def give_up(self, error: Exception) -> None:
        """Stop to use this copy, because of an error of the disk."""
        if self.usable:
            self.usable = self._whole = False
            trouble.warn(self._folder.path, error)

    def renew_locks(self) -> None:
        """Make new locks in a forked child: other threads of the parent may have held them."""
        self._lock, self._flushing = threading.Lock(), threading.Lock()
        self._expected = {}  # the answers arrive in the parent


def _blocks_of(begin: Ints, end: Ints) -> tuple[Ints, Ints]:
    """Return the blocks of all ranges, and where those of each range begin. No range is empty."""
    first = begin // BLOCK
    count = (end - 1) // BLOCK - first + 1
    starts = count.cumsum() - count
    return np.repeat(first - starts, count) + np.arange(int(count.sum())), starts


def _runs(numbers: Ints) -> list[Ints]:
    """Split sorted numbers into runs of consecutive ones."""
    return np.split(numbers, np.flatnonzero(np.diff(numbers) != 1) + 1) if len(numbers) else []


def _crcs_of(data: Bytes) -> Crcs:
    """Return the checksum of each block in `data`."""
    return np.array([crc32(data[at : at + BLOCK]) for at in range(0, len(data), BLOCK)], np.uint32)


@dataclass(frozen=True, slots=True)
class _Descriptors:
    """Descriptors that are closed with their owner, after all weak references to it have ended.

    A `__del__` of the owner would run before that. Another thread could get hold of the owner then,
    with descriptors that are closed.
    """

    fd: int
    map_fd: int

    def __del__(self) -> None:
        with contextlib.suppress(OSError):
            os.utime(self.map_fd)  # the time of the last use
        os.close(self.fd)
        os.close(self.map_fd)


_copies: weakref.WeakSet[Copy] = weakref.WeakSet()


def _renew_all_locks() -> None:
    for copy in list(_copies):
        copy.renew_locks()


os.register_at_fork(after_in_child=_renew_all_locks)
