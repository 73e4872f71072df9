"""A file that appears under its name when it is whole and on disk, or not at all.

See `ffrecord.records.writer` for what that means to users. A `NewFile` belongs to one thread and
to the process that made it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np

from ffrecord.aliases import Bytes
from ffrecord.atomic import tempnames
from ffrecord.atomic.locks import is_at
from ffrecord.disk.libc import insert_range
from ffrecord.disk.slabs import SlabPool
from ffrecord.errors import (
    ChangedError,
    FFRecordError,
    MissingFolderError,
    NoRoomError,
    WriteFailedError,
)

ALIGN = 4096
SMALL_BUFFER = 1 << 20
DIRECT_BUFFER = 8 << 20
DIRECT_FROM = 64 << 20
"""Smaller files stay in the page cache: they are often read right after."""

LARGE_COPY = 256 << 10
COPY_CHUNK = 1 << 20
_slabs = SlabPool(idle_limit=4 * DIRECT_BUFFER)


class NewFile:
    """A file beside its target, without a name for as long as the file system allows.

    Writes are gathered here and not in a buffered file object, for two reasons: those flush when
    a forked child drops its copy, at an offset shared with the parent, and what such an object
    has on disk after a failed write is not known. Every write says where it goes.

    Large files are written with O_DIRECT, from huge pages: they would push everything else out of
    the page cache, and getting pages for it costs more than the disk does (2 GB by hand on this
    project's machines: 3.0 to 3.5 GB/s, against 0.25 to 1.2 through the cache, fsync included).
    """

    def __init__(self, target: str, fd: int = -1, name: str | None = None) -> None:
        """For the file behind `fd`, if there is one, that has the name `name` until then."""
        self._target = target
        self._folder = os.path.dirname(target)
        self._name = name
        # Bytes `lead` to `fill` of the memory wait to be written; its byte 0 is the file's byte
        # `base`, a multiple of the alignment.
        self._memory = _slabs.take(SMALL_BUFFER).data
        self._base = self._lead = self._fill = 0
        self._direct: _DirectWriter | None = None
        self._may_be_direct = True
        self.fd = fd
        if fd < 0:
            self._open()

    def _open(self) -> None:
        try:
            self.fd = os.open(self._folder, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o666)
        except OSError as error:
            if isinstance(error, PermissionError):
                name = os.path.basename(self._target)
                what = f"{error.strerror}: {name} cannot be made in it"
                raise PermissionError(error.errno, what, self._folder) from error
            if error.errno not in tempnames.NO_UNNAMED_FILES:
                raise
            self.fd, self._name = tempnames.create(self._target, mode_for(self._target))

    @property
    def closed(self) -> bool:
        return self.fd < 0

    @property
    def position(self) -> int:
        """Where the next write goes."""
        return self._base + self._fill

    def write(self, buffer: Bytes) -> None:
        data = buffer.data
        while len(data):
            room = len(self._memory) - self._fill
            part, data = data[:room], data[room:]
            target = self._memory[self._fill : self._fill + len(part)]
            if len(part) < LARGE_COPY:
                target[:] = part
            else:  # numpy lets other threads run meanwhile
                np.copyto(np.frombuffer(target, np.uint8), np.frombuffer(part, np.uint8))
            self._fill += len(part)
            if len(part) == room:
                self._write_out()

    def rewind(self, position: int) -> None:
        """Go on writing from there; what is beyond is overwritten, or cut off at the end."""
        if self._base + self._lead <= position <= self._base + self._fill:
            self._fill = position - self._base
        else:
            self._base = position - position % ALIGN
            self._lead = self._fill = position - self._base

    def flush(self) -> None:
        """Write what waits; the part of a block at the end through the page cache."""
        if self._direct is not None:
            self._direct.wait()
        self.write_at(self._base + self._lead, self._memory[self._lead : self._fill])
        self._lead = self._fill

    def write_at(self, offset: int, data: bytes | memoryview) -> None:
        write_all(self.fd, data, offset)

    def _write_out(self) -> None:
        """Write the memory, which is full, and begin it anew."""
        if self._direct is None or self._lead:
            self.flush()
        else:
            self._memory = self._direct.swap(self._memory, self._base)
        self._base += self._fill
        self._lead = self._fill = 0
        if self._direct is None and self._may_be_direct and self._base >= DIRECT_FROM:
            self._may_be_direct = False  # if it cannot be now, it will not be later
            self._direct = _DirectWriter.over(self.fd)
            if self._direct is not None:
                self._memory = self._direct.spare

    def keep(self, ends: Iterable[int], checksums: Iterable[int]) -> None:
        """Have all of it on disk. `ends` and `checksums` are of the records since the last time,
        for files that are found again after a crash; this is not one."""
        self.flush()
        os.fsync(self.fd)

    def with_room(self, begin: int, room: int) -> tuple[NewFile, int]:
        """Have `room` bytes in front of the content from `begin` on: the file that has them, and
        by how much the content moved. This one is closed if it is another."""
        if room <= begin:
            return self, 0
        moved, shift = make_room_in_front(self, room - begin)
        if moved is not self:
            self.discard()
        return moved, shift

    def publish(self) -> None:
        """Make the content durable and give it the target's name."""
        self.flush()
        os.ftruncate(self.fd, self.position)
        with contextlib.suppress(FileNotFoundError):  # a file that is replaced keeps its mode
            os.fchmod(self.fd, stat.S_IMODE(os.stat(self._target).st_mode))
        os.fsync(self.fd)
        if self._name is None:
            self._link()
        assert self._name is not None
        if not is_at(self.fd, self._name):  # where locks do not reach another machine's writer
            self._name = None
            raise ChangedError(f"{self._target}: another writer took its temporary file away")
        try:
            os.rename(self._name, self._target)
        except OSError as error:
            raise OSError(error.errno, error.strerror, self._target) from error
        self._name = None
        tempnames.release(self.fd)
        sync_folder(self._folder)

    def discard(self) -> None:
        """Close it, and remove it unless it was published."""
        if self._direct is not None:
            self._direct.close()
        self._memory.release()  # not when the exception that led here is forgotten
        name, self._name = self._name, None
        if name is not None:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name)
        fd, self.fd = self.fd, -1
        if fd >= 0:
            tempnames.release(fd)
            os.close(fd)

    def abandon(self) -> None:
        """Close it after a failure. Nothing of it is kept: there is nothing to find it by."""
        self.discard()

    def __del__(self) -> None:
        # Only the descriptor: in a forked child the name is the parent's.
        if getattr(self, "fd", -1) >= 0:
            os.close(self.fd)

    def _link(self) -> None:
        """Give the unnamed file a name that nothing reads."""
        try:
            self._name = tempnames.link(self.fd, self._target)
        except OSError:  # no /proc, or a file system that does not link unnamed files: copy it
            unnamed = self.fd
            mode = stat.S_IMODE(os.fstat(unnamed).st_mode)
            self.fd, self._name = tempnames.create(self._target, mode)
            try:
                os.fchmod(self.fd, mode)
                _copy(unnamed, self.fd, os.fstat(unnamed).st_size, 0)
                os.fsync(self.fd)
            finally:
                os.close(unnamed)

    def sibling(self) -> NewFile:
        return NewFile(self._target)


