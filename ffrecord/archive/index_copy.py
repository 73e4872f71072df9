"""`ImageCopy`: copies the index of an archive into memory while the first parts are checked.

The copy is in a memfd. No other process can write to it, so the index cannot change after it was
checked. Forked processes share the memory.

A large index is copied by a thread. The thread copies the parts in the order of the checks, a
little ahead of them, and stops when a check fails. It should need Python's interpreter lock rarely:
each time, it may wait 5 ms until the checks release the lock. With a read, a checksum and a write
for every MiB, copying during the checks took as long as copying first. So the kernel copies several
MiB at a time.

Holes stay holes: a file may contain any number of them, and they take no memory here unless a
check reads them. The checks reject rows of zeros.
"""

from __future__ import annotations

import mmap
import os
import threading
from collections import deque
from collections.abc import Iterator
from heapq import merge
from typing import Protocol, TypeAlias

from ffrecord.disk.source import next_data
from ffrecord.format import index as index_layout
from ffrecord.format.checksum import crc32, crc32_followed_by, crc32_of_zeros

CHUNK = 4 << 20  # bytes copied by one call
ALONE = 4 << 20
"""Size in bytes below which an image is copied first, then checked: a thread would be slower."""


AHEAD = 32
"""Pieces on their way over the network. 128 MiB: the index of a million files, and some memory."""

Piece: TypeAlias = "tuple[str, int, int]"  # part, begin and end

_TOGETHER = ("entries", "names")  # parts that are checked together


class CopyTo(Protocol):
    """Function that writes bytes of the image, from `offset` on, at a descriptor's position."""

    def __call__(self, fd: int, offset: int, length: int) -> None: ...


class Announce(Protocol):
    """Function that asks for bytes of the image over the network, before they are copied."""

    def __call__(self, offset: int, length: int) -> None: ...


class ImageCopy:
    """Copy of an image of `length` bytes. The end of the `with` block stops the copying."""

    def __init__(
        self, path: str, copy_to: CopyTo, length: int, announce: Announce | None = None
    ) -> None:
        self._copy_to = copy_to
        self._announce = announce
        self._progress = threading.Condition()
        self._problem: Exception | None = None
        self._stopped = False
        self._thread: threading.Thread | None = None
        self._memory = os.memfd_create("ffrecord index")
        try:
            # First the counts: they are checked before memory is taken for the rest.
            copy_to(self._memory, 0, index_layout.COUNTS_SIZE)
            with self._mapped(path, index_layout.COUNTS_SIZE) as start:
                counts = start[:]
            self._parts = index_layout.parts(path, counts, length)
            self.image = self._mapped(path, length)
            # For each part, the end of the copied bytes, and their checksum.
            self._copied = {name: part.begin for name, part in self._parts.items()}
            self._crcs = dict.fromkeys(self._parts, 0)
            self._keep("counts", 0, len(counts))
        except BaseException:
            os.close(self._memory)
            raise
        if length < ALONE:
            self._run()
        else:
            self._thread = threading.Thread(target=self._run, name="ffrecord-index", daemon=True)
            self._thread.start()

    def _mapped(self, path: str, length: int) -> mmap.mmap:
        """Return a mapping of the first `length` bytes of the copy."""
        try:
            os.ftruncate(self._memory, length)
            return mmap.mmap(self._memory, length, prot=mmap.PROT_READ)
        except OSError as error:  # out of memory: name the archive, which the user knows
            what = f"no memory for its index of {length} bytes: {error.strerror}"
            raise OSError(error.errno, what, path) from error

    def __enter__(self) -> ImageCopy:
        return self

    def __exit__(self, *exc: object) -> None:
        self._stopped = True
        if self._thread is not None:
            self._thread.join()

    def wait_for(self, part: str, rows: int | None = None) -> None:
        """Wait until a part, or the first `rows` rows of its first table, have been copied."""
        bounds = self._parts[part]
        until = bounds.end if rows is None else bounds.until(rows)
        if self._copied[part] < until:
            with self._progress:
                self._progress.wait_for(lambda: self._problem or self._copied[part] >= until)
        if self._problem is not None:
            raise self._problem

    def finish(self) -> int:
        """Wait until everything has been copied; return the CRC-32 of the image."""
        crc = 0
        for name, part in self._parts.items():
            self.wait_for(name)
            crc = crc32_followed_by(crc, self._crcs[name], part.end - part.begin)
        return crc

    def _run(self) -> None:
        try:
            for name, begin, end in self._announced(self._pieces()):
                if self._stopped:
                    break
                os.lseek(self._memory, begin, os.SEEK_SET)
                self._copy_to(self._memory, begin, end - begin)
                self._keep(name, begin, end)
        except Exception as problem:  # raised by `wait_for` in the waiting thread
            with self._progress:
                self._problem = problem
                self._progress.notify_all()
        finally:
            os.close(self._memory)

    def _announced(self, pieces: Iterator[Piece]) -> Iterator[Piece]:
        """Yield the pieces, and announce each some pieces before its turn."""
        if self._announce is None:
            yield from pieces
            return
        waiting: deque[Piece] = deque()
        for piece in pieces:
            self._announce(piece[1], piece[2] - piece[1])
            waiting.append(piece)
            if len(waiting) > AHEAD:
                yield waiting.popleft()
        yield from waiting

    def _pieces(self) -> Iterator[Piece]:
        """Yield part, begin and end of each piece to copy, in order.

        Pieces of entries and of names alternate, because the two are checked together. A
        generator, because there may be millions of pieces.
        """
        for turn in ("attributes",), ("xattrs",), ("large",), ("inodes",), _TOGETHER, ("hashes",):
            for _, name, begin, end in merge(*map(self._pieces_of, turn)):
                yield name, begin, end

    def _pieces_of(self, name: str) -> Iterator[tuple[float, str, int, int]]:
        """Yield the pieces of one part, each with the share of the part up to its end."""
        part = self._parts[name]
        for begin in range(part.begin, part.end, CHUNK):
            end = min(begin + CHUNK, part.end)
            yield (end - part.begin) / (part.end - part.begin), name, begin, end

    def _keep(self, part: str, begin: int, end: int) -> None:
        if next_data(self._memory, begin) >= end:  # a hole: reading it would take memory
            following = crc32_of_zeros(end - begin)
            self._crcs[part] = crc32_followed_by(self._crcs[part], following, end - begin)
        else:
            with memoryview(self.image) as image, image[begin:end] as piece:
                self._crcs[part] = crc32(piece, self._crcs[part])
        with self._progress:
            self._copied[part] = end
            self._progress.notify_all()
