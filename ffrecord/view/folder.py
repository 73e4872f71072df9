"""`Folder`: a packed folder on the page."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import unquote_to_bytes

import numpy as np

from ffrecord.aliases import Bytes
from ffrecord.archive.archive import Archive, Naming
from ffrecord.archive.index import ROOT
from ffrecord.archive.index.lookup import MISSING
from ffrecord.archive.index.resolve import leads_to, resolve
from ffrecord.archive.names import to_text
from ffrecord.errors import ReadFailedError, SampleChecksumError
from ffrecord.view.contents import Found, Item, read_all
from ffrecord.view.listings import Asked, Listings, entry_path, rows, shown


class Folder:
    """A packed folder. An item's key is the number of its entry.

    Args:
        archive: the open archive. The caller closes it.
    """

    kind = "folder"

    def __init__(self, archive: Archive) -> None:
        self.archive = archive
        self.index = archive.index
        self.listings = Listings(archive.index)

    def about(self) -> dict[str, Any]:
        return {"entries": len(self.index.tables.entries)}

    # ---- listings ------------------------------------------------------------------------

    def folder(self, ref: str) -> int:
        """Return the inode of a folder by its percent-encoded path."""
        inode = resolve(self.index, unquote_to_bytes(ref))
        if not self.index.status(inode).is_folder:
            raise NotADirectoryError(20, "not a folder", shown(to_text(unquote_to_bytes(ref))))
        return inode

    def page(
        self, asked: Asked, offset: int, limit: int, go_on: Callable[[], bool]
    ) -> dict[str, Any]:
        """Return the rows of a listing from `offset` on."""
        numbers = self.listings.numbers(asked, go_on)
        with_paths = bool(asked.pattern) or asked.seed is not None
        found = rows(self.index, numbers[offset : offset + limit], with_paths)
        return {"total": len(numbers), "offset": offset, "rows": found}

    def locate(self, ref: str, asked: Asked | None) -> dict[str, Any]:
        """Return the row of a path, and its position in a listing (None: not there)."""
        path = unquote_to_bytes(ref).strip(b"/")
        above, _, name = path.rpartition(b"/")
        folder = resolve(self.index, above) if above else ROOT
        entry = self.index.entry(folder, name) if self.index.status(folder).is_folder else MISSING
        if entry == MISSING:
            raise FileNotFoundError(2, "not in the archive", shown(to_text(path)))
        row = rows(self.index, np.array([entry], np.uint32), True)[0]
        return {
            "row": row,
            "position": None if asked is None else self.listings.position(asked, entry),
        }

    # ---- contents ------------------------------------------------------------------------

    def item(self, key: str) -> Item:
        entry = self._entry(key)
        return Item(entry_path(self.index, entry), self._file(entry)[1])

    def part(self, key: str, offset: int, length: int) -> Bytes:
        entry = self._entry(key)
        with Naming(shown(entry_path(self.index, entry))):
            return self.archive.read_range(self._file(entry)[0], offset, length)

    def whole(self, keys: Sequence[str]) -> list[Found]:
        inodes = [self._file(self._entry(key))[0] for key in keys]
        found = read_all(lambda some: self.archive.read(np.array(some)), inodes)
        for key, each in zip(keys, found, strict=True):
            if isinstance(each, (SampleChecksumError, ReadFailedError)):
                each.name = shown(entry_path(self.index, int(key)))
        return found

    def _entry(self, key: str) -> int:
        entry = int(key) if key.isdecimal() else -1
        if not 0 <= entry < len(self.index.tables.entries):
            raise LookupError(f"the archive has no entry {key!r}")
        return entry

    def _file(self, entry: int) -> tuple[int, int]:
        """Return the inode and the size of a file, behind symlinks too."""
        index = self.index
        row = index.tables.entries[entry]
        inode = leads_to(index, int(row["parent"]), index.name(entry), int(row["inode"]))
        status = index.status(inode)
        if not status.is_file:
            what = "is a folder" if status.is_folder else "is a symlink that leads to no file here"
            raise LookupError(f"{shown(entry_path(index, entry))} {what}")
        return inode, status.size
