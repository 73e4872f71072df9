"""Files of other formats as Python file objects, whose errors name the file.

What the operating system says of an open file does not name it, and Python's own objects take
EAGAIN for the end of a file, or give None where bytes are due. Here both are errors of ours. A
short count is no error: the buffers above these ask again.
"""

from __future__ import annotations

import errno
import io
import os
from typing import Any

from ffrecord.errors import ReadFailedError
from ffrecord.longpaths import open_path
from ffrecord.newfile import writing

STEP = 1 << 20
"""Bytes that are read at once."""

GATHERED = 128 << 10
"""Bytes that are written at once."""


def reader(path: str, flags: int = os.O_RDONLY | os.O_CLOEXEC) -> io.BufferedReader:
    """A file to read from."""
    return io.BufferedReader(_Reading(path, flags), STEP)


def new_file(path: str) -> io.BufferedWriter:
    """A file that was not there, to write to."""
    return io.BufferedWriter(_Writing(path, "xb"), GATHERED)


def first_bytes(path: str, length: int) -> bytes:
    """So many, or as many as the file has."""
    with reader(path) as file:
        return file.read(length)


class _Reading(io.FileIO):
    def __init__(self, path: str, flags: int) -> None:
        fd = open_path(path, flags)
        try:
            super().__init__(fd, "rb")
        except OSError as error:  # a folder
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
