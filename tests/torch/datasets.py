"""Datasets and loaders that the tests of ffrecord.torch share. Importable, so workers find them."""

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

# Four workers on two cores are asked for on purpose; there is no accelerator to pin memory for.
TORCH_WARNINGS = [
    "ignore:This DataLoader will create [34] worker processes",
    "ignore:'pin_memory' argument is set as true but no accelerator",
]


def record(number: int) -> bytes:
    """A record that says which one it is, of a size of its own."""
    return struct.pack("<q", number) + bytes([number % 251]) * (37 * number % 500)


def write_numbers(path: Path, numbers: Sequence[int]) -> Path:
    return handmade.write_records(path, [record(number) for number in numbers])


def damaged(numbers: Path, copy: Path, number: int) -> Path:
    """A copy of a file of numbers in which one record is damaged."""
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
    """The original's older style: files for the base class, and `process`."""

    def process(self, indices: list[int], data: list[Bytes]) -> list[int]:
        assert len(indices) == len(data)
        return [number_of(each) for each in data]


class Reading(Dataset[int]):
    """The original's newer style: readers of one's own, `__getitem__` and `__len__`."""

    def __init__(self, fname: Path) -> None:
        self.reader = FileReader(fname)

    def __len__(self) -> int:
        return self.reader.n

    def __getitem__(self, indices: Any) -> Any:
        assert isinstance(indices, list)
        return [number_of(each) for each in self.reader.read(indices)]


class Both(Dataset[tuple[int, int]]):
    """A sample of each style."""

    def __init__(self, fname: Path) -> None:
        self.parts = [Processed(fname), Reading(fname)]

    def __len__(self) -> int:
        return len(self.parts[0])

    def __getitem__(self, indices: Any) -> Any:
        return list(zip(*(part[indices] for part in self.parts), strict=True))


class Noisy(Processed):
    """A random transform that draws from all three sources of random numbers."""

    def process(self, indices: list[int], data: list[Bytes]) -> list[Any]:
        return [
            (number, random.random(), float(np.random.rand()), float(torch.rand(())))
            for number in super().process(indices, data)
        ]


STYLES = [Processed, Reading]


def plain(batch: Any) -> Any:
    """A collated batch as lists and numbers."""
    if isinstance(batch, torch.Tensor):
        return batch.tolist()
    if isinstance(batch, (list, tuple)):
        return [plain(part) for part in batch]
    return batch


def batches(loader: Any) -> list[Any]:
    """What an epoch gives."""
    return [plain(batch) for batch in loader]


def as_list(samples: list[Any]) -> list[Any]:
    """A collate function that leaves the samples as they are."""
    return samples


def seeded(seed: int) -> torch.Generator:
    generator = torch.Generator()
    generator.manual_seed(seed)
    return generator


def shut_down(iterator: Any) -> None:
    """End an iterator's workers now. One that an exception keeps alive would be inherited by the
    workers of later tests, which torch then waits seconds for."""
    end = getattr(iterator, "_shutdown_workers", None)
    if end is not None:
        end()
