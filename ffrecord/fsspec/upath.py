"""`PackedFolderPath`: the class of `UPath("ffr://…")`. universal_pathlib finds it by itself."""

from __future__ import annotations

import posixpath

import fsspec
from upath import UPath

from ffrecord.fsspec.filesystem import PackedFolderFileSystem

# universal_pathlib warns about protocols whose class is not loaded.
fsspec.register_implementation("ffr", PackedFolderFileSystem, clobber=True)


class PackedFolderPath(UPath):
    """A path in a packed folder, read-only."""

    __slots__ = ()

    def readlink(self) -> PackedFolderPath:
        """Return the path that a symlink leads to."""
        fs = self.fs
        assert isinstance(fs, PackedFolderFileSystem)
        target = fs.folder.readlink(self.path)
        return self.with_segments(posixpath.join(posixpath.dirname(self.path), target))
