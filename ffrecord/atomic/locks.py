"""Locks: one writer of a file or folder at a time, and none of a file that another user planted.

Locks are advisory and of open files (flock), so two writers in one process exclude each other too.
They end with the process that holds them, however it ends. A forked child shares the lock of its
parent until both have closed the file.

A file to lock has a name that can be guessed. In a folder like /tmp (sticky: everybody makes names,
nobody removes those of others) another user can plant something there: a file of theirs, into which
we would write our data, or a hard link or symlink to a file of ours, which we would overwrite.
Kernels refuse part of that where fs.protected_regular and its like are set; the checks here refuse
it everywhere. In a shared folder that is not sticky others can replace every file at any time, and
no check helps.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
from collections.abc import Callable
from functools import partial

from ffrecord.errors import BusyError


def take(fd: int, path: str | None = None) -> bool:
    """Take the lock of an open file or folder; False if somebody else has it. An OSError of `path`
    where there are no locks: what that means is for the caller to say."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        raise OSError(error.errno, error.strerror, path) from error
    return True


def lock(fd: int, path: str) -> bool:
    """Take the lock of an open file or folder; False if it is not, or no longer, the one at `path`:
    the last writer may have put another there. Where there are no locks, nobody is kept out."""
    try:
        if not take(fd, path):
            raise busy(path)
    except OSError as error:  # a file system that has no locks, or none for this kind of opening
        if error.errno not in (errno.ENOLCK, errno.EBADF, errno.EOPNOTSUPP, errno.ENOSYS):
            raise
    return is_at(fd, path)


def busy(path: str) -> BusyError:
    """Return the error for a target that another writer has the lock of."""
    return BusyError(f"{path}: another writer is at work on it; wait until it has ended")


def unlock(fd: int) -> None:
    """Give the lock back before the file is closed: exceptions keep files open that nobody uses,
    and children that were forked meanwhile keep them for as long as they live."""
    with contextlib.suppress(OSError):  # a file system that has no locks
        fcntl.flock(fd, fcntl.LOCK_UN)


def is_at(fd: int, path: str) -> bool:
    """Whether the open file or folder is the one at `path`."""
    try:
        return os.path.samestat(os.fstat(fd), os.stat(path))
    except FileNotFoundError:
        return False


# ---- opening -----------------------------------------------------------------------------------


def open_locked(path: str, mode: int) -> int:
    """As `open_own`, and lock it."""
    return _locked(partial(open_own, path, mode), path)


def open_locked_folder(path: str) -> int:
    """Open a folder, and lock it."""
    return _locked(partial(os.open, path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC), path)


def _locked(open_it: Callable[[], int], path: str) -> int:
    """Open and lock what is at `path`; once more if something else is there by then."""
    while True:
        with contextlib.ExitStack() as unless_locked:
            fd = open_it()
            unless_locked.callback(os.close, fd)
            if lock(fd, path):
                unless_locked.pop_all()
                return fd


def open_own(path: str, mode: int) -> int:
    """Open a file of ours for reading and writing; it is made if it is not there."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, mode)
    try:
        _require_regular(fd, path)
        refuse_planted(fd, path)
    except BaseException:
        os.close(fd)
        raise
    return fd


# ---- what others may have planted --------------------------------------------------------------


def _require_regular(fd: int, path: str) -> None:
    """An error for a fifo and the like: reading or writing one waits for its other end."""
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        raise OSError(errno.EINVAL, "not a regular file: remove it first", path)


def refuse_planted(fd: int, path: str) -> None:
    """An error if the open file or folder at `path` may be another user's trap."""
    found, folder = os.fstat(fd), _folder(path)
    if not _is_open_to_all(folder):
        return
    _refuse_others(found, folder, path)
    if stat.S_ISREG(found.st_mode) and found.st_nlink > 1:
        why = "has another name (a hard link) in a folder that all may write to: remove it first"
        raise PermissionError(errno.EPERM, why, path)


def refuse_planted_symlink(path: str) -> None:
    """An error if `path` is a symlink that another user may have made as a trap."""
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return
    folder = _folder(path)
    if stat.S_ISLNK(found.st_mode) and _is_open_to_all(folder):
        _refuse_others(found, folder, path)


def _folder(path: str) -> os.stat_result:
    return os.stat(os.path.dirname(path) or ".")


def _is_open_to_all(folder: os.stat_result) -> bool:
    others_write = folder.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return bool(folder.st_mode & stat.S_ISVTX and others_write)


def _refuse_others(found: os.stat_result, folder: os.stat_result, path: str) -> None:
    if found.st_uid not in (os.geteuid(), folder.st_uid):
        why = (
            f"is user {found.st_uid}'s, in a folder that all may write to: have it removed, "
            "or choose another folder"
        )
        raise PermissionError(errno.EPERM, why, path)
