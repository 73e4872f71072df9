"""The datapoints of a dataset as a source: a column for each field."""

from __future__ import annotations

import os
import pickle
from collections.abc import Hashable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from ffrecord.aliases import Ints, Path
from ffrecord.cluster.fields import PendingField, arrow_field, decoders_for, row_sizes
from ffrecord.cluster.files import Opened, version_of
from ffrecord.cluster.source import (
    PendingBatches,
    ReadTask,
    Source,
    chosen,
    cut,
    record_batch,
    steps,
)
from ffrecord.dataset.columns import Column, open_columns
from ffrecord.dataset.files import RecordFiles
from ffrecord.dataset.remote import is_remote_dataset, load_remote, remote_dataset
from ffrecord.dataset.sharded import AT_ONCE, all_shards
from ffrecord.dataset.spec import SPEC_NAME, Manifest, file_name, load
from ffrecord.errors import DatasetError
from ffrecord.records.opening import refuse_remote_options
from ffrecord.records.table import KeptTable
from ffrecord.records.unchanged import changed
from ffrecord.text import path_text

if TYPE_CHECKING:
    from ffrecord.remote.files import RemoteFolder
    from ffrecord.remote.options import RemoteOptions


@dataclass(frozen=True)
class Fields:
    """Some fields of one dataset, open."""

    table: KeptTable
    columns: Mapping[str, Column]

    def sizes(self, rows: range) -> Ints:
        """Return the bytes on disk of each of these datapoints."""
        sizes = np.zeros(len(rows), np.int64)
        for column in self.columns.values():
            sizes += row_sizes(self.table, column, rows)
        return sizes

    def begin(self, rows: range) -> list[PendingField]:
        """Start to read all fields of these datapoints."""
        return [PendingField(self.table, each, rows) for each in self.columns.values()]


_opened: Opened[Fields] = Opened()


@dataclass(frozen=True)
class Part:
    """A dataset without shards, or one shard: its place, and what its `spec.json` said."""

    name: str
    """The absolute path, or the URL as it may be shown."""
    manifest: Manifest
    remote: RemoteFolder | None = field(default=None, repr=False)

    def some(self, fields: Sequence[str]) -> Part:
        """Return the same part with some of its fields only."""
        spec = {name: self.manifest.spec[name] for name in fields}
        checksums = {name: self.manifest.checksums[name] for name in fields}
        return replace(self, manifest=Manifest(self.manifest.length, spec, checksums))

    def open(self) -> Fields:
        """Return the open fields. Use the result at once, and do not keep it."""
        return _opened.get(self._key(), self._open)

    def _paths(self) -> list[str]:
        return [os.path.join(self.name, file_name(name)) for name in self.manifest.spec]

    def _key(self) -> Hashable:
        crcs = tuple(self.manifest.checksums.items())
        if self.remote is not None:
            return self.name, crcs, pickle.dumps(self.remote)
        return self.name, crcs, tuple(map(version_of, self._paths()))

    def _open(self) -> Fields:
        spec, remote, paths = self.manifest.spec, self.remote, self._paths()
        try:
            files = RecordFiles(
                paths, True, "auto", keep_headers=True, stacklevel=1,
                remote=None if remote is None else remote.files(list(map(file_name, spec))),
            )  # fmt: skip
            columns = open_columns(
                self.name, self.manifest, paths, files, decoders_for(spec.values()), True
            )
        except DatasetError as error:
            now = load(self.name) if remote is None else load_remote(remote)
            if self.manifest.checksums.items() <= now.checksums.items():
                raise
            raise changed(self.name) from error
        assert isinstance(files.table, KeptTable)  # because of `keep_headers`
        return Fields(files.table, columns)


