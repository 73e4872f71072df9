"""An index's image copied out of its archive, piece by piece, while earlier pieces are checked.

Into memory that nobody else can write to (memfd), so that it stays what it was when it was
checked, and that forks share. A thread goes through a large index in the order in which the
checks do, a little ahead of them, and no further once they have failed. It must not need Python
often: each time it may have to wait 5 ms for the checks to let it (with a read, a checksum and a
write for every MiB, copying beside the checks took as long as one after the other). So the kernel
copies, some MiB at a time.

Holes stay holes: a file may have any number of them for nothing, and they take no memory here
unless a check looks at them, which refuses what is all zeros.
"""

from __future__ import annotations

import mmap
import os
import threading
from collections.abc import Iterator
from heapq import merge
from typing import Protocol

from ffrecord.disk.source import next_data
from ffrecord.format import index as index_layout
from ffrecord.format.checksum import crc32, crc32_followed_by, crc32_of_zeros

CHUNK = 4 << 20
ALONE = 4 << 20
"""An image smaller than this is copied before anything else is done: a thread takes longer."""


_TOGETHER = ("entries", "names")


class CopyTo(Protocol):
    """Appends bytes of the image, from `offset` on, to the file behind a descriptor."""

    def __call__(self, fd: int, offset: int, length: int) -> None: ...


class ImageCopy:
    """The copy of an image of `length` bytes. Leave it (`with`) and no more is copied."""

    def __init__(self, path: str, copy_to: CopyTo, length: int) -> None:
        self._copy_to = copy_to
        self._progress = threading.Condition()
        self._problem: Exception | None = None
        self._stopped = False
        self._thread: threading.Thread | None = None
        self._memory = os.memfd_create("ffrecord index")
        try:
            # The counts first: whether the rest is worth any memory is for them to say.
            copy_to(self._memory, 0, index_layout.COUNTS_SIZE)
            with self._mapped(path, index_layout.COUNTS_SIZE) as start:
                counts = start[:]
            self._parts = index_layout.parts(path, counts, length)
            self.image = self._mapped(path, length)
            # Of each part, up to where it is copied, and the checksum of that.
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
        """The first bytes of the copy."""
        try:
            os.ftruncate(self._memory, length)
            return mmap.mmap(self._memory, length, prot=mmap.PROT_READ)
        except OSError as error:  # no memory for it; the archive is what users know of
            raise OSError(error.errno, f"its index: {error.strerror}", path) from error

    def __enter__(self) -> ImageCopy:
        return self

    def __exit__(self, *exc: object) -> None:
        self._stopped = True
        if self._thread is not None:
            self._thread.join()

    def wait_for(self, part: str, rows: int | None = None) -> None:
        """Until a part, or so many rows of its first table, have been copied."""
        bounds = self._parts[part]
        until = bounds.end if rows is None else bounds.until(rows)
        if self._copied[part] < until:
            with self._progress:
                self._progress.wait_for(lambda: self._problem or self._copied[part] >= until)
        if self._problem is not None:
            raise self._problem

    def finish(self) -> int:
        """Until everything has been copied; its CRC-32."""
        crc = 0
        for name, part in self._parts.items():
            self.wait_for(name)
            crc = crc32_followed_by(crc, self._crcs[name], part.end - part.begin)
        return crc

    def _run(self) -> None:
        try:
            for name, begin, end in self._pieces():
                if self._stopped:
                    break
                os.lseek(self._memory, begin, os.SEEK_SET)
                self._copy_to(self._memory, begin, end - begin)
                self._keep(name, begin, end)
        except Exception as problem:  # for the thread that waits
            with self._progress:
                self._problem = problem
                self._progress.notify_all()
        finally:
            os.close(self._memory)

    def _pieces(self) -> Iterator[tuple[str, int, int]]:
        """The pieces to copy, in order: part, begin and end. Names and the entries that they belong
        to take turns, since they are checked together. A generator: there may be millions."""
        for turn in ("attributes",), ("xattrs",), ("large",), ("inodes",), _TOGETHER, ("hashes",):
            for _, name, begin, end in merge(*map(self._pieces_of, turn)):
                yield name, begin, end

    def _pieces_of(self, name: str) -> Iterator[tuple[float, str, int, int]]:
        """The pieces of one part, each after the share of the part that it completes."""
        part = self._parts[name]
        for begin in range(part.begin, part.end, CHUNK):
            end = min(begin + CHUNK, part.end)
            yield (end - part.begin) / (part.end - part.begin), name, begin, end

    def _keep(self, part: str, begin: int, end: int) -> None:
        if next_data(self._memory, begin) >= end:  # a look at it would take memory for it
            following = crc32_of_zeros(end - begin)
            self._crcs[part] = crc32_followed_by(self._crcs[part], following, end - begin)
        else:
            with memoryview(self.image) as image, image[begin:end] as piece:
                self._crcs[part] = crc32(piece, self._crcs[part])
        with self._progress:
            self._copied[part] = end
            self._progress.notify_all()
