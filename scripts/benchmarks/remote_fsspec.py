"""Files of a packed folder through fsspec, inside a fresh process: the archive is local and warm.

The archive of a million files is that of `folder`. The files for `cat` are the records of `remote`,
in our archive and in a zip file, which fsspec's own file system for zip files reads.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from . import harness, remote_archives
from .datasets import RecordSet
from .folder_archives import FolderArchive
from .remote_worker import WrongRecordsError

UNTIMED = 3

Values = dict[str, float]


def listing(*, root: str, folders: int, per_folder: int) -> Values:
    """List a folder, and find all files, of an archive that was never used in this process."""
    archive = FolderArchive(folders, per_folder)
    file = archive.file(Path(root))
    harness.read_through(file.parent)
    import fsspec.implementations.zip  # noqa: F401

    import ffrecord.fsspec  # noqa: F401

    top = archive.path(0).partition("/")[0]
    began = time.perf_counter()
    fs = fsspec.filesystem("ffr", fo=str(file))
    entries = fs.ls(top)
    listed = time.perf_counter() - began
    if len(entries) != per_folder:
        raise WrongRecordsError(f"ls found {len(entries):,} files, not {per_folder:,}")
    began = time.perf_counter()
    found = fs.find("")
    values = {"ls_s": listed, "find_s": time.perf_counter() - began}
    if len(found) != archive.count:
        raise WrongRecordsError(f"find found {len(found):,} files, not {archive.count:,}")
    return values


def cat(
    *, root: str, name: str, mean: int, count: int, batch: int, number: int, seed: int
) -> Values:
    """Read batches of files with `cat`, with `PackedFolder.read`, and with `cat` of a zip file."""
    import fsspec

    from ffrecord import PackedFolder

    records, data = RecordSet(name, mean, count), Path(root)
    packed = remote_archives.file(remote_archives.PACKED, records, data)
    zipped = remote_archives.file(remote_archives.ZIP, records, data)
    for file in (packed, zipped):
        harness.read_through(file.parent)
    ours = fsspec.filesystem("ffr", fo=str(packed))
    theirs = fsspec.filesystem("zip", fo=str(zipped))
    ways: dict[str, Callable[[list[str]], Any]] = {
        "cat": ours.cat, "read": PackedFolder(packed).read, "zip": theirs.cat,
    }  # fmt: skip
    order = np.random.default_rng(seed).permutation(count)[: (number + UNTIMED) * batch]
    rows = [[remote_archives.member(index) for index in row] for row in order.reshape(-1, batch)]
    _check(ours.cat(rows[0]), rows[0], records)
    seconds = dict.fromkeys(ways, 0.0)
    for turn, row in enumerate(rows):
        for way in harness.rotated(list(ways), turn):
            began = time.perf_counter()
            _ = ways[way](row)
            if turn >= UNTIMED:
                seconds[way] += time.perf_counter() - began
    return {f"{way}_files_per_s": number * batch / took for way, took in seconds.items()}


def _check(contents: dict[str, bytes], names: Sequence[str], records: RecordSet) -> None:
    first = names[0]
    if list(contents) != list(names) or contents[first] != records.record(int(first)):
        raise WrongRecordsError(f"{first} differs from the written file")
