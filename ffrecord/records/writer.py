"""`FileWriter`: records into one file, which appears under its name only when it is whole.

What survives: data is written to an unnamed temporary file in the target's folder (a named one
where the file system has no O_TMPFILE). `close` writes the header, fsyncs the file, renames it
over the target, and fsyncs the folder. Once `close` has returned, a power cut does not lose the
file. Before that, whatever happens, an existing target is as it was; a writer that is killed
leaves nothing behind, or at worst a file named `.NAME.*.tmp` that nothing reads and that the next
writer of `NAME` removes.

With `append=True` all that holds too: the records that are there are copied in front of the new
ones (`ffrecord.records.append` says why), and the old file stays until the new one replaces it.

With `resumable=True` the temporary file has a name and outlives its writer (see
`ffrecord.records.resume`). Once `flush` has returned, a power cut does not lose the records so far;
the next resumable writer for the same file goes on after them. If that file is finished and has as
many records as were announced, there is nothing to go on with, and it stays as it is.

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
from typing import Any

import numpy as np
import numpy.typing as npt

from ffrecord.aliases import Bytes, Finishing
from ffrecord.atomic.file import Naming, check_target, writing
from ffrecord.errors import ClosedError, CountError, FFRecordError
from ffrecord.format import records as record_layout
from ffrecord.format.checksum import crc32
from ffrecord.records import draft
from ffrecord.records.draft import Draft

COPY_CHUNK = 1 << 20
SHOWN = 30  # characters of a text that an error repeats
FLUSH_BYTES = 64 << 20
"""A resumable writer flushes by itself when so much was written since the last time."""


class FileWriter(Finishing):
    """Writes a record file.

    Args:
        fname: the file to write; it is replaced when the writer is closed.
        n: how many records there will be; with `append`, how many will be added. Left out, the
            header is put in front of the records at the end, by shifting whole blocks where the
            file system can (ext4, XFS), else by one copy inside the kernel.
        append: keep the records of a file that is there, and add to them. They are copied, which
            takes a moment on file systems that share blocks between files (XFS, btrfs) and as
            long as `cp` on others; for many small additions there, write further files instead,
            and give the reader all of them. Another hard link to the file keeps the old content.
        resumable: go on where an earlier writer of this file, resumable too, was interrupted:
            `count` says how many records are there already. Each is read once and checked. `n`
            must be the same every time; when it is not known, closing may copy everything. A file
            of `n` records that is finished stays as it is, and `count` is `n`; without `n` nobody
            can tell that it was to have no more, and it is written anew.
    """

    def __init__(
        self,
        fname: str | os.PathLike[str],
        n: int | None = None,
        *,
        append: bool = False,
        resumable: bool = False,
    ) -> None:
        if not isinstance(fname, (str, os.PathLike)):
            raise TypeError(f"fname must be a path, not {type(fname).__name__}")
        if n is not None and not 0 <= operator.index(n) <= record_layout.MAX_RECORDS:
            raise ValueError(f"n must be between 0 and {record_layout.MAX_RECORDS}, not {n}")
        if append and resumable:
            raise ValueError(
                "append and resumable exclude each other: finish the file, then append"
            )
        n = None if n is None else operator.index(n)
        self._pid = os.getpid()
        self._resumable = resumable
        # Through a symlink to what it points at: replacing the link would orphan the file.
        self._path = os.path.realpath(os.fsdecode(fname))
        check_target(self._path)
        with self._writing():
            begun = self._begin(n, append)
        self._file = begun.file
        self._checksums, self._offsets = begun.checksums, begun.offsets
        self._room, self._note, self._is_finished = begun.room, begun.note, begun.is_finished
        self._sealed = begun.end  # where the last record ended
        self.count = self._kept = len(begun.offsets)
        self._kept_end = self._sealed
        self._before = self.count if append else 0
        self.n = None if n is None else n + self._before
        self._file.rewind(self._sealed)

    def _begin(self, n: int | None, append: bool) -> Draft:
        """The modules that read are loaded when they are needed: most files are new ones."""
        if append:
            from ffrecord.records.append import begin
        elif self._resumable:
            from ffrecord.records.resume import begin
        else:
            return draft.new(Naming(self._path), n)
        return begin(self._path, n)

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
        self._flush_if_due()

    def write(self, records: Iterable[Any]) -> None:
        """Add each record of an iterable."""
        if isinstance(records, str):
            raise _refuse_text(records)
        if isinstance(records, (bytes, bytearray, memoryview)):
            kind = type(records).__name__
            raise TypeError(f"write takes several records, not one {kind}: use write_one")
        for record in records:
            self.write_one(record)

    def append(self, data: memoryview) -> None:
        """Add bytes of which `seal` will say what records they are."""
        self._opened()
        if self._is_finished:
            raise CountError(f"{self._path}: already holds all of its records")
        with self._writing():
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
        self._flush_if_due()

    def flush(self) -> None:
        """Have all records so far on disk. A resumable writer's survive whatever comes then;
        those of another one are lost without `close`."""
        self._opened()
        if self._is_finished:
            return
        ends = self._offsets[self._kept + 1 :]
        if self.count > self._kept:
            ends.append(self._sealed)
        with self._writing():
            self._file.sync()
            if self._note is not None:
                self._note(ends, self._checksums[self._kept :])
        self._kept, self._kept_end = self.count, self._sealed

    def _flush_if_due(self) -> None:
        if self._resumable and self._sealed - self._kept_end >= FLUSH_BYTES:
            self.flush()

    def suspend(self) -> None:
        """Stop here and, if the writer is resumable, leave the records for another time."""
        if self._file.closed or not self._mine:
            return
        try:
            if self._resumable:
                self.flush()
        finally:
            self._file.abandon()

    def close(self) -> None:
        """Finish the file and put it under its name. Without that, nothing is there."""
        if self._file.closed or not self._mine:
            return
        try:
            self._require_sealed()
            if self._resumable:  # so that nothing is lost if it cannot be finished
                self.flush()
            if self.n is not None and self.count != self.n:
                written, announced = self.count - self._before, self.n - self._before
                kept = "can be continued" if self._resumable else "is not kept"
                raise CountError(
                    f"{self._path}: {written} records were written, {announced} were announced; "
                    f"the file {kept}"
                )
            if not self._is_finished:
                with self._writing():
                    self._put_header()
                    self._file.publish()
        except BaseException:
            self._file.abandon()
            raise
        self._file.discard()

    def discard(self) -> None:
        """Give up: leave the target as it is. Of a resumable writer's records nothing is kept."""
        if self._mine:
            self._file.discard()

    def _give_up(self) -> None:
        with contextlib.suppress(OSError, FFRecordError):  # the first error is to be seen
            self.suspend()

    def __del__(self) -> None:
        # The original finishes a file whose writer is dropped: do so when it is certainly whole.
        if not hasattr(self, "_file") or self._file.closed or not self._mine:
            return
        if self.n is not None and self.count == self.n:
            with contextlib.suppress(FileNotFoundError):  # the folder is gone: nobody waits for it
                self.close()
            return
        kept = "it can be continued" if self._resumable else "nothing was kept"
        message = f"{self._path}: the writer was dropped without close(); {kept}"
        warnings.warn(message, ResourceWarning, stacklevel=2, source=self)
        self.suspend()

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
            self._put(buffer)
            return crc32(buffer)
        crc = 0
        while (chunk := data.read(COPY_CHUNK)) != b"":
            if isinstance(chunk, str):
                raise TypeError('read() gave str, not bytes; open it with "rb"')
            buffer = None if chunk is None else _as_bytes(chunk)
            if buffer is None:  # a non-blocking stream, or not a stream of bytes
                raise TypeError(f"read() gave {type(chunk).__name__} where bytes were due")
            if not len(buffer):
                break
            self._put(buffer)
            crc = crc32(buffer, crc)
        return crc

    def _put(self, buffer: Bytes) -> None:
        try:
            self._file.write(buffer)
        except OSError:  # a context for every record would be a fifth of its cost
            with self._writing():
                raise

    def _put_header(self) -> None:
        checksums = np.frombuffer(self._checksums, np.uint32)
        offsets = np.frombuffer(self._offsets, np.int64)
        room = record_layout.header_size(self.count)
        self._file, shift = self._file.with_room(self._room, room)
        offsets = offsets + shift
        body = record_layout.body(checksums, offsets)
        self._file.write_at(0, record_layout.seal(crc32(body), body))

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        """A disk that is full or fails is an error of ours; after it the writer is done with."""
        try:
            with writing(self._path):
                yield
        except OSError:
            if hasattr(self, "_file"):
                self._file.abandon()
            raise


def _as_bytes(data: Any) -> Bytes | None:
    """Any contiguous buffer as an array of its bytes, without a copy; None for a file object."""
    if isinstance(data, np.ndarray):
        return _array_as_bytes(np.asarray(data))  # a matrix or a masked array is its data
    try:
        view = memoryview(data)
    except TypeError:
        if isinstance(data, str):
            raise _refuse_text(data) from None
        if not hasattr(data, "read"):
            raise
        return None
    if not view.c_contiguous:
        raise ValueError("the record's buffer is not C-contiguous; copy it first")
    return np.frombuffer(view, np.uint8) if view.nbytes else np.empty(0, np.uint8)


def _refuse_text(text: str) -> TypeError:
    """The error for a str, with the line to write instead."""
    shown = repr(text) if len(text) <= SHOWN else "text"
    return TypeError(f"a record is bytes, not str; encode it: writer.write_one({shown}.encode())")


def _array_as_bytes(array: npt.NDArray[Any]) -> Bytes:
    if array.dtype.hasobject:
        raise TypeError("an array of Python objects has no bytes to store; serialise it first")
    if not array.flags.c_contiguous:
        raise ValueError("the array is not C-contiguous: use numpy.ascontiguousarray")
    return array.reshape(-1).view(np.uint8)
