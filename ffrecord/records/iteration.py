"""Iterate over records in order, reading one step ahead. Raise, skip or list damaged records.

For a growing file, `follow` waits for more records. It polls with growing pauses, which works on
every file system. inotify does not see writes from other machines.
"""

from __future__ import annotations

import time
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

import numpy as np

from ffrecord.aliases import Bytes
from ffrecord.errors import BadRecordWarning, ClosedError, FFRecordError, TimedOutError
from ffrecord.format.checksum import crc32
from ffrecord.records.batch import PendingRead
from ffrecord.records.table import Table

if TYPE_CHECKING:
    from ffrecord.records.reader import FileReader

SHORTEST_PAUSE, LONGEST_PAUSE = 0.001, 0.25  # seconds
STREAM_BYTES = 64 << 20
"""Size above which a record is checked in chunks, because it may not fit into memory."""


def in_order(reader: FileReader, steps: Iterable[range]) -> Iterator[Bytes]:
    """Yield each record of these ranges. Warn about each record that is skipped."""
    waiting: deque[tuple[PendingRead | None, range]] = deque()
    for records in steps:
        waiting.append((_begin(reader, records), records))
        if len(waiting) > 1:
            yield from _arrived(reader, *waiting.popleft())
    for each in waiting:
        yield from _arrived(reader, *each)


def _begin(reader: FileReader, records: range) -> PendingRead | None:
    """Start reading. If that fails, return None with `on_error="skip"`, otherwise raise.

    An empty record with a wrong checksum fails here.
    """
    try:
        return reader.read_async(records)
    except FFRecordError as error:
        if reader.on_error == "raise" or isinstance(error, ClosedError):
            raise
    return None


def _arrived(reader: FileReader, pending: PendingRead | None, records: range) -> Iterable[Bytes]:
    try:
        if pending is not None:
            return pending.result()
    except FFRecordError as error:
        if reader.on_error == "raise" or isinstance(error, ClosedError):
            raise
    return _whole_ones(reader, records)


def _whole_ones(reader: FileReader, records: range) -> Iterator[Bytes]:
    for record in records:
        try:
            found = reader.read_one(record)
        except ClosedError:
            raise
        except FFRecordError as error:
            warnings.warn(f"skipped a record: {error}", BadRecordWarning, stacklevel=3)
        else:
            yield found


def stream(table: Callable[[], Table], record: int, chunk: int) -> Iterator[Bytes]:
    """Yield a record of any size in chunks.

    `table` is called for each chunk, because the reader may meanwhile be closed, or may have
    replaced its table after the file has grown.
    """
    begins, ends, stored = table().entry(record)
    size, crc = ends - begins, 0
    for offset in range(0, size, chunk):
        begin, end = np.array([offset]), np.array([min(offset + chunk, size)])
        (piece,) = table().read_pieces(record, begin, end, None)
        crc = crc32(piece, crc)
        yield piece
    if crc != stored and table().check:
        raise table().damage(record, stored, crc)


def follow(
    reader: FileReader,
    steps: Callable[[int, int], Iterator[range]],
    start: int,
    timeout: float | None,
) -> Iterator[Bytes]:
    """Yield the records from `start` on, including records added later, until the file is finished.

    `steps` cuts the records from one number up to another into ranges.
    """
    while True:
        unfinished = reader.unfinished  # read before n: if it is False, n is final
        stop = reader.n
        yield from in_order(reader, steps(start, stop))
        start = stop
        if not unfinished:
            return
        _wait_for_more(reader, start, timeout)


def _wait_for_more(reader: FileReader, there: int, timeout: float | None) -> None:
    deadline = None if timeout is None else time.monotonic() + timeout
    pause = SHORTEST_PAUSE
    while True:
        reader.refresh()
        if reader.n > there or not reader.unfinished:
            return
        left = pause if deadline is None else deadline - time.monotonic()
        if left <= 0:
            raise TimedOutError(
                reader.fnames[0],
                f"no record was added within {timeout:g} s to this unfinished file, which has "
                f"{there} so far; if its writer is still running, continue with "
                f"iterate({there}, follow=True)",
            )
        time.sleep(min(pause, left))
        pause = min(2 * pause, LONGEST_PAUSE)


def find_damaged(reader: FileReader, records: range) -> list[tuple[int, FFRecordError]]:
    """Return the number and the error of each record in a range that cannot be read."""
    try:
        if len(records) == 1 and reader.record_size(records[0]) > STREAM_BYTES:
            deque(reader.stream(records[0]), maxlen=0)
        else:
            reader.read(records)
    except ClosedError:
        raise
    except FFRecordError as problem:
        one_by_one = _damaged_ones(reader, records) if len(records) > 1 else []
        # An error that does not repeat is still reported: the file cannot be trusted.
        return one_by_one or [(records[0], problem)]
    return []


def _damaged_ones(reader: FileReader, records: range) -> list[tuple[int, FFRecordError]]:
    damaged = []
    for record in records:
        try:
            reader.read_one(record)
        except FFRecordError as error:
            damaged.append((record, error))
    return damaged
