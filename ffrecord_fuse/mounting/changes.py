"""The folder with the changes to a mounted archive: kept between mounts, used by one at a time.

    about.json   the archive that these changes belong to, and the program that keeps them
    upper/       new and changed files, and marks for deleted ones
    work/        scratch space of the overlay
    lower/       mountpoint of the archive while the overlay is being mounted

The open folder is locked. Processes that serve the overlay inherit its descriptor, so the lock ends
with them. Errors are `MountError`, with the path of the folder.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import stat
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass

from ffrecord.atomic import locks
from ffrecord.atomic.file import write_file
from ffrecord.disk import libc
from ffrecord_fuse.errors import MountError
from ffrecord_fuse.mounting.mount import unmount
from ffrecord_fuse.mounting.mounttable import entries, find, resolve

UPPER, WORK, LOWER = "upper", "work", "lower"
BY_KERNEL, BY_HELPER = "overlayfs", "fuse-overlayfs"
"""The programs that keep changes. They mark deleted files and replaced folders differently."""

_ABOUT = "about.json"
_VERSION = 1
_DRAFT = "upper.new"
_PATIENCE = 30.0
"""Seconds to wait for the lock. The daemon of an overlay ends shortly after `umount` returns."""
_PAUSE = 0.02  # seconds between two tries
_PROBE = {BY_KERNEL: "trusted.overlay.ffrecord", BY_HELPER: "user.fuseoverlayfs.ffrecord"}
# <linux/magic.h>: overlayfs accepts none of these for `upper`.
_UNSUITABLE = {
    0x6969: "NFS", 0x65735546: "FUSE", 0x794C7630: "overlayfs", 0xFF534D42: "SMB",
    0xFE534D42: "SMB", 0x517B: "SMB", 0x00C36400: "Ceph", 0x01021997: "9p", 0x4D44: "FAT",
    0x2011BAB0: "exFAT",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Origin:
    """The folder that changes belong to: a whole archive, or one folder in it."""

    archive: str
    fingerprint: str
    subdir: str = ""

    def __str__(self) -> str:
        return f"{self.archive}, folder {self.subdir}" if self.subdir else self.archive


@dataclass(frozen=True, slots=True)
class Top:
    """The attributes of the archive's root folder. `upper` shows them in its place."""

    mode: int
    uid: int
    gid: int
    mtime_ns: int
    xattrs: Mapping[bytes, bytes]


