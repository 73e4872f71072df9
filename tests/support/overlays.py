"""Find out whether overlays can be tested here."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from ffrecord_fuse.mounting import changes, overlay
from tests.support import trees


def why_not(folder: Path) -> str | None:
    """Return the reason why no overlay can keep its changes in a folder; None if one can."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        name = changes.unsuitable(fd)
    finally:
        os.close(fd)
    if name is not None:
        return f"overlays cannot keep changes on {name}, as in a container without volumes"
    if not trees.has_xattrs(folder):
        return "the file system has no extended attributes"
    if overlay._keeper() == changes.BY_HELPER:
        found = shutil.which(overlay.HELPER)
        return None if found else f"{overlay.HELPER} is not installed"
    known = Path("/proc/filesystems").read_text().split()
    return None if "overlay" in known else "the kernel has no overlayfs"
