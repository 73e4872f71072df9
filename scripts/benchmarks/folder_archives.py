"""Packed folders of a thousand and of a million files, made without making the files.

`pack_folder` would write the same records and the same index for such a tree. Real files would take
minutes to write, and half of a disk's inodes.
"""

from __future__ import annotations

import stat
from dataclasses import dataclass
from pathlib import Path

from ffrecord.archive.index import legacy
from ffrecord.archive.index.build import Tree, build
from ffrecord.format import index as index_layout
from ffrecord.format.checksum import crc32
from ffrecord.records.writer import FileWriter

from . import datasets
from .datasets import RecordSet

RECIPE = f"1/{index_layout.VERSION}"
"""Raise the first number when the bytes change; then all archives are made again."""

MEAN = 1_000
OWNER = 1_000
FIRST_MTIME = 1_700_000_000_000_000_000
"""Nanoseconds; each file is about a millisecond newer than the one before."""
STEP_MTIME = 1_000_003


@dataclass(frozen=True, slots=True)
class FolderArchive:
    """`folders` × `per_folder` files, named as in ImageNet."""

    folders: int
    per_folder: int

    @property
    def count(self) -> int:
        return self.folders * self.per_folder

    @property
    def records(self) -> RecordSet:
        """Return the contents of the files, in the order of their paths."""
        return RecordSet("folder", MEAN, self.count)

    def path(self, record: int) -> str:
        """Return the path of the file whose content is this record."""
        folder, number = divmod(record, self.per_folder)
        return f"{self._folder_name(folder)}/{self._file_name(folder, number)}"

    def place(self, root: Path) -> Path:
        """Return the folder of the archive and its marker."""
        return self.records.folder(root, "packed")

    def file(self, root: Path) -> Path:
        return self.place(root) / "packed.ffr"

    def tree(self) -> Tree:
        """Return the tree that a scan of the files would find."""
        tree = Tree()
        lengths = self.records.lengths().tolist()
        root = tree.add_inode(stat.S_IFDIR | 0o755, OWNER, OWNER, FIRST_MTIME)
        for folder in range(self.folders):
            inode = tree.add_inode(stat.S_IFDIR | 0o755, OWNER, OWNER, FIRST_MTIME)
            tree.add_entry(root, self._folder_name(folder).encode(), inode)
        for record, length in enumerate(lengths):
            folder, number = divmod(record, self.per_folder)
            mtime = FIRST_MTIME + record * STEP_MTIME
            inode = tree.add_inode(stat.S_IFREG | 0o644, OWNER, OWNER, mtime, length)
            tree.record[inode] = record
            # The root is inode 0; the folders follow it.
            tree.add_entry(1 + folder, self._file_name(folder, number).encode(), inode)
        return tree

    def _folder_name(self, folder: int) -> str:
        return f"n{folder:08d}"

    def _file_name(self, folder: int, number: int) -> str:
        digits = max(5, len(str(self.per_folder - 1)))  # names must sort like their numbers
        return f"n{folder:08d}_{number:0{digits}d}.JPEG"


def create(root: str, folders: int, per_folder: int) -> None:
    """Write an archive unless it exists; called in a fresh process."""
    archive = FolderArchive(folders, per_folder)
    place, file = archive.place(Path(root)), archive.file(Path(root))
    datasets.make_once(place, f"{RECIPE}/{per_folder}", lambda: _write(archive, file))


def _write(archive: FolderArchive, file: Path) -> None:
    with FileWriter(file, archive.count + 1) as writer:
        writer.write(archive.records.records())
        writer.write_one(index_record(archive.tree()))


def index_record(tree: Tree) -> bytes:
    """Return the last record as `pack_folder` writes it."""
    image = build(tree)
    before = b"".join(legacy.pickled(tree, lambda entry: None))  # the tree has no symlinks
    return before + image[:] + index_layout.trailer(image, crc32(image))
