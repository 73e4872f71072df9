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
    *, way: str, root: str, name: str, mean: int, count: int, batch: int, number: int, seed: int
) -> Values:
    """Return the files per second of the median batch, read in one of the three ways.

    Each way has its own process: `cat` changes how much freed memory the allocator keeps, which
    makes the other ways faster too.
    """
    import fsspec

    from ffrecord import PackedFolder

    records = RecordSet(name, mean, count)
    layout = remote_archives.ZIP if way == ZIP else remote_archives.PACKED
    file = remote_archives.file(layout, records, Path(root))
    harness.read_through(file.parent)
    ways: dict[str, Callable[[], Callable[[list[str]], Any]]] = {
        CAT: lambda: fsspec.filesystem("ffr", fo=str(file)).cat,
        READ: lambda: PackedFolder(file).read,
        ZIP: lambda: fsspec.filesystem("zip", fo=str(file)).cat,
    }
    read = ways[way]()
    random = np.random.default_rng(seed)
    seconds = []
    for turn in range(UNTIMED + number):
        row = [remote_archives.member(index) for index in random.permutation(count)[:batch]]
        began = time.perf_counter()
        found = read(row)
        seconds.append(time.perf_counter() - began)
        if turn < UNTIMED:
            _check(found, row, records)
        del found
    return {"records_per_s": batch / statistics.median(seconds[UNTIMED:])}


def _check(found: Any, names: Sequence[str], records: RecordSet) -> None:
    """Compare the first file of a batch with the written one."""
    first = bytes(found[names[0]] if isinstance(found, dict) else found[0])
    if len(found) != len(names) or first != records.record(int(names[0])):
        raise WrongRecordsError(f"{names[0]} differs from the written file")
