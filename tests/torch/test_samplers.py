"""Samplers: every index comes once, ranks share as in torch, states fit any number of ranks."""

from __future__ import annotations

import pickle
from collections import Counter
from itertools import chain
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DistributedSampler

from ffrecord.errors import StateError
from ffrecord.torch import (
    BlockShuffleSampler,
    DataLoader,
    DistributedBlockShuffleSampler,
    DistributedShuffleSampler,
    ShuffleSampler,
)
from ffrecord.torch.block_permutation import BlockPermutation
from ffrecord.torch.permutation import Permutation
from ffrecord.torch.samplers import STRETCH
from tests.torch.datasets import N, Processed, shut_down, write_numbers

Blocks: TypeAlias = "tuple[int, int] | None"

KINDS: list[Blocks] = [None, (4, 3)]  # without blocks; with block and window
blocks_of_any_size = st.none() | st.tuples(st.integers(1, 12), st.integers(1, 5))


def whole_order(n: int, seed: int, epoch: int, blocks: Blocks = None) -> list[int]:
    if blocks is None:
        order = Permutation(n, seed, epoch)(range(n))
    else:
        order = BlockPermutation(n, *blocks, seed, epoch)(range(n))
    found: list[int] = order.tolist()
    return found


def sampler_of(data: Any, blocks: Blocks = None, **options: Any) -> ShuffleSampler:
    if blocks is None:
        return ShuffleSampler(data, **options)
    return BlockShuffleSampler(data, block=blocks[0], window=blocks[1], **options)


def samplers(
    n: int, ranks: int, blocks: Blocks = None, **options: Any
) -> list[DistributedShuffleSampler]:
    kind: Any = DistributedShuffleSampler
    if blocks is not None:
        kind, options = (
            DistributedBlockShuffleSampler,
            options | dict(zip(("block", "window"), blocks, strict=True)),
        )
    return [kind(range(n), ranks, rank, **options) for rank in range(ranks)]


def together(shares: list[list[int]]) -> list[int]:
    """Return the indices of all ranks in the order in which the ranks yield them in turn."""
    assert len({len(share) for share in shares}) == 1
    return list(chain.from_iterable(zip(*shares, strict=True)))


# ---- one process -------------------------------------------------------------------------


@pytest.mark.parametrize("blocks", [*KINDS, (64, 7)])
@pytest.mark.parametrize("n", [0, 1, 2, 100, STRETCH, 2 * STRETCH + 3])
def test_every_index_comes_once_and_each_epoch_has_another_order(n: int, blocks: Blocks) -> None:
    sampler = sampler_of(n, blocks, seed=5)
    assert len(sampler) == n
    orders = [list(sampler) for _ in range(3)]
    assert orders == [whole_order(n, 5, epoch, blocks) for epoch in range(3)]
    assert all(sorted(order) == list(range(n)) for order in orders)
    assert n < 100 or len(set(map(tuple, orders))) == 3


def test_a_sampler_takes_a_length_or_a_dataset(numbers: Path) -> None:
    assert list(ShuffleSampler(Processed(numbers))) == list(ShuffleSampler(N))


def test_set_epoch_chooses_the_next_epoch() -> None:
    sampler = ShuffleSampler(10)
    sampler.set_epoch(4)
    assert list(sampler) == whole_order(10, 0, 4)
    assert list(sampler) == whole_order(10, 0, 5)
    sampler.set_epoch(0)
    assert list(sampler) == whole_order(10, 0, 0)


def test_skip_leaves_out_the_beginning_of_one_iteration() -> None:
    sampler = ShuffleSampler(10)
    sampler.skip(3)
    assert len(sampler) == 7
    assert list(sampler) == whole_order(10, 0, 0)[3:]
    assert list(sampler) == whole_order(10, 0, 1)
    sampler.skip(4)
    sampler.skip(2)
    assert list(sampler) == whole_order(10, 0, 2)[6:]
    sampler.skip(99)
    assert list(sampler) == []


