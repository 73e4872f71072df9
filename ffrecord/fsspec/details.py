"""The dictionaries in which fsspec describes files: name, type, size, and what stat(2) tells.

A symlink has the type, the size and the attributes of the file or folder that it leads to, and says
so with `islink` and `destination`. If it is broken or leads out of the archive, its type is
"other".
"""

from __future__ import annotations

import stat
from typing import Any, TypeAlias

import numpy as np

from ffrecord.aliases import Ints, Mask
from ffrecord.archive.index import Index
from ffrecord.archive.index.resolve import leads_to, resolve
from ffrecord.archive.listing import Entries, are, attributes
from ffrecord.archive.names import to_bytes, to_text

Details: TypeAlias = dict[str, Any]

TYPES = {stat.S_IFREG: "file", stat.S_IFDIR: "directory", stat.S_IFLNK: "other"}


def details_of(index: Index, path: str) -> Details:
    """Return the details of one file or folder. Raises the errors of `open()`."""
    raw = to_bytes(path)
    inode = resolve(index, raw, follow=False)
    target = leads_to(index, 0, raw, inode)
    (found,) = _described(index, [path], np.array([target]))
    return _linked(index, found, inode)


def details_of_many(entries: Entries, paths: list[str]) -> list[Details]:
    """Return the details of entries, in the same order."""
    index, inodes = entries.index, entries.inodes
    found = _described(index, paths, entries.targets())
    for row in are(index, inodes, stat.S_IFLNK).nonzero()[0].tolist():
        _linked(index, found[row], int(inodes[row]))
    return found


def are_folders(entries: Entries) -> Mask:
    """Return True for each entry that is a folder, or a symlink to one."""
    return are(entries.index, entries.targets(), stat.S_IFDIR)


def sizes_of(index: Index, inodes: Ints) -> Ints:
    """Return the sizes of files. Folders and broken symlinks have the size 0, as in fsspec."""
    lengths: Ints = index.tables.inodes["length"][inodes].astype(np.int64)
    return np.where(are(index, inodes, stat.S_IFREG), lengths, 0)


def _described(index: Index, paths: list[str], inodes: Ints) -> list[Details]:
    rows = attributes(index, inodes)
    columns = (
        sizes_of(index, inodes), rows["mode"], rows["uid"], rows["gid"], rows["links"],
        index.tables.inodes["mtime"][inodes] / 1e9, inodes + 1,  # inode 0 would mean "no inode"
    )  # fmt: skip
    lists = [column.tolist() for column in columns]
    return [
        {
            "name": path, "size": size, "type": TYPES[stat.S_IFMT(mode)], "mode": mode, "uid": uid,
            "gid": gid, "nlink": links, "mtime": mtime, "ino": ino, "islink": False,
        }
        for path, size, mode, uid, gid, links, mtime, ino in zip(paths, *lists, strict=True)
    ]  # fmt: skip


def _linked(index: Index, details: Details, inode: int) -> Details:
    """Add to `details` that they were found through a symlink, if `inode` is one."""
    if stat.S_ISLNK(index.mode(inode)):
        details["islink"] = True
        details["destination"] = to_text(index.target(inode))
    return details
