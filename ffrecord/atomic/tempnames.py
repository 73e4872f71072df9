"""Temporary names of unfinished files: a few for each target, `.NAME.0.tmp` and so on.

Because the names are few, the next writer of a target finds the files that killed writers left, and
removes them. A file that is still being written is locked, and the lock ends with its process, even
if that is killed. On a file system without locks, no file is removed.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import stat
from collections.abc import Iterator
from typing import AnyStr

from ffrecord.atomic.locks import is_at, take
from ffrecord.text import there_already

COUNT = 4
"""Number of fixed names for each target. More simultaneous writers get random names, which are not
cleaned up."""

NO_UNNAMED_FILES = (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL)
"""Error numbers of O_TMPFILE on file systems without unnamed files."""

NO_LINKS = (errno.EPERM, errno.EMLINK, errno.EXDEV, errno.ENOTSUP, errno.ENOSYS)
"""Errors of a file system without hard links, or at its limit of links."""

_NEW_FILE = os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC
_ANY_FILE = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def create(target: str, mode: int) -> tuple[int, str]:
    """Create a locked file for a target; return its descriptor and name.

    The umask is applied to `mode`.
    """
    for name in _free_names(target):
        with contextlib.suppress(FileExistsError):
            fd = _create(name, mode, target)
            if _lock(fd) and is_at(fd, name):
                return fd, name
            # Another writer took the file for abandoned before it was locked, and removes it.
            os.close(fd)
    raise AssertionError("unreachable: the names never end")


def _create(name: str, mode: int, target: str) -> int:
    """Create a file under a temporary name. An error names the target, which the user knows."""
    try:
        return os.open(name, _NEW_FILE, mode)
    except OSError as error:
        raise OSError(error.errno, error.strerror, target) from error


def link(fd: int, target: str) -> str:
    """Lock an unnamed file, and give it a temporary name; return the name."""
    _lock(fd)
    for name in _free_names(target):
        try:
            link_unnamed(fd, name)
        except FileExistsError:
            continue
        return name  # at once: after an interrupt here, the file would stay under this name
    raise AssertionError("unreachable: the names never end")


def link_unnamed(fd: int, name: str | bytes, folder: int | None = None) -> None:
    """Give an unnamed file this name, relative to the open folder `folder` if that is given."""
    # With a folder descriptor, Python calls linkat, which follows the link in /proc; plain link
    # would try to link the link itself. The source path is absolute, so src_dir_fd has no effect.
    os.link(f"/proc/self/fd/{fd}", name, src_dir_fd=fd, dst_dir_fd=folder, follow_symlinks=True)


def rename_to_new_file(passing: AnyStr, name: AnyStr, folder: int | None = None) -> None:
    """Rename a file from its temporary name to a name that must not exist.

    Raises:
        FileExistsError: the name exists by now. The file with the temporary name is removed.
    """
    try:
        os.link(passing, name, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
    except FileExistsError:
        remove_name(folder, passing)
        raise
    except OSError as error:
        if error.errno not in NO_LINKS:
            raise
        # Without links, only rename(2) gives the name in one step. It replaces an existing file, so
        # check again, microseconds before.
        with contextlib.suppress(FileNotFoundError):
            os.stat(name, dir_fd=folder, follow_symlinks=False)
            remove_name(folder, passing)
            raise there_already() from None
        os.rename(passing, name, src_dir_fd=folder, dst_dir_fd=folder)
    else:
        os.unlink(passing, dir_fd=folder)


def remove_name(folder: int | None, name: AnyStr) -> bool:
    """Remove a file; return True if the name is free afterwards."""
    try:
        os.unlink(name, dir_fd=folder)
    except FileNotFoundError:
        return True
    except OSError:  # a folder, or a file of another user in a sticky folder
        return False
    return True


def names(target: str) -> list[str]:
    """Return the fixed temporary names of a target."""
    return [_name(target, str(number)) for number in range(COUNT)]


def _name(target: str, which: str) -> str:
    folder, base = os.path.split(target)
    return os.path.join(folder, f".{os.fsdecode(os.fsencode(base)[:200])}.{which}.tmp")


def _free_names(target: str) -> Iterator[str]:
    """Remove the files that killed writers left, then yield names to try."""
    for name in names(target):
        _remove_if_abandoned(name)
    yield from names(target)
    for _ in itertools.count():
        yield _name(target, os.urandom(6).hex())


def _remove_if_abandoned(name: str) -> None:
    try:
        fd = _open(name)
    except OSError:  # usually the file does not exist
        return
    try:
        if take(fd) and is_at(fd, name) and _is_ours(os.fstat(fd)):
            os.unlink(name)
    except OSError:  # no locks, so it may be in use; or removing it is not allowed
        pass
    finally:
        os.close(fd)


def _is_ours(found: os.stat_result) -> bool:
    """Return True if a writer of this user may have made the file.

    The names can be guessed, and in folders such as /tmp any user may have created the file.
    """
    return stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid() and found.st_nlink == 1


def _open(name: str) -> int:
    try:
        return os.open(name, os.O_RDWR | _ANY_FILE)  # NFS locks only files open for writing
    except PermissionError:
        return os.open(name, os.O_RDONLY | _ANY_FILE)


def _lock(fd: int) -> bool:
    """Lock a file; return False if another writer has the lock."""
    try:
        return take(fd)
    except OSError:  # a file system without locks: no other writer has one either
        return True
