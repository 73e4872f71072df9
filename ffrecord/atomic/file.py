"""New files that get their name when they are whole and on disk, or not at all.

`ffrecord.records.writer` says what this means for users. A `NewFile` belongs to one thread and to
the process that made it.
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
"""Size from which a file is written with O_DIRECT. Smaller files are often read right after they
are written, so they stay in the page cache."""

LARGE_COPY = 256 << 10  # copies of at least this size let other threads run
COPY_CHUNK = 1 << 20
_slabs = SlabPool(idle_limit=4 * DIRECT_BUFFER)


class Naming:
    """Rules by which a new file gets the name `target`.

    Subclasses copy attributes of an old file, refuse to replace one, or reopen an unfinished file.
    A naming belongs to one file, and to the copies that take that file's place.

    Args:
        target: the name.
        replaces: replace an existing file. With False, a file of this name is an error, also one
            that appears while the new one is written.
    """

    finds_again = False
    """True if an unfinished file keeps its temporary name, so that a later writer can resume it."""

    def __init__(self, target: str, *, replaces: bool = True) -> None:
        self.target = target
        self._replaces = replaces

    def open(self) -> tuple[int, str | None]:
        """Open a file to write to; return its descriptor and temporary name (None: unnamed)."""
        try:
            return os.open(
                os.path.dirname(self.target), os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o666
            ), None
        except OSError as error:
            if isinstance(error, PermissionError):
                raise not_permitted(error, self.target) from error
            if error.errno not in tempnames.NO_UNNAMED_FILES:
                raise
            return tempnames.create(self.target, mode_for(self.target))

    def prepare(self, fd: int) -> None:
        """Set the owner and attributes of a file that was just opened."""

    def with_room(self, file: NewFile, begin: int, room: int) -> tuple[NewFile, int]:
        """Implement `NewFile.with_room`."""
        return file.shifted(room - begin) if room > begin else (file, 0)

    def check(self) -> None:
        """Raise an error if the file may no longer get its name."""

    def name(self, temporary: str) -> None:
        """Rename a file from its temporary name to the target."""
        (os.rename if self._replaces else name_anew)(temporary, self.target)

    def end(self, *, kept: bool) -> None:
        """Release locks and helper files when the file is closed.

        Args:
            kept: True if the file stays on disk and a later writer may resume it.
        """


class NewFile:
    """A file in the folder of its target, unnamed for as long as its naming allows.

    Writes are gathered here, not in a buffered file object, for two reasons. A file object flushes
    when a forked child drops its copy, at an offset that is shared with the parent. And after a
    failed write, nobody knows which bytes are on disk. Every write here has its own offset.

    Large files are written with O_DIRECT, from huge pages. Through the page cache they would evict
    everything else, and getting pages for them takes longer than the disk. (2 GB, measured by hand
    on this project's machines: 3.0 to 3.5 GB/s with O_DIRECT, 0.25 to 1.2 GB/s through the cache,
    fsync included.)
    """

    def __init__(self, naming: Naming) -> None:
        self._naming = naming
        self._target = naming.target
        # Bytes `lead` to `fill` of the memory are not written yet. Byte 0 of the memory is byte
        # `base` of the file, a multiple of the alignment.
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
        """Offset of the next write."""
        return self._base + self._fill

    def write(self, buffer: Bytes) -> None:
        data = buffer.data
        while len(data):
            room = len(self._memory) - self._fill
            part, data = data[:room], data[room:]
            target = self._memory[self._fill : self._fill + len(part)]
            if len(part) < LARGE_COPY:
                target[:] = part
            else:  # numpy releases the GIL while it copies
                np.copyto(np.frombuffer(target, np.uint8), np.frombuffer(part, np.uint8))
            self._fill += len(part)
            if len(part) == room:
                self._write_out()

    def rewind(self, position: int) -> None:
        """Continue writing at `position`. Later bytes are overwritten, or cut off by `publish`."""
        if self._base + self._lead <= position <= self._base + self._fill:
            self._fill = position - self._base
        else:
            self._base = position - position % ALIGN
            self._lead = self._fill = position - self._base

    def flush(self) -> None:
        """Write all gathered bytes. A partial block at the end goes through the page cache."""
        if self._direct is not None:
            self._direct.wait()
        self.write_at(self._base + self._lead, self._memory[self._lead : self._fill])
        self._lead = self._fill

    def write_at(self, offset: int, data: bytes | memoryview) -> None:
        write_all(self.fd, data, offset)

    def _write_out(self) -> None:
        """Write the full memory, and start to fill it again."""
        if self._direct is None or self._lead:
            self.flush()
        else:
            self._memory = self._direct.swap(self._memory, self._base)
        self._base += self._fill
        self._lead = self._fill = 0
        if self._direct is None and self._may_be_direct and self._base >= DIRECT_FROM:
            self._may_be_direct = False  # try only once: if it fails now, it fails later
            self._direct = DirectWriter.over(self.fd, lambda: _slabs.take(DIRECT_BUFFER).data)
            if self._direct is not None:
                self._memory = self._direct.spare

    def sync(self) -> None:
        """Write everything, and wait until it is on disk."""
        self.flush()
        os.fsync(self.fd)

    def with_room(self, begin: int, room: int) -> tuple[NewFile, int]:
        """Make `room` bytes available in front of the content that starts at `begin`.

        Return the file that has the room, and the number of bytes by which its content moved. If
        another file is returned, it replaces this one.
        """
        return self._naming.with_room(self, begin, room)

    def shifted(self, least: int) -> tuple[NewFile, int]:
        """Move the content towards the end by at least `least` bytes.

        Return the same as `with_room`.
        """
        self.flush()
        size = self.position
        os.ftruncate(self.fd, size)
        block = os.fstat(self.fd).st_blksize
        shift = -(-least // block) * block
        if size:
            with contextlib.suppress(OSError):  # if the file system cannot, the content is copied
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
        """Make the content durable, and give the file the target's name."""
        if self._name is None and is_at(self.fd, self._target):
            return  # published before: the caller was interrupted after that, and closes again
        self._naming.check()
        self.flush()
        os.ftruncate(self.fd, self.position)
        keep_access(self.fd, self._target)
        os.fsync(self.fd)
        if self._name is None:
            self._link()
        assert self._name is not None
        if not is_at(self.fd, self._name):  # locks do not reach a writer on another machine
            self._name = None
            raise ChangedError(
                f"{self._target}: another writer removed its temporary file; write the file again "
                "when no other program is writing it"
            )
        try:
            self._naming.name(self._name)
        except FileExistsError:
            self._name = None  # removed
            raise
        except OSError as error:
            raise OSError(error.errno, error.strerror, self._target) from error
        self._name = None
        unlock(self.fd)
        sync_folder(os.path.dirname(self._target))

    def close(self) -> None:
        """Close the file, and remove it unless it was published."""
        if self._direct is not None:
            self._direct.close()
        self._memory.release()  # now: an exception that led here may keep this object for long
        name, self._name = self._name, None
        if name is not None:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name)
        fd, self.fd = self.fd, -1
        if fd >= 0:
            unlock(fd)
            os.close(fd)

    def discard(self) -> None:
        """Close the file, and remove all traces of it unless it was published."""
        self.close()
        self._naming.end(kept=False)

    def abandon(self) -> None:
        """Close the file after a failure. Keep it if a later writer can resume it."""
        if self._naming.finds_again:
            self._name = None
        self.close()
        self._naming.end(kept=True)

    def __del__(self) -> None:
        # Only close the descriptor: in a forked child the name belongs to the parent.
        if getattr(self, "fd", -1) >= 0:
            os.close(self.fd)

    def _link(self) -> None:
        """Give the unnamed file a temporary name."""
        try:
            self._name = tempnames.link(self.fd, self._target)
        except OSError:  # no /proc, or no links to unnamed files on this file system: copy it
            unnamed = self.fd
            mode = stat.S_IMODE(os.fstat(unnamed).st_mode)
            self.fd, self._name = tempnames.create(self._target, mode)
            try:
                self._naming.prepare(self.fd)
                os.fchmod(self.fd, mode)
                keep_access(self.fd, self._target)
                _copy(unnamed, self.fd, os.fstat(unnamed).st_size, 0)
                os.fsync(self.fd)
            finally:
                os.close(unnamed)


