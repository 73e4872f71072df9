"""`ffrecord.disk.aio`: contexts, and the results of the system calls."""

from __future__ import annotations

import errno
import os
import sys

import pytest

from ffrecord.disk import aio
from tests.disk.contexts import borrow, needs_libaio, pool
from tests.support import handmade

__all__ = ["pool"]  # a fixture
PROCESS_POOL = aio.contexts  # the pool that the fixture `pool` replaces in every test


@needs_libaio
def test_a_failing_io_getevents_is_an_error(
    pool: aio.ContextPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(aio, "_io_getevents", lambda *_args: -errno.EINVAL)
    with pytest.raises(OSError, match="io_getevents") as caught:
        borrow(pool, 1).reap(1)
    assert caught.value.errno == errno.EINVAL


@needs_libaio
@pytest.mark.parametrize(("wanted", "capacity"), [(1, 32), (32, 32), (33, 64), (1024, 1024)])
def test_a_context_has_the_next_larger_capacity(
    wanted: int, capacity: int, pool: aio.ContextPool
) -> None:
    context = borrow(pool, wanted)
    assert context.capacity == capacity
    pool.give_back(context)


@needs_libaio
def test_no_context_is_larger_than_the_largest_capacity(pool: aio.ContextPool) -> None:
    context = borrow(pool, 1_000_000)
    assert context.capacity <= aio.CAPACITIES[-1]
    pool.give_back(context)


@needs_libaio
def test_a_returned_context_is_reused(pool: aio.ContextPool) -> None:
    context = borrow(pool, 100)
    assert pool.borrow(100) is not context
    pool.give_back(context)
    assert pool.borrow(100) is context


@needs_libaio
def test_surplus_idle_contexts_are_closed(pool: aio.ContextPool) -> None:
    before = handmade.aio_contexts()
    held = [borrow(pool, 32) for _ in range(aio.IDLE_EACH + 3)]
    assert handmade.aio_contexts() == before + len(held)
    for context in held:
        pool.give_back(context)
    assert handmade.aio_contexts() == before + aio.IDLE_EACH


def test_a_machine_short_of_contexts_gives_a_smaller_one(
    pool: aio.ContextPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Scarce:
        def __init__(self, capacity: int) -> None:
            if capacity > 64:
                raise OSError(errno.EAGAIN, "used up")
            self.capacity = capacity

        def close(self) -> None:
            pass

    monkeypatch.setattr(aio, "Context", Scarce)
    context = pool.borrow(1000)
    assert context is not None
    assert context.capacity == 64


def test_a_machine_without_contexts_gives_no_context(
    pool: aio.ContextPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[int] = []

    def none_left(capacity: int) -> aio.Context:
        tried.append(capacity)
        raise OSError(errno.EAGAIN, "used up")

    monkeypatch.setattr(aio, "Context", none_left)
    assert pool.borrow(200) is None
    assert tried == [256, 128, 64, 32]


@needs_libaio
def test_a_refused_io_setup_is_an_error_with_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aio, "_io_setup", lambda *_args: -errno.EAGAIN)
    with pytest.raises(BlockingIOError, match="io_setup") as caught:
        aio.Context(32)
    assert caught.value.errno == errno.EAGAIN


def test_without_libaio_there_is_no_context(
    pool: aio.ContextPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(aio, "_lib", None)
    with pytest.raises(OSError, match="libaio is not installed"):
        aio.Context(32)
    assert pool.borrow(10) is None


@pytest.mark.parametrize("missing", ["libaio", "libaio.libaio"])
def test_a_missing_library_is_not_an_error_at_import(
    missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    if missing == "libaio.libaio":
        monkeypatch.delattr("libaio.libaio", raising=False)
    assert aio._load() is None


@needs_libaio
def test_a_forked_child_forgets_its_parents_contexts() -> None:
    PROCESS_POOL.give_back(borrow(PROCESS_POOL, 32))
    child = os.fork()
    if child == 0:
        os._exit(sum(len(idle) for idle in PROCESS_POOL._idle.values()))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert len(PROCESS_POOL._idle[32]) >= 1
