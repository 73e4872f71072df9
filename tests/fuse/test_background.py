"""Jobs that run in threads beside a worker's loop."""

from __future__ import annotations

import gc
import os
import select
import threading
import time
import weakref
from collections.abc import Callable, Iterator

import pytest

from ffrecord_fuse.serve.background import Background
from tests.support.patience import PATIENCE


@pytest.fixture
def eventfd() -> Iterator[int]:
    fd = os.eventfd(0, os.EFD_NONBLOCK)
    yield fd
    os.close(fd)


def ended(background: Background, eventfd: int) -> dict[object, Exception | None]:
    """Collect the results of all jobs. Look only when the eventfd is readable, as the loop does."""
    found: dict[object, Exception | None] = {}
    while background.under_way:
        assert select.select([eventfd], [], [], PATIENCE)[0], (
            "the eventfd does not announce the end of a job"
        )
        os.eventfd_read(eventfd)
        found.update(background.ended())
    return found


def fail(error: Exception) -> None:
    raise error


def test_every_token_is_returned_once_with_its_error(eventfd: int) -> None:
    background = Background(eventfd, 3)
    error, done = ValueError("a defect"), list[int]()
    assert not background.under_way
    for number in range(20):
        background.run(number, lambda number=number: done.append(number))  # type: ignore[misc]
    background.run(99, lambda: fail(error))
    assert ended(background, eventfd) == {**dict.fromkeys(range(20)), 99: error}
    assert sorted(done) == list(range(20))
    assert background.ended() == []
    background.close()


def test_threads_start_on_demand_up_to_the_limit(eventfd: int) -> None:
    before = threading.active_count()
    background, gate = Background(eventfd, 3), threading.Event()
    for _ in range(5):  # jobs one after the other need one thread
        background.run("short", lambda: None)
        ended(background, eventfd)
        assert threading.active_count() == before + 1
    for number in range(10):
        background.run(number, lambda: gate.wait(PATIENCE))
        assert threading.active_count() == before + min(number + 1, 3)
    gate.set()
    assert ended(background, eventfd) == dict.fromkeys(range(10))
    background.close()
    assert threading.active_count() == before


def refuse_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)


def test_a_job_without_a_thread_is_not_run_later(
    eventfd: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    background = Background(eventfd, 2)
    with monkeypatch.context() as patched:
        refuse_threads(patched)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            background.run("refused", lambda: done.append("refused"))
    assert not background.under_way
    background.run("taken", lambda: done.append("taken"))
    assert ended(background, eventfd) == {"taken": None}
    assert done == ["taken"]
    background.close()


def test_existing_threads_do_the_work_if_no_more_can_start(
    eventfd: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    background = Background(eventfd, 4)
    background.run(99, lambda: None)
    refuse_threads(monkeypatch)
    for number in range(10):
        background.run(number, lambda: None)
    assert ended(background, eventfd) == dict.fromkeys([99, *range(10)])
    background.close()


def test_closing_waits_for_running_jobs_and_drops_the_rest(eventfd: int) -> None:
    background, gate, begun = Background(eventfd, 2), threading.Event(), []

    def work(number: int) -> Callable[[], None]:
        def wait() -> None:
            begun.append(number)
            assert gate.wait(PATIENCE)

        return wait

    for number in range(6):
        background.run(number, work(number))
    while len(begun) < 2:
        time.sleep(0.001)
    closing = threading.Thread(target=background.close)
    closing.start()
    time.sleep(0.1)
    assert closing.is_alive()
    gate.set()
    closing.join(PATIENCE)
    assert not closing.is_alive()
    assert len(begun) == 2


class Memory:
    pass


@pytest.mark.parametrize("fails", [False, True])
def test_an_ended_job_keeps_no_memory(eventfd: int, fails: bool) -> None:
    background, memory = Background(eventfd, 1), Memory()
    kept = weakref.ref(memory)

    def work(held: Memory = memory) -> None:
        assert held
        if fails:
            raise ValueError("a defect")

    background.run(memory, work)
    del memory, work
    ended(background, eventfd)
    deadline = time.monotonic() + PATIENCE
    while kept() is not None and time.monotonic() < deadline:  # the thread drops it soon
        gc.collect()
        time.sleep(0.001)
    assert kept() is None
    background.close()
