"""The loader as a replacement for torch's: the same batches with any options, and set_step."""

from __future__ import annotations

import inspect
import multiprocessing
import os
import pickle
import random
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import BatchSampler, DistributedSampler, IterableDataset, TensorDataset
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data._utils.pin_memory import pin_memory

from ffrecord import ChangedError, pack_folder
from ffrecord.torch import DataLoader, Dataset, PackedFolderDataset, ShuffleSampler
from ffrecord.torch.assembler import Assembler, BatchRequest, Delivery
from tests.torch.datasets import (
    STYLES,
    Both,
    N,
    Noisy,
    Processed,
    Reading,
    as_list,
    batches,
    plain,
    seeded,
    shut_down,
    write_numbers,
)

SIZE = 4
STEPS = -(-N // SIZE)

# Importing torch takes seconds. With preloading, the fork server does it once.
multiprocessing.get_context("forkserver").set_forkserver_preload(["tests.torch.datasets"])


def expected(dataset: Any, epochs: int = 1, **options: Any) -> list[Any]:
    """Return the batches of torch's own loader without workers."""
    loader: TorchDataLoader[Any] = TorchDataLoader(dataset, **options)
    return [batches(loader) for _ in range(epochs)]


# ---- workers -----------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [0, 2, 4])
@pytest.mark.parametrize("make", STYLES)
def test_batches_are_the_same_as_in_torch(make: Any, workers: int, numbers: Path) -> None:
    options: dict[str, Any] = {"multiprocessing_context": "fork"} if workers else {}
    dataset = make(numbers)
    loader = DataLoader(
        dataset, SIZE, shuffle=True, num_workers=workers, generator=seeded(5), **options
    )
    found = [batches(loader) for _ in range(2)]
    assert found == expected(
        dataset, 2, batch_size=SIZE, shuffle=True, generator=seeded(5)
    )  # fmt: skip
    assert found[0] != found[1]


@pytest.mark.parametrize("workers", [2, pytest.param(4, marks=pytest.mark.long)])
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_batches_of_spawned_workers_are_the_same_as_in_torch(
    method: str, workers: int, numbers: Path
) -> None:
    """Test both styles at once, because such workers take seconds to start."""
    dataset = Both(numbers)
    loader = DataLoader(
        dataset, SIZE, shuffle=True, num_workers=workers, generator=seeded(6),
        multiprocessing_context=method, persistent_workers=True,
    )  # fmt: skip
    # Persistent workers get a seed only once, so torch's second epoch has another order.
    (first,) = expected(dataset, batch_size=SIZE, shuffle=True, generator=seeded(6))
    assert batches(loader) == first
    assert sorted(pair for batch in batches(loader) for pair in zip(*batch, strict=True)) == [
        (number, number) for number in range(N)
    ]


@pytest.mark.long
@pytest.mark.parametrize("workers", [2, 4])
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
@pytest.mark.parametrize("make", STYLES)
def test_each_style_works_alone_in_spawned_workers(
    make: Any, method: str, workers: int, numbers: Path
) -> None:
    dataset = make(numbers)
    loader = DataLoader(
        dataset, SIZE, shuffle=True, num_workers=workers, generator=seeded(6),
        multiprocessing_context=method,
    )  # fmt: skip
    assert [batches(loader) for _ in range(2)] == expected(
        dataset, 2, batch_size=SIZE, shuffle=True, generator=seeded(6)
    )


def test_persistent_workers_equal_torch_over_three_epochs(numbers: Path) -> None:
    options: dict[str, Any] = {
        "batch_size": SIZE, "shuffle": True, "num_workers": 2, "persistent_workers": True,
        "multiprocessing_context": "fork",
    }  # fmt: skip
    dataset = Processed(numbers)
    loader = DataLoader(dataset, generator=seeded(1), **options)
    found = [batches(loader) for _ in range(3)]
    assert found == expected(dataset, 3, generator=seeded(1), **options)
    assert len({str(epoch) for epoch in found}) == 3


@pytest.mark.parametrize("workers", [0, 2])
def test_the_order_of_a_shuffle_sampler_does_not_depend_on_workers(
    workers: int, numbers: Path
) -> None:
    """torch's loaders with workers call `iter()` on a sampler twice. Only one call counts."""
    dataset = Processed(numbers)
    loader = DataLoader(dataset, SIZE, sampler=ShuffleSampler(dataset, seed=3), num_workers=workers)
    alone = ShuffleSampler(N, seed=3)
    for _ in range(3):
        order = list(alone)
        assert batches(loader) == [order[at : at + SIZE] for at in range(0, N, SIZE)]


@pytest.mark.parametrize("workers", [0, 2])
def test_an_epoch_that_is_left_early_does_not_disturb_the_next(workers: int, numbers: Path) -> None:
    dataset = Processed(numbers)
    loader = DataLoader(dataset, SIZE, num_workers=workers, persistent_workers=workers > 0)
    for _ in range(3):
        assert plain(next(iter(loader))) == list(range(SIZE))
    assert batches(loader) == expected(dataset, batch_size=SIZE)[0]


# ---- options -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {"batch_size": 5, "drop_last": True},
        {"batch_size": None},
        {"batch_size": None, "sampler": BatchSampler(range(10), 3, False)},
        {"batch_size": None, "sampler": torch.tensor([3, 1, 1])},
        {"batch_size": None, "sampler": torch.tensor([[3, 1], [1, 0]])},
        {"batch_sampler": [[3, 1], [4], [1, 5, -1]]},
        {"batch_sampler": BatchSampler([5, 3, 1], 2, True)},
        {"sampler": [3, 3, 1], "batch_size": 2},
        {"batch_size": 6, "collate_fn": as_list},
        {"batch_size": 6, "pin_memory": True},
        {},
    ],
)
@pytest.mark.parametrize("make", STYLES)
def test_options_mean_the_same_as_in_torch(
    make: Any, options: dict[str, Any], numbers: Path
) -> None:
    dataset = make(numbers)
    assert batches(DataLoader(dataset, **options)) == expected(dataset, **options)[0]
    assert len(DataLoader(dataset, **options)) == len(TorchDataLoader(dataset, **options))


