"""Columns of engines' tables as bytes, without a Python object for each value."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ffrecord.aliases import Ints
from ffrecord.errors import ConversionError
from ffrecord.text import counted

Batches: TypeAlias = "Iterable[pa.Table | pa.RecordBatch]"


@dataclass(frozen=True, slots=True)
class Values:
    """Byte strings, end to end."""

    content: memoryview
    offsets: Ints
    """Where each begins in `content`, then the end of the last."""

    def each(self) -> Iterator[memoryview]:
        ends = self.offsets.tolist()
        begin = ends[0]
        for end in ends[1:]:
            yield self.content[begin:end]
            begin = end


def column_of(rows: pa.RecordBatch, name: str, target: str) -> pa.Array:
    """Return a column without nulls."""
    if rows.schema.get_field_index(name) < 0:
        found = ", ".join(rows.schema.names) or "none"
        raise ConversionError(
            f"{target}: the rows have no column {name!r}, or several; their columns are {found}: "
            "name the column to write"
        )
    column = rows.column(name)
    if column.null_count:
        raise ConversionError(
            f"{target}: the column {name!r} has {counted(column.null_count, 'null')}, which "
            "cannot be stored; fill nulls, or leave out these rows"
        )
    return column


def bytes_of(column: pa.Array, name: str, target: str) -> Values:
    """Return the values of a column of binary, or of strings as UTF-8."""
    type_ = column.type
    if pa.types.is_dictionary(type_):
        column, type_ = column.dictionary_decode(), type_.value_type
    is_large = pa.types.is_large_binary(type_) or pa.types.is_large_string(type_)
    if not (is_large or pa.types.is_binary(type_) or pa.types.is_string(type_)):
        if not (pa.types.is_fixed_size_binary(type_) or type_ in _VIEWS):
            raise ConversionError(
                f"{target}: the column {name!r} has the type {type_}; it must be binary or string"
            )
        column, is_large = column.cast(pa.large_binary()), True
    offset_type: npt.DTypeLike = np.int64 if is_large else np.int32
    _, ends, content = column.buffers()
    if not len(column):
        return Values(memoryview(b""), np.zeros(1, np.int64))
    offsets = np.frombuffer(ends, offset_type, len(column) + 1 + column.offset)[column.offset :]
    view = memoryview(b"") if content is None else memoryview(content).cast("B")
    return Values(view, offsets.astype(np.int64))


_VIEWS: tuple[Any, ...] = (pa.binary_view(), pa.string_view())


def in_batches(batches: Batches) -> Iterator[pa.RecordBatch]:
    """Yield record batches that have rows."""
    for rows in batches:
        some = rows.to_batches() if isinstance(rows, pa.Table) else [rows]
        yield from (batch for batch in some if batch.num_rows)
