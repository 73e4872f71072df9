"""The records of files as a source: columns `number` and `content`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from ffrecord.aliases import Ints
from ffrecord.cluster.content import PendingArray, begin_binary
from ffrecord.cluster.files import RecordFile
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
from ffrecord.records.table import first_of

NUMBER = "number"
SCHEMA = pa.schema({NUMBER: pa.int64(), CONTENT: pa.binary()})


@dataclass(frozen=True)
class Piece:
    """Neighbouring records of one file, by their numbers in that file."""

    file: RecordFile
    first: int
    stop: int

    @property
    def records(self) -> Ints:
        return np.arange(self.first, self.stop)


@dataclass(frozen=True)
class RecordsTask(ReadTask):
    """Neighbouring records of one or more files."""

    first: int
    """The number of the first record among those of all files."""
    pieces: tuple[Piece, ...]
    schema: pa.Schema

    def _begun(self) -> Iterator[PendingBatches]:
        number, has_content = self.first, CONTENT in self.schema.names
        for piece in self.pieces:
            records = piece.records
            sizes = np.zeros(len(records), np.int64)
            if has_content:
                sizes = piece.file.open().sizes(records)
            for step in steps(sizes):
                some = records[step.start : step.stop]
                pending = begin_binary(piece.file.open(), some) if has_content else nothing
                yield partial(self._batches, np.arange(number, number + len(some)), pending)
                number += len(some)

    def _batches(self, numbers: Ints, pending: PendingArray) -> Iterator[pa.RecordBatch]:
        columns = {NUMBER: lambda: pa.array(numbers), CONTENT: pending}
        arrays = [columns[name]() for name in self.schema.names]
        yield record_batch(arrays, self.schema, len(numbers))


@dataclass(frozen=True)
class RecordsSource(Source):
    """Neighbouring records of some files."""

    name: str
    files: tuple[RecordFile, ...]
    first: int
    stop: int
    schema: pa.Schema = SCHEMA

    @property
    def rows(self) -> int:  # type: ignore[override]
        return self.stop - self.first

    @property
    def bytes(self) -> int:
        return int(self._sizes().sum())

    def select(self, columns: Sequence[str]) -> RecordsSource:
        return replace(self, schema=chosen(SCHEMA, columns, self.name))

    def where(self, column: str, op: str, value: Any) -> RecordsSource | None:
        if column != NUMBER or not isinstance(value, (int, np.integer)):
            return None
        number = int(value)
        bounds = {
            "==": (number, number + 1), "<": (0, number), "<=": (0, number + 1),
            ">": (number + 1, self.stop), ">=": (number, self.stop),
        }  # fmt: skip
        if op not in bounds:
            return None
        first, stop = bounds[op]
        first = min(max(first, self.first), self.stop)
        return replace(self, first=first, stop=max(first, min(stop, self.stop)))

    def tasks(self, count: int | None = None) -> list[ReadTask]:
        sizes = self._sizes()
        return [
            RecordsTask(
                len(rows), int(sizes[rows.start : rows.stop].sum()), self.first + rows.start,
                tuple(self._pieces(range(self.first + rows.start, self.first + rows.stop))),
                self.schema,
            )
            for rows in cut(sizes, count)
        ]  # fmt: skip

    def _sizes(self) -> Ints:
        """Return the bytes to read of each record."""
        if CONTENT not in self.schema.names:
            return np.zeros(self.rows, np.int64)
        pieces = self._pieces(range(self.first, self.stop))
        sizes = [piece.file.open().sizes(piece.records) for piece in pieces]
        return np.concatenate([np.zeros(0, np.int64), *sizes])

    def _pieces(self, records: range) -> Iterator[Piece]:
        """Yield the ranges of files that hold these records."""
        firsts = first_of([file.count for file in self.files]).tolist()
        for file, first in zip(self.files, firsts[:-1], strict=True):
            begin, end = max(records.start, first), min(records.stop, first + file.count)
            if begin < end:
                yield Piece(file, begin - first, end - first)
