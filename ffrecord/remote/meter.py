"""Measure a connection, and decide which neighbours to read with one request. No I/O.

Two ranges are read with one request if the hole between them takes less time than a request of its
own. With many requests in flight, a request occupies one of the slots for a round trip. In that
time the slot could have received `latency × bandwidth of a slot` bytes. That is the gap.
"""

from __future__ import annotations

FIRST_GAP = 64 << 10
"""Gap while nothing has been measured: 20 ms at 3 MB/s for each request in flight."""

SMALLEST_GAP, LARGEST_GAP = 16 << 10, 256 << 10
"""Bounds of the gap. Below the first, joining costs nothing. Above the second, a batch of random
records would fetch much more than it returns, and many providers charge for bytes."""

SMALL = 64 << 10
"""Answers of at most this many bytes arrive at once, so they tell nothing about the bandwidth."""

WEIGHT = 1 / 32  # of a new measurement of the bandwidth
RISE = 1.02  # how fast a smallest latency is forgotten, for each answer


class Meter:
    """Latency of a request and bandwidth of one slot, measured by the answers."""

    def __init__(self) -> None:
        self.latency = 0.0  # seconds; 0: not known yet
        self.bandwidth = 0.0  # bytes per second; 0: not known yet

    def note(self, length: int, waited: float, seconds: float) -> None:
        """Take note of an answer of `length` bytes.

        It took `seconds`, and the first byte came after `waited`. If that is not known, `waited` is
        0, and only short answers show the latency.
        """
        if seconds <= 0:
            return
        if waited or length <= SMALL:
            found = waited or seconds
            # The smallest is kept: a first request also connects, and others wait for the server.
            self.latency = min(found, self.latency * RISE) if self.latency else found
        if length > SMALL:
            body = max(seconds - (waited or min(self.latency, seconds / 2)), 1e-6)
            rate = length / body
            self.bandwidth += (rate - self.bandwidth) * (WEIGHT if self.bandwidth else 1)

    @property
    def gap(self) -> int:
        """Bytes between two ranges up to which one request reads both."""
        if not (self.latency and self.bandwidth):
            return FIRST_GAP
        return round(min(LARGEST_GAP, max(SMALLEST_GAP, self.latency * self.bandwidth)))
