"""A file object for the HDF5 library that hides failed writes from it.

The library (2.0.0) crashes the process after a failed write. So `Target` keeps the first error, and
pretends that all writes succeed. Later writes stay in memory, where the library can read them again
until it closes the file. The owner of the file gets the error from `raise_error`.
"""

from __future__ import annotations

import os
from typing import Any

from ffrecord.atomic.direct import write_all
from ffrecord.atomic.file import writing


class Target:
    """A new file with the methods that h5py needs."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        self._size = self._at = 0
        self._error: OSError | None = None
        self._lost: list[tuple[int, bytes]] = []

    def raise_error(self) -> None:
        """Raise the first error so far, if there was one."""
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
        """Return bytes from the current position. h5py recognises a file object by this method."""
        memory = bytearray(length)
        self.readinto(memory)
        return bytes(memory)

    def readinto(self, memory: Any) -> int:
        """Fill all of `memory`, with zeros after the end of the file.

        Includes data that could not be written to disk.
        """
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
        """Do nothing: writes are not buffered."""

    def __enter__(self) -> Target:
        return self

    def __exit__(self, *exc: object) -> None:
        os.close(self._fd)
        self.raise_error()  # takes precedence over errors of the HDF5 library
