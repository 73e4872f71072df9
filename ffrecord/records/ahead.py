"""Batches that `FileReader.prefetch` has started, kept for the `read` that asks for them.

`read_async` returns a handle, and iteration reads ahead with such handles. `prefetch` is for code
that only calls `reader.read(indices)`, for example the `__getitem__` of a user's dataset. Such code
often makes a new list of indices, so no handle can be passed through it. Therefore this module
finds a batch by its record numbers. The datasets of `ffrecord.torch` only announce which records
come next.
"""

from __future__ import annotations

from collections.abc import Callable

from ffrecord.aliases import Ints
from ffrecord.records.batch import PendingRead

MOST_KEPT = 8
"""Number of batches kept until they are read. Older ones are dropped to free their memory."""


class ReadAhead:
    """Batches of one reader that are being read and were not requested yet.

    Any number of threads may use it: each step is a single dictionary operation.
    """

    def __init__(self) -> None:
        self.pending: dict[bytes, PendingRead] = {}  # key: the record numbers; oldest first
        self.hits = 0

    def add(self, records: Ints, begin: Callable[[], PendingRead]) -> None:
        """Start reading a batch unless it is already pending. Keep only the newest `MOST_KEPT`."""
        key = records.tobytes()
        if key not in self.pending:
            self.pending[key] = begin()
            # Iterate over a list: other threads may change the dictionary.
            for oldest in list(self.pending)[:-MOST_KEPT]:
                self.pending.pop(oldest, None)

    def take(self, records: Ints) -> PendingRead | None:
        """Remove and return the batch of exactly these records in this order, or None."""
        found = self.pending.pop(records.tobytes(), None)
        if found is not None:
            self.hits += 1
        return found

    def drop(self) -> None:
        """Drop every batch."""
        self.pending.clear()