class _DirectWriter:
    """Writes whole buffers with O_DIRECT, each while the next one is filled.

    In a thread: Linux AIO waits when a write makes a file longer, so it is no help here.
    """

    def __init__(self, fd: int, buffered_fd: int) -> None:
        self._fd = fd
        self._buffered_fd = buffered_fd
        self.spare = _slabs.take(DIRECT_BUFFER).data
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="ffrecord-write")
        self._writing: Future[None] | None = None

    @classmethod
    def over(cls, fd: int) -> _DirectWriter | None:
        """For the file behind `fd`; None where it cannot be written that way."""
        try:
            again = f"/proc/self/fd/{fd}"
            return cls(os.open(again, os.O_WRONLY | os.O_DIRECT | os.O_CLOEXEC), fd)
        except OSError:  # no O_DIRECT on this file system, or no /proc
            return None

    def swap(self, full: memoryview, offset: int) -> memoryview:
        """Begin to write a buffer, and return another one that may be filled."""
        self.wait()
        other, self.spare = self.spare, full
        if other is full:  # the first time
            other = _slabs.take(DIRECT_BUFFER).data
        try:
            self._writing = self._thread.submit(self._write, full, offset)
        except RuntimeError:  # the interpreter is shutting down and starts no more threads
            self._write(full, offset)
        return other

    def _write(self, full: memoryview, offset: int) -> None:
        """Where O_DIRECT opens but does not write, or stops at an odd byte: through the cache."""
        try:
            write_all(self._fd, full, offset)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            write_all(self._buffered_fd, full, offset)

    def wait(self) -> None:
        """Until the last buffer is written; raises what went wrong."""
        writing = self._writing
        if writing is not None:
            try:
                writing.result()
            finally:
                if writing.done():  # else it was this wait that was interrupted
                    self._writing = None

    def close(self) -> None:
        """Not before the last write has ended: the descriptor's number may go to another file."""
        if self._writing is not None:
            self._writing.exception()
            self._writing = None
        self._thread.shutdown()
        self.spare.release()
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        # Of a forked child, which has no such thread: nothing is written here, so nothing to wait
        # for. In the parent `close` was called.
        if self._fd >= 0:
            os.close(self._fd)


