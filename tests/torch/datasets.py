"""Shared datasets and helpers for the tests of ffrecord.torch. Worker processes import them."""

from __future__ import annotations

import random
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from ffrecord import FileReader
from ffrecord.torch import Dataset
from tests.support import handmade

Bytes = npt.NDArray[np.uint8]
N = 23

# The tests start four workers on two cores on purpose, and pin memory without an accelerator.
TORCH_WARNINGS = [
    "ignore:This DataLoader will create [34] worker processes",
    "ignore:'pin_memory' argument is set as true but no accelerator",
]


def record(number: int) -> bytes:
    """Return a record with its number in it. Records differ in size."""
    return struct.pack("<q", number) + bytes([number % 251]) * (37 * number % 500)


def write_numbers(path: Path, numbers: Sequence[int]) -> Path:
    return handmade.write_records(path, [record(number) for number in numbers])


def damaged(numbers: Path, copy: Path, number: int) -> Path:
    """Copy a file of numbers and damage one record of the copy."""
    content = bytearray(numbers.read_bytes())
    content[content.index(record(number)) + 3] ^= 1
    copy.write_bytes(content)
    return copy


def number_of(data: Bytes) -> int:
    found = data.tobytes()
    number = int.from_bytes(found[:8], "little")
    assert found == record(number)
    return number


class Processed(Dataset[int]):
    """A dataset in the original's older style: the base class opens files, `process` decodes."""

    def process(self, indices: list[int], data: list[Bytes]) -> list[int]:
        assert len(indices) == len(data)
        return [number_of(each) for each in data]


class Reading(Dataset[int]):
    """A dataset in the original's newer style: its own reader, `__getitem__` and `__len__`."""

    def __init__(self, fname: Path) -> None:
        self.reader = FileReader(fname)

    def __len__(self) -> int:
        return self.reader.n

    def __getitem__(self, indices: Any) -> Any:
        assert isinstance(indices, list)
        return [number_of(each) for each in self.reader.read(indices)]


class Both(Dataset[tuple[int, int]]):
    """A dataset of pairs: the same sample read in each style."""

    def __init__(self, fname: Path) -> None:
        self.parts = [Processed(fname), Reading(fname)]

    def __len__(self) -> int:
        return len(self.parts[0])

    def __getitem__(self, indices: Any) -> Any:
        return list(zip(*(part[indices] for part in self.parts), strict=True))


class Noisy(Processed):
    """A dataset with a random transform that draws from Python, numpy and torch."""

    def process(self, indices: list[int], data: list[Bytes]) -> list[Any]:
        return [
            (number, random.random(), float(np.random.rand()), float(torch.rand(())))
            for number in super().process(indices, data)
        ]


STYLES = [Processed, Reading]


def plain(batch: Any) -> Any:
    """Return a collated batch as lists and numbers."""
    if isinstance(batch, torch.Tensor):
        return batch.tolist()
    if isinstance(batch, (list, tuple)):
        return [plain(part) for part in batch]
    return batch


def batches(loader: Any) -> list[Any]:
    """Return the batches of one epoch."""
    return [plain(batch) for batch in loader]


def as_list(samples: list[Any]) -> list[Any]:
    """Return the samples unchanged: a collate function."""
    return samples


def seeded(seed: int) -> torch.Generator:
    generator = torch.Generator()
    generator.manual_seed(seed)
    return generator


def shut_down(iterator: Any) -> None:
    """Stop an iterator's workers now.

    An exception can keep an iterator alive. Workers of later tests would inherit it, and torch
    would then wait seconds for them.
    """
    end = getattr(iterator, "_shutdown_workers", None)
    if end is not None:
        end()
