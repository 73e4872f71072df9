"""Batches that `FileReader.prefetch` began, for the `read` that will ask for them.

`read_async` returns a handle, and iteration reads ahead with that. `prefetch` is for code that only
calls `reader.read(indices)`, as the `__getitem__` of a user's dataset does, often with a new list
that it makes of the given one: no handle can be passed through such code. So a batch is found by
the records that it is of, and by nothing else. This is the only place where that is done: datasets
of `ffrecord.torch` only pass on what will be read.
"""

from __future__ import annotations

from collections.abc import Callable

from ffrecord.aliases import Ints
from ffrecord.records.batch import PendingRead

MOST_KEPT = 8


class ReadAhead:
    """The batches of one reader that are on their way and were not asked for yet. Any number of
    threads may use it: each step is one operation of a dictionary."""

    def __init__(self) -> None:
        self.pending: dict[bytes, PendingRead] = {}  # by the record numbers; the oldest first
        self.hits = 0

    def add(self, records: Ints, begin: Callable[[], PendingRead]) -> None:
        """Begin to read a batch, unless it is on its way already. Only the last few are kept."""
        key = records.tobytes()
        if key not in self.pending:
            self.pending[key] = begin()
            for oldest in list(self.pending)[:-MOST_KEPT]:  # a list: other threads may be at it
                self.pending.pop(oldest, None)

    def take(self, records: Ints) -> PendingRead | None:
        """Hand over the batch of exactly these records, in this order; None if there is none."""
        found = self.pending.pop(records.tobytes(), None)
        if found is not None:
            self.hits += 1
        return found

    def drop(self) -> None:
        """Let go of every batch."""
        self.pending.clear()
