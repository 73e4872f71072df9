"""Lengths of sequences and sizes of values, from the indexes alone: no value is read."""

from __future__ import annotations

import numpy as np

from ffrecord.aliases import Ints
from ffrecord.dataset.reader import DatasetReader
from ffrecord.dataset.sharded import ShardedDatasetReader


def lengths(reader: DatasetReader | ShardedDatasetReader, field: str, numbers: Ints) -> Ints:
    """Return the number of elements of a field, for some datapoints; 1 if it is no sequence."""
    return _measured(reader, field, numbers, sizes=False)


def stored_sizes(reader: DatasetReader | ShardedDatasetReader, field: str, numbers: Ints) -> Ints:
    """Return the stored size of a field in bytes, for some datapoints."""
    return _measured(reader, field, numbers, sizes=True)


def _measured(
    reader: DatasetReader | ShardedDatasetReader, field: str, numbers: Ints, *, sizes: bool
) -> Ints:
    if isinstance(reader, DatasetReader):
        return _of_one(reader, field, numbers, sizes)
    found = np.zeros(len(numbers), np.int64)
    start = 0
    for part in reader.parts:
        rows = np.flatnonzero((numbers >= start) & (numbers < start + len(part)))
        found[rows] = _of_one(part, field, numbers[rows] - start, sizes)
        start += len(part)
    return found


def _of_one(reader: DatasetReader, field: str, numbers: Ints, sizes: bool) -> Ints:
    column = reader._columns[field]
    begin, end = column.spans(numbers, True)
    if not sizes or not len(numbers):
        return end - begin
    assert reader._files is not None
    each = reader._files.record_sizes(column.file, column.elements)
    # Sums of neighbours: a sequence's elements are neighbouring records.
    before = np.concatenate([[0], np.cumsum(each)])
    total: Ints = before[end] - before[begin]
    return total
