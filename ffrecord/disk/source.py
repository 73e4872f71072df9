"""Open files to read from: descriptors, plain reads, mappings, and checksums of their parts."""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import resource
from collections.abc import Iterator, Sequence
from typing import NoReturn

import numpy as np
import numpy.typing as npt

from ffrecord.aliases import Bytes
from ffrecord.disk import libc, pagecache
from ffrecord.errors import ReadFailedError, TruncatedError
from ffrecord.format.checksum import crc32

DESCRIPTORS_EACH = 2
SPARE_DESCRIPTORS = 256
DEFAULT_ALIGN = 4096
CHUNK = 8 << 20


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
        self.cache = pagecache.PageCache()
        # Without O_DIRECT nothing need be aligned, and padding is only copied for nothing.
        self.align = max(source.align for source in self.each) if self.direct else 1

    def __getitem__(self, file: int) -> Source:
        return self.each[file]

    def __len__(self) -> int:
        return len(self.each)

    def ask_about_the_cache(self) -> None:
        """Find out how, after the headers were read (see `pagecache.tells`)."""
        self.cache.use_cachestat = all(pagecache.tells(source.fd) for source in self.each)
        self.cache.in_memory = all(pagecache.is_memory(source.fd) for source in self.each)

    def map_all(self, length: int | None = None) -> None:
        """Map every file whole, or its first bytes, for the mode that returns views of them."""
        self.maps = [source.map(length) for source in self.each]

    def give_up_direct(self) -> None:
        """O_DIRECT opened but does not read (EINVAL): use the page cache from now on."""
        self.direct = False


class Recheck:
    """Reads parts of one file through one piece of memory."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._memory: npt.NDArray[np.uint8] = np.empty(CHUNK, np.uint8)

    def checksum(self, begin: int, end: int) -> int:
        """The CRC-32 of the bytes from `begin` up to `end`."""
        crc = 0
        for at in range(begin, end, CHUNK):
            piece = self._memory[: min(CHUNK, end - at)]
            self._source.read_into(piece, at)
            crc = crc32(piece, crc)
        return crc


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
    """Return the alignment that O_DIRECT needs; 0 where the file system has no O_DIRECT."""
    found = libc.direct_alignment(fd)
    return DEFAULT_ALIGN if found is None else max(found)
