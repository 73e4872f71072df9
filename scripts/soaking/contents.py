"""The bytes of every file and record, computed from its number and an offset; nothing is stored.

The bytes are the exclusive-or of two random tables whose lengths are prime. Together the tables
repeat after 5 × 10¹¹ bytes, and each number starts at another place. Bytes from another file, or
from another place in the same file, therefore differ from the expected ones. Computing the bytes is
fast enough to check every read.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Bytes: TypeAlias = npt.NDArray[np.uint8]

KIB, MIB = 1 << 10, 1 << 20
PERIODS = (1_048_583, 524_309)
STEPS = (617_411, 104_729)
"""Distance between the starting places of two consecutive numbers, in each table."""
PIECE = MIB


class Contents:
    """Computes the content of each file: the same in every process for the same seed."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        generator = np.random.default_rng(seed)
        self._tables = [
            np.resize(generator.integers(0, 256, period, np.uint8), period + PIECE)
            for period in PERIODS
        ]

    def bytes(self, number: int, offset: int, length: int) -> Bytes:
        """Return `length` bytes of a file, starting at `offset`."""
        found = np.empty(length, np.uint8)
        for at in range(0, length, PIECE):
            part = found[at : at + PIECE]
            one, two = (
                table[begin : begin + len(part)]
                for table, period, step in zip(self._tables, PERIODS, STEPS, strict=True)
                for begin in [(offset + at + number * step) % period]
            )
            np.bitwise_xor(one, two, out=part)
        return found


@dataclass(frozen=True, slots=True)
class File:
    """A file of the tree, or a record. Its number determines its content."""

    number: int
    path: str
    size: int

    @property
    def mtime(self) -> int:
        return 1_600_000_000 + self.number


@dataclass(frozen=True, slots=True)
class Amount:
    """The amount of data of one soak."""

    small: int
    middle: int
    big: int  # bytes
    records: int
    datapoints: int


FULL = Amount(small=3000, middle=12, big=96 * MIB, records=4000, datapoints=800)
LITTLE = Amount(small=400, middle=3, big=12 * MIB, records=800, datapoints=200)
FOLDERS = 20
RECORDS_FROM = 1_000_000
DATAPOINTS_FROM = 2_000_000
OTHERS_FROM = 3_000_000
"""First number of the files that are written while readers read."""


class Plan:
    """The files, links and records of a soak: the same for the same seed and amount."""

    def __init__(self, seed: int, amount: Amount) -> None:
        self.contents = Contents(seed)
        self.amount = amount
        chance = random.Random(seed)
        sizes = [_small_size(chance) for _ in range(amount.small)]
        sizes += [chance.randrange(2 * MIB, 8 * MIB) for _ in range(amount.middle)]
        sizes.append(amount.big)
        self.files = [
            File(number, f"folder {number % FOLDERS:02}/file {number:04}", size)
            for number, size in enumerate(sizes)
        ]
        self.big = self.files[-1]
        self.links = {f"links/{file.number}": f"../{file.path}" for file in self.files[::9]}
        self.records = [
            File(RECORDS_FROM + index, f"record {index}", _small_size(chance))
            for index in range(amount.records)
        ]

    @cached_property
    def listings(self) -> dict[str, list[str]]:
        """The sorted names in each folder."""
        found: dict[str, list[str]] = {}
        for path in [file.path for file in self.files] + list(self.links):
            folder, _, name = path.partition("/")
            found.setdefault(folder, []).append(name)
        return {"": sorted(found), **{folder: sorted(names) for folder, names in found.items()}}

    def content(self, file: File) -> Bytes:
        return self.contents.bytes(file.number, 0, file.size)

    def datapoint(self, index: int) -> dict[str, object]:
        """Return the typed fields of a datapoint, computed from the same bytes."""
        number = DATAPOINTS_FROM + index
        words = self.contents.bytes(number, 0, index % 7)
        return {
            "index": index,
            "data": self.contents.bytes(number, 100, 200 + 37 * (index % 300)).tobytes(),
            "words": [f"word {byte}" for byte in words],
        }


DATASET_SPEC = {"index": "int", "data": "bytes", "words": "utf8[]"}


def _small_size(chance: random.Random) -> int:
    """Draw a size: some are empty or tiny, some just above a block of 128 KiB."""
    drawn = chance.random()
    if drawn < 0.03:
        return 0
    if drawn < 0.06:
        return 128 * KIB + chance.randrange(-2, 3000)
    return chance.randrange(1, 40_000)
