"""A folder that appears under its name when it is whole, or not at all.

It is filled beside its target, under a hidden name, and renamed at the end. A lock tells a folder
that is being filled from what a killed process has left, which is removed. Nothing is replaced: the
target must not be there yet, or be an empty folder. Until then it is for its owner only, whatever
the modes of what is in it.

Of two writers of one target, the second gets a `BusyError` when it begins. The target is looked for
before the lock is taken and again under it: another writer may have made it in between.

A `NewFolder` belongs to the process that made it; in a forked child it does nothing.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
from collections.abc import Callable

from ffrecord.atomic.file import require_folder, sync_folder
from ffrecord.atomic.locks import busy, is_at, refuse_planted, take
from ffrecord.errors import BusyError

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_TRIES = 100
_IN_THE_WAY = (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR)


class NewFolder:
    """The folder `path`, which `publish` renames to `target`; `doing` is a part of its name.

    `check` raises if the target is not to be made. It is called before anything is made, and again
    when no other writer can make the target any more.
    """

    def __init__(self, target: str, doing: str, check: Callable[[], None] = lambda: None) -> None:
        self.target = target
        self.path = hidden_name(target, doing)
        self._pid = os.getpid()
        self._lock = -1
        try:
            self._begin(check)
            for left in os.scandir(self.path):
                if left.is_dir(follow_symlinks=False):
                    _remove(left.path)
                else:
                    os.unlink(left)
            self._mode = _usual_mode(self.path)
        except BaseException:
            self.discard()
            raise

    def _begin(self, check: Callable[[], None]) -> None:
        for _ in range(_TRIES):
            check()
            if self._take():
                check()
                return
        raise busy(self.target)

    def _take(self) -> bool:
        """Make the hidden folder, or take over what a killed process has left, and lock it. False
        if its last writer has renamed or removed it meanwhile."""
        made = _make(self.path, self.target)
        try:
            try:
                self._lock = os.open(self.path, _FOLDER)
            except FileNotFoundError:
                return False
            refuse_planted(self._lock, self.path)
            if not take(self._lock, self.path):
                made = False  # somebody has taken it over
                raise busy(self.target)
            if is_at(self._lock, self.path):
                return True
            self._unlock()
            return False
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
        rename_to_new(self.path, self.target)
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
    """Remove the hidden folder that a killed process has left, if there is one."""
    if os.path.lexists(hidden_name(target, doing)):
        with contextlib.suppress(OSError, BusyError):  # in use, or not ours to remove
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


def rename_to_new(folder: str, target: str) -> None:
    """Give a folder its name. An empty folder of that name is replaced, and nothing else."""
    try:
        os.rename(folder, target)
    except OSError as error:
        if error.errno in _IN_THE_WAY and os.path.lexists(target):
            raise appeared(target) from error
        raise OSError(error.errno, error.strerror, target) from error


def appeared(target: str) -> FileExistsError:
    """Return the error for a target that was not there when its writer began."""
    message = "is there already: something else has made it meanwhile, and it is not replaced"
    return FileExistsError(errno.EEXIST, message, target)


def _usual_mode(folder: str) -> int:
    """Return the mode of a new folder, as the umask and default access control lists make it."""
    probe = os.path.join(folder, ".mode")
    os.mkdir(probe)
    mode = stat.S_IMODE(os.stat(probe).st_mode)
    os.rmdir(probe)
    return mode


def _is_empty_folder(path: str) -> bool:
    return os.path.isdir(path) and not os.listdir(path)
