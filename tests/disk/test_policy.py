"""`ffrecord.disk.policy` and `ffrecord.disk.costs`: decisions, and disks that are simulated."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ffrecord.disk.costs import (
    FIRST_READS,
    MANY,
    MOST_CAUTION,
    SAMPLED_AGAIN_AFTER,
    SLOW_REQUEST,
    TRIALS,
    Meter,
)
from ffrecord.disk.policy import (
    JUDGED_AFTER,
    SIZES,
    SMALLEST,
    Costs,
    Decision,
    Pattern,
    decide,
    extents,
)

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
HARD_DISK = Costs(1 / 200, 1 / 150e6)
CLOUD = Costs(1 / 3000, 1 / 125e6)
NVME = Costs(1 / 70_000, 1 / 2e9)
RANDOM = Pattern(10 * KIB)
TINY = Pattern(1 * KIB)


@pytest.mark.parametrize(
    ("costs", "size", "memory", "pattern", "piece", "why"),
    [
        (HARD_DISK, GIB, 2 * GIB, RANDOM, 512 * KIB, "at least as long as reading 524.3 kB"),
        (CLOUD, GIB, 2 * GIB, RANDOM, 32 * KIB, "as long as reading 32.8 kB"),
        (NVME, GIB, 2 * GIB, RANDOM, 0, "only as long as reading 28.6 kB"),
        (None, GIB, 2 * GIB, RANDOM, 0, "not been measured"),
        (replace(NVME, guessed=True), GIB, 2 * GIB, RANDOM, 0, "only as long as reading"),
        (replace(NVME, byte=1e-8, guessed=True), GIB, GIB, TINY, SMALLEST, "is measured with"),
        (replace(NVME, byte=1e-8, guessed=True), GIB, MIB, TINY, 0, "do not fit"),
        (replace(NVME, byte=1e-8), GIB, GIB, TINY, 0, "only as long as reading 1.4 kB"),
        (HARD_DISK, 2 * GIB, GIB, RANDOM, 0, "2.1 GB of files do not fit into 1.1 GB"),
        (HARD_DISK, GIB, GIB, RANDOM, 512 * KIB, "at least as long as"),
        (HARD_DISK, GIB, 2 * GIB, Pattern(300 * KIB), 0, "only as long as"),
        (CLOUD, GIB, 2 * GIB, Pattern(20 * KIB), 0, "only as long as"),
        (Costs(1.0, 1e-9), GIB, 2 * GIB, RANDOM, SIZES[-1], "at least as long as reading 3.1 MB"),
        (HARD_DISK, GIB, 2 * GIB, replace(RANDOM, expected=100.0), 0, "neighbours"),
        (HARD_DISK, GIB, 2 * GIB, replace(RANDOM, expected=100.0, hits=30), 512 * KIB, "least"),
        (HARD_DISK, GIB, 2 * GIB, replace(RANDOM, expected=JUDGED_AFTER - 1), 512 * KIB, "least"),
    ],
)  # fmt: skip
def test_costs_memory_and_pattern_decide(
    costs: Costs | None, size: int, memory: int, pattern: Pattern, piece: int, why: str
) -> None:
    decision = decide(costs, size, memory, pattern)
    assert (decision.piece, why in decision.why) == (piece, True), decision


@pytest.mark.parametrize(("filled", "rest"), [(GIB // 4 - 1, False), (GIB // 4, True)])
def test_the_rest_is_read_when_most_of_the_files_was(filled: int, rest: bool) -> None:
    assert decide(HARD_DISK, GIB, GIB, replace(RANDOM, filled=filled)).rest is rest


costs_of_disks = st.builds(Costs, st.floats(1e-6, 0.1), st.floats(1e-11, 1e-6))
reads = st.lists(st.tuples(st.integers(0, 64 * MIB), st.integers(1, 256 * KIB)), min_size=1)


@given(costs_of_disks, reads)
def test_pieces_never_cost_more_than_twice_the_reads_themselves(
    costs: Costs, wanted: list[tuple[int, int]]
) -> None:
    size = 65 * MIB
    length = sum(length for _, length in wanted) / len(wanted)
    piece = decide(costs, size, size, Pattern(length)).piece
    if not piece:
        return
    today = costs.of(len(wanted), sum(length for _, length in wanted))
    begin, lengths = np.array(wanted).T
    low, high = extents(begin, begin + lengths, piece, size)
    pieces = costs.of(len(wanted), float((high - low).sum()))
    assert pieces <= 2 * today * (1 + 1e-9), "even if nothing is ever used again"


@given(
    st.integers(0, 10 * MIB), st.integers(1, MIB),
    st.sampled_from(SIZES), st.integers(0, MIB),
)  # fmt: skip
def test_an_extent_has_the_read_and_stays_within_a_piece_and_the_read(
    begin: int, length: int, piece: int, more: int
) -> None:
    size = begin + length + more
    (low,), (high,) = extents(np.array([begin]), np.array([begin + length]), piece, size)
    assert low <= begin < begin + length <= high <= size
    assert low % piece == 0
    assert high - low <= piece + length


# ---- costs of simulated disks ----------------------------------------------------------------


@dataclass
class RateLimited:
    """A disk held to a rate of requests and bytes, with the burst that such limits allow."""

    requests: float
    bandwidth: float

    def seconds(self, count: int, size: int) -> float:
        return max(count / self.requests, size / self.bandwidth)


@dataclass
class Rotating(RateLimited):
    """A disk that seeks first, then transfers."""

    def seconds(self, count: int, size: int) -> float:
        return count / self.requests + size / self.bandwidth


def learned(disk: RateLimited, length: int, *, noise: float = 0.0, batches: int = 60) -> Decision:
    """Return the decision after an epoch that was measured by a `Meter`."""
    meter, rng = Meter(), random.Random(1)
    decision = Decision(0, "")
    for batch in range(batches):
        decision = decide(meter.costs, GIB, GIB, Pattern(length))
        late = 1 + (noise if rng.random() < 0.2 else 0)  # now and then the program is starved
        if decision.piece:
            size = 64 * decision.piece
            meter.observe_pieces(64, size, disk.seconds(64, size) * late)
        else:
            burst = 0.1 if batch == 0 else 1.0
            meter.observe_reads(64, 64 * length, disk.seconds(64, 64 * length) * burst * late)
    return decision


@pytest.mark.parametrize("noise", [0.0, 5.0])
@pytest.mark.parametrize("kind", [RateLimited, Rotating])
@pytest.mark.parametrize("length", [1 * KIB, 10 * KIB])
def test_a_slow_disk_is_found_out_whatever_its_kind(
    length: int, kind: type[RateLimited], noise: float
) -> None:
    piece = learned(kind(200, 150e6), length, noise=noise).piece
    assert 128 * KIB <= piece <= 4 * MIB
    piece = learned(kind(3000, 125e6), length, noise=noise).piece
    assert 32 * KIB <= piece <= 128 * KIB


def test_a_fast_disk_is_left_alone() -> None:
    assert learned(Rotating(200_000, 2e9), 10 * KIB).piece == 0
    assert learned(RateLimited(70_000, 1e9), 110 * KIB).piece == 0


def test_a_disk_between_fast_and_slow_is_not_new_for_ever() -> None:
    meter = Meter()
    seconds = 0.0
    for turn in range(1000):
        each = SLOW_REQUEST * (3 if turn % 2 else 1 / 3)
        meter.observe_reads(64, 64 * KIB, 64 * each)
        seconds += 64 * each
    assert seconds > 2 * MOST_CAUTION
    assert not meter.is_new


@pytest.mark.parametrize(("bandwidth", "pays"), [(2e9, True), (0.5e9, False)])
@pytest.mark.parametrize("kind", [RateLimited, Rotating])
def test_a_trial_shows_whether_a_fast_disk_should_read_pieces(
    kind: type[RateLimited], bandwidth: float, pays: bool
) -> None:
    piece = learned(kind(120_000, bandwidth), 1 * KIB, batches=400).piece
    assert (SMALLEST <= piece <= 4 * SMALLEST) if pays else piece == 0


def test_a_disk_that_becomes_slower_is_measured_again() -> None:
    """Otherwise the samples of a burst would keep pieces off for the rest of the process."""
    meter = Meter()
    meter.observe_reads(512, 512 * KIB, 512 * 10e-6)
    for _ in range(TRIALS):
        meter.observe_pieces(MANY, MANY * SMALLEST, MANY * 150e-6)
    assert not meter.is_guess
    meter.observe_reads(5000, 5000 * KIB, 5000 * 60e-6)
    assert meter.is_guess


def test_samples_of_a_busy_machine_are_made_again() -> None:
    """Otherwise they would keep pieces off for the rest of the process."""
    meter, pattern = Meter(), Pattern(10 * KIB)

    def decided(samples: int, each: float) -> int:
        for _ in range(samples):
            meter.observe_pieces(MANY, MANY * 2 * SMALLEST, MANY * each)
        return decide(meter.costs, GIB, GIB, pattern).piece

    meter.observe_reads(5000, 5000 * 10 * KIB, 5000 * 62.5e-6)
    assert decided(TRIALS, 1e-3) == 0
    waited, pauses = 0.0, list[float]()
    while len(pauses) < 3:
        meter.observe_reads(256, 2560 * KIB, 256 * 62.5e-6)
        waited += 256 * 62.5e-6
        if decided(0, 0.0):
            assert decided(TRIALS, 1e-3) == 0  # still busy
            pauses.append(waited)
            waited = 0.0
    assert pauses == pytest.approx([SAMPLED_AGAIN_AFTER * 2**k for k in range(3)], rel=0.25)
    meter.observe_reads(2**16, 2**16 * 10 * KIB, 2**16 * 62.5e-6)
    assert decided(TRIALS, 62.5e-6) >= 2 * SMALLEST


def test_a_trial_ends_a_burst() -> None:
    """The first reads came from a burst. A trial that takes longer shows the real costs."""
    meter = Meter()
    meter.observe_reads(512, 512 * KIB, 512 * 10e-6)
    assert decide(meter.costs, GIB, GIB, Pattern(KIB)).piece == SMALLEST, "a trial"
    meter.observe_pieces(256, 256 * SMALLEST, 256 / 3000)
    costs = meter.costs
    assert costs is not None
    assert 200e-6 < costs.request < 400e-6
    assert decide(costs, GIB, GIB, Pattern(KIB)).piece >= 4 * SMALLEST


@pytest.mark.parametrize("field", ["_sampled", "_pieces", "_piece_bytes", "_piece_seconds"])
def test_another_process_may_begin_a_new_sample_at_any_time(
    field: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Forked workers share a meter without a lock."""
    monkeypatch.setattr(Meter, field, property(lambda _: 0, lambda *_: None))
    meter = Meter()
    meter.observe_reads(512, 512 * KIB, 512 * 10e-6)
    for _ in range(TRIALS):
        meter.observe_pieces(MANY, MANY * SMALLEST, MANY * 20e-6)
    costs = meter.costs
    assert costs is not None
    assert costs.byte > 0


def test_pieces_that_took_no_time_say_nothing() -> None:
    """A worker of a mount that always has other work never waits for its pieces."""
    meter = Meter()
    meter.observe_reads(512, 512 * KIB, 512 * 10e-6)
    before = meter.costs
    meter.observe_pieces(MANY, MANY * SMALLEST, 0.0)
    assert meter.costs == before


def test_an_unmeasured_disk_has_no_costs() -> None:
    meter = Meter()
    assert meter.costs is None
    meter.observe_reads(0, 0, 1.0)
    assert meter.costs is None


def test_a_disk_is_new_only_for_its_first_reads_even_if_nothing_was_measured() -> None:
    meter = Meter()
    meter.skip_reads(FIRST_READS - 1)
    assert meter.is_new
    meter.skip_reads(1)
    assert not meter.is_new
    assert meter.costs is None
