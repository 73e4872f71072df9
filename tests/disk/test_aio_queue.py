"""`ffrecord.disk.aio_queue` against plain reads of the same file."""

from __future__ import annotations

import errno
import os
import select
import struct
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from ffrecord.aliases import Bytes
from ffrecord.disk import aio
from ffrecord.disk.aio_queue import AioQueue
from ffrecord.disk.slabs import SlabPool
from tests.disk.contexts import borrow, needs_libaio, pool
from tests.support import handmade

__all__ = ["pool"]  # a fixture
BLOCK = 4096
BLOCKS = 300


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


def queue_of(context: aio.Context, fds: list[int], blocks: list[int]) -> tuple[AioQueue, Bytes]:
    """Return a queue with one read of a block per row, into fresh memory full of 0xEE."""
    memory = SlabPool().take(BLOCK * len(blocks))
    memory[:] = 0xEE
    n = len(blocks)
    place, offset, length = np.arange(n) * BLOCK, np.array(blocks) * BLOCK, np.full(n, BLOCK)
    one_for_all = len(set(fds)) == 1
    queue = AioQueue(context, n)
    queue.fill(memory, fds[0] if one_for_all else np.array(fds), place, offset, length)
    return queue, memory


def land_all(queue: AioQueue, window: int) -> dict[int, int]:
    """Launch and land until all reads are reported; return the result of each."""
    results: dict[int, int] = {}
    while not queue.done:
        queue.launch(window)
        for number, result in zip(*queue.land(1), strict=True):
            assert int(number) not in results
            results[int(number)] = int(result)
    return results


def finish_all(queue: AioQueue, _window: int) -> dict[int, int]:
    """Finish all reads at once; return the result of each."""
    return dict(enumerate(queue.finish().tolist()))


both_ways = pytest.mark.parametrize("collect", [land_all, finish_all])
Collect = Callable[[AioQueue, int], dict[int, int]]


def block_of(path: Path, block: int) -> bytes:
    with path.open("rb") as file:
        file.seek(block * BLOCK)
        return file.read(BLOCK)


def expect_blocks(memory: Bytes, path: Path, blocks: list[int]) -> None:
    for row, block in enumerate(blocks):
        assert memory[row * BLOCK : (row + 1) * BLOCK].tobytes() == block_of(path, block), row


@needs_libaio
def test_requests_are_laid_out_as_the_kernels_struct(pool: aio.ContextPool) -> None:
    """The layout is struct iocb of linux/aio_abi.h, on a little-endian machine."""
    memory = SlabPool().take(3 * BLOCK)
    place, offset, length = np.array([0, 8192]), np.array([1 << 40, 5]), np.array([4096, 512])
    queue = AioQueue(borrow(pool, 2), 2)
    queue.fill(memory, np.array([3, 70_000]), place, offset, length, 8)
    at = int(memory.__array_interface__["data"][0])
    expected = [
        struct.pack("<QIiHhIQQqQII", 0, 0, 8, 0, 0, 3, at, 4096, 1 << 40, 0, 0, 0),
        struct.pack("<QIiHhIQQqQII", 1, 0, 8, 0, 0, 70_000, at + 8192, 512, 5, 0, 0, 0),
    ]
    assert queue._iocbs.tobytes() == b"".join(expected)
    assert struct.calcsize("<QQqq") == 8 * aio.EVENT_WORDS


@needs_libaio
def test_a_single_request_is_laid_out_as_the_kernels_struct(pool: aio.ContextPool) -> None:
    queue = AioQueue(borrow(pool, 2), 2)
    memory = SlabPool().take(BLOCK)
    queue.put(1, 70_000, memory, 12_345_678, 1 << 40, 512, 9)
    expected = struct.pack(
        "<QIiHhIQQqQII", 1, 0, 0, 0, 0, 70_000, 12_345_678, 512, 1 << 40, 0, 1, 9
    )
    assert queue._iocbs.tobytes() == bytes(64) + expected


