"""Read the mount table, /proc/self/mountinfo, without looking into mounted file systems.

A FUSE mount has the type `fuse.ffrecord`, and the archive as its source. A mount that the kernel
serves has no process to ask, and the type `erofs`. Its source is a label: `ffrecord:` and the path
of the archive. `ffrecord+verified:` says that all bytes were verified before mounting, and
`ffrecord+verity:` that fs-verity verifies them.

An overlay has the type `overlay` or `fuse.ffrecord-overlay`. Its source is `ffrecord+overlay:`, the
path of the archive, `:`, and the path of the folder with the changes. In both paths, `%`, `:` and
bytes that are not printable are written as `%` and two digits. If the kernel serves the archive
below the overlay, the source begins with `ffrecord+overlay+kernel:`, or `+verified` or `+verity` in
the place of `+kernel`.

Errors are `MountError`, with the path that was asked for.
"""

from __future__ import annotations

import errno
import os
import re
import urllib.parse
from collections.abc import Iterator
from dataclasses import dataclass

from ffrecord.archive.names import NO_WORKING_FOLDER
from ffrecord_fuse.errors import MountError

FUSE_TYPE = "fuse.ffrecord"
KERNEL_TYPE = "erofs"
OVERLAY_TYPE = "overlay"
FUSE_OVERLAY_TYPE = "fuse.ffrecord-overlay"
OVERLAY_TYPES = (OVERLAY_TYPE, FUSE_OVERLAY_TYPE)
READ_AHEAD_KIB = 1024
NOT_MOUNTED = "nothing is mounted here; `ffrecord umount --list` shows where archives are mounted"

MOUNTINFO = "/proc/self/mountinfo"

_LABEL = re.compile(r"ffrecord(?:\+(verified|verity))?:(/.*|\w[\w+.-]+://.*)", re.DOTALL)
_OVERLAY = re.compile(r"ffrecord\+overlay(?:\+(kernel|verified|verity))?:([^:]*):([^:]+)")
_KERNEL = "kernel"
_LONGEST_SOURCE = 4095  # bytes; mount(2) refuses longer names
_LONGEST_LABEL = 255  # bytes; fsconfig(2) refuses longer texts
_MAX_SYMLINKS = 40  # the kernel's limit


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
    def is_kernel(self) -> bool:
        """Return True if the kernel serves the archive here, also below an overlay."""
        overlay = self._overlay
        if overlay is not None:
            return overlay[1] is not None
        return self.type == KERNEL_TYPE and _LABEL.fullmatch(self.source) is not None

    @property
    def changes(self) -> str | None:
        """Return the folder with the changes to an archive, if an overlay is mounted here."""
        label = self._overlay
        return None if label is None else _unquoted(label[3])

    @property
    def _overlay(self) -> re.Match[str] | None:
        return _OVERLAY.fullmatch(self.source) if self.type in OVERLAY_TYPES else None

    @property
    def is_ours(self) -> bool:
        """Return True if `ffrecord umount` unmounts this file system: FUSE, or an archive."""
        return self.is_fuse or self.archive is not None

    @property
    def archive(self) -> str | None:
        """Return the path of the archive that is mounted here, as `shown` returns it."""
        overlay = self._overlay
        if overlay is not None:
            return shown(_unquoted(overlay[2]))
        if self.type.startswith(FUSE_TYPE):  # also fuse.ffrecord-fuse, which mount.fuse3 mounts
            return self.source
        label = _LABEL.fullmatch(self.source) if self.is_kernel else None
        return None if label is None else label[2]

    @property
    def verified(self) -> str | None:
        """Return how the bytes of a mount of the kernel are verified: see the top of the module."""
        label = self._overlay or _LABEL.fullmatch(self.source)
        return None if label is None or label[1] == _KERNEL else label[1]

    @property
    def user(self) -> int:
        """Return the user who made a mount. Only that user and root can unmount it."""
        words = dict(word.partition("=")[::2] for word in self.super_options)
        return int(words.get("user_id", 0))


def find(mountpoint: str) -> MountEntry | None:
    """Return the mount at exactly this path; None if the path is not a mountpoint."""
    folder = resolve(mountpoint)
    found = None
    for entry in entries():
        if entry.mountpoint == folder:
            found = entry  # of stacked mounts, the last line is the top one
    return found


