"""Open files and folders with paths of any length.

A system call takes at most 4095 bytes of path (PATH_MAX). A longer path is opened in pieces: each
piece starts from the folder that the previous piece opened. At most two descriptors are open at a
time.
"""

from __future__ import annotations

import os

LONGEST = 4095
_ON_THE_WAY = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC


def open_path(path: str | bytes, flags: int) -> int:
    """Open a path of any length, as `os.open` does. Errors name the whole path."""
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
    """Cut a path at slashes into pieces that a system call accepts.

    A single name that is too long for a piece stays whole: the system call then refuses it.
    """
    pieces = []
    while len(path) > LONGEST:
        cut = path.rfind(b"/", 1, LONGEST + 1)
        if cut < 0:
            break
        pieces.append(path[:cut])
        path = path[cut:].lstrip(b"/")
    return [*pieces, path or b"."]
