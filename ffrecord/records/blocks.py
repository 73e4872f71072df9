"""Neighbouring records as one block of memory, for callers that hand the block on as it is.

Records of a file are stored end to end, so a range of them is one range of bytes. `PendingBlock`
reads it as such, then verifies every record in it. There is no view for each record: Arrow, for
example, takes the block and the offsets.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from ffrecord.aliases import Bytes, Ints
from ffrecord.format.checksum import crc32
from ffrecord.records.batch import Batch
from ffrecord.records.table import KeptTable


@dataclass(frozen=True, slots=True)
class Block:
    """Verified records, end to end. The memory belongs to this block alone."""

    content: Bytes
    offsets: Ints
    """Where each record begins in `content`, then the end of the last."""


class PendingBlock:
    """A block that is being read. Use it in one thread at a time.

    Args:
        table: the open files.
        records: numbers of neighbouring records of one file, at least one.
    """

    def __init__(self, table: KeptTable, records: range) -> None:
        self._table = table
        self._records = records
        file = table.file_of(records[0])
        number = records.start - int(table.first[file])
        offsets = table.offsets_of(file)[number : number + len(records) + 1]
        self._offsets = offsets - offsets[0]
        several = len(table.first) > 2
        whole = Batch(
            table.require_open(), np.array([file]) if several else None, np.array([number]),
            offsets[:1], offsets[-1:], None, table.mode,
        )  # fmt: skip
        self._pending = whole.begin_read(everything=True)

    def result(self) -> Block:
        """Wait for the block, and return it when every record in it is verified."""
        (content,) = self._pending.result()
        block = Block(content, self._offsets)
        if self._table.check:
            self._verify(block)
        return block

    def _verify(self, block: Block) -> None:
        table, records, ends = self._table, self._records, block.offsets.tolist()
        stored = table.checksums[records.start : records.stop].tolist()
        memory = block.content.data
        computed = [crc32(memory[begin:end]) for begin, end in pairwise(ends)]
        if computed == stored:
            return
        wrong = [row for row, crc in enumerate(computed) if crc != stored[row]]
        batch = table.batch(np.array(records)[wrong])
        due = [stored[row] for row in wrong]
        # Over the network, this fetches the records once more, into the same memory.
        views = [block.content[ends[row] : ends[row + 1]] for row in wrong]
        rows = range(len(wrong))
        batch.compare(rows, due, batch.crcs(rows, views, due))
