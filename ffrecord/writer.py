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
import ctypes
import errno
import os
import secrets
import warnings
from array import array
from collections.abc import Iterable
from typing import Any, BinaryIO, TypeAlias

import numpy as np
import numpy.typing as npt

from ffrecord import layout
from ffrecord.checksum import crc32
from ffrecord.errors import ClosedError, CountError, NoRoomError

Bytes: TypeAlias = npt.NDArray[np.uint8]

WRITE_BUFFER = 1 << 20
COPY_CHUNK = 1 << 20
_NEW_FILE = os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC
_FALLOC_FL_INSERT_RANGE = 0x20
_libc = ctypes.CDLL(None, use_errno=True)
_fallocate = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64, use_errno=True
)(("fallocate64" if hasattr(_libc, "fallocate64") else "fallocate", _libc))


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
        if n is not None and not 0 <= n <= layout.MAX_RECORDS:
            raise ValueError(f"n must be between 0 and {layout.MAX_RECORDS}, not {n}")
        self.n = n
        self.count = 0
        self._pid = os.getpid()
        self._temporary: _TemporaryFile | None = None
        # Through a symlink to what it points at: replacing the link would orphan the file.
        self._path = os.path.realpath(os.fsdecode(fname))
        if os.path.isdir(self._path):
            raise IsADirectoryError(errno.EISDIR, "a folder is in the way", self._path)
        self._checksums = array("I")
        self._offsets = array("q")
        self._position = 0 if n is None else layout.header_size(n)
        with self._no_room_is_ours():
            self._temporary = _TemporaryFile(self._path)
            self._file = self._temporary.file
            self._file.seek(self._position)

    def write_one(self, data: Any) -> None:
        """Add one record: anything with the buffer protocol, or a file object that is read to
        its end, for records too large for memory."""
        self._opened()
        if self.n is not None and self.count >= self.n:
            raise CountError(f"{self._path}: already holds all of its {self.n} records")
        if hasattr(data, "read") and not isinstance(data, np.ndarray):
            crc, length = self._copy_stream(data)
        else:
            buffer = _as_bytes(data)
            with self._no_room_is_ours():
                self._file.write(buffer.data)
            crc, length = crc32(buffer), len(buffer)
        self._checksums.append(crc)
        self._offsets.append(self._position)
        self._position += length
        self.count += 1

    def write(self, records: Iterable[Any]) -> None:
        """Add each record of an iterable."""
        for record in records:
            self.write_one(record)

    def close(self) -> None:
        """Finish the file and put it under its name. Without that, nothing is there."""
        temporary, self._temporary = self._temporary, None
        if temporary is None or self._pid != os.getpid():
            return
        try:
            if self.n is not None and self.count != self.n:
                raise CountError(
                    f"{self._path}: {self.count} records were written, {self.n} were announced; "
                    "the file is not kept"
                )
            with self._no_room_is_ours():
                temporary = self._with_header(temporary)
                temporary.publish()
        finally:
            temporary.discard()

    def discard(self) -> None:
        """Give up: leave the target as it is."""
        temporary, self._temporary = self._temporary, None
        if temporary is not None and self._pid == os.getpid():
            temporary.discard()

    def __enter__(self) -> FileWriter:
        return self

    def __exit__(self, exc_type: type[BaseException] | None, *exc: object) -> None:
        if exc_type is None:
            self.close()
        else:
            self.discard()

    def __del__(self) -> None:
        # The original finishes a file whose writer is dropped: do so when it is certainly whole.
        if getattr(self, "_temporary", None) is None:
            return
        if self.n is not None and self.count == self.n:
            self.close()
        else:
            message = f"{self._path}: the writer was dropped without close(); nothing was kept"
            warnings.warn(message, ResourceWarning, stacklevel=2, source=self)
            self.discard()

    def _opened(self) -> None:
        if self._temporary is None:
            raise ClosedError(f"{self._path}: this writer is closed")

    def _copy_stream(self, stream: BinaryIO) -> tuple[int, int]:
        crc = length = 0
        try:
            while chunk := stream.read(COPY_CHUNK):
                buffer = _as_bytes(chunk)
                with self._no_room_is_ours():
                    self._file.write(buffer.data)
                crc = crc32(buffer, crc)
                length += len(buffer)
        except BaseException:
            if self._temporary is not None:  # the source failed, not the disk: take its part back
                self._file.seek(self._position)
                self._file.truncate()
            raise
        return crc, length

    def _with_header(self, temporary: _TemporaryFile) -> _TemporaryFile:
        """Put the header in its place; the file that holds everything is returned."""
        checksums = np.frombuffer(self._checksums, np.uint32)
        offsets = np.frombuffer(self._offsets, np.int64)
        if self.n is None:
            size = layout.header_size(self.count)
            temporary, shift = _make_room_in_front(temporary, size, self._position)
            offsets = offsets + shift
        body = layout.body(checksums, offsets)
        temporary.file.seek(0)
        temporary.file.write(layout.seal(crc32(body), body))
        return temporary

    @contextlib.contextmanager
    def _no_room_is_ours(self) -> Any:
        """Turn a full disk into our error. After any failed write the file is given up: what a
        buffered file has on disk by then is not known."""
        try:
            yield
        except OSError as error:
            self.discard()
            if error.errno in NoRoomError.ERRNOS:
                raise NoRoomError(self._path, error.errno) from error
            raise