def archives() -> list[MountEntry]:
    """Return the mounts of archives. If several are at one place, only the top one."""
    return list({e.mountpoint: e for e in entries() if e.archive is not None}.values())


def places_of(archive: str) -> list[str]:
    """Return where an archive is mounted."""
    names = shown(archive), label(archive).partition(":")[2]
    return [e.mountpoint for e in entries() if e.archive in names]


def label(archive: str, verified: str | None = None) -> str:
    """Return the source of a mount that the kernel serves. Of a long path, the end is shown."""
    before = "ffrecord:" if verified is None else f"ffrecord+{verified}:"
    path, room = shown(archive).encode(), _LONGEST_LABEL - len(before)
    if len(path) > room:
        path = "/…".encode() + path[len("/…".encode()) - room :]
    return before + path.decode(errors="ignore")


def overlay_label(archive: str, changes: str, below: MountEntry | None = None) -> str:
    """Return the source of an overlay over the mount `below`.

    Of a long archive's path, only the end is shown.
    """
    before = "ffrecord+overlay"
    if below is not None and below.is_kernel:
        before += f"+{below.verified or _KERNEL}"
    place = f":{_quoted(changes)}"
    room = _LONGEST_SOURCE - len(before) - 1 - len(place.encode())
    while len(_quoted(archive).encode()) > room and archive:
        archive = archive[max(1, len(archive) // 16) :]
    return f"{before}:{_quoted(archive)}{place}"


def _quoted(path: str) -> str:
    return "".join(
        each if each.isprintable() and each not in "%:" else urllib.parse.quote(os.fsencode(each))
        for each in path
    )


def _unquoted(text: str) -> str:
    return os.fsdecode(urllib.parse.unquote_to_bytes(os.fsencode(text)))


def shown(source: str) -> str:
    """Return a name that all readers of /proc/mounts can parse.

    Some readers treat \\r as the end of a line, or fail on bytes that are not UTF-8.
    """
    printable = "".join(each if each.isprintable() else "?" for each in source)
    return printable.encode()[:_LONGEST_SOURCE].decode(errors="ignore") or "ffrecord"


def connection_of(mountpoint: str) -> int:
    """Return the number of an archive's mount.

    For FUSE this is the number of the connection, as in /sys/fs/fuse/connections.
    """
    entry = find(mountpoint)
    if entry is None or not entry.is_ours:
        raise MountError(mountpoint, errno.EINVAL, NOT_MOUNTED)
    return entry.minor


def connection_at(mountpoint: str) -> int | None:
    """Return the number of an archive's mount; None if nothing of the kind is mounted there."""
    try:
        return connection_of(mountpoint)
    except MountError:
        return None


def set_read_ahead(mountpoint: str, kib: int) -> bool:
    """Set how far the kernel reads ahead; return False if that is not permitted.

    This applies to files that are opened later. Call it after FUSE_INIT was answered, because that
    answer lowers the value again.
    """
    try:
        with open(f"/sys/class/bdi/0:{connection_of(mountpoint)}/read_ahead_kb", "w") as file:
            file.write(str(kib))
    except OSError:
        return False
    return True


def resolve(path: str) -> str:
    """Return the absolute path without symlinks, as in mountinfo.

    os.path.realpath calls lstat, which waits for the daemon of a mount. readlink does not: the
    kernel knows by itself that the root of a mount is not a symlink.
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
    """Return the parts of a path, the last one first."""
    return [name for name in reversed(path.split("/")) if name not in ("", ".")]


def _readlink(path: str, at: str) -> str | None:
    try:
        return os.readlink(at)
    except OSError:  # not a symlink, or missing; a missing path fails later, when it is used
        return None
    except ValueError:
        why = "the path contains a character that no path can have, such as NUL; correct the path"
        raise MountError(path, errno.EINVAL, why) from None


def entries() -> Iterator[MountEntry]:
    """Yield the lines of the mount table."""
    # Read bytes: only \n ends a line here, and names contain it as \012. Python's text mode would
    # also split at other characters.
    with open(MOUNTINFO, "rb") as file:
        lines = file.read().split(b"\n")
    for line in filter(None, lines):
        fields = line.split(b" ")
        after = fields[fields.index(b"-", 6) + 1 :]  # optional fields come before the "-"
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
    r"""Return a field of mountinfo without its octal escapes (a space is \040)."""
    return os.fsdecode(re.sub(rb"\\([0-7]{3})", lambda code: bytes([int(code[1], 8)]), field))
