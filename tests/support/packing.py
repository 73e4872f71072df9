"""The names in the small folder that tests pack, and what they ask of an archive."""

from __future__ import annotations

from pathlib import Path

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


def require_valid(archive: Path) -> None:
    """The archive opens, its index holds, and every record of it is what its checksum says."""
    with PackedFolder(archive) as folder:
        audit(folder.archive)
        folder.reader.read(range(folder.reader.n))
