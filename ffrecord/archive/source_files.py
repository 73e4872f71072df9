"""Read many files in order, with read-ahead in threads.

Files are read in batches of about two megabytes: many small files, or a part of a large one. The
files of a batch lie in one piece of memory exactly as in the archive: end to end, or with zeros
between them in an aligned archive. They come with their checksums.

On a slow disk, several threads are faster than one. Files in the page cache are read fastest by one
thread, because Python runs one thread at a time (50,000 files of 10 kB, measured by hand: 1.4 s
with one thread, 1.9 s with two, 2.7 s with eight; large files likewise). So the number of batches
in flight grows while batches have to wait for the disk, and shrinks otherwise.
"""

from __future__ import annotations

import errno
import fcntl
import os
import resource
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Protocol

from ffrecord.archive.index.build import Xattrs
from ffrecord.archive.scan import read_xattrs
from ffrecord.disk.pagecache import PageCache
from ffrecord.disk.slabs import SlabPool
from ffrecord.format.checksum import crc32
from ffrecord.format.index import BLOCK
from ffrecord.format.padding import UNALIGNED, ZEROS, rounded_up

BATCH_BYTES = 16 * BLOCK  # limit for the bytes of a batch; a multiple of every alignment
BATCH_FILES = 512  # limit for the files of a batch
MOST_THREADS = 8
# A batch has waited if more than a quarter of its bytes came from a disk, or if its thread used the
# processor for less than 15 % of the time, as on a network. (A thread that waits only for other
# threads of this process uses a larger share.)
FROM_DISK = 0.25
WAITING = 0.15
_SECTOR = 512
_cache = PageCache()
_slabs = SlabPool(idle_limit=(MOST_THREADS + 1) * BATCH_BYTES)
# Errors of opening or reading a path whose file was removed or replaced.
_GONE = (
    errno.ENOENT, errno.ELOOP, errno.ENXIO, errno.ENOTDIR,
    errno.EISDIR, errno.ESPIPE, errno.EAGAIN,
)  # fmt: skip


class Found(Protocol):
    """Files that a walk has found: a `Scan`, or the files of one shard. They have numbers."""

    @property
    def lengths(self) -> Sequence[int]: ...

    def places(self, inodes: Iterable[int]) -> Iterator[bytes]:
        """Yield the paths of files."""

    def open(self, path: bytes) -> int: ...

    def is_unchanged(self, inode: int, now: os.stat_result) -> bool: ...


@dataclass(frozen=True, slots=True)
class Piece:
    """Several whole files, or a part of a file that is too large for one batch."""

    inodes: list[int]
    lengths: list[int]
    offset: int = 0  # in the file, for a part
    is_last: bool = True  # False for a part that is not the last of its file


@dataclass(slots=True)
class LoadedPiece:
    """A piece that was read: its bytes as in the archive, checksums, attributes, changed files.

    If a file became shorter or disappeared, zeros take the place of the missing bytes, as in tar.
    So every byte is at its planned place.
    """

    piece: Piece
    memory: memoryview
    checksums: list[list[int]]  # of each file's blocks
    size: int = 0  # bytes of the memory that are in use, with padding
    xattrs: dict[int, Xattrs] = field(default_factory=dict)
    changed: list[int] = field(default_factory=list)
    gone: list[int] = field(default_factory=list)
    waited: bool = False


def pieces(lengths: Iterable[tuple[int, int]], align: int = UNALIGNED) -> Iterator[Piece]:
    """Yield the pieces to read, for files given as inode and length.

    Each piece fits into BATCH_BYTES, with the padding of its files.
    """
    batch = Piece([], [])
    size = 0
    for inode, length in lengths:
        padded = rounded_up(length, align)
        if batch.inodes and (size + padded > BATCH_BYTES or len(batch.inodes) == BATCH_FILES):
            yield batch
            batch, size = Piece([], []), 0
        offset = 0
        while length - offset > BATCH_BYTES:
            yield Piece([inode], [BATCH_BYTES], offset, is_last=False)
            offset += BATCH_BYTES
        if offset:
            yield Piece([inode], [length - offset], offset)
        else:
            batch.inodes.append(inode)
            batch.lengths.append(length)
            size += padded
    if batch.inodes:
        yield batch