@given(st.integers(0, 30), st.integers(0, 3), blocks_of_any_size, st.data())
def test_a_shuffle_continues_from_its_state(
    n: int, epoch: int, blocks: Blocks, data: st.DataObject
) -> None:
    given_out = data.draw(st.integers(0, n))
    first = sampler_of(n, blocks, seed=9)
    first.set_epoch(epoch)
    iterator = iter(first)
    seen = [next(iterator) for _ in range(given_out)]
    state = pickle.loads(pickle.dumps(first.state_dict()))
    assert all(isinstance(value, (int, str)) for value in state.values())
    second = sampler_of(n, blocks, seed=1)
    second.load_state_dict(state)
    second.set_epoch(epoch)  # the same epoch, as in a loop over epochs, keeps the position
    assert len(second) == n - given_out
    assert seen + list(second) == whole_order(n, 9, epoch, blocks)
    assert list(second) == whole_order(n, 9, epoch + 1, blocks)


def test_state_dict_takes_a_number_of_yielded_indices() -> None:
    """A loader needs this, because its workers have taken more indices than it has returned."""
    first = ShuffleSampler(20)
    first.skip(4)
    list(first)
    second = ShuffleSampler(20)
    second.load_state_dict(first.state_dict(6))
    assert list(second) == whole_order(20, 0, 0)[10:]


def test_set_epoch_to_another_epoch_forgets_the_position() -> None:
    first = ShuffleSampler(20)
    next(iter(first))
    second = ShuffleSampler(20)
    second.load_state_dict(first.state_dict())
    second.set_epoch(1)
    assert list(second) == whole_order(20, 0, 1)


# ---- ranks -------------------------------------------------------------------------------


@given(
    st.integers(1, 40), st.integers(1, 7), st.booleans(), st.booleans(), st.integers(0, 3),
    blocks_of_any_size,
)  # fmt: skip
def test_shares_and_padding_are_the_same_as_in_torch(
    n: int, ranks: int, drop_last: bool, shuffle: bool, epoch: int, blocks: Blocks
) -> None:
    """Both samplers pad the order with its own beginning, and give indices to the ranks in turn."""
    for rank, ours in enumerate(samplers(n, ranks, blocks, drop_last=drop_last, shuffle=shuffle)):
        theirs: DistributedSampler[int] = DistributedSampler(
            range(n), ranks, rank, shuffle=False, drop_last=drop_last  # type: ignore[arg-type]
        )  # fmt: skip
        order = whole_order(n, 0, epoch, blocks) if shuffle else list(range(n))
        ours.set_epoch(epoch)
        assert list(ours) == [order[position] for position in theirs]
        assert len(ours) == len(theirs)
        assert isinstance(ours, DistributedSampler)


def test_every_index_comes_once_over_all_ranks_and_epochs_differ() -> None:
    for ranks in (1, 2, 4):
        for epoch in range(3):
            all_of_them = samplers(24, ranks, seed=2)
            for sampler in all_of_them:
                sampler.set_epoch(epoch)
            assert together([list(sampler) for sampler in all_of_them]) == whole_order(24, 2, epoch)


def test_without_set_epoch_the_order_stays_as_in_torch() -> None:
    sampler = DistributedShuffleSampler(range(10), 2, 0)
    assert list(sampler) == list(sampler)


def test_a_rank_out_of_range_is_torchs_error() -> None:
    with pytest.raises(ValueError, match="rank"):
        DistributedShuffleSampler(range(10), 2, 2)


