"""New folders that replace an old one in one step, as `append` does for a single file.

Linux can exchange two names in one step (renameat2 with RENAME_EXCHANGE). So at every moment either
the old or the new folder has the target's name. The old folder is removed afterwards, or by the
next writer if this one is killed in between. Readers keep the old files that they have open.

Files of the old folder that the new folder does not replace are linked into the new one. A folder
inside the old folder cannot be linked, and is an error.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Collection

from ffrecord.atomic.clone import inherit
from ffrecord.atomic.file import sync_folder, writing
from ffrecord.atomic.folder import NewFolder
from ffrecord.atomic.locks import is_at, open_locked_folder, unlock
from ffrecord.disk import libc
from ffrecord.errors import AppendError, ChangedError

_CANNOT = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP)


class GrownFolder(NewFolder):
    """A folder at the hidden path `path`, which `publish` exchanges with `target`.

    The old folder is locked until then, so a second writer gets a `BusyError`. `replaced` names the
    old files that the new folder replaces.
    """

    def __init__(self, target: str, doing: str, replaced: Collection[str]) -> None:
        self._replaced = replaced
        self._published = False
        if os.path.ismount(target):
            raise AppendError(
                f"{target}: is a mountpoint, which appending cannot replace; append to a copy"
            )
        self._old = open_locked_folder(target)
        try:
            super().__init__(target, doing)
            # Try now the steps that may fail in `publish`, not after hours of writing.
            self._require_exchange()
            self._link_others()
            inherit(self._lock, self._old, target)
            os.fchmod(self._lock, 0o700)
        except BaseException:
            self.discard()
            raise

    def publish(self) -> None:
        """Replace the old folder, durably. The new folder's content must be on disk already."""
        self._link_others()
        for name in self._replaced:
            self._inherit_file(name)
        inherit(self._lock, self._old, self.target)
        sync_folder(self.path)
        if not is_at(self._old, self.target):
            raise ChangedError(
                f"{self.target}: was replaced while it was appended to; nothing was added, so "
                "append again"
            )
        libc.exchange(self.path, self.target)
        self._published = True
        # The new name must be on disk first: a power cut may bring the old folder back.
        sync_folder(os.path.dirname(self.target))
        self._remove_old()
        self.discard()

    def discard(self) -> None:
        """Remove the new folder, unless it was published, and release the locks."""
        if self._pid != os.getpid():
            return
        if not self._published:
            super().discard()
        for fd in (self._lock, self._old):
            if fd >= 0:
                unlock(fd)  # closing is not enough: forked children have the folder open too
        self._unlock()
        self._close_old()

    def _require_exchange(self) -> None:
        pair = [os.path.join(self.path, name) for name in ("one", "other")]
        for name in pair:
            os.mkdir(name)
        try:
            libc.exchange(*pair)
        except OSError as error:
            if error.errno not in _CANNOT:
                raise OSError(error.errno, error.strerror, self.target) from error
            raise AppendError(
                f"{self.target}: this file system cannot exchange two folders "
                f"({error.strerror}), which appending needs; copy the dataset to ext4, XFS, btrfs "
                "or tmpfs, or write another shard"
            ) from error
        finally:
            for name in pair:
                os.rmdir(name)

    def _link_others(self) -> None:
        """Link the old folder's other files, as they are now, into the new folder."""
        with os.scandir(self.target) as entries:
            others = [entry for entry in entries if entry.name not in self._replaced]
        for entry in others:
            if entry.is_dir(follow_symlinks=False):
                raise AppendError(
                    f"{self.target}: holds the folder {entry.name!r}, which is not part of the "
                    "dataset and would be lost by appending; move that folder elsewhere first"
                )
            place = os.path.join(self.path, entry.name)
            with contextlib.suppress(FileNotFoundError):
                os.unlink(place)
            os.link(entry.path, place, follow_symlinks=False)

    def _inherit_file(self, name: str) -> None:
        with contextlib.ExitStack() as opened:
            new, old = (
                opened.enter_context(open(os.path.join(folder, name), "rb", buffering=0))
                for folder in (self.path, self.target)
            )
            inherit(new.fileno(), old.fileno(), old.name)
            with writing(old.name):
                os.fsync(new.fileno())

    def _remove_old(self) -> None:
        """Remove the old folder, which now has the hidden name.

        If that fails, the next writer removes the folder.
        """
        with contextlib.suppress(OSError):
            os.fchmod(self._old, 0o700)
            for name in os.listdir(self.path):
                os.unlink(os.path.join(self.path, name))
            os.rmdir(self.path)

    def _close_old(self) -> None:
        old, self._old = self._old, -1
        if old >= 0:
            os.close(old)

    def __del__(self) -> None:
        if hasattr(self, "_old"):  # no unlock: in a forked child the lock belongs to the parent
            self._close_old()
        super().__del__()
