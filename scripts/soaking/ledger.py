"""What the readers have done, in memory that they share with whoever watches them.

A reader may be killed at any moment: what it has counted stays. Each writes to its own rows only.
What goes wrong is told in full, a line of JSON for each, in a file that all append to.
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
OPERATIONS, BYTES, MISMATCHES, FAILURES, LONGEST, FIRST_BUCKET = range(6)
NOT_AT_WORK = -1
MOST_TOLD = 50
"""Failures of one reader that are told in full; all are counted."""


@dataclass(frozen=True, slots=True)
class Problem:
    """A read that went wrong."""

    seconds: float  # since the soak began
    reader: str
    kind: str
    what: str


class Ledger:
    """Counts of every reader by kind of operation; made before the readers are forked."""

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

    # ---- those who watch -----------------------------------------------------------------

    def stop(self) -> None:
        """Let every reader end after what it is at."""
        self._stop[0] = 1

    def total(self, column: int) -> int:
        return int(self._counts[:, :, column].sum())

    def of_kind(self, kind: str, column: int) -> int:
        return int(self._counts[:, self.kinds.index(kind), column].sum())

    def of_reader(self, reader: int, column: int) -> int:
        return int(self._counts[reader, :, column].sum())

    def longest(self, kind: str) -> float:
        """Seconds."""
        return float(self._counts[:, self.kinds.index(kind), LONGEST].max()) / 1e6

    def percentile(self, kind: str, share: float) -> float:
        """Seconds within which that share of the operations was done, to a fifth or so."""
        row: npt.NDArray[np.int64] = self._counts[:, self.kinds.index(kind), FIRST_BUCKET:].sum(0)
        if not row.sum():
            return 0.0
        bucket = int(np.searchsorted(row.cumsum(), share * row.sum()))
        return float(2 ** ((bucket + 1) / PER_DOUBLING)) / 1e6

    def at_work(self, reader: int) -> tuple[str, float] | None:
        """What a reader is doing, and for how many seconds; None between two operations."""
        kind, since = self._at_work[reader].tolist()
        if kind == NOT_AT_WORK:
            return None
        return self.kinds[kind], time.monotonic() - since / 1e6

    def forget(self, reader: int) -> None:
        """A reader was killed in the middle of something."""
        self._at_work[reader, 0] = NOT_AT_WORK

    def problems(self) -> list[Problem]:
        """In the order in which they happened."""
        try:
            lines = self._failures.read_text().splitlines()
        except FileNotFoundError:
            return []
        return [Problem(**json.loads(line)) for line in lines]

    # ---- readers -------------------------------------------------------------------------

    @property
    def stopped(self) -> bool:
        return bool(self._stop[0])

    @contextmanager
    def timed(self, reader: int, kind: str) -> Iterator[None]:
        """Note what is done, and how long it took if nothing is raised."""
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
        """Count a mismatch or a failure, and say what it was."""
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
