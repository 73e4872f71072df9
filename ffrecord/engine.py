"""Fetching a plan's reads by the best way there is, and by another way when that one fails.

What the page cache has is copied out of it in one io_submit; the rest is read with O_DIRECT AIO,
which does not go through the cache. Reads that the kernel refuses, ends short or fails are read
once more with a plain `preadv`, and only what that cannot read is an error. When no AIO context
is to be had, everything is read that way, with `posix_fadvise` to let the disk work ahead.

A `Fetch` belongs to one thread at a time. `Source`s are shared by all.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import math
import mmap
import os
import resource
import time
from collections.abc import Iterator, Sequence
from typing import NoReturn, TypeAlias

import numpy as np
import numpy.typing as npt

from ffrecord import aio, pagecache
from ffrecord.errors import ReadFailedError, TruncatedError
from ffrecord.extents import Plan

Ints: TypeAlias = npt.NDArray[np.int64]
Bytes: TypeAlias = npt.NDArray[np.uint8]

# How much a plain read keeps in flight. A virtual disk reports completions when its queue runs
# empty: with everything submitted at once no checksum overlaps with the disk, with little in
# flight it idles often. If each wave costs a fixed pause and leaves its checksums over at the end,
# the best number of waves grows as the root of the batch: 3 for 7 MB. (A model; 2 to 4 measure
# alike.) On a disk that takes long to answer the window grows.
WINDOW_UNIT = 3 << 18
WINDOW_READS = 256
SLOW_WINDOW = 0.004  # seconds

DESCRIPTORS_EACH = 2
SPARE_DESCRIPTORS = 256
DEFAULT_ALIGN = 4096
BLOCKING_WAVE = 16
_AT_EMPTY_PATH = 0x1000
_STATX_DIOALIGN = 0x2000
_libc = ctypes.CDLL(None, use_errno=True)


class Source:
    """An open file: a buffered descriptor, and one with O_DIRECT where the file system has it.

    The descriptors are closed when the last user is gone, so that closing a reader does not pull
    them away under a read in another thread. A forked child goes on with the inherited ones:
    positional reads share no state, and opening the path again might find another file.
    """

    def __init__(self, path: str, *, direct: bool) -> None:
        self.path = path
        self.fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self.align = _direct_alignment(self.fd)
        self.direct_fd = -1
        if direct and self.align:
            # By descriptor, not by path: it must be the same file. EINVAL: no O_DIRECT there.
            with contextlib.suppress(OSError):
                again = f"/proc/self/fd/{self.fd}"
                self.direct_fd = os.open(again, os.O_RDONLY | os.O_DIRECT | os.O_CLOEXEC)

    def read_into(self, memory: Bytes, offset: int) -> None:
        """Fill `memory` from `offset`, by plain buffered reads."""
        got = self._read_up_to(memory, offset)
        if got < len(memory):
            self._more_than_none(0, offset + got)

    def _read_up_to(self, memory: Bytes, offset: int) -> int:
        got = 0
        while got < len(memory):
            with self._named_errors(offset + got):
                count = os.preadv(self.fd, [memory[got:].data], offset + got)
            if not count:
                break
            got += count
        return got

    def read_bytes(self, offset: int, length: int) -> bytes:
        """A few bytes from `offset` on, for whoever has no memory for them."""
        memory = np.empty(length, np.uint8)
        self.read_into(memory, offset)
        return memory.tobytes()

    def read_there(self, offset: int, most: int | None = None) -> bytes:
        """The bytes from `offset` on that are there, at most so many, of a file that may grow or
        shrink meanwhile."""
        length = max(0, os.fstat(self.fd).st_size - offset)
        memory = np.empty(length if most is None else min(length, most), np.uint8)
        return memory[: self._read_up_to(memory, offset)].tobytes()

    def copy_to(self, fd: int, offset: int, length: int) -> None:
        """Append `length` bytes from `offset` on to another file, in the kernel. If all of them
        are a hole, they become one there, which takes no memory."""
        if self._is_hole(offset, length):
            os.lseek(fd, length, os.SEEK_CUR)
            return
        done = 0
        while done < length:
            with self._named_errors(offset + done):
                count = os.sendfile(fd, self.fd, offset + done, length - done)
            done += self._more_than_none(count, offset + done)

    def _is_hole(self, offset: int, length: int) -> bool:
        if os.fstat(self.fd).st_size < offset + length:
            return False
        return next_data(self.fd, offset) >= offset + length

    @contextlib.contextmanager
    def _named_errors(self, offset: int) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise ReadFailedError(self.path, error.errno or errno.EIO, offset) from error

    def _more_than_none(self, count: int, offset: int) -> int:
        if count == 0:
            raise TruncatedError(
                f"{self.path}: truncated: it ended at byte {offset} where more was due; "
                "it was cut off while open"
            )
        return count

    def map(self, length: int | None = None) -> Bytes:
        """The whole file, or its first bytes, as one read-only array."""
        if length == 0:  # which mmap takes for all of it
            return np.empty(0, np.uint8)
        return np.frombuffer(mmap.mmap(self.fd, length or 0, prot=mmap.PROT_READ), np.uint8)

    def __reduce__(self) -> NoReturn:
        # A copy would have the numbers of our descriptors, and close them with itself.
        raise TypeError(f"{self.path}: an open file is not pickled or copied: take its reader")

    def __del__(self) -> None:
        for fd in (getattr(self, "fd", -1), getattr(self, "direct_fd", -1)):
            if fd >= 0:
                os.close(fd)


def whole_file(path: str) -> bytes:
    """All bytes of a small file."""
    source = Source(path, direct=False)
    return source.read_bytes(0, os.fstat(source.fd).st_size)


def next_data(fd: int, offset: int) -> int:
    """Where in a file the first bytes from `offset` on are that are no hole, or its end."""
    try:
        return os.lseek(fd, offset, os.SEEK_DATA)
    except OSError as error:
        # ENXIO: nothing but a hole follows. Others: a file system that knows of none.
        return os.fstat(fd).st_size if error.errno == errno.ENXIO else offset


def next_hole(fd: int, offset: int) -> int:
    """Where in a file the first hole from `offset` on is, or its end."""
    try:
        return os.lseek(fd, offset, os.SEEK_HOLE)
    except OSError:  # a file system that knows of none
        return os.fstat(fd).st_size


class SourceSet:
    """The open files of one reader: their descriptors as arrays, and their mappings if any."""

    def __init__(self, paths: Sequence[str], *, direct: bool) -> None:
        _allow_descriptors(DESCRIPTORS_EACH * len(paths))
        self.each = tuple(Source(path, direct=direct) for path in paths)
        self.fds = np.array([source.fd for source in self.each])
        self.direct_fds = np.array([source.direct_fd for source in self.each])
        self.direct = bool((self.direct_fds >= 0).all())
        self.maps: list[Bytes] = []
        self.use_cachestat = True
        # Without O_DIRECT nothing need be aligned, and padding is only copied for nothing.
        self.align = max(source.align for source in self.each) if self.direct else 1

    def __getitem__(self, file: int) -> Source:
        return self.each[file]

    def __len__(self) -> int:
        return len(self.each)

    def ask_about_the_cache(self) -> None:
        """Find out how, after the headers were read (see `pagecache.tells`)."""
        self.use_cachestat = all(pagecache.tells(source.fd) for source in self.each)

    def map_all(self, length: int | None = None) -> None:
        """Map every file whole, or its first bytes, for the mode that returns views of them."""
        self.maps = [source.map(length) for source in self.each]

    def give_up_direct(self) -> None:
        """O_DIRECT opened but does not read (EINVAL): use the page cache from now on."""
        self.direct = False


class Fetch:
    """One plan's reads, into `memory`: `start`, then the `waves` as they arrive, then `close`.

    The disk idles until `start` has submitted, and again between waves: both do little, and what
    can wait (lists for the waves) is made after the first submission.
    """

    def __init__(self, sources: SourceSet, plan: Plan, memory: Bytes, mode: str) -> None:
        self._sources = sources
        self._plan = plan
        self._memory = memory
        self._mode = mode
        self._arrived: list[int] = []  # before the flight set out
        self._flight: aio.Flight | None = None
        self._left: Ints | None = None  # the flight's reads, or without one those still to do

    def start(self, *, everything: bool) -> None:
        """Begin: take what is cached, put the rest on its way (all of it, or one window)."""
        reads: Ints | None = None  # all of them
        cached_fds = self._descriptors(self._sources.fds)
        if self._mode == "auto":
            hot = pagecache.resident(
                cached_fds, self._plan.offset, self._plan.need,
                use_cachestat=self._sources.use_cachestat,
            )  # fmt: skip
            if hot.any():
                reads = self._copy_cached(cached_fds, hot)
                if not reads.size:
                    self._left = reads
                    return
        direct = self._mode != "buffered" and self._sources.direct
        fds = self._descriptors(self._sources.direct_fds) if direct else cached_fds
        self._flight = self._flight_for(fds, reads, 0)
        self._left = reads
        if self._flight is None or not direct:
            self._advise(reads)
        if self._flight is not None:
            self._flight.launch(self._flight.unsent if everything else self._window())

    def waves(self) -> Iterator[list[int]]:
        """Read numbers, in groups as they become complete."""
        if self._arrived:
            yield self._arrived
        left = range(len(self._plan.offset)) if self._left is None else self._left.tolist()
        if self._flight is None:
            for at in range(0, len(left), BLOCKING_WAVE):
                wave = list(left[at : at + BLOCKING_WAVE])
                for read in wave:
                    self._read_by_hand(read, 0)
                yield wave
            return
        flight, window, need = self._flight, self._window(), self._plan.need.tolist()
        while not flight.done:
            began = time.perf_counter()
            numbers, results = flight.land(1)
            if flight.unsent:
                if time.perf_counter() - began > SLOW_WINDOW:
                    window *= 2
                flight.launch(window)
            reads = numbers if self._left is None else [left[number] for number in numbers]
            for read, result in zip(reads, results, strict=True):
                if result < need[read]:
                    self._recover(read, result)
            yield reads

    @property
    def mine(self) -> bool:
        """False in a forked child, where reads begun in the parent never arrive."""
        return self._flight is None or self._flight.mine

    def close(self) -> None:
        """Wait until the kernel has let go of the memory."""
        if self._flight is not None:
            self._flight.close()

    def _copy_cached(self, fds: Ints | int, hot: npt.NDArray[np.bool_]) -> Ints:
        """Copy the hot reads out of the page cache; the reads that are left to do."""
        reads = hot.nonzero()[0]
        flight = self._flight_for(fds, reads, os.RWF_NOWAIT)
        left = np.ones(len(hot), bool)
        if flight is not None:
            try:
                while not flight.done:
                    flight.launch(len(reads))
                    numbers, results = flight.land(flight.flying)
                    landed = reads[numbers]
                    left[landed] = np.array(results) < self._plan.need[landed]
            finally:
                flight.close()
        self._arrived = (~left).nonzero()[0].tolist()
        return left.nonzero()[0]

    def _flight_for(self, fds: Ints | int, reads: Ints | None, rw_flags: int) -> aio.Flight | None:
        """A flight for these reads (None: all), or None when there is no context for it."""
        plan = self._plan
        place, offset, length = plan.place, plan.offset, plan.length
        if reads is not None:
            place, offset, length = place[reads], offset[reads], length[reads]
            fds = fds if isinstance(fds, int) else fds[reads]
        context = aio.contexts.borrow(len(offset))
        if context is None:
            return None
        return aio.Flight(context, self._memory, fds, place, offset, length, rw_flags)

    def _descriptors(self, each: Ints) -> Ints | int:
        """The descriptor of every read, or the one of all."""
        return int(each[0]) if self._plan.file is None else each[self._plan.file]

    def _source_of(self, read: int) -> Source:
        return self._sources[0 if self._plan.file is None else int(self._plan.file[read])]

    def _window(self) -> int:
        """How many reads a plain read keeps in flight."""
        waves = max(1, round(math.sqrt(self._plan.size / WINDOW_UNIT)))
        return min(WINDOW_READS, -(-len(self._plan.offset) // waves))

    def _advise(self, reads: Ints | None) -> None:
        """Let the disk begin on reads that will go through the page cache one after the other."""
        offset, length = self._plan.offset.tolist(), self._plan.length.tolist()
        for read in range(len(offset)) if reads is None else reads.tolist():
            with contextlib.suppress(OSError):
                fd = self._source_of(read).fd
                os.posix_fadvise(fd, offset[read], length[read], os.POSIX_FADV_WILLNEED)

    def _recover(self, read: int, result: int) -> None:
        """Finish a read that was refused, failed or came back short."""
        if result == -errno.EINVAL:
            self._sources.give_up_direct()
        self._read_by_hand(read, max(result, 0))

    def _read_by_hand(self, read: int, have: int) -> None:
        plan = self._plan
        place, need = int(plan.place[read]), int(plan.need[read])
        target = self._memory[place + have : place + need]
        self._source_of(read).read_into(target, int(plan.offset[read]) + have)


def _allow_descriptors(count: int) -> None:
    """Raise the soft limit on open files if many shards need it, as far as the hard one allows.

    The usual soft limit of 1024 is there for select(2), which nothing here uses.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count + SPARE_DESCRIPTORS
    if soft != resource.RLIM_INFINITY and soft < wanted:
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, most), hard))


def _direct_alignment(fd: int) -> int:
    """What O_DIRECT needs offsets, lengths and addresses to be multiples of; 0 for no O_DIRECT."""
    buffer = (ctypes.c_uint32 * 64)()  # struct statx has 256 bytes
    try:
        code = _libc.statx(fd, b"", _AT_EMPTY_PATH, _STATX_DIOALIGN, ctypes.byref(buffer))
    except AttributeError:  # a C library older than statx
        return DEFAULT_ALIGN
    if code < 0 or not buffer[0] & _STATX_DIOALIGN:
        return DEFAULT_ALIGN
    memory, offset = buffer[38], buffer[39]
    return max(memory, offset)
