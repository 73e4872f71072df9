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
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from ffrecord.aliases import Ints
from ffrecord.cluster.content import PendingArray, binary, refuse_larger
from ffrecord.dataset import codecs
from ffrecord.dataset.codecs import Decoder
from ffrecord.dataset.columns import Column
from ffrecord.dataset.spec import split_type
from ffrecord.errors import DecodeError
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
    one = _TYPES.get(type_, pa.binary())
    return pa.field(name, pa.list_(one) if is_sequence else one, metadata={TYPE_KEY: text})


def decoders_for(types: Iterable[str]) -> Mapping[str, Decoder]:
    """Return decoders of the types of a spec, whose values Arrow takes. Unknown types are bytes."""
    names = (split_type(text)[0] for text in types)
    return {name: _DECODERS.get(name, bytes) for name in names}


def begin_field(table: KeptTable, column: Column, rows: range) -> PendingArray:
    """Start to read a field of neighbouring datapoints; return a function that waits for it."""
    begin, end = column.spans(np.arange(rows.start, rows.stop), True)
    first, stop = (int(begin[0]), int(end[-1])) if len(rows) else (0, 0)
    pending: PendingBlock | None = None
    if stop > first:
        before = int(table.first[column.file])
        refuse_larger(table, np.arange(before + first, before + stop))
        pending = PendingBlock(table, range(before + first, before + stop))

    def array() -> pa.Array:
        values = _values(column, first, None if pending is None else pending.result())
        if not column.type.sequence:
            return values
        bounds = np.append(begin, stop) - first
        return pa.ListArray.from_arrays(pa.array(bounds.astype(np.int32)), values)

    return array


def row_sizes(table: KeptTable, column: Column, rows: range) -> Ints:
    """Return the bytes of a field on disk, for neighbouring datapoints."""
    begin, end = column.spans(np.arange(rows.start, rows.stop), True)
    offsets = table.offsets_of(column.file)
    sizes: Ints = offsets[end] - offsets[begin]
    return sizes


def _values(column: Column, first: int, block: Block | None) -> pa.Array:
    """Return the values of records, the first of which has the number `first`."""
    type_ = _TYPES.get(column.type.name, pa.binary())
    if block is None:
        return pa.array([], type_)
    array: pa.Array | None = None
    if column.type.compression is None:
        array = _WHOLE.get(column.type.name, binary)(block)
    if array is not None:
        return array
    ends = block.offsets.tolist()
    contents = [block.content[a:b] for a, b in pairwise(ends)]
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
