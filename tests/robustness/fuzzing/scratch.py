"""Files in memory that are rewritten for every input, so that a million inputs are fast."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from pathlib import Path

SHARED_MEMORY = Path("/dev/shm")


def in_memory() -> str | None:
    """Return the folder for temporary files; None for the default, which TMPDIR may set."""
    usable = "TMPDIR" not in os.environ and os.access(SHARED_MEMORY, os.W_OK)
    return str(SHARED_MEMORY) if usable else None


def folder() -> Path:
    """Make a folder for this process, in memory if possible; it is removed at exit."""
    path = Path(tempfile.mkdtemp(prefix="ffrecord-fuzz-", dir=in_memory()))
    owner = os.getpid()

    def remove() -> None:
        if os.getpid() == owner:  # not in a forked child
            shutil.rmtree(path, ignore_errors=True)

    atexit.register(remove)
    return path


class Scratch:
    """One file whose content is replaced; its path and descriptor stay the same."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def fill(self, data: bytes) -> str:
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, data, 0)
        return self.path
