"""Decide how much to read for one miss: the record alone, or the whole piece around it. No I/O.

A disk that does 200 requests a second, of any size, delivers 750 kB in the time that two requests
of 10 kB take. So a miss on such a disk reads a piece that costs about as much as the request
itself, and later records come from memory. A miss then costs at most twice the time of reading the
record alone, even if nothing else of the piece is ever used.
"""

from __future__ import annotations

from dataclasses import dataclass

from ffrecord.text import human

SMALLEST = 16 << 10
LARGEST = 4 << 20

# A piece must hold at least this many reads. Otherwise joining neighbours (extents.GAP) gains more.
READS_IN_A_PIECE = 2

# Reads in random order hit pieces as often as the filled part of the files suggests. If that would
# be this many hits by now, and less than this share of them came, the pattern is another one.
JUDGED_AFTER = 64
LEAST_USE = 1 / 4

# When so much of a file was read, the rest is read in the background, in order.
MOST_OF_A_FILE = 1 / 2


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds that a disk needs for a request, and for each byte of it."""

    request: float
    byte: float

    def of(self, requests: int, size: float) -> float:
        """Return the seconds for so many requests with so many bytes together."""
        return self.request * requests + self.byte * size


@dataclass(frozen=True, slots=True)
class Pattern:
    """The reads so far.

    `size` is the mean size of a read, `hits` the number of reads that were in memory, `expected`
    the number that random reads would have had, and `filled` the bytes of all pieces.
    """

    size: float
    hits: int = 0
    expected: float = 0.0
    filled: int = 0


@dataclass(frozen=True, slots=True)
class Decision:
    """Bytes to read for a miss (0: only the requested ones), and the reason in words."""

    piece: int
    why: str
    rest: bool = False
    """Read the rest of the files in the background."""


def decide(costs: Costs | None, size: int, memory: int, pattern: Pattern) -> Decision:
    """Decide for files of `size` bytes together, of which `memory` bytes may be kept in memory."""
    if costs is None:
        return Decision(0, "the disk has not been measured yet")
    piece = _power_of_two(costs.request / costs.byte)
    if piece < max(SMALLEST, READS_IN_A_PIECE * pattern.size):
        worth = human(round(costs.request / costs.byte))
        return Decision(0, f"a request to this disk costs as little as {worth} of data")
    if size > memory:
        fits = f"{human(size)} of files do not fit into {human(memory)} of memory"
        return Decision(0, f"the disk is slow, but {fits}")
    if pattern.expected >= JUDGED_AFTER and pattern.hits < LEAST_USE * pattern.expected:
        return Decision(0, "the disk is slow, but neighbours of records are not requested")
    why = f"a request to this disk costs as much as {human(piece)} of data"
    return Decision(piece, why, rest=pattern.filled >= MOST_OF_A_FILE * size)


def extent(begin: int, end: int, piece: int, size: int) -> tuple[int, int]:
    """Return the range to read for a miss of [begin, end) in a file of `size` bytes.

    The range ends with the piece in which the read begins, or with the read. So it is never longer
    than a piece and the read together.
    """
    start = begin - begin % piece
    return start, min(max(start + piece, end), size)


def _power_of_two(size: float) -> int:
    """Return the largest power of two that is not larger than `size`, at most LARGEST."""
    return 1 << (max(1, min(int(size), LARGEST)).bit_length() - 1)
