"""One measurement of a packed folder, inside its fresh process.

Modules are loaded before the clock starts. Cold: caches are dropped just before. Warm: the archive
is read once.
"""

from __future__ import annotations

import pickle
import time
from pathlib import Path
from typing import Any

import numpy as np

from ffrecord.archive.folder import PackedFolder
from ffrecord.format import index as index_layout
from ffrecord.records.reader import FileReader, table_of

from . import harness, memory
from .folder_archives import FolderArchive

UNTIMED_BATCHES = 3
MB = 1e6

Values = dict[str, float]


class WrongFileError(Exception):
    """Raised when a file differs from the written one."""


def open_and_stat(*, root: str, folders: int, per_folder: int, cold: bool, seed: int) -> Values:
    """Open an archive and look up one of its files."""
    archive = FolderArchive(folders, per_folder)
    record = _any_record(archive, seed)
    name, file = archive.path(record), archive.file(Path(root))
    _prepare(file, cold)
    before, began = memory.private(), time.perf_counter()
    folder = PackedFolder(file)
    size = folder.stat(name).st_size
    values = _used(time.perf_counter() - began, before)
    _expect(name, size, int(archive.records.lengths()[record]))
    return values


def unpickle(*, root: str, folders: int, per_folder: int, cold: bool, seed: int) -> Values:
    """Measure the original's way: unpickle all names as nested dictionaries, and look up one name.

    Only the pickle of the index record is read, because the original's index has nothing else.
    """
    archive = FolderArchive(folders, per_folder)
    record = _any_record(archive, seed)
    name, file = archive.path(record), archive.file(Path(root))
    parent, _, base = name.partition("/")
    _prepare(file, cold)
    before, began = memory.private(), time.perf_counter()
    structure: Any = pickle.loads(_pickled_index(FileReader(file)))
    found = structure[parent][base]
    values = _used(time.perf_counter() - began, before)
    _expect(name, found, record)
    return values


def read(
    *, root: str, folders: int, per_folder: int, cold: bool, seed: int, batches: int, batch: int
) -> Values:
    """Read batches by name and the same batches by record number, in turn.

    There are two passes over the batches, and no two batches are the same. One reader reads a batch
    in the first pass, the other reads it in the second. Both read the same batches, and neither
    finds a batch in the cache because the other has just read it.
    """
    archive = FolderArchive(folders, per_folder)
    file = archive.file(Path(root))
    drawn = np.random.default_rng(seed).permutation(archive.count)
    numbers = drawn[: (batches + UNTIMED_BATCHES) * batch].reshape(-1, batch).tolist()
    names = [[archive.path(record) for record in row] for row in numbers]
    by_name, by_number = PackedFolder(file).read, FileReader(file).read
    for row in range(batches, batches + UNTIMED_BATCHES):
        first = archive.records.record(numbers[row][0])
        _expect(names[row][0], by_number(numbers[row])[0].tobytes(), first)
        _expect(names[row][0], by_name(names[row])[0].tobytes(), first)
    seconds = [0.0, 0.0]
    for swapped in (0, 1):
        _prepare(file, cold)
        for row in range(batches):
            side = (row + swapped) % 2
            began = time.perf_counter()
            _ = by_number(numbers[row]) if side else by_name(names[row])
            seconds[side] += time.perf_counter() - began
    return {
        "folder_files_per_s": batches * batch / seconds[0],
        "reader_files_per_s": batches * batch / seconds[1],
        "slowdown": seconds[0] / seconds[1],
    }


def _any_record(archive: FolderArchive, seed: int) -> int:
    return int(np.random.default_rng(seed).integers(archive.count))


def _prepare(file: Path, cold: bool) -> None:
    if cold:
        harness.drop_caches()
    else:
        harness.read_through(file.parent)


def _used(seconds: float, before: int) -> Values:
    """Return the time, and the memory of this process while everything is still open."""
    return {
        "ms": seconds * 1e3,
        "private_mb_before": before / MB,
        "private_mb": memory.private() / MB,
        "shared_mb": memory.shared() / MB,
        "peak_mb": memory.peak() / MB,
    }


def _pickled_index(reader: FileReader) -> memoryview:
    """Return the pickle before our own index in the last record, without the magic number."""
    record = reader.n - 1
    size = reader.record_size(record)
    end = np.empty(index_layout.TRAILER.size, np.uint8)
    table_of(reader).read_unchecked(record, size - len(end), end)
    trailer = index_layout.parse_trailer(reader.fnames[0], end.tobytes(), size)
    assert trailer is not None
    raw = np.empty(size - len(end) - trailer.length, np.uint8)
    table_of(reader).read_unchecked(record, 0, raw)
    return raw.data[len(index_layout.LEGACY_MAGIC) :]


def _expect(name: str, found: object, written: object) -> None:
    if found != written:
        raise WrongFileError(f"{name} differs from the written file")