@contextlib.contextmanager
def writing(path: str) -> Iterator[None]:
    """What the operating system says of an open file does not name it: errors of ours do."""
    try:
        yield
    except FFRecordError:
        raise
    except OSError as error:
        if error.errno in NoRoomError.ERRNOS:
            raise NoRoomError(path, error.errno) from error
        if error.filename is not None or error.errno is None:  # named, or not the system's
            raise
        if isinstance(error, PermissionError):
            raise PermissionError(error.errno, error.strerror, path) from error
        raise WriteFailedError(path, error.errno) from error


def check_target(path: str) -> None:
    """Say at once, not after hours of writing, that the file could not get its name."""
    require_folder(os.path.realpath(path))
    with contextlib.suppress(FileNotFoundError):  # a name that is too long is an error here
        mode = os.stat(path).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, "a folder is in the way", path)
        if not stat.S_ISREG(mode):  # a rename would replace the device, not write to it
            raise OSError(errno.EINVAL, "not a regular file, and will not be replaced", path)


def require_folder(target: str) -> None:
    """An error if there is no folder for a file or folder of this name."""
    try:
        os.stat(os.path.dirname(target))
    except FileNotFoundError as error:
        raise MissingFolderError(target) from error


def mode_for(target: str) -> int:
    """To make a file with that gets this name: whoever may not read what it replaces may not read
    it under a passing name either. Less the umask, as always."""
    try:
        return stat.S_IMODE(os.stat(target).st_mode) & 0o777
    except FileNotFoundError:
        return 0o666


def make_room_in_front(file: NewFile, room: int) -> tuple[NewFile, int]:
    """Shift the content back by at least `room` bytes: the file that has it, and by how much."""
    file.flush()
    size = file.position
    os.ftruncate(file.fd, size)
    block = os.fstat(file.fd).st_blksize
    shift = -(-room // block) * block
    if size:
        with contextlib.suppress(OSError):  # a file system that cannot: the content is copied
            insert_range(file.fd, 0, shift)
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


def write_all(fd: int, data: bytes | memoryview, offset: int) -> None:
    done = 0
    with memoryview(data) as view:
        while done < len(view):
            done += os.pwrite(fd, view[done:], offset + done)


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
        with writing(folder):
            os.fsync(fd)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # file systems that cannot
            raise
    finally:
        os.close(fd)
