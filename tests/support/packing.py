"""The names in the small folder that tests pack, and checks of an archive."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ffrecord import PackedFolder
from ffrecord.archive.audit import audit

ALL = {
    "a.txt", "b.tmp", "logs", "logs/1.log", "logs/2.log", "logs/deep", "logs/deep/3.log",
    "sub", "sub/a.txt", "sub/logs", "empty",
}  # fmt: skip
"""The names in the folder `small`."""


def names(archive: Path) -> set[str]:
    with PackedFolder(archive) as folder:
        return {str(name) for name in folder.list(recursive=True)}


def contents(archive: Path) -> dict[str, bytes]:
    with PackedFolder(archive) as folder:
        return {name: folder.read_one(name).tobytes() for name in folder}


def require_valid(archive: Path | str, **remote: Any) -> None:
    """Check that an archive opens, its index is valid and every record matches its checksum."""
    with PackedFolder(archive, **remote) as folder:
        audit(folder.archive)
        folder.reader.read(range(folder.reader.n))
