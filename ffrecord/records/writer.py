"""`FileWriter`: write records to one file, which appears under its name only when it is whole.

Durability: data is written to an unnamed temporary file in the target's folder (a named one where
the file system has no O_TMPFILE). `close` writes the header, fsyncs the file, renames it over the
target, and fsyncs the folder. Once `close` has returned, a power cut does not lose the file. Until
then an existing target stays unchanged, whatever happens. A killed writer leaves nothing behind, or
at worst a file named `.NAME.*.tmp`. Nothing reads that file, and the next writer of `NAME` removes
it.

All of this holds for `append=True` too. The existing records are copied in front of the new ones
(`ffrecord.records.append` explains why), and the old file stays until the new one replaces it.

With `resumable=True` the temporary file has a name and outlives its writer (see
`ffrecord.records.resume`). Once `flush` has returned, a power cut does not lose the records written
so far. The next resumable writer for the same file continues after them. If the file is already
finished and has as many records as announced, it stays unchanged.

A URL is written in the same way to a temporary folder, and uploaded by `close`
(`ffrecord.remote.target`).

A writer belongs to one thread and to the process that made it.
"""

from __future__ import annotations

import contextlib
import os
import warnings
from array import array
from collections.abc import Iterable, Iterator
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ffrecord.aliases import Bytes, Finishing
from ffrecord.atomic.file import Naming, check_target, writing
from ffrecord.errors import ClosedError, CountError, FFRecordError, UnclosedWarning
from ffrecord.format import records as record_layout
from ffrecord.format.checksum import crc32
from ffrecord.format.padding import UNALIGNED, rounded_up
from ffrecord.records import draft
from ffrecord.records.draft import Draft
from ffrecord.remote.urls import is_remote
from ffrecord.text import counted, integer, path_text

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ffrecord.remote.options import RemoteOptions
    from ffrecord.remote.target import Target

COPY_CHUNK = 1 << 20  # bytes read from a file object at a time
SHOWN = 30  # characters of a text that an error repeats
FLUSH_BYTES = 64 << 20
"""Bytes after which a resumable writer flushes by itself."""


