"""Run tasks on any `concurrent.futures.Executor`, and wait for all of them.

The standard library's executors, loky, Dask's `Client.get_executor()` and mpi4py's have this
interface. Only small values are sent: a task, and its receipt.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import BrokenExecutor, CancelledError, Executor, Future
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

from ffrecord.errors import FFRecordError
from ffrecord.plan.receipts import new_key

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

    After the first error, the other tasks are cancelled, and running ones are waited for. Errors
    about lost tasks name `target`.
    """
    with _losses_named(target):
        wait(submitted(executor, function, tasks, target=target), done)


def in_order(
    executor: Executor,
    function: Callable[..., Result],
    tasks: Iterable[tuple[Any, ...]],
    *,
    target: str,
) -> list[Result]:
    """Return the results of tasks, in the order of the tasks. Otherwise the same as `run_all`."""
    with _losses_named(target):
        futures = submitted(executor, function, tasks, target=target)
        wait(futures)
    return [future.result() for future in futures]


@contextlib.contextmanager
def _losses_named(target: str) -> Iterator[None]:
    """Turn the loss of a worker or a task into an error that says what to do."""
    try:
        yield
    except BrokenExecutor as error:
        raise FFRecordError(
            f"{target}: a worker of the executor ended early, so nothing was written; if it was "
            "killed, run this again with a new executor"
        ) from error
    except CancelledError as error:
        raise FFRecordError(
            f"{target}: the executor cancelled a task, so nothing was written; run this again with "
            "an executor that stays open"
        ) from error


def submitted(
    executor: Executor,
    function: Callable[..., Result],
    tasks: Iterable[tuple[Any, ...]],
    *,
    target: str,
) -> list[Future[Result]]:
    """Submit all tasks. If that fails, cancel those not begun, and wait for the others."""
    if not callable(getattr(executor, "submit", None)):
        raise TypeError(
            "executor must be a concurrent.futures.Executor, such as "
            f"ProcessPoolExecutor(), not {type(executor).__name__}"
        )
    futures: list[Future[Result]] = []
    try:
        for task in tasks:
            with _refusal_named(target):
                futures.append(executor.submit(_Call(function, new_key()), *task))
    except BaseException:
        _end(futures)
        raise
    return futures


@contextlib.contextmanager
def _refusal_named(target: str) -> Iterator[None]:
    """Turn the error of an executor that was shut down into one that says what to do."""
    try:
        yield
    except BrokenExecutor:  # is a RuntimeError, too
        raise
    except RuntimeError as error:
        raise FFRecordError(
            f"{target}: the executor refused a task ({error}), so nothing was written; if it was "
            "shut down, run this again with a new executor"
        ) from error


def wait(
    futures: list[Future[Result]], done: Callable[[Result], object] = lambda result: None
) -> None:
    """Wait for all futures. After the first error, cancel the rest, wait for the end, and raise."""
    # `as_completed` would wait for ever for futures that a pool cancels while it shuts down.
    ended: SimpleQueue[Future[Result]] = SimpleQueue()
    try:
        for future in futures:
            future.add_done_callback(ended.put)
        for _ in futures:
            done(ended.get().result())
    except BaseException:
        _end(futures)
        raise


def _end(futures: list[Future[Result]]) -> None:
    """Cancel the futures that have not begun, and wait for the others."""
    for future in futures:
        future.cancel()
    for future in futures:
        with contextlib.suppress(CancelledError):
            future.exception()


@dataclass(frozen=True)
class _Call(Generic[Result]):
    """A function that equals no other one.

    Dask takes equal calls for one call. It would return an old result, such as the listing of a
    folder that has changed, for as long as anything holds the future of the first call. A notebook
    holds those of a cell that raised an error.
    """

    function: Callable[..., Result]
    key: str

    @property
    def __name__(self) -> str:
        """The name of the function, which Dask shows."""
        return str(getattr(self.function, "__name__", "call"))

    def __call__(self, *task: Any) -> Result:
        return self.function(*task)
