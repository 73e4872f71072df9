"""A file of another format, read from front to back, never beyond what it has."""

from __future__ import annotations

import os
from collections.abc import Iterable

from ffrecord.convert import streams
from ffrecord.convert.shapes import LARGEST_RECORD, Buffer
from ffrecord.errors import DamagedSourceError
from ffrecord.opening import refuse_other_kinds


class SourceFile:
    """A regular file, and where in it the next read begins.

    A length is compared with what is left of the file before anything is read or allocated.
    """

    def __init__(self, path: str) -> None:
        refuse_other_kinds(path, "a file")
        self.path = path
        self._file = streams.reader(path)
        self.size = os.fstat(self._file.fileno()).st_size
        self.offset = 0

    @property
    def left(self) -> int:
        return self.size - self.offset

    def read(self, length: int, record: int | None = None, what: str = "it") -> bytes:
        """So many bytes; an error that names the record if there are fewer."""
        self.require(length, record, what)
        begin = self.offset
        data = self._file.read(length)
        self.offset += len(data)
        if len(data) != length:
            raise self.damaged("was cut off while it was read", record, begin)
        return data

    def require(self, length: int, record: int | None = None, what: str = "it") -> None:
        """An error unless so many bytes are left, and no more than a record may have."""
        if length > self.left:
            raise self.damaged(
                f"{what} needs {length} bytes, the file has {self.left} more", record, self.offset
            )
        if length > LARGEST_RECORD:
            raise self.damaged(
                f"{what} has {length} bytes; {LARGEST_RECORD} is the most that is read",
                record, self.offset,
            )  # fmt: skip

    def seek(self, offset: int) -> None:
        self._file.seek(offset)
        self.offset = offset

    def damaged(
        self, what: str, record: int | None = None, offset: int | None = None
    ) -> DamagedSourceError:
        return DamagedSourceError(self.path, what, record, offset)

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> SourceFile:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class Pieces:
    """Bytes that come in pieces, read as from a file; memory is taken as they come."""

    def __init__(self, pieces: Iterable[Buffer]) -> None:
        self._pieces = iter(pieces)
        self._piece = memoryview(b"")

    def read(self, length: int) -> bytes:
        """So many bytes, or fewer at the end."""
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
