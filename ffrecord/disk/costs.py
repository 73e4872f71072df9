"""Measure the costs of requests and bytes on each disk, from the reads that are made anyway.

A `Meter` belongs to a device and lives as long as the process. Forked processes share it. Its
callers report how long they waited for the disk. They leave out waits in which the program was
slow, not the disk.
"""

from __future__ import annotations

import contextlib
import math
from ctypes import Array, c_double, c_int64

from ffrecord.disk.policy import READS_IN_A_PIECE, READS_IN_A_TRIAL, Costs
from ffrecord.disk.shared import Shared

# Seconds of reading after which an observation has lost two thirds of its weight. Rate limits
# answer in waves of up to 0.1 s, so a shorter mean would follow the waves.
HORIZON = 0.15

# A disk that looks slow counts as slow only after this many seconds of waiting, because rate limits
# allow a burst of 0.1 s at first.
CERTAIN = 0.1
BURST = 4  # a new disk that becomes slower by this factor had a burst before
CHANGED = 2  # if a disk becomes slower by this factor, it is measured again
FIRST_READS = 256  # small reads after which a disk is no longer new
MOST_CAUTION = 0.5  # seconds of waiting after which a disk is no longer new, certain or not

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
SHORTEST = 0.05  # seconds of a sample; HORIZON for pieces that are read one by one
MANY = 1024  # pieces of a sample of any length
TRIALS = 4  # samples that are certain enough: a busy machine makes some of them too long
SAMPLES = 8  # latest samples that are kept

# A busy machine may have made all samples too long. Then no more pieces are read, and nothing would
# correct them. So after this many seconds of waiting for small reads, pieces are sampled again, and
# once more after twice the time, and so on.
SAMPLED_AGAIN_AFTER = 0.5

# Seconds of processor time that a request needs besides the time of the disk. Records of 1 kB took
# 12 µs each from a disk that needed 6 µs; cached ones take 1 µs.
PROCESSOR = 5e-6


