"""Opening files and folders however long their paths are.

Linux takes at most 4095 bytes of path at once (PATH_MAX). A longer path is opened in pieces, each
from the folder that the piece before it has led to. One descriptor is held meanwhile.
"""

from __future__ import annotations

import os

LONGEST = 4095
_ON_THE_WAY = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC


def open_path(path: str | bytes, flags: int) -> int:
    """Open a path as `os.open` does, of any length. Errors name the whole path."""
    raw = os.fsencode(path)
    if len(raw) <= LONGEST:
        return os.open(path, flags)
    *before, last = _pieces(raw)
    folder: int | None = None
    try:
        for piece in before:
            above, folder = folder, os.open(piece, _ON_THE_WAY, dir_fd=folder)
            if above is not None:
                os.close(above)
        return os.open(last, flags, dir_fd=folder)
    except OSError as error:
        raise OSError(error.errno, error.strerror, path) from error
    finally:
        if folder is not None:
            os.close(folder)


def _pieces(path: bytes) -> list[bytes]:
    """A path cut at slashes. A name that is too long for any piece is left for the system to
    refuse."""
    pieces = []
    while len(path) > LONGEST:
        cut = path.rfind(b"/", 1, LONGEST + 1)
        if cut < 0:
            break
        pieces.append(path[:cut])
        path = path[cut:].lstrip(b"/")
    return [*pieces, path or b"."]
