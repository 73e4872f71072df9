"""Stored states of an earlier version: loaders continue from them with the same batches.

`saved/states.json` has, for each kind of loader, a state from its second epoch and the SHA-256 of
the following batches, to the end of the third epoch. `saved/folder.ffr` is a packed folder of that
version. A newly packed folder would have other owners and times, and so another fingerprint.

To add a new kind of loader, add it to KINDS and run this module. States that are already stored are
kept:

    python -m tests.torch.test_saved_states
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import IterableDataset, RandomSampler, get_worker_info

import ffrecord
from ffrecord.torch import (
    ConcatDataset,
    DataLoader,
    DistributedShuffleSampler,
    PackedFolderDataset,
    ShuffleSampler,
    Subset,
)
from ffrecord.torch.dataloader import SkipableSampler
from tests.torch.datasets import N, Noisy, Processed, as_list, plain, seeded, write_numbers

SAVED = Path(__file__).with_name("saved")
STATES = SAVED / "states.json"
FOLDER = SAVED / "folder.ffr"
STOP = 2  # batches of the second epoch before the state

Maker = Callable[[Path], "DataLoader[Any]"]


class Counted(IterableDataset[Any]):
    """A stream without a state: a loader reads it again from the beginning."""

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        number, count = (0, 1) if info is None else (info.id, info.num_workers)
        # Without workers, random numbers come from the program's generator.
        yield from ((k, info and float(torch.rand(()))) for k in range(number, N, count))


class Counting(IterableDataset[Any]):
    """A stream with a state: its position and its epoch."""

    def __init__(self) -> None:
        self.at = 0
        self.epoch = 0

    def __iter__(self) -> Iterator[Any]:
        while self.at < N:
            self.at += 1
            yield self.at - 1, self.epoch
        self.at, self.epoch = 0, self.epoch + 1

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at, "epoch": self.epoch}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at, self.epoch = state["at"], state["epoch"]


def content(data: Any) -> int:
    """Return a number from a file's bytes. Workers import this function."""
    return int(np.asarray(data, np.int64).sum())


def folder() -> PackedFolderDataset:
    return PackedFolderDataset(FOLDER, content, extensions=None)


def numbered(place: Path) -> ffrecord.DatasetReader:
    if not (place / "dataset").exists():
        points = ({"n": k, "text": f"text {k}"} for k in range(N))
        ffrecord.write_dataset(place / "dataset", points, {"n": "int", "text": "utf8"})
    return ffrecord.DatasetReader(place / "dataset", ffrecord.decoders)


def changed(datapoint: dict[str, Any], seed: int) -> Any:
    return {**datapoint, "seed": seed}


def noisy(place: Path) -> Noisy:
    path = place / "numbers.ffr"
    return Noisy(path if path.exists() else write_numbers(path, range(N)))


def processed(place: Path) -> Processed:
    noisy(place)
    return Processed(place / "numbers.ffr")


def by(sampler: Callable[..., Any], dataset: Any, workers: int, *args: Any, **options: Any) -> Any:
    """Return a loader of batches of four in a sampler's order."""
    order = sampler(dataset, *args, **options)
    return DataLoader(dataset, 4, sampler=order, num_workers=workers, collate_fn=as_list)


def of(dataset: Any, **options: Any) -> Any:
    return DataLoader(dataset, 4, collate_fn=as_list, **options)


