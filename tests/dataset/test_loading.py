"""Loaders of other packages accept a reader as their dataset."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ffrecord import DatasetReader, Interleave, ShardedDatasetReader, Transform, write_dataset
from ffrecord.dataset import ShardedDatasetWriter

COUNT = 40
SPEC = {"n": "int", "image": "png", "words": "utf8+zstd[]"}


def point(n: int) -> dict[str, Any]:
    return {"n": n, "image": np.full((4, 5, 3), n, np.uint8), "words": ["x"] * 3}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_dataset(tmp_path / "data", map(point, range(COUNT)), SPEC)
    with ShardedDatasetWriter(tmp_path / "shards", SPEC, shardlen=7) as writer:
        for n in range(COUNT):
            writer.append(point(n))
    return tmp_path


def seeded(datapoint: dict[str, Any], seed: int) -> dict[str, Any]:
    return {"n": datapoint["n"], "seed": seed % (1 << 31)}


@pytest.mark.parametrize("context", ["fork", pytest.param("spawn", marks=pytest.mark.long)])
def test_torchs_loader_with_two_workers_returns_every_datapoint(context: str, folder: Path) -> None:
    data = pytest.importorskip("torch.utils.data")
    reader = DatasetReader(folder / "data", cache_keys=("n",))
    assert reader[0]["n"] == 0  # used before the loader's workers start
    loader = data.DataLoader(
        reader, batch_size=8, num_workers=2, shuffle=True, multiprocessing_context=context
    )
    seen: list[int] = []
    for batch in loader:
        assert batch["image"].shape == (8, 4, 5, 3)
        assert (batch["image"][:, 0, 0, 0] == batch["n"]).all()
        seen += batch["n"].tolist()
    assert sorted(seen) == list(range(COUNT))


def test_torchs_loader_returns_the_same_seeds_with_any_number_of_workers(folder: Path) -> None:
    data = pytest.importorskip("torch.utils.data")
    transform = Transform(ShardedDatasetReader(folder / "shards"), seeded, seed=5)
    expected = [transform[k] for k in range(COUNT)]
    for workers in (0, 2):
        loader = data.DataLoader(transform, batch_size=None, num_workers=workers)
        assert [{name: int(value) for name, value in each.items()} for each in loader] == expected


def test_grain_takes_a_reader_as_its_source(folder: Path) -> None:
    grain = pytest.importorskip("grain")
    reader = Interleave([DatasetReader(folder / "data"), ShardedDatasetReader(folder / "shards")])
    dataset = grain.MapDataset.source(reader).shuffle(seed=1).map(lambda each: each["n"])
    assert sorted(dataset[k] for k in range(len(dataset))) == sorted([*range(COUNT)] * 2)
    alone = grain.MapDataset.source(DatasetReader(folder / "data"))
    batches = list(alone.map(lambda each: each["n"]).batch(8).to_iter_dataset())
    assert np.concatenate(batches).tolist() == list(range(COUNT))
