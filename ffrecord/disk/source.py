"""Open files for reading: descriptors, plain reads, mappings and checksums of parts.

All classes except `Recheck` may be shared by threads: their reads are positional.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import resource
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NoReturn, Protocol

import numpy as np
import numpy.typing as npt

from ffrecord.aliases import Bytes
from ffrecord.disk import libc, pagecache
from ffrecord.disk.pieces import Pieces
from ffrecord.disk.sequence import Sequence as ReadSequence
from ffrecord.disk.singles import SingleReads
from ffrecord.errors import ReadFailedError, TruncatedError
from ffrecord.format.checksum import crc32

DESCRIPTORS_EACH = 2  # for each file: buffered and O_DIRECT
NO_DESCRIPTORS = (errno.EMFILE, errno.ENFILE)  # errors at the limits of open files
SPARE_DESCRIPTORS = 256  # left for the rest of the program
DEFAULT_ALIGN = 4096  # for O_DIRECT, if the kernel does not say
CHUNK = 8 << 20  # bytes that `Recheck` and salvage read at a time
ROUND = 256 << 10  # requests are multiples of it, and so are long pieces
ADVICE = 128 << 10  # the kernel may cut longer advice, unless the disk takes longer requests


class Source:
    """An open file: a buffered descriptor, and one with O_DIRECT if the file system supports it.

    The descriptors are closed with the last reference, so closing a reader does not disturb a read
    in another thread. A forked child uses the inherited descriptors: positional reads share no
    state, and the path may by then name another file.

    With O_DIRECT, the kernel's readahead is off, because its marks make later cached reads fetch
    bytes that nobody asked for. Plain reads in order are read ahead by `ReadSequence` instead.
    """

    def __init__(self, path: str, *, direct: bool) -> None:
        self.path = path
        self.fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self.align = _direct_alignment(self.fd)
        self.direct_fd = -1
        if direct and self.align:
            # Opened through the descriptor, because the path may name another file by now.
            try:
                again = f"/proc/self/fd/{self.fd}"
                self.direct_fd = os.open(again, os.O_RDONLY | os.O_DIRECT | os.O_CLOEXEC)
            except OSError as error:  # EINVAL: no O_DIRECT on this file system
                if error.errno in NO_DESCRIPTORS:
                    raise
        self._sequence: ReadSequence | None = None
        if self.direct_fd >= 0:
            # Before the first read, because pages that were read earlier keep their marks.
            os.posix_fadvise(self.fd, 0, 0, os.POSIX_FADV_RANDOM)
            self._sequence = ReadSequence()
        self._advice = 0  # most bytes in one call of posix_fadvise; 0: not known yet

    def read_into(self, memory: Bytes, offset: int) -> None:
        """Fill `memory` with the bytes from `offset` on, by plain buffered reads."""
        self.read_ahead(offset, len(memory))
        self.fill(memory, offset)

    def fill(self, memory: Bytes, offset: int) -> None:
        """Do the same as `read_into`, but read nothing ahead."""
        got = self._read_up_to(memory, offset)
        if got < len(memory):
            self._more_than_none(0, offset + got)

    def _read_up_to(self, memory: Bytes, offset: int) -> int:
        got, length = 0, len(memory)
        while got < length:
            rest = memory[got:] if got else memory
            try:  # not `_named_errors`, which takes as long as a cached read
                count = os.preadv(self.fd, [rest.data], offset + got)
            except OSError as error:
                raise self._read_failed(error, offset + got) from error
            if not count:
                break
            got += count
        return got

    def read_bytes(self, offset: int, length: int) -> bytes:
        """Return `length` bytes from `offset` on."""
        memory = np.empty(length, np.uint8)
        self.read_into(memory, offset)
        return memory.tobytes()

    def read_there(self, offset: int, most: int | None = None) -> bytes:
        """Return the bytes from `offset` to the end of a file that may grow or shrink meanwhile.

        `most` limits their number.
        """
        length = max(0, os.fstat(self.fd).st_size - offset)
        memory = np.empty(length if most is None else min(length, most), np.uint8)
        self.read_ahead(offset, len(memory))
        return memory[: self._read_up_to(memory, offset)].tobytes()

    def copy_to(self, fd: int, offset: int, length: int) -> None:
        """Write `length` bytes from `offset` on to another file at its position, by the kernel.

        If all these bytes are in a hole, they become a hole in the other file too.
        """
        if self._is_hole(offset, length):
            os.lseek(fd, length, os.SEEK_CUR)
            return
        self.read_ahead(offset, length)
        done = 0
        while done < length:
            with self._named_errors(offset + done):
                count = os.sendfile(fd, self.fd, offset + done, length - done)
            done += self._more_than_none(count, offset + done)

    def will_need(self, offset: int, length: int) -> None:
        """Let the disk begin to read these bytes into the page cache."""
        step = self._advice = self._advice or max(ADVICE, _longest_request(self.fd))
        with contextlib.suppress(OSError):  # advice: a file system need not support it
            for at in range(offset, offset + length, step):
                size = min(step, offset + length - at)
                os.posix_fadvise(self.fd, at, size, os.POSIX_FADV_WILLNEED)

    def wait_for(self, offset: int) -> None:
        """Wait until the byte at `offset` is in the page cache. Reads nothing ahead."""
        with self._named_errors(offset):
            count = len(os.pread(self.fd, 1, offset))
        self._more_than_none(count, min(offset, self.size()))

    def read_through(self, offset: int, length: int) -> None:
        """Read bytes into the page cache by plain reads, and drop them. Reads nothing ahead."""
        memory, end = memoryview(bytearray(min(length, ADVICE))), offset + length
        while offset < end:
            with self._named_errors(offset):
                count = os.preadv(self.fd, [memory[: end - offset]], offset)
            offset += self._more_than_none(count, offset)

    def size(self) -> int:
        """Return the present size of the file."""
        return os.fstat(self.fd).st_size

    def read_ahead(self, offset: int, length: int) -> bool:
        """Read ahead of a plain read as the kernel would, if the kernel's readahead is off.

        Returns:
            True if the read follows other reads, so that the disk may already be reading it.
        """
        if self._sequence is None:
            return False
        if length > ADVICE:
            self.will_need(offset, min(length, CHUNK))
        ahead = self._sequence.after(offset, offset + length)
        if ahead is not None:
            self.will_need(ahead[0], ahead[1] - ahead[0])
        return self._sequence.reads > 0

    def _is_hole(self, offset: int, length: int) -> bool:
        if os.fstat(self.fd).st_size < offset + length:
            return False
        return next_data(self.fd, offset) >= offset + length

    @contextlib.contextmanager
    def _named_errors(self, offset: int) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise self._read_failed(error, offset) from error

    def _read_failed(self, error: OSError, offset: int) -> ReadFailedError:
        return ReadFailedError(self.path, error.errno or errno.EIO, offset)

    def _more_than_none(self, count: int, offset: int) -> int:
        if count == 0:
            raise TruncatedError(
                f"{self.path}: truncated while it was open: it ends at byte {offset}, but more "
                "bytes were expected; copy the file again and reopen it"
            )
        return count

    def map(self, length: int | None = None) -> Bytes:
        """Return the file, or its first `length` bytes, as one read-only mapped array."""
        if length == 0:  # mmap would map the whole file
            return np.empty(0, np.uint8)
        return np.frombuffer(mmap.mmap(self.fd, length or 0, prot=mmap.PROT_READ), np.uint8)

    def __reduce__(self) -> NoReturn:
        # A copy would have the same descriptor numbers, and close them when it is deleted.
        raise TypeError(
            f"{self.path}: an open file cannot be pickled or copied; pickle or copy its reader"
        )

    def __del__(self) -> None:
        for fd in (getattr(self, "fd", -1), getattr(self, "direct_fd", -1)):
            if fd >= 0:
                os.close(fd)


def whole_file(path: str) -> bytes:
    """Return all bytes of a small file."""
    source = Source(path, direct=False)
    return source.read_bytes(0, os.fstat(source.fd).st_size)


def next_data(fd: int, offset: int) -> int:
    """Return the offset of the first data (not a hole) from `offset` on, or the end of the file."""
    try:
        return os.lseek(fd, offset, os.SEEK_DATA)
    except OSError as error:
        # ENXIO: only a hole follows. Other errors: the file system does not support holes.
        return os.fstat(fd).st_size if error.errno == errno.ENXIO else offset


def next_hole(fd: int, offset: int) -> int:
    """Return the offset of the first hole from `offset` on, or the end of the file."""
    try:
        return os.lseek(fd, offset, os.SEEK_HOLE)
    except OSError:  # the file system does not support holes
        return os.fstat(fd).st_size


class SourceSet:
    """Open files of one reader: their descriptors as arrays, and their mappings if any.

    If there are too few descriptors for two per file, no file has one with O_DIRECT.
    """

    is_local = True

    def __init__(self, paths: Sequence[str], *, direct: bool) -> None:
        allow_descriptors(DESCRIPTORS_EACH * len(paths))
        self.each = _opened(paths, direct=direct)
        self.fds = np.array([source.fd for source in self.each])
        self.direct_fds = np.array([source.direct_fd for source in self.each])
        self.direct = bool((self.direct_fds >= 0).all())
        self.maps: list[Bytes] = []
        self.cache = pagecache.PageCache()
        self.pieces: Pieces | None = None
        self.singles: SingleReads | None = None  # with pieces
        self.keeps: object = None  # must live as long as reads of these files
        # Without O_DIRECT no alignment is needed, and padding would be copied for nothing.
        self.align = max(source.align for source in self.each) if self.direct else 1

    def __getitem__(self, file: int) -> Source:
        return self.each[file]

    def __len__(self) -> int:
        return len(self.each)

    def ask_about_the_cache(self) -> None:
        """Find out how to ask the page cache. Call this after the headers were read.

        `pagecache.tells` needs pages that were just read.
        """
        self.cache.use_cachestat = all(pagecache.tells(source.fd) for source in self.each)
        self.cache.in_memory = all(pagecache.is_memory(source.fd) for source in self.each)

    def use_pieces(self, limit: int | None) -> None:
        """Let `policy` decide about pieces, unless they cannot help. `limit`: as in `Pieces`."""
        if self.direct and not self.cache.in_memory and limit != 0:
            self.pieces = Pieces(self.each, limit)
            self.singles = SingleReads(self.each, self.cache, self.pieces)

    def read_one(self, file: int, memory: Bytes, offset: int) -> None:
        """Fill `memory` with the bytes of a file from `offset` on, for a caller that waits."""
        if self.singles is None:
            self.each[file].read_into(memory, offset)
        else:
            self.singles.read_into(file, memory, offset)

    def map_all(self, length: int | None = None) -> None:
        """Map every file, or its first `length` bytes, for the mode "mmap"."""
        self.maps = [source.map(length) for source in self.each]

    def give_up_direct(self) -> None:
        """Read through the page cache from now on, because O_DIRECT reads fail with EINVAL."""
        self.direct = False


def _opened(paths: Sequence[str], *, direct: bool) -> tuple[Source, ...]:
    try:
        return tuple(Source(path, direct=direct) for path in paths)
    except OSError as error:
        if not direct or error.errno not in NO_DESCRIPTORS:
            raise
    # All files are closed by now: this leaves more descriptors for the rest of the program than
    # O_DIRECT for some of the files would, and a batch needs it for all of its files.
    return tuple(Source(path, direct=False) for path in paths)


class Readable(Protocol):
    """A file of which parts can be read, on a disk or over the network."""

    def read_into(self, memory: Bytes, offset: int) -> None: ...


class Recheck:
    """Computes checksums of parts of one file, through one buffer. For one thread."""

    def __init__(self, source: Readable) -> None:
        self._source = source
        self._memory: npt.NDArray[np.uint8] = np.empty(CHUNK, np.uint8)

    def checksum(self, begin: int, end: int) -> int:
        """Return the CRC-32 of the bytes from `begin` up to `end`."""
        crc = 0
        for at in range(begin, end, CHUNK):
            piece = self._memory[: min(CHUNK, end - at)]
            self._source.read_into(piece, at)
            crc = crc32(piece, crc)
        return crc


def allow_descriptors(count: int) -> None:
    """Raise the soft limit on open files if `count` needs it, up to the hard limit.

    The usual soft limit of 1024 exists for select(2), which this library does not use.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count + SPARE_DESCRIPTORS
    if soft != resource.RLIM_INFINITY and soft < wanted:
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, most), hard))


def _longest_request(fd: int) -> int:
    """Return bytes that a file's disk reads with one request; 0 if that is not known.

    The kernel cuts POSIX_FADV_WILLNEED to `max_sectors_kb`, or to its readahead if that is longer.
    Pages that are scattered in memory also need a segment each.
    """
    device = os.fstat(fd).st_dev
    disk = f"/sys/dev/block/{os.major(device)}:{os.minor(device)}"
    for queue in ("queue", "../queue"):  # of a disk, or of a partition
        with contextlib.suppress(OSError, ValueError):
            size, segments = (
                int(Path(f"{disk}/{queue}/{name}").read_bytes())
                for name in ("max_sectors_kb", "max_segments")
            )
            longest = min(size << 10, segments * mmap.PAGESIZE)
            return longest - longest % ROUND if longest >= ROUND else longest
    return 0


def _direct_alignment(fd: int) -> int:
    """Return the alignment that O_DIRECT needs; 0 if the file system does not support it."""
    found = libc.direct_alignment(fd)
    return DEFAULT_ALIGN if found is None else max(found)
