"""New folders that get their name when they are whole, or not at all.

A new folder is filled beside its target, under a hidden name, and renamed at the end. The folder is
locked while it is filled. A hidden folder without a lock was left by a killed process: its content
is removed. Nothing is replaced: the target must either not exist or be an empty folder. Until the
rename, only the owner has access to the folder.

If two writers have the same target, the second gets a `BusyError` when it begins. The target is
checked before the lock is taken and again after that, because another writer may have made it in
between.

A `NewFolder` belongs to the process that made it. In a forked child it does nothing.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
from collections.abc import Callable

from ffrecord.atomic.file import appeared, not_permitted, require_folder, sync_folder
from ffrecord.atomic.locks import busy, is_at, refuse_planted, take
from ffrecord.errors import BusyError

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_TRIES = 100  # a try fails only if another writer renames or removes the hidden folder meanwhile
_IN_THE_WAY = (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR)


class NewFolder:
    """A folder at the hidden path `path`, which `publish` renames to `target`.

    Args:
        target: the final path.
        doing: ending of the hidden name, such as "packing".
        check: raises an error if the target must not be made. It is called before anything is made,
            and again when the lock keeps other writers out.
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
                    remove_tree(left.path)
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
        """Make the hidden folder, or take over one that a killed process left, and lock it.

        Return False if another writer renamed or removed it meanwhile.
        """
        made = make_hidden(self.path, self.target)
        try:
            try:
                self._lock = os.open(self.path, _FOLDER)
            except FileNotFoundError:
                return False
            refuse_planted(self._lock, self.path)
            if not take(self._lock, self.path):
                made = False  # another writer has taken it over
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
        """Rename the folder to the target, durably. Its content must be on disk already."""
        os.fchmod(self._lock, self._mode)
        sync_folder(self.path)
        rename_to_new(self.path, self.target)
        self._unlock()
        sync_folder(os.path.dirname(self.target))

    def discard(self) -> None:
        """Remove the folder, unless it was published."""
        if self._lock >= 0 and self._pid == os.getpid():
            with contextlib.suppress(OSError):
                remove_tree(self.path)
            self._unlock()

    def _unlock(self) -> None:
        lock, self._lock = self._lock, -1
        if lock >= 0:
            os.close(lock)

    def __del__(self) -> None:
        # Only close the descriptor: in a forked child the folder belongs to the parent.
        if hasattr(self, "_lock"):
            self._unlock()


def make_hidden(path: str, target: str) -> bool:
    """Make the hidden folder, for its owner only; return False if it exists already."""
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        return False
    except PermissionError as error:
        raise not_permitted(error, target) from error
    except OSError as error:  # name the target: the user does not know the hidden name
        raise OSError(error.errno, error.strerror, target) from error
    return True


def remove_tree(path: str) -> None:
    """Remove a folder and its content, read-only folders included.

    An empty folder is removed without opening it, because opening may fail.
    """
    with contextlib.suppress(OSError):
        os.rmdir(path)
        return
    os.chmod(path, 0o700)
    for top, folders, _ in os.walk(path):
        for name in folders:  # before os.walk enters them
            inside = os.path.join(top, name)
            if not os.path.islink(inside):
                os.chmod(inside, 0o700)
    shutil.rmtree(path)


def remove_abandoned(target: str, doing: str) -> None:
    """Remove the hidden folder that a killed process left, if it exists."""
    if os.path.lexists(hidden_name(target, doing)):
        with contextlib.suppress(OSError, BusyError):  # in use, or removing it is not allowed
            NewFolder(target, doing).discard()


def hidden_name(target: str, doing: str) -> str:
    parent, name = os.path.split(target)
    return os.path.join(parent, f".{name}.{doing}")


def check_new_folder(target: str, what: str) -> None:
    """Raise an error if `target` cannot be a new folder.

    The parent folder must exist. The target must either not exist or be an empty folder. `what`
    begins the advice, for example "dump needs a".
    """
    require_folder(target)
    os.stat(os.path.join(os.path.dirname(target), ""))  # the slash: fail if it is not a folder
    if os.path.lexists(target) and (os.path.islink(target) or not _is_empty_folder(target)):
        message = f"already exists; {what} new folder, so choose another name"
        raise FileExistsError(errno.EEXIST, message, target)


def rename_to_new(folder: str, target: str) -> None:
    """Rename a folder to `target`. Only an empty folder of that name is replaced."""
    try:
        os.rename(folder, target)
    except OSError as error:
        if error.errno in _IN_THE_WAY and os.path.lexists(target):
            raise appeared(target) from error
        raise OSError(error.errno, error.strerror, target) from error


def _usual_mode(folder: str) -> int:
    """Return the mode that the umask and default access control lists give a new folder."""
    probe = os.path.join(folder, ".mode")
    os.mkdir(probe)
    mode = stat.S_IMODE(os.stat(probe).st_mode)
    os.rmdir(probe)
    return mode


def _is_empty_folder(path: str) -> bool:
    return os.path.isdir(path) and not os.listdir(path)
