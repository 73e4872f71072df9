"""`SkipableSampler` as programs written for the original FFRecord use it."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import BatchSampler, RandomSampler, SequentialSampler
from torch.utils.data import DataLoader as TorchDataLoader

from ffrecord.torch import DataLoader, ShuffleSampler
from ffrecord.torch.dataloader import SkipableSampler
from tests.torch.datasets import Processed, batches

ALL = [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11], [12, 13, 14, 15], [16, 17, 18, 19], [20, 21, 22]]


@pytest.fixture(params=[0, 2], ids=["no workers", "two workers"])
def loader(request: pytest.FixtureRequest, numbers: Path) -> DataLoader[Any]:
    return DataLoader(Processed(numbers), batch_size=4, num_workers=request.param)


# ---- in a loader ---------------------------------------------------------------------------------


def test_the_batch_sampler_of_a_loader_is_a_skipable_sampler(loader: DataLoader[Any]) -> None:
    sampler: Any = loader.batch_sampler
    assert isinstance(sampler, SkipableSampler)
    assert sampler.step == 0
    assert len(sampler) == len(ALL)
    assert list(sampler) == ALL == batches(loader)


def test_a_step_set_on_the_sampler_is_set_on_the_loader(loader: DataLoader[Any]) -> None:
    sampler: Any = loader.batch_sampler
    sampler.set_step(4)
    assert sampler.step == 4
    assert len(sampler) == len(loader) == 2
    assert list(sampler) == ALL[4:] == batches(loader) == batches(loader)
    sampler.set_step(0)
    assert len(loader) == 6
    assert batches(loader) == ALL


def test_a_step_set_on_the_loader_is_set_on_the_sampler(loader: DataLoader[Any]) -> None:
    sampler: Any = loader.batch_sampler
    loader.set_step(5)
    assert (sampler.step, len(sampler), list(sampler)) == (5, 1, ALL[5:])
    assert batches(loader) == ALL[5:]


def test_the_later_of_load_state_dict_and_set_step_takes_precedence(
    numbers: Path,
) -> None:
    def make() -> Any:
        return DataLoader(Processed(numbers), batch_size=4)

    begun = make()
    iterator = iter(begun)
    next(iterator), next(iterator)
    first = make()
    first.batch_sampler.set_step(4)
    first.load_state_dict(begun.state_dict())
    assert batches(first) == ALL[2:]
    assert batches(first) == ALL
    second = make()
    second.load_state_dict(begun.state_dict())
    second.batch_sampler.set_step(4)
    assert batches(second) == ALL[4:]


@pytest.mark.parametrize("step", [-1, 7])
def test_a_step_out_of_range_is_refused_and_changes_nothing(
    step: int, loader: DataLoader[Any]
) -> None:
    sampler: Any = loader.batch_sampler
    sampler.set_step(2)
    with pytest.raises(ValueError, match=f"step {step} cannot be set"):
        sampler.set_step(step)
    assert sampler.step == 2
    assert batches(loader) == ALL[2:]


def test_a_loader_that_is_not_skippable_has_torchs_batch_sampler(numbers: Path) -> None:
    loader = DataLoader(Processed(numbers), batch_size=4, skippable=False)
    assert type(loader.batch_sampler) is BatchSampler
    assert batches(loader) == ALL


def test_a_loader_without_batches_has_no_batch_sampler(numbers: Path) -> None:
    loader = DataLoader(Processed(numbers), batch_size=None)
    assert loader.batch_sampler is None
    loader.set_step(20)
    assert list(loader) == [20, 21, 22]


def test_the_users_batch_sampler_stays(numbers: Path) -> None:
    given = BatchSampler(SequentialSampler(range(23)), 4, False)
    loader = DataLoader(Processed(numbers), batch_sampler=given)
    assert loader.batch_sampler is given
    loader.set_step(3)
    assert batches(loader) == ALL[3:]


def test_the_users_skipable_sampler_shares_its_step(numbers: Path) -> None:
    given = SkipableSampler(ALL)
    given.set_step(4)
    loader = DataLoader(Processed(numbers), batch_sampler=given)
    assert loader.batch_sampler is given
    assert len(loader) == 2
    assert batches(loader) == ALL[4:]
    loader.set_step(1)
    assert given.step == 1
    given.set_step(0)
    assert batches(loader) == ALL


def test_a_shuffled_loader_skips_the_first_batches_of_torchs_order(numbers: Path) -> None:
    def made(kind: Any) -> Any:
        generator = torch.Generator().manual_seed(1)
        return kind(Processed(numbers), batch_size=4, shuffle=True, generator=generator)

    ours = made(DataLoader)
    ours.batch_sampler.set_step(2)
    assert batches(ours) == batches(made(TorchDataLoader))[2:]


def test_our_sampler_still_seeks_to_its_step(numbers: Path) -> None:
    dataset = Processed(numbers)
    whole = batches(DataLoader(dataset, batch_size=4, sampler=ShuffleSampler(dataset, seed=3)))
    loader = DataLoader(dataset, batch_size=4, sampler=ShuffleSampler(dataset, seed=3))
    sampler: Any = loader.batch_sampler
    sampler.set_step(4)
    assert batches(loader) == whole[4:]


# ---- for frameworks that take a loader apart -----------------------------------------------------


def test_a_skipable_sampler_is_a_torch_batch_sampler_with_its_attributes(numbers: Path) -> None:
    dataset = Processed(numbers)
    loader = DataLoader(dataset, batch_size=4, drop_last=True, shuffle=True)
    sampler: Any = loader.batch_sampler
    assert isinstance(sampler, BatchSampler)
    assert isinstance(sampler.sampler, RandomSampler)
    assert sampler.sampler is loader.sampler
    assert (sampler.batch_size, sampler.drop_last) == (4, True)
    assert {"sampler", "batch_size", "drop_last"} <= set(vars(sampler))  # Lightning copies them


def test_a_skipable_sampler_can_be_made_again_as_lightning_does(numbers: Path) -> None:
    found: Any = DataLoader(Processed(numbers), batch_size=4).batch_sampler
    backwards = range(22, -1, -1)
    again = type(found)(backwards, batch_size=found.batch_size, drop_last=found.drop_last)
    loader = DataLoader(Processed(numbers), batch_sampler=again)
    due = list(BatchSampler(backwards, 4, False))
    assert batches(loader) == due
    loader.set_step(3)
    assert batches(loader) == due[3:]


def test_changes_of_a_skipable_sampler_apply_to_the_loader(numbers: Path) -> None:
    loader = DataLoader(Processed(numbers), batch_size=4)
    sampler: Any = loader.batch_sampler
    sampler.sampler = range(10)
    sampler.batch_size = 3
    assert batches(loader) == list(sampler) == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9]]
    sampler.drop_last = True
    assert len(loader) == 3
    assert batches(loader) == list(sampler) == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]


# ---- copies and lifetime -------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["deepcopy", "pickle"])
def test_a_copy_of_a_loader_has_its_own_step(how: str, numbers: Path) -> None:
    loader = DataLoader(Processed(numbers), batch_size=4)
    loader.set_step(1)
    other: Any = copy.deepcopy(loader) if how == "deepcopy" else pickle.loads(pickle.dumps(loader))
    other.batch_sampler.set_step(5)
    assert batches(other) == ALL[5:]
    assert batches(loader) == ALL[1:]


def test_a_kept_sampler_does_not_keep_its_loader_alive(numbers: Path) -> None:
    gc.disable()
    try:
        loader = DataLoader(Processed(numbers), batch_size=4)
        sampler: Any = loader.batch_sampler
        gone = weakref.ref(loader)
        del loader
        assert gone() is None
    finally:
        gc.enable()
    sampler.set_step(2)
    assert list(sampler) == ALL[2:]


# ---- without a loader ----------------------------------------------------------------------------


def test_a_skipable_sampler_without_a_loader_skips_batches() -> None:
    inner: Any = BatchSampler(SequentialSampler(range(23)), 4, False)
    sampler = SkipableSampler(inner)
    assert sampler.sampler is inner
    assert (list(sampler), len(sampler), sampler.step) == (ALL, 6, 0)
    sampler.set_step(4)
    assert (list(sampler), len(sampler), sampler.step) == (ALL[4:], 2, 4)
    sampler.set_step(9)
    assert (list(sampler), len(sampler)) == ([], 0)
    with pytest.raises(ValueError, match="from 0 up"):
        sampler.set_step(-1)
    assert list(TorchDataLoader(range(23), batch_sampler=sampler)) == []  # type: ignore[arg-type]


# ---- the original's order of arguments -----------------------------------------------------------


@pytest.mark.parametrize("workers", [0, 2])
def test_the_generator_may_be_the_twelfth_argument_as_in_the_original(
    workers: int, numbers: Path
) -> None:
    generator = torch.Generator().manual_seed(5)
    loader: Any = DataLoader(
        Processed(numbers), 4, True, None, None, workers, None, False, True, 0, None, generator
    )
    assert loader.generator is generator
    assert (loader.batch_size, loader.num_workers, loader.drop_last) == (4, workers, True)
    assert isinstance(loader.sampler, RandomSampler)
    assert len(batches(loader)) == 5


def test_the_start_method_may_be_the_twelfth_argument_as_in_torch(numbers: Path) -> None:
    loader: Any = DataLoader(
        Processed(numbers), 4, False, None, None, 2, None, False, False, 0, None, "fork",
        torch.Generator(),
    )  # fmt: skip
    assert loader.multiprocessing_context.get_start_method() == "fork"
    assert batches(loader) == ALL
