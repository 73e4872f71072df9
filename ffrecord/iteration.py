"""Records in order, one step read while another is used; damaged ones are raised or left out."""

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


class Readable(Protocol):
    """A reader, which has an opinion on damaged records."""

    on_error: str

    def read_one(self, index: int) -> Bytes: ...
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
