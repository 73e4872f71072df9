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
from ffrecord.disk.tally import TALLY
from ffrecord.records.batch import PendingRead
from ffrecord.records.table import SMALL_BATCH

# Number of batches kept until they are read. Older ones are dropped to free their memory. A loader
# reads up to 8 batches ahead, and each may have parts for several datasets of one reader.
MOST_KEPT = 32

# After this many batches in a row that the page cache had, batches are no longer read ahead: the
# copy would only be made earlier, and the processor's cache would lose it before it is used.
CACHED_BATCHES = 4


class ReadAhead:
    """Batches of one reader that are being read and were not requested yet.

    Any number of threads may use it: each step is a single dictionary operation.
    """

    def __init__(self) -> None:
        self.pending: dict[bytes, PendingRead] = {}  # key: the record numbers; oldest first
        self.hits = 0
        self._cached = 0  # latest batches in a row that the page cache had

    def add(self, records: Ints, begin: Callable[[], PendingRead]) -> None:
        """Start reading a batch, unless it is already pending or the page cache should have it.

        Only the newest `MOST_KEPT` batches are kept.
        """
        # The misses of small batches are not counted.
        if self._cached >= CACHED_BATCHES and len(records) > SMALL_BATCH:
            return
        key = records.tobytes()
        if key not in self.pending:
            missed = TALLY.missed
            self.pending[key] = begin()
            self.note(missed)
            # Iterate over a list: other threads may change the dictionary.
            for oldest in list(self.pending)[:-MOST_KEPT]:
                self.pending.pop(oldest, None)

    def note(self, missed: int) -> None:
        """Note that a batch was read. `missed` is the value of `TALLY.missed` before."""
        self._cached = self._cached + 1 if TALLY.missed == missed else 0

    def take(self, records: Ints) -> PendingRead | None:
        """Remove and return the batch of exactly these records in this order, or None."""
        found = self.pending.pop(records.tobytes(), None)
        if found is not None:
            self.hits += 1
        return found

    def drop(self) -> None:
        """Drop every batch."""
        self.pending.clear()