class Changes:
    """A locked folder of changes, open until `close` in all processes that have inherited it.

    Args:
        path: the folder. It is created if it does not exist.
        mountpoint: the folder where the overlay will be mounted.
        origin: the archive.
        top: the attributes of a new `upper`.
        keeper: BY_KERNEL or BY_HELPER.
        is_held: returns True if a mount holds the open folder although it is not locked.
    """

    def __init__(
        self, path: str, mountpoint: str, origin: Origin, top: Top, keeper: str,
        is_held: Callable[[int], bool] = lambda fd: False,
    ) -> None:  # fmt: skip
        self.path = resolve(path)
        self.keeper = keeper
        self._made: list[str] = []  # to remove if mounting fails
        _refuse_inside(self.path, resolve(mountpoint))
        self.fd = self._open()
        try:
            self._lock(is_held)
            self._prepare(origin, top)
        except BaseException:
            self.discard()
            self.close()
            raise

    @property
    def lower(self) -> str:
        """The folder on which to mount the archive."""
        return os.path.join(self.path, LOWER)

    def close(self) -> None:
        """Close the folder. The lock ends when all processes have closed it."""
        os.close(self.fd)

    def discard(self) -> None:
        """Remove everything that this object has created, because nothing was mounted."""
        while self._made:
            path = self._made.pop()
            with contextlib.suppress(OSError):
                if path == self.path:
                    os.rmdir(path)
                elif os.path.isdir(path):
                    shutil.rmtree(path)
                else:
                    os.unlink(path)

    def _open(self) -> int:
        try:
            above = self.path
            while not os.path.lexists(above):
                above = os.path.dirname(above)
            _refuse_file_system(self.path, above)
            if above != self.path:
                os.mkdir(self.path, 0o700)
                self._made.append(self.path)
            fd = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError as error:
            why = _NO_FOLDER.get(error.errno or 0, f"cannot keep changes here: {error.strerror}")
            raise MountError(self.path, error.errno or errno.EIO, why) from None
        owner = os.fstat(fd).st_uid
        if owner != os.geteuid():
            os.close(fd)
            why = f"the folder belongs to user {owner}; choose a folder of your own for the changes"
            raise MountError(self.path, errno.EPERM, why)
        return fd

    def _lock(self, is_held: Callable[[int], bool]) -> None:
        """Lock the folder. Wait for the daemon of an overlay that was just unmounted."""
        deadline = time.monotonic() + _PATIENCE
        while not locks.take(self.fd, self.path) or is_held(self.fd):
            place = next((e.mountpoint for e in entries() if e.changes == self.path), None)
            if place is not None:
                why = f"these changes are in use by the mount on {place}; unmount it first"
                raise MountError(self.path, errno.EBUSY, why)
            if time.monotonic() > deadline:
                raise MountError(self.path, errno.EBUSY, _STILL_OPEN)
            time.sleep(_PAUSE)

    def _prepare(self, origin: Origin, top: Top) -> None:
        """Check the contents of the folder, and create missing ones."""
        found = self._about()
        if found is None:
            self._refuse_files()
            self._require_xattrs()
            self._write_about(origin)
        else:
            self._compare(found, origin)
        if find(self.lower) is not None:  # left by a mount that was killed in its first moments
            unmount(self.lower, lazy=True)
        for name in (LOWER, WORK):
            self._folder(name)
        if not os.path.lexists(self._inside(UPPER)):
            self._make_upper(top)
        self._folder(UPPER)

    def _about(self) -> dict[str, object] | None:
        """Return the facts about existing changes; None for a new folder."""
        try:
            with open(self._inside(_ABOUT), encoding="utf-8") as file:
                found = json.load(file)
            if found["version"] != _VERSION:
                raise ValueError(f"version {found['version']} is unknown")
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            why = f"{_ABOUT} cannot be used: {error}; choose another folder for the changes"
            raise MountError(self.path, errno.EINVAL, why) from None
        return dict(found)

    def _compare(self, found: dict[str, object], origin: Origin) -> None:
        theirs = Origin(*(str(found.get(name, "")) for name in Origin.__slots__))
        if (theirs.fingerprint, theirs.subdir) != (origin.fingerprint, origin.subdir):
            why = (
                f"these are changes to {theirs}, not to {origin}; "
                "choose another folder for the changes"
            )
            if str(theirs) == str(origin):
                why = (
                    f"these are changes to an earlier {origin}, which was replaced meanwhile; "
                    "choose another folder for the changes"
                )
            raise MountError(self.path, errno.EINVAL, why)
        if found.get("keeper") != self.keeper:
            why = _OF_KERNEL
            if self.keeper == BY_KERNEL:
                why = _OF_HELPER
            raise MountError(self.path, errno.EINVAL, why)

    def _refuse_files(self) -> None:
        # A mount that was killed in its first moments may have left `lower` and others.
        with os.scandir(self.path) as inside:
            others = [each.name for each in inside if each.name not in (LOWER, WORK, _DRAFT)]
        if others:
            why = "the folder has other files in it; choose a new or empty folder for the changes"
            raise MountError(self.path, errno.ENOTEMPTY, why)

    def _require_xattrs(self) -> None:
        """Refuse a file system on which overlays would lose marks and attributes."""
        try:
            os.setxattr(self.fd, _PROBE[self.keeper], b"y")
            os.removexattr(self.fd, _PROBE[self.keeper])
        except OSError as error:
            why = (
                f"the file system of this folder keeps no extended attributes ({error.strerror}); "
                "choose a folder on a local disk"
            )
            raise MountError(self.path, error.errno or errno.EIO, why) from None

    def _write_about(self, origin: Origin) -> None:
        path = self._inside(_ABOUT)
        facts = {"version": _VERSION, **asdict(origin), "keeper": self.keeper}
        self._made.append(path)
        write_file(path, json.dumps(facts, indent=1).encode())

    def _make_upper(self, top: Top) -> None:
        """Create `upper` with the attributes of the archive's root folder.

        By the descriptor: the owner of the folder above may put a symlink into the place of this
        folder, and root would then give away a file of somebody else.
        """
        here = f"/proc/self/fd/{self.fd}"
        draft = os.path.join(here, _DRAFT)
        shutil.rmtree(draft, ignore_errors=True)  # left by a killed process
        os.mkdir(draft, 0o700)
        self._made.append(draft)
        for name, value in top.xattrs.items():
            with contextlib.suppress(OSError):  # too large for this file system
                os.setxattr(draft, name, value)
        with contextlib.suppress(PermissionError):  # only root gives files to other users
            os.chown(draft, top.uid, top.gid)
        os.chmod(draft, stat.S_IMODE(top.mode))
        os.utime(draft, ns=(top.mtime_ns, top.mtime_ns))
        os.rename(draft, os.path.join(here, UPPER))
        self._made[-1] = os.path.join(here, UPPER)

    def _folder(self, name: str) -> None:
        """Create a folder if it is missing, and refuse a symlink in its place."""
        path = self._inside(name)
        try:
            os.mkdir(path, 0o700)
            self._made.append(path)
        except FileExistsError:
            if not stat.S_ISDIR(os.lstat(path).st_mode):
                why = f"{name} is not a folder; choose another folder for the changes"
                raise MountError(self.path, errno.ENOTDIR, why) from None

    def _inside(self, name: str) -> str:
        return os.path.join(self.path, name)


_STILL_OPEN = (
    "these changes are in use by another mount, or by open files of an unmounted one; "
    "end the programs that use them"
)
_OF_KERNEL = "these changes were made by root, with the kernel's overlayfs; mount as root"
_OF_HELPER = (
    "these changes were made with fuse-overlayfs; mount as the user who made them, "
    "or choose another folder for the changes"
)
_NO_FOLDER = {
    errno.ENOENT: "the folder above it does not exist; create it with `mkdir -p`",
    errno.ENOTDIR: "not a folder; choose a new or empty folder for the changes",
    errno.EACCES: "you have no permission to write here; choose another folder for the changes",
    errno.EROFS: "the file system is read-only; choose another folder for the changes",
}


def unsuitable(fd: int) -> str | None:
    """Return the name of an open folder's file system if it cannot keep changes."""
    return _UNSUITABLE.get(libc.file_system(fd) & 0xFFFFFFFF)


def _refuse_inside(path: str, mountpoint: str) -> None:
    for inner, outer in ((path, mountpoint), (mountpoint, path)):
        if os.path.commonpath([inner, outer]) == outer:
            why = (
                f"changes and mountpoint ({mountpoint}) contain each other; choose separate folders"
            )
            raise MountError(path, errno.EINVAL, why)


def _refuse_file_system(path: str, above: str) -> None:
    """Refuse a file system that overlayfs would refuse without a reason."""
    fd = os.open(above, os.O_RDONLY | os.O_CLOEXEC)
    try:
        name = unsuitable(fd)
    finally:
        os.close(fd)
    if name is not None:
        why = f"overlays cannot keep changes on {name}; choose a folder on a local disk"
        raise MountError(path, errno.EINVAL, why)
