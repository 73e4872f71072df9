"""The files that the contestants of `remote` read: the same records in every layout.

They lie in one folder for each layout, below the folder that is the bucket.
"""

from __future__ import annotations

import os
import shutil
import stat
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from ffrecord.archive.index.build import Tree
from ffrecord.format import records as record_layout
from ffrecord.format.checksum import crc32, crc32_of_zeros
from ffrecord.records.writer import FileWriter

from . import datasets, folder_archives, loader_archives, peers
from .datasets import RecordSet

BUCKET = "bucket"

OURS = "ffrecord"
ZIP = "zip"
MDS = "mds"
LITDATA = "litdata"
SHARDS = "webdataset"
PACKED = "packed"
LAYOUTS = (OURS, ZIP, MDS, LITDATA, SHARDS, PACKED)

RECIPE = "1"
"""Raise it when a layout's bytes change; then all are made again."""

CHUNK_BYTES = 1 << 26
"""Size of a shard of MosaicML streaming, and of a chunk of litdata: their default and advice."""

NAMES = {OURS: peers.OURS.file, ZIP: "records.zip", PACKED: "packed.ffr"}
"""The object that a contestant opens. Layouts that are not here are a folder of objects."""


def key(layout: str, records: RecordSet) -> str:
    """Return the key of the object, or of the folder, in the bucket."""
    return str(records.folder(Path(), layout) / NAMES.get(layout, ""))


def file(layout: str, records: RecordSet, root: Path) -> Path:
    """Return the local path of the object or folder."""
    return root / BUCKET / key(layout, records)


def shards(records: RecordSet) -> list[str]:
    """Return the names of WebDataset's tar files."""
    # An even number of shards gives two workers the same amount of work.
    count = 2 * max(1, round(records.mean * records.count / loader_archives.SHARD_BYTES / 2))
    return [f"{number:04d}.tar" for number in range(count)]


def create(layout: str, root: str, name: str, mean: int, count: int) -> None:
    """Make a layout unless it exists; called in a fresh process."""
    records = RecordSet(name, mean, count)
    folder = records.folder(Path(root) / BUCKET, layout)
    makers: dict[str, Callable[[RecordSet, Path], None]] = {
        OURS: _write_ours, ZIP: _write_zip, MDS: _write_mds, LITDATA: _write_litdata,
        SHARDS: _write_shards, PACKED: _write_packed,
    }  # fmt: skip
    datasets.make_once(folder, RECIPE, lambda: makers[layout](records, folder))


def create_large(root: str, mean: int, count: int) -> str:
    """Make a file of records that are zeros, and return its key. It is sparse."""
    folder = Path(root) / BUCKET / f"large-x{count}"
    file = folder / NAMES[OURS]

    def write() -> None:
        first = record_layout.header_size(count)
        offsets = first + mean * np.arange(count, dtype=np.int64)
        checksums = np.full(count, crc32_of_zeros(mean), np.uint32)
        body = record_layout.body(checksums, offsets)
        file.write_bytes(record_layout.seal(crc32(body), body))
        os.truncate(file, first + mean * count)

    datasets.make_once(folder, f"{RECIPE}/{mean}", write)
    return str(file.relative_to(Path(root) / BUCKET))


def member(number: int) -> str:
    """Return the name of a record in a zip file."""
    return f"{number:07d}"


def _write_ours(records: RecordSet, folder: Path) -> None:
    peers.OURS.write(folder / NAMES[OURS], records.records(), records.count)


def _write_zip(records: RecordSet, folder: Path) -> None:
    with zipfile.ZipFile(folder / NAMES[ZIP], "w", zipfile.ZIP_STORED) as archive:
        for number, record in enumerate(records.records()):
            archive.writestr(member(number), record)


def _write_mds(records: RecordSet, folder: Path) -> None:
    writer = streaming().MDSWriter(
        out=str(folder / "shards"), columns={"data": "bytes"}, size_limit=CHUNK_BYTES
    )
    with writer:
        for record in records.records():
            writer.write({"data": record})
    _move_up(folder / "shards")


def _write_litdata(records: RecordSet, folder: Path) -> None:
    import litdata

    os.environ["DATA_OPTIMIZER_CACHE_FOLDER"] = str(folder / "unfinished")
    litdata.optimize(
        _Everything(records), [0], str(folder / "chunks"), chunk_bytes=CHUNK_BYTES,
        num_workers=1, verbose=False, mode="overwrite",
    )  # fmt: skip
    _move_up(folder / "chunks")
    shutil.rmtree(folder / "unfinished", ignore_errors=True)


class _Everything:
    """Yields all records, for `litdata.optimize`."""

    def __init__(self, records: RecordSet) -> None:
        self.records = records

    def __call__(self, number: int) -> Iterator[bytes]:
        yield from self.records.records()


def _write_shards(records: RecordSet, folder: Path) -> None:
    import webdataset

    names = shards(records)
    writers = [webdataset.TarWriter(str(folder / name)) for name in names]
    for number, record in enumerate(records.records()):
        writers[number % len(names)].write({"__key__": member(number), "bin": record})
    for writer in writers:
        writer.close()


def _write_packed(records: RecordSet, folder: Path) -> None:
    """Write the packed folder that has each record as a file."""
    tree = Tree()
    when = folder_archives.FIRST_MTIME
    top = tree.add_inode(stat.S_IFDIR | 0o755, 0, 0, when)
    for number, length in enumerate(records.lengths().tolist()):
        inode = tree.add_inode(stat.S_IFREG | 0o644, 0, 0, when, length)
        tree.record[inode] = number
        tree.add_entry(top, member(number).encode(), inode)
    with FileWriter(folder / NAMES[PACKED], records.count + 1) as writer:
        writer.write(records.records())
        writer.write_one(folder_archives.index_record(tree))


def _move_up(folder: Path) -> None:
    """Move files to the parent folder: their libraries want to make the folder themselves."""
    for each in folder.iterdir():
        each.rename(folder.parent / each.name)
    folder.rmdir()


def streaming() -> Any:
    """Import MosaicML streaming without its parts for images and text.

    They load torchvision and transformers, which are large, and not every torch has a torchvision.
    """
    for name, attribute in (
        ("streaming.multimodal", ""),
        ("streaming.text", ""),
        ("streaming.vision", ""),
        ("transformers", ""),
        ("transformers.feature_extraction_utils", "BatchFeature"),
        ("transformers.tokenization_utils_base", "BatchEncoding"),
    ):
        module = sys.modules.setdefault(name, ModuleType(name))
        if attribute:
            setattr(module, attribute, type(attribute, (), {}))
    import streaming

    return streaming