@dataclass(frozen=True)
class DatasetTask(ReadTask):
    """Neighbouring datapoints of one or more shards."""

    pieces: tuple[tuple[Part, int, int], ...]
    """Shards, each with the first datapoint and the one after the last."""
    schema: pa.Schema

    def select(self, columns: Sequence[str]) -> DatasetTask:
        """Return the same rows with these columns only. Tasks of a source that selects may differ.

        `bytes` stays that of all columns.
        """
        schema = chosen(self.schema, columns, self.pieces[0][0].name)
        pieces = tuple((part.some(schema.names), a, b) for part, a, b in self.pieces)
        return replace(self, pieces=pieces, schema=schema)

    def _begun(self) -> Iterator[PendingBatches]:
        for part, first, stop in self.pieces:
            sizes = np.zeros(stop - first, np.int64)
            if len(self.schema):
                sizes = part.open().sizes(range(first, stop))
            for step in steps(sizes):
                rows = range(first + step.start, first + step.stop)
                pending = part.open().begin(rows) if len(self.schema) else []
                yield partial(self._batches, len(rows), pending)

    def _batches(self, rows: int, pending: list[PendingField]) -> Iterator[pa.RecordBatch]:
        sizes = np.zeros(rows, np.int64)
        for each in pending:
            sizes += each.sizes()
        for step in steps(sizes):
            arrays = [each.array(step) for each in pending]
            yield record_batch(arrays, self.schema, len(step))


@dataclass(frozen=True)
class DatasetSource(Source):
    """All datapoints of a dataset, with some of its fields."""

    name: str
    parts: tuple[Part, ...]
    """With all fields."""
    schema: pa.Schema

    @classmethod
    def of(cls, directory: Path, remote: RemoteOptions) -> DatasetSource:
        """Open the specs of a dataset: of the folder itself, or of its shards."""
        if is_remote_dataset(directory, remote):
            name, parts = _remote_parts(remote_dataset(directory, remote))
        else:
            refuse_remote_options(remote)
            name = os.path.abspath(path_text(directory))
            parts = _local_parts(name)
        spec = parts[0].manifest.spec
        for part in parts:
            if part.manifest.spec != spec:
                raise DatasetError(
                    f"{part.name}: this shard has another spec than {parts[0].name}; keep datasets "
                    "with different specs in different folders"
                )
        return cls(name, parts, pa.schema([arrow_field(*each) for each in spec.items()]))

    @property
    def rows(self) -> int:  # type: ignore[override]
        return sum(part.manifest.length for part in self.parts)

    @property
    def bytes(self) -> int:
        return int(self.sizes.sum())

    def select(self, columns: Sequence[str]) -> DatasetSource:
        spec = self.parts[0].manifest.spec
        whole = pa.schema([arrow_field(*each) for each in spec.items()])
        return replace(self, schema=chosen(whole, columns, self.name))

    def where(self, column: str, op: str, value: Any) -> None:
        return None

    def tasks(self, count: int | None = None) -> list[ReadTask]:
        return [
            DatasetTask(
                len(rows), int(self.sizes[rows.start : rows.stop].sum()),
                tuple(self._pieces(rows)), self.schema,
            )
            for rows in cut(self.sizes, count)
        ]  # fmt: skip

    @cached_property
    def sizes(self) -> Ints:
        """The bytes to read of each datapoint. An unpickled source opens the files again."""
        parts = [part.some(self.schema.names) for part in self.parts]
        if not self.schema.names:
            return np.zeros(self.rows, np.int64)

        def sizes(part: Part) -> Ints:
            return part.open().sizes(range(part.manifest.length))

        if parts[0].remote is None:
            return np.concatenate(list(map(sizes, parts)))
        with ThreadPoolExecutor(AT_ONCE) as pool:  # all shards at once: each waits for the network
            return np.concatenate(list(pool.map(sizes, parts)))

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "sizes"}

    def _pieces(self, rows: range) -> Iterator[tuple[Part, int, int]]:
        before = 0
        for part in self.parts:
            first, stop = rows.start - before, min(rows.stop - before, part.manifest.length)
            if max(first, 0) < stop:
                yield part.some(self.schema.names), max(first, 0), stop
            before += part.manifest.length


def _local_parts(directory: str) -> tuple[Part, ...]:
    if os.path.exists(os.path.join(directory, SPEC_NAME)):
        return (Part(directory, load(directory)),)
    paths = [os.path.join(directory, name) for name in all_shards(directory, os.listdir(directory))]
    return tuple(Part(path, load(path)) for path in paths)


def _remote_parts(folder: RemoteFolder) -> tuple[str, tuple[Part, ...]]:
    if folder.read(SPEC_NAME, 1) is not None:
        return folder.name, (Part(folder.name, load_remote(folder), folder),)
    inner = [folder.inside(name) for name in all_shards(folder.name, folder.entries())]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        manifests = list(pool.map(load_remote, inner))
    pairs = zip(inner, manifests, strict=True)
    return folder.name, tuple(Part(each.name, manifest, each) for each, manifest in pairs)