def test_options_may_be_positional_as_in_torch(numbers: Path) -> None:
    dataset = Processed(numbers)
    loader = DataLoader(dataset, 5, False, None, None, 0, as_list, False, True)
    assert batches(loader) == expected(dataset, batch_size=5, drop_last=True)[0]


@pytest.mark.parametrize("workers", [0, 2])
def test_torch_datasets_and_iterables_work(workers: int) -> None:
    tensors = TensorDataset(torch.arange(11) * 10)
    loader = DataLoader(tensors, 4, num_workers=workers)
    assert batches(loader) == expected(tensors, batch_size=4)[0]
    stream = Stream()
    assert batches(DataLoader(stream, 4, num_workers=workers and 1)) == [[0, 1, 2, 3], [4, 5]]


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(6))


def test_set_step_is_refused_for_an_iterable() -> None:
    with pytest.raises(TypeError, match="IterableDataset"):
        DataLoader(Stream(), 4).set_step(1)


class Waiting(Processed):
    """A dataset that waits until the file `release` exists."""

    release: Path

    def process(self, indices: list[int], data: list[Any]) -> list[int]:
        while not self.release.exists():
            time.sleep(0.01)
        return super().process(indices, data)


def test_a_slow_worker_raises_torchs_timeout(numbers: Path, tmp_path: Path) -> None:
    dataset = Waiting(numbers)
    dataset.release = tmp_path / "released"
    iterator = iter(DataLoader(dataset, 4, num_workers=1, timeout=0.1))
    with pytest.raises(RuntimeError, match="timed out"):
        next(iterator)
    dataset.release.touch()
    shut_down(iterator)


