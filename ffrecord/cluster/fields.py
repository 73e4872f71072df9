"""Fields of datasets as Arrow arrays.

| type of the field          | Arrow type |
| `int`                      | int64      |
| `float`                    | double     |
| `bool`                     | bool       |
| `utf8`, `json`             | string     |
| `bytes` and all other ones | binary, as the type's decoder takes it |

A sequence is a list of these. Values that are not compressed need no Python object each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from ffrecord.aliases import Bytes, Ints
from ffrecord.cluster import content
from ffrecord.cluster.content import binary
from ffrecord.dataset import codecs
from ffrecord.dataset.codecs import Decoder
from ffrecord.dataset.columns import Column
from ffrecord.dataset.spec import split_type
from ffrecord.errors import DecodeError, FFRecordError
from ffrecord.records.blocks import Block, PendingBlock
from ffrecord.records.table import KeptTable

TYPE_KEY = b"ffrecord.type"
"""Key in the metadata of a column, for the type of the field."""

_TYPES = {
    "int": pa.int64(), "float": pa.float64(), "bool": pa.bool_(), "utf8": pa.string(),
    "json": pa.string(),
}  # fmt: skip
_DECODERS: dict[str, Decoder] = {
    **{name: codecs.decoders[name] for name in _TYPES}, "json": codecs.decode_utf8,
}  # fmt: skip
_LONGEST_INT = 8


def arrow_field(name: str, text: str) -> pa.Field:
    """Return the column for a field of a type."""
    type_, is_sequence = split_type(text)
    one = _arrow_type(type_)
    return pa.field(name, pa.list_(one) if is_sequence else one, metadata={TYPE_KEY: text})


def decoders_for(types: Iterable[str]) -> Mapping[str, Decoder]:
    """Return decoders of the types of a spec, whose values Arrow takes. Unknown types are bytes."""
    names = (split_type(text)[0] for text in types)
    return {name: _DECODERS.get(name, bytes) for name in names}


class PendingField:
    """A field of neighbouring datapoints that is being read. Use it in one thread at a time.

    Args:
        table: the open files.
        column: the field.
        rows: numbers of datapoints, at least one.
    """

    def __init__(self, table: KeptTable, column: Column, rows: range) -> None:
        begin, end = column.spans(np.arange(rows.start, rows.stop), True)
        self._column = column
        self._first = int(begin[0])
        self._bounds = np.append(begin, end[-1]) - self._first
        self._rows = rows
        before = int(table.first[column.file]) + self._first
        records = range(before, before + int(self._bounds[-1]))
        if column.type.compression is None:
            self._refuse_larger(row_sizes(table, column, rows))
        self._pending = PendingBlock(table, records) if records else None

    @cached_property
    def _block(self) -> Block:
        if self._pending is None:
            return Block(np.empty(0, np.uint8), np.zeros(1, np.int64))
        return self._pending.result()

    def sizes(self) -> Ints:
        """Wait for the bytes; return the size of each datapoint when it is decompressed."""
        offsets = self._block.offsets
        if self._column.type.compression is not None:
            records = np.arange(self._first, self._first + len(offsets) - 1)
            unpacked = self._column.unpacked_sizes(records, _contents(self._block))
            offsets = np.append(0, np.cumsum(unpacked, dtype=np.int64))
        sizes: Ints = np.diff(offsets[self._bounds])
        self._refuse_larger(sizes)
        return sizes

    def array(self, rows: range) -> pa.Array:
        """Return some of the datapoints. `rows` counts from the first that is read."""
        bounds = self._bounds[rows.start : rows.stop + 1]
        first, stop = int(bounds[0]), int(bounds[-1])
        offsets = self._block.offsets[first : stop + 1]
        block = Block(self._block.content[offsets[0] : offsets[-1]], offsets - offsets[0])
        values = _values(self._column, self._first + first, block)
        if not self._column.type.sequence:
            return values
        return pa.ListArray.from_arrays(pa.array((bounds - first).astype(np.int32)), values)

    def _refuse_larger(self, sizes: Ints) -> None:
        """Raise an error for a datapoint that is too large for Arrow's types binary and string."""
        column = self._column
        larger = (sizes > content.MOST).nonzero()[0]
        if len(larger) and _arrow_type(column.type.name) in (pa.binary(), pa.string()):
            row = int(larger[0])
            raise FFRecordError(
                f"{column.path}: datapoint {self._rows[row]} has {sizes[row]:,} bytes in the "
                f"field {column.name!r}, and an Arrow array holds at most {content.MOST:,}; read "
                "this datapoint with DatasetReader, and the others without this field"
            )


