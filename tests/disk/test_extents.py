"""`ffrecord.disk.extents`: every plan is checked byte by byte, with plain integers."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ffrecord.disk import extents

KIB, MIB = 1 << 10, 1 << 20


@dataclass(frozen=True)
class Wanted:
    """Records to read, as (file, begin, end); no record is empty."""

    rows: list[tuple[int, int, int]]
    align: int

    def plan(self) -> extents.Plan:
        file, begin, end = np.array(self.rows, np.int64).T
        return extents.plan(file, begin, end, self.align)

    def plan_of_one_file(self) -> extents.Plan:
        _file, begin, end = np.array(self.rows, np.int64).T
        return extents.plan(None, begin, end, self.align)


SIZES = st.one_of(
    st.integers(1, 20_000),
    st.sampled_from([1, 511, 512, 4096, 16 * KIB, MIB - 1, MIB, MIB + 1, 3 * MIB + 5]),
)
SKIPS = st.sampled_from([0, 0, 1, 4095, 4096, 16 * KIB - 1, 16 * KIB, 20 * KIB, 24 * KIB, MIB])
ALIGNS = st.sampled_from([1, 512, 4096, 64 * KIB])


@st.composite
def wanted(draw: st.DrawFn, most_files: int = 3) -> Wanted:
    """Draw some records, in any order and with duplicates, from files with more records."""
    there: list[tuple[int, int, int]] = []
    for file in range(draw(st.integers(1, most_files))):
        at = draw(st.integers(24, 5000))
        for _ in range(draw(st.integers(1, 12))):
            at += draw(SKIPS)
            size = draw(SIZES)
            there.append((file, at, at + size))
            at += size
    picks = draw(st.lists(st.sampled_from(there), min_size=1, max_size=30))
    return Wanted(picks, draw(ALIGNS))


def order_of(plan: extents.Plan) -> list[int]:
    """Return the number in the batch of each record of a plan."""
    return list(range(len(plan.start))) if plan.order is None else plan.order.tolist()


def first_and_last(plan: extents.Plan) -> tuple[list[int], list[int]]:
    """Return the first and the last read of each record."""
    if plan.first is None or plan.last is None:
        assert len(plan.start) == len(plan.offset)
        return list(range(len(plan.start))), list(range(len(plan.start)))
    return plan.first.tolist(), plan.last.tolist()


def check(wanted: Wanted, plan: extents.Plan) -> None:
    """Check all promises of a plan."""
    align = wanted.align
    files = [0] * len(plan.offset) if plan.file is None else plan.file.tolist()
    reads = list(
        zip(
            files, plan.offset.tolist(), plan.length.tolist(), plan.need.tolist(),
            plan.place.tolist(), strict=True,
        )
    )  # fmt: skip
    firsts, lasts = first_and_last(plan)

    # Reads are aligned, of bounded length, in order, and adjacent in the slab.
    for _file, offset, length, need, place in reads:
        assert offset % align == length % align == place % align == 0
        assert 0 < need <= length <= extents.LONGEST
    # A duplicate of a record that was cut begins where the first copy began.
    extent_of = [(file, place - offset) for file, offset, _length, _need, place in reads]
    heads = [reads[k][:2] for k in range(len(reads)) if k == 0 or extent_of[k] != extent_of[k - 1]]
    assert plan.order is None or heads == sorted(heads)
    at = 0
    for _file, _offset, length, _need, place in reads:
        assert place == at
        at += length
    assert plan.size == at

    # Each record has its own memory, and every byte of it comes from the right place.
    assert sorted(order_of(plan)) == list(range(len(wanted.rows)))
    spans = []
    for k, row in enumerate(order_of(plan)):
        file, begin, end = wanted.rows[row]
        start, stop = int(plan.start[k]), int(plan.stop[k])
        assert stop - start == end - begin
        spans.append((start, stop))
        covered = begin
        for read in range(firsts[k], lasts[k] + 1):
            read_file, offset, _length, need, place = reads[read]
            assert read_file == file
            assert place - offset == start - begin
            assert offset <= covered < offset + need  # no superfluous read, and no hole
            covered = min(end, offset + need)
        assert covered == end
    spans.sort()
    assert all(a[1] <= b[0] for a, b in itertools.pairwise(spans))

    # The needed part of a read ends at the end of a record, unless the read was cut there.
    ends = {int(place) + int(need) for *_, need, place in reads if need < extents.LONGEST}
    assert ends <= {stop for _start, stop in spans} | {
        int(r[4]) for r in reads
    }  # a cut read ends where the next one begins


def share_a_read(plan: extents.Plan, one: int, other: int) -> bool:
    """Return True if two records (numbers in the batch) have a read in common."""
    places = order_of(plan)
    firsts, lasts = first_and_last(plan)
    a, b = sorted((places.index(one), places.index(other)))
    return bool(firsts[b] <= lasts[a])


@settings(max_examples=400)
@given(wanted())
def test_every_plan_keeps_its_promises(records: Wanted) -> None:
    check(records, records.plan())


@settings(max_examples=200)
@given(wanted(most_files=1))
def test_one_file_needs_no_file_numbers(records: Wanted) -> None:
    plan, same = records.plan_of_one_file(), records.plan()
    check(records, plan)
    assert plan.file is None
    for field in ("offset", "length", "need", "place", "size", "start", "stop"):
        assert np.array_equal(getattr(plan, field), getattr(same, field)), field
    assert first_and_last(plan) == first_and_last(same)
    # Records that are requested twice may come in either order.
    assert [records.rows[row] for row in order_of(plan)] == [
        records.rows[row] for row in order_of(same)
    ]


@given(wanted(), st.randoms(use_true_random=False))
def test_the_order_of_the_request_does_not_change_the_reads(
    records: Wanted, random: object
) -> None:
    shuffled = sorted(records.rows, key=lambda _row: random.random())  # type: ignore[attr-defined]
    plan, other = records.plan(), Wanted(shuffled, records.align).plan()
    for field in ("file", "offset", "length", "need", "place"):
        assert np.array_equal(getattr(plan, field), getattr(other, field)), field


@pytest.mark.parametrize("align", [1, 512, 4096])
def test_neighbours_up_to_a_gap_apart_share_a_read(align: int) -> None:
    base = 1 << 20
    near = Wanted([(0, base, base + align), (0, base + align + extents.GAP, base + 60_000)], align)
    assert len(near.plan().offset) == 1
    far = base + align + extents.GAP + align
    apart = Wanted([(0, base, base + align), (0, far, far + align)], align)
    assert len(apart.plan().offset) == 2


def test_records_of_different_files_never_share_a_read() -> None:
    plan = Wanted([(0, 100, 200), (1, 200, 300), (2, 300, 400)], 4096).plan()
    assert plan.file is not None
    assert plan.file.tolist() == [0, 1, 2]
    assert plan.offset.tolist() == [0, 0, 0]


def test_duplicates_are_read_as_often_as_requested() -> None:
    records = Wanted([(0, 5000, 6000)] * 3, 4096)
    plan = records.plan()
    check(records, plan)
    assert plan.offset.tolist() == [4096] * 3
    assert len(set(plan.start.tolist())) == 3


def test_records_in_one_block_share_its_read() -> None:
    rows = [(0, 4096 + 10 * i, 4106 + 10 * i) for i in range(100)]
    plan = Wanted(rows, 4096).plan()
    assert plan.offset.tolist() == [4096]
    assert plan.length.tolist() == [4096]
    assert plan.need.tolist() == [1000]
    assert not share_a_read(Wanted([rows[0], (0, 1 << 20, (1 << 20) + 1)], 4096).plan(), 0, 1)
    assert share_a_read(plan, 0, 99)


def test_a_long_record_is_cut_into_reads_of_the_longest_size() -> None:
    begin, end = 4000, 4000 + 3 * MIB
    plan = Wanted([(0, begin, end)], 4096).plan()
    assert plan.offset.tolist() == [0, MIB, 2 * MIB, 3 * MIB]
    assert plan.length.tolist() == [MIB, MIB, MIB, 4096]
    assert plan.need.tolist() == [MIB, MIB, MIB, 4000]
    assert first_and_last(plan) == ([0], [3])


def test_records_that_are_far_apart_get_one_read_each() -> None:
    plan = Wanted([(0, MIB * (i + 1), MIB * (i + 1) + 100) for i in (3, 1, 2)], 4096).plan()
    assert plan.first is None
    assert plan.last is None
    assert order_of(plan) == [1, 2, 0]


@settings(max_examples=200)
@given(wanted(), st.sampled_from([1, 100 * KIB]))
def test_a_plan_for_cached_records_reads_just_these_in_the_order_of_the_batch(
    records: Wanted, apart: int
) -> None:
    rows = [
        (file, begin + apart * k, end + apart * k)
        for k, (file, begin, end) in enumerate(records.rows)
    ]
    records = Wanted(rows, 1)
    file, begin, end = np.array(rows, np.int64).T
    plan = extents.plan_cached(file, begin, end)
    sizes = end - begin
    if plan is None:
        near = np.ptp(begin) < len(rows) * extents.GAP
        in_a_row = any(a[2] == b[1] for a, b in itertools.pairwise(rows))
        large = sizes.mean() > extents.LARGE or sizes.max() > extents.LONGEST
        assert near or in_a_row or large
        return
    assert plan.order is None
    check(records, plan)
    assert plan.offset.tolist() == begin.tolist()
    assert plan.length.tolist() == plan.need.tolist() == sizes.tolist()


@pytest.mark.parametrize(
    ("rows", "planned"),
    [
        ([(k * MIB, k * MIB + 1000) for k in (5, 2, 9)], True),
        ([(k * MIB, k * MIB + 1000) for k in (5, 2, 2)], True),  # one of them twice
        ([(k * 2000, k * 2000 + 1000) for k in (5, 2, 9)], False),  # all close together
        ([(MIB, MIB + 1000), (MIB + 1000, MIB + 2000), (9 * MIB, 9 * MIB + 1)], False),
        ([(k * MIB, k * MIB + 200 * KIB) for k in (5, 2, 9)], False),  # large
    ],
    ids=["far apart", "a duplicate", "close together", "two in a row", "large"],
)
def test_only_small_records_that_are_far_apart_are_read_without_sorting(
    rows: list[tuple[int, int]], planned: bool
) -> None:
    begin, end = np.array(rows, np.int64).T
    assert (extents.plan_cached(None, begin, end) is not None) == planned
