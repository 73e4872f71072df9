"""Tasks on an executor that breaks, or cancels: the caller gets an error of ours, and no task runs
on.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, Future, ThreadPoolExecutor
from typing import Any

import pytest

from ffrecord import FFRecordError
from ffrecord.plan.executors import in_order, run_all
from tests.support.patience import PATIENCE


@pytest.mark.parametrize("executor", ["dask", threading])
def test_another_thing_than_an_executor_is_named(executor: Any) -> None:
    with pytest.raises(TypeError, match=r"executor must be a .*Executor\(\), not (str|module)"):
        run_all(executor, print, [(1,)], target="out")


class BreakingExecutor(ThreadPoolExecutor):
    """Takes two calls, then breaks."""

    def __init__(self) -> None:
        super().__init__(1)
        self.futures: list[Future[Any]] = []

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        if len(self.futures) == 2:
            raise BrokenExecutor
        self.futures.append(super().submit(fn, *args, **kwargs))
        return self.futures[-1]


@pytest.mark.parametrize("run", [run_all, in_order])
def test_no_task_runs_on_if_the_executor_breaks_meanwhile(run: Callable[..., Any]) -> None:
    begun, other_ended, ended = threading.Event(), threading.Event(), list[int]()

    def work(number: int) -> None:
        begun.set()
        other_ended.wait(PATIENCE)
        ended.append(number)

    def tasks() -> Any:
        yield (0,)
        assert begun.wait(PATIENCE)
        yield (1,)
        executor.futures[1].add_done_callback(lambda _: other_ended.set())
        yield (2,)

    with BreakingExecutor() as executor:
        with pytest.raises(FFRecordError, match="out: a worker of the executor ended early"):
            run(executor, work, tasks(), target="out")
        assert ended == [0]
        assert executor.futures[1].cancelled()


@pytest.mark.parametrize("run", [run_all, in_order])
def test_an_executor_that_was_shut_down_is_an_error_that_says_so(run: Callable[..., Any]) -> None:
    executor, ended = ThreadPoolExecutor(1), list[int]()

    def tasks() -> Any:
        yield (0,)
        executor.shutdown(wait=False)
        yield (1,)

    with pytest.raises(FFRecordError, match=r"out: the executor refused .*shutdown") as caught:
        run(executor, ended.append, tasks(), target="out")
    assert ended == [0]
    assert isinstance(caught.value.__cause__, RuntimeError)


def test_tasks_that_an_executor_cancels_are_an_error_that_says_so() -> None:
    with ThreadPoolExecutor(1) as executor:
        submitted = threading.Event()

        def end(number: int) -> None:
            assert submitted.wait(PATIENCE)
            executor.shutdown(wait=False, cancel_futures=True)

        def tasks() -> Any:
            yield (0,)
            yield (1,)
            submitted.set()

        with pytest.raises(FFRecordError, match="out: the executor cancelled a task"):
            run_all(executor, end, tasks(), target="out")