def test_a_delivery_survives_pinning() -> None:
    """torch's thread for pinned memory takes a batch apart and builds it again."""
    delivery = Delivery(({"a": "text", "b": [1, 2]},), [(3, "damaged")], None)
    pinned = pin_memory(delivery)  # type: ignore[no-untyped-call]
    assert isinstance(pinned, Delivery)
    assert pinned == delivery


def test_on_error_is_refused_for_other_datasets() -> None:
    with pytest.raises(ValueError, match="on_error"):
        DataLoader(TensorDataset(torch.arange(3)), on_error="skip")
    with pytest.raises(ValueError, match="nonsense"):
        DataLoader(TensorDataset(torch.arange(3)), on_error="nonsense")


@pytest.mark.parametrize("path", ["train.ffr", b"train.ffr", Path("train.ffr")], ids=repr)
def test_a_path_is_not_taken_for_a_dataset(path: Any) -> None:
    expected = r"train\.ffr' is a path, not a dataset; .*ffrecord\.torch\.Dataset"
    with pytest.raises(TypeError, match=expected):
        DataLoader(path)


# ---- set_step ----------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("shuffled", [False, True])
def test_set_step_skips_batches_until_it_is_set_again(
    workers: int, shuffled: bool, numbers: Path
) -> None:
    dataset = Processed(numbers)
    sampler = ShuffleSampler(dataset) if shuffled else None
    loader = DataLoader(dataset, SIZE, sampler=sampler, num_workers=workers)
    if shuffled:
        alone = ShuffleSampler(N)
        orders = [list(alone) for _ in range(5)]
    else:
        orders = [list(range(N))] * 5
    wholes = [[order[at : at + SIZE] for at in range(0, N, SIZE)] for order in orders]
    assert len(loader) == STEPS
    loader.set_step(2)
    assert len(loader) == STEPS - 2
    assert batches(loader) == wholes[0][2:]
    assert len(loader) == STEPS - 2
    assert batches(loader) == wholes[1][2:]
    loader.set_step(STEPS)
    assert len(loader) == 0
    assert batches(loader) == []
    loader.set_step(0)
    assert len(loader) == STEPS
    assert batches(loader) == wholes[3]


@pytest.mark.parametrize("step", [-1, STEPS + 1])
def test_a_step_out_of_range_is_a_value_error(step: int, numbers: Path) -> None:
    loader = DataLoader(Processed(numbers), SIZE)
    with pytest.raises(ValueError, match=f"from 0 to {STEPS}"):
        loader.set_step(step)
    assert len(loader) == STEPS


def test_set_step_is_refused_with_skippable_false(numbers: Path) -> None:
    with pytest.raises(ValueError, match="skippable=False"):
        DataLoader(Processed(numbers), SIZE, skippable=False).set_step(1)


