"""The folders that an extraction writes into, as open descriptors.

Each is opened one name at a time from the top, without following symlinks: whatever the archive has
made there before, and whoever changes the folder meanwhile, nothing outside of the top is opened.
So a path may have any length.
"""

from __future__ import annotations

import os
import resource
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
        self._most = _most_open()

    def __getitem__(self, inode: int) -> int:
        """A folder's descriptor. It stays open until `close_some`, and most likely longer."""
        way = [inode]
        while way[-1] != ROOT and way[-1] not in self._opened:
            way.append(self._index.parent(way[-1]))
        fd = self._root
        if (nearest := way.pop()) != ROOT:
            fd = self._opened[nearest]
            self._opened.move_to_end(nearest)
        passing = -1  # a descriptor that is only needed to open the next one
        while way:
            folder = way.pop()
            try:
                fd = os.open(self._index.last_name(folder), _FOLDER, dir_fd=fd)
            finally:
                if passing >= 0:
                    os.close(passing)
            # The last folders on the way stay open: after the deepest ones come those above them.
            passing = fd if len(way) > self._most // 2 else -1
            if passing < 0:
                self._opened[folder] = fd
        return fd

    def close_some(self) -> None:
        """All but the last ones that were used."""
        self._close(self._most)

    def close(self) -> None:
        self._close(0)

    def _close(self, most: int) -> None:
        while len(self._opened) > most:
            os.close(self._opened.popitem(last=False)[1])


def _most_open() -> int:
    """How many folders may be open at once: a quarter of what this process may open at most."""
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MOST_OPEN if allowed == resource.RLIM_INFINITY else min(MOST_OPEN, allowed // 4)
