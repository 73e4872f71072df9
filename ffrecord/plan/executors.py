"""Run tasks on any `concurrent.futures.Executor`, and wait for all of them.

The standard library's executors, loky, Dask's `Client.get_executor()` and mpi4py's have this
interface. Only small values are sent: a task, and its receipt.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import BrokenExecutor, Executor, Future, as_completed
from typing import Any, TypeVar

from ffrecord.errors import FFRecordError

Result = TypeVar("Result")


def run_all(
    executor: Executor,
    function: Callable[..., Result],
    tasks: Iterable[tuple[Any, ...]],
    *,
    target: str,
    done: Callable[[Result], object] = lambda result: None,
) -> None:
    """Call `function` with the arguments of each task; give each result to `done`.

    After the first error, the other tasks are cancelled, and running ones are waited for.
    """
    try:
        wait([executor.submit(function, *task) for task in tasks], done)
    except BrokenExecutor as error:
        raise FFRecordError(
            f"{target}: a worker of the executor ended early, so nothing was written; if it was "
            "killed, run this again with a new executor"
        ) from error


def wait(
    futures: list[Future[Result]], done: Callable[[Result], object] = lambda result: None
) -> None:
    """Wait for all futures. After the first error, cancel the rest, wait for the end, and raise."""
    try:
        for future in as_completed(futures):
            done(future.result())
    except BaseException:
        for future in futures:
            future.cancel()
        for future in futures:
            if not future.cancelled():
                future.exception()
        raise


def in_order(
    executor: Executor, function: Callable[..., Result], tasks: Iterable[tuple[Any, ...]]
) -> list[Result]:
    """Return the results of tasks, in the order of the tasks."""
    futures = [executor.submit(function, *task) for task in tasks]
    wait(futures)
    return [future.result() for future in futures]
