"""Typed datasets where something else is due: their files would be taken for an archive's shards.

Only a folder can be one. What knows them takes 17 ms to import, and most archives are a file.
"""

from __future__ import annotations

import os


def refuse_datasets(path: str) -> None:
    """An error if that is one, for commands that take packed folders."""
    if os.path.isdir(path):
        from ffrecord.cli import datasets

        datasets.refuse(path)


def refuse_records_of_datasets(path: str) -> None:
    """An error if that is one, for commands that take records: those are in more than one file."""
    if os.path.isdir(path):
        from ffrecord.cli import datasets

        datasets.refuse_records(path)
