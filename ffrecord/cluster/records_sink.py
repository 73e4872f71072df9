"""The sink for records: one column becomes the records of a folder of record files."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa

from ffrecord.archive.packer import header_crc
from ffrecord.cluster.columns import Values, bytes_of, column_of
from ffrecord.cluster.sink import Sink
from ffrecord.cluster.source import CONTENT
from ffrecord.format.checksum import crc32
from ffrecord.plan.values import WritePlan
from ffrecord.plan.work import Receipt
from ffrecord.records.writer import FileWriter


@dataclass(frozen=True)
class RecordsSink(Sink):
    """One column becomes records."""

    column: str = CONTENT

    def _write_shard(
        self, task: int, schema: pa.Schema, batches: Iterator[pa.RecordBatch], path: str
    ) -> Receipt:
        with FileWriter(path) as writer:
            for batch in batches:
                column = column_of(batch, self.column, self.target)
                values = bytes_of(column, self.column, self.target)
                append_values(writer, values, list(map(crc32, values.each())))
        return file_receipt(task, path, writer.count, self._checksums(path))

    def _require_spec(self) -> None:
        pass  # records have no types

    def _checksums(self, path: str) -> dict[str, int]:
        return {"": header_crc(path)}

    def _finish(self, plan: WritePlan, folder: str, receipts: Mapping[int, Receipt]) -> None:
        if not receipts:  # a reader needs a file
            with FileWriter(os.path.join(folder, plan.shard_name(0)), 0):
                pass


def append_values(writer: FileWriter, values: Values, checksums: list[int]) -> None:
    """Write values as records, end to end as they are."""
    offsets = values.offsets
    writer.append(values.content[int(offsets[0]) : int(offsets[-1])])
    writer.seal((offsets[1:] - offsets[:-1]).tolist(), checksums)


def file_receipt(
    task: int,
    path: str,
    count: int,
    checksums: dict[str, int],
    details: dict[str, object] | None = None,
) -> Receipt:
    """Return the receipt of a shard that is one file."""
    size = os.stat(path).st_size
    return Receipt(task, os.path.basename(path), count, size, checksums, details or {})
