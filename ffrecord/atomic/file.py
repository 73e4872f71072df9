"""A file that appears under its name when it is whole and on disk, or not at all.

See `ffrecord.records.writer` for what that means to users. A `NewFile` belongs to one thread and
to the process that made it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator

import numpy as np

from ffrecord.aliases import Bytes
from ffrecord.atomic import tempnames
from ffrecord.atomic.direct import DirectWriter, write_all
from ffrecord.atomic.locks import is_at, unlock
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


class Naming:
    """How a new file gets the name `target`: whatever has that name then is replaced.

    Subclasses take attributes over from an old file, refuse to replace one, or find an unfinished
    file again. A naming is for one file, and for the copies that take that file's place.
    """

    finds_again = False
    """Whether a file that is not finished keeps its passing name, for another time."""

    def __init__(self, target: str) -> None:
        self.target = target

    def open(self) -> tuple[int, str | None]:
        """Open a file to write to; its name until it has the other, if it has one."""
        folder, name = os.path.split(self.target)
        try:
            return os.open(folder, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o666), None
        except OSError as error:
            if isinstance(error, PermissionError):
                what = f"{error.strerror}: {name} cannot be made in it"
                raise PermissionError(error.errno, what, folder) from error
            if error.errno not in tempnames.NO_UNNAMED_FILES:
                raise
            return tempnames.create(self.target, mode_for(self.target))

    def prepare(self, fd: int) -> None:
        """Give a file that was just opened the owner and attributes that it is to have."""

    def with_room(self, file: NewFile, begin: int, room: int) -> tuple[NewFile, int]:
        """As `NewFile.with_room`."""
        return file.shifted(room - begin) if room > begin else (file, 0)

    def check(self) -> None:
        """Raise if the file may not get its name any more."""

    def end(self, *, kept: bool) -> None:
        """Let go of all else when the file is closed; `kept`: it may be found again."""


class NewFile:
    """A file beside its target, without a name for as long as its naming allows.

    Writes are gathered here and not in a buffered file object, for two reasons: those flush when
    a forked child drops its copy, at an offset shared with the parent, and what such an object
    has on disk after a failed write is not known. Every write says where it goes.

    Large files are written with O_DIRECT, from huge pages: they would push everything else out of
    the page cache, and getting pages for it costs more than the disk does (2 GB by hand on this
    project's machines: 3.0 to 3.5 GB/s, against 0.25 to 1.2 through the cache, fsync included).
    """

    def __init__(self, naming: Naming) -> None:
        self._naming = naming
        self._target = naming.target
        # Bytes `lead` to `fill` of the memory wait to be written; its byte 0 is the file's byte
        # `base`, a multiple of the alignment.
        self._memory = _slabs.take(SMALL_BUFFER).data
        self._base = self._lead = self._fill = 0
        self._direct: DirectWriter | None = None
        self._may_be_direct = True
        self.fd, self._name = naming.open()
        try:
            naming.prepare(self.fd)
        except BaseException:
            self.abandon()
            raise

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
            self._direct = DirectWriter.over(self.fd, lambda: _slabs.take(DIRECT_BUFFER).data)
            if self._direct is not None:
                self._memory = self._direct.spare

    def sync(self) -> None:
        """Have all of it on disk."""
        self.flush()
        os.fsync(self.fd)

    def with_room(self, begin: int, room: int) -> tuple[NewFile, int]:
        """Have `room` bytes in front of the content from `begin` on: the file that has them, and
        by how much the content moved. If it is another file, it goes on in this one's place."""
        return self._naming.with_room(self, begin, room)

    def shifted(self, least: int) -> tuple[NewFile, int]:
        """Shift the content back by at least so many bytes: as `with_room`."""
        self.flush()
        size = self.position
        os.ftruncate(self.fd, size)
        block = os.fstat(self.fd).st_blksize
        shift = -(-least // block) * block
        if size:
            with contextlib.suppress(OSError):  # a file system that cannot: the content is copied
                insert_range(self.fd, 0, shift)
                self.rewind(size + shift)
                return self, shift
        copy = NewFile(self._naming)
        try:
            _copy(self.fd, copy.fd, size, least)
        except BaseException:
            copy.close()
            raise
        copy.rewind(size + least)
        self.close()
        return copy, least

    def publish(self) -> None:
        """Make the content durable and give it the target's name."""
        if self._name is None and is_at(self.fd, self._target):
            return  # whoever closes it was interrupted after this, and closes it once more
        self._naming.check()
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
        unlock(self.fd)
        sync_folder(os.path.dirname(self._target))

    def close(self) -> None:
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
            unlock(fd)
            os.close(fd)

    def discard(self) -> None:
        """Close it for good: nothing of it is left unless it was published."""
        self.close()
        self._naming.end(kept=False)

    def abandon(self) -> None:
        """Close it after a failure. It stays if its naming finds it again."""
        if self._naming.finds_again:
            self._name = None
        self.close()
        self._naming.end(kept=True)

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
                self._naming.prepare(self.fd)
                os.fchmod(self.fd, mode)
                _copy(unnamed, self.fd, os.fstat(unnamed).st_size, 0)
                os.fsync(self.fd)
            finally:
                os.close(unnamed)


@contextlib.contextmanager
def writing(path: str) -> Iterator[None]:
    """Name `path` in errors of the operating system, which do not name an open file."""
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
