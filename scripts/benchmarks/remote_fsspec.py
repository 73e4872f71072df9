"""Files of a packed folder through fsspec, inside a fresh process: the archive is local and warm.

The archive of a million files is that of `folder`. The files for `cat` are the records of `remote`,
in our archive and in a zip file, which fsspec's own file system for zip files reads.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from . import harness, remote_archives
from .datasets import RecordSet
from .folder_archives import FolderArchive
from .remote_worker import WrongRecordsError

CAT, READ, ZIP = "cat", "PackedFolder.read", "cat of a zip file"

UNTIMED = 3

Values = dict[str, float]


def listing(*, root: str, folders: int, per_folder: int) -> Values:
    """List a folder, and find all files, of an archive that was never used in this process."""
    archive = FolderArchive(folders, per_folder)
    file = archive.file(Path(root))
    harness.read_through(file.parent)
    import fsspec.implementations.zip

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
    """Return the files per second of `cat`, of `PackedFolder.read`, and of `cat` of a zip file.

    All read the same batches, in turn. The figures are those of the median batch.
    """
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
        CAT: ours.cat, READ: PackedFolder(packed).read, ZIP: theirs.cat,
    }  # fmt: skip
    random = np.random.default_rng(seed)
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    for turn in range(UNTIMED + number):
        row = [remote_archives.member(index) for index in random.permutation(count)[:batch]]
        for way in harness.rotated(list(ways), turn):
            began = time.perf_counter()
            found = ways[way](row)
            seconds[way].append(time.perf_counter() - began)
            if turn < UNTIMED:
                _check(found, row, records)
            del found
    return {way: batch / statistics.median(took[UNTIMED:]) for way, took in seconds.items()}


def _check(found: Any, names: Sequence[str], records: RecordSet) -> None:
    """Compare the first file of a batch with the written one."""
    first = bytes(found[names[0]] if isinstance(found, dict) else found[0])
    if len(found) != len(names) or first != records.record(int(names[0])):
        raise WrongRecordsError(f"{names[0]} differs from the written file")
