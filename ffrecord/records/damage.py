"""Find all damaged records of a reader, on all cores."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeAlias

from ffrecord.errors import FFRecordError
from ffrecord.machine import processors
from ffrecord.progress import bar
from ffrecord.records.reader import STEP_BYTES, STEP_RECORDS, FileReader

Damage: TypeAlias = "tuple[int, FFRecordError]"
"""The number of a record, and the error that reading it raises."""


def find_damage(
    reader: FileReader, shown: bool | None, advance: Callable[[int], None] | None = None
) -> Iterator[Damage]:
    """Yield the damaged records, in order. Draw a progress bar if `shown`, see `progress.bar`.

    `advance` is called with the number of records that were checked since the last call.

    Threads use all cores, because checksums release the GIL.
    """
    cores = processors.available()
    waiting: deque[tuple[int, Future[list[Damage]]]] = deque()
    with (
        ThreadPoolExecutor(cores) as pool,
        bar(shown=shown, total=reader.n, unit=" records", unit_scale=True, leave=False) as drawn,
    ):
        for records in reader.tasks(STEP_RECORDS, STEP_BYTES):
            damaged = pool.submit(reader.find_damaged, records.start, records.stop)
            waiting.append((len(records), damaged))
            while len(waiting) > 2 * cores:
                yield from _next(waiting, advance or drawn.update)
        while waiting:
            yield from _next(waiting, advance or drawn.update)


def _next(
    waiting: deque[tuple[int, Future[list[Damage]]]], advance: Callable[[int], None]
) -> list[Damage]:
    count, future = waiting.popleft()
    damage = future.result()
    advance(count)
    return damage
