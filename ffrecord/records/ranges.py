"""Divide all records into ranges for workers, by size. No I/O."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ffrecord.aliases import Ints
from ffrecord.text import integer


@dataclass(frozen=True, slots=True)
class Extent:
    """Cumulative sizes of the records of all files of a reader.

    For each file, `offsets` has one entry per record, then the end of the last record. The records
    of file f are numbered from `first[f]` on. All files before f have `before[f]` bytes of records.
    """

    offsets: Ints
    first: Ints
    before: Ints

    @classmethod
    def of(cls, offsets: Ints, first: Ints) -> Extent:
        files = np.arange(len(first) - 1)
        sizes = offsets[first[1:] + files] - offsets[first[:-1] + files]
        # In a file without records, bytes after the header belong to no record.
        sizes = np.where(first[1:] > first[:-1], sizes, 0)
        return cls(offsets, first, np.concatenate([[0], np.cumsum(sizes)]))

    @property
    def records(self) -> int:
        return int(self.first[-1])

    def bytes_before(self, record: int) -> int:
        """Return the total size of all records before `record`."""
        if record >= self.records:
            return int(self.before[-1])
        file = int(self.first.searchsorted(record, side="right")) - 1
        start = int(self.offsets[self.first[file] + file])
        return int(self.before[file]) + int(self.offsets[record + file]) - start


def part(extent: Extent, k: int, n: int) -> range:
    """Return the k-th of `n` ranges that are about equal in bytes."""
    k, n = integer(k, "k"), integer(n, "n")
    if n < 1:
        raise ValueError(f"n must be 1 or more, not {n}")
    if not 0 <= k < n:
        raise IndexError(f"k={k} is out of range: with n={n} it must be from 0 to {n - 1}")
    return range(_border(extent, k, n), _border(extent, k + 1, n))


def tasks(
    extent: Extent, records: range, max_records: int | None, max_bytes: int | None
) -> Iterator[range]:
    """Yield `records` in ranges within both limits. A single larger record is a range by itself."""
    limits = [_limit("max_records", max_records), _limit("max_bytes", max_bytes)]
    return _tasks(extent, records.start, records.stop, *limits)


def _tasks(
    extent: Extent, start: int, count: int, most: int | None, most_bytes: int | None
) -> Iterator[range]:
    while start < count:
        stop = count if most is None else min(count, start + most)
        if most_bytes is not None:
            end = extent.bytes_before(start) + most_bytes
            fitting = bisect_right(range(stop + 1), end, lo=start, key=extent.bytes_before) - 1
            stop = max(start + 1, fitting)
        yield range(start, stop)
        start = stop


def _limit(name: str, value: int | None) -> int | None:
    if value is None:
        return None
    value = integer(value, name)
    if value < 1:
        raise ValueError(f"{name} must be 1 or more, not {value}")
    return value


def _border(extent: Extent, k: int, n: int) -> int:
    """Return the first record of the k-th range: the one that begins nearest to k/n of all bytes.

    Each record counts one byte more than its size, so that empty records are distributed too.
    """

    def weight(record: int) -> int:  # times n, to stay with whole numbers
        return n * (extent.bytes_before(record) + record)

    due = k * (extent.bytes_before(extent.records) + extent.records)
    after = bisect_left(range(extent.records + 1), due, key=weight)
    if after and due - weight(after - 1) < weight(after) - due:
        return after - 1
    return after
