"""Measure the disk of one worker, and read whole pieces for misses if the disk is slow.

`ffrecord.disk.policy` decides, as it does for the library. Only the way of measuring differs. The
library keeps a disk busy, so it measures the time between completions. A mount has only as many
reads in flight as it has clients, and its worker has other work. So the worker measures the time in
which it had nothing to do but wait for its reads.

The loop calls all methods. Only `read` runs in threads.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, TypeAlias

from ffrecord.aliases import Bytes
from ffrecord.disk.costs import seconds_without_core
from ffrecord.disk.policy import READS_IN_A_PIECE
from ffrecord.disk.source import SourceSet

Facts: TypeAlias = "dict[str, Any]"
"""Facts about a disk, as in `Pieces.stats`."""

LEAST_REQUEST = 200e-6
"""Seconds for a request below which no pieces are read. Faster disks are faster than the mount, and
a single client waits about that long for each request to a local SSD."""

READS = 128
"""The disk is judged again after this many reads."""
SECONDS = 0.02
"""The disk is judged again after this much waiting, even if fewer reads have landed."""


class PieceReads:
    """The costs of one worker's disk, and the piece to read for a miss.

    Args:
        sources: the files of the archive.
        tell: called with `Pieces.stats` each time the disk was judged.
    """

    def __init__(self, sources: SourceSet, tell: Callable[[Facts], None]) -> None:
        self._sources = sources
        self._pieces = sources.pieces
        self._tell = tell
        self._piece = 0  # bytes to read for a miss; 0: only the requested ones
        self._without_core = 0.0
        self._begin()

    def _begin(self) -> None:
        """Begin to count until the disk is judged again."""
        self._reads = self._bytes = 0
        self._requests = self._piece_bytes = 0
        self._seconds = 0.0

    @property
    def is_slow(self) -> bool:
        return self._piece > 0

    def piece_for(self, length: int) -> int:
        """Return the size of the piece to read for a miss; 0 to read only the requested bytes."""
        return self._piece if READS_IN_A_PIECE * length <= self._piece else 0

    def hit(self) -> None:
        """Count a read that was answered from the page cache."""
        assert self._pieces is not None
        self._pieces.note(1, 0, judged=True)

    def read(self, file: int, begin: int, memory: Bytes, piece: int) -> None:
        """Fill `memory` from `begin` on. Let the disk read the piece around it into the cache."""
        assert self._pieces is not None
        self._pieces.note(0, 1, judged=True)
        with contextlib.suppress(MemoryError):  # the piece is not needed for the answer
            requests, size = self._pieces.fill_one(file, begin, len(memory), piece)
            self._requests += requests
            self._piece_bytes += size
        self._sources[file].read_into(memory, begin)

    def landed(self, length: int) -> None:
        """Count a read of requested bytes that has landed."""
        self._reads += 1
        self._bytes += length
        if self._reads >= READS:
            self._judge()

    def waited(self, seconds: float) -> None:
        """Count a wait for reads in flight."""
        self._seconds += seconds
        if self._seconds >= SECONDS and (self._reads or self._requests):
            self._judge()

    def _judge(self) -> None:
        """Measure the disk by the reads since it was last judged, and decide about pieces."""
        if self._pieces is None:
            self._begin()
            return
        reads, size, seconds = self._reads, self._bytes, self._seconds
        requests, piece_bytes = self._requests, self._piece_bytes
        self._begin()
        if seconds > LEAST_REQUEST * (reads + requests):
            # The disk may have been done while other processes had the cores.
            before, self._without_core = self._without_core, seconds_without_core()
            seconds -= self._without_core - before
        if requests:
            self._pieces.arrived(requests, piece_bytes, max(seconds, 0.0))
        else:
            self._pieces.meter.observe_reads(reads, size, seconds)
        length = size / reads if reads else piece_bytes / requests / READS_IN_A_PIECE
        self._piece = self._pieces.size_for(length, LEAST_REQUEST)
        self._tell(self._pieces.stats())
