"""Use one reader from many threads and processes at once, also without free AIO contexts."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import random
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path

import pytest

from ffrecord import FileReader
from ffrecord.disk import aio
from tests.support import handmade

MODES = ["auto", "aio", "buffered", "mmap"]
N = 400


@pytest.fixture(scope="module")
def records() -> list[bytes]:
    """Make records of random sizes."""
    generator = random.Random(7)
    return handmade.random_records([generator.randrange(0, 12_000) for _ in range(N)], seed=7)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory, records: list[bytes]) -> Path:
    """Write the records to a file that all tests share."""
    return handmade.write_records(tmp_path_factory.mktemp("shared") / "shared.ffr", records)


@pytest.fixture(params=MODES)
def reader(request: pytest.FixtureRequest, path: Path) -> Iterator[FileReader]:
    """Open the file in each mode."""
    with FileReader(path, mode=request.param) as reader:
        yield reader


def all_right(reader: FileReader, records: list[bytes], seed: int, batches: int) -> bool:
    """Read random batches in all ways; return True if all records are right."""
    generator = random.Random(seed)
    for turn in range(batches):
        indices = generator.choices(range(N), k=generator.choice([1, 2, 3, 20, 100]))
        expected = [records[i] for i in indices]
        ahead = reader.read_async(indices[::-1])
        if handmade.as_bytes(reader.read(indices)) != expected:
            return False
        if turn % 7 == 3:
            del ahead
        elif handmade.as_bytes(ahead.result()) != expected[::-1]:
            return False
        if reader.read_one(indices[0]).tobytes() != expected[0]:
            return False
    return handmade.as_bytes(reader) == records


def fork(work: Callable[[], bool]) -> int:
    """Start `work` in a child process; its exit code is 0 if `work` returns True."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            code = 0 if work() else 2
        finally:
            os._exit(code)
    return child


def exit_code(child: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


# ---- threads -------------------------------------------------------------------------------


def test_eight_threads_share_a_reader(reader: FileReader, records: list[bytes]) -> None:
    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(lambda seed: all_right(reader, records, seed, 30), range(8)))


def test_a_batch_started_in_one_thread_may_be_collected_in_another(
    reader: FileReader, records: list[bytes]
) -> None:
    pending = [reader.read_async(range(i, N, 10)) for i in range(10)]
    with ThreadPoolExecutor(8) as threads:
        for i, got in enumerate(threads.map(lambda p: handmade.as_bytes(p.result()), pending)):
            assert got == records[i::10]


def test_closing_in_one_thread_does_not_disturb_reads_in_others(
    path: Path, records: list[bytes]
) -> None:
    """Each read returns the right records or raises ClosedError."""
    for turn in range(20):
        reader = FileReader(path, mode=MODES[turn % 3])
        started = threading.Barrier(5)

        def work(
            seed: int, reader: FileReader = reader, started: threading.Barrier = started
        ) -> str:
            started.wait()
            try:
                return "right" if all_right(reader, records, seed, 5) else "wrong"
            except RuntimeError as error:
                return type(error).__name__

        with ThreadPoolExecutor(4) as threads:
            results = [threads.submit(work, seed) for seed in range(4)]
            started.wait()
            reader.close()
            assert {result.result() for result in results} <= {"right", "ClosedError"}


# ---- processes -----------------------------------------------------------------------------


def test_parent_and_forked_children_read_at_the_same_time(
    reader: FileReader, records: list[bytes]
) -> None:
    assert all_right(reader, records, 0, 3)  # make contexts, slabs and helpers before the fork
    children = [
        fork(lambda seed=seed: all_right(reader, records, seed, 40))  # type: ignore[misc]
        for seed in range(1, 4)
    ]
    assert all_right(reader, records, 5, 40)
    assert [exit_code(child) for child in children] == [0, 0, 0]


def test_a_grandchild_reads_too(reader: FileReader, records: list[bytes]) -> None:
    def child() -> bool:
        grandchild = fork(lambda: all_right(reader, records, 2, 5))
        return all_right(reader, records, 1, 5) and exit_code(grandchild) == 0

    assert exit_code(fork(child)) == 0


def test_reads_in_flight_across_a_fork_arrive_in_the_parent(
    path: Path, reader: FileReader, records: list[bytes]
) -> None:
    for turn in range(10):
        handmade.evict(path)
        pending = reader.read_async(range(N))
        child = fork(lambda turn=turn: all_right(reader, records, turn, 1))  # type: ignore[misc]
        assert handmade.as_bytes(pending.result()) == records
        assert exit_code(child) == 0