class _TemporaryFile:
    """A file beside its target, without a name for as long as the file system allows."""

    def __init__(self, target: str) -> None:
        self._target = target
        self._folder = os.path.dirname(target)
        self._name: str | None = None
        try:
            fd = os.open(self._folder, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o666)
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL):
                raise
            self._name = self._free_name()
            fd = os.open(self._name, _NEW_FILE, 0o666)
        self.file = os.fdopen(fd, "wb", WRITE_BUFFER)

    def publish(self) -> None:
        """Make the content durable and give it the target's name."""
        self.file.flush()
        os.fsync(self.file.fileno())
        if self._name is None:
            self._link()
        assert self._name is not None
        os.rename(self._name, self._target)
        self._name = None
        _sync_folder(self._folder)

    def _link(self) -> None:
        """Give the unnamed file a name that nothing reads."""
        name = self._free_name()
        fd = self.file.fileno()
        try:
            # With a folder descriptor Python calls linkat, which follows /proc's link; plain
            # link would try to link the link itself. An absolute path does not use the folder.
            os.link(f"/proc/self/fd/{fd}", name, src_dir_fd=fd, follow_symlinks=True)
        except OSError:  # no /proc, or a file system that does not link unnamed files: copy it
            self._name = name
            copy = os.open(name, _NEW_FILE, 0o666)
            try:
                _copy(fd, copy, os.fstat(fd).st_size, 0)
                os.fsync(copy)
            finally:
                os.close(copy)
        self._name = name

    def discard(self) -> None:
        """Close it, and remove it unless it was published."""
        name, self._name = self._name, None
        if name is not None:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name)
        with contextlib.suppress(OSError):  # flushing what is not wanted may fail
            self.file.close()

    def _free_name(self) -> str:
        base = os.path.basename(self._target)[:200]
        return os.path.join(self._folder, f".{base}.{secrets.token_hex(6)}.tmp")

    def sibling(self) -> _TemporaryFile:
        return _TemporaryFile(self._target)


def _make_room_in_front(
    temporary: _TemporaryFile, room: int, data_size: int
) -> tuple[_TemporaryFile, int]:
    """Shift a file's content back by at least `room` bytes: the new file, and by how much."""
    temporary.file.flush()
    fd = temporary.file.fileno()
    block = os.fstat(fd).st_blksize
    shift = -(-room // block) * block
    if data_size and _fallocate(fd, _FALLOC_FL_INSERT_RANGE, 0, shift) == 0:
        return temporary, shift
    moved = temporary.sibling()
    try:
        _copy(fd, moved.file.fileno(), data_size, room)
    except BaseException:
        moved.discard()
        raise
    temporary.discard()
    return moved, room


def _copy(source: int, target: int, size: int, to: int) -> None:
    """Copy `size` bytes from the start of one file to offset `to` of another, in the kernel."""
    done = 0
    while done < size:
        try:
            count = os.copy_file_range(source, target, size - done, done, to + done)
        except OSError as error:
            if error.errno in NoRoomError.ERRNOS:
                raise
            chunk = os.pread(source, COPY_CHUNK, done)
            count = os.pwrite(target, chunk, to + done)
        if count == 0:
            raise OSError(errno.EIO, "a temporary file became shorter while it was copied")
        done += count


def _sync_folder(folder: str) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # file systems that cannot
            raise
    finally:
        os.close(fd)


def _as_bytes(data: Any) -> Bytes:
    """Any contiguous buffer as an array of its bytes, without a copy."""
    if isinstance(data, str):
        raise TypeError("a record is bytes, not str: encode it first")
    if not isinstance(data, np.ndarray):
        view = memoryview(data)
        if not view.c_contiguous:
            raise ValueError("the record's buffer is not C-contiguous; copy it first")
        return np.frombuffer(view, np.uint8) if view.nbytes else np.empty(0, np.uint8)
    if data.dtype.hasobject:
        raise TypeError("an array of Python objects has no bytes to store; serialise it first")
    if not data.flags.c_contiguous:
        raise ValueError("the array is not C-contiguous: use numpy.ascontiguousarray")
    return data.reshape(-1).view(np.uint8)
