"""From a path as a user writes it to an inode: slashes, dots, and symlinks inside the archive.

Errors are those that `open()` raises for such a path on a disk. The archive is the whole world: an
absolute path begins at its root, and ".." of the root is the root. A symlink that leaves the
archive is an error, EXDEV, as openat2(2) gives with RESOLVE_BENEATH.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterable

from ffrecord.archive.index.lookup import MISSING, ROOT, Index
from ffrecord.archive.names import to_text
from ffrecord.format.index import LONGEST_NAME

MOST_SYMLINKS = 40
MOST_NAMES = 4096
"""In all symlinks on the way to one inode: twice as many as one of them can have."""


def resolve(index: Index, path: bytes, *, follow: bool = True, start: int = ROOT) -> int:
    """The inode of a path from the folder `start`; with `follow` what a symlink at its end is."""
    inode, links = ROOT if path.startswith(b"/") else start, 0
    waiting = [(name, False) for name in reversed(path.split(b"/"))]
    steps = 0
    while waiting:
        name, linked = waiting.pop()
        if not stat.S_ISDIR(index.mode(inode)):
            raise _error(errno.ENOTDIR, path)
        if name in (b"", b"."):
            continue
        if name == b"..":
            if linked and inode == ROOT:
                raise _leaves(path)
            inode = index.parent(inode)
            continue
        if len(name) > LONGEST_NAME:
            raise _error(errno.ENAMETOOLONG, path)
        found = index.child(inode, name)
        if found == MISSING:
            raise _error(errno.ENOENT, path)
        if stat.S_ISLNK(index.mode(found)) and (waiting or follow):
            links += 1
            if links > MOST_SYMLINKS:
                raise _error(errno.ELOOP, path)
            target = index.target(found)
            if target.startswith(b"/"):
                raise _leaves(path)
            parts = target.split(b"/")
            steps += len(parts)
            if steps > MOST_NAMES:
                raise _error(errno.ELOOP, path)
            waiting += [(part, True) for part in reversed(parts)]
        else:
            inode = found
    return inode


def require(index: Index, paths: Iterable[bytes]) -> None:
    """An error if one of these is not there, before anything is made of them."""
    for path in paths:
        resolve(index, path, follow=path.endswith(b"/"))


def leads_to(index: Index, folder: int, name: bytes, inode: int) -> int:
    """The inode that an entry means: for a symlink, unless it leads nowhere or out of the archive,
    what it points to."""
    if stat.S_ISLNK(index.mode(inode)):
        with contextlib.suppress(OSError):
            return resolve(index, name, start=folder)
    return inode


def readable_record(index: Index, folder: int, name: bytes, inode: int) -> int | None:
    """The record that an entry reads as: a file's own, or that of the file in here that a symlink
    leads to. None for folders, and for symlinks to anything else."""
    inode = leads_to(index, folder, name, inode)
    return index.record(inode) if stat.S_ISREG(index.mode(inode)) else None


def _error(code: int, path: bytes) -> OSError:
    return OSError(code, os.strerror(code), to_text(path))


def _leaves(path: bytes) -> OSError:
    return OSError(errno.EXDEV, "a symlink points out of the archive", to_text(path))
