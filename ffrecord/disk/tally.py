"""Totals of this process's reads, from which callers decide how far to read ahead.

Threads share the totals: a lost count does no harm.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Tally:
    """Counts of batches' reads. Callers compare two values of a count; none is ever reset."""

    missed: int = 0  # reads that the page cache did not answer
    memory: int = 0  # bytes of memory for all reads
    waited: float = 0.0  # seconds in which a caller waited for a disk


TALLY = Tally()