@given(
    st.integers(0, 60),
    st.lists(st.tuples(st.integers(1, 5), st.integers(0, 12)), min_size=1, max_size=4),
    st.integers(1, 5),
    st.integers(0, 2),
    blocks_of_any_size,
)
def test_runs_with_changing_numbers_of_ranks_lose_and_repeat_nothing(
    n: int, stops: list[tuple[int, int]], last_ranks: int, epoch: int, blocks: Blocks
) -> None:
    """A run is (ranks, indices per rank) and resumes the one before. The last ends the epoch."""
    order = whole_order(n, 6, epoch, blocks)
    seen: list[int] = []
    state = None
    for ranks, share in [*stops, (last_ranks, n + 1)]:
        left = len(order) - len(seen)
        share = min(share, -(-left // ranks))
        shares, states = [], []
        for sampler in samplers(n, ranks, blocks, seed=6):
            if state is not None:
                sampler.load_state_dict(state)
            sampler.set_epoch(epoch)
            assert len(sampler) == -(-left // ranks)
            iterator = iter(sampler)
            shares.append([next(iterator) for _ in range(share)])
            states.append(sampler.state_dict())
        assert all(each == states[0] for each in states)
        state = states[0]
        given_out = together(shares)
        # Indices repeat only if the rest does not divide by the number of ranks.
        assert given_out == (order[len(seen) :] + order * ranks)[: len(given_out)]
        seen += given_out[:left]
    assert seen == order
    assert not n or Counter(seen) == Counter(range(n))


@pytest.mark.parametrize("blocks", KINDS)
def test_one_process_continues_from_ranks_and_the_other_way_round(blocks: Blocks) -> None:
    order = whole_order(30, 6, 0, blocks)
    ranks = samplers(30, 4, blocks, seed=6)
    iterator = iter(ranks[2])
    next(iterator), next(iterator)
    alone = sampler_of(range(30), blocks)
    alone.load_state_dict(ranks[2].state_dict())
    assert list(alone) == order[8:]
    next(iter(alone))
    pair = samplers(30, 2, blocks)
    for sampler in pair:
        sampler.load_state_dict(alone.state_dict(1))
    assert together([list(sampler) for sampler in pair])[:29] == whole_order(30, 6, 1, blocks)[1:]


@pytest.mark.parametrize(("window", "ranks"), [(8, 1), (8, 2), (8, 8), (12, 3)])
def test_ranks_that_divide_the_window_read_different_blocks(window: int, ranks: int) -> None:
    n, block = 10 * window * 5, 5
    taken = [
        {index // block for index in sampler} for sampler in samplers(n, ranks, (block, window))
    ]
    assert sum(len(each) for each in taken) == len(set().union(*taken)) == n // block


def test_with_drop_last_indices_that_do_not_divide_are_left_out() -> None:
    pair = samplers(11, 2, seed=6, drop_last=True)
    state = None
    for sampler in pair:
        next(iter(sampler))
        state = sampler.state_dict()
    four = samplers(11, 4, drop_last=True)
    for sampler in four:
        sampler.load_state_dict(state or {})
    assert together([list(sampler) for sampler in four]) == whole_order(11, 6, 0)[2:10]


# ---- refused -----------------------------------------------------------------------------


def test_a_state_of_other_data_is_refused(numbers: Path, tmp_path: Path) -> None:
    state = ShuffleSampler(Processed(numbers)).state_dict()
    other = Processed(write_numbers(tmp_path / "other.ffr", [*range(N - 1), 99]))
    for sampler in (ShuffleSampler(other), ShuffleSampler(N), ShuffleSampler(N + 1)):
        with pytest.raises(StateError, match="other data"):
            sampler.load_state_dict(state)
    with pytest.raises(StateError, match=r"23 samples .* has 24"):
        ShuffleSampler(24).load_state_dict(ShuffleSampler(23).state_dict())


def test_a_shuffled_state_is_refused_by_a_sampler_that_does_not_shuffle() -> None:
    state = DistributedShuffleSampler(range(9), 1, 0).state_dict()
    with pytest.raises(StateError, match="shuffle"):
        DistributedShuffleSampler(range(9), 1, 0, shuffle=False).load_state_dict(state)


@pytest.mark.parametrize(
    ("saved", "loaded"), [(None, (4, 3)), ((4, 3), None), ((4, 3), (4, 2)), ((4, 3), (5, 3))]
)
def test_a_state_with_other_blocks_is_refused(saved: Blocks, loaded: Blocks) -> None:
    sampler = sampler_of(20, loaded)
    with pytest.raises(StateError, match="block=4 and window=3"):
        sampler.load_state_dict(sampler_of(20, saved).state_dict())
    assert list(sampler) == whole_order(20, 0, 0, loaded)


@pytest.mark.parametrize(("block", "window"), [(0, 1), (1, 0), (-1, 5)])
def test_blocks_and_windows_have_at_least_one_member(block: int, window: int) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        BlockShuffleSampler(20, block=block, window=window)
    with pytest.raises(ValueError, match="at least 1"):
        DistributedBlockShuffleSampler(range(20), 1, 0, block=block, window=window)


@pytest.mark.parametrize(
    "change",
    [{"position": -1}, {"position": 11}, {"seed": "x"}, {"epoch": None}, {"length": []}],
    ids=repr,
)
def test_an_invalid_state_is_refused(change: dict[str, Any]) -> None:
    sampler = ShuffleSampler(10)
    with pytest.raises(StateError):
        sampler.load_state_dict(sampler.state_dict() | change)
    assert list(sampler) == whole_order(10, 0, 0)


@pytest.mark.parametrize("garbage", [{}, {"seed": 1}, [], None, 3], ids=repr)
def test_a_value_that_is_not_a_state_is_refused(garbage: Any) -> None:
    with pytest.raises(StateError):
        ShuffleSampler(10).load_state_dict(garbage)


def test_an_unused_iterator_begins_no_epoch() -> None:
    sampler = ShuffleSampler(10)
    iter(sampler)
    assert list(sampler) == list(ShuffleSampler(10))


def test_a_length_may_be_any_integer_type_but_not_negative() -> None:
    assert list(ShuffleSampler(np.int64(5))) == list(ShuffleSampler(5))
    with pytest.raises(ValueError, match="-5"):
        ShuffleSampler(-5)


@pytest.mark.parametrize("blocks", KINDS)
@pytest.mark.parametrize("workers", [0, 2])
def test_a_resumed_loader_has_its_full_length_after_iter(
    workers: int, blocks: Blocks, numbers: Path
) -> None:
    """Lightning asks for the length after `iter`, and uses it for every epoch."""

    def made() -> DataLoader[int]:
        dataset = Processed(numbers)
        return DataLoader(dataset, 4, sampler=sampler_of(dataset, blocks), num_workers=workers)

    first = made()
    begun = iter(first)
    next(begun)
    second = made()
    second.load_state_dict(first.state_dict())
    assert len(second) == 5
    rest = iter(second)
    assert (len(second), len(rest)) == (6, 5)
    next(rest)
    assert (len(second), len(rest)) == (6, 5)
    second.load_state_dict(first.state_dict())
    assert len(second) == 5
    for iterator in (begun, rest):
        shut_down(iterator)


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("workers", [0, 2])
def test_set_epoch_before_the_first_batch_takes_effect(
    workers: int, persistent: bool, numbers: Path
) -> None:
    """Lightning resumes this way, when workers already have their first batches."""
    dataset = Processed(numbers)
    persistent = persistent and workers > 0
    for kind in (ShuffleSampler(dataset, seed=5), DistributedShuffleSampler(dataset, 1, 0, seed=5)):
        loader = DataLoader(
            dataset, 4, sampler=kind, num_workers=workers, persistent_workers=persistent
        )
        for epoch in (3, 1):
            iterator = iter(loader)
            kind.set_epoch(epoch)
            given = [number for batch in iterator for number in batch.tolist()]
            assert given == whole_order(N, 5, epoch)


@pytest.mark.parametrize("workers", [0, 2])
def test_two_iterators_at_once_are_two_epochs(workers: int, numbers: Path) -> None:
    dataset = Processed(numbers)
    loader = DataLoader(dataset, 4, sampler=ShuffleSampler(dataset, seed=5), num_workers=workers)
    first, second = iter(loader), iter(loader)
    given = [[n for batch in each for n in batch.tolist()] for each in (first, second)]
    assert given == [whole_order(N, 5, 0), whole_order(N, 5, 1)]
