"""Saved states of loaders: an epoch continues where it was saved, with every kind of order."""

from __future__ import annotations

import hashlib
import io
import json
import pickle
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    TensorDataset,
    WeightedRandomSampler,
)
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Dataset as TorchDataset

from ffrecord.errors import StateError
from ffrecord.torch import (
    BlockShuffleSampler,
    DataLoader,
    DistributedShuffleSampler,
    ShuffleSampler,
)
from ffrecord.torch.randomness import decoded
from tests.torch.datasets import (
    N,
    Noisy,
    Processed,
    as_list,
    batches,
    plain,
    seeded,
    shut_down,
    write_numbers,
)

STORED = Path(__file__).with_name("states_of_version_1.json")
SIZE = 4
STEPS = -(-N // SIZE)

Options = dict[str, Any]
Kind = Callable[[Any, int], Options]


class Pairs(BatchSampler):
    """A batch sampler of a kind unknown to the loader."""


WEIGHTS = list(range(1, N + 1))

# Options that choose a loader's order. The second argument seeds the generator, if there is one.
KINDS: dict[str, Kind] = {
    "sequential": lambda data, seed: {"sampler": SequentialSampler(data)},
    "shuffle": lambda data, seed: {"shuffle": True},
    "shuffle with a generator": lambda data, seed: {"shuffle": True, "generator": seeded(seed)},
    "sequential with a generator": lambda data, seed: {"generator": seeded(seed)},
    "replacement": lambda data, seed: {
        "sampler": RandomSampler(data, True, 2 * N, generator=seeded(seed))
    },
    "weighted": lambda data, seed: {"sampler": WeightedRandomSampler(WEIGHTS, N)},
    "weighted with a generator": lambda data, seed: {
        "sampler": WeightedRandomSampler(WEIGHTS, N, generator=seeded(seed))
    },
    "ShuffleSampler": lambda data, seed: {"sampler": ShuffleSampler(data, seed=seed)},
    "ShuffleSampler and a generator": lambda data, seed: {
        "sampler": ShuffleSampler(data, seed=seed),
        "generator": seeded(seed),
    },
    "DistributedSampler": lambda data, seed: {"sampler": DistributedSampler(data, 2, 1, seed=7)},
    "BlockShuffleSampler": lambda data, seed: {
        "sampler": BlockShuffleSampler(data, block=4, window=3, seed=seed)
    },
    "DistributedShuffleSampler": lambda data, seed: {
        "sampler": DistributedShuffleSampler(data, 2, 1, seed=seed)
    },
}
BATCHED: dict[str, Kind] = {
    "a batch sampler of another kind": lambda data, seed: {
        "batch_sampler": Pairs(RandomSampler(data, generator=seeded(seed)), 4, False)
    },
    "a batch sampler with a ShuffleSampler": lambda data, seed: {
        "batch_sampler": Pairs(ShuffleSampler(data, seed=7), 4, False)
    },
}


def made(dataset: Any, kind: str, seed: int, workers: int = 0, **options: Any) -> DataLoader[Any]:
    if kind in BATCHED:
        return DataLoader(dataset, num_workers=workers, **BATCHED[kind](dataset, seed), **options)
    return DataLoader(dataset, SIZE, num_workers=workers, **KINDS[kind](dataset, seed), **options)


def take(iterator: Iterator[Any], count: int) -> list[Any]:
    return [plain(next(iterator)) for _ in range(count)]


# ---- in the middle of an epoch -----------------------------------------------------------


@pytest.mark.parametrize("kind", [*KINDS, *BATCHED])
def test_a_loader_stopped_after_any_batch_continues_with_the_next(kind: str, numbers: Path) -> None:
    """The compared batches include random transforms. The stopped epoch is the second."""
    dataset = Noisy(numbers)
    torch.manual_seed(11)
    unbroken = made(dataset, kind, seed=3)
    before = batches(unbroken)
    whole = batches(unbroken)
    assert whole != before
    for stop in range(len(whole)):
        torch.manual_seed(11)
        first = made(dataset, kind, seed=3)
        assert batches(first) == before
        iterator = iter(first)
        assert take(iterator, stop) == whole[:stop]
        state = first.state_dict()
        torch.manual_seed(99)
        second = made(dataset, kind, seed=1234)
        second.load_state_dict(state)
        assert len(second) == len(whole) - stop
        assert batches(second) == whole[stop:], stop


@pytest.mark.parametrize("kind", ["shuffle with a generator", "ShuffleSampler and a generator"])
@pytest.mark.parametrize(("saving", "loading"), [(0, 2), (2, 0), (2, 3), (4, 2)])
def test_the_number_of_workers_may_change(
    kind: str, saving: int, loading: int, numbers: Path
) -> None:
    dataset = Noisy(numbers)
    unbroken = made(dataset, kind, seed=3)
    whole, following = batches(unbroken), batches(unbroken)
    first = made(dataset, kind, 3, saving)
    iterator = iter(first)
    assert take(iterator, 2) == whole[:2]
    state = first.state_dict()
    del iterator
    second = made(dataset, kind, 77, loading)
    second.load_state_dict(state)
    assert batches(second) == whole[2:]
    assert batches(second) == following


@pytest.mark.parametrize("kind", [kind for kind in [*KINDS, *BATCHED] if "generator" in kind])
def test_the_epochs_after_a_resumed_one_are_the_same_too(kind: str, numbers: Path) -> None:
    """This holds if the loader has its own generator, or its order needs no generator."""
    dataset = Noisy(numbers)
    torch.manual_seed(1)
    unbroken = made(dataset, kind, seed=3)
    epochs = [batches(unbroken) for _ in range(3)]
    torch.manual_seed(1)
    first = made(dataset, kind, seed=3)
    take(iter(first), 3)
    second = made(dataset, kind, seed=1234)
    second.load_state_dict(first.state_dict())
    assert batches(second) == epochs[0][3:]
    assert [batches(second) for _ in range(2)] == epochs[1:]


def test_later_epochs_are_the_same_if_the_program_restores_its_random_numbers(
    numbers: Path,
) -> None:
    dataset = Noisy(numbers)
    torch.manual_seed(1)
    unbroken = made(dataset, "shuffle", 0)
    epochs = [batches(unbroken) for _ in range(3)]
    torch.manual_seed(1)
    first = made(dataset, "shuffle", 0)
    take(iter(first), 3)
    state, program = first.state_dict(), torch.get_rng_state()
    torch.manual_seed(2)
    torch.set_rng_state(program)
    second = made(dataset, "shuffle", 0)
    second.load_state_dict(state)
    assert batches(second) == epochs[0][3:]
    assert [batches(second) for _ in range(2)] == epochs[1:]


def test_a_loader_can_be_resumed_many_times(numbers: Path) -> None:
    dataset = Noisy(numbers)
    unbroken = made(dataset, "shuffle with a generator", 3)
    whole, following = batches(unbroken), batches(unbroken)
    loader = made(dataset, "shuffle with a generator", 3)
    found = []
    for _ in range(STEPS):
        found += take(iter(loader), 1)
        state = loader.state_dict()
        loader = made(dataset, "shuffle with a generator", 0)
        loader.load_state_dict(state)
    assert found == whole
    assert batches(loader) == following


def test_persistent_workers_resume_and_may_be_saved_in_a_later_epoch(numbers: Path) -> None:
    dataset = Noisy(numbers)
    options: Options = {"workers": 2, "persistent_workers": True}
    unbroken = made(dataset, "shuffle with a generator", 3, **options)
    epochs = [batches(unbroken) for _ in range(3)]
    first = made(dataset, "shuffle with a generator", 3, **options)
    assert batches(first) == epochs[0]
    assert take(iter(first), 3) == epochs[1][:3]
    second = made(dataset, "shuffle with a generator", 5, **options)
    batches(second)  # start its workers before the state is loaded
    second.load_state_dict(first.state_dict())
    assert batches(second) == epochs[1][3:]


def test_a_state_includes_the_steps_skipped_by_set_step(numbers: Path) -> None:
    for sampler in (None, ShuffleSampler(N)):
        dataset = Processed(numbers)
        whole = batches(DataLoader(dataset, SIZE, sampler=sampler and ShuffleSampler(N)))
        first = DataLoader(dataset, SIZE, sampler=sampler)
        first.set_step(2)
        assert take(iter(first), 1) == whole[2:3]
        second = DataLoader(dataset, SIZE, sampler=sampler and ShuffleSampler(N))
        second.load_state_dict(first.state_dict())
        assert batches(second) == whole[3:]


def test_set_step_after_loading_counts_from_the_beginning_of_the_epoch(numbers: Path) -> None:
    dataset = Processed(numbers)
    for kind in ("sequential", "ShuffleSampler"):
        whole = batches(made(dataset, kind, 3))
        first = made(dataset, kind, 3)
        take(iter(first), 3)
        second = made(dataset, kind, 3)
        second.load_state_dict(first.state_dict())
        second.set_step(1)
        assert len(second) == STEPS - 1
        assert batches(second) == whole[1:]


# ---- moments of saving -------------------------------------------------------------------


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", ["shuffle", "shuffle with a generator", "ShuffleSampler"])
def test_a_state_right_after_iter_is_at_the_epochs_first_batch(
    kind: str, workers: int, numbers: Path
) -> None:
    dataset = Noisy(numbers)
    torch.manual_seed(4)
    first = made(dataset, kind, 3, workers)
    iterator = iter(first)
    state = first.state_dict()
    whole = [plain(batch) for batch in iterator]
    torch.manual_seed(5)
    second = made(dataset, kind, 8)
    second.load_state_dict(state)
    assert batches(second) == whole


@pytest.mark.parametrize("kind", [*KINDS, *BATCHED])
def test_a_state_between_epochs_is_at_the_next_epoch(kind: str, numbers: Path) -> None:
    dataset = Noisy(numbers)
    torch.manual_seed(4)
    first = made(dataset, kind, 3)
    batches(first)
    state, program = first.state_dict(), torch.get_rng_state()
    following = [batches(first) for _ in range(2)]
    torch.set_rng_state(program)
    second = made(dataset, kind, 8)
    second.load_state_dict(state)
    assert [batches(second) for _ in range(2)] == following


def test_a_state_before_the_first_epoch_is_at_the_first_epoch(numbers: Path) -> None:
    dataset = Processed(numbers)
    first = made(dataset, "ShuffleSampler", 3)
    second = made(dataset, "ShuffleSampler", 8)
    second.load_state_dict(first.state_dict())
    assert batches(second) == batches(first)


@pytest.mark.parametrize(
    ("kind", "workers"),
    [
        *((kind, 0) for kind in [*KINDS, *BATCHED]),
        *((kind, 2) for kind in ("shuffle", "ShuffleSampler and a generator", *BATCHED)),
    ],
)
def test_a_state_after_the_last_batch_continues_with_the_next_epoch(
    kind: str, workers: int, numbers: Path
) -> None:
    """Lightning saves at this point, before it finds out that there are no more batches."""
    dataset = Noisy(numbers)
    torch.manual_seed(4)
    first = made(dataset, kind, 3, workers)
    iterator = iter(first)
    take(iterator, len(first))
    state, program = first.state_dict(), torch.get_rng_state()
    assert next(iterator, None) is None
    following = [batches(first) for _ in range(2)]
    torch.set_rng_state(program)
    second = made(dataset, kind, 8)
    second.load_state_dict(state)
    assert len(second) == len(first)
    if kind == "DistributedShuffleSampler":
        second.sampler.set_epoch(0)  # type: ignore[attr-defined]
    assert [batches(second) for _ in range(2)] == following


@pytest.mark.parametrize("batch", [SIZE, 5])
def test_samples_dropped_by_drop_last_do_not_make_a_batch(batch: int, numbers: Path) -> None:
    dataset = Processed(numbers)
    for make in (SequentialSampler, ShuffleSampler):
        options: Options = {"batch_size": batch, "drop_last": True}
        first = DataLoader(dataset, sampler=make(dataset), **options)
        take(iter(first), N // batch)
        second = DataLoader(dataset, sampler=make(dataset), **options)
        second.load_state_dict(first.state_dict())
        unbroken = DataLoader(dataset, sampler=make(dataset), **options)
        batches(unbroken)
        assert batches(second) == batches(unbroken)


class Countless:
    """A sampler without `__len__`."""

    def __init__(self, count: int | None, generator: torch.Generator) -> None:
        self.count = count
        self.generator = generator

    def __iter__(self) -> Iterator[int]:
        given = 0
        while self.count is None or given < self.count:
            given += 1
            yield int(torch.randint(N, (), generator=self.generator))


@pytest.mark.parametrize("workers", [0, 2])
def test_a_sampler_without_a_length_is_resumed_up_to_its_end(workers: int, numbers: Path) -> None:
    dataset = Noisy(numbers)
    torch.manual_seed(2)
    unbroken = DataLoader(dataset, SIZE, sampler=Countless(N, seeded(3)))
    whole, following = batches(unbroken), batches(unbroken)
    for stop in range(STEPS + 1):
        torch.manual_seed(2)
        options: Options = {"num_workers": workers if stop in (2, STEPS) else 0}
        first = DataLoader(dataset, SIZE, sampler=Countless(N, seeded(3)), **options)
        iterator = iter(first)
        assert take(iterator, stop) == whole[:stop]
        second = DataLoader(dataset, SIZE, sampler=Countless(N, seeded(9)), **options)
        second.load_state_dict(first.state_dict())
        del iterator
        resumed = batches(second)
        assert resumed == (whole[stop:] if stop < STEPS else following)
        if stop == STEPS:
            assert second.state_dict()["epoch"] == 2


def test_an_infinite_sampler_is_resumed(numbers: Path) -> None:
    """The training sampler of detectron2 is infinite."""
    dataset = Noisy(numbers)
    torch.manual_seed(2)
    whole = take(iter(DataLoader(dataset, SIZE, sampler=Countless(None, seeded(3)))), 20)
    for workers in (0, 2):
        torch.manual_seed(2)
        first = DataLoader(
            dataset, SIZE, sampler=Countless(None, seeded(3)), num_workers=workers
        )  # fmt: skip
        iterator = iter(first)
        take(iterator, 7)
        second = DataLoader(dataset, SIZE, sampler=Countless(None, seeded(9)))
        second.load_state_dict(first.state_dict())
        shut_down(iterator)
        assert take(iter(second), 13) == whole[7:]


class Lengthless(TorchDataset[int]):
    """A map-style dataset without `__len__`. Its sampler knows the indices."""

    def __getitem__(self, index: int) -> int:
        return index


def test_a_dataset_without_a_length_has_a_state() -> None:
    first = DataLoader(Lengthless(), 2, sampler=range(10))
    assert take(iter(first), 2) == [[0, 1], [2, 3]]
    second = DataLoader(Lengthless(), 2, sampler=range(10))
    second.load_state_dict(first.state_dict())
    assert batches(second) == [[4, 5], [6, 7], [8, 9]]


# ---- orders drawn with the first batch -----------------------------------------------------


def test_set_epoch_after_iter_takes_effect(numbers: Path) -> None:
    """Lightning resumes this way, and torch's loader without workers allows it."""
    dataset = Processed(numbers)
    samplers: list[Any] = [
        DistributedSampler(dataset, 2, 1), DistributedShuffleSampler(dataset, 2, 1),
        ShuffleSampler(dataset),
    ]  # fmt: skip
    for sampler in samplers:
        loader = DataLoader(dataset, SIZE, sampler=sampler)
        iterator = iter(loader)
        sampler.set_epoch(3)
        found = [plain(batch) for batch in iterator]
        sampler.set_epoch(3)
        assert found == batches(loader)
        sampler.set_epoch(0)
        assert found != batches(loader)


@pytest.mark.parametrize("kind", ["shuffle", "weighted", "shuffle with a generator"])
def test_a_state_before_the_first_batch_fixes_the_order(kind: str, numbers: Path) -> None:
    """The program may draw random numbers between the state and the first batch."""
    dataset = Noisy(numbers)
    torch.manual_seed(4)
    first = made(dataset, kind, 3)
    iterator = iter(first)
    state = first.state_dict()
    torch.rand(5)
    program = torch.get_rng_state()
    whole = [plain(batch) for batch in iterator]
    assert torch.equal(torch.get_rng_state(), program)
    second = made(dataset, kind, 8)
    second.load_state_dict(state)
    assert batches(second) == whole


def test_the_order_is_drawn_with_the_first_batch_as_in_torch(
    numbers: Path,
) -> None:
    dataset = Processed(numbers)
    found = []
    for make in (DataLoader, TorchDataLoader):
        torch.manual_seed(4)
        iterator = iter(make(dataset, SIZE, shuffle=True))
        torch.rand(5)
        found.append([plain(batch) for batch in iterator])
    assert found[0] == found[1]


def test_a_loaded_state_is_returned_until_an_epoch_begins(numbers: Path) -> None:
    dataset = Processed(numbers)
    first = made(dataset, "shuffle with a generator", 3)
    whole = batches(made(dataset, "shuffle with a generator", 3))
    take(iter(first), 2)
    second = made(dataset, "shuffle with a generator", 8)
    second.load_state_dict(first.state_dict())
    third = made(dataset, "shuffle with a generator", 9)
    third.load_state_dict(second.state_dict())
    assert batches(third) == whole[2:]


def test_a_state_after_an_error_begins_with_the_failed_batch(numbers: Path) -> None:
    dataset = Failing(numbers)
    first = DataLoader(dataset, SIZE)
    iterator = iter(first)
    assert take(iterator, 2) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    with pytest.raises(ValueError, match="nine"):
        next(iterator)
    second = DataLoader(Processed(numbers), SIZE)
    second.load_state_dict(first.state_dict())
    assert batches(second)[0] == [8, 9, 10, 11]
    # After the next batch is returned, the failed batch counts as skipped.
    assert take(iterator, 1) == [[12, 13, 14, 15]]
    second.load_state_dict(first.state_dict())
    assert batches(second)[0] == [16, 17, 18, 19]


class Failing(Processed):
    def process(self, indices: list[int], data: list[Any]) -> list[int]:
        if 9 in indices:
            raise ValueError("nine")
        return super().process(indices, data)


# ---- states in files ---------------------------------------------------------------------


@pytest.mark.parametrize("kind", [*KINDS, *BATCHED])
@pytest.mark.parametrize("taken", [None, 2])
def test_a_state_can_be_pickled_and_saved_with_torch(
    kind: str, taken: int | None, numbers: Path
) -> None:
    dataset = Processed(numbers)
    loader = made(dataset, kind, 3)
    if taken:
        take(iter(loader), taken)
    state = loader.state_dict()
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    rest = None
    for copied in (state, pickle.loads(pickle.dumps(state)), torch.load(file, weights_only=True)):
        torch.manual_seed(0)
        second = made(dataset, kind, 5)
        second.load_state_dict(copied)
        found = batches(second)
        assert rest in (None, found)
        rest = found


def test_a_state_is_a_snapshot(numbers: Path) -> None:
    dataset = Processed(numbers)
    loader = made(dataset, "shuffle with a generator", 3)
    whole = batches(made(dataset, "shuffle with a generator", 3))
    iterator = iter(loader)
    take(iterator, 1)
    state = loader.state_dict()
    take(iterator, 3)
    second = made(dataset, "shuffle with a generator", 5)
    second.load_state_dict(state)
    assert batches(second) == whole[1:]


def stored_states() -> list[Any]:
    """Return states of version 1, each with the SHA-256 of the batches that followed.

    The loaders were in their second epoch. Version 1 had generators' states as tensors. The file
    has them in packed form.
    """

    def unpacked(value: Any) -> Any:
        return decoded(value["tensor"]) if isinstance(value, dict) and "tensor" in value else value

    stored = json.loads(STORED.read_text())
    for each in stored:
        each["state"] = {name: unpacked(value) for name, value in each["state"].items()}
    return [pytest.param(each, id=f"{each['kind']} at {each['stop']}") for each in stored]


@pytest.mark.parametrize("stored", stored_states())
def test_a_state_of_version_1_continues_with_the_same_batches(stored: Any, numbers: Path) -> None:
    torch.manual_seed(77)
    loader = made(Noisy(numbers), stored["kind"], 8)
    loader.load_state_dict(stored["state"])
    again = made(Noisy(numbers), stored["kind"], 8)
    again.load_state_dict(loader.state_dict())
    for each in (loader, again):
        torch.manual_seed(5)
        following = json.dumps(batches(each)).encode()
        assert hashlib.sha256(following).hexdigest() == stored["rest"]


@pytest.mark.parametrize("kind", [*KINDS, *BATCHED])
@pytest.mark.parametrize("taken", [None, 0, 2])
def test_a_state_is_json_and_small_without_a_generator(
    kind: str, taken: int | None, numbers: Path
) -> None:
    dataset = Processed(numbers)
    loader = made(dataset, kind, 3)
    batches(loader)
    if taken is not None:
        iterator = iter(loader)
        take(iterator, taken)
    state = loader.state_dict()
    text = json.dumps(state)
    # The default shuffle needs only a seed. Other random orders need a generator's whole state.
    drawn = kind.startswith("weighted") or "another kind" in kind or kind == "replacement"
    most = 7500 if "a generator" in kind else 4500 if drawn else 1000
    assert len(text) < most, len(text)
    program = torch.get_rng_state()
    rests = []
    for copied in (state, json.loads(text)):
        torch.set_rng_state(program)
        second = made(dataset, kind, 5)
        second.load_state_dict(copied)
        rests.append(batches(second))
    assert rests[0] == rests[1]


# ---- refused -----------------------------------------------------------------------------


def started(loader: DataLoader[Any]) -> DataLoader[Any]:
    next(iter(loader))
    return loader


@pytest.mark.parametrize("begun", [False, True])
def test_a_state_of_other_data_is_refused(begun: bool, numbers: Path, tmp_path: Path) -> None:
    other = Processed(write_numbers(tmp_path / "other.ffr", [*range(N - 1), 99]))
    state = made(Processed(numbers), "shuffle", 0)
    if begun:
        started(state)
    for loader in (
        made(other, "shuffle", 0),
        DataLoader(TensorDataset(torch.arange(N)), SIZE, True),
    ):
        with pytest.raises(StateError, match="other data"):
            loader.load_state_dict(state.state_dict())


def test_a_state_of_another_batch_size_needs_a_seekable_sampler(
    numbers: Path,
) -> None:
    dataset = Processed(numbers)
    state = started(DataLoader(dataset, 3)).state_dict()
    with pytest.raises(StateError, match=r"batch size of 3, .* has 4"):
        DataLoader(dataset, 4).load_state_dict(state)
    order = list(ShuffleSampler(dataset))
    state = started(DataLoader(dataset, 3, sampler=ShuffleSampler(dataset))).state_dict()
    loader = DataLoader(dataset, 5, sampler=ShuffleSampler(dataset))
    loader.load_state_dict(state)
    assert [number for batch in batches(loader) for number in batch] == order[3:]


@pytest.mark.parametrize(
    ("saved", "loaded"),
    [
        ("shuffle", "sequential"),
        ("shuffle", "ShuffleSampler"),
        ("ShuffleSampler", "shuffle"),
        ("weighted", "shuffle"),
        ("DistributedSampler", "shuffle"),
    ],
)
def test_a_state_of_another_kind_of_sampler_is_refused(
    saved: str, loaded: str, numbers: Path
) -> None:
    dataset = Processed(numbers)
    state = started(made(dataset, saved, 0)).state_dict()
    with pytest.raises(StateError, match="with the sampler"):
        made(dataset, loaded, 0).load_state_dict(state)


def test_a_state_of_another_number_of_torchs_ranks_is_refused(numbers: Path) -> None:
    dataset = Processed(numbers)
    four: Any = DistributedSampler(dataset, 4, 0)
    state = started(DataLoader(dataset, SIZE, sampler=four)).state_dict()
    with pytest.raises(StateError, match=r"4 ranks', .* has 'DistributedSampler of 2 ranks'"):
        made(dataset, "DistributedSampler", 0).load_state_dict(state)


@pytest.mark.parametrize(
    "garbage", [{}, {"version": 1}, {"version": 99}, [], None, "state", {"a": 1}], ids=repr
)
def test_garbage_is_refused(garbage: Any, numbers: Path) -> None:
    loader = made(Processed(numbers), "shuffle", 0)
    with pytest.raises(StateError):
        loader.load_state_dict(garbage)


@pytest.mark.parametrize("kind", ["shuffle", "ShuffleSampler"])
def test_a_state_with_a_missing_or_wrong_field_is_refused(kind: str, numbers: Path) -> None:
    dataset = Processed(numbers)
    state = started(made(dataset, kind, 0)).state_dict()
    whole = batches(made(dataset, "sequential", 0))
    for name in state:
        for bad in ({k: v for k, v in state.items() if k != name}, state | {name: object()}):
            with pytest.raises(StateError):
                made(dataset, kind, 0).load_state_dict(bad)
    for name in ("step", "epoch"):
        with pytest.raises(StateError):
            made(dataset, kind, 0).load_state_dict(state | {name: -1})
    # A loader that refuses a state stays as it was.
    loader = made(dataset, "sequential", 0)
    with pytest.raises(StateError):
        loader.load_state_dict(state)
    assert batches(loader) == whole


# ---- random numbers ----------------------------------------------------------------------


def test_random_transforms_do_not_depend_on_the_number_of_workers(numbers: Path) -> None:
    found = [
        batches(made(Noisy(numbers), "shuffle with a generator", 3, workers))
        for workers in (0, 1, 2, 4)
    ]
    assert all(each == found[0] for each in found)
    drawn = [value for batch in found[0] for column in batch[1:] for value in column]
    assert len(set(drawn)) == 3 * N  # all samples draw different numbers


@pytest.mark.parametrize("workers", [0, 2])
def test_every_epoch_has_other_random_transforms(workers: int, numbers: Path) -> None:
    loader = made(Noisy(numbers), "sequential", 0, workers, persistent_workers=workers > 0)
    first, second = batches(loader), batches(loader)
    assert [batch[0] for batch in first] == [batch[0] for batch in second]
    assert all(one[1:] != other[1:] for one, other in zip(first, second, strict=True))


class Normal(Noisy):
    """A dataset that also draws a normal number. numpy makes two of them, and keeps the second."""

    def process(self, indices: list[int], data: list[Any]) -> list[Any]:
        normal = float(np.random.normal())
        return [(*sample, normal) for sample in super().process(indices, data)]


@pytest.mark.parametrize("normals", [0, 1, 2])
def test_without_workers_the_programs_random_numbers_are_restored(
    normals: int, numbers: Path
) -> None:
    np.random.normal(size=normals)  # with 1, numpy keeps a number for the program
    loader = DataLoader(Normal(numbers), SIZE, collate_fn=as_list)
    iterator = iter(loader)  # torch always draws a seed from the global generator here
    before = random.getstate(), np.random.get_state(), torch.get_rng_state()
    drawn = [sample for batch in iterator for sample in batch]
    assert len({sample[1] for sample in drawn}) == N
    assert len({sample[4] for sample in drawn}) == -(-N // SIZE), "no batch gets a kept number"
    assert random.getstate() == before[0]
    assert str(np.random.get_state()) == str(before[1])
    assert torch.equal(torch.get_rng_state(), before[2])


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_without_batches_has_the_same_seeds_and_states(
    workers: int, numbers: Path
) -> None:
    dataset = Noisy(numbers)
    whole = batches(DataLoader(dataset, None, shuffle=True, generator=seeded(3)))
    assert len({sample[1] for sample in whole}) == N
    first = DataLoader(dataset, None, shuffle=True, generator=seeded(3), num_workers=workers)
    assert take(iter(first), 5) == whole[:5]
    second = DataLoader(dataset, None, shuffle=True, generator=seeded(0), num_workers=workers)
    second.load_state_dict(first.state_dict())
    assert batches(second) == whole[5:]


def test_without_batch_seeds_transforms_draw_from_the_programs_generators(numbers: Path) -> None:
    loader = DataLoader(Noisy(numbers), N, collate_fn=as_list, batch_seeds=False)
    iterator = iter(loader)
    random.seed(5)
    expected = random.Random(5).random()
    assert next(iterator)[0][1] == expected
