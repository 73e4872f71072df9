"""Counts of what the workers of a mount have done, in memory that they share."""

from __future__ import annotations

import json
import mmap

NAMES = (
    "lookups",
    "attributes",
    "listings",
    "reads",
    "bytes_read",
    "cached_reads",
    "disk_reads",
    "read_ahead",
    "verified_blocks",
    "damaged_reads",
    "errors",
    "restarts",
)
(
    LOOKUPS, ATTRIBUTES, LISTINGS, READS, BYTES_READ, CACHED_READS, DISK_READS, READ_AHEAD,
    VERIFIED_BLOCKS, DAMAGED_READS, ERRORS, RESTARTS,
) = range(len(NAMES))  # fmt: skip


class Counters:
    """A row for each worker, which alone writes to it; made before the workers are forked."""

    def __init__(self, workers: int = 1) -> None:
        self._rows = workers
        self._all = memoryview(mmap.mmap(-1, 8 * workers * len(NAMES))).cast("q")

    def row(self, worker: int) -> memoryview:
        """What a worker counts in, by the numbers above."""
        return self._all[worker * len(NAMES) : (worker + 1) * len(NAMES)]

    def totals(self) -> dict[str, int]:
        """Of all workers, also of those that have ended."""
        return {
            name: sum(self._all[row * len(NAMES) + column] for row in range(self._rows))
            for column, name in enumerate(NAMES)
        }

    def json(self) -> bytes:
        return json.dumps(self.totals()).encode()
