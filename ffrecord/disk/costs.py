"""Measure the costs of requests and bytes on each disk, from the reads that are made anyway.

A `Meter` belongs to a device and lives as long as the process. Its callers report how long they
waited for the disk. They leave out waits in which the program was slow, not the disk.
"""

from __future__ import annotations

import math
from collections import deque

from ffrecord.disk.policy import READS_IN_A_PIECE, Costs

# Seconds of reading after which an observation has lost two thirds of its weight. Long enough for
# a mean, short enough to forget the burst that rate limits allow at first (0.1 s of requests).
HORIZON = 0.05

# The same for reads that are made one by one. A rate limit answers 0.1 s worth of them at once, and
# then makes one of them wait for the rest of the 0.1 s.
SINGLE_HORIZON = 0.2

# A disk that looks slow counts as slow only after this many seconds of waiting.
CERTAIN = 2 * HORIZON
FIRST_READS = 256  # small reads after which a disk is no longer new

# Seconds for a byte until large requests are measured. 300 MB/s is about twice the bandwidth of a
# hard disk or a small cloud volume.
GUESSED_BYTE = 1 / 300e6

# A disk whose requests take longer than this may have much more bandwidth than small requests show.
# The guess is then that at most a quarter of a small request's time is spent on its bytes.
SLOW_REQUEST = 40e-6  # seconds
SMALL = 32 << 10  # bytes of the longest small request
GUESSED_SHARE = 1 / 4

FIRST_PIECE = 1 << 20  # the longest piece before the cost of bytes is measured
FEWEST = 4  # pieces in a sample
SAMPLES = 8  # latest samples that are kept


class Meter:
    """Costs of one device. Threads may share it: a lost observation does no harm."""

    def __init__(self, horizon: float = HORIZON) -> None:
        self._horizon = horizon
        self._requests = 0.0
        self._seconds = 0.0
        self._request = 0.0
        self._seen = 0  # small reads
        self._slow_for = 0.0  # seconds of waiting since the disk last looked fast
        self._byte = GUESSED_BYTE
        self._samples: deque[float] = deque(maxlen=SAMPLES)  # costs of a byte
        self._waited = [0, 0, 0.0]  # pieces, bytes and seconds of the next sample

    @property
    def costs(self) -> Costs | None:
        """The costs, or None as long as they are not certain."""
        if not self._request or 0 < self._slow_for < CERTAIN:
            return None
        byte = self._byte if self._samples else max(self._byte, self._request / FIRST_PIECE)
        return Costs(self._request, byte)

    @property
    def is_new(self) -> bool:
        """True while little is known about the disk, so that little should be in flight."""
        return self._seen < FIRST_READS or 0 < self._slow_for < CERTAIN

    def skip_reads(self, reads: int) -> None:
        """Count reads whose waiting time says nothing about the disk."""
        self._seen += reads

    def observe_reads(self, reads: int, size: int, seconds: float) -> None:
        """Learn from small reads that the disk answered while the caller waited for `seconds`."""
        if not size or seconds <= 0:
            return
        self._seen += reads
        kept = math.exp(-seconds / self._horizon)
        self._requests = self._requests * kept + reads
        self._seconds = self._seconds * kept + seconds
        mean, length = self._seconds / self._requests, size / reads
        if not self._samples and length <= SMALL and mean > SLOW_REQUEST:
            self._byte = min(self._byte, GUESSED_SHARE * mean / length)
        self._request = max(mean - self._byte * length, mean / 2)
        # For long reads, a disk is slow only if pieces of several of them would pay.
        slow = max(SLOW_REQUEST, READS_IN_A_PIECE * self._byte * length)
        self._slow_for = 0.0 if self._request < slow else self._slow_for + seconds

    def observe_pieces(self, pieces: int, size: int, seconds: float) -> None:
        """Learn from pieces that the disk read while the caller waited for `seconds`."""
        waited = self._waited
        waited[0], waited[1], waited[2] = waited[0] + pieces, waited[1] + size, waited[2] + seconds
        if waited[0] < FEWEST or waited[2] < self._horizon:
            return
        each, length = waited[2] / waited[0], waited[1] / waited[0]
        self._waited = [0, 0, 0.0]
        # A hard disk first seeks, then reads the bytes. A disk with rate limits waits for both
        # limits at once. So at least a quarter of the time counts for the bytes.
        self._samples.append(max(each - self._request, each / 4) / length)
        # The lower quartile: a busy program makes a disk look slow, a burst makes it look fast.
        self._byte = sorted(self._samples)[len(self._samples) // 4]
        self._request = min(self._request, each)


_meters: dict[tuple[int, bool], Meter] = {}


def meter_of(device: int, *, single: bool = False) -> Meter:
    """Return the meter of a device (`st_dev`); `single`: for reads that are made one by one."""
    return _meters.setdefault((device, single), Meter(SINGLE_HORIZON if single else HORIZON))
