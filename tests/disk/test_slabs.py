"""`ffrecord.disk.slabs`: memory is reused when its last view is gone, and never before."""

from __future__ import annotations

import gc
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ffrecord.aliases import Bytes
from ffrecord.disk import slabs
from ffrecord.disk.slabs import SlabPool

MIB = 1 << 20


def address(array: Bytes) -> int:
    return int(array.__array_interface__["data"][0])


@given(
    st.integers(1, 300_000)
    | st.sampled_from([slabs.SMALLEST - 1, slabs.SMALLEST, MIB, 2 * MIB - 1, 2 * MIB, 5 * MIB])
)
def test_memory_of_every_size_is_writable_and_aligned(size: int) -> None:
    memory = SlabPool().take(size)
    assert memory.dtype == np.uint8
    assert memory.shape == (size,)
    assert address(memory) % 4096 == 0
    memory[:] = 7
    assert int(memory.sum()) == 7 * size


def test_large_slabs_begin_on_a_huge_page() -> None:
    assert address(SlabPool().take(2 * MIB)) % slabs.HUGE_PAGE == 0


def test_a_dropped_slab_is_reused() -> None:
    pool = SlabPool()
    first = pool.take(MIB)
    where = address(first)
    del first
    assert pool.idle_bytes == MIB
    assert address(pool.take(MIB)) == where


def test_a_slab_serves_all_sizes_of_its_class() -> None:
    pool = SlabPool()
    where = address(pool.take(MIB))
    again = pool.take(MIB // 2 + 1)
    assert address(again) == where
    assert len(again) == MIB // 2 + 1
    assert address(pool.take(MIB // 2)) != where


def test_two_slabs_in_use_never_share_memory() -> None:
    pool = SlabPool()
    held = [pool.take(MIB) for _ in range(4)]
    for number, slab in enumerate(held):
        slab[:] = number
    assert [set(slab.tolist()) for slab in held] == [{0}, {1}, {2}, {3}]


@pytest.mark.parametrize(
    "derive",
    [
        lambda a: a[10:20],
        lambda a: a[10:40][5:15],
        lambda a: a[16:32].view(np.int32),
        lambda a: a[:100].reshape(10, 10).T,
        lambda a: memoryview(a)[3:5],
        lambda a: np.frombuffer(memoryview(a[8:]), np.uint8),
        lambda a: np.asarray(a)[::7],
        iter,
    ],
)
def test_a_slab_is_not_reused_while_a_view_lives(derive: object) -> None:
    pool = SlabPool()
    slab = pool.take(MIB)
    where = address(slab)
    view = derive(slab)  # type: ignore[operator]
    del slab
    gc.collect()
    assert pool.idle_bytes == 0
    other = pool.take(MIB)
    assert address(other) != where
    del view
    assert pool.idle_bytes == MIB
    assert address(pool.take(MIB)) == where


def test_a_view_keeps_its_bytes_while_others_come_and_go() -> None:
    pool = SlabPool()
    slab = pool.take(MIB)
    slab[:] = 42
    view = slab[1000:1010]
    del slab
    for _ in range(10):
        pool.take(MIB)[:] = 99
    assert view.tolist() == [42] * 10


def test_a_slab_returns_from_a_reference_cycle() -> None:
    pool = SlabPool()
    cycle: list[object] = [pool.take(MIB)]
    cycle.append(cycle)
    del cycle
    gc.collect()
    assert pool.idle_bytes == MIB


def test_small_sizes_are_ordinary_memory_and_never_idle() -> None:
    pool = SlabPool()
    small = pool.take(slabs.SMALLEST - 1)
    del small
    assert pool.idle_bytes == 0
    large = pool.take(slabs.SMALLEST)
    del large
    assert pool.idle_bytes == slabs.SMALLEST


def test_no_more_than_the_limit_stays_idle() -> None:
    pool = SlabPool(idle_limit=3 * MIB)
    held = [pool.take(MIB) for _ in range(8)]
    held.append(pool.take(2 * MIB))
    assert pool.idle_bytes == 0
    while held:
        held.pop()
        assert pool.idle_bytes <= 3 * MIB
    assert pool.idle_bytes == 3 * MIB


def test_a_limit_of_zero_keeps_nothing() -> None:
    pool = SlabPool(idle_limit=0)
    for _ in range(3):
        pool.take(MIB)
        assert pool.idle_bytes == 0


def test_a_slab_outlives_its_pool() -> None:
    pool = SlabPool()
    slab = pool.take(MIB)
    slab[:] = 3
    del pool
    gc.collect()
    assert int(slab.sum()) == 3 * MIB


def test_threads_never_get_the_same_memory_at_once() -> None:
    pool = SlabPool()

    def work(number: int) -> bool:
        right = True
        for turn in range(100):
            slab = pool.take(slabs.SMALLEST << (turn % 3))
            slab[:: 1 << 10] = number
            right &= bool((slab[:: 1 << 10] == number).all())
        return right

    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(work, range(8)))
