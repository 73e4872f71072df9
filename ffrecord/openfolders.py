"""The folders that an extraction writes into, as open descriptors.

Each is opened one name at a time from the top, without following symlinks: whatever the archive has
made there before, and whoever changes the folder meanwhile, nothing outside of the top is opened.
"""

from __future__ import annotations

import os
from collections import OrderedDict

from ffrecord.index import ROOT, Index

MOST_OPEN = 128
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class OpenFolders:
    """By the numbers of their inodes. The descriptor of the top, `root`, stays the caller's."""

    def __init__(self, index: Index, root: int) -> None:
        self._index = index
        self._root = root
        self._opened: OrderedDict[int, int] = OrderedDict()

    def __getitem__(self, inode: int) -> int:
        """A folder's descriptor. It stays open until `close_some`, and most likely longer."""
        if inode == ROOT:
            return self._root
        way = [inode]
        while way[-1] != ROOT and way[-1] not in self._opened:
            way.append(self._index.parent(way[-1]))
        fd = known = self._opened.get(way[-1], self._root)
        for folder in reversed(way[:-1]):
            above = fd
            try:
                fd = os.open(self._index.last_name(folder), _FOLDER, dir_fd=above)
            finally:
                if above != known:
                    os.close(above)
        self._opened[inode] = fd
        self._opened.move_to_end(inode)
        return fd

    def close_some(self) -> None:
        """All but the last ones that were used."""
        self._close(MOST_OPEN)

    def close(self) -> None:
        self._close(0)

    def _close(self, most: int) -> None:
        while len(self._opened) > most:
            os.close(self._opened.popitem(last=False)[1])
