"""Counts of the readers' operations, in memory shared with the watching process.

A reader may be killed at any moment; its counts stay. Each reader writes only to its own rows.
Problems are written in full, one line of JSON each, to a file that all readers append to.
"""

from __future__ import annotations

import json
import math
import mmap
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

BUCKETS = 128
PER_DOUBLING = 4
"""Buckets of the histogram of times, for each doubling of the time."""
OPERATIONS, BYTES, MISMATCHES, FAILURES, LONGEST, FIRST_BUCKET = range(6)
NOT_AT_WORK = -1
MOST_TOLD = 50
"""Problems of one reader that are written in full; all are counted."""


@dataclass(frozen=True, slots=True)
class Problem:
    """An operation that went wrong."""

    seconds: float  # since the soak began
    reader: str
    kind: str
    what: str


class Ledger:
    """The counts of every reader, by kind of operation; made before the readers are forked."""

    def __init__(self, readers: int, kinds: Sequence[str], failures: Path) -> None:
        self.kinds = list(kinds)
        self.began = time.monotonic()
        self._failures = failures
        columns = FIRST_BUCKET + BUCKETS
        memory = mmap.mmap(-1, 8 * (readers * len(kinds) * columns + 2 * readers + 1))
        numbers = np.frombuffer(memory, np.int64)
        self._stop = numbers[:1]
        self._at_work = numbers[1 : 1 + 2 * readers].reshape(readers, 2)
        self._at_work[:, 0] = NOT_AT_WORK
        self._counts = numbers[1 + 2 * readers :].reshape(readers, len(kinds), columns)

    # ---- for the watching process -------------------------------------------------------

    def stop(self) -> None:
        """Let every reader end after its current operation."""
        self._stop[0] = 1

    def total(self, column: int) -> int:
        return int(self._counts[:, :, column].sum())

    def of_kind(self, kind: str, column: int) -> int:
        return int(self._counts[:, self.kinds.index(kind), column].sum())

    def of_reader(self, reader: int, column: int) -> int:
        return int(self._counts[reader, :, column].sum())

    def longest(self, kind: str) -> float:
        """Return the longest time of an operation, in seconds."""
        return float(self._counts[:, self.kinds.index(kind), LONGEST].max()) / 1e6

    def percentile(self, kind: str, share: float) -> float:
        """Return the seconds within which `share` of the operations ended, accurate to a fifth."""
        row: npt.NDArray[np.int64] = self._counts[:, self.kinds.index(kind), FIRST_BUCKET:].sum(0)
        if not row.sum():
            return 0.0
        bucket = int(np.searchsorted(row.cumsum(), share * row.sum()))
        return float(2 ** ((bucket + 1) / PER_DOUBLING)) / 1e6

    def at_work(self, reader: int) -> tuple[str, float] | None:
        """Return a reader's current operation and its seconds so far; None between operations."""
        kind, since = self._at_work[reader].tolist()
        if kind == NOT_AT_WORK:
            return None
        return self.kinds[kind], time.monotonic() - since / 1e6

    def forget(self, reader: int) -> None:
        """Clear the current operation of a reader that has ended."""
        self._at_work[reader, 0] = NOT_AT_WORK

    def problems(self) -> list[Problem]:
        """Return all problems in the order in which they happened."""
        try:
            lines = self._failures.read_text().splitlines()
        except FileNotFoundError:
            return []
        return [Problem(**json.loads(line)) for line in lines]

    # ---- for the readers -----------------------------------------------------------------

    @property
    def stopped(self) -> bool:
        return bool(self._stop[0])

    @contextmanager
    def timed(self, reader: int, kind: str) -> Iterator[None]:
        """Note the current operation, and count its time if it succeeds."""
        number = self.kinds.index(kind)
        began = time.monotonic()
        self._at_work[reader] = number, int(began * 1e6)
        try:
            yield
            taken = int((time.monotonic() - began) * 1e6)
            row = self._counts[reader, number]
            row[OPERATIONS] += 1
            row[LONGEST] = max(row[LONGEST], taken)
            bucket = int(math.log2(max(taken, 1)) * PER_DOUBLING)
            row[FIRST_BUCKET + min(bucket, BUCKETS - 1)] += 1
        finally:
            self._at_work[reader, 0] = NOT_AT_WORK

    def add_bytes(self, reader: int, kind: str, count: int) -> None:
        self._counts[reader, self.kinds.index(kind), BYTES] += count

    def tell(self, reader: int, name: str, kind: str, column: int, what: str) -> None:
        """Count a mismatch or a failure, and write it to the file of problems."""
        self._counts[reader, self.kinds.index(kind), column] += 1
        if self.of_reader(reader, MISMATCHES) + self.of_reader(reader, FAILURES) > MOST_TOLD:
            return
        problem = Problem(round(time.monotonic() - self.began, 2), name, kind, what)
        line = json.dumps(asdict(problem)) + "\n"
        fd = os.open(self._failures, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            os.write(fd, line.encode())  # one write: lines of several readers do not mix
        finally:
            os.close(fd)
