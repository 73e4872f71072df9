"""An opened file of a packed folder, with the attributes that users of fsspec expect."""

from __future__ import annotations

import io
from typing import Any

from ffrecord.archive.folder import PackedFolder
from ffrecord.format.index import BLOCK


class PackedFolderFile(io.BufferedReader):
    """A buffered, seekable, read-only file. It pickles as its file system, path and position.

    Args:
        fs: the file system, to open the file again in another process.
        folder: the archive.
        path: the path in the archive.
        block_size: bytes of the buffer.
    """

    def __init__(
        self, fs: Any, folder: PackedFolder, path: str, block_size: int | None = None
    ) -> None:
        super().__init__(folder.open(path).detach(), block_size or BLOCK)
        self.fs = fs
        self.path = path
        self.size = folder.stat(path).st_size
        self.blocksize = block_size or BLOCK

    @property
    def full_name(self) -> str:
        name: str = self.fs.unstrip_protocol(self.path)
        return name

    @property
    def details(self) -> dict[str, Any]:
        return self.info()

    def info(self) -> dict[str, Any]:
        """Return the details of the file, as from the file system."""
        found: dict[str, Any] = self.fs.info(self.path)
        return found

    def __reduce__(self) -> Any:
        return _reopened, (self.fs, self.path, self.blocksize, self.tell())


def _reopened(fs: Any, path: str, block_size: int, position: int) -> Any:
    file = fs.open(path, block_size=block_size)
    file.seek(position)
    return file