@needs_libaio
def test_a_reused_context_keeps_nothing_of_earlier_requests(
    data_file: Path, fd: int, pool: aio.ContextPool
) -> None:
    rows = Rows(borrow(pool, 32), fd, 4)
    for row, block in ((2, 9), (0, 8), (3, 7)):
        rows.put(row, block)
    rows.queue.launch(4)
    rows.land(3)
    rows.queue.close()
    context = borrow(pool, 32)
    queue, memory = queue_of(context, [fd] * 4, [1, 2, 3, 4])
    assert (queue._iocbs[:, aio.FLAGS] == 0).all()
    assert finish_all(queue, 4) == dict.fromkeys(range(4), BLOCK)
    expect_blocks(memory, data_file, [1, 2, 3, 4])
    rows.close()


class Rows:
    """Single reads of blocks, each into the memory of its row, as the mount does them."""

    def __init__(self, context: aio.Context, fd: int, rows: int) -> None:
        self.queue = AioQueue(context, rows)
        self.eventfd = os.eventfd(0, os.EFD_NONBLOCK)
        self._fd = fd
        self.blocks: dict[int, int] = {}
        self.memory = SlabPool().take(BLOCK * rows)

    def put(self, row: int, block: int) -> None:
        self.blocks[row] = block
        place = self.memory[row * BLOCK :][:BLOCK]
        place[:] = 0xEE
        address = int(place.__array_interface__["data"][0])
        self.queue.put(row, self._fd, place, address, block * BLOCK, BLOCK, self.eventfd)

    def land(self, at_least: int) -> dict[int, tuple[int, bytes]]:
        """Return the block and its bytes or error, for each row that has landed."""
        rows, results = self.queue.land(at_least)
        found = {}
        for row, result in zip(rows, results, strict=True):
            content = self.memory[row * BLOCK :][:BLOCK].tobytes()
            found[row] = (self.blocks.pop(row), content if result == BLOCK else b"%d" % result)
        return found

    def close(self) -> None:
        self.queue.close()
        os.close(self.eventfd)


