"""Resolve a path as a user writes it: slashes, dots, and symlinks inside the archive.

Errors are the same as with `open()` for a path on a disk. An absolute path begins at the root
of the archive, and ".." of the root is the root. A symlink that leads out of the archive raises
EXDEV, like openat2(2) with RESOLVE_BENEATH.
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
from ffrecord.text import Advised

MOST_SYMLINKS = 40  # limit on the way to one inode, as in Linux
MOST_NAMES = 4096
"""Limit for the names in all symlinks on the way to one inode. One symlink has at most 2,048."""


def resolve(index: Index, path: bytes, *, follow: bool = True, start: int = ROOT) -> int:
    """Return the inode of a path from the folder `start`.

    Without `follow`, return a symlink at the end of the path, not its target.
    """
    inode, links = ROOT if path.startswith(b"/") else start, 0
    waiting = [(name, False) for name in reversed(path.split(b"/"))]
    steps = 0
    while waiting:
        name, linked = waiting.pop()
        if not stat.S_ISDIR(index.mode(inode)):
            raise failed(index, errno.ENOTDIR, to_text(path))
        if name in (b"", b"."):
            continue
        if name == b"..":
            if linked and inode == ROOT:
                raise _leaves(index, path)
            inode = index.parent(inode)
            continue
        if len(name) > LONGEST_NAME:
            raise failed(index, errno.ENAMETOOLONG, to_text(path))
        found = index.child(inode, name)
        if found == MISSING:
            raise failed(index, errno.ENOENT, to_text(path))
        if stat.S_ISLNK(index.mode(found)) and (waiting or follow):
            links += 1
            if links > MOST_SYMLINKS:
                raise failed(index, errno.ELOOP, to_text(path))
            target = index.target(found)
            if target.startswith(b"/"):
                raise _leaves(index, path)
            parts = target.split(b"/")
            steps += len(parts)
            if steps > MOST_NAMES:
                raise failed(index, errno.ELOOP, to_text(path))
            waiting += [(part, True) for part in reversed(parts)]
        else:
            inode = found
    return inode


def require(index: Index, paths: Iterable[bytes]) -> None:
    """Raise an error if one of these paths is missing from the archive."""
    for path in paths:
        resolve(index, path, follow=path.endswith(b"/"))


def leads_to(index: Index, folder: int, name: bytes, inode: int) -> int:
    """Return the inode of an entry or, for a symlink, the inode that it leads to.

    For a broken symlink, or one that leads out of the archive, return its own inode.
    """
    if stat.S_ISLNK(index.mode(inode)):
        with contextlib.suppress(OSError):
            return resolve(index, name, start=folder)
    return inode


def readable_record(index: Index, folder: int, name: bytes, inode: int) -> int | None:
    """Return the record of an entry: of a file, or of the file that a symlink leads to.

    Return None for a folder, and for a symlink that leads to no file in the archive.
    """
    inode = leads_to(index, folder, name, inode)
    return index.record(inode) if stat.S_ISREG(index.mode(inode)) else None


def failed(index: Index, code: int, path: str, what: str = "") -> OSError:
    """Return an error about a path in the archive; commands name the archive by themselves."""
    return OSError(code, Advised(what or os.strerror(code), f" in {index.archive}"), path)


def _leaves(index: Index, path: bytes) -> OSError:
    what = "a symlink on this path leads out of the archive"
    return failed(index, errno.EXDEV, to_text(path), what)