class Meter(Shared):
    """Costs of one device. Threads and forked processes may share it."""

    _requests: float
    _seconds: float
    _read_seconds: float  # mean of small reads
    _read_bytes: float  # mean of small reads
    _request: float
    _seen: int  # small reads
    _slow_for: float  # seconds of waiting while the disk looked slow, less those when fast
    _cautious_for: float  # seconds of waiting while the disk was new
    _byte: float
    _samples: Array[c_double]  # costs of a byte; the oldest one is replaced
    _sampled: int  # samples so far
    _sampled_at: float  # mean seconds of small reads before the latest sample
    _pieces: int  # pieces, bytes and seconds of the next sample
    _piece_bytes: int
    _piece_seconds: float
    _shortest: float  # seconds of a sample
    _without_pieces: float  # seconds of waiting for small reads since the latest sample
    _patience: float  # such seconds after which pieces are sampled again

    _fields_ = (
        ("_requests", c_double), ("_seconds", c_double), ("_read_seconds", c_double),
        ("_read_bytes", c_double), ("_request", c_double), ("_seen", c_int64),
        ("_slow_for", c_double), ("_cautious_for", c_double), ("_byte", c_double),
        ("_samples", c_double * SAMPLES), ("_sampled", c_int64), ("_sampled_at", c_double),
        ("_pieces", c_int64), ("_piece_bytes", c_int64), ("_piece_seconds", c_double),
        ("_shortest", c_double), ("_without_pieces", c_double), ("_patience", c_double),
    )  # fmt: skip

    def __init__(self, shortest: float = SHORTEST) -> None:
        super().__init__()
        self._shortest = shortest
        self._byte = GUESSED_BYTE
        self._patience = SAMPLED_AGAIN_AFTER

    @property
    def costs(self) -> Costs | None:
        """The costs, or None as long as they are not certain."""
        if not self._request or 0 < self._slow_for < CERTAIN:
            return None
        byte = self._byte if self._sampled else max(self._byte, self._request / FIRST_PIECE)
        return Costs(self._request + PROCESSOR, byte, self.is_guess)

    @property
    def is_guess(self) -> bool:
        """True while the cost of a byte should be measured, and little else is uncertain."""
        return self._sampled < TRIALS and not self.is_new

    @property
    def is_new(self) -> bool:
        """True while little is known about the disk, so that little should be in flight."""
        if self._cautious_for > MOST_CAUTION:
            return False
        return self._seen < FIRST_READS or 0 < self._slow_for < CERTAIN

    def skip_reads(self, reads: int) -> None:
        """Count reads whose waiting time says nothing about the disk."""
        self._seen += reads

    def observe_reads(self, reads: int, size: int, seconds: float) -> None:
        """Learn from small reads that the disk answered while the caller waited for `seconds`."""
        if not size or seconds <= 0:
            return
        if self.is_new:
            self._cautious_for += seconds
        kept = math.exp(-seconds / HORIZON)
        if self._seen < FIRST_READS and seconds * self._requests > BURST * self._seconds * reads:
            kept = 0.0  # the burst that rate limits allow at first is over
        self._seen += reads
        self._requests = self._requests * kept + reads
        self._seconds = self._seconds * kept + seconds
        mean, length = self._seconds / self._requests, size / reads
        self._without_pieces += seconds if self._sampled else 0.0
        is_late = self._without_pieces > self._patience
        if self._sampled and (is_late or mean > CHANGED * self._sampled_at):
            self._sampled = 0  # they are of a burst, of an idle disk, or of a busy machine
            self._byte = GUESSED_BYTE
            self._without_pieces = 0.0
            self._patience *= 2 if is_late else 1
        if not self._sampled and length <= SMALL and mean > SLOW_REQUEST:
            self._byte = min(self._byte, GUESSED_SHARE * mean / length)
        self._read_seconds, self._read_bytes = mean, length
        self._request = self._without_bytes()
        # For long reads, a disk is slow only if pieces of several of them would pay.
        slow = max(SLOW_REQUEST, READS_IN_A_PIECE * self._byte * length)
        if self._request < slow:
            self._slow_for = max(0.0, self._slow_for - seconds)
        else:
            self._slow_for = min(self._slow_for + seconds, MOST_CAUTION)

    def observe_pieces(self, pieces: int, size: int, seconds: float) -> None:
        """Learn from pieces that the disk read while the caller waited for `seconds`."""
        if not size or seconds <= 0:
            return
        # Each field is read once: another process may set it to 0 at any time.
        pieces, size = self._pieces + pieces, self._piece_bytes + size
        seconds = self._piece_seconds + seconds
        if pieces < FEWEST or (seconds < self._shortest and pieces < MANY):
            self._pieces, self._piece_bytes, self._piece_seconds = pieces, size, seconds
            return
        each, length = seconds / pieces, size / pieces
        self._pieces = self._piece_bytes = 0
        self._piece_seconds = 0.0
        is_trial = READS_IN_A_TRIAL * self._read_bytes <= length <= SMALL
        if is_trial and each * self._read_bytes > self._read_seconds * length:
            # The pieces took longer than reading all their bytes by small reads. So those reads
            # were a burst, and the pieces show what a request costs now.
            self._requests, self._seconds = pieces, seconds
            self._read_seconds, self._read_bytes = each, length
            self._byte, self._sampled, self._slow_for = GUESSED_BYTE, 0, CERTAIN
            self._request = self._without_bytes()
            return
        self._sampled_at = self._read_seconds
        self._without_pieces = 0.0
        # A hard disk first seeks, then reads the bytes. A disk with rate limits waits for both
        # limits at once. So at least a quarter of the time counts for the bytes.
        sample = max(each - self._request - PROCESSOR, each / 4) / length
        sampled = self._sampled
        self._samples[sampled % SAMPLES] = sample
        # The lower quartile: a busy program makes a disk look slow, a burst makes it look fast.
        samples = sorted(self._samples[: sampled + 1])
        self._sampled = sampled + 1
        self._byte = samples[len(samples) // 4]
        self._request = min(self._without_bytes(), each)

    def _without_bytes(self) -> float:
        """Return the seconds of a small read without the time for its bytes."""
        mean = self._read_seconds
        return max(mean - self._byte * self._read_bytes, mean / 2)


def seconds_without_core() -> float:
    """Return the seconds that this thread was ready to run but had no core; 0 if unknown."""
    path = "/proc/thread-self/schedstat"
    with contextlib.suppress(OSError, ValueError, IndexError), open(path, "rb") as file:
        return int(file.read().split()[1]) / 1e9
    return 0.0


_meters: dict[tuple[int, bool], Meter] = {}


def meter_of(device: int, *, single: bool = False) -> Meter:
    """Return the meter of a device (`st_dev`); `single`: for reads that are made one by one."""
    return _meters.setdefault((device, single), Meter(HORIZON if single else SHORTEST))
