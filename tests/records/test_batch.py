"""`ffrecord.records.batch`: each record is complete once its reads have arrived, in any order."""

from __future__ import annotations

import random

import numpy as np
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from ffrecord.disk import extents
from ffrecord.records import batch

MIB = 1 << 20


@settings(max_examples=200)
@given(
    st.lists(st.sampled_from([1, 500, 5000, MIB, 3 * MIB + 7]), min_size=1, max_size=12),
    st.data(),
)
def test_a_record_is_complete_once_when_its_last_read_arrives(
    sizes: list[int], data: st.DataObject
) -> None:
    ends = 100 + np.cumsum(sizes, dtype=np.int64)
    picks = data.draw(st.lists(st.integers(0, len(sizes) - 1), min_size=1, max_size=30))
    plan = extents.plan(None, (ends - np.array(sizes))[picks], ends[picks], 4096)
    # If each record needs one read, there is nothing to track.
    assume(plan.first is not None and plan.last is not None)
    assert plan.first is not None
    assert plan.last is not None
    needs = [
        set(range(first, last + 1))
        for first, last in zip(plan.first.tolist(), plan.last.tolist(), strict=True)
    ]
    reads = list(range(len(plan.offset)))
    random.Random(data.draw(st.integers(0, 999))).shuffle(reads)
    completion = batch._Completion(plan)
    arrived: set[int] = set()
    while reads:
        count = data.draw(st.integers(1, len(reads)))
        wave, reads = reads[:count], reads[count:]
        before = {k for k, need in enumerate(needs) if need <= arrived}
        arrived.update(wave)
        now = {k for k, need in enumerate(needs) if need <= arrived}
        complete = completion.after(wave)
        assert len(complete) == len(set(complete))
        assert set(complete) == now - before