@needs_libaio
@pytest.mark.parametrize("at_once", [1, 3, 100])
def test_rows_are_reused_even_if_the_kernel_takes_nothing_at_times(
    at_once: int, data_file: Path, direct_fd: int, pool: aio.ContextPool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """The kernel takes nothing every other time, so pointers are moved to the front."""
    submit, turns = aio.Context.submit, iter(range(1 << 30))

    def sometimes(self: aio.Context, at: int, count: int) -> int:
        return -errno.EAGAIN if next(turns) % 2 else submit(self, at, min(count, at_once))

    monkeypatch.setattr(aio.Context, "submit", sometimes)
    rows = Rows(borrow(pool, 32), direct_fd, 7)
    free, left, refused, told = list(range(7)), list(range(BLOCKS)), 0, []
    while left or not rows.queue.done:
        while free and left:
            rows.put(free.pop(), left.pop())
        rows.queue.launch(7)
        for row, (block, content) in rows.land(1).items():
            free.append(row)
            told.append(block)
            if content == b"%d" % -errno.EAGAIN:
                refused += 1
            else:
                assert content == block_of(data_file, block)
    assert sorted(told) == list(range(BLOCKS))
    assert refused < BLOCKS / 2
    assert rows.land(0) == {}
    rows.close()


@needs_libaio
def test_the_end_of_a_single_read_is_announced_and_found_without_waiting(
    data_file: Path, direct_fd: int, pool: aio.ContextPool
) -> None:
    rows = Rows(borrow(pool, 32), direct_fd, 2)
    rows.put(1, 42)
    assert rows.land(0) == {}  # nothing was submitted yet
    rows.queue.launch(2)
    assert select.select([rows.eventfd], [], [], 20.0)[0]
    assert rows.land(0) == {1: (42, block_of(data_file, 42))}
    assert rows.queue.done
    rows.close()


@needs_libaio
def test_a_refused_read_does_not_hide_another_that_has_landed(
    data_file: Path, direct_fd: int, pool: aio.ContextPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The eventfd is cleared before `land`, so a read that `land` misses is never announced."""
    rows = Rows(borrow(pool, 32), direct_fd, 2)
    rows.put(0, 42)
    rows.queue.launch(2)
    rows.put(1, 43)
    with monkeypatch.context() as patched:
        patched.setattr(aio.Context, "submit", lambda self, at, count: -errno.EBADF)
        rows.queue.launch(2)
    assert select.select([rows.eventfd], [], [], 20.0)[0]
    numbers, results = rows.queue.land(0)
    assert dict(zip(numbers, results, strict=True)) == {0: BLOCK, 1: -errno.EBADF}
    assert rows.queue.done
    rows.close()


@needs_libaio
def test_the_memory_of_a_single_read_is_kept_only_until_it_has_landed(
    direct_fd: int, pool: aio.ContextPool
) -> None:
    queue = AioQueue(borrow(pool, 32), 1)
    eventfd = os.eventfd(0)
    memory = SlabPool().take(BLOCK)
    kept = weakref.ref(memory)
    queue.put(0, direct_fd, memory, memory.ctypes.data, 0, BLOCK, eventfd)
    del memory
    queue.launch(1)
    assert kept() is not None
    assert queue.land(1) == ([0], [BLOCK])
    assert kept() is None
    queue.close()
    os.close(eventfd)


@needs_libaio
def test_single_reads_that_the_kernel_does_not_report_count_as_failed(
    direct_fd: int, pool: aio.ContextPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = Rows(borrow(pool, 32), direct_fd, 9)
    for row in (2, 5, 7):
        rows.put(row, row)
    rows.queue.launch(2)
    monkeypatch.setattr(aio, "_io_getevents", lambda *_args: -errno.EINVAL)
    assert rows.land(0) == {row: (row, b"%d" % -errno.EIO) for row in (2, 5, 7)}
    assert rows.queue.done
    assert not rows.queue.unsent
    assert not rows.queue.is_usable
    rows.close()


@needs_libaio
@pytest.mark.parametrize("window", [1, 7, 1000])
@pytest.mark.parametrize("count", [1, 31, 33, 300])
def test_a_queue_reads_the_same_bytes_as_plain_reads(
    count: int, window: int, data_file: Path, fd: int, pool: aio.ContextPool
) -> None:
    blocks = [(7 * i) % BLOCKS for i in range(count)]
    queue, memory = queue_of(borrow(pool, 32), [fd] * count, blocks)
    assert land_all(queue, window) == dict.fromkeys(range(count), BLOCK)
    queue.close()
    expect_blocks(memory, data_file, blocks)


@needs_libaio
def test_a_queue_bypasses_the_page_cache(
    data_file: Path, direct_fd: int, pool: aio.ContextPool
) -> None:
    blocks = list(range(0, BLOCKS, 2))
    queue, memory = queue_of(borrow(pool, 32), [direct_fd] * len(blocks), blocks)
    assert set(land_all(queue, 1000).values()) == {BLOCK}
    queue.close()
    expect_blocks(memory, data_file, blocks)


@needs_libaio
def test_no_more_than_the_window_is_in_flight(direct_fd: int, pool: aio.ContextPool) -> None:
    queue, _memory = queue_of(borrow(pool, 32), [direct_fd] * 20, list(range(20)))
    queue.launch(5)
    assert (queue.flying, queue.unsent, queue.done) == (5, 15, False)
    queue.launch(5)
    assert (queue.flying, queue.unsent) == (5, 15)
    land_all(queue, 5)
    assert (queue.flying, queue.unsent, queue.done) == (0, 0, True)


@needs_libaio
def test_a_read_at_the_end_of_the_file_lands_short(
    data_file: Path, fd: int, pool: aio.ContextPool
) -> None:
    os.truncate(data_file, BLOCK * 3 + 100)
    queue, memory = queue_of(borrow(pool, 32), [fd] * 3, [2, 3, 4])
    assert land_all(queue, 10) == {0: BLOCK, 1: 100, 2: 0}
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
    queue, memory = queue_of(borrow(pool, 32), fds, blocks)
    results = land_all(queue, window)
    assert results == {b: -errno.EBADF if b in (0, 4, 5, 9) else BLOCK for b in blocks}
    for block in (1, 2, 3, 6, 7, 8):
        assert memory[block * BLOCK : (block + 1) * BLOCK].tobytes() == block_of(data_file, block)
    assert set(memory[4 * BLOCK : 6 * BLOCK].tolist()) == {0xEE}


@needs_libaio
def test_an_unaligned_direct_read_is_reported(direct_fd: int, pool: aio.ContextPool) -> None:
    memory = SlabPool().take(BLOCK)
    rows = np.array([0]), np.array([1]), np.array([BLOCK])
    queue = AioQueue(borrow(pool, 1), 1)
    queue.fill(memory, direct_fd, *rows)
    queue.launch(1)
    numbers, results = queue.land(1)
    if list(results) == [BLOCK]:
        pytest.skip("this file system aligns direct reads by itself")
    assert (list(numbers), list(results)) == ([0], [-errno.EINVAL])
    assert queue.done


@needs_libaio
@both_ways
def test_a_kernel_that_takes_one_request_at_a_time_gets_all_of_them(
    collect: Collect,
    data_file: Path,
    fd: int,
    pool: aio.ContextPool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    submit = aio.Context.submit
    monkeypatch.setattr(aio.Context, "submit", lambda self, at, _count: submit(self, at, 1))
    blocks = list(range(50))
    queue, memory = queue_of(borrow(pool, 64), [fd] * 50, blocks)
    assert collect(queue, 50) == dict.fromkeys(range(50), BLOCK)
    expect_blocks(memory, data_file, blocks)


@needs_libaio
@both_ways
@pytest.mark.parametrize("answer", [0, -errno.EAGAIN])
def test_a_full_queue_is_retried_when_a_read_has_landed(
    collect: Collect,
    answer: int,
    data_file: Path,
    fd: int,
    pool: aio.ContextPool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    submit, calls = aio.Context.submit, [0]

    def sometimes(self: aio.Context, at: int, count: int) -> int:
        calls[0] += 1
        return answer if calls[0] % 2 == 0 else submit(self, at, min(count, 3))

    monkeypatch.setattr(aio.Context, "submit", sometimes)
    blocks = list(range(40))
    queue, memory = queue_of(borrow(pool, 64), [fd] * 40, blocks)
    assert collect(queue, 40) == dict.fromkeys(range(40), BLOCK)
    expect_blocks(memory, data_file, blocks)


@needs_libaio
@both_ways
@pytest.mark.parametrize("answer", [0, -errno.EAGAIN, -errno.EINVAL])
def test_a_kernel_that_takes_nothing_refuses_every_request(
    collect: Collect, answer: int, fd: int, pool: aio.ContextPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(aio.Context, "submit", lambda *_args: answer)
    queue, _memory = queue_of(borrow(pool, 32), [fd] * 5, list(range(5)))
    assert collect(queue, 2) == dict.fromkeys(range(5), answer or -errno.EAGAIN)


@needs_libaio
@both_ways
def test_interrupted_calls_are_retried(
    collect: Collect,
    data_file: Path,
    fd: int,
    pool: aio.ContextPool,
    monkeypatch: pytest.MonkeyPatch,
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
    queue, memory = queue_of(borrow(pool, 32), [fd] * 40, blocks)
    assert collect(queue, 40) == dict.fromkeys(range(40), BLOCK)
    assert interruptions[0] >= 4
    expect_blocks(memory, data_file, blocks)


@needs_libaio
@both_ways
@pytest.mark.parametrize("good", [0, 1, 3])
def test_reads_that_a_failing_io_getevents_hides_count_as_failed(
    collect: Collect, good: int, data_file: Path, direct_fd: int, pool: aio.ContextPool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    real, calls = aio._io_getevents, [0]

    def failing(context: object, _least: int, _most: int, *rest: object) -> int:
        calls[0] += 1
        return real(context, 1, 1, *rest) if calls[0] <= good else -errno.EINVAL

    monkeypatch.setattr(aio, "_io_getevents", failing)
    blocks = list(range(10))
    queue, memory = queue_of(borrow(pool, 32), [direct_fd] * 10, blocks)
    results = collect(queue, 4)
    landed = [number for number, result in results.items() if result == BLOCK]
    assert len(results) == 10
    assert len(landed) == good
    assert all(results[number] == -errno.EIO for number in range(10) if number not in landed)
    for number in landed:
        part = memory[number * BLOCK : (number + 1) * BLOCK]
        assert part.tobytes() == block_of(data_file, number)
    queue.close()
    assert pool.borrow(32) is not None


@needs_libaio
def test_closing_waits_until_everything_in_flight_has_landed(
    data_file: Path, direct_fd: int, pool: aio.ContextPool
) -> None:
    blocks = list(range(200))
    queue, memory = queue_of(borrow(pool, 256), [direct_fd] * 200, blocks)
    queue.launch(200)
    queue.close()
    assert queue.flying == 0
    expect_blocks(memory, data_file, blocks)


@needs_libaio
@pytest.mark.parametrize("land_first", [False, True])
def test_more_reads_than_the_capacity_may_be_in_flight(
    land_first: bool, data_file: Path, direct_fd: int, pool: aio.ContextPool
) -> None:
    """The kernel makes its ring larger than requested; all of these reads must land."""
    blocks = list(range(BLOCKS))
    context = borrow(pool, 1)
    queue, memory = queue_of(context, [direct_fd] * BLOCKS, blocks)
    queue.launch(BLOCKS)
    if queue.flying <= context.capacity:
        pytest.skip("this kernel takes no more than it was asked for")
    sent = BLOCKS - queue.unsent
    try:
        if land_first:
            queue.land(queue.flying)
        queue.close()
        assert queue.flying == 0
        expect_blocks(memory, data_file, blocks[:sent])
    finally:  # nothing may be in flight when the memory is freed
        while queue.flying:
            queue.flying -= len(context.reap(min(queue.flying, context.capacity))[0])


@needs_libaio
def test_closing_before_anything_was_sent_leaves_the_memory_alone(
    direct_fd: int, pool: aio.ContextPool
) -> None:
    context = borrow(pool, 32)
    queue, memory = queue_of(context, [direct_fd] * 5, list(range(5)))
    queue.close()
    queue.close()
    assert set(memory.tolist()) == {0xEE}
    assert pool.borrow(32) is context


@needs_libaio
def test_a_dropped_queue_lands_and_returns_its_context(
    data_file: Path, direct_fd: int, pool: aio.ContextPool
) -> None:
    context = borrow(pool, 64)
    blocks = list(range(60))
    queue, memory = queue_of(context, [direct_fd] * 60, blocks)
    queue.launch(60)
    del queue
    expect_blocks(memory, data_file, blocks)
    assert pool.borrow(64) is context


@needs_libaio
def test_a_forked_child_does_not_own_the_queue(direct_fd: int, pool: aio.ContextPool) -> None:
    queue, _memory = queue_of(borrow(pool, 32), [direct_fd] * 20, list(range(20)))
    queue.launch(20)
    assert queue.mine
    child = os.fork()
    if child == 0:
        wrong = queue.mine
        queue.close()  # must not wait: the parent's reads never land here
        os._exit(1 if wrong else 0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert set(land_all(queue, 20).values()) == {BLOCK}
