"""The regular files of a packed folder as a source: paths, attributes and contents.

The driver reads the index. Each task has the rows of its files, so that workers open only the
shards with these files, and no index.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import groupby
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ffrecord.aliases import Ints, Mask, Path
from ffrecord.archive.folder import PackedFolder, argument_of
from ffrecord.archive.index import ROOT, Index
from ffrecord.archive.index.lookup import MISSING
from ffrecord.archive.listing import attributes, below
from ffrecord.archive.walk import matching
from ffrecord.cluster.content import PendingArray, begin_binary
from ffrecord.cluster.files import RecordFile, record_files
from ffrecord.cluster.source import (
    CONTENT,
    PendingBatches,
    ReadTask,
    Source,
    chosen,
    cut,
    nothing,
    record_batch,
    steps,
)
from ffrecord.errors import FFRecordError, SampleChecksumError
from ffrecord.records.table import first_of
from ffrecord.records.unchanged import changed
from ffrecord.remote.urls import shown

PATH, SIZE, MODE, MTIME = "path", "size", "mode", "mtime"
MTIME_TYPE = pa.timestamp("ns", "UTC")
SCHEMA = pa.schema({
    PATH: pa.string(), SIZE: pa.int64(), MODE: pa.int32(), MTIME: MTIME_TYPE, CONTENT: pa.binary(),
})  # fmt: skip
PERMISSIONS = np.uint32(0o7777)
RECORD = "record"
EVERYTHING = "**"
TASK_FILES = 1 << 15
"""Files of a task, whose paths travel with it: some hundred kilobytes."""

COMPARISONS: dict[str, Callable[[pa.Array, pa.Scalar], pa.Array]] = {
    "==": pc.equal, "<": pc.less, "<=": pc.less_equal, ">": pc.greater, ">=": pc.greater_equal,
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class FolderTask(ReadTask):
    """Files in the order of their records."""

    facts: pa.RecordBatch
    """The selected columns except the contents, and with contents the paths, for errors, and the
    number of each record in its shard."""
    shards: tuple[tuple[RecordFile, int], ...]
    """Each shard, and the number of files in it."""
    schema: pa.Schema

    def __getstate__(self) -> dict[str, Any]:
        # A slice would be pickled with all rows of its table.
        sink = pa.BufferOutputStream()
        codec = "zstd" if pa.Codec.is_available("zstd") else None
        options = pa.ipc.IpcWriteOptions(compression=codec)
        with pa.ipc.new_stream(sink, self.facts.schema, options=options) as writer:
            writer.write_batch(self.facts)
        return {**self.__dict__, "facts": sink.getvalue().to_pybytes()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        with pa.ipc.open_stream(state["facts"]) as reader:
            self.__dict__.update(state, facts=reader.read_next_batch())

    def _begun(self) -> Iterator[PendingBatches]:
        if CONTENT not in self.schema.names:
            for step in steps(np.zeros(self.rows, np.int64)):
                yield partial(self._batches, step, nothing)
            return
        row, everything = 0, self._records
        for file, count in self.shards:
            mine = everything[row : row + count]
            for step in steps(file.open().sizes(mine)):
                records = mine[step.start : step.stop]
                pending = begin_binary(file.open(), records)
                yield partial(self._batches, range(row, row + len(step)), pending)
                row += len(step)

    @property
    def _records(self) -> Ints:
        records: Ints = self.facts[RECORD].to_numpy()
        return records

    def _batches(self, rows: range, pending: PendingArray) -> Iterator[pa.RecordBatch]:
        facts = self.facts.slice(rows.start, len(rows))
        arrays = [
            self._contents(pending) if name == CONTENT else facts[name]
            for name in self.schema.names
        ]
        yield record_batch(arrays, self.schema, len(rows))

    def _contents(self, pending: PendingArray) -> pa.Array:
        try:
            return pending()
        except SampleChecksumError as error:
            error.name = self._path_of(error)
            raise

    def _path_of(self, error: SampleChecksumError) -> str | None:
        """Return the path of a damaged file."""
        row = 0
        for file, count in self.shards:
            if file.open().name == error.path:
                at = (self._records[row : row + count] == error.record).nonzero()[0]
                return str(self.facts[PATH][row + int(at[0])]) if len(at) else None
            row += count
        return None


@dataclass(frozen=True)
class Listing:
    """Files of an archive, in the order of their records. Only the driver has it."""

    facts: pa.RecordBatch
    """All columns except the contents."""
    records: Ints
    files: tuple[RecordFile, ...]
    fingerprint: str

    def some(self, which: Mask) -> Listing:
        """Return a part of the files."""
        return replace(self, facts=self.facts.filter(pa.array(which)), records=self.records[which])

    def shards(self, rows: range) -> tuple[tuple[RecordFile, int], ...]:
        """Return the shards of some rows, and the number of rows in each."""
        return tuple(
            (self.files[file], len(list(some)))
            for file, some in groupby(self.place[0][rows.start : rows.stop].tolist())
        )

    @cached_property
    def place(self) -> tuple[Ints, Ints]:
        """The number of each file's shard, and the number of its record in there."""
        firsts = first_of([file.count for file in self.files])
        shard = firsts.searchsorted(self.records, side="right") - 1
        return shard, self.records - firsts[shard]


