"""Bytes of records as Arrow arrays, which use the memory that was read into.

Arrow buffers keep the block of memory that they view alive, so an array is valid for as long as
anything refers to it. A block returns to its pool after that.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from ffrecord.aliases import Ints
from ffrecord.errors import FFRecordError
from ffrecord.records.blocks import Block, PendingBlock
from ffrecord.records.table import KeptTable

MOST = (1 << 31) - 1
"""Bytes in an array of Arrow's type binary. Records are at most as large."""

PendingArray: TypeAlias = Callable[[], pa.Array]


def begin_binary(table: KeptTable, records: Ints) -> PendingArray:
    """Start to read records of one file; return a function that waits for their array.

    Neighbours are read as one block, which the array uses. Other records are copied once, to be end
    to end.
    """
    if not len(records):
        return lambda: pa.array([], pa.binary())
    refuse_larger(table, records)
    first, last = int(records[0]), int(records[-1])
    if last - first == len(records) - 1 and (records[1:] > records[:-1]).all():
        block = PendingBlock(table, range(first, last + 1))
        return lambda: binary(block.result())
    pending = table.batch(records).begin_read(everything=True)

    def gathered() -> pa.Array:
        pieces = pending.result()
        offsets = np.concatenate([[0], np.cumsum(list(map(len, pieces)))])
        return binary(Block(np.concatenate(pieces), offsets))

    return gathered


def binary(block: Block, type_: pa.DataType | None = None) -> pa.Array:
    """Return the records of a block as an array of binary, or of `string`."""
    offsets = pa.py_buffer(block.offsets.astype(np.int32))
    # A buffer holds the array that it was made of, and the array its block of memory.
    buffers = [None, offsets, pa.py_buffer(block.content)]
    return pa.Array.from_buffers(type_ or pa.binary(), len(block.offsets) - 1, buffers)


def refuse_larger(table: KeptTable, records: Ints) -> None:
    """Raise an error for a record that is too large for Arrow's type binary."""
    larger = (table.sizes(records) > MOST).nonzero()[0]
    if len(larger):
        record = int(records[larger[0]])
        raise FFRecordError(
            f"{table.name}: record {record} has {table.sizes(records[larger[:1]])[0]:,} bytes, and "
            f"an Arrow array holds at most {MOST:,}; read this record with FileReader.stream, and "
            "the others without the column of contents, or without this file"
        )
