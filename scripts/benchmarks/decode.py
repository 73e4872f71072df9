"""The work that stands for decoding: of a fixed cost, whatever is decoded.

A real decoder takes milliseconds, more for larger pictures, and would hide what reading costs.
"""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass

from ffrecord.aliases import Bytes
from ffrecord.format.checksum import crc32

TRIED = 500
TRIES = 4000
"""Half a second of tries, each short enough that some are not disturbed."""


@dataclass(frozen=True, slots=True)
class Decoder:
    """Uses every byte once, then computes for a while, `loops` times the same.

    Like Pillow's decoders it lets other threads run meanwhile. What it computes needs next to no
    memory, so that it costs the same wherever the bytes came from.
    """

    loops: int

    def __call__(self, data: bytes | Bytes) -> int:
        """A small result: the CRC-32, by which is known that these were the right bytes."""
        checksum: int = crc32(data)
        spend(self.loops)
        return checksum


def spend(loops: int) -> None:
    """Compute, without the GIL."""
    hashlib.pbkdf2_hmac("sha256", b"", b"", loops)


def calibrate(microseconds: float) -> int:
    """How many loops take so long on this machine; called in a fresh process."""
    taken = []
    for _ in range(TRIES):
        began = time.perf_counter()
        spend(TRIED)
        taken.append(time.perf_counter() - began)
    return max(1, round(TRIED * microseconds / (min(taken) * 1e6)))