def listing_of(folder: PackedFolder, pattern: str) -> Listing:
    """Return the regular files that match a pattern."""
    index = folder.archive.index
    levels = list(_regular(index))
    paths = [path for _, some in levels for path in some]
    inodes = np.concatenate([np.zeros(0, np.int64), *(inodes for inodes, _ in levels)])
    order = index.records(inodes).argsort(kind="stable")
    if pattern != EVERYTHING:
        wanted = set(matching(index, pattern))
        order = order[[paths[row] in wanted for row in order.tolist()]]
    inodes = inodes[order]
    facts = pa.RecordBatch.from_arrays(
        [
            _texts(folder.archive.path, [paths[row] for row in order.tolist()]),
            pa.array(index.tables.inodes["length"][inodes].astype(np.int64)),
            pa.array((attributes(index, inodes)["mode"] & PERMISSIONS).astype(np.int32)),
            pa.array(index.tables.inodes["mtime"][inodes].astype(np.int64)).cast(MTIME_TYPE),
        ],
        schema=pa.schema([SCHEMA.field(name) for name in SCHEMA.names if name != CONTENT]),
    )
    files = tuple(record_files(folder.reader))
    return Listing(facts, index.records(inodes), files, folder.reader.fingerprint)


def _regular(index: Index) -> Iterator[tuple[Ints, list[str]]]:
    """Yield the inodes and the paths of regular files, level by level."""
    for level in below(index, np.array([ROOT]), [""]):
        inodes = level.entries.inodes
        is_file = index.records(inodes) != MISSING
        yield inodes[is_file], level.some(is_file).paths


def _texts(name: str, paths: list[str]) -> pa.Array:
    try:
        return pa.array(paths, pa.string())
    except UnicodeEncodeError as error:
        raise FFRecordError(
            f"{name}: the path {error.object!r} is not UTF-8, so no column of strings can have it; "
            "pass a pattern that leaves it out"
        ) from error


@dataclass(frozen=True)
class FolderSource(Source):
    """Files of a packed folder that match a pattern and conditions."""

    archive: Any
    """The archive as the user passed it, with absolute paths."""
    remote: dict[str, Any]
    pattern: str
    fingerprint: str
    conditions: tuple[tuple[str, str, Any], ...] = ()
    schema: pa.Schema = SCHEMA

    @classmethod
    def of(
        cls, archive: Path | Sequence[Path], pattern: str, remote: dict[str, Any]
    ) -> FolderSource:
        with PackedFolder(archive, **remote) as folder:
            listing = listing_of(folder, pattern)
            source = cls(argument_of(folder), remote, pattern, listing.fingerprint)
        return source._with(listing)

    def _with(self, listing: Listing) -> FolderSource:
        self.__dict__["listing"] = listing
        return self

    @cached_property
    def listing(self) -> Listing:
        """The files. A source that was unpickled reads the index again."""
        with PackedFolder(self.archive, **self.remote) as folder:
            listing = listing_of(folder, self.pattern)
        if listing.fingerprint != self.fingerprint:
            raise changed(self.name)
        for condition in self.conditions:
            which = _meets(listing, *condition)
            assert which is not None
            listing = listing.some(which)
        return listing

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "listing"}

    @property
    def name(self) -> str:
        """The archive, or its first shard, for messages."""
        is_one = isinstance(self.archive, (str, os.PathLike))
        return shown(str(self.archive if is_one else self.archive[0]))

    @property
    def rows(self) -> int:  # type: ignore[override]
        return len(self.listing.records)

    @property
    def bytes(self) -> int:
        return int(self._sizes().sum())

    def select(self, columns: Sequence[str]) -> FolderSource:
        selected = replace(self, schema=chosen(SCHEMA, columns, self.name))
        return selected._with(self.listing)

    def where(self, column: str, op: str, value: Any) -> FolderSource | None:
        which = _meets(self.listing, column, op, value)
        if which is None:
            return None
        some = replace(self, conditions=(*self.conditions, (column, op, value)))
        return some._with(self.listing.some(which))

    def tasks(self, count: int | None = None) -> list[ReadTask]:
        listing, sizes = self.listing, self._sizes()
        has_content = CONTENT in self.schema.names
        columns = {*self.schema.names} - {CONTENT} | ({PATH} if has_content else set())
        facts = listing.facts.select([name for name in SCHEMA.names if name in columns])
        if has_content:
            facts = facts.append_column(RECORD, pa.array(listing.place[1]))
        return [
            FolderTask(
                len(rows), int(sizes[rows.start : rows.stop].sum()),
                facts.slice(rows.start, len(rows)), listing.shards(rows) if has_content else (),
                self.schema,
            )
            for rows in cut(sizes, count, TASK_FILES)
        ]  # fmt: skip

    def _sizes(self) -> Ints:
        """Return the bytes to read of each file."""
        if CONTENT not in self.schema.names:
            return np.zeros(self.rows, np.int64)
        sizes: Ints = self.listing.facts[SIZE].to_numpy()
        return sizes


def _meets(listing: Listing, column: str, op: str, value: Any) -> Mask | None:
    """Return which files meet a condition; None if only the engine can tell."""
    if column not in (PATH, SIZE) or (op == "startswith" and column != PATH):
        return None
    values, type_ = listing.facts[column], SCHEMA.field(column).type
    try:
        if op == "in":
            met = pc.is_in(values, value_set=pa.array(list(value), type_))
        elif op == "startswith":
            met = pc.starts_with(values, pattern=value)
        elif op in COMPARISONS:
            met = COMPARISONS[op](values, pa.scalar(value, type_))
        else:
            return None
    except (pa.ArrowException, TypeError, ValueError, OverflowError):  # of another type
        return None
    which: Mask = met.fill_null(False).to_numpy(zero_copy_only=False)
    return which