class Countless:
    """A sampler without `__len__`. torch does not need one."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(N - 1, -1, -1))


def test_a_sampler_without_a_length_works(numbers: Path) -> None:
    loader = DataLoader(Processed(numbers), SIZE, sampler=Countless())
    order = list(Countless())
    whole = [order[at : at + SIZE] for at in range(0, N, SIZE)]
    assert batches(loader) == whole
    loader.set_step(2)
    assert batches(loader) == whole[2:]
    with pytest.raises(TypeError):
        len(loader)
    with pytest.raises(TypeError):
        len(iter(loader))


class Resetting:
    """A batch sampler that is its own iterator and starts again with every `iter()`.

    Lightning's `Trainer.predict` wraps every batch sampler like this.
    """

    def __init__(self, batches: list[list[int]]) -> None:
        self.batches = batches
        self.begun = 0

    def __iter__(self) -> Resetting:
        self.begun += 1
        self.left = iter(self.batches)
        return self

    def __next__(self) -> list[int]:
        return next(self.left)

    def __len__(self) -> int:
        return len(self.batches)


class NextOnly:
    """An iterator that has only `__next__`. torch accepts it."""

    def __init__(self, items: Any) -> None:
        self.items = iter(items)

    def __next__(self) -> Any:
        return next(self.items)


class Bare:
    """A sampler whose iterator has only `__next__`."""

    def __init__(self, items: list[Any]) -> None:
        self.items = items

    def __iter__(self) -> Any:
        return NextOnly(self.items)

    def __len__(self) -> int:
        return len(self.items)


PAIRS = [[2 * i, 2 * i + 1] for i in range(6)]


@pytest.mark.parametrize(
    ("workers", "ours"), [(0, True), (0, False), (2, True)], ids=["0-True", "0-False", "2-True"]
)
@pytest.mark.parametrize("make", [Resetting, Bare])
def test_iter_is_called_once_an_epoch_on_a_batch_sampler(
    make: Any, workers: int, ours: bool, numbers: Path
) -> None:
    dataset: Any = Processed(numbers) if ours else list(range(N))
    sampler = make(PAIRS)
    loader: DataLoader[Any] = DataLoader(dataset, batch_sampler=sampler, num_workers=workers)
    assert [batches(loader) for _ in range(2)] == [PAIRS, PAIRS]
    loader.set_step(1)
    assert batches(loader) == PAIRS[1:]
    assert getattr(sampler, "begun", 3) == 3
    loader.set_step(0)
    iterator = iter(loader)
    assert [plain(next(iterator)) for _ in range(2)] == PAIRS[:2]
    second: DataLoader[Any] = DataLoader(dataset, batch_sampler=make(PAIRS), num_workers=workers)
    second.load_state_dict(loader.state_dict())
    assert batches(second) == PAIRS[2:]
    shut_down(iterator)


class Batchwise(torch.utils.data.Dataset[Any]):
    """A foreign dataset whose batches need the sampler's object, such as a tuple with a size."""

    def __getitems__(self, batch: Any) -> list[Any]:
        indices, size = batch
        return [(index, size, type(batch).__name__) for index in indices]


class OneByOne(torch.utils.data.Dataset[Any]):
    __getitems__ = None  # torch then asks for one sample at a time

    def __getitem__(self, index: Any) -> Any:
        return index


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("dataset", [Batchwise(), OneByOne()])
def test_a_foreign_dataset_gets_the_samplers_batches_as_they_are(
    dataset: Any, workers: int
) -> None:
    options: dict[str, Any] = {"batch_sampler": [((3, 1), 32), ((5,), 64)], "collate_fn": as_list}
    assert (
        batches(DataLoader(dataset, num_workers=workers, **options))
        == (expected(dataset, **options)[0])
    )


def test_a_sampler_whose_iterator_has_only_next_works(numbers: Path) -> None:
    dataset = Processed(numbers)
    options: dict[str, Any] = {"batch_size": None, "sampler": Bare([4, 2, 9, 7])}
    assert batches(DataLoader(dataset, **options)) == expected(dataset, **options)[0]


def test_set_step_works_with_persistent_workers(numbers: Path) -> None:
    loader = DataLoader(Reading(numbers), SIZE, num_workers=2, persistent_workers=True)
    whole = expected(Reading(numbers), batch_size=SIZE)[0]
    loader.set_step(1)
    assert batches(loader) == whole[1:]
    loader.set_step(4)
    assert batches(loader) == whole[4:]
    loader.set_step(0)
    assert batches(loader) == whole


# ---- unusual samplers and workers --------------------------------------------------------


class Adaptive:
    """A batch sampler that chooses a batch only when it is asked for it."""

    def __init__(self) -> None:
        self.harder = 0

    def __iter__(self) -> Iterator[list[int]]:
        for _ in range(4):
            yield [self.harder, self.harder + 1]

    def __len__(self) -> int:
        return 4


@pytest.mark.parametrize("wrapped", [False, True])
def test_an_adaptive_sampler_is_not_asked_early(wrapped: bool, numbers: Path) -> None:
    """Without workers, a sampler may use the result of the last batch to choose the next."""
    dataset = Processed(numbers)
    sampler = Adaptive()
    options: dict[str, Any] = {"batch_sampler": sampler}
    if wrapped:
        options = {"sampler": (index for batch in sampler for index in batch), "batch_size": 2}
    loader = DataLoader(dataset, **options)
    found = []
    for batch in loader:
        found.append(plain(batch))
        sampler.harder = 5 * len(found)
    assert found == [[0, 1], [5, 6], [10, 11], [15, 16]]


