"""One writer at a time: locks that end with the process that has them, however it ends.

They are advisory and of open files (flock), so that two writers in one process exclude each other
too. A forked child shares the lock of its parent until both have closed the file.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os

from ffrecord import planted
from ffrecord.errors import BusyError


def take(fd: int) -> bool:
    """Take the lock of an open file or folder; False if somebody else has it. An OSError where
    there are no locks: what that means is for the caller to say."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def lock(fd: int, path: str) -> bool:
    """Take the lock of an open file; False if it is not, or no longer, the one at `path`.

    Whoever had the lock before may have put another file there meanwhile.
    """
    try:
        if not take(fd):
            raise busy(path)
    except OSError as error:  # a file system that has no locks, or none for this kind of opening
        if error.errno not in (errno.ENOLCK, errno.EBADF, errno.EOPNOTSUPP, errno.ENOSYS):
            raise OSError(error.errno, error.strerror, path) from error
    return is_at(fd, path)


def busy(path: str) -> BusyError:
    """Return the error for a target that another writer has the lock of."""
    return BusyError(f"{path}: another writer is at work on it; wait until it has ended")


def unlock(fd: int) -> None:
    """Give the lock back before the file is closed: exceptions keep files open that nobody uses."""
    with contextlib.suppress(OSError):  # a file system that has no locks
        fcntl.flock(fd, fcntl.LOCK_UN)


def is_at(fd: int, path: str) -> bool:
    """Whether the open file or folder is the one at `path`."""
    try:
        return os.path.samestat(os.fstat(fd), os.stat(path))
    except FileNotFoundError:
        return False


def open_own(path: str, mode: int) -> int:
    """Open a file for reading and writing, which is made if it is not there, and is ours."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, mode)
    try:
        planted.require_regular(fd, path)
        planted.refuse(fd, path)
    except BaseException:
        os.close(fd)
        raise
    return fd


def open_locked(path: str, mode: int) -> int:
    """As `open_own`, and lock it."""
    while True:
        fd = open_own(path, mode)
        try:
            if lock(fd, path):
                return fd
        except BaseException:
            os.close(fd)
            raise
        with contextlib.suppress(OSError):
            os.close(fd)
