"""Extracted files get their names in one step, when they are whole, and never outside the target.

Folders are opened one name at a time from the top, without following symlinks (`OpenFolders`): so
nothing outside the top is opened, whoever changes the folder meanwhile, and a path may have any
length. All names are relative to those descriptors; no path is resolved here.

A file is filled without a name, inside its folder, and then linked to its name, so a kill at any
moment leaves nothing behind. A passing name is needed to replace something, and where the file
system has no unnamed files. Each folder has one passing name, for the process that holds the
folder's lock: a file of that name was left by a killed extraction, and is removed. A process that
does not get the lock takes a random name, and removes nothing. Nothing is synced, as with tar: a
kill loses nothing that the kernel has, a power cut may.
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
from typing import AnyStr

from ffrecord.archive.index import ROOT, Index
from ffrecord.atomic.locks import take, unlock
from ffrecord.atomic.tempnames import NO_UNNAMED_FILES, link_unnamed
from ffrecord.text import there_already

MOST_OPEN = 128
PASSING = b".ffrecord-extracting"
NO_LINKS = (errno.EPERM, errno.EMLINK, errno.EXDEV, errno.ENOTSUP, errno.ENOSYS)
"""A file system without hard links, or at its limit of them."""

_NO_PROC = errno.ENOENT
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class OpenFolders:
    """Descriptors of folders, by the numbers of their inodes. That of the top, `root`, stays the
    caller's."""

    def __init__(self, index: Index, root: int) -> None:
        self._index = index
        self._root = root
        self._opened: OrderedDict[int, int] = OrderedDict()
        self._most = _most_open()

    def __getitem__(self, inode: int) -> int:
        """A folder's descriptor. It stays open until `close_some`, and most likely longer."""
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
            # The last folders on the way stay open: after the deepest ones come those above them.
            passing = fd if len(way) > self._most // 2 else -1
            if passing < 0:
                self._opened[folder] = fd
        return fd

    def close_some(self) -> None:
        """Close all but the last ones that were used."""
        self._close(self._most)

    def close(self) -> None:
        self._close(0)

    def _close(self, most: int) -> None:
        while len(self._opened) > most:
            os.close(self._opened.popitem(last=False)[1])


class Placing:
    """Puts things into folders, for one extraction.

    Args:
        overwrite: replace what is there; folders never.
        may_use_passing: asked once, if at all, whether nothing that is extracted has that name.
    """

    def __init__(self, *, overwrite: bool, may_use_passing: Callable[[], bool]) -> None:
        self._overwrite = overwrite
        self._may_use_passing = cache(may_use_passing)
        self._unnamed_files = True  # until a file system says otherwise

    def file(
        self, folder: int, name: bytes, fill: Callable[[int], None], *, is_new: bool = False
    ) -> None:
        """Make a file, have `fill` write it, and give it its name. Nothing is left of one that
        fails. `fill` is called a second time if what it has filled cannot be named. If the name
        `is_new` nothing is there to be replaced; what is there all the same is an error."""
        replaces = not is_new and self._replaces(folder, name)
        if not (self._unnamed_files and self._unnamed(folder, name, fill, replaces)):
            self._named(folder, name, fill, replaces)

    @contextlib.contextmanager
    def name(self, folder: int, name: bytes) -> Iterator[bytes]:
        """A free name for what cannot be without one, a symlink or a hard link: its own, or if
        that is to be replaced one from which it is moved there at the end."""
        if self._replaces(folder, name):
            with self._passing_name(folder) as passing:
                yield passing
                os.replace(passing, name, src_dir_fd=folder, dst_dir_fd=folder)
                _remove(folder, passing)  # if both were one file, nothing was moved
            return
        try:
            yield name
        except FileExistsError:  # made by someone else a moment ago: theirs, not ours
            raise
        except BaseException:
            _remove(folder, name)
            raise

    def _replaces(self, folder: int, name: bytes) -> bool:
        """Whether something is there; an error if it is not to be replaced."""
        try:
            now = os.stat(name, dir_fd=folder, follow_symlinks=False)
        except FileNotFoundError:
            return False
        if stat.S_ISDIR(now.st_mode):
            raise IsADirectoryError(errno.EISDIR, "a folder is in the way, and is never replaced")
        if not self._overwrite:
            raise there_already()
        return True

    def _unnamed(
        self, folder: int, name: bytes, fill: Callable[[int], None], replaces: bool
    ) -> bool:
        """Whether it could be made without a name, and then be given one."""
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
        """Whether an unnamed file could get a name."""
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
                os.close(fd)  # first: network file systems say only now what went wrong
            if replaces:
                os.replace(passing, name, src_dir_fd=folder, dst_dir_fd=folder)
            else:
                rename_to_new_file(passing, name, folder)

    @contextlib.contextmanager
    def _passing_name(self, folder: int) -> Iterator[bytes]:
        """A free name in a folder. Whoever asks for it sees to it that nothing has it at the end;
        after an error nothing has it either."""
        locked = _lock(folder)
        try:
            may_use = locked and self._may_use_passing() and _remove(folder, PASSING)
            passing = PASSING if may_use else b".ffrecord-" + os.urandom(8).hex().encode()
            try:
                yield passing
            except FileExistsError:  # somebody else has taken it: theirs, not ours
                raise
            except BaseException:
                _remove(folder, passing)
                raise
        finally:
            if locked:
                unlock(folder)


def _most_open() -> int:
    """How many folders may be open at once: a quarter of what this process may open at most."""
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MOST_OPEN if allowed == resource.RLIM_INFINITY else min(MOST_OPEN, allowed // 4)


def rename_to_new_file(passing: AnyStr, name: AnyStr, folder: int | None = None) -> None:
    """Give a file its name, and take the passing one away.

    Raises:
        FileExistsError: something has the name by now. The file is removed.
    """
    try:
        os.link(passing, name, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
    except FileExistsError:
        _remove(folder, passing)
        raise
    except OSError as error:
        if error.errno not in NO_LINKS:
            raise
        # Without links a rename is the one step that there is. It cannot be told to replace
        # nothing, so look once more, microseconds before.
        with contextlib.suppress(FileNotFoundError):
            os.stat(name, dir_fd=folder, follow_symlinks=False)
            _remove(folder, passing)
            raise there_already() from None
        os.rename(passing, name, src_dir_fd=folder, dst_dir_fd=folder)
    else:
        os.unlink(passing, dir_fd=folder)


def _require_at(fd: int, folder: int, name: bytes) -> None:
    """On network file systems a lock of a folder is not seen by other machines."""
    now = os.stat(name, dir_fd=folder, follow_symlinks=False)
    if not os.path.samestat(now, os.fstat(fd)):
        raise OSError(errno.EBUSY, "another extraction took its temporary file away")


def _lock(folder: int) -> bool:
    try:
        return take(folder)
    except OSError:  # there are no locks: another extraction may be at work there
        return False


def _remove(folder: int | None, name: AnyStr) -> bool:
    """Whether the name is free then."""
    try:
        os.unlink(name, dir_fd=folder)
    except FileNotFoundError:
        return True
    except OSError:  # a folder, or in a sticky one another user's
        return False
    return True