KINDS: dict[str, Maker] = {
    "ShuffleSampler": lambda place: by(ShuffleSampler, noisy(place), 0, seed=3),
    "ShuffleSampler, 2 workers": lambda place: by(ShuffleSampler, noisy(place), 2, seed=3),
    "one rank of two, 2 workers": lambda place: by(
        DistributedShuffleSampler, noisy(place), 2, num_replicas=2, rank=1, seed=3
    ),
    "shuffle": lambda place: of(noisy(place), shuffle=True, generator=seeded(3)),
    "shuffle, 2 workers": lambda place: of(
        noisy(place), shuffle=True, generator=seeded(3), num_workers=2
    ),
    "SkipableSampler": lambda place: DataLoader(
        processed(place),
        batch_sampler=SkipableSampler(RandomSampler(range(N), generator=seeded(3)), 4),
    ),
    "parts of several": lambda place: by(
        ShuffleSampler, ConcatDataset([processed(place), Subset(processed(place), [5, 3, 1])]), 0
    ),
    "PackedFolderDataset": lambda place: by(ShuffleSampler, folder(), 0, seed=3),
    "PackedFolderDataset, 2 workers": lambda place: by(ShuffleSampler, folder(), 2, seed=3),
    "DatasetReader": lambda place: by(ShuffleSampler, numbered(place), 0, seed=3),
    "DatasetReader, 2 workers": lambda place: of(numbered(place), num_workers=2),
    "to_memory": lambda place: by(ShuffleSampler, numbered(place).to_memory(), 0, seed=3),
    "Transform": lambda place: of(
        ffrecord.Transform(numbered(place), changed, seed=3), shuffle=True, generator=seeded(3)
    ),
    "Mix": lambda place: of(ffrecord.Mix([numbered(place), processed(place)], [0.7, 0.3])),
    "Interleave": lambda place: by(
        ShuffleSampler, ffrecord.Interleave([numbered(place), processed(place)]), 0, seed=3
    ),
    "a stream": lambda place: of(Counted()),
    "a stream, 2 workers": lambda place: of(Counted(), num_workers=2),
    "a stream with a state": lambda place: of(Counting()),
    "a stream with a state, 2 workers": lambda place: of(Counting(), num_workers=2),
}


def rest(loader: Any, iterator: Any = None) -> str:
    """Return the SHA-256 of the rest of this epoch's batches and all of the next epoch's.

    torch's global seed is set before the next epoch, because loaders without a generator use it.
    """
    found = [[plain(batch) for batch in (loader if iterator is None else iterator)]]
    torch.manual_seed(5)
    found.append([plain(batch) for batch in loader])
    return hashlib.sha256(json.dumps(found).encode()).hexdigest()


def saved(make: Maker, place: Path) -> dict[str, Any]:
    """Return a state and the hash of the batches after it. Check that a resumed loader agrees."""
    torch.manual_seed(3)
    loader = make(place)
    for _ in loader:
        pass
    iterator = iter(loader)
    for _ in range(STOP):
        next(iterator)
    state = json.loads(json.dumps(loader.state_dict()))
    found = rest(loader, iterator)
    again = make(place)
    again.load_state_dict(state)
    assert rest(again) == found
    return {"state": state, "rest": found}


@pytest.mark.parametrize("kind", KINDS)
def test_a_stored_state_continues_with_the_stored_batches(kind: str, tmp_path: Path) -> None:
    then = json.loads(STATES.read_text("utf-8"))[kind]
    torch.manual_seed(77)
    loader = KINDS[kind](tmp_path)
    loader.load_state_dict(then["state"])
    assert rest(loader) == then["rest"]


def test_most_stored_batches_differ() -> None:
    """Otherwise a loader that ignores its state could pass."""
    then = json.loads(STATES.read_text("utf-8"))
    assert then.keys() == KINDS.keys()
    assert len({each["rest"] for each in then.values()}) >= len(KINDS) - 4


def main() -> None:
    SAVED.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        if not FOLDER.exists():
            for number in range(N):
                path = place / "tree" / f"class {number % 3}" / f"file {number}"
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(bytes([number]) * number)
            ffrecord.pack_folder(place / "tree", FOLDER)
        there = json.loads(STATES.read_text("utf-8")) if STATES.exists() else {}
        made = {}
        for kind, make in KINDS.items():
            print(kind, flush=True)
            made[kind] = there.get(kind) or saved(make, place)
    STATES.write_text(json.dumps(made, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
