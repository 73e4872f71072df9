"""What somebody else may have put where a file of ours is to be, in a folder that all may write to.

In /tmp and its like (sticky: everybody makes names, nobody removes those of others) a name that can
be told in advance may be taken: by another user's file, into which we would write what is not for
them; by a hard link or a symlink to a file of ours, which we would spoil. Kernels refuse a part of
that where fs.protected_regular and its like are set; this refuses it everywhere.

In a shared folder that is not sticky others can replace every file at any time, and nothing that is
checked here would help.
"""

from __future__ import annotations

import errno
import os
import stat


def refuse(fd: int, path: str) -> None:
    """An error if the open file or folder at `path` may be another user's trap."""
    found, folder = os.fstat(fd), _folder(path)
    if not _is_open_to_all(folder):
        return
    _refuse_others(found, folder, path)
    if stat.S_ISREG(found.st_mode) and found.st_nlink > 1:
        why = "has another name (a hard link) in a folder that all may write to: remove it first"
        raise PermissionError(errno.EPERM, why, path)


def refuse_symlink(path: str) -> None:
    """An error if `path` is a symlink that another user may have made as a trap."""
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return
    folder = _folder(path)
    if stat.S_ISLNK(found.st_mode) and _is_open_to_all(folder):
        _refuse_others(found, folder, path)


def require_regular(fd: int, path: str) -> None:
    """Whoever reads or writes a fifo waits for its other end, for ever."""
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        raise OSError(errno.EINVAL, "not a regular file: remove it first", path)


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
