"""Place extracted files: each gets its name when it is complete, always inside the target folder.

`OpenFolders` opens folders one name at a time from the top, without following symlinks. So nothing
outside the top is opened, even if another process changes the folders meanwhile, and a path may
have any length. All names are relative to these descriptors; no path is resolved here.

A file is written without a name, inside its folder, and then linked to its name. So a kill at any
moment leaves nothing behind. A temporary name is needed to replace a file, and on a file system
without unnamed files. Each folder has one fixed temporary name, for the process that holds the
lock of the folder. A file with this name was left by a killed extraction, and is removed. A process
that does not get the lock uses a random name, and removes nothing.

As with tar, files are not synced. Written data survives a kill of the process, but a power cut may
destroy it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import stat
from collections import OrderedDict
from collections.abc import Callable, Iterator
from functools import cache

from ffrecord.archive.index import ROOT, Index
from ffrecord.atomic.locks import take, unlock
from ffrecord.atomic.tempnames import (
    NO_LINKS,
    NO_UNNAMED_FILES,
    link_unnamed,
    remove_name,
    rename_to_new_file,
)
from ffrecord.text import there_already

MOST_OPEN = 128  # open folders
PASSING = b".ffrecord-extracting"  # the fixed temporary name
_NO_PROC = errno.ENOENT  # the error of linking an unnamed file if /proc is missing
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class OpenFolders:
    """Descriptors of folders, by inode number. The caller keeps and closes `root`, the top."""

    def __init__(self, index: Index, root: int) -> None:
        self._index = index
        self._root = root
        self._opened: OrderedDict[int, int] = OrderedDict()
        self._most = _most_open()

    def __getitem__(self, inode: int) -> int:
        """Return the descriptor of a folder. It stays open at least until `close_some`."""
        way = [inode]
        while way[-1] != ROOT and way[-1] not in self._opened:
            way.append(self._index.parent(way[-1]))
        fd = self._root
        if (nearest := way.pop()) != ROOT:
            fd = self._opened[nearest]
            self._opened.move_to_end(nearest)
        passing = -1  # a descriptor that is only needed to open the next one
        while way:
            folder = way.pop()
            try:
                fd = os.open(self._index.last_name(folder), _FOLDER, dir_fd=fd)
            finally:
                if passing >= 0:
                    os.close(passing)
            # The innermost folders stay open: the next lookup starts at the nearest open one.
            passing = fd if len(way) > self._most // 2 else -1
            if passing < 0:
                self._opened[folder] = fd
        return fd

    def close_some(self) -> None:
        """Close all folders except the most recently used."""
        self._close(self._most)

    def close(self) -> None:
        self._close(0)

    def _close(self, most: int) -> None:
        while len(self._opened) > most:
            os.close(self._opened.popitem(last=False)[1])


class Placing:
    """Maker of files, symlinks and hard links in folders, for one extraction.

    Args:
        overwrite: replace existing files, but never folders.
        may_use_passing: returns True if no extracted file is called `PASSING`. Called at most once.
    """

    def __init__(self, *, overwrite: bool, may_use_passing: Callable[[], bool]) -> None:
        self._overwrite = overwrite
        self._may_use_passing = cache(may_use_passing)
        self._unnamed_files = True  # until a file system says otherwise

    def file(
        self, folder: int, name: bytes, fill: Callable[[int], None], *, is_new: bool = False
    ) -> None:
        """Make a file, let `fill` write it, and give it its name.

        If this fails, no file is left. `fill` is called a second time if the first, unnamed file
        cannot get a name. With `is_new` the name is expected to be free: if it is not, that is an
        error.
        """
        replaces = not is_new and self._replaces(folder, name)
        if not (self._unnamed_files and self._unnamed(folder, name, fill, replaces)):
            self._named(folder, name, fill, replaces)

    @contextlib.contextmanager
    def name(self, folder: int, name: bytes) -> Iterator[bytes]:
        """Yield a free name at which the caller makes a symlink or a hard link.

        If `name` is free, yield `name` itself. If it is to be replaced, yield a temporary name, and
        rename the new link at the end. (Unlike a file, a link cannot be made without a name.)
        """
        if self._replaces(folder, name):
            with self._passing_name(folder) as passing:
                yield passing
                os.replace(passing, name, src_dir_fd=folder, dst_dir_fd=folder)
                remove_name(folder, passing)  # rename(2) does nothing if both names are one file
            return
        try:
            yield name
        except FileExistsError:  # another process made it a moment ago: leave it
            raise
        except BaseException:
            remove_name(folder, name)
            raise

    def _replaces(self, folder: int, name: bytes) -> bool:
        """Return True if something has the name; raise an error if it must not be replaced."""
        try:
            now = os.stat(name, dir_fd=folder, follow_symlinks=False)
        except FileNotFoundError:
            return False
        if stat.S_ISDIR(now.st_mode):
            what = "a folder has this name, and folders are never replaced; move the folder away"
            raise IsADirectoryError(errno.EISDIR, what)
        if not self._overwrite:
            raise there_already()
        return True

    def _unnamed(
        self, folder: int, name: bytes, fill: Callable[[int], None], replaces: bool
    ) -> bool:
        """Make a file without a name and then name it; return False if that is impossible."""
        try:
            fd = os.open(b".", os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC, 0o600, dir_fd=folder)
        except OSError as error:
            if error.errno not in NO_UNNAMED_FILES:
                raise
            self._unnamed_files = False
            return False
        try:
            fill(fd)
            if not replaces:
                return self._link(fd, folder, name)
            with self._passing_name(folder) as passing:
                if not self._link(fd, folder, passing):
                    return False
                os.replace(passing, name, src_dir_fd=folder, dst_dir_fd=folder)
            return True
        finally:
            os.close(fd)

    def _link(self, fd: int, folder: int, name: bytes) -> bool:
        """Give an unnamed file a name; return False if that is impossible."""
        try:
            link_unnamed(fd, name, folder)
        except OSError as error:
            if error.errno not in (*NO_LINKS, _NO_PROC):
                raise
            self._unnamed_files = False
            return False
        return True

    def _named(self, folder: int, name: bytes, fill: Callable[[int], None], replaces: bool) -> None:
        with self._passing_name(folder) as passing:
            fd = os.open(passing, _NEW_FILE, 0o600, dir_fd=folder)
            try:
                fill(fd)
                _require_at(fd, folder, passing)
            finally:
                os.close(fd)  # before the rename: network file systems report write errors on close
            if replaces:
                os.replace(passing, name, src_dir_fd=folder, dst_dir_fd=folder)
            else:
                rename_to_new_file(passing, name, folder)

    @contextlib.contextmanager
    def _passing_name(self, folder: int) -> Iterator[bytes]:
        """Yield a free temporary name in a folder.

        The caller must rename or remove its file. After an error, this method removes the file.
        """
        locked = _lock(folder)
        try:
            may_use = locked and self._may_use_passing() and remove_name(folder, PASSING)
            passing = PASSING if may_use else b".ffrecord-" + os.urandom(8).hex().encode()
            try:
                yield passing
            except FileExistsError:  # another process has this name: leave its file
                raise
            except BaseException:
                remove_name(folder, passing)
                raise
        finally:
            if locked:
                unlock(folder)


def _most_open() -> int:
    """Return how many folders may be open at once: a quarter of the process's limit."""
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MOST_OPEN if allowed == resource.RLIM_INFINITY else min(MOST_OPEN, allowed // 4)


def _require_at(fd: int, folder: int, name: bytes) -> None:
    """Check that the name still belongs to the open file.

    On a network file system, other machines do not see the lock of a folder. So an extraction on
    another machine may have removed the file.
    """
    now = os.stat(name, dir_fd=folder, follow_symlinks=False)
    if not os.path.samestat(now, os.fstat(fd)):
        what = "another extraction into this folder removed its temporary file; extract again"
        raise OSError(errno.EBUSY, what)


def _lock(folder: int) -> bool:
    try:
        return take(folder)
    except OSError:  # the file system has no locks: another extraction may be running
        return False
