"""An index's image copied out of its archive, part by part, while earlier parts are checked.

Into memory that nobody else can write to (memfd), so that it stays what it was when it was
checked, and that forks share. For a large index, copying in a thread beside the checks takes
about as long as either of them alone.
"""

from __future__ import annotations

import mmap
import os
import threading
from collections.abc import Callable
from operator import itemgetter
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from ffrecord.checksum import crc32, crc32_followed_by
from ffrecord.index import layout

Bytes: TypeAlias = npt.NDArray[np.uint8]
Read: TypeAlias = "Callable[[int, Bytes], None]"

CHUNK = 1 << 20
ALONE = 4 << 20
"""An image smaller than this is copied before anything else is done: a thread takes longer."""


class ImageCopy:
    """The copy of an image of `length` bytes; `read` fills memory from a byte of it on."""

    def __init__(self, path: str, read: Read, length: int) -> None:
        self._path = path
        self._read = read
        self._crcs: dict[str, int] = {}
        self._problem: BaseException | None = None
        counts = np.empty(layout.COUNTS_SIZE, np.uint8)
        read(0, counts)
        self._parts = layout.parts(counts.tobytes(), length)
        self._memory = os.memfd_create("ffrecord index")
        try:
            os.ftruncate(self._memory, length)
            self.image = mmap.mmap(self._memory, length, prot=mmap.PROT_READ)
            os.pwrite(self._memory, counts.data, 0)  # without them no part can be looked at
        except BaseException:
            os.close(self._memory)
            raise
        self._there = {part: threading.Event() for part in self._parts}
        self._thread = threading.Thread(target=self._run, name="ffrecord-index", daemon=True)
        if length < ALONE:
            self._run()
        else:
            self._thread.start()

    def wait_for(self, part: str) -> None:
        """Until a part has been copied."""
        self._there[part].wait()
        if self._problem is not None:
            raise self._problem

    def finish(self) -> int:
        """Until everything has been copied; its CRC-32."""
        for part in self._parts:
            self.wait_for(part)
        crc = 0
        for part, (begin, end) in sorted(self._parts.items(), key=itemgetter(1)):
            crc = crc32_followed_by(crc, self._crcs[part], end - begin)
        return crc

    def _run(self) -> None:
        try:
            for part, (begin, end) in self._parts.items():
                self._crcs[part] = self._copy(begin, end)
                self._there[part].set()
        except BaseException as problem:  # for the thread that waits
            self._problem = problem
        finally:
            os.close(self._memory)
            for there in self._there.values():
                there.set()

    def _copy(self, begin: int, end: int) -> int:
        crc = 0
        memory = np.empty(min(CHUNK, end - begin), np.uint8)
        for at in range(begin, end, CHUNK):
            piece = memory[: end - at]
            self._read(at, piece)
            crc = crc32(piece, crc)
            if os.pwrite(self._memory, piece.data, at) != len(piece):
                raise MemoryError(f"{self._path}: no room for its index in memory")
        return crc
