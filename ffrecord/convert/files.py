"""Files of other formats: open, read from front to back, and write.

Python's file objects have two flaws. An OSError of an open file does not name the file. A read that
fails with EAGAIN returns None, or looks like the end of the file. Here both raise our own errors,
which name the file. A read or write of fewer bytes than requested is not an error: the buffered
objects above continue it.
"""

from __future__ import annotations

import errno
import io
import os
from collections.abc import Iterable
from typing import Any

from ffrecord.aliases import Closing
from ffrecord.atomic.file import writing
from ffrecord.convert.shapes import LARGEST_RECORD, Buffer
from ffrecord.disk.longpaths import open_path
from ffrecord.errors import DamagedSourceError, ReadFailedError
from ffrecord.records.opening import refuse_other_kinds

STEP = 1 << 20
"""Bytes per read."""

GATHERED = 128 << 10
"""Bytes per write."""


class SourceFile(Closing):
    """A regular file that is read from front to back.

    Each length is compared with the rest of the file before anything is read or allocated.
    """

    def __init__(self, path: str) -> None:
        refuse_other_kinds(path, "a file")
        self.path = path
        self._file = open_to_read(path)
        self.size = os.fstat(self._file.fileno()).st_size
        self.offset = 0

    @property
    def left(self) -> int:
        """Number of bytes from `offset` to the end of the file."""
        return self.size - self.offset

    def read(self, length: int, record: int | None = None, what: str = "the next part") -> bytes:
        """Return `length` bytes; raise an error that names the record if there are fewer."""
        self.require(length, record, what)
        begin = self.offset
        data = self._file.read(length)
        self.offset += len(data)
        if len(data) != length:
            raise self.damaged("the file was cut off while it was read", record, begin)
        return data

    def require(self, length: int, record: int | None = None, what: str = "the next part") -> None:
        """Raise an error if fewer bytes are left, or if `length` is more than a record may have."""
        if length > self.left:
            raise self.damaged(
                f"{what} needs {length} bytes, but the file ends after {self.left} more",
                record, self.offset,
            )  # fmt: skip
        if length > LARGEST_RECORD:
            raise self.damaged(
                f"{what} claims {length} bytes; the limit is {LARGEST_RECORD}", record, self.offset
            )

    def seek(self, offset: int) -> None:
        self._file.seek(offset)
        self.offset = offset

    def damaged(
        self, what: str, record: int | None = None, offset: int | None = None
    ) -> DamagedSourceError:
        """Return the error for damage at a record or an offset of this file."""
        return DamagedSourceError(self.path, what, record, offset)

    def close(self) -> None:
        self._file.close()


class PieceReader:
    """A file object over an iterable of pieces. Holds one piece at a time."""

    def __init__(self, pieces: Iterable[Buffer]) -> None:
        self._pieces = iter(pieces)
        self._piece = memoryview(b"")

    def read(self, length: int) -> bytes:
        """Return `length` bytes, or fewer at the end of the pieces."""
        found = bytearray()
        while len(found) < length:
            if not len(self._piece):
                piece = next(self._pieces, None)
                if piece is None:
                    break
                self._piece = memoryview(piece).cast("B")
            part = self._piece[: length - len(found)]
            found += part
            self._piece = self._piece[len(part) :]
        return bytes(found)


def open_to_read(path: str, flags: int = os.O_RDONLY | os.O_CLOEXEC) -> io.BufferedReader:
    """Open a file for reading. Read errors name the file and the offset."""
    return io.BufferedReader(_Reading(path, flags), STEP)


def open_new(path: str) -> io.BufferedWriter:
    """Create a file for writing; raise FileExistsError if it exists. Write errors name the file."""
    return io.BufferedWriter(_Writing(path, "xb"), GATHERED)


def read_start(path: str, length: int) -> bytes:
    """Return the first `length` bytes of a file, or all bytes if it is shorter."""
    with open_to_read(path) as file:
        return file.read(length)


class _Reading(io.FileIO):
    def __init__(self, path: str, flags: int) -> None:
        fd = open_path(path, flags)
        try:
            super().__init__(fd, "rb")
        except OSError as error:  # the path is a folder
            os.close(fd)
            raise OSError(error.errno, error.strerror, path) from error
        self._path = path

    def readinto(self, memory: Any) -> int:
        try:
            return os.readv(self.fileno(), [memory])
        except OSError as error:
            code = error.errno or errno.EIO
            raise ReadFailedError(self._path, code, self.tell()) from error


class _Writing(io.FileIO):
    def write(self, data: Any) -> int:
        with writing(str(self.name)):
            return os.write(self.fileno(), data)
