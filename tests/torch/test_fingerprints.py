"""A state of other data is refused: for all our readers, also inside torch's datasets."""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.utils.data as torchs
from torch.utils.data import Dataset as TorchDataset

from ffrecord import DatasetReader, DatasetWriter, pack_folder
from ffrecord.dataset import (
    Interleave,
    Mix,
    ShardedDatasetReader,
    ShardedDatasetWriter,
    Transform,
)
from ffrecord.errors import StateError
from ffrecord.torch import (
    ConcatDataset,
    DataLoader,
    Dataset,
    DistributedShuffleSampler,
    PackedFolderDataset,
    ShuffleSampler,
    Subset,
)
from tests.torch.datasets import Processed, write_numbers

COUNT = 12


class Holding(Dataset[Any]):
    """A dataset of ours with an attribute that has a fingerprint but is not a FileReader."""

    def __init__(self, inner: Any) -> None:
        self.inner = [inner]

    def __len__(self) -> int:
        return len(self.inner[0])

    def __getitem__(self, indices: Any) -> Any:
        return [self.inner[0][index] for index in indices]


class Knowing(TorchDataset[int]):
    """A foreign dataset with a fingerprint."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> int:
        return index

    def fingerprint(self) -> str:
        return self.name


def numbers(folder: Path, version: int) -> Processed:
    return Processed(write_numbers(folder / "numbers.ffr", range(version, version + COUNT)))


def fields(folder: Path, version: int) -> DatasetReader:
    with DatasetWriter(folder / "fields", {"value": "int"}) as writer:
        for value in range(version, version + COUNT):
            writer.append({"value": value})
    return DatasetReader(folder / "fields")


def shards(folder: Path, version: int) -> ShardedDatasetReader:
    with ShardedDatasetWriter(folder / "shards", {"value": "int"}, shardlen=5) as writer:
        for value in range(version, version + COUNT):
            writer.append({"value": value})
    return ShardedDatasetReader(folder / "shards")


def images(folder: Path, version: int) -> PackedFolderDataset:
    for number in range(COUNT):
        path = folder / "images" / "ab"[number % 2] / f"{number}.bin"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes([number, version]))
    for path in [folder / "images", *(folder / "images").rglob("*")]:
        os.utime(path, (1, 1))  # an archive stores times, which change its fingerprint
    pack_folder(folder / "images", folder / "images.ffr")
    return PackedFolderDataset(folder / "images.ffr", bytes, extensions=None)


def same(datapoint: Any, seed: int) -> Any:
    return datapoint


# Functions that make a dataset in a folder, with a version of its data. All versions have the same
# length.
MAKERS: dict[str, Callable[[Path, int], Any]] = {
    "Dataset": numbers,
    "DatasetReader": fields,
    "DatasetReader without its index": lambda folder, version: DatasetReader(
        fields(folder, version).directory, cache_index=False
    ),
    "MemoryDataset": lambda folder, version: fields(folder, version).to_memory(),
    "ShardedDatasetReader": shards,
    "shards in memory": lambda folder, version: shards(folder, version).to_memory(),
    "Transform": lambda folder, version: Transform(fields(folder, version), same),
    "Mix": lambda folder, version: Mix([fields(folder, version)] * 2, [1, 2]),
    "Interleave": lambda folder, version: Interleave([shards(folder, version)]),
    "PackedFolderDataset": images,
    "Subset": lambda folder, version: Subset(numbers(folder, version), range(5)),
    "Subset of a reader": lambda folder, version: Subset(fields(folder, version), range(5)),  # type: ignore[arg-type]
    "ConcatDataset": lambda folder, version: ConcatDataset(
        [numbers(folder, 0), fields(folder, version)]  # type: ignore[list-item]
    ),
    "attribute": lambda folder, version: Holding(fields(folder, version)),
    "torch's in an attribute": lambda folder, version: Holding(
        torchs.Subset(fields(folder, version), range(5))  # type: ignore[arg-type]
    ),
    "torch's Subset": lambda folder, version: torchs.Subset(numbers(folder, version), range(5)),
    "random_split": lambda folder, version: torchs.random_split(
        numbers(folder, version), [0.5, 0.5], torch.Generator().manual_seed(1)
    )[0],
    "random_split of a reader": lambda folder, version: torchs.random_split(
        fields(folder, version), [5, 7], torch.Generator().manual_seed(1)  # type: ignore[arg-type]
    )[0],
    "torch's ConcatDataset": lambda folder, version: torchs.ConcatDataset(
        [numbers(folder, version)]
    ),
    "StackDataset": lambda folder, version: torchs.StackDataset(numbers(folder, version)),
    "StackDataset by names": lambda folder, version: torchs.StackDataset(
        x=numbers(folder, version), y=Knowing("y")
    ),
    "a method": lambda folder, version: Knowing(str(version)),
}  # fmt: skip


@pytest.mark.parametrize("kind", MAKERS)
def test_a_state_of_other_data_of_the_same_length_is_refused(kind: str, tmp_path: Path) -> None:
    made = []
    for name, version in [("a", 0), ("again", 0), ("other", 1)]:
        (tmp_path / name).mkdir()
        made.append(MAKERS[kind](tmp_path / name, version))
    first, again, other = made
    assert len(first) == len(again) == len(other)
    loader = DataLoader(first, 2)
    next(iter(loader))
    DataLoader(again, 2).load_state_dict(loader.state_dict())
    with pytest.raises(StateError, match="other data"):
        DataLoader(other, 2).load_state_dict(loader.state_dict())
    for make in (ShuffleSampler, lambda data: DistributedShuffleSampler(data, 2, 0)):
        make(again).load_state_dict(make(first).state_dict())
        with pytest.raises(StateError, match="other data"):
            make(other).load_state_dict(make(first).state_dict())


def test_another_subset_of_the_same_data_is_other_data(tmp_path: Path) -> None:
    data = numbers(tmp_path, 0)
    loader = DataLoader(torchs.Subset(data, [0, 1, 2, 3]), 2)
    for other in ([3, 2, 1, 0], [0, 1, 2, 4]):
        with pytest.raises(StateError, match="other data"):
            DataLoader(torchs.Subset(data, other), 2).load_state_dict(loader.state_dict())


def test_fingerprints_depend_on_how_readers_are_combined(tmp_path: Path) -> None:
    data = fields(tmp_path, 0)
    made = [
        Mix([data] * 2, [1, 2], length=9),
        Mix([data] * 2, [2, 1], length=9),
        Mix([data] * 2, [1, 2], length=8),
        Interleave([data] * 2),
        Interleave([data] * 3),
    ]
    assert len({each.fingerprint for each in made}) == len(made)
    assert Mix([data] * 2, [2, 4], length=9).fingerprint == made[0].fingerprint
    # The function of a Transform and its seed are not part of the fingerprint.
    assert Transform(data, same, seed=3).fingerprint == data.fingerprint


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@pytest.mark.parametrize(
    "kind", ["DatasetReader", "random_split", "Subset of a reader", "attribute"]
)
def test_a_state_of_version_1_with_a_shorter_fingerprint_loads(kind: str, tmp_path: Path) -> None:
    """Version 1 used only the length of these datasets, alone or as a part of a fingerprint."""
    data = MAKERS[kind](tmp_path, 0)
    loader = DataLoader(data, 2, sampler=ShuffleSampler(data))
    iterator = iter(loader)
    next(iterator)
    state = loader.state_dict()
    rest = list(iterator)
    formerly = {
        "DatasetReader": "length 12",
        "random_split": "length 6",
        "Subset of a reader": sha256(
            f"length 12\n{sha256(struct.pack('<5q', *range(5)))}".encode()
        ),
        "attribute": sha256(b"12"),
    }[kind]
    names = ("begun", "epoch", "step", "step_size", "sampler_kind", "sampler_epoch", "seed")
    old = {name: state[name] for name in names} | {
        "version": 1, "fingerprint": formerly, "rng": None, "generator": None,
        "sampler": state["sampler"] | {"fingerprint": formerly},
    }  # fmt: skip
    second = DataLoader(data, 2, sampler=ShuffleSampler(data))
    second.load_state_dict(old)
    assert str(list(second)) == str(rest)
