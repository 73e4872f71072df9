"""Files that are written anew for every input, in memory, so that a million of them are no work."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from pathlib import Path

SHARED_MEMORY = Path("/dev/shm")


def in_memory() -> str | None:
    """Where temporary files are best; None for the usual place, which TMPDIR may have said."""
    usable = "TMPDIR" not in os.environ and os.access(SHARED_MEMORY, os.W_OK)
    return str(SHARED_MEMORY) if usable else None


def folder() -> Path:
    """A folder of this process, in memory where there is such a file system; gone at its end."""
    path = Path(tempfile.mkdtemp(prefix="ffrecord-fuzz-", dir=in_memory()))
    owner = os.getpid()

    def remove() -> None:
        if os.getpid() == owner:  # and not in a fork of it
            shutil.rmtree(path, ignore_errors=True)

    atexit.register(remove)
    return path


class Scratch:
    """One file whose content is replaced; its path and its descriptor stay."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def fill(self, data: bytes) -> str:
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, data, 0)
        return self.path
