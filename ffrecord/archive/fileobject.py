"""A file inside an archive as a Python file object: seekable, read-only, every byte verified."""

from __future__ import annotations

import io
import os
from typing import Any

from ffrecord.aliases import Bytes
from ffrecord.archive.archive import Archive, Naming
from ffrecord.archive.blocks import STEP_BLOCKS
from ffrecord.format.index import BLOCK

STEP = STEP_BLOCKS * BLOCK


class PackedFile(io.RawIOBase):
    """The raw file. `PackedFolder.open` puts a buffer around it.

    The blocks of the last read are kept, so that many small reads in a row verify each block once.
    One read returns at most `STEP` bytes, as raw files may, so at most that much is kept.
    """

    def __init__(self, archive: Archive, inode: int, name: str) -> None:
        super().__init__()
        self.name = name
        self._archive = archive
        self._inode = inode
        self._size = archive.index.status(inode).size
        self._position = 0
        self._kept_at = 0
        self._kept = memoryview(b"")

    @property
    def mode(self) -> str:
        return "rb"

    def readable(self) -> bool:
        self._require_open()
        return True

    def seekable(self) -> bool:
        self._require_open()
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        self._require_open()
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._size}
        if whence not in start:
            raise ValueError(f"whence must be 0, 1 or 2, not {whence}")
        if start[whence] + offset < 0:
            raise ValueError(f"negative seek position {start[whence] + offset}")
        self._position = start[whence] + offset
        return self._position

    def tell(self) -> int:
        self._require_open()
        return self._position

    def readinto(self, buffer: Any, /) -> int:
        self._require_open()
        with memoryview(buffer).cast("B") as target:
            # A long read ends where a block ends, so that no block is read twice.
            step = STEP - self._position % BLOCK
            count = max(0, min(len(target), self._size - self._position, step))
            if count:
                target[:count] = self._bytes(self._position, count)
            self._position += count
            return count

    def readall(self) -> bytes:
        self._require_open()
        count = max(0, self._size - self._position)
        data = self._read_range(self._position, count).tobytes()
        self._position += count
        return data

    def _bytes(self, offset: int, count: int) -> memoryview:
        inside = offset - self._kept_at
        if inside < 0 or inside + count > len(self._kept):
            begin = offset // BLOCK * BLOCK
            end = -(-(offset + count) // BLOCK) * BLOCK
            kept = self._read_range(begin, end - begin)
            self._kept, self._kept_at, inside = memoryview(kept.data), begin, offset - begin
        return self._kept[inside : inside + count]

    def _read_range(self, offset: int, length: int) -> Bytes:
        with Naming(self.name):
            return self._archive.read_range(self._inode, offset, length)

    def _require_open(self) -> None:
        if self.closed:
            raise ValueError("I/O operation on closed file")
