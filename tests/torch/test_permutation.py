"""The computed shuffle is always a permutation, is fair, and is the same in every version.

The chi-square tests use fixed seeds, so a test always passes or always fails. With random seeds, a
fair shuffle would exceed the limit of a test once in 10,000 runs.
"""

from __future__ import annotations

import itertools
import tracemalloc
from collections import Counter
from statistics import NormalDist

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ffrecord.torch import ShuffleSampler
from ffrecord.torch.permutation import LARGEST, Permutation

SIGNIFICANCE = 1e-4
# Making a small permutation takes half a millisecond, so sweeps over many seeds are long tests.
SEEDS = [600, pytest.param(6000, marks=pytest.mark.long)]

# The first numbers of some orders, as the first version computed them. Saved states of loaders rely
# on these orders, so no version may change them.
STORED = [
    (1, 0, 0, [0]),
    (2, 1, 0, [0, 1]),
    (5, 0, 0, [4, 2, 3, 0, 1]),
    (10, 0, 0, [1, 4, 8, 3, 2, 5]),
    (10, 0, 1, [5, 2, 3, 0, 6, 7]),
    (10, 1, 0, [2, 0, 3, 1, 7, 5]),
    (1000, 42, 7, [522, 395, 333, 485, 556, 179]),
    (4096, 1, 2, [1698, 421, 2612, 3398, 563, 2602]),
    (4097, -5, 3, [3631, 16, 3883, 2900, 1411, 1953]),
    (10**6, 2**70, 10, [768344, 681922, 959432, 395408, 308358, 956971]),
    (10**9, 0, 0, [425822064, 52851472, 767205130, 87411056, 373483209, 13237059]),
    (2**40, 1, 1, [913755426770, 933371871152, 8692650474, 788298439512]),
    (
        2**62,
        9,
        9,
        [477621531277229881, 3956465179526809374, 3429448886559289982, 665517565152751915],
    ),
]


def chi_square_limit(freedom: int) -> float:
    """Return the limit that chance exceeds with probability SIGNIFICANCE (Wilson and Hilferty)."""
    z = NormalDist().inv_cdf(1 - SIGNIFICANCE)
    spread = 2 / (9 * freedom)
    return float(freedom * (1 - spread + z * spread**0.5) ** 3)


def assert_uniform(counts: npt.ArrayLike, freedom: int | None = None) -> None:
    observed = np.asarray(counts, float).ravel()
    expected = observed.sum() / observed.size
    assert expected >= 5, "a chi-square test needs at least 5 expected counts in each cell"
    statistic = float(((observed - expected) ** 2 / expected).sum())
    assert statistic < chi_square_limit(freedom or observed.size - 1)


def orders(n: int, seeds: int) -> npt.NDArray[np.int64]:
    """Return the whole order for each seed, one row each."""
    return np.array([Permutation(n, seed)(np.arange(n)) for seed in range(seeds)])


# ---- permutations ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "thousands", [0, *(pytest.param(number, marks=pytest.mark.long) for number in (1, 2, 3, 4))]
)
def test_every_length_up_to_5000_is_permuted(thousands: int) -> None:
    for n in range(1000 * thousands, 1000 * (thousands + 1) + 1):
        found = Permutation(n, seed=n % 7, epoch=n % 3)(np.arange(n))
        assert np.array_equal(np.bincount(found, minlength=n), np.ones(n, int)), n


@pytest.mark.parametrize("n", [1024, 1025, 4095, 4096, 4097, 2**16 + 1, 2**20 - 3, 2**20])
def test_longer_ranges_are_permuted_too(n: int) -> None:
    assert np.array_equal(np.sort(Permutation(n, 5)(np.arange(n))), np.arange(n))


@pytest.mark.parametrize("n", [2**33 + 7, 2**40, 2**40 + 1, 2**61 + 12345, 2**62 - 1, LARGEST])
def test_huge_ranges_give_distinct_indices_in_range(n: int) -> None:
    order = Permutation(n, seed=3)
    near = np.arange(20_000)
    far = np.random.default_rng(0).integers(0, n, 20_000)
    positions = np.unique(np.concatenate([near, far, [n - 1]]))
    found = order(positions)
    assert found.dtype == np.int64
    assert found.min() >= 0
    assert found.max() < n
    assert len(np.unique(found)) == len(positions)
    # The numbers cover the whole range, and neighbouring positions have distant numbers.
    assert_uniform(np.histogram(order(near) / n, bins=50, range=(0, 1))[0])


@given(st.integers(1, 10**6), st.integers(), st.integers(0, 10**6), st.data())
def test_some_positions_give_the_same_numbers_as_the_whole_order(
    n: int, seed: int, epoch: int, data: st.DataObject
) -> None:
    n = min(n, 3000)
    order = Permutation(n, seed, epoch)
    whole = order(range(n))
    positions = data.draw(st.lists(st.integers(0, n - 1), max_size=20))
    assert order(positions).tolist() == [whole[position] for position in positions]


def test_positions_may_be_one_number_or_an_array_of_any_shape() -> None:
    order = Permutation(1000, 1)
    whole = order(np.arange(1000))
    assert order(7) == whole[7]
    assert order(7).shape == ()
    grid = np.arange(1000).reshape(10, 100)
    assert np.array_equal(order(grid), whole.reshape(10, 100))


def test_the_given_positions_are_not_changed() -> None:
    positions = np.arange(50)
    Permutation(50, 1)(positions)
    assert np.array_equal(positions, np.arange(50))


