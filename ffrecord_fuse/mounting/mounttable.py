"""The mount table, from /proc/self/mountinfo, without looking into mounted file systems."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass

from ffrecord.archive.names import NO_WORKING_FOLDER
from ffrecord_fuse.errors import MountError

READ_AHEAD_KIB = 1024
NOT_MOUNTED = "nothing is mounted here"

_MOUNTINFO = "/proc/self/mountinfo"
_MAX_SYMLINKS = 40  # as many as the kernel follows


@dataclass(frozen=True, slots=True)
class MountEntry:
    """A line of /proc/self/mountinfo."""

    mountpoint: str
    type: str
    source: str
    major: int
    minor: int
    options: tuple[str, ...]  # of the mount: ro, nosuid, …
    super_options: tuple[str, ...]  # of the file system: user_id=0, default_permissions, …

    @property
    def is_fuse(self) -> bool:
        return self.type == "fuse" or self.type.startswith("fuse.")

    @property
    def user(self) -> int:
        """The user that mounted it, if it is FUSE: fusermount3 lets only them and root unmount."""
        words = dict(word.partition("=")[::2] for word in self.super_options)
        return int(words.get("user_id", 0))


def find(mountpoint: str) -> MountEntry | None:
    """Return the mount at this path (not: the file system that the path is in)."""
    folder = resolve(mountpoint)
    found = None
    for entry in entries():
        if entry.mountpoint == folder:
            found = entry  # the last is on top of the others
    return found


def mount_points(type_: str) -> list[str]:
    """Where file systems are mounted whose type begins like that, each place once."""
    return list(dict.fromkeys(e.mountpoint for e in entries() if e.type.startswith(type_)))


def places_of(source: str, type_: str) -> list[str]:
    """Where something of this name is mounted, as a file system of this type."""
    return [e.mountpoint for e in entries() if (e.source, e.type) == (source, type_)]


def connection_of(mountpoint: str) -> int:
    """The number of a FUSE mount's connection, as in /sys/fs/fuse/connections."""
    entry = find(mountpoint)
    if entry is None or not entry.is_fuse:
        raise MountError(mountpoint, errno.EINVAL, NOT_MOUNTED)
    return entry.minor


def connection_at(mountpoint: str) -> int | None:
    """As `connection_of`; None where no FUSE mount can be seen."""
    try:
        return connection_of(mountpoint)
    except MountError:
        return None


def set_read_ahead(mountpoint: str, kib: int) -> bool:
    """Let the kernel read ahead that far; False where that is not permitted.

    For files opened from now on. The answer to FUSE_INIT lowers it again, so that comes first.
    """
    try:
        with open(f"/sys/class/bdi/0:{connection_of(mountpoint)}/read_ahead_kb", "w") as file:
            file.write(str(kib))
    except OSError:
        return False
    return True


def resolve(path: str) -> str:
    """Absolute and without symlinks, as mountinfo has it.

    os.path.realpath does lstat, which a file system mounted there has to answer; readlink is
    answered by the kernel, since the root of a mount is no symlink.
    """
    todo = _components(path if os.path.isabs(path) else os.path.join(_here(path), path))
    resolved = "/"
    symlinks = 0
    while todo:
        name = todo.pop()
        if name == "..":
            resolved = os.path.dirname(resolved)
            continue
        target = _readlink(path, os.path.join(resolved, name))
        if target is None:
            resolved = os.path.join(resolved, name)
            continue
        symlinks += 1
        if symlinks > _MAX_SYMLINKS:
            raise MountError(path, errno.ELOOP, os.strerror(errno.ELOOP))
        resolved = "/" if target.startswith("/") else resolved
        todo += _components(target)
    return resolved


def _here(path: str) -> str:
    try:
        return os.getcwd()
    except FileNotFoundError:
        raise MountError(path, errno.ENOENT, NO_WORKING_FOLDER) from None


def _components(path: str) -> list[str]:
    """The last first."""
    return [name for name in reversed(path.split("/")) if name not in ("", ".")]


def _readlink(path: str, at: str) -> str | None:
    try:
        return os.readlink(at)
    except OSError:  # no symlink, or not there: whoever uses the path finds out
        return None
    except ValueError:
        raise MountError(path, errno.EINVAL, "no path has such characters in it") from None


def entries() -> Iterator[MountEntry]:
    # Bytes: a line ends at a newline, which names have as \012, and at nothing else that
    # Python's text takes for an end of line.
    with open(_MOUNTINFO, "rb") as file:
        lines = file.read().split(b"\n")
    for line in filter(None, lines):
        fields = line.split(b" ")
        after = fields[fields.index(b"-", 6) + 1 :]  # between are optional fields, any number
        major, minor = fields[2].split(b":")
        yield MountEntry(
            mountpoint=_unescaped(fields[4]),
            type=_unescaped(after[0]),
            source=_unescaped(after[1]),
            major=int(major),
            minor=int(minor),
            options=tuple(fields[5].decode().split(",")),
            super_options=tuple(os.fsdecode(after[-1]).split(",")),
        )


def _unescaped(field: bytes) -> str:
    r"""Spaces and the like are \040 there."""
    return os.fsdecode(re.sub(rb"\\([0-7]{3})", lambda code: bytes([int(code[1], 8)]), field))
