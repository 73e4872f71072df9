"""Decide how much to read for one miss: the record alone, or the whole piece around it. No I/O.

Take a disk that does 200 requests and 150 MB a second. One request for 750 kB takes at most
10 ms, as long as two requests for 10 kB. So a miss on such a disk reads a piece whose bytes take at
most as long as the request itself, and later records come from memory. A miss then takes at most
about twice as long as reading the record alone, even if nothing else of the piece is ever used.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ffrecord.aliases import Ints
from ffrecord.text import human

SMALLEST = 16 << 10

# Pieces to choose from. Many disks take at most 254 pages in a request, so a piece of 1 MiB would
# need two of them whenever its pages are scattered in memory. 768 KiB always fit into one.
LONG = 768 << 10
SIZES = (*(SMALLEST << k for k in range(6)), LONG, 2 * LONG, 4 * LONG)

# A piece must hold at least this many reads. Otherwise joining neighbours (extents.GAP) gains more.
READS_IN_A_PIECE = 2

# The cost of a byte is measured by a trial, if one of the smallest pieces holds this many reads.
READS_IN_A_TRIAL = 4

# If half of the files is in pieces, half of the reads in random order should hit a piece. After
# JUDGED_AFTER expected hits, pieces are given up if less than LEAST_USE of these hits came.
JUDGED_AFTER = 64
LEAST_USE = 1 / 4

# When pieces have this share of all files' bytes, the rest is read in the background, in order.
MUCH_OF_A_FILE = 1 / 4


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds that a disk needs for a request, and for each byte of it.

    `guessed`: the cost of a byte was not measured yet.
    """

    request: float
    byte: float
    guessed: bool = False

    def of(self, requests: int, size: float) -> float:
        """Return the seconds for a number of requests that have `size` bytes in all."""
        return self.request * requests + self.byte * size


@dataclass(frozen=True, slots=True)
class Pattern:
    """The reads so far.

    `size` is the mean size of a read. `hits` is the number of reads in pieces that were requested
    before, and `expected` the number of hits that reads in random order would have had. `filled` is
    the number of bytes in all pieces.
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


def decide(
    costs: Costs | None, size: int, memory: int, pattern: Pattern, least_request: float = 0.0
) -> Decision:
    """Decide for files of `size` bytes in all, if `memory` bytes of files may be in memory.

    If a request takes less than `least_request` seconds, no pieces are read.
    """
    if costs is None:
        return Decision(0, "the disk has not been measured yet")
    if costs.request < least_request:
        return Decision(0, f"a request to this disk takes only {costs.request * 1e6:.0f} µs")
    piece = max((size for size in SIZES if size <= costs.request / costs.byte), default=0)
    is_trial = costs.guessed and piece < SMALLEST >= READS_IN_A_TRIAL * pattern.size
    if is_trial:
        piece = SMALLEST
    if piece < max(SMALLEST, READS_IN_A_PIECE * pattern.size):
        worth = human(round(costs.request / costs.byte))
        return Decision(0, f"a request to this disk takes only as long as reading {worth}")
    if size > memory:
        fits = f"{human(size)} of files do not fit into {human(memory)} of memory"
        return Decision(0, f"the disk is slow, but {fits}")
    if pattern.expected >= JUDGED_AFTER and pattern.hits < LEAST_USE * pattern.expected:
        return Decision(0, "the disk is slow, but the neighbours of records read are not requested")
    why = f"a request to this disk takes at least as long as reading {human(piece)}"
    if is_trial:
        why = f"the disk is measured with pieces of {human(piece)}"
    return Decision(piece, why, rest=pattern.filled >= MUCH_OF_A_FILE * size)


def extents(begin: Ints, end: Ints, piece: int, size: Ints | int) -> tuple[Ints, Ints]:
    """Return the ranges to read for misses of [begin, end) in files of `size` bytes.

    A range starts with the piece in which the read begins. It ends with that piece or with the
    read, whichever is later. So the range is never longer than a piece and the read together.
    """
    start = begin - begin % piece
    return start, np.minimum(np.maximum(start + piece, end), size)
