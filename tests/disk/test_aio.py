"""`ffrecord.disk.aio` against plain reads of the same file."""

from __future__ import annotations

import errno
import gc
import os
import struct
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from ffrecord.aliases import Bytes
from ffrecord.disk import aio
from ffrecord.disk.slabs import SlabPool
from tests.support import handmade

BLOCK = 4096
BLOCKS = 300
PROCESS_POOL = aio.contexts  # the real one; every test has a pool of its own in its place

needs_libaio = pytest.mark.skipif(aio._lib is None, reason="libaio is not installed")


@pytest.fixture
def data_file(tmp_path: Path) -> Path:
    path = tmp_path / "data"
    path.write_bytes(handmade.random_records([BLOCK * BLOCKS])[0])
    return path


@pytest.fixture
def fd(data_file: Path) -> Iterator[int]:
    fd = os.open(data_file, os.O_RDONLY)
    yield fd
    os.close(fd)


@pytest.fixture
def direct_fd(data_file: Path) -> Iterator[int]:
    try:
        fd = os.open(data_file, os.O_RDONLY | os.O_DIRECT)
    except OSError:
        pytest.skip("this file system has no O_DIRECT")
    yield fd
    os.close(fd)


@pytest.fixture(autouse=True)
def pool(monkeypatch: pytest.MonkeyPatch) -> Iterator[aio.ContextPool]:
    """A pool of this test's own, emptied after it."""
    pool = aio.ContextPool()
    monkeypatch.setattr(aio, "contexts", pool)
    yield pool
    gc.collect()
    for idle in pool._idle.values():
        for context in idle:
            context.close()


def borrow(pool: aio.ContextPool, wanted: int) -> aio.Context:
    context = pool.borrow(wanted)
    if context is None:
        pytest.skip("this machine has no AIO context left")
    return context


def flight_of(context: aio.Context, fds: list[int], blocks: list[int]) -> tuple[aio.Flight, Bytes]:
    """One read of a block per row, each to its own place in fresh memory full of 0xEE."""
    memory = SlabPool().take(BLOCK * len(blocks))
    memory[:] = 0xEE
    n = len(blocks)
    place, offset, length = np.arange(n) * BLOCK, np.array(blocks) * BLOCK, np.full(n, BLOCK)
    one_for_all = len(set(fds)) == 1
    flight = aio.Flight(
        context, memory, fds[0] if one_for_all else np.array(fds), place, offset, length
    )
    return flight, memory


def land_all(flight: aio.Flight, window: int) -> dict[int, int]:
    """Fly until everything has landed: the result of each read."""
    results: dict[int, int] = {}
    while not flight.done:
        flight.launch(window)
        for number, result in zip(*flight.land(1), strict=True):
            assert int(number) not in results
            results[int(number)] = int(result)
    return results


def block_of(path: Path, block: int) -> bytes:
    with path.open("rb") as file:
        file.seek(block * BLOCK)
        return file.read(BLOCK)


def expect_blocks(memory: Bytes, path: Path, blocks: list[int]) -> None:
    for row, block in enumerate(blocks):
        assert memory[row * BLOCK : (row + 1) * BLOCK].tobytes() == block_of(path, block), row


@needs_libaio
def test_requests_are_laid_out_as_the_kernels_struct(pool: aio.ContextPool) -> None:
    """struct iocb of linux/aio_abi.h, on a little-endian machine."""
    memory = SlabPool().take(3 * BLOCK)
    place, offset, length = np.array([0, 8192]), np.array([1 << 40, 5]), np.array([4096, 512])
    flight = aio.Flight(borrow(pool, 2), memory, np.array([3, 70_000]), place, offset, length, 8)
    at = int(memory.__array_interface__["data"][0])
    expected = [
        struct.pack("<QIiHhIQQqQII", 0, 0, 8, 0, 0, 3, at, 4096, 1 << 40, 0, 0, 0),
        struct.pack("<QIiHhIQQqQII", 1, 0, 8, 0, 0, 70_000, at + 8192, 512, 5, 0, 0, 0),
    ]
    assert flight._iocbs.tobytes() == b"".join(expected)
    assert aio.EVENT.itemsize == struct.calcsize("<QQqq")