class FileWriter(Finishing):
    """Writer of a record file.

    Args:
        fname: the file to write. It is replaced when the writer is closed. A URL is uploaded then;
            the file is made in a temporary folder (`TMPDIR`) before.
        n: number of records that will be written; with `append`, the number that will be added.
            Without `n` the header is put in front of the records at the end: by shifting whole
            blocks where the file system can (ext4, XFS), otherwise by one copy inside the kernel.
        append: keep the records of an existing file and add to them. The old records are copied.
            That takes a moment on file systems that share blocks between files (XFS, btrfs), and as
            long as `cp` on others. For many small additions there, write more files instead and
            pass all of them to the reader. Another hard link to the file keeps the old content.
        resumable: continue where an earlier resumable writer of this file was interrupted. `count`
            is the number of records already written; each of them is read once and checked. `n`
            must be the same every time. Without `n`, closing may copy everything. A finished file
            of `n` records stays unchanged, and `count` is `n`. Without `n` a finished file is
            written again, because it might have been meant to grow.
        remote: options for URLs, as for `FileReader`.
    """

    _align = UNALIGNED  # the first record begins at a multiple of this
    _replaces = True  # an existing file

    def __init__(
        self,
        fname: str | os.PathLike[str],
        n: int | None = None,
        *,
        append: bool = False,
        resumable: bool = False,
        **remote: Unpack[RemoteOptions],
    ) -> None:
        is_url = is_remote(fname, remote)
        if not is_url and not isinstance(fname, (str, os.PathLike)):
            raise TypeError(f"fname must be a path, not {type(fname).__name__}")
        n = None if n is None else integer(n, "n")
        if n is not None and not 0 <= n <= record_layout.MAX_RECORDS:
            raise ValueError(f"n must be between 0 and {record_layout.MAX_RECORDS}, not {n}")
        if append and resumable:
            raise ValueError(
                "append=True and resumable=True cannot be combined; finish the file, then append"
            )
        self._pid = os.getpid()
        self._resumable = resumable
        self._upload: Target | None = None
        if is_url:
            self._upload = _upload_target(fname, remote, append=append, resumable=resumable)
            self._path, self._local = self._upload.name, self._upload.path
        else:
            if remote:
                from ffrecord.remote.options import refuse_for_paths

                refuse_for_paths(remote)
            # Follow a symlink: replacing the link would orphan the file it points to.
            self._path = self._local = os.path.realpath(path_text(fname))
        check_target(self._local)
        with self._writing():
            begun = self._begin(n, append)
        self._file = begun.file
        self._checksums, self._offsets = begun.checksums, begun.offsets
        self._room, self._note, self._is_finished = begun.room, begun.note, begun.is_finished
        self._sealed = begun.end  # end of the last record
        self.count = self._kept = len(begun.offsets)
        self._kept_end = self._sealed
        self._before = self.count if append else 0
        self.n = None if n is None else n + self._before
        self._file.rewind(self._sealed)

    def _begin(self, n: int | None, append: bool) -> Draft:
        """Return the draft to write to. Modules that read files are imported only when needed."""
        if append:
            from ffrecord.records.append import begin
        elif self._resumable:
            from ffrecord.records.resume import begin
        else:
            return draft.new(Naming(self._local, replaces=self._replaces), n, self._align)
        return begin(self._local, n)

    def write_one(self, data: Any) -> None:
        """Add one record.

        Args:
            data: an object with the buffer protocol, or a file object, which is read to its end.
                A file object is for records too large for memory.
        """
        self._opened()
        if self.n is not None and self.count >= self.n:
            raise CountError(
                f"{self._path}: already has all of its {self.n} records; "
                "pass a larger n or leave it out"
            )
        begin, count = self._sealed, self.count
        self._require_sealed()
        try:
            self._checksums.append(self._append(data))
            self._offsets.append(begin)
            self._sealed = self._file.position
            self.count += 1
        except BaseException:  # also an interrupt: keep all of a record or nothing
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
            raise TypeError(f"write takes an iterable of records, not one {kind}; use write_one")
        for record in records:
            self.write_one(record)

    def append(self, data: memoryview) -> None:
        """Add bytes. A later `seal` divides them into records."""
        self._opened()
        if self._is_finished:
            raise CountError(
                f"{self._path}: already has all of its {self.n} records; "
                "pass a larger n to write it again"
            )
        with self._writing():
            self._file.write(np.frombuffer(data, np.uint8))

    def seal(self, lengths: Iterable[int], checksums: Iterable[int]) -> None:
        """Divide the bytes appended since the last record into records.

        For callers that already have the checksums: these are not verified.

        Args:
            lengths: bytes of each record.
            checksums: CRC-32 of each record.
        """
        self._opened()
        lengths = list(lengths)
        offsets = array("q", accumulate(lengths, initial=self._sealed))
        added = array("I", checksums)
        end = offsets.pop()
        right = end == self._file.position and len(lengths) == len(added)
        if not right or min(lengths, default=0) < 0:
            raise CountError(
                f"{self._path}: seal got {len(lengths)} lengths ({sum(lengths)} bytes in all) and "
                f"{len(added)} checksums for {self._file.position - self._sealed} appended bytes; "
                "pass one checksum per length, and lengths that add up to the appended bytes"
            )
        if self.n is not None and self.count + len(offsets) > self.n:
            sealed, announced = self.count + len(offsets) - self._before, self.n - self._before
            raise CountError(
                f"{self._path}: seal would make {sealed} records, but {announced} records were "
                "announced; pass a larger n or leave it out"
            )
        self._offsets += offsets
        self._checksums += added
        self.count += len(offsets)
        self._sealed = end
        self._flush_if_due()

    def flush(self) -> None:
        """Write all records so far to disk.

        With `resumable`, these records then survive a crash or power cut. Otherwise they are still
        lost without `close`.
        """
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
        """Stop writing. A resumable writer keeps its records for the next one."""
        if self._file.closed or not self._mine:
            return
        try:
            if self._resumable:
                self.flush()
        finally:
            self._file.abandon()
            self._forget()

    def close(self) -> None:
        """Finish the file and give it its name. Without `close`, the file does not appear."""
        if self._file.closed or not self._mine:
            return
        try:
            self._require_sealed()
            if self._resumable:  # so that no record is lost if finishing fails
                self.flush()
            if self.n is not None and self.count != self.n:
                written, announced = self.count - self._before, self.n - self._before
                kept = "no file was written; pass the right n or leave it out"
                if self._resumable:
                    kept = "resume to write the rest"
                raise CountError(
                    f"{self._path}: {counted(written, 'record')} written, "
                    f"but {announced:,} announced; {kept}"
                )
            if not self._is_finished:
                with self._writing():
                    self._put_header()
                    self._file.publish()
        except BaseException:
            self._file.abandon()
            self._forget()
            raise
        self._file.discard()
        if self._upload is not None:
            self._upload.upload()

    def discard(self) -> None:
        """Give up: leave the target unchanged and delete all records written, also if resumable."""
        if self._mine:
            self._file.discard()
            self._forget()

    def _forget(self) -> None:
        """Remove the local files of an upload."""
        if self._upload is not None:
            self._upload.close()

    def _give_up(self) -> None:
        with contextlib.suppress(OSError, FFRecordError):  # the first error matters
            self.suspend()

    def __del__(self) -> None:
        # Finish the file if no record can be missing: the original FFRecord finishes it too.
        if not hasattr(self, "_file") or self._file.closed or not self._mine:
            return
        outcome = "no file was written; use a with block, or call close()"
        if self._resumable:
            outcome = (
                f"the records so far ({self.count}) are kept; to continue, open the writer again "
                "with resumable=True, in a with block"
            )
        try:
            # An upload needs a thread, which may have ended with the interpreter.
            if self.n is not None and self.count == self.n and self._upload is None:
                self.close()
                return
            self.suspend()
        except FileNotFoundError:  # the folder was removed
            return
        except (OSError, FFRecordError) as error:  # otherwise Python prints a traceback
            outcome = f"finishing it now failed: {error}"
        message = f"{self._path}: the writer was never closed: {outcome}"
        warnings.warn(message, UnclosedWarning, stacklevel=2)

    @property
    def _mine(self) -> bool:
        """False in a forked child: the file belongs to the parent."""
        return self._pid == os.getpid()

    def _opened(self) -> None:
        if self._file.closed:
            raise ClosedError(f"{self._path}: this writer is closed; open a new one")
        if not self._mine:
            raise ClosedError(
                f"{self._path}: this writer belongs to process {self._pid}, which opened it; open "
                "one in this process"
            )

    def _require_sealed(self) -> None:
        if self._file.position != self._sealed:
            raise CountError(
                f"{self._path}: appended bytes are no record yet; call seal to make them one"
            )

    def _append(self, data: Any) -> int:
        """Write a record's bytes and return their checksum."""
        buffer = _as_bytes(data)
        if buffer is not None:
            self._put(buffer)
            return crc32(buffer)
        crc = 0
        while (chunk := data.read(COPY_CHUNK)) != b"":
            if isinstance(chunk, str):
                raise TypeError('read() returned str, not bytes; open the file with "rb"')
            buffer = None if chunk is None else _as_bytes(chunk)
            if buffer is None:  # a non-blocking stream, or not a stream of bytes
                raise TypeError(f"read() returned {type(chunk).__name__}, not bytes")
            if not len(buffer):
                break
            self._put(buffer)
            crc = crc32(buffer, crc)
        return crc

    def _put(self, buffer: Bytes) -> None:
        try:
            self._file.write(buffer)
        except OSError:  # not around the write: that would take a fifth of each record's time
            with self._writing():
                raise

    def _put_header(self) -> None:
        checksums = np.frombuffer(self._checksums, np.uint32)
        offsets = np.frombuffer(self._offsets, np.int64)
        room = rounded_up(record_layout.header_size(self.count), self._align)
        self._file, shift = self._file.with_room(self._room, room)
        offsets = offsets + shift
        body = record_layout.body(checksums, offsets)
        self._file.write_at(0, record_layout.seal(crc32(body), body))

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        """Turn errors of a full or failing disk into FFRecordErrors, and end the writer."""
        try:
            with writing(self._local):
                yield
        except OSError:
            if hasattr(self, "_file"):
                self._file.abandon()
            raise


