"""`Source` and `ReadTask`: the interface between the kinds of sources and the engines."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from ffrecord.aliases import Ints
from ffrecord.text import integer

TASK_BYTES = 64 << 20
"""Size of a task, unless the caller says how many there are to be."""
TASK_ROWS = 1 << 20
BATCH_BYTES = 32 << 20
"""A batch is one block of memory, and the next one is read meanwhile: so two are in memory.

Compressed bytes that were read as one block become several batches of at most this size."""
BATCH_ROWS = 1 << 17

CONTENT = "content"

PendingBatches: TypeAlias = Callable[[], Iterable[pa.RecordBatch]]


@dataclass(frozen=True)
class ReadTask(ABC):
    """The rows of one task: a contiguous run. A small picklable value."""

    rows: int
    bytes: int
    """Bytes to read from disk."""

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows in large batches, in order, while the next batch is read."""
        before: PendingBatches | None = None
        for begun in self._begun():
            if before is not None:
                yield from before()
            before = begun
        if before is not None:
            yield from before()

    @abstractmethod
    def _begun(self) -> Iterator[PendingBatches]:
        """Start to read one range of rows after another.

        Yield for each a function that waits for its bytes and returns its batches.
        """


class Source(ABC):
    """Rows to read, with the columns `schema`. A picklable value; all methods return new values."""

    schema: pa.Schema
    """The selected columns."""
    rows: int

    @property
    @abstractmethod
    def bytes(self) -> int:
        """Bytes of the selected columns on disk."""

    @abstractmethod
    def select(self, columns: Sequence[str]) -> Source:
        """Return the same rows with these columns only. The content of others is never read."""

    @abstractmethod
    def where(self, column: str, op: str, value: Any) -> Source | None:
        """Return the rows that meet a condition; None if only the engine can decide it.

        Args:
            column: a column of the whole source, selected or not.
            op: `==`, `<`, `<=`, `>`, `>=`, `in` (`value` is a collection) or `startswith`.
            value: what to compare with.
        """

    @abstractmethod
    def tasks(self, count: int | None = None) -> list[ReadTask]:
        """Return tasks that together have all rows in order, about equal in bytes.

        At most `count` tasks; by default, as many as have 64 MiB each on disk. No task is empty.
        """


def chosen(schema: pa.Schema, columns: Sequence[str] | None, name: str) -> pa.Schema:
    """Return the schema of some columns, in their order; all by default."""
    if columns is None:
        return schema
    for column in columns:
        if column not in schema.names:
            raise ValueError(
                f"{name}: no column {column!r}; its columns are {', '.join(schema.names)}"
            )
    if len(set(columns)) < len(columns):
        raise ValueError(f"{name}: a column is named twice in {list(columns)}; name each once")
    return pa.schema([schema.field(column) for column in columns], schema.metadata)


def cut(sizes: Ints, count: int | None, most_rows: int = TASK_ROWS) -> list[range]:
    """Divide rows into at most `count` ranges that are about equal in bytes, none of them empty.

    Each row counts one byte more than its size, so that empty rows are distributed too.
    """
    rows = len(sizes)
    ends = np.cumsum(sizes + 1)
    if count is None:
        count = max(-(-int(sizes.sum()) // TASK_BYTES), -(-rows // most_rows), 1)
    elif integer(count, "count") < 1:
        raise ValueError(f"count must be 1 or more, not {count}")
    total = int(ends[-1]) if rows else 0
    due = np.arange(1, count) * (total / count)
    borders = [0, *np.unique(ends.searchsorted(due)).tolist(), rows]
    return [range(a, b) for a, b in pairwise(borders) if b > a]


def steps(sizes: Ints) -> Iterator[range]:
    """Divide rows into batches within the limits of bytes and rows."""
    ends, first = np.cumsum(sizes), 0
    while first < len(sizes):
        before = int(ends[first - 1]) if first else 0
        fitting = int(ends.searchsorted(before + BATCH_BYTES, side="right"))
        stop = min(max(fitting, first + 1), first + BATCH_ROWS, len(sizes))
        yield range(first, stop)
        first = stop


def nothing() -> pa.Array:
    """Return no values: contents that are not selected."""
    return pa.nulls(0)


def record_batch(arrays: list[pa.Array], schema: pa.Schema, rows: int) -> pa.RecordBatch:
    """Return a batch, with the right number of rows even if no column is selected."""
    if arrays:
        return pa.RecordBatch.from_arrays(arrays, schema=schema)
    return pa.RecordBatch.from_arrays([pa.nulls(rows)], ["-"]).select([])
