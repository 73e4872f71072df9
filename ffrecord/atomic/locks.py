"""Locks for one writer at a time, and checks against files that another user planted.

Locks are advisory and belong to open files (flock), so two writers in one process exclude each
other too. A lock ends with the process that holds it, however that process ends. A forked child
shares its parent's lock until both have closed the file.

The name of a file to lock can be guessed. In a sticky folder such as /tmp, every user may create
names, and only the owner may remove them. There another user can plant a trap under that name. A
file of that user would receive our data. A hard link or symlink to one of our files would make us
overwrite that file. Kernels refuse some of these traps if fs.protected_regular and similar settings
are on. The checks here refuse them everywhere. In a shared folder that is not sticky, other users
can replace any file at any time, and no check helps.
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
    """Lock an open file or folder; return False if another writer has the lock.

    Raises OSError with `path` if the file system has no locks. The caller decides what that means.
    """
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        raise OSError(error.errno, error.strerror, path) from error
    return True


def lock(fd: int, path: str) -> bool:
    """Lock an open file or folder; return False if `path` now names another one.

    The previous writer may have replaced it. Raises `BusyError` if another writer has the lock.
    On a file system without locks, no writer is kept out.
    """
    try:
        if not take(fd, path):
            raise busy(path)
    except OSError as error:  # no locks on this file system, or not for this open mode
        if error.errno not in (errno.ENOLCK, errno.EBADF, errno.EOPNOTSUPP, errno.ENOSYS):
            raise
    return is_at(fd, path)


def busy(path: str) -> BusyError:
    """Return the error for a target that another writer has locked."""
    return BusyError(f"{path}: another writer is using it; wait until that writer has finished")


def unlock(fd: int) -> None:
    """Release the lock before the file is closed.

    Closing may come late: an exception can keep a file object alive, and a forked child keeps the
    file open for as long as the child lives.
    """
    with contextlib.suppress(OSError):  # a file system without locks
        fcntl.flock(fd, fcntl.LOCK_UN)


def is_at(fd: int, path: str) -> bool:
    """Return True if `path` names this open file or folder."""
    try:
        return os.path.samestat(os.fstat(fd), os.stat(path))
    except FileNotFoundError:
        return False


# ---- opening -----------------------------------------------------------------------------------


def open_locked(path: str, mode: int, *, target: str) -> int:
    """Open a file as `open_own` does, and lock it. `BusyError` names `target`, the user's file."""
    try:
        return _locked(partial(open_own, path, mode), path)
    except BusyError:
        raise busy(target) from None


def open_locked_folder(path: str) -> int:
    """Open and lock a folder."""
    return _locked(partial(os.open, path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC), path)


def _locked(open_it: Callable[[], int], path: str) -> int:
    """Open and lock the file or folder at `path`; retry if it was replaced meanwhile."""
    while True:
        with contextlib.ExitStack() as unless_locked:
            fd = open_it()
            unless_locked.callback(os.close, fd)
            if lock(fd, path):
                unless_locked.pop_all()
                return fd


def open_own(path: str, mode: int | None = None) -> int:
    """Open a file of the current user to read and write; with `mode`, create a missing one."""
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    fd = os.open(path, flags) if mode is None else os.open(path, flags | os.O_CREAT, mode)
    try:
        _require_regular(fd, path)
        refuse_planted(fd, path)
    except BaseException:
        os.close(fd)
        raise
    return fd


# ---- checks against planted files --------------------------------------------------------------


def _require_regular(fd: int, path: str) -> None:
    """Raise an error for a fifo and similar files: I/O would wait for the other end."""
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        raise OSError(errno.EINVAL, "not a regular file; remove it first", path)


def refuse_planted(fd: int, path: str) -> None:
    """Raise an error if the open file or folder at `path` may be another user's trap."""
    found, folder = os.fstat(fd), _folder(path)
    if not _is_open_to_all(folder):
        return
    _refuse_others(found, folder, path)
    if stat.S_ISREG(found.st_mode) and found.st_nlink > 1:
        why = (
            "has another name (a hard link) and is in a folder that other users may write to; "
            "remove it first"
        )
        raise PermissionError(errno.EPERM, why, path)


def refuse_planted_symlink(path: str) -> None:
    """Raise an error if `path` is a symlink that another user may have made as a trap."""
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
            f"belongs to user {found.st_uid} and is in a folder that other users may write to; "
            "have it removed, or choose another folder"
        )
        raise PermissionError(errno.EPERM, why, path)
