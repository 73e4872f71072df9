"""Typed datasets in commands that take other files: refuse them, and say what to do."""

from __future__ import annotations

from ffrecord.dataset.folders import files, is_dataset, parts
from ffrecord.errors import NotPackedFolderError
from ffrecord.remote.urls import shown


def refuse(path: str) -> None:
    """Raise an error if the path is a dataset: its files look like shards of an archive."""
    if any(map(is_dataset, parts(path))):
        raise NotPackedFolderError(
            f"{shown(path)}: this is a typed dataset, not a packed folder; "
            "`ffrecord info` shows its fields"
        )


def refuse_records(path: str) -> None:
    """Raise an error if the path is a dataset: its records are in more than one file."""
    shards = [part for part in parts(path) if is_dataset(part)]
    if shards:
        such = f", such as {shown(files(shards[0])[0])}"
        raise NotPackedFolderError(
            f"{shown(path)}: this is a typed dataset, with a record file for each field; "
            f"name one of these files{such}"
        )
