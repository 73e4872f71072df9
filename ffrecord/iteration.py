"""Records in order, one step read while another is used; damaged ones raised, left out or told."""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from ffrecord.batch import PendingRead
from ffrecord.errors import BadRecordWarning, ClosedError, FFRecordError

Bytes: TypeAlias = npt.NDArray[np.uint8]

STREAM_BYTES = 64 << 20
"""A larger record is checked piece by piece: it may not fit into memory."""


class Readable(Protocol):
    """A reader, which has an opinion on damaged records."""

    on_error: str

    def read_one(self, index: int) -> Bytes: ...
    def read(self, indices: range) -> list[Bytes]: ...
    def stream(self, index: int) -> Iterator[Bytes]: ...
    def record_size(self, index: int) -> int: ...
    def read_async(self, indices: range) -> PendingRead: ...


def in_order(reader: Readable, steps: Iterable[range]) -> Iterator[Bytes]:
    """Each record of these ranges; one that is left out is warned of."""
    waiting: deque[tuple[PendingRead | None, range]] = deque()
    for records in steps:
        waiting.append((_set_out(reader, records), records))
        if len(waiting) > 1:
            yield from _arrived(reader, *waiting.popleft())
    for each in waiting:
        yield from _arrived(reader, *each)


def _set_out(reader: Readable, records: range) -> PendingRead | None:
    """None if it failed already: an empty record whose checksum is not that of nothing."""
    try:
        return reader.read_async(records)
    except FFRecordError as error:
        if reader.on_error == "raise" or isinstance(error, ClosedError):
            raise
    return None


def _arrived(reader: Readable, pending: PendingRead | None, records: range) -> Iterable[Bytes]:
    try:
        if pending is not None:
            return pending.result()
    except FFRecordError as error:
        if reader.on_error == "raise" or isinstance(error, ClosedError):
            raise
    return _whole_ones(reader, records)


def _whole_ones(reader: Readable, records: range) -> Iterator[Bytes]:
    for record in records:
        try:
            found = reader.read_one(record)
        except ClosedError:
            raise
        except FFRecordError as error:
            warnings.warn(f"left out: {error}", BadRecordWarning, stacklevel=3)
        else:
            yield found


def find_damaged(reader: Readable, records: range) -> list[tuple[int, FFRecordError]]:
    """The number of each record of a range that cannot be read, and its error."""
    try:
        if len(records) == 1 and reader.record_size(records[0]) > STREAM_BYTES:
            deque(reader.stream(records[0]), maxlen=0)
        else:
            reader.read(records)
    except ClosedError:
        raise
    except FFRecordError as problem:
        one_by_one = _damaged_ones(reader, records) if len(records) > 1 else []
        return one_by_one or [(records[0], problem)]  # it came and went: still not a file to trust
    return []


def _damaged_ones(reader: Readable, records: range) -> list[tuple[int, FFRecordError]]:
    damaged = []
    for record in records:
        try:
            reader.read_one(record)
        except FFRecordError as error:
            damaged.append((record, error))
    return damaged