@needs_libaio
@pytest.mark.parametrize("window", [1, 7, 1000])
@pytest.mark.parametrize("count", [1, 31, 33, 300])
def test_a_flight_reads_what_plain_reads_do(
    count: int, window: int, data_file: Path, fd: int, pool: aio.ContextPool
) -> None:
    blocks = [(7 * i) % BLOCKS for i in range(count)]
    flight, memory = flight_of(borrow(pool, 32), [fd] * count, blocks)
    assert land_all(flight, window) == dict.fromkeys(range(count), BLOCK)
    flight.close()
    expect_blocks(memory, data_file, blocks)


@needs_libaio
def test_a_flight_reads_past_the_page_cache(
    data_file: Path, direct_fd: int, pool: aio.ContextPool
) -> None:
    blocks = list(range(0, BLOCKS, 2))
    flight, memory = flight_of(borrow(pool, 32), [direct_fd] * len(blocks), blocks)
    assert set(land_all(flight, 1000).values()) == {BLOCK}
    flight.close()
    expect_blocks(memory, data_file, blocks)


@needs_libaio
def test_no_more_than_the_window_is_in_flight(direct_fd: int, pool: aio.ContextPool) -> None:
    flight, _memory = flight_of(borrow(pool, 32), [direct_fd] * 20, list(range(20)))
    flight.launch(5)
    assert (flight.flying, flight.unsent, flight.done) == (5, 15, False)
    flight.launch(5)
    assert (flight.flying, flight.unsent) == (5, 15)
    land_all(flight, 5)
    assert (flight.flying, flight.unsent, flight.done) == (0, 0, True)


@needs_libaio
def test_a_read_at_the_end_of_the_file_lands_short(
    data_file: Path, fd: int, pool: aio.ContextPool
) -> None:
    os.truncate(data_file, BLOCK * 3 + 100)
    flight, memory = flight_of(borrow(pool, 32), [fd] * 3, [2, 3, 4])
    assert land_all(flight, 10) == {0: BLOCK, 1: 100, 2: 0}
    assert memory[BLOCK : BLOCK + 100].tobytes() == block_of(data_file, 3)


@needs_libaio
@pytest.mark.parametrize("window", [1, 3, 100])
def test_a_refused_request_is_reported_and_the_others_are_read(
    window: int, data_file: Path, fd: int, pool: aio.ContextPool
) -> None:
    closed = os.dup(fd)
    os.close(closed)
    blocks = list(range(10))
    fds = [closed if block in (0, 4, 5, 9) else fd for block in blocks]
    flight, memory = flight_of(borrow(pool, 32), fds, blocks)
    results = land_all(flight, window)
    assert results == {b: -errno.EBADF if b in (0, 4, 5, 9) else BLOCK for b in blocks}
    for block in (1, 2, 3, 6, 7, 8):
        assert memory[block * BLOCK : (block + 1) * BLOCK].tobytes() == block_of(data_file, block)
    assert set(memory[4 * BLOCK : 6 * BLOCK].tolist()) == {0xEE}


@needs_libaio
def test_an_unaligned_direct_read_is_reported(direct_fd: int, pool: aio.ContextPool) -> None:
    memory = SlabPool().take(BLOCK)
    rows = np.array([0]), np.array([1]), np.array([BLOCK])
    flight = aio.Flight(borrow(pool, 1), memory, direct_fd, *rows)
    flight.launch(1)
    numbers, results = flight.land(1)
    if list(results) == [BLOCK]:
        pytest.skip("this file system aligns direct reads by itself")
    assert (list(numbers), list(results)) == ([0], [-errno.EINVAL])
    assert flight.done


