"""Lengths of sequences and sizes of values, from the indexes alone: no value is read."""

from __future__ import annotations

import numpy as np

from ffrecord.aliases import Ints
from ffrecord.dataset.reader import DatasetReader
from ffrecord.dataset.sharded import ShardedDatasetReader


def lengths(reader: DatasetReader | ShardedDatasetReader, field: str, numbers: Ints) -> Ints:
    """Return the number of elements of a field, for some datapoints; 1 if it is no sequence."""
    return _measured(reader, field, numbers, sizes=False)


def stored_sizes(
    reader: DatasetReader | ShardedDatasetReader, field: str, numbers: Ints,
    first: int | None = None,
) -> Ints:  # fmt: skip
    """Return the stored size of a field in bytes, for some datapoints.

    Of a sequence, all elements count, or the `first` ones.
    """
    return _measured(reader, field, numbers, sizes=True, first=first)


def _measured(
    reader: DatasetReader | ShardedDatasetReader, field: str, numbers: Ints, *, sizes: bool,
    first: int | None = None,
) -> Ints:  # fmt: skip
    if isinstance(reader, DatasetReader):
        return _of_one(reader, field, numbers, sizes, first)
    found = np.zeros(len(numbers), np.int64)
    start = 0
    for part in reader.parts:
        rows = np.flatnonzero((numbers >= start) & (numbers < start + len(part)))
        found[rows] = _of_one(part, field, numbers[rows] - start, sizes, first)
        start += len(part)
    return found


def _of_one(
    reader: DatasetReader, field: str, numbers: Ints, sizes: bool, first: int | None
) -> Ints:
    column = reader._columns[field]
    begin, end = column.spans(numbers, True)
    counts = end - begin if first is None else np.minimum(end - begin, first)
    if not sizes or not counts.any():
        return counts
    assert reader._files is not None
    before = counts.cumsum() - counts
    records = np.repeat(begin - before, counts) + np.arange(counts.sum())
    until = np.concatenate([[0], reader._files.record_sizes(column.file, records).cumsum()])
    total: Ints = until[before + counts] - until[before]
    return total