def _upload_target(fname: Any, remote: RemoteOptions, *, append: bool, resumable: bool) -> Target:
    """Return the place to upload to. Its modules are loaded with the first URL."""
    from ffrecord.remote.target import Target, refuse_append

    refuse_append(fname, append=append, resumable=resumable)
    return Target(fname, remote)


class ArchiveWriter(FileWriter):
    """Writer of a local file for other modules, which decide about its layout and its name.

    Args:
        fname, n: as for `FileWriter`.
        align: the first record begins at a multiple of this, after a gap of zeros. The caller
            aligns the other records, see `ffrecord.format.padding`.
        replaces: replace an existing file.
    """

    def __init__(
        self, fname: str | os.PathLike[str], n: int | None = None, *, align: int = UNALIGNED,
        replaces: bool = True,
    ) -> None:  # fmt: skip
        self._align, self._replaces = align, replaces
        super().__init__(fname, n)


def _as_bytes(data: Any) -> Bytes | None:
    """Return a contiguous buffer as an array of bytes, without a copy; None for a file object."""
    if isinstance(data, np.ndarray):
        return _array_as_bytes(np.asarray(data))  # asarray, for subclasses: matrix, masked array
    try:
        view = memoryview(data)
    except TypeError:
        if isinstance(data, str):
            raise _refuse_text(data) from None
        if not hasattr(data, "read"):
            raise _refuse_object(data) from None
        return None
    if not view.c_contiguous:
        raise ValueError("the record's buffer is not C-contiguous; copy it first")
    return np.frombuffer(view, np.uint8) if view.nbytes else np.empty(0, np.uint8)


def _refuse_text(text: str) -> TypeError:
    """Return the error for a str, with the line to write instead."""
    shown = repr(text) if len(text) <= SHOWN else "text"
    return TypeError(f"a record is bytes, not str; encode it: writer.write_one({shown}.encode())")


def _refuse_object(data: Any) -> TypeError:
    """Return the error for an object without bytes."""
    how = "serialise it, for example with pickle.dumps"
    if callable(getattr(data, "numpy", None)):
        how = "convert it with .numpy()"
    elif isinstance(data, (list, tuple)):
        how += ", or write a list of records with write"
    kind = "None" if data is None else type(data).__name__
    return TypeError(f"a record is bytes, a numpy array or another buffer, not {kind}; {how}")


def _array_as_bytes(array: npt.NDArray[Any]) -> Bytes:
    if array.dtype.hasobject:
        raise TypeError(
            "an array of Python objects has no bytes to store; serialise it first, e.g. with pickle"
        )
    if not array.flags.c_contiguous:
        raise ValueError("the array is not C-contiguous; use numpy.ascontiguousarray")
    return array.reshape(-1).view(np.uint8)
