"""Work of a fixed cost that stands for decoding.

A real decoder takes milliseconds, more for larger pictures, and would hide the cost of reading.
"""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass

from ffrecord.aliases import Bytes
from ffrecord.format.checksum import crc32

TRIED = 500
TRIES = 4000
"""Half a second in all. Each try is so short that other programs do not disturb every one."""


@dataclass(frozen=True, slots=True)
class Decoder:
    """Uses every byte once, then repeats a computation `loops` times.

    Like Pillow's decoders, it releases the GIL. The computation needs next to no memory, so that
    its cost does not depend on the source of the bytes.
    """

    loops: int

    def __call__(self, data: bytes | Bytes) -> int:
        """Return the CRC-32 of the bytes, which shows that they were the right ones."""
        checksum: int = crc32(data)
        spend(self.loops)
        return checksum


def spend(loops: int) -> None:
    """Repeat a computation that releases the GIL."""
    hashlib.pbkdf2_hmac("sha256", b"", b"", loops)


def calibrate(microseconds: float) -> int:
    """Return the number of loops that take this long on this machine; called in a fresh process."""
    taken = []
    for _ in range(TRIES):
        began = time.perf_counter()
        spend(TRIED)
        taken.append(time.perf_counter() - began)
    return max(1, round(TRIED * microseconds / (min(taken) * 1e6)))