def test_a_child_forked_while_threads_read_gets_right_records(
    reader: FileReader, records: list[bytes]
) -> None:
    stop = threading.Event()

    def keep_reading(seed: int) -> bool:
        right = True
        while not stop.is_set():
            right &= all_right(reader, records, seed, 1)
        return right

    with ThreadPoolExecutor(3) as threads:
        readers = [threads.submit(keep_reading, seed) for seed in range(3)]
        try:
            children = [
                fork(lambda seed=seed: all_right(reader, records, seed, 5))  # type: ignore[misc]
                for seed in range(5)
            ]
            codes = [exit_code(child) for child in children]
        finally:
            stop.set()
        assert codes == [0] * 5
        assert all(thread.result() for thread in readers)


def test_closing_in_a_child_does_not_close_the_parents_reader(
    reader: FileReader, records: list[bytes]
) -> None:
    def close() -> bool:
        reader.close()
        return True

    assert exit_code(fork(close)) == 0
    assert all_right(reader, records, 1, 3)


def in_worker(reader: FileReader, records: list[bytes], seed: int) -> bool:
    return all_right(reader, records, seed, 5)


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_worker_processes_can_use_a_pickled_reader(
    method: str, path: Path, records: list[bytes]
) -> None:
    context = multiprocessing.get_context(method)
    with ProcessPoolExecutor(2, mp_context=context) as workers, FileReader(path) as reader:
        results = [workers.submit(in_worker, reader, records, seed) for seed in range(4)]
        assert all_right(reader, records, 9, 5)
        assert all(result.result() for result in results)


def child_main(
    reader: FileReader, records: list[bytes], answers: multiprocessing.Queue[bool]
) -> None:
    answers.put(all_right(reader, records, 3, 10))


def test_a_process_forked_by_multiprocessing_uses_the_inherited_reader(
    reader: FileReader, records: list[bytes]
) -> None:
    assert all_right(reader, records, 1, 3)
    context = multiprocessing.get_context("fork")
    answers = context.Queue()
    process = context.Process(target=child_main, args=(reader, records, answers))
    process.start()
    assert all_right(reader, records, 2, 10)
    assert answers.get() is True
    process.join()
    assert process.exitcode == 0


# ---- no free AIO contexts ------------------------------------------------------------------


@pytest.fixture
def no_contexts_left(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Use up all AIO contexts (fs.aio-max-nr) while the test runs."""
    if aio._lib is None:
        pytest.skip("libaio is not installed")
    monkeypatch.setattr(aio, "contexts", aio.ContextPool())
    held: list[aio.Context] = []
    try:
        for capacity in (16384, 4096, 1024, 32, 1):
            while len(held) < 2000:
                try:
                    held.append(aio.Context(capacity))
                except OSError:
                    break
        if aio.ContextPool().borrow(1) is not None:
            pytest.skip("this machine has more AIO contexts than can be used up here")
        yield
    finally:
        for context in held:
            context.close()


@pytest.mark.usefixtures("no_contexts_left")
def test_reads_are_right_without_free_contexts(path: Path, records: list[bytes]) -> None:
    """All modes are in one test, because the kernel needs a second to free so many contexts."""
    for mode, cached in itertools.product(MODES, [True, False]):
        with FileReader(path, mode=mode) as reader:
            if cached:
                path.read_bytes()
            else:
                handmade.evict(path)
            assert all_right(reader, records, 1, 10), (mode, cached)


def test_a_reader_uses_aio_again_when_contexts_are_free(
    path: Path, records: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    if aio._lib is None:
        pytest.skip("libaio is not installed")

    def none_left(_capacity: int) -> aio.Context:
        raise OSError(11, "used up")

    pool = aio.ContextPool()
    monkeypatch.setattr(aio, "contexts", pool)
    with FileReader(path, mode="aio") as reader:
        with monkeypatch.context() as exhausted:
            exhausted.setattr(aio, "Context", none_left)
            assert handmade.as_bytes(reader.read(range(N))) == records
        assert handmade.as_bytes(reader.read(range(N))) == records
    idle = [context for contexts in pool._idle.values() for context in contexts]
    assert len(idle) == 1
    idle[0].close()
