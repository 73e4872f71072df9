"""Names for files that are not finished: a few for each target, `.NAME.0.tmp` and so on.

The next writer of a target so comes upon what a killed one has left, and removes it. A lock tells
that from a file that is being written: it ends with the process that has it, however that ends.
Where there are no locks nothing is removed.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import stat
from collections.abc import Iterator

from ffrecord.atomic.locks import is_at, take

COUNT = 4
"""So many writers of one target at the same time clean up after each other."""

NO_UNNAMED_FILES = (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL)
"""What O_TMPFILE is answered with where there are none."""

_NEW_FILE = os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC
_ANY_FILE = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def create(target: str, mode: int) -> tuple[int, str]:
    """A new, locked file for a target, and its name; `mode` is less the umask."""
    for name in _free_names(target):
        with contextlib.suppress(FileExistsError):
            fd = _create(name, mode, target)
            if _lock(fd) and is_at(fd, name):
                return fd, name
            os.close(fd)  # somebody took it for abandoned before it was locked, and removes it
    raise AssertionError  # there is always one more name


def _create(name: str, mode: int, target: str) -> int:
    """Create a file under a passing name. An error names the target, which the user knows."""
    try:
        return os.open(name, _NEW_FILE, mode)
    except OSError as error:
        raise OSError(error.errno, error.strerror, target) from error


def link(fd: int, target: str) -> str:
    """Give a file that has no name one for a target, and lock it."""
    _lock(fd)
    for name in _free_names(target):
        try:
            link_unnamed(fd, name)
        except FileExistsError:
            continue
        return name  # at once: a name that an interrupt makes the caller miss stays behind
    raise AssertionError  # there is always one more name


def link_unnamed(fd: int, name: str | bytes, folder: int | None = None) -> None:
    """Give a file that has no name this one, in an open folder if there is one."""
    # With a folder descriptor Python calls linkat, which follows /proc's link; plain link would
    # try to link the link itself. An absolute path does not use the folder.
    os.link(f"/proc/self/fd/{fd}", name, src_dir_fd=fd, dst_dir_fd=folder, follow_symlinks=True)


def names(target: str) -> list[str]:
    """Where the unfinished files of a target are, but for those of many writers at once."""
    return [_name(target, str(number)) for number in range(COUNT)]


def _name(target: str, which: str) -> str:
    folder, base = os.path.split(target)
    return os.path.join(folder, f".{os.fsdecode(os.fsencode(base)[:200])}.{which}.tmp")


def _free_names(target: str) -> Iterator[str]:
    """Names to try, when what killed writers have left there is gone."""
    for name in names(target):
        _remove_if_abandoned(name)
    yield from names(target)
    for _ in itertools.count():
        yield _name(target, os.urandom(6).hex())


def _remove_if_abandoned(name: str) -> None:
    try:
        fd = _open(name)
    except OSError:  # most likely there is none
        return
    try:
        if take(fd) and is_at(fd, name) and _is_ours(os.fstat(fd)):
            os.unlink(name)
    except OSError:  # without locks nobody can tell whether it is in use; or not ours to remove
        pass
    finally:
        os.close(fd)


def _is_ours(found: os.stat_result) -> bool:
    """Whether a writer of this user may have made it: such names can be told in advance, and in
    /tmp and its like anybody may have put anything there."""
    return stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid() and found.st_nlink == 1


def _open(name: str) -> int:
    try:
        return os.open(name, os.O_RDWR | _ANY_FILE)  # NFS locks only what may be written
    except PermissionError:
        return os.open(name, os.O_RDONLY | _ANY_FILE)


def _lock(fd: int) -> bool:
    """False if somebody else has the lock."""
    try:
        return take(fd)
    except OSError:  # a file system without locks: nobody else has one either
        return True
