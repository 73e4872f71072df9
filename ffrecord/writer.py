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
import operator
import os
import secrets
import stat
import warnings
from array import array
from collections.abc import Iterable, Iterator
from typing import Any, TypeAlias

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
        if n is not None and not 0 <= operator.index(n) <= layout.MAX_RECORDS:
            raise ValueError(f"n must be between 0 and {layout.MAX_RECORDS}, not {n}")
        self.n = None if n is None else operator.index(n)
        self.count = 0
        self._pid = os.getpid()
        # Through a symlink to what it points at: replacing the link would orphan the file.
        self._path = os.path.realpath(os.fsdecode(fname))
        _check_target(self._path)
        self._checksums = array("I")
        self._offsets = array("q")
        with self._no_room_is_ours():
            self._file = _TemporaryFile(self._path)
        self._file.rewind(0 if n is None else layout.header_size(n))

    def write_one(self, data: Any) -> None:
        """Add one record: anything with the buffer protocol, or a file object that is read to
        its end, for records too large for memory."""
        self._opened()
        if self.n is not None and self.count >= self.n:
            raise CountError(f"{self._path}: already holds all of its {self.n} records")
        begin, count = self._file.position, self.count
        try:
            self._checksums.append(self._append(data))
            self._offsets.append(begin)
            self.count += 1
        except BaseException:  # also an interrupt: all of a record is there, or nothing of it
            if self.count == count:
                del self._checksums[count:], self._offsets[count:]
                self._file.rewind(begin)
            raise

    def write(self, records: Iterable[Any]) -> None:
        """Add each record of an iterable."""
        for record in records:
            self.write_one(record)

    def close(self) -> None:
        """Finish the file and put it under its name. Without that, nothing is there."""
        if self._file.closed or not self._mine:
            return
        try:
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
            moved, shift = _make_room_in_front(self._file, room)
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


class _TemporaryFile:
    """A file beside its target, without a name for as long as the file system allows.

    Small writes are gathered here and not in a buffered file object, for two reasons: those flush
    when a forked child drops its copy, at an offset shared with the parent, and what such an
    object has on disk after a failed write is not known. Every write says where it goes.
    """

    def __init__(self, target: str) -> None:
        self._target = target
        self._folder = os.path.dirname(target)
        self._name: str | None = None
        self._pending = bytearray()
        self._flushed = 0  # where the pending bytes go
        try:
            self.fd = os.open(self._folder, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o666)
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL):
                raise
            self._name = self._free_name()
            self.fd = os.open(self._name, _NEW_FILE, 0o666)

    @property
    def closed(self) -> bool:
        return self.fd < 0

    @property
    def position(self) -> int:
        """Where the next write goes."""
        return self._flushed + len(self._pending)

    def write(self, buffer: Bytes) -> None:
        if len(buffer) >= WRITE_BUFFER:
            self.flush()
            self.write_at(self._flushed, buffer.data)
            self._flushed += len(buffer)
            return
        self._pending += buffer.data
        if len(self._pending) >= WRITE_BUFFER:
            self.flush()

    def rewind(self, position: int) -> None:
        """Go on writing from there; what is beyond is overwritten, or cut off at the end."""
        if position >= self._flushed and self._pending:
            del self._pending[position - self._flushed :]
        else:
            self._pending.clear()
            self._flushed = position

    def flush(self) -> None:
        self.write_at(self._flushed, self._pending)
        self._flushed += len(self._pending)
        self._pending.clear()

    def write_at(self, offset: int, data: bytes | bytearray | memoryview) -> None:
        done = 0
        with memoryview(data) as view:
            while done < len(view):
                done += os.pwrite(self.fd, view[done:], offset + done)

    def publish(self) -> None:
        """Make the content durable and give it the target's name."""
        self.flush()
        os.ftruncate(self.fd, self._flushed)
        with contextlib.suppress(FileNotFoundError):  # a file that is replaced keeps its mode
            os.fchmod(self.fd, stat.S_IMODE(os.stat(self._target).st_mode))
        os.fsync(self.fd)
        if self._name is None:
            self._link()
        assert self._name is not None
        os.rename(self._name, self._target)
        self._name = None
        sync_folder(self._folder)

    def discard(self) -> None:
        """Close it, and remove it unless it was published."""
        name, self._name = self._name, None
        if name is not None:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name)
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        # Only the descriptor: in a forked child the name is the parent's.
        if getattr(self, "fd", -1) >= 0:
            os.close(self.fd)

    def _link(self) -> None:
        """Give the unnamed file a name that nothing reads."""
        name = self._name = self._free_name()
        fd = self.fd
        try:
            # With a folder descriptor Python calls linkat, which follows /proc's link; plain
            # link would try to link the link itself. An absolute path does not use the folder.
            os.link(f"/proc/self/fd/{fd}", name, src_dir_fd=fd, follow_symlinks=True)
        except OSError:  # no /proc, or a file system that does not link unnamed files: copy it
            copy = os.open(name, _NEW_FILE, 0o666)
            try:
                _copy(fd, copy, os.fstat(fd).st_size, 0)
                os.fsync(copy)
            finally:
                os.close(copy)

    def _free_name(self) -> str:
        base = os.fsdecode(os.fsencode(os.path.basename(self._target))[:200])
        return os.path.join(self._folder, f".{base}.{secrets.token_hex(6)}.tmp")

    def sibling(self) -> _TemporaryFile:
        return _TemporaryFile(self._target)


def _check_target(path: str) -> None:
    """Say at once, not after hours of writing, that the file could not get its name."""
    with contextlib.suppress(FileNotFoundError):  # a name that is too long is an error here
        mode = os.stat(path).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, "a folder is in the way", path)
        if not stat.S_ISREG(mode):  # a rename would replace the device, not write to it
            raise OSError(errno.EINVAL, "not a regular file, and will not be replaced", path)


def _make_room_in_front(file: _TemporaryFile, room: int) -> tuple[_TemporaryFile, int]:
    """Shift the content back by at least `room` bytes: the file that has it, and by how much."""
    file.flush()
    size = file.position
    os.ftruncate(file.fd, size)
    block = os.fstat(file.fd).st_blksize
    shift = -(-room // block) * block
    if size and _fallocate(file.fd, _FALLOC_FL_INSERT_RANGE, 0, shift) == 0:
        file.rewind(size + shift)
        return file, shift
    moved = file.sibling()
    try:
        _copy(file.fd, moved.fd, size, room)
    except BaseException:
        moved.discard()
        raise
    moved.rewind(size + room)
    return moved, room


def _copy(source: int, target: int, size: int, to: int) -> None:
    """Copy `size` bytes from the start of one file to offset `to` of another, in the kernel."""
    done = 0
    while done < size:
        count = 0
        try:
            count = os.copy_file_range(source, target, size - done, done, to + done)
        except OSError as error:
            if error.errno in NoRoomError.ERRNOS:
                raise
        if not count:  # some file systems cannot, and some of those say so by copying nothing
            chunk = os.pread(source, COPY_CHUNK, done)
            if not chunk:
                raise OSError(errno.EIO, "a temporary file became shorter while it was copied")
            count = os.pwrite(target, chunk, to + done)
        done += count


def sync_folder(folder: str) -> None:
    """Make the names in a folder durable, where that can be done."""
    try:
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except PermissionError:  # a folder that may be written to but not read
        return
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # file systems that cannot
            raise
    finally:
        os.close(fd)


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
