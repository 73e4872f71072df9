"""Our own formats as shapes: record files, packed folders, datasets."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager

from ffrecord.archive.archive import Archive
from ffrecord.archive.counts import Contents, of_index
from ffrecord.archive.index import ROOT, Status
from ffrecord.convert.field_types import passing_on
from ffrecord.convert.shapes import Entry, Files, Options, Records, Rows, Written
from ffrecord.dataset import DatasetReader, DatasetWriter, ShardedDatasetReader, codecs
from ffrecord.dataset.sharded import SHARD_NAME
from ffrecord.dataset.spec import SPEC_NAME, load
from ffrecord.records.reader import FileReader
from ffrecord.records.writer import FileWriter

# ---- record files --------------------------------------------------------------------------


@contextmanager
def read_records(path: str, options: Options) -> Iterator[Records]:
    with FileReader(path) as reader:
        yield Records(iter(reader), reader.n)


def count_records(path: str) -> int:
    with FileReader(path) as reader:
        return reader.n


def write_records(path: str, records: Records, options: Options) -> Written:
    with FileWriter(path, records.count) as writer:
        writer.write(records.items)
    return Written(writer.count)


# ---- packed folders ------------------------------------------------------------------------


@contextmanager
def read_packed(path: str, options: Options) -> Iterator[Files]:
    with Archive.open(path) as archive:
        yield Files(_entries(archive), of_index(archive.index).names)


def count_packed(path: str) -> Contents:
    with Archive.open(path) as archive:
        return of_index(archive.index)


def _entries(archive: Archive) -> Iterator[Entry]:
    """The top, then depth first, each folder before what is in it."""
    index = archive.index
    seen: dict[int, bytes] = {}  # inodes with several names
    yield _entry(archive, b"", index.status(ROOT), seen)
    opened = [(b"", index.children(ROOT))]
    while opened:
        folder, children = opened[-1]
        name, inode = next(children, (b"", ROOT))
        if inode == ROOT:
            opened.pop()
            continue
        path = folder + name
        status = index.status(inode)
        yield _entry(archive, path, status, seen)
        if status.is_folder:
            opened.append((path + b"/", index.children(inode)))


def _entry(archive: Archive, path: bytes, status: Status, seen: dict[int, bytes]) -> Entry:
    inode, index = status.inode, archive.index
    first = path
    if status.links > 1 and not status.is_folder:
        first = seen.setdefault(inode, path)
    return Entry(
        path, status.mode, status.uid, status.gid, status.mtime_ns,
        size=status.size if status.is_file else 0,
        target=index.target(inode) if status.is_symlink else b"",
        hard_link=b"" if first == path else first,
        xattrs=tuple(index.xattrs(inode).items()),
        content=lambda: archive.stream(inode),
    )  # fmt: skip


# ---- datasets ------------------------------------------------------------------------------


@contextmanager
def read_dataset(path: str, options: Options) -> Iterator[Rows]:
    """One dataset, or the shards of one."""
    shards = [name for name in os.listdir(path) if re.fullmatch(SHARD_NAME, name)]
    sharded = bool(shards) and not os.path.exists(os.path.join(path, SPEC_NAME))
    first = os.path.join(path, min(shards)) if sharded else path
    decoders = passing_on(load(first).spec, codecs.decoders, bytes)
    if sharded:
        with ShardedDatasetReader(path, decoders) as joined:
            yield Rows(joined.spec, iter(joined), len(joined))
    else:
        with DatasetReader(path, decoders) as reader:
            yield Rows(reader.spec, iter(reader), len(reader))


def count_dataset(path: str) -> int:
    with DatasetReader(path, passing_on(load(path).spec, codecs.decoders, bytes)) as reader:
        return len(reader)


def write_dataset(path: str, rows: Rows, options: Options) -> Written:
    encoders = passing_on(rows.spec, codecs.encoders, codecs.encode_bytes)
    with DatasetWriter(path, rows.spec, encoders) as writer:
        for row in rows.items:
            writer.append(row)
    return Written(len(writer))
