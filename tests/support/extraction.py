"""The small folder that tests extract, and the names in the result."""

from __future__ import annotations

import os
from pathlib import Path

from tests.support import trees
from tests.support.trees import BLOCK

FILES = {
    "a": b"the first",
    "d/b": b"in a folder",
    "d/e/c": b"in a folder in a folder",
    "d/e/large": trees.content(3 * BLOCK + 7),
    "f/g": b"in another folder",
    "h": b"the last",
    "empty/": b"",
}
ALL = {
    "a", "d", "d/b", "d/e", "d/e/c", "d/e/large", "d/up", "f", "f/g", "f/same as b", "h", "empty",
    "link",
}  # fmt: skip


def names(top: Path) -> set[str]:
    return {os.fsdecode(path) for path in trees.paths(top)} - {"."}


def is_unnamed(source: str | bytes) -> bool:
    """Return True if a link gives an unnamed file its first name, and is not a hard link."""
    return os.fsdecode(source).startswith("/proc/self/fd/")
