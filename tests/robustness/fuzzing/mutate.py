"""Mutate bytes at random: flip, cut, repeat, and insert numbers that often cause trouble.

The same seed gives the same bytes on every machine.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

NUMBERS = (
    0, 1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 24, 32, 40, 63, 64, 255, 256, 4095, 4096, 1 << 15, 1 << 16,
    0o040755, 0o100644, 0o120777, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 32, 1 << 40, 1 << 56,
    1 << 61, 1 << 62, (1 << 63) - 1, 1 << 63, (1 << 64) - 1,
)  # fmt: skip
LARGEST = 4096
"""The longest input, in bytes. Small files show nearly all problems; other tests cover the rest."""


class Mutator:
    """Mutates bytes in one to four places.

    Args:
        generator: source of random numbers.
        tokens: byte strings that have a meaning in the format.
        in_place: True to move bytes rarely, for formats with fixed positions.
    """

    def __init__(
        self, generator: random.Random, tokens: Sequence[bytes] = (), *, in_place: bool = False
    ) -> None:
        self._random = generator
        self._tokens = tokens
        self._over = 0.95 if in_place else 0.4  # how often a piece overwrites, not inserts
        self._still = [self._number, self._number, self._number, self._flip, self._byte, self._copy]
        self._still += [self._token] * (3 * bool(tokens))
        self._ways = [*self._still, self._delete, self._insert, self._cut]
        self._moving = 0.1 if in_place else 1.0

    def mutate(self, data: bytes, largest: int = LARGEST) -> bytes:
        changed = bytearray(data)
        ways = self._ways if self._random.random() < self._moving else self._still
        for _ in range(self._random.choice((1, 1, 1, 2, 2, 3, 4))):
            self._random.choice(ways)(changed)
        return bytes(changed[: max(largest, len(data))])

    def _at(self, data: bytearray, room: int = 0) -> int:
        return self._random.randrange(max(1, len(data) - room + 1))

    def _flip(self, data: bytearray) -> None:
        if data:
            data[self._at(data, 1)] ^= 1 << self._random.randrange(8)

    def _byte(self, data: bytearray) -> None:
        if data:
            data[self._at(data, 1)] = self._random.randrange(256)

    def _number(self, data: bytearray) -> None:
        """Replace a number, mostly at a multiple of its width, in either byte order."""
        width = self._random.choice((1, 2, 4, 4, 8, 8))
        if len(data) < width:
            return
        at = self._at(data, width)
        if self._random.random() < 0.8:
            at -= at % min(width, 4)
        order = "big" if self._random.random() < 0.1 else "little"
        how = self._random.random()
        present = int.from_bytes(data[at : at + width], order)  # type: ignore[arg-type]
        if how < 0.4:
            number = self._random.choice(NUMBERS)
        elif how < 0.8:
            number = present + self._random.choice((-8, -4, -2, -1, 1, 2, 4, 8, len(data)))
        else:
            other = self._at(data, width)
            number = int.from_bytes(data[other : other + width], order)  # type: ignore[arg-type]
        data[at : at + width] = (number % (1 << 8 * width)).to_bytes(width, order)  # type: ignore[arg-type]

    def _copy(self, data: bytearray) -> None:
        """Insert a copy of a piece, or overwrite another piece with it."""
        begin = self._at(data)
        piece = data[begin : begin + self._length()]
        at = self._at(data)
        over = len(piece) if self._random.random() < self._over else 0
        data[at : at + over] = piece

    def _delete(self, data: bytearray) -> None:
        at = self._at(data)
        del data[at : at + self._length()]

    def _insert(self, data: bytearray) -> None:
        at = self._at(data)
        data[at:at] = self._random.randbytes(self._length())

    def _cut(self, data: bytearray) -> None:
        if self._random.random() < 0.3:
            del data[self._at(data) :]

    def _token(self, data: bytearray) -> None:
        at = self._at(data)
        token = self._random.choice(self._tokens)
        over = len(token) if self._random.random() < self._over else 0
        data[at : at + over] = token

    def _length(self) -> int:
        return self._random.choice((1, 1, 2, 4, 8, 8, 12, 16, 24, 32, 40, 64, 512))