@needs_libaio
def test_a_kernel_that_takes_one_request_at_a_time_gets_all(
    data_file: Path, fd: int, pool: aio.ContextPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit = aio.Context.submit
    monkeypatch.setattr(aio.Context, "submit", lambda self, at, _count: submit(self, at, 1))
    blocks = list(range(50))
    flight, memory = flight_of(borrow(pool, 64), [fd] * 50, blocks)
    assert land_all(flight, 50) == dict.fromkeys(range(50), BLOCK)
    expect_blocks(memory, data_file, blocks)


@needs_libaio
@pytest.mark.parametrize("answer", [0, -errno.EAGAIN])
def test_a_full_queue_is_tried_again_when_something_has_landed(
    answer: int, data_file: Path, fd: int, pool: aio.ContextPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit, calls = aio.Context.submit, [0]

    def sometimes(self: aio.Context, at: int, count: int) -> int:
        calls[0] += 1
        return answer if calls[0] % 2 == 0 else submit(self, at, min(count, 3))

    monkeypatch.setattr(aio.Context, "submit", sometimes)
    blocks = list(range(40))
    flight, memory = flight_of(borrow(pool, 64), [fd] * 40, blocks)
    assert land_all(flight, 40) == dict.fromkeys(range(40), BLOCK)
    expect_blocks(memory, data_file, blocks)


@needs_libaio
@pytest.mark.parametrize("answer", [0, -errno.EAGAIN, -errno.EINVAL])
def test_a_kernel_that_takes_nothing_refuses_every_request(
    answer: int, fd: int, pool: aio.ContextPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(aio.Context, "submit", lambda *_args: answer)
    flight, _memory = flight_of(borrow(pool, 32), [fd] * 5, list(range(5)))
    assert land_all(flight, 2) == dict.fromkeys(range(5), answer or -errno.EAGAIN)


@needs_libaio
def test_interrupted_calls_are_made_again(
    data_file: Path, fd: int, pool: aio.ContextPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    interruptions = [0]

    def interrupted(call: object) -> object:
        count = [0]

        def wrapper(*args: object) -> int:
            count[0] += 1
            if count[0] % 3:
                interruptions[0] += 1
                return -errno.EINTR
            return call(*args)  # type: ignore[operator,no-any-return]

        return wrapper

    monkeypatch.setattr(aio, "_io_submit", interrupted(aio._io_submit))
    monkeypatch.setattr(aio, "_io_getevents", interrupted(aio._io_getevents))
    blocks = list(range(40))
    flight, memory = flight_of(borrow(pool, 32), [fd] * 40, blocks)
    assert land_all(flight, 40) == dict.fromkeys(range(40), BLOCK)
    assert interruptions[0] >= 4
    expect_blocks(memory, data_file, blocks)


@needs_libaio
def test_a_failing_io_getevents_is_an_error(
    pool: aio.ContextPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(aio, "_io_getevents", lambda *_args: -errno.EINVAL)
    with pytest.raises(OSError, match="io_getevents") as caught:
        borrow(pool, 1).reap(1)
    assert caught.value.errno == errno.EINVAL


@needs_libaio
@pytest.mark.parametrize("good", [0, 1, 3])
def test_what_a_failing_io_getevents_did_not_tell_of_is_reported_as_failed(
    good: int, data_file: Path, direct_fd: int, pool: aio.ContextPool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    real, calls = aio._io_getevents, [0]

    def failing(context: object, _least: int, _most: int, *rest: object) -> int:
        calls[0] += 1
        return real(context, 1, 1, *rest) if calls[0] <= good else -errno.EINVAL

    monkeypatch.setattr(aio, "_io_getevents", failing)
    blocks = list(range(10))
    flight, memory = flight_of(borrow(pool, 32), [direct_fd] * 10, blocks)
    results = land_all(flight, 4)
    landed = [number for number, result in results.items() if result == BLOCK]
    assert len(results) == 10
    assert len(landed) == good
    assert all(results[number] == -errno.EIO for number in range(10) if number not in landed)
    for number in landed:
        part = memory[number * BLOCK : (number + 1) * BLOCK]
        assert part.tobytes() == block_of(data_file, number)
    flight.close()
    assert pool.borrow(32) is not None


@needs_libaio
def test_closing_waits_until_everything_in_flight_has_landed(
    data_file: Path, direct_fd: int, pool: aio.ContextPool
) -> None:
    blocks = list(range(200))
    flight, memory = flight_of(borrow(pool, 256), [direct_fd] * 200, blocks)
    flight.launch(200)
    flight.close()
    assert flight.flying == 0
    expect_blocks(memory, data_file, blocks)


@needs_libaio
@pytest.mark.parametrize("land_first", [False, True])
def test_more_may_be_in_flight_than_the_context_was_made_for(
    land_first: bool, data_file: Path, direct_fd: int, pool: aio.ContextPool
) -> None:
    """The kernel makes its ring larger than asked; all of it must land all the same."""
    blocks = list(range(BLOCKS))
    context = borrow(pool, 1)
    flight, memory = flight_of(context, [direct_fd] * BLOCKS, blocks)
    flight.launch(BLOCKS)
    if flight.flying <= context.capacity:
        pytest.skip("this kernel takes no more than it was asked for")
    sent = BLOCKS - flight.unsent
    try:
        if land_first:
            flight.land(flight.flying)
        flight.close()
        assert flight.flying == 0
        expect_blocks(memory, data_file, blocks[:sent])
    finally:  # whatever happened, nothing may be in flight when the memory goes
        while flight.flying:
            flight._landed += len(context.reap(min(flight.flying, context.capacity)))


@needs_libaio
def test_closing_before_anything_was_sent_leaves_the_memory_alone(
    direct_fd: int, pool: aio.ContextPool
) -> None:
    context = borrow(pool, 32)
    flight, memory = flight_of(context, [direct_fd] * 5, list(range(5)))
    flight.close()
    flight.close()
    assert set(memory.tolist()) == {0xEE}
    assert pool.borrow(32) is context


@needs_libaio
def test_a_dropped_flight_lands_and_gives_its_context_back(
    data_file: Path, direct_fd: int, pool: aio.ContextPool
) -> None:
    context = borrow(pool, 64)
    blocks = list(range(60))
    flight, memory = flight_of(context, [direct_fd] * 60, blocks)
    flight.launch(60)
    del flight
    expect_blocks(memory, data_file, blocks)
    assert pool.borrow(64) is context


@needs_libaio
def test_a_childs_copy_of_a_flight_is_not_its_own(direct_fd: int, pool: aio.ContextPool) -> None:
    flight, _memory = flight_of(borrow(pool, 32), [direct_fd] * 20, list(range(20)))
    flight.launch(20)
    assert flight.mine
    child = os.fork()
    if child == 0:
        wrong = flight.mine
        flight.close()  # must not wait for what never lands here
        os._exit(1 if wrong else 0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert set(land_all(flight, 20).values()) == {BLOCK}


@needs_libaio
@pytest.mark.parametrize(("wanted", "capacity"), [(1, 32), (32, 32), (33, 64), (1024, 1024)])
def test_a_context_holds_what_is_wanted(wanted: int, capacity: int, pool: aio.ContextPool) -> None:
    context = borrow(pool, wanted)
    assert context.capacity == capacity
    pool.give_back(context)


@needs_libaio
def test_no_context_is_larger_than_the_largest_class(pool: aio.ContextPool) -> None:
    context = borrow(pool, 1_000_000)
    assert context.capacity <= aio.CAPACITIES[-1]
    pool.give_back(context)


@needs_libaio
def test_a_context_given_back_is_borrowed_again(pool: aio.ContextPool) -> None:
    context = borrow(pool, 100)
    assert pool.borrow(100) is not context
    pool.give_back(context)
    assert pool.borrow(100) is context


@needs_libaio
def test_more_idle_contexts_than_wanted_are_closed(pool: aio.ContextPool) -> None:
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


def test_a_machine_without_contexts_gives_none(
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
def test_io_setup_refusing_is_an_error_with_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
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