def row_sizes(table: KeptTable, column: Column, rows: range) -> Ints:
    """Return the bytes of a field on disk, for neighbouring datapoints."""
    begin, end = column.spans(np.arange(rows.start, rows.stop), True)
    offsets = table.offsets_of(column.file)
    sizes: Ints = offsets[end] - offsets[begin]
    return sizes


def _arrow_type(name: str) -> pa.DataType:
    """Return the Arrow type of the values of a type."""
    return _TYPES.get(name, pa.binary())


def _contents(block: Block) -> list[Bytes]:
    return [block.content[a:b] for a, b in pairwise(block.offsets.tolist())]


def _values(column: Column, first: int, block: Block) -> pa.Array:
    """Return the values of records, the first of which has the number `first`."""
    type_ = _arrow_type(column.type.name)
    if len(block.offsets) == 1:
        return pa.array([], type_)
    array: pa.Array | None = None
    if column.type.compression is None:
        array = _WHOLE.get(column.type.name, binary)(block)
    if array is not None:
        return array
    contents = _contents(block)
    values = column.values(np.arange(first, first + len(contents)), contents)
    try:
        return pa.array(values, type_)
    except OverflowError as error:
        too_long = next(k for k, each in enumerate(values) if not -(1 << 63) <= each < 1 << 63)
        raise DecodeError(
            f"{column.path}: record {first + too_long} is an int of more than 64 bits, which no "
            f"Arrow column holds; read the field {column.name!r} with DatasetReader"
        ) from error


# Each of these returns None for values that it does not understand. Then the decoder of the type
# takes the records one by one, and names the first that is wrong.


def _texts(block: Block) -> pa.Array | None:
    array = binary(block, pa.string())
    try:
        array.validate(full=True)
    except pa.ArrowInvalid:
        return None
    return array


def _floats(block: Block) -> pa.Array | None:
    if (np.diff(block.offsets) != np.dtype(np.float64).itemsize).any():
        return None
    return pa.array(block.content.view("<f8").astype(np.float64))


def _bools(block: Block) -> pa.Array | None:
    if (np.diff(block.offsets) != 1).any() or (block.content > 1).any():
        return None
    return pa.array(block.content.view(np.bool_))


def _ints(block: Block) -> pa.Array | None:
    sizes = np.diff(block.offsets)
    if sizes.min() < 1 or sizes.max() > _LONGEST_INT:
        return None
    numbers = np.empty((len(sizes), _LONGEST_INT), np.uint8)
    for size in np.unique(sizes).tolist():
        rows = (sizes == size).nonzero()[0]
        some = block.content[block.offsets[rows][:, None] + np.arange(size)]
        numbers[rows, :size] = some
        # Two's complement: the bytes that are missing are those of the sign.
        numbers[rows, size:] = np.where(some[:, -1:] & 0x80, 0xFF, 0)
    return pa.array(numbers.view("<i8").reshape(-1).astype(np.int64, copy=False))


_WHOLE: dict[str, Callable[[Block], Any]] = {
    "int": _ints, "float": _floats, "bool": _bools, "utf8": _texts, "json": _texts,
}  # fmt: skip
