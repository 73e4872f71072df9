"""A folder that appears under its name when it is whole, or not at all.

It is filled beside its target, under a hidden name, and renamed at the end. A lock tells a folder
that is being filled from what a killed process has left, which is removed. Nothing is replaced: the
target must not be there yet, or be an empty folder. Until then it is for its owner only, whatever
the modes of what is in it.

A `NewFolder` belongs to the process that made it; in a forked child it does nothing.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat

from ffrecord import planted
from ffrecord.locks import is_at, take
from ffrecord.newfile import require_folder, sync_folder

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class NewFolder:
    """The folder `path`, which `publish` renames to `target`; `doing` is a part of its name."""

    def __init__(self, target: str, doing: str) -> None:
        self.target = target
        self.path = hidden_name(target, doing)
        self._pid = os.getpid()
        self._lock = -1
        made = _make(self.path, target)
        try:
            self._lock = os.open(self.path, _FOLDER)
            planted.refuse(self._lock, self.path)
            if not _is_ours(self.path, self._lock):
                made = False  # somebody has taken it over
                raise FileExistsError(errno.EEXIST, "is being made already", target)
            for left in os.scandir(self.path):
                if left.is_dir(follow_symlinks=False):
                    _remove(left.path)
                else:
                    os.unlink(left)
            self._mode = _usual_mode(self.path)
        except BaseException:
            if made:
                with contextlib.suppress(OSError):
                    os.rmdir(self.path)
            self._unlock()
            raise

    def publish(self) -> None:
        """Give it the target's name, durably. What is in it must be on disk already."""
        os.fchmod(self._lock, self._mode)
        sync_folder(self.path)
        os.rename(self.path, self.target)
        self._unlock()
        sync_folder(os.path.dirname(self.target))

    def discard(self) -> None:
        """Remove it, unless it was published."""
        if self._lock >= 0 and self._pid == os.getpid():
            with contextlib.suppress(OSError):
                _remove(self.path)
            self._unlock()

    def _unlock(self) -> None:
        lock, self._lock = self._lock, -1
        if lock >= 0:
            os.close(lock)

    def __del__(self) -> None:
        # Only the descriptor: in a forked child the folder is the parent's.
        if hasattr(self, "_lock"):
            self._unlock()


def _make(path: str, target: str) -> bool:
    """Whether it was not there yet. It is its owner's alone until it is whole."""
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        return False
    except OSError as error:  # of a name that whoever asked for the target has never heard of
        raise OSError(error.errno, error.strerror, target) from error
    return True


def _remove(path: str) -> None:
    """A folder and all that is in it, also in folders that are not for writing to. One that is
    empty can go without being opened, which may fail."""
    with contextlib.suppress(OSError):
        os.rmdir(path)
        return
    os.chmod(path, 0o700)
    for top, folders, _ in os.walk(path):
        for name in folders:  # before they are gone into
            inside = os.path.join(top, name)
            if not os.path.islink(inside):
                os.chmod(inside, 0o700)
    shutil.rmtree(path)


def remove_abandoned(target: str, doing: str) -> None:
    """What a killed process has left, if there is any."""
    if os.path.lexists(hidden_name(target, doing)):
        with contextlib.suppress(OSError):  # in use, or not ours to remove
            NewFolder(target, doing).discard()


def hidden_name(target: str, doing: str) -> str:
    parent, name = os.path.split(target)
    return os.path.join(parent, f".{name}.{doing}")


def check_new_folder(target: str, what: str) -> None:
    """An error if there is no folder to put it in, or if what is there will not be replaced."""
    require_folder(target)
    os.stat(os.path.join(os.path.dirname(target), ""))  # ends in a slash: must be a folder
    if os.path.lexists(target) and (os.path.islink(target) or not _is_empty_folder(target)):
        message = f"is there already; {what} new folder"
        raise FileExistsError(errno.EEXIST, message, target)


def _usual_mode(folder: str) -> int:
    """What the umask, and default access control lists, make of a new folder's mode."""
    probe = os.path.join(folder, ".mode")
    os.mkdir(probe)
    mode = stat.S_IMODE(os.stat(probe).st_mode)
    os.rmdir(probe)
    return mode


def _is_empty_folder(path: str) -> bool:
    return os.path.isdir(path) and not os.listdir(path)


def _is_ours(folder: str, lock: int) -> bool:
    """Lock a folder, unless another process has; False also if that one is done by now and has
    given the folder its name: what is there instead would be somebody else's."""
    try:
        return take(lock) and is_at(lock, folder)
    except OSError as error:
        raise OSError(error.errno, error.strerror, folder) from error
