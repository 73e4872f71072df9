"""Find the reads that the page cache can answer: one policy for batches, packing and the mount.

`preadv2` with RWF_NOWAIT is the wrong question. Since about Linux 5.10, a miss starts a buffered
read of the missing pages before it returns EAGAIN, so each cold record would be read twice (seen on
6.18 in the disk's own counters). `cachestat` (Linux 6.5) only asks.

Most datasets are either cached or not. So a few reads spread over the batch are checked first, and
the others only if the answers differ. `cachestat` may be missing, blind (overlayfs) or forbidden (a
file that the user neither owns nor may write). Then one-byte NOWAIT reads at the same few places
decide for the whole batch, although each may fetch a few pages.

A file on tmpfs exists only in the page cache (or in swap). It counts as cached, and is read with
plain reads, because tmpfs does not support RWF_NOWAIT.

An answer is a hint: pages come and go. Every caller must work with a wrong answer.
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

SAMPLE = 4  # reads of a batch that are checked first
HITS_TO_BE_WARM = 8  # hits in a row after a miss, before `read` stops asking first
_IN_MEMORY = {0x01021994, 0x858458F6}  # tmpfs, ramfs
_Two, _Five = ctypes.c_uint64 * 2, ctypes.c_uint64 * 5


def tells(fd: int) -> bool:
    """Return True if `cachestat` sees the pages of a file whose first bytes were just read.

    `cachestat` sees no pages on overlayfs, because they belong to the file below.
    """
    first = np.array([0]), np.array([1])
    return _cachestat(fd, *first) == [True]


def is_memory(fd: int) -> bool:
    """Return True if an open file is on a file system in memory (tmpfs or ramfs)."""
    return file_system(fd) in _IN_MEMORY


class PageCache:
    """Policy "page cache first" for a set of files: asks the cache, and reads from it.

    `use_cachestat` is True if `tells` is True for every file. `in_memory` is True if `is_memory` is
    True for every file. Any thread may call `has`, `has_most` and `has_each`.
    """

    def __init__(self) -> None:
        self.use_cachestat = True
        self.in_memory = False
        self._hits = HITS_TO_BE_WARM

    @property
    def rw_flags(self) -> int:
        """Flags of a read that does not wait for a disk."""
        return 0 if self.in_memory else os.RWF_NOWAIT

    def has(self, fd: int, offset: int, length: int) -> bool:
        """Return True if all pages of one read are in the page cache.

        Without `cachestat`, only the first page is checked.
        """
        if self.use_cachestat:
            span, answer = _Two(offset, length), _Five()
            code = syscall(SYS_CACHESTAT, fd, ctypes.addressof(span), ctypes.addressof(answer), 0)
            if code >= 0:
                return bool(answer[0] >= _pages(offset, length))
        return _has_first_page(fd, offset)

    def has_most(self, fds: Ints | int, offsets: Ints, lengths: Ints) -> bool | None:
        """Return True if a batch of reads is in the page cache, judged by a few of them.

        Returns None if the few reads differ: then `has_each` knows more. `fds` is an array, or one
        descriptor for all reads.
        """
        if self.in_memory:
            return True
        some = slice(0, None, max(1, len(offsets) // SAMPLE))
        few = fds if isinstance(fds, int) else fds[some]
        answers = _cachestat(few, offsets[some], lengths[some]) if self.use_cachestat else None
        if answers is None:
            hits = list(map(_has_first_page, _each(few), offsets[some].tolist()))
            return 2 * sum(hits) > len(hits)
        return answers[0] if all(answers) or not any(answers) else None

    def has_each(self, fds: Ints | int, offsets: Ints, lengths: Ints) -> Mask:
        """Return a mask of the reads whose pages are all in the page cache.

        Asks about every read. Without `cachestat` the mask is False for all of them.
        """
        answers = _cachestat(fds, offsets, lengths) if self.use_cachestat else None
        return np.zeros(len(offsets), bool) if answers is None else np.array(answers, bool)

    def read(self, fd: int, memory: memoryview, offset: int) -> bool:
        """Fill `memory` from the page cache; return False if some bytes are not cached.

        Also returns False if the file system does not support such reads (EOPNOTSUPP on NFS).

        A miss with RWF_NOWAIT starts a read into the page cache, and the caller reads the same
        bytes from the disk once more. While reads hit, that risk is small. After a miss,
        `cachestat` is asked first until HITS_TO_BE_WARM reads in a row have hit. Without
        `cachestat`, that many reads return False before the next one is tried.
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
        except OSError:  # EAGAIN: not cached; EOPNOTSUPP; EIO
            count = 0
        if count < len(memory):
            self._hits = 0
            return False
        if self._hits < HITS_TO_BE_WARM:
            self._hits += 1
        return True


def cached_bytes(fd: int, offset: int, length: int) -> int | None:
    """Return how many bytes of a range are in the page cache; None if the kernel refuses."""
    span, answer = _Two(offset, length), _Five()
    if syscall(SYS_CACHESTAT, fd, ctypes.addressof(span), ctypes.addressof(answer), 0) < 0:
        return None
    pages = int(answer[0])
    return length if pages >= _pages(offset, length) else min(length, pages * mmap.PAGESIZE)


def _cachestat(fds: Ints | int, offsets: Ints, lengths: Ints) -> list[bool] | None:
    """Ask `cachestat` about each read, one system call per read; None if the kernel refuses."""
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
        return False  # EAGAIN: not cached; EOPNOTSUPP: not supported by the file system
