"""A file for the HDF5 library to write to, which is never told that a write failed.

The library (2.0.0) crashes, with the process, after a write that failed. So the first error is kept
from it, what it still writes until it has closed the file stays in memory, where it finds it again,
and whoever has the file asks for the error.
"""

from __future__ import annotations

import os
from typing import Any

from ffrecord.atomic.direct import write_all
from ffrecord.atomic.file import writing


class Target:
    """A file object with as much as h5py needs. It is new, and its size is what HDF5 made it."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        self._size = self._at = 0
        self._error: OSError | None = None
        self._lost: list[tuple[int, bytes]] = []

    def raise_error(self) -> None:
        """Raise the first error until now, if there was one."""
        if self._error is not None:
            with writing(self._path):
                raise self._error

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._at = offset + (self._size if whence == os.SEEK_END else 0)
        return self._at

    def tell(self) -> int:
        return self._at

    def write(self, data: Any) -> int:
        length = memoryview(data).nbytes
        if self._error is None:
            try:
                write_all(self._fd, data, self._at)
            except OSError as error:
                self._error = error
        if self._error is not None:
            self._lost.append((self._at, bytes(data)))
        self._at += length
        self._size = max(self._size, self._at)
        return length

    def read(self, length: int) -> bytes:
        """By which h5py knows a file object."""
        memory = bytearray(length)
        self.readinto(memory)
        return bytes(memory)

    def readinto(self, memory: Any) -> int:
        """All of it, as a file that ends in a hole; with what could not be written."""
        view = memoryview(memory).cast("B")
        got = self._read(view)
        view[got:] = bytes(len(view) - got)
        for offset, data in self._lost:
            begin, end = max(offset, self._at), min(offset + len(data), self._at + len(view))
            if begin < end:
                view[begin - self._at : end - self._at] = data[begin - offset : end - offset]
        self._at += len(view)
        return len(view)

    def _read(self, view: memoryview) -> int:
        got = 0
        try:
            while got < len(view) and (count := os.preadv(self._fd, [view[got:]], self._at + got)):
                got += count
        except OSError as error:
            self._error = self._error or error
        return got

    def truncate(self, size: int) -> int:
        if self._error is None:
            try:
                os.ftruncate(self._fd, size)
            except OSError as error:
                self._error = error
        self._size = size
        return size

    def flush(self) -> None:
        """Nothing waits."""

    def __enter__(self) -> Target:
        return self

    def __exit__(self, *exc: object) -> None:
        os.close(self._fd)
        self.raise_error()  # whatever else HDF5 has said of it
