"""The shuffle of blocks is a permutation, keeps blocks together, mixes windows, and is fair."""

from __future__ import annotations

import itertools
import tracemalloc
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ffrecord.torch import BlockShuffleSampler
from ffrecord.torch.block_permutation import BlockPermutation
from ffrecord.torch.permutation import Permutation
from tests.torch.test_permutation import assert_uniform

# The first numbers of some orders: n, block, window, seed, epoch. Saved states of loaders rely on
# them, so no version may change them.
STORED: list[tuple[tuple[int, int, int, int, int], list[int]]] = [
    ((1, 1, 1, 0, 0), [0]),
    ((10, 3, 2, 0, 0), [5, 9, 3, 4, 2, 6]),
    ((10, 3, 2, 0, 1), [6, 3, 8, 5, 7, 4]),
    ((23, 4, 3, 1, 0), [5, 14, 20, 4, 13, 21]),
    ((1000, 64, 8, 42, 7), [948, 507, 812, 721, 998, 52]),
    ((1000000, 256, 64, -5, 3), [370471, 834090, 626447, 246830, 406566, 643319]),
    (
        (1000000007, 1000, 16, 1180591620717411303424, 1),
        [419981753, 388908038, 286764415, 690432924, 794956215, 407006154],
    ),
    (
        (1099511627776, 4096, 64, 1, 1),
        [24079202586, 277311607915, 761642813415, 946633064741, 974075110903, 28819266778],
    ),
]


def order_of(n: int, block: int, window: int, seed: int = 0, epoch: int = 0) -> list[int]:
    found: list[int] = BlockPermutation(n, block, window, seed, epoch)(range(n)).tolist()
    return found


@pytest.mark.parametrize("window", [1, 2, 3, 10, 1000])
def test_every_length_is_permuted(window: int) -> None:
    for n, block in itertools.product(range(70), (1, 2, 3, 8, 64, 1000)):
        assert sorted(order_of(n, block, window, n)) == list(range(n)), (n, block)


@given(
    st.integers(1, 400), st.integers(1, 40), st.integers(1, 9), st.integers(), st.integers(0, 99)
)  # fmt: skip
def test_windows_take_whole_blocks_in_turn(
    n: int, block: int, window: int, seed: int, epoch: int
) -> None:
    """Go through an order with sets and counters, and no arithmetic of positions."""
    order = order_of(n, block, window, seed, epoch)
    sizes = Counter(index // block for index in range(n))
    assert Counter(index // block for index in order) == sizes
    left = iter(order)
    seen: set[int] = set()
    while len(seen) < len(sizes):
        blocks = len(sizes) - len(seen)  # the last window takes all that would not fill another
        row = [next(left) // block for _ in range(window if blocks >= 2 * window else blocks)]
        assert len(set(row)) == len(row), "a row has two numbers of one block"
        assert not seen & set(row), "a block comes in two windows"
        seen |= set(row)
        taken = Counter(row)
        while row := [number for number in row if taken[number] < sizes[number]]:
            assert [next(left) // block for _ in row] == row
            taken.update(row)
    assert next(left, None) is None


@given(st.integers(1, 10**12), st.integers(1, 10**6), st.integers(1, 1000), st.data())
def test_distant_positions_give_distinct_numbers_in_range(
    n: int, block: int, window: int, data: st.DataObject
) -> None:
    order = BlockPermutation(n, block, window, 3, 1)
    positions = data.draw(st.lists(st.integers(0, n - 1), unique=True, max_size=50))
    found = order(positions)
    assert found.dtype == np.int64
    assert len(set(found.tolist())) == len(positions)
    assert all(0 <= number < n for number in found.tolist())
    assert [int(order(position)) for position in positions] == found.tolist()


def test_a_block_as_long_as_the_data_is_a_full_shuffle() -> None:
    """Also of the smallest data: all orders are equally likely."""
    counts = Counter(tuple(order_of(3, 5, 1, seed)) for seed in range(600))
    assert_uniform([counts[order] for order in itertools.permutations(range(3))])


def test_every_number_is_equally_likely_at_every_position() -> None:
    n = 12
    found = np.array([order_of(n, 3, 2, seed) for seed in range(1200)])
    counts = [np.bincount(found[:, position], minlength=n) for position in range(n)]
    assert_uniform(counts, freedom=(n - 1) ** 2)


def test_each_block_has_an_order_of_its_own() -> None:
    """All orders of a few numbers are equally likely among the blocks of one epoch."""
    orders = Permutation(4, 7, 0, "numbers of a block")
    blocks = np.repeat(np.arange(4800), 4)
    rows = orders(np.tile(np.arange(4), 4800), blocks).reshape(-1, 4)
    counts = Counter(map(tuple, rows.tolist()))
    assert_uniform([counts[order] for order in itertools.permutations(range(4))])
    far = orders(np.tile(np.arange(4), 2), np.repeat([5, 5 + (1 << 32)], 4)).reshape(-1, 4)
    assert sorted(far[0]) == sorted(far[1]) == [0, 1, 2, 3]


def test_the_short_block_comes_anywhere() -> None:
    n, block = 33, 4
    places = [order_of(n, block, 1, seed).index(32) // block for seed in range(900)]
    assert_uniform(np.bincount(places, minlength=9))


def test_epochs_and_seeds_have_other_orders() -> None:
    orders = {tuple(order_of(100, 10, 2, seed, epoch)) for seed in (0, 1, -5) for epoch in range(4)}
    assert len(orders) == 12


@pytest.mark.parametrize(("arguments", "first"), STORED)
def test_an_order_never_changes_between_versions(
    arguments: tuple[int, int, int, int, int], first: list[int]
) -> None:
    assert BlockPermutation(*arguments)(range(len(first))).tolist() == first


@pytest.mark.parametrize("position", [-1, 10, 2**40])
def test_a_position_out_of_range_is_an_index_error(position: int) -> None:
    with pytest.raises(IndexError, match="from 0 to 9"):
        BlockPermutation(10, 3, 2, 0)([0, position])


def test_an_empty_order_gives_nothing() -> None:
    assert order_of(0, 3, 2) == []
    assert len(BlockPermutation(0, 3, 2, 0)) == 0


def test_a_billion_takes_no_more_memory_than_a_million() -> None:
    peaks = []
    for n in (10**6, 10**9 + 7):
        tracemalloc.start()
        try:
            indices = list(itertools.islice(BlockShuffleSampler(n, seed=1), 10_000))
            peaks.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
        assert len(set(indices)) == 10_000
    assert peaks[1] < 1.2 * peaks[0] + 100_000
    assert peaks[1] < 4_000_000