@contextlib.contextmanager
def writing(path: str) -> Iterator[None]:
    """Add `path` to errors of the operating system, which do not name an open file."""
    try:
        yield
    except FFRecordError:
        raise
    except OSError as error:
        if error.errno in NoRoomError.ERRNOS:
            raise NoRoomError(path, error.errno) from error
        if error.filename is not None or error.errno is None:  # named, or not a system's error
            raise
        if isinstance(error, PermissionError):
            raise PermissionError(error.errno, error.strerror, path) from error
        raise WriteFailedError(path, error.errno) from error


def write_file(path: str, content: bytes) -> None:
    """Create or replace a file with this content, in one step."""
    file = NewFile(Naming(path))
    try:
        with writing(path):
            file.write(np.frombuffer(content, np.uint8))
            file.publish()
    finally:
        file.discard()


def appeared(target: str) -> FileExistsError:
    """Return the error for a target that another program made while its writer was running."""
    message = (
        "already exists: another program created it meanwhile, and it is not replaced; "
        "choose another name"
    )
    return FileExistsError(errno.EEXIST, message, target)


def name_anew(temporary: str, target: str) -> None:
    """Rename a file to a name that must not exist, and remove the file if it does."""
    try:
        tempnames.rename_to_new_file(temporary, target)
    except FileExistsError as error:
        raise appeared(target) from error