def read_ahead(
    found: Found, inodes: Iterable[int], jobs: int | None, align: int = UNALIGNED
) -> Iterator[LoadedPiece]:
    """Yield the contents of files in order, in batches. The next batch reuses the memory."""
    most = jobs or MOST_THREADS
    ahead = 1
    spare: list[memoryview] = []
    flying: deque[Future[LoadedPiece]] = deque()
    length = found.lengths
    work = pieces(((inode, length[inode]) for inode in inodes), align)

    def submit() -> None:
        while len(flying) < ahead and (piece := next(work, None)) is not None:
            memory = spare.pop() if spare else _slabs.take(BATCH_BYTES).data
            flying.append(pool.submit(_load, found, piece, memory, align))

    pool = ThreadPoolExecutor(most, thread_name_prefix="ffrecord-pack")
    try:
        submit()
        while flying:
            batch = flying.popleft().result()
            ahead = min(ahead + 1, most) if batch.waited else max(ahead - 1, 1)
            submit()
            yield batch
            spare.append(batch.memory)
    finally:
        for future in flying:
            future.cancel()
        pool.shutdown()


def _load(found: Found, piece: Piece, memory: memoryview, align: int) -> LoadedPiece:
    began, worked, sectors = time.perf_counter(), time.thread_time(), _sectors_read()
    batch = LoadedPiece(piece, memory, [])
    at = 0
    paths = found.places(piece.inodes)
    for inode, length, path in zip(piece.inodes, piece.lengths, paths, strict=True):
        place = memory[at : at + length]
        _load_file(found, inode, path, place, batch)
        if length <= BLOCK:
            batch.checksums.append([crc32(place)])
        else:
            starts = range(0, length, BLOCK)
            batch.checksums.append([crc32(place[start : start + BLOCK]) for start in starts])
        at += length
        if missing := -length % align:
            memory[at : at + missing] = ZEROS[:missing]
            at += missing
    batch.size = at
    took = time.perf_counter() - began
    from_disk = (_sectors_read() - sectors) * _SECTOR
    batch.waited = from_disk > FROM_DISK * at or time.thread_time() - worked < WAITING * took
    return batch


def _load_file(
    found: Found, inode: int, path: bytes, place: memoryview, batch: LoadedPiece
) -> None:
    try:
        _read_file(found, inode, path, place, batch)
    except OSError as error:
        if error.errno not in _GONE:
            raise OSError(error.errno, error.strerror, os.fsdecode(path)) from error
        batch.gone.append(inode)
        place[:] = bytes(len(place))


def _read_file(
    found: Found, inode: int, path: bytes, place: memoryview, batch: LoadedPiece
) -> None:
    # The file may have been replaced by a fifo or a symlink. `found.open` does not wait for a fifo,
    # and follows symlinks only with `dereference`.
    fd = found.open(path)
    try:
        got = _first_read(fd, place, batch.piece.offset)
        if got < len(place):
            got = _read_rest(fd, place, batch.piece.offset, got)
        if batch.piece.is_last and (xattrs := read_xattrs(fd)):
            batch.xattrs[inode] = xattrs
        # Checked after the read, to notice changes during the read. Later changes do not matter.
        if got < len(place) or not found.is_unchanged(inode, os.fstat(fd)):
            batch.changed.append(inode)
    finally:
        os.close(fd)


def _first_read(fd: int, place: memoryview, offset: int) -> int:
    """Read once. A large piece that is not cached is read with O_DIRECT.

    The page cache would cost more time than the disk, and evict pages that others use.
    """
    if len(place) == BATCH_BYTES and not _cache.has(fd, offset, len(place)):
        flags = fcntl.fcntl(fd, fcntl.F_GETFL)
        try:
            fcntl.fcntl(fd, fcntl.F_SETFL, flags | os.O_DIRECT)
            return os.preadv(fd, [place], offset)
        except OSError as error:
            if error.errno != errno.EINVAL:  # EINVAL: the file system has no O_DIRECT
                raise
        finally:
            fcntl.fcntl(fd, fcntl.F_SETFL, flags)
    return os.preadv(fd, [place], offset)


def _read_rest(fd: int, place: memoryview, offset: int, got: int) -> int:
    """Continue after a short read until `place` is full or the file ends; fill up with zeros.

    Return the number of bytes read.
    """
    while got < len(place):
        count = os.preadv(fd, [place[got:]], offset + got)
        if not count:
            break
        got += count
    place[got:] = bytes(len(place) - got)
    return got


def _sectors_read() -> int:
    """Return how many sectors this thread has read from a disk."""
    return resource.getrusage(resource.RUSAGE_THREAD).ru_inblock
