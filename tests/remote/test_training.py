"""Training on remote data: what a shuffle costs, and the advice of the loader."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import pytest
from torch.utils import data

import ffrecord
from ffrecord import FileReader, RemoteShuffleWarning
from ffrecord.remote import meter
from ffrecord.torch import BlockShuffleSampler, DataLoader, Dataset, Subset, remote_shuffle
from tests.remote.conftest import COUNT, Site
from tests.support import handmade

LOCAL = {"fs": fsspec.filesystem("local")}


class Sizes(Dataset[int]):
    def process(self, indices: Any, data: Any) -> list[int]:
        return [len(record) for record in data]


@pytest.fixture(autouse=True)
def _not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_shuffle, "_told", False)


@pytest.fixture
def no_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let only neighbours share a request, as in files of many gigabytes."""
    for name in ("FIRST_GAP", "SMALLEST_GAP", "LARGEST_GAP"):
        monkeypatch.setattr(meter, name, 0)


def requests_of_an_epoch(dataset: Dataset[int], **how: Any) -> int:
    [reader] = dataset.ffreaders()
    before = reader.stats()["requests"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RemoteShuffleWarning)
        loader = DataLoader(dataset, batch_size=64, **how)
    assert sum(len(sizes) for sizes in loader) == len(dataset)
    return int(reader.stats()["requests"] - before)


def test_blocks_that_fill_a_batch_are_one_request_each(
    site: Site, tmp_path: Path, no_gap: None
) -> None:
    handmade.write_records(site.folder / "equal.ffr", [bytes(100)] * 1024)
    dataset = Sizes(f"{site.url}/equal.ffr")
    full = requests_of_an_epoch(dataset, shuffle=True)
    sampler = BlockShuffleSampler(dataset, block=8, window=8)
    blocks = requests_of_an_epoch(dataset, sampler=sampler)
    assert blocks <= 1024 // 8  # blocks that are neighbours share one
    assert 800 < full <= 1024
    assert requests_of_an_epoch(dataset, shuffle=False) == 1024 // 64


def far(folder: Path) -> Any:
    return Sizes(str(handmade.write_records(folder / "a.ffr", [b"a"] * 100)), **LOCAL)


def near(folder: Path) -> Any:
    return Sizes(handmade.write_records(folder / "a.ffr", [b"a"] * 100))


def opened_by_the_class(folder: Path) -> Any:
    class Own(Dataset[Any]):
        def __init__(self) -> None:
            path = handmade.write_records(folder / "a.ffr", [b"a"] * 100)
            self.reader = FileReader(str(path), **LOCAL)

        def __len__(self) -> int:
            return self.reader.n

        def __getitem__(self, indices: Any) -> Any:
            return self.reader.read(indices)

    return Own()


def points(folder: Path) -> Any:
    ffrecord.write_dataset(folder / "set", [{"n": n} for n in range(100)], progress=False)
    return ffrecord.DatasetReader(f"{folder}/set", **LOCAL)


def sharded(folder: Path) -> Any:
    with ffrecord.ShardedDatasetWriter(folder / "sharded", {"n": "int"}, shardlen=50) as writer:
        for n in range(100):
            writer.append({"n": n})
    return ffrecord.ShardedDatasetReader(f"{folder}/sharded", **LOCAL)


COMBINED: dict[str, Callable[[Any], Any]] = {
    "transform": lambda reader: ffrecord.Transform(reader, lambda point, _: point),
    "mix": lambda reader: ffrecord.Mix([reader, reader], [1, 1], length=100),
    "interleave": lambda reader: ffrecord.Interleave([reader]),
    "subset": lambda reader: data.Subset(reader, range(100)),
    "split": lambda reader: data.random_split(reader, [100, 0])[0],
    "concat": lambda reader: data.ConcatDataset([data.Subset(reader, range(100))]),
    "ours": lambda reader: Subset(COMBINED["transform"](reader), range(100)),
}


def combined(how: str) -> Callable[[Path], Any]:
    return lambda folder: COMBINED[how](points(folder))


@pytest.mark.parametrize(
    "make", [far, opened_by_the_class, points, sharded, *map(combined, COMBINED)]
)
def test_a_shuffled_loader_of_remote_data_suggests_a_cache_or_blocks_once(
    tmp_path: Path, no_gap: None, make: Callable[[Path], Any]
) -> None:
    dataset = make(tmp_path)
    with pytest.warns(RemoteShuffleWarning) as caught:
        DataLoader(dataset, 32, True)
    [message] = [str(each.message) for each in caught]
    assert "100 samples" in message
    assert "cache=FOLDER" in message
    assert "BlockShuffleSampler(dataset, block=8, window=4)" in message
    assert caught[0].filename == __file__
    DataLoader(dataset, 32, shuffle=True)  # a second warning would be an error


@pytest.mark.parametrize(
    ("batch_size", "block", "window"), [(8, 2, 4), (16, 4, 4), (20, 5, 4), (64, 8, 8)]
)
def test_a_batch_of_the_suggested_blocks_is_from_four_places_or_more(
    tmp_path: Path, no_gap: None, batch_size: int, block: int, window: int
) -> None:
    with pytest.warns(RemoteShuffleWarning, match=f"block={block}, window={window}"):
        DataLoader(far(tmp_path), batch_size, shuffle=True)


@pytest.mark.parametrize(
    ("make", "how"),
    [
        (near, {"batch_size": 32, "shuffle": True}),
        (far, {"batch_size": 32}),
        (far, {"batch_size": 1, "shuffle": True}),
        (far, {"batch_size": 7, "shuffle": True}),
        (far, {"batch_size": 32, "sampler": BlockShuffleSampler(100)}),
    ],
)
def test_other_loaders_get_no_advice(
    tmp_path: Path, no_gap: None, make: Callable[[Path], Any], how: dict[str, Any]
) -> None:
    DataLoader(make(tmp_path), **how)  # a warning would be an error


def test_there_is_no_advice_where_requests_join_the_blocks_of_a_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = far(tmp_path)
    size = (tmp_path / "a.ffr").stat().st_size
    monkeypatch.setattr(meter, "LARGEST_GAP", -(-size // 16))
    DataLoader(dataset, 32, shuffle=True)  # a warning would be an error
    monkeypatch.setattr(meter, "LARGEST_GAP", size // 17)
    with pytest.warns(RemoteShuffleWarning):
        DataLoader(dataset, 32, shuffle=True)


def test_the_epoch_of_a_remote_file_has_all_samples(site: Site, record_file: str) -> None:
    dataset = Sizes(f"{site.url}/{record_file}")
    sampler = BlockShuffleSampler(dataset, block=8, window=8)
    loader = DataLoader(dataset, batch_size=64, sampler=sampler, num_workers=2)
    assert sum(len(sizes) for sizes in loader) == COUNT
