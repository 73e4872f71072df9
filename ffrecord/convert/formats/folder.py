"""Folders on disk: read as entries, and written from entries.

To write a folder, the entries are packed into a temporary archive beside it, which is then
extracted. So all names are checked before the first file is created, and `extract` is the only code
that creates files under names from a source.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from ffrecord.archive.archive import Archive
from ffrecord.archive.counts import Counts, count_tree
from ffrecord.archive.extract import extract
from ffrecord.archive.index.build import Xattrs
from ffrecord.archive.names import to_text
from ffrecord.archive.scan import Scan, read_xattrs
from ffrecord.convert.files import STEP, open_to_read
from ffrecord.convert.formats import packed
from ffrecord.convert.shapes import ConvertOptions, FileEntry, NamedFiles, Written
from ffrecord.errors import ChangedError


@contextmanager
def read(path: str, options: ConvertOptions) -> Iterator[NamedFiles]:
    scan = Scan(os.path.abspath(path))
    options.skipped.update(scan.skipped)
    yield NamedFiles(_entries(scan), count_tree(scan.tree).names)


def count(path: str) -> Counts:
    return count_tree(Scan(os.path.abspath(path)).tree)


def write(path: str, files: NamedFiles, options: ConvertOptions) -> Written:
    archive = f"{path}.ffr"
    written = packed.write(archive, files, options)
    with Archive.open(archive) as opened:
        extract(opened, path)
    os.unlink(archive)
    return written


def _entries(scan: Scan) -> Iterator[FileEntry]:
    """Yield the top folder, then everything else in path order."""
    tree = scan.tree
    yield _entry(scan, b"", b"", 0)
    folders: list[bytes] = []
    names = np.bincount(np.frombuffer(tree.inode, np.uint32), minlength=len(tree))
    has_several = (names > 1).tobytes()
    seen: dict[int, bytes] = {}  # the first path of a file with several names
    for number, depth in tree.in_path_order():
        del folders[depth - 1 :]
        inode, name = tree.inode[number], tree.names[number]
        path = b"/".join([*folders, name])
        first = seen.setdefault(inode, path) if has_several[inode] else path
        yield _entry(scan, path, b"" if first == path else first, inode)
        folders.append(name)


def _entry(scan: Scan, path: bytes, hard_link: bytes, inode: int) -> FileEntry:
    tree = scan.tree
    is_file = tree.is_file(inode) and not hard_link
    return FileEntry(
        path, tree.mode[inode], tree.uid[inode], tree.gid[inode], tree.mtime[inode],
        size=tree.length[inode] if is_file else 0,
        target=tree.targets.get(inode, b""),
        hard_link=hard_link,
        xattrs=_xattrs(scan, inode) if is_file or tree.is_folder(inode) else (),
        content=lambda: _content(scan, inode),
    )  # fmt: skip


def _xattrs(scan: Scan, inode: int) -> Xattrs:
    fd = scan.open(scan.path(inode))
    try:
        return read_xattrs(fd)
    finally:
        os.close(fd)


def _content(scan: Scan, inode: int) -> Iterator[bytes]:
    """Yield a file's bytes; raise ChangedError if the file changed since the scan."""
    path = scan.path(inode)
    with open_to_read(os.fsdecode(path), scan.open_flags) as file:
        left = scan.tree.length[inode]
        while left and (piece := file.read(min(left, STEP))):
            left -= len(piece)
            yield piece
        if left or not scan.is_unchanged(inode, os.fstat(file.fileno())):
            raise ChangedError(
                f"{to_text(path)}: changed while it was converted; convert the folder again"
            )
