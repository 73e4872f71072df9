"""`FileWriter`: records into one file, which appears under its name only when it is whole.

What survives: data is written to an unnamed temporary file in the target's folder (a named one
where the file system has no O_TMPFILE). `close` writes the header, fsyncs the file, renames it
over the target, and fsyncs the folder. Once `close` has returned, a power cut does not lose the
file. Before that, whatever happens, an existing target is as it was; a writer that is killed
leaves nothing behind, or at worst a file named `.NAME.*.tmp` that nothing reads.

A writer belongs to one thread and to the process that made it.
"""

from __future__ import annotations

import contextlib
import operator
import os
import warnings
from array import array
from collections.abc import Iterable, Iterator
from itertools import accumulate
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ffrecord import layout
from ffrecord.checksum import crc32
from ffrecord.errors import ClosedError, CountError, NoRoomError
from ffrecord.newfile import NewFile, check_target, make_room_in_front

Bytes: TypeAlias = npt.NDArray[np.uint8]

COPY_CHUNK = 1 << 20


class FileWriter:
    """Writes a record file.

    Args:
        fname: the file to write; it is replaced when the writer is closed.
        n: how many records there will be. Left out, the header is put in front of the records at
            the end, by shifting whole blocks where the file system can (ext4, XFS), else by one
            copy inside the kernel.
    """

    def __init__(self, fname: str | os.PathLike[str], n: int | None = None) -> None:
        if not isinstance(fname, (str, os.PathLike)):
            raise TypeError(f"fname must be a path, not {type(fname).__name__}")
        if n is not None and not 0 <= operator.index(n) <= layout.MAX_RECORDS:
            raise ValueError(f"n must be between 0 and {layout.MAX_RECORDS}, not {n}")
        self.n = None if n is None else operator.index(n)
        self.count = 0
        self._pid = os.getpid()
        # Through a symlink to what it points at: replacing the link would orphan the file.
        self._path = os.path.realpath(os.fsdecode(fname))
        check_target(self._path)
        self._checksums = array("I")
        self._offsets = array("q")
        with self._no_room_is_ours():
            self._file = NewFile(self._path)
        self._sealed = 0 if n is None else layout.header_size(n)  # where the last record ended
        self._file.rewind(self._sealed)

    def write_one(self, data: Any) -> None:
        """Add one record: anything with the buffer protocol, or a file object that is read to
        its end, for records too large for memory."""
        self._opened()
        if self.n is not None and self.count >= self.n:
            raise CountError(f"{self._path}: already holds all of its {self.n} records")
        begin, count = self._sealed, self.count
        self._require_sealed()
        try:
            self._checksums.append(self._append(data))
            self._offsets.append(begin)
            self._sealed = self._file.position
            self.count += 1
        except BaseException:  # also an interrupt: all of a record is there, or nothing of it
            if self.count == count:
                del self._checksums[count:], self._offsets[count:]
                self._file.rewind(begin)
                self._sealed = begin
            raise

    def write(self, records: Iterable[Any]) -> None:
        """Add each record of an iterable."""
        for record in records:
            self.write_one(record)

    def append(self, data: memoryview) -> None:
        """Add bytes of which `seal` will say what records they are."""
        self._opened()
        with self._no_room_is_ours():
            self._file.write(np.frombuffer(data, np.uint8))

    def seal(self, lengths: Iterable[int], checksums: Iterable[int]) -> None:
        """Make records of the bytes appended since the last record: lengths and CRC-32s of each.

        For one who has computed the checksums already, which are not looked at again.
        """
        self._opened()
        lengths = list(lengths)
        offsets = array("q", accumulate(lengths, initial=self._sealed))
        added = array("I", checksums)
        end = offsets.pop()
        right = end == self._file.position and len(lengths) == len(added)
        if not right or min(lengths, default=0) < 0:
            raise CountError(f"{self._path}: the records do not add up to what was appended")
        if self.n is not None and self.count + len(offsets) > self.n:
            raise CountError(f"{self._path}: more than its {self.n} records")
        self._offsets += offsets
        self._checksums += added
        self.count += len(offsets)
        self._sealed = end

    def close(self) -> None:
        """Finish the file and put it under its name. Without that, nothing is there."""
        if self._file.closed or not self._mine:
            return
        try:
            self._require_sealed()
            if self.n is not None and self.count != self.n:
                raise CountError(
                    f"{self._path}: {self.count} records were written, {self.n} were announced; "
                    "the file is not kept"
                )
            with self._no_room_is_ours():
                self._put_header()
                self._file.publish()
        finally:
            self._file.discard()

    def discard(self) -> None:
        """Give up: leave the target as it is."""
        if self._mine:
            self._file.discard()

    def __enter__(self) -> FileWriter:
        return self

    def __exit__(self, exc_type: type[BaseException] | None, *exc: object) -> None:
        if exc_type is None:
            self.close()
        else:
            self.discard()

    def __del__(self) -> None:
        # The original finishes a file whose writer is dropped: do so when it is certainly whole.
        if not hasattr(self, "_file") or self._file.closed or not self._mine:
            return
        if self.n is not None and self.count == self.n:
            self.close()
        else:
            message = f"{self._path}: the writer was dropped without close(); nothing was kept"
            warnings.warn(message, ResourceWarning, stacklevel=2, source=self)
            self.discard()

    @property
    def _mine(self) -> bool:
        """False in a forked child: the file is its parent's."""
        return self._pid == os.getpid()

    def _opened(self) -> None:
        if self._file.closed:
            raise ClosedError(f"{self._path}: this writer is closed")
        if not self._mine:
            raise ClosedError(f"{self._path}: this writer belongs to the process that opened it")

    def _require_sealed(self) -> None:
        if self._file.position != self._sealed:
            raise CountError(f"{self._path}: bytes were appended that are no record yet")

    def _append(self, data: Any) -> int:
        """Write a record's bytes and return their checksum."""
        buffer = _as_bytes(data)
        if buffer is not None:
            with self._no_room_is_ours():
                self._file.write(buffer)
            return crc32(buffer)
        crc = 0
        while (chunk := data.read(COPY_CHUNK)) != b"":
            buffer = None if chunk is None else _as_bytes(chunk)
            if buffer is None:  # a non-blocking stream, or not a stream of bytes
                raise TypeError(f"read() gave {type(chunk).__name__} where bytes were due")
            if not len(buffer):
                break
            with self._no_room_is_ours():
                self._file.write(buffer)
            crc = crc32(buffer, crc)
        return crc

    def _put_header(self) -> None:
        checksums = np.frombuffer(self._checksums, np.uint32)
        offsets = np.frombuffer(self._offsets, np.int64)
        if self.n is None:
            room = layout.header_size(self.count)
            moved, shift = make_room_in_front(self._file, room)
            if moved is not self._file:
                self._file.discard()
                self._file = moved
            offsets = offsets + shift
        body = layout.body(checksums, offsets)
        self._file.write_at(0, layout.seal(crc32(body), body))

    @contextlib.contextmanager
    def _no_room_is_ours(self) -> Iterator[None]:
        """Turn a full disk into our error; after any failed write the file is given up."""
        try:
            yield
        except OSError as error:
            if hasattr(self, "_file"):
                self._file.discard()
            if error.errno in NoRoomError.ERRNOS:
                raise NoRoomError(self._path, error.errno) from error
            raise


def _as_bytes(data: Any) -> Bytes | None:
    """Any contiguous buffer as an array of its bytes, without a copy; None for a file object."""
    if isinstance(data, np.ndarray):
        return _array_as_bytes(np.asarray(data))  # a matrix or a masked array is its data
    try:
        view = memoryview(data)
    except TypeError:
        if isinstance(data, str):
            raise TypeError("a record is bytes, not str: encode it first") from None
        if not hasattr(data, "read"):
            raise
        return None
    if not view.c_contiguous:
        raise ValueError("the record's buffer is not C-contiguous; copy it first")
    return np.frombuffer(view, np.uint8) if view.nbytes else np.empty(0, np.uint8)


def _array_as_bytes(array: npt.NDArray[Any]) -> Bytes:
    if array.dtype.hasobject:
        raise TypeError("an array of Python objects has no bytes to store; serialise it first")
    if not array.flags.c_contiguous:
        raise ValueError("the array is not C-contiguous: use numpy.ascontiguousarray")
    return array.reshape(-1).view(np.uint8)
