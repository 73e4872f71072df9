"""Which reads the page cache can answer: one policy for batches, packing and the mount.

`preadv2` with RWF_NOWAIT is not the way to ask: since Linux 5.10 or so a miss starts a buffered
read of the missing pages before it says EAGAIN, so each cold record would be read twice (seen on
6.18 in the disk's own counters). `cachestat` (Linux 6.5) asks without touching anything.

Data sets are mostly either cached or not, so a few reads spread over the batch are asked about
first, and the rest only if those differ. Where `cachestat` is missing, blind (overlayfs) or not
allowed (a file that is neither ours nor writable), a one-byte NOWAIT read of those few decides for
all of them: the few pages it may fetch are the price.

A file of tmpfs has no other place than the page cache (and swap, as this process has): all of it is
taken for cached, and read by plain reads. tmpfs knows no RWF_NOWAIT.

An answer is a hint: pages come and go. Every caller is right whatever is said here.
"""

from __future__ import annotations

import ctypes
import itertools
import mmap
import os
from collections.abc import Iterable

import numpy as np

from ffrecord.aliases import Ints, Mask
from ffrecord.disk.libc import SYS_CACHESTAT, file_system, syscall

SAMPLE = 4
HITS_TO_BE_WARM = 8
_IN_MEMORY = {0x01021994, 0x858458F6}  # tmpfs, ramfs
_Two, _Five = ctypes.c_uint64 * 2, ctypes.c_uint64 * 5


def tells(fd: int) -> bool:
    """Whether `cachestat` sees this file's pages; its first bytes must just have been read.

    On overlayfs it sees none: they belong to the file below.
    """
    first = np.array([0]), np.array([1])
    return _cachestat(fd, *first) == [True]


def is_memory(fd: int) -> bool:
    """Whether an open file is in memory and on no disk."""
    return file_system(fd) in _IN_MEMORY


class PageCache:
    """The policy "page cache first": whether reads of some files are tried there, and one such try.

    `use_cachestat` is True if `tells` is for every file, `in_memory` if `is_memory` is. `has` and
    `has_each` may be called by any thread.
    """

    def __init__(self) -> None:
        self.use_cachestat = True
        self.in_memory = False
        self._hits = HITS_TO_BE_WARM

    @property
    def rw_flags(self) -> int:
        """The flags of a read that does not wait for a disk."""
        return 0 if self.in_memory else os.RWF_NOWAIT

    def has(self, fd: int, offset: int, length: int) -> bool:
        """Return whether all pages of one read are in the page cache."""
        if self.use_cachestat:
            span, answer = _Two(offset, length), _Five()
            code = syscall(SYS_CACHESTAT, fd, ctypes.addressof(span), ctypes.addressof(answer), 0)
            if code >= 0:
                return bool(answer[0] >= _pages(offset, length))
        return _has_first_page(fd, offset)

    def has_each(self, fds: Ints | int, offsets: Ints, lengths: Ints) -> Mask:
        """Return, for each read, whether all its pages are in the page cache. `fds` may be one for
        all."""
        n = len(offsets)
        if self.in_memory:
            return np.full(n, True)
        some = slice(0, n, max(1, n // SAMPLE))
        few = fds if isinstance(fds, int) else fds[some]
        answers = _cachestat(few, offsets[some], lengths[some]) if self.use_cachestat else None
        if answers is None:
            hits = list(map(_has_first_page, _each(few), offsets[some].tolist()))
            return np.full(n, 2 * sum(hits) > len(hits))
        if all(answers) or not any(answers):
            return np.full(n, answers[0])
        everything = _cachestat(fds, offsets, lengths)
        return np.zeros(n, bool) if everything is None else np.array(everything)

    def read(self, fd: int, memory: memoryview, offset: int) -> bool:
        """Fill `memory` without waiting for a disk; False if the page cache has not all of it, or
        if the file system cannot read that way (EOPNOTSUPP: NFS).

        A miss with RWF_NOWAIT begins to read into the page cache, so that the same bytes would
        come from the disk twice. While reads hit, that is worth it; after a miss the kernel is
        asked first, until some reads in a row have hit. If it cannot be asked, some reads are left
        out before the next is tried.
        """
        if self._hits < HITS_TO_BE_WARM and not self.in_memory:
            if not self.use_cachestat:
                self._hits += 1
                return False
            if not self.has(fd, offset, len(memory)):
                self._hits = 0
                return False
        try:
            count = os.preadv(fd, [memory], offset, self.rw_flags)
        except OSError:  # EAGAIN: not there; EOPNOTSUPP; EIO
            count = 0
        if count < len(memory):
            self._hits = 0
            return False
        if self._hits < HITS_TO_BE_WARM:
            self._hits += 1
        return True


def _cachestat(fds: Ints | int, offsets: Ints, lengths: Ints) -> list[bool] | None:
    """As `has_each`, one system call per read; None where the kernel does not answer."""
    span, answer = _Two(), _Five()
    span_at, answer_at = ctypes.addressof(span), ctypes.addressof(answer)
    cached = []
    for fd, offset, length in zip(_each(fds), offsets.tolist(), lengths.tolist(), strict=False):
        span[0], span[1] = offset, length
        if syscall(SYS_CACHESTAT, fd, span_at, answer_at, 0) < 0:
            return None
        cached.append(answer[0] >= _pages(offset, length))
    return cached


def _pages(offset: int, length: int) -> int:
    return (offset + length - 1) // mmap.PAGESIZE - offset // mmap.PAGESIZE + 1


def _each(fds: Ints | int) -> Iterable[int]:
    return itertools.repeat(fds) if isinstance(fds, int) else fds.tolist()


def _has_first_page(fd: int, offset: int) -> bool:
    try:
        return os.preadv(fd, [bytearray(1)], offset, os.RWF_NOWAIT) == 1
    except OSError:
        return False  # EAGAIN: not there; EOPNOTSUPP: a file system that cannot tell