class Scaled(Processed):
    """A dataset with (index, size) pairs as keys: each batch has pictures of one size."""

    def __getitem__(self, indices: Any) -> Any:
        numbers = super().__getitem__([index for index, _ in indices])
        return [(number, size) for number, (_, size) in zip(numbers, indices, strict=True)]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_a_sampler_may_give_pairs_of_index_and_size(
    on_error: str, workers: int, numbers: Path
) -> None:
    pairs = [[(2 * i, 100 + i), (2 * i + 1, 100 + i)] for i in range(6)]
    loader = DataLoader(
        Scaled(numbers), batch_sampler=pairs, num_workers=workers, collate_fn=as_list,
        on_error=on_error,
    )  # fmt: skip
    assert list(loader) == pairs


def test_pairs_are_read_ahead_by_their_indices(numbers: Path) -> None:
    dataset = Scaled(numbers)
    pairs = [[(2 * i, 100 + i), (2 * i + 1, 100 + i)] for i in range(6)]
    list(DataLoader(dataset, batch_sampler=pairs))
    assert dataset.reader.prefetch_hits == len(pairs)


class FailingPair(Scaled):
    def __getitem__(self, indices: Any) -> Any:
        if any(index == 3 for index, _ in indices):
            raise ValueError("three")
        return super().__getitem__(indices)


@pytest.mark.filterwarnings("ignore::ffrecord.BadRecordWarning")
def test_only_the_bad_pair_is_left_out(numbers: Path) -> None:
    pairs = [[(2, 100), (3, 100), (4, 100)]]
    loader = DataLoader(
        FailingPair(numbers), batch_sampler=pairs, collate_fn=as_list, on_error="skip"
    )  # fmt: skip
    assert list(loader) == [[(2, 100), (4, 100)]]
    assert str(loader.skipped) == "[((3, 100), 'ValueError: three')]"


class Seeds(Processed):
    def process(self, indices: list[int], data: list[Any]) -> list[int]:
        return [torch.initial_seed() for _ in indices]


@pytest.mark.parametrize("workers", [0, 2])
def test_seeds_fit_into_a_tensor(workers: int, numbers: Path) -> None:
    """A dataset may return its seed, for example for another library. The seed becomes a tensor."""
    dataset = Seeds(numbers)
    found = []
    for seed in range(8):
        loader = DataLoader(dataset, 2, num_workers=workers, generator=seeded(seed))
        found += [batch[0] for batch in batches(loader)]
        if workers:
            break
    assert all(0 <= seed < 1 << 63 for seed in found)
    assert len(set(found)) == len(found)


def test_random_numbers_are_the_same_as_with_the_whole_64_bit_seed(numbers: Path) -> None:
    """torch gets 63 bits of the seed, but its random numbers are the same as with all 64 bits."""
    batch = BatchRequest([0], seed=(1 << 63) + 12345, number=0)
    delivery = Assembler(as_list, "raise")(Noisy(numbers).__getitems__(batch))
    (sample,) = delivery.batch[0]
    assert sample[1] == random.Random((1 << 63) + 12345).random()
    assert sample[3] == float(torch.rand((), generator=seeded((1 << 63) + 12345)))


@pytest.mark.parametrize("folder", [False, True])
def test_an_archive_replaced_between_epochs_is_an_error_for_new_workers(
    folder: bool, tmp_path: Path
) -> None:
    """Spawned workers open the archive by name. Forked workers read the file that is open."""
    path, other = tmp_path / "a.ffr", tmp_path / "b.ffr"
    dataset: Any
    if folder:
        (tmp_path / "in" / "class").mkdir(parents=True)
        for archive, content in ((path, b"old"), (other, b"other")):
            (tmp_path / "in" / "class" / "a").write_bytes(content)
            pack_folder(tmp_path / "in", archive)
        dataset = PackedFolderDataset(path, bytes, extensions=None)
    else:
        dataset = Processed(write_numbers(path, range(4)))
        write_numbers(other, range(1, 5))
    os.replace(other, path)
    loader = DataLoader(dataset, 2, num_workers=1, multiprocessing_context="spawn")
    with pytest.raises(ChangedError, match=f"{re.escape(str(path))}: replaced"):
        next(iter(loader))
    forked = DataLoader(dataset, 2, num_workers=1, multiprocessing_context="fork")
    assert len(batches(forked)) == len(loader)


