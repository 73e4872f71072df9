"""The folder of a cache: its lock, its bound, and the files in it.

For each version of an object the folder has a map, `NAME.map`, and a sparse copy, `NAME.copy`. The
file `lock` keeps processes apart: files are made, written and dropped by one process at a time. It
also has a count of the bytes in the folder, so that files need not be counted for each write. A
process adds to the count before it writes. After a kill the count is therefore too high, never too
low. Each process makes it right when it starts, and again when it reaches the bound.

A process that uses a copy has a shared lock on its map. Holes are punched only into copies that
nobody uses, the longest unused first.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import struct
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from ffrecord.atomic.direct import write_all
from ffrecord.atomic.locks import open_own, take, unlock
from ffrecord.disk import libc
from ffrecord.format import cachemap
from ffrecord.format.cachemap import BLOCK, DamagedMapError, MapHeader, NotAMapError
from ffrecord.machine.boot import boot_id

NAME = re.compile(r"[0-9a-f]{32}-[0-9a-f]{16}")
MAP, COPY, NEW = ".map", ".copy", ".new"
_ENDINGS = (MAP, COPY, NEW)

MOST_MAP = 1 / 8
"""Share of the cache that one map may take. A server can claim any size for an object."""

LONGEST_PAUSE = 0.002
"""Seconds between two looks at the lock, which take some microseconds. Workers of a loader wait for
it often, and for a few milliseconds."""

LOCK_SECONDS = 10.0
"""Longest wait for another process. It holds the lock while it writes a few megabytes, so only a
stopped process or a hanging disk takes as long."""

MAP_SECONDS = 1.0
"""Longest wait for the lock of a map. `ffrecord cache ls` holds it for an instant. If a process was
killed while it dropped a copy, a child that it forked meanwhile holds the lock until it ends."""

PAUSE = 30.0
"""Seconds without attempts to write, after one that found no room or no lock."""

SHARE = 0.5
"""Share of the free space that a cache without a size may use. The rest is for others."""

STRIDE = 1024 * BLOCK
"""Bytes of a hole that is punched at once. Each hole waits for the disk."""

_COUNT = struct.Struct("<8sq")
_MAGIC = b"FFRCOUNT"

_folders: weakref.WeakSet[CacheFolder] = weakref.WeakSet()


def _renew_locks() -> None:
    """Give up the locks of the parent in a forked child. Another thread may have held them."""
    for folder in list(_folders):
        folder.forget_lock()


os.register_at_fork(after_in_child=_renew_locks)


@dataclass(frozen=True, slots=True)
class Kept:
    """One version of an object in the folder."""

    name: str
    header: MapHeader
    used: float  # time of the last use, in seconds since 1970


class CacheFolder:
    """A folder with copies of objects. Any number of threads and processes may use it.

    Args:
        path: the folder. It is created if it is missing.
        size: most bytes of all files in it. None: half of the space that is free or used by it.
    """

    def __init__(self, path: str, size: int | None) -> None:
        self.path = path
        self._bound = size
        self._lock = threading.RLock()
        self._depth = 0  # of nested `locked`
        self._fd = -1
        self._counted = False  # by this process
        self._paused_until = 0.0
        _folders.add(self)

    def make(self) -> None:
        """Create the folder if it is missing."""
        os.makedirs(self.path, mode=0o700, exist_ok=True)

    def file(self, name: str, ending: str) -> str:
        """Return the path of a file in the folder."""
        return os.path.join(self.path, name + ending)

    # ---- the lock ------------------------------------------------------------------------

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keep all other processes and threads out. Raises OSError if that is not possible."""
        with self._lock:
            if not self._depth:
                self._take()
            self._depth += 1
            try:
                yield
            finally:
                self._depth -= 1
                if not self._depth:
                    self._release()

    def forget_lock(self) -> None:
        """Close the lock that this process has from its parent, and make new ones."""
        if self._fd >= 0:
            os.close(self._fd)
        self._lock, self._depth, self._fd = threading.RLock(), 0, -1

    def _take(self) -> None:
        # From here on `forget_lock` finds the descriptor in a forked child.
        self._fd = open_own(os.path.join(self.path, "lock"), 0o600)
        try:
            _wait_until(partial(take, self._fd, self.path), LOCK_SECONDS, self.path)
        except BaseException as error:
            if isinstance(error, TimeoutError):
                self.pause()
            self._release()
            raise

    def _release(self) -> None:
        fd, self._fd = self._fd, -1
        unlock(fd)  # a child that was forked just now may have a copy: closing is not enough
        os.close(fd)

    @property
    def is_paused(self) -> bool:
        """True while it is no use to write: the last attempt has found no room, or no lock."""
        return time.monotonic() < self._paused_until

    def pause(self) -> None:
        """Do not write for a while. Each attempt would take as long as the last one."""
        self._paused_until = time.monotonic() + PAUSE

    # ---- the bound -----------------------------------------------------------------------

    def reserve(self, size: int) -> bool:
        """Count `size` bytes that are about to be written; return False if there is no room.

        Files that nobody uses are dropped to make room. The caller has the lock.
        """
        used, bound = self._read_count(), self._limit()
        if size > bound:  # dropping everything would not help
            return False
        if used is None or used + size > bound:
            used = self._recount()
            if used + size > bound:
                # Somewhat more than is needed, so that the next write finds room.
                used -= self._drop(used + size + min(bound // 32, 4 * STRIDE) - bound)
            if used + size > bound:
                self._write_count(used)
                self.pause()
                return False
        self._write_count(used + size)
        return True

    def _limit(self) -> int:
        if self._bound is None:
            found = os.statvfs(self.path)
            self._bound = int((found.f_bavail * found.f_frsize + self._recount()) * SHARE)
        return self._bound

    def _read_count(self) -> int | None:
        raw = os.pread(self._fd, _COUNT.size, 0)
        if len(raw) < _COUNT.size:
            return None
        magic, used = _COUNT.unpack(raw)
        return int(used) if magic == _MAGIC and used >= 0 else None

    def _write_count(self, used: int) -> None:
        os.pwrite(self._fd, _COUNT.pack(_MAGIC, max(0, used)), 0)

    def _recount(self) -> int:
        """Return the bytes on disk of all files, and remove what a kill or power cut has left."""
        total, maps, others = 0, set(), []
        for entry in self._entries():
            name, ending = os.path.splitext(entry.name)
            if ending == MAP:
                maps.add(name)
            else:
                others.append((name, ending))
            with contextlib.suppress(FileNotFoundError):
                total += entry.stat(follow_symlinks=False).st_blocks * 512
        for name, ending in others:
            if ending == NEW or name not in maps:
                with contextlib.suppress(PermissionError):  # another user has planted it
                    total -= self._remove(name + ending)
        for name in maps:
            try:
                self.read(name)
            except DamagedMapError:  # after a power cut; nobody would find the copy any more
                with contextlib.suppress(PermissionError):
                    total -= self.remove(name)
            except (OSError, NotAMapError):
                continue
        return total

    def _entries(self) -> Iterator[os.DirEntry[str]]:
        with os.scandir(self.path) as found:
            for entry in found:
                name, ending = os.path.splitext(entry.name)
                if ending in _ENDINGS and NAME.fullmatch(name):
                    yield entry

    def _remove(self, file: str) -> int:
        """Remove a file; return the bytes that it had on disk."""
        path = os.path.join(self.path, file)
        try:
            size = os.lstat(path).st_blocks * 512
            os.unlink(path)
        except FileNotFoundError:
            return 0
        return size

    def remove(self, name: str) -> int:
        """Remove a copy and its map; return the bytes on disk. Processes that use it keep theirs.

        The caller has the lock.
        """
        # The map first: a copy without a map is never read.
        return self._remove(name + MAP) + self._remove(name + COPY)

    # ---- dropping ------------------------------------------------------------------------

    def _drop(self, size: int) -> int:
        """Free at least `size` bytes if possible, the longest unused first; return the bytes."""
        freed = 0
        for kept in sorted(self.kept(), key=lambda kept: kept.used):
            if freed >= size:
                break
            freed += self._drop_from(kept, size - freed)
        return freed

    def _drop_from(self, kept: Kept, size: int) -> int:
        try:
            fd = self.open_file(kept.name, MAP)
        except OSError:
            return 0
        try:
            return self._shorten(kept, fd, size) if take(fd) else 0
        finally:
            unlock(fd)  # a child that was forked meanwhile has a copy: closing is not enough
            os.close(fd)

    def _shorten(self, kept: Kept, map_fd: int, size: int) -> int:
        """Punch holes into a copy, from its end on. Remove it if nothing is left."""
        freed, end = 0, kept.header.blocks * BLOCK
        try:
            fd = self.open_file(kept.name, COPY)
        except OSError:
            return self.remove(kept.name)
        try:
            while end > STRIDE and freed < size:
                before, begin = os.fstat(fd).st_blocks, (end - 1) // STRIDE * STRIDE
                first, last = begin // BLOCK, end // BLOCK
                zeros = bytes(cachemap.ENTRY.itemsize * (last - first))
                write_all(map_fd, zeros, cachemap.entry_at(first))
                os.fdatasync(map_fd)  # before the hole: no entry may lead into it
                libc.punch_hole(fd, begin, end - begin)
                freed += (before - os.fstat(fd).st_blocks) * 512
                end = begin
            os.utime(map_fd, (kept.used, kept.used))  # this was no use
        except OSError:  # a file system without holes
            return freed + self.remove(kept.name)
        finally:
            os.close(fd)
        return freed if freed >= size else freed + self.remove(kept.name)

    # ---- the files -----------------------------------------------------------------------

    def open_file(self, name: str, ending: str) -> int:
        """Open a file of a version. Raises PermissionError if another user has planted it."""
        return open_own(self.file(name, ending))

    def names(self) -> dict[str, list[str]]:
        """Return the names of all versions in the folder, by the first part of their names."""
        found: dict[str, list[str]] = {}
        with contextlib.suppress(FileNotFoundError):
            for entry in self._entries():
                name, ending = os.path.splitext(entry.name)
                if ending == MAP:
                    found.setdefault(name.partition("-")[0], []).append(name)
        return found

    def kept(self) -> list[Kept]:
        """Return all versions in the folder whose maps can be read."""
        found = []
        for names in self.names().values():
            for name in names:
                with contextlib.suppress(OSError, ValueError):
                    found.append(self.read(name))
        return found

    def read(self, name: str) -> Kept:
        """Return one version. Raises OSError, NotAMapError or DamagedMapError."""
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        fd = os.open(self.file(name, MAP), flags)
        try:
            header, found = read_header(fd), os.fstat(fd)
            if found.st_size != header.length:
                raise DamagedMapError("it has the wrong size")
            return Kept(name, header, found.st_mtime)
        finally:
            os.close(fd)

    def open_files(self, name: str, header: MapHeader) -> tuple[MapHeader, int, int]:
        """Open or make the files of a version; return its header, the copy and the locked map.

        A damaged pair is replaced, and one that cannot be locked. Raises OSError, and NotAMapError
        for files of others.
        """
        self.make()
        with self.locked():
            self._paused_until = 0.0  # other readers may have been closed
            if not self._counted:
                self._write_count(self._recount())
                self._counted = True
            try:
                return self._open(name, header)
            except (FileNotFoundError, TimeoutError, DamagedMapError):
                self.remove(name)
                return self._create(name, header)

    def _open(self, name: str, due: MapHeader) -> tuple[MapHeader, int, int]:
        with contextlib.ExitStack() as unless_whole:
            map_fd = self.open_file(name, MAP)
            unless_whole.callback(os.close, map_fd)
            found = read_header(map_fd)
            if (found.size, found.etag) != (due.size, due.etag):
                raise DamagedMapError("it is the map of another object")
            fd = self.open_file(name, COPY)
            unless_whole.callback(os.close, fd)
            if os.fstat(fd).st_size != found.size or os.fstat(map_fd).st_size != found.length:
                raise DamagedMapError("one of the files has the wrong size")
            _wait_until(partial(_share, map_fd), MAP_SECONDS, self.file(name, MAP))
            os.utime(map_fd)
            unless_whole.pop_all()
            return found, fd, map_fd

    def _create(self, name: str, header: MapHeader) -> tuple[MapHeader, int, int]:
        length = -(-header.length // 4096) * 4096
        if length - cachemap.ENTRIES_AT > MOST_MAP * self._limit():
            raise OSError(errno.EFBIG, f"too small for an object of {header.size:,} bytes")
        if not self.reserve(length):
            raise OSError(errno.ENOSPC, "the cache is full, and all files in it are in use")
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
        self._remove(name + NEW)
        with contextlib.ExitStack() as unless_whole:
            fd = os.open(self.file(name, COPY), flags, 0o600)
            unless_whole.callback(os.close, fd)
            os.ftruncate(fd, header.size)
            map_fd = os.open(self.file(name, NEW), flags, 0o600)
            unless_whole.callback(os.close, map_fd)
            write_all(map_fd, header.packed(), 0)
            os.ftruncate(map_fd, header.length)
            fcntl.flock(map_fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
            # Nothing is flushed: a power cut may leave files that are missing, short or empty, and
            # `_open` refuses those. With 600 shards, flushing took 4 of 5 seconds.
            os.rename(self.file(name, NEW), self.file(name, MAP))
            unless_whole.pop_all()
            return header, fd, map_fd


def _wait_until(is_taken: Callable[[], bool], seconds: float, path: str) -> None:
    """Try to take a lock until it is taken. Raises TimeoutError."""
    deadline, pause = time.monotonic() + seconds, 0.0005
    while not is_taken():
        if time.monotonic() > deadline:
            what = "another process does not release its lock"
            raise TimeoutError(errno.ETIMEDOUT, what, path)
        time.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE)


def _share(map_fd: int) -> bool:
    """Lock a map for reading; return False if another process has locked it alone."""
    try:
        fcntl.flock(map_fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def recent_seed(header: MapHeader) -> int | None:
    """Return the seed of entries whose blocks may not be on disk yet; None to write none."""
    boot = boot_id()
    return None if boot is None else cachemap.recent_seed(header.seed, boot)


def seeds(header: MapHeader) -> tuple[int, ...]:
    """Return the seeds of all entries that count until the machine is restarted."""
    recent = recent_seed(header)
    return (header.seed,) if recent is None else (header.seed, recent)


def read_header(map_fd: int) -> MapHeader:
    """Return the header of an open map."""
    return cachemap.parse(os.pread(map_fd, cachemap.ENTRIES_AT, 0))