def not_permitted(error: OSError, target: str) -> PermissionError:
    """Return the error for a file or folder that this user may not create."""
    folder, name = os.path.split(target)
    way_out = "choose another folder"
    with contextlib.suppress(OSError):
        found = os.stat(folder)
        if found.st_uid == os.geteuid() and not found.st_mode & stat.S_IWUSR:
            way_out = f"make your folder writable with chmod u+w, or {way_out}"
    what = f"{error.strerror}: cannot create {name} here; {way_out}"
    return PermissionError(error.errno, what, folder)


def check_target(path: str) -> None:
    """Raise an error if a file cannot get this name: at once, not after hours of writing."""
    require_folder(os.path.realpath(path))
    with contextlib.suppress(FileNotFoundError):  # a name that is too long raises another error
        mode = os.stat(path).st_mode
        if stat.S_ISDIR(mode):
            what = "a folder of this name already exists; choose another name"
            raise IsADirectoryError(errno.EISDIR, what, path)
        if not stat.S_ISREG(mode):  # a rename would replace the device, not write to it
            what = "not a regular file, and is not replaced; choose another name"
            raise OSError(errno.EINVAL, what, path)


def require_folder(target: str) -> None:
    """Raise `MissingFolderError` if the folder of `target` does not exist."""
    try:
        os.stat(os.path.dirname(target))
    except FileNotFoundError as error:
        raise MissingFolderError(target) from error


def keep_access(new: int | str, target: str) -> None:
    """Give a new file the mode, owner and group of the file `target` that it will replace.

    An owner or group that this user may not give is not kept.
    """
    try:
        old = os.stat(target)
    except FileNotFoundError:
        return
    for owner in (old.st_uid, -1):
        with contextlib.suppress(OSError):
            os.chown(new, owner, old.st_gid)
            break
    os.chmod(new, stat.S_IMODE(old.st_mode))  # last, because chown may change it


def mode_for(target: str) -> int:
    """Return the mode, before the umask, of a temporary file that will be renamed to `target`.

    A user who may not read the replaced file must not read the temporary one either.
    """
    try:
        return stat.S_IMODE(os.stat(target).st_mode) & 0o777
    except FileNotFoundError:
        return 0o666


def _copy(source: int, target: int, size: int, to: int) -> None:
    """Copy the first `size` bytes of one file to offset `to` of another.

    The kernel copies if the file system supports that.
    """
    done = 0
    while done < size:
        count = 0
        try:
            count = os.copy_file_range(source, target, size - done, done, to + done)
        except OSError as error:
            if error.errno in NoRoomError.ERRNOS:
                raise
        if not count:  # not supported: some file systems report that by copying nothing
            chunk = os.pread(source, COPY_CHUNK, done)
            if not chunk:
                raise OSError(errno.EIO, "the temporary file became shorter while it was copied")
            count = os.pwrite(target, chunk, to + done)
        done += count


def sync_folder(folder: str) -> None:
    """Make the names in a folder durable, if the file system supports it."""
    try:
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except PermissionError:  # the user may write to the folder but not read it
        return
    try:
        with writing(folder):
            os.fsync(fd)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # not supported by the file system
            raise
    finally:
        os.close(fd)