# ---- loaders that Lightning makes from ours ----------------------------------------------


def made_again(loader: DataLoader[Any], sampler: Any) -> DataLoader[Any]:
    """Make a copy of a loader with another sampler, in the same way as Lightning.

    The arguments are the loader's attributes that have the names of parameters, unless they equal
    the defaults. Parameters of torch's class count too, because our class takes `**options`.
    """
    attributes = {k: v for k, v in vars(loader).items() if k[0] != "_"}
    attributes["multiprocessing_context"] = loader.multiprocessing_context
    parameters = dict(inspect.signature(type(loader).__init__).parameters)
    assert any(each.kind is each.VAR_KEYWORD for each in parameters.values())
    parameters |= inspect.signature(TorchDataLoader.__init__).parameters
    arguments = {
        name: attributes[name]
        for name, parameter in parameters.items()
        if name in attributes and parameter.default is not attributes[name]
    }
    arguments |= {"sampler": sampler, "shuffle": False, "batch_sampler": None}
    return type(loader)(**arguments)


class Mine(DataLoader[Any]):
    pass


def test_a_loader_can_be_made_again_with_another_sampler(numbers: Path) -> None:
    dataset = Processed(numbers)
    loader = Mine(
        dataset, 3, shuffle=True, num_workers=2, collate_fn=as_list, skippable=False,
        on_error="skip", read_ahead=False, batch_seeds=False, multiprocessing_context="fork",
        persistent_workers=True, prefetch_factor=3,
    )  # fmt: skip
    sampler: DistributedSampler[int] = DistributedSampler(dataset, num_replicas=2, rank=1, seed=4)
    again = made_again(loader, sampler)
    third = made_again(again, sampler)
    for each in (again, third):
        assert type(each) is Mine
        for name in (
            "batch_size", "num_workers", "skippable", "on_error", "read_ahead", "batch_seeds",
            "persistent_workers", "prefetch_factor",
        ):  # fmt: skip
            assert getattr(each, name) == getattr(loader, name)
        assert each.dataset is dataset
        assert each.sampler is sampler
        assert each.multiprocessing_context is loader.multiprocessing_context
        order = list(sampler)
        assert batches(each) == [order[at : at + 3] for at in range(0, len(order), 3)]


def test_torch_is_not_patched() -> None:
    assert TorchDataLoader.__module__.startswith("torch.")
    assert not hasattr(TorchDataLoader, "set_step")
    assert Dataset.__getitems__ is not None


def test_workers_find_relative_paths_after_a_change_of_folder(
    numbers: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(numbers.parent)
    dataset = Processed(numbers.name)
    monkeypatch.chdir(tmp_path)
    assert plain(pickle.loads(pickle.dumps(dataset))[[3, 1]]) == plain(dataset[[3, 1]])


def test_the_length_of_a_resumed_iterator_is_the_number_of_batches_left(numbers: Path) -> None:
    loader = DataLoader(Processed(numbers), SIZE)
    begun = iter(loader)
    next(begun)
    resumed = DataLoader(Processed(numbers), SIZE)
    resumed.load_state_dict(loader.state_dict())
    left = iter(resumed)
    assert len(left) == len(loader) - 1 == len(list(left))


@pytest.mark.parametrize("step", [2.0, "1", None])
def test_a_step_is_an_integer(step: Any, numbers: Path) -> None:
    with pytest.raises(TypeError):
        DataLoader(Processed(numbers), SIZE).set_step(step)