@pytest.mark.parametrize("position", [-1, 10, 2**40])
def test_a_position_out_of_range_is_an_index_error(position: int) -> None:
    with pytest.raises(IndexError, match="from 0 to 9"):
        Permutation(10, 0)([0, position])


def test_an_empty_permutation_gives_nothing() -> None:
    assert Permutation(0, 0)([]).tolist() == []
    assert len(Permutation(0, 0)) == 0
    with pytest.raises(IndexError):
        Permutation(0, 0)([0])


@pytest.mark.parametrize("n", [-1, LARGEST + 1])
def test_lengths_that_are_too_small_or_too_large_are_refused(n: int) -> None:
    with pytest.raises(ValueError, match="from 0 to"):
        Permutation(n, 0)


# ---- fairness ----------------------------------------------------------------------------


@pytest.mark.parametrize("seeds", SEEDS)
@pytest.mark.parametrize("n", [2, 3, 4, 5])
def test_all_orders_of_a_few_numbers_are_equally_likely(n: int, seeds: int) -> None:
    counts = Counter(map(tuple, orders(n, seeds * (3 if n == 5 else 1)).tolist()))
    assert_uniform([counts[order] for order in itertools.permutations(range(n))])


@pytest.mark.parametrize("seeds", SEEDS)
@pytest.mark.parametrize("n", [7, 16, 33])
def test_every_index_is_equally_likely_at_every_position(n: int, seeds: int) -> None:
    found = orders(n, seeds)
    counts = [np.bincount(found[:, position], minlength=n) for position in range(n)]
    # The sums of rows and columns are fixed, which reduces the degrees of freedom.
    assert_uniform(counts, freedom=(n - 1) ** 2)


@pytest.mark.parametrize("seeds", SEEDS)
@pytest.mark.parametrize("n", [4096, 100_003])
def test_numbers_at_first_middle_and_last_positions_are_uniform(n: int, seeds: int) -> None:
    positions = [0, 1, n // 2, n - 1]
    found = np.array([Permutation(n, seed)(positions) for seed in range(seeds)])
    for column in found.T:
        assert_uniform(np.histogram(column, bins=20, range=(0, n))[0])


@pytest.mark.parametrize("seeds", SEEDS)
@pytest.mark.parametrize("n", [5, 11])
def test_every_pair_of_neighbours_is_equally_likely(n: int, seeds: int) -> None:
    found = orders(n, seeds)
    # Take one pair from each order, because the pairs of one order are not independent.
    rows = np.arange(len(found))
    at = rows % (n - 1)
    pairs = found[rows, at] * n + found[rows, at + 1]
    counts = np.bincount(pairs, minlength=n * n).reshape(n, n)
    assert np.trace(counts) == 0
    assert_uniform(counts[~np.eye(n, dtype=bool)])


@pytest.mark.parametrize("n", [1009, 65_536])
def test_steps_between_neighbours_match_a_fair_shuffle(n: int) -> None:
    """Within one order, all steps from an index to the next (modulo n) are equally likely."""
    steps = np.concatenate(
        [np.diff(Permutation(n, seed)(np.arange(min(n, 1009)))) % n for seed in range(40)]
    )
    assert_uniform(np.histogram(steps, bins=100, range=(1, n))[0])


def test_two_epochs_agree_at_as_many_positions_as_two_fair_shuffles() -> None:
    """Fair shuffles agree at one position on average, with a variance of one."""
    n, pairs = 1000, 200
    same = sum(
        int(
            (
                Permutation(n, 1, epoch)(np.arange(n)) == Permutation(n, 1, epoch + 1)(np.arange(n))
            ).sum()
        )
        for epoch in range(pairs)
    )
    assert abs(same - pairs) < NormalDist().inv_cdf(1 - SIGNIFICANCE / 2) * pairs**0.5


# ---- the same order for ever -------------------------------------------------------------


@pytest.mark.parametrize(("n", "seed", "epoch", "first"), STORED)
def test_an_order_never_changes_between_versions(
    n: int, seed: int, epoch: int, first: list[int]
) -> None:
    assert Permutation(n, seed, epoch)(range(len(first))).tolist() == first


def test_seeds_and_epochs_each_give_another_order() -> None:
    n = 100
    seen = {
        Permutation(n, seed, epoch)(np.arange(n)).tobytes()
        for seed in [0, 1, 2, -1, 2**32, 2**64, 2**64 + 1, -(2**70)]
        for epoch in [0, 1, 2, 11, 2**40]
    }
    assert len(seen) == 8 * 5
    # Without a separator between seed and epoch, both pairs would have the same digits.
    assert Permutation(n, 1, 11)(range(n)).tolist() != Permutation(n, 11, 1)(range(n)).tolist()


def test_the_same_seed_and_epoch_give_the_same_order() -> None:
    first, second = Permutation(777, 12, 3), Permutation(777, 12, 3)
    assert first(range(777)).tolist() == second(range(777)).tolist()


# ---- memory ------------------------------------------------------------------------------


def peak_of_drawing(n: int) -> int:
    tracemalloc.start()
    try:
        sampler = ShuffleSampler(n, seed=1)
        indices = list(itertools.islice(sampler, 10_000))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(set(indices)) == 10_000
    return peak


def test_shuffling_a_billion_takes_no_more_memory_than_shuffling_a_million() -> None:
    small, large = peak_of_drawing(10**6), peak_of_drawing(10**9)
    assert large < 1.2 * small + 100_000
    assert large < 4_000_000
