"""`RayExecutor`: calls as tasks of Ray.

Only `ffrecord.cluster.ray` imports this module, when it knows that Ray is installed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, Executor, Future
from typing import Any

import ray
from ray.exceptions import NodeDiedError, OwnerDiedError, RayTaskError, WorkerCrashedError

RETRIES = 3
"""Times that a task is run again when its worker or node was killed."""


class RayExecutor(Executor):
    """A `concurrent.futures.Executor` whose calls are tasks of Ray.

    For `pack_folder(executor=…)`, `write_dataset(executor=…)` and `convert(executor=…)`. A call
    whose worker or node is killed is run again. If that happens too often, its future raises
    `BrokenExecutor`. Leaving the `with` block waits for all calls.

    `cancel` of a future interrupts a call that runs, and returns False: its future ends with an
    error.

    Args:
        num_cpus: processors that a call needs.
        retries: times that a call is run again when its worker or node was killed.
        options: further options of `ray.remote`, such as `resources`.
    """

    def __init__(self, num_cpus: float = 1, *, retries: int = RETRIES, **options: Any) -> None:
        if not ray.is_initialized():
            ray.init()
        self._options = {"num_cpus": num_cpus, "max_retries": retries, **options}
        self._call = ray.remote(_call).options(**self._options)
        self._lock = threading.Lock()
        self._flying: set[_RayFuture] = set()
        self._is_shut_down = False

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        with self._lock:
            if self._is_shut_down:
                raise RuntimeError("this RayExecutor was shut down; make a new one")
            future = _RayFuture(self._call.remote(fn, args, kwargs))
            self._flying.add(future)
        future.add_done_callback(self._landed)
        future.follow()
        return future

    def _landed(self, future: Future[Any]) -> None:
        with self._lock:
            self._flying.discard(future)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no more calls. Wait for those that were submitted, or cancel them."""
        with self._lock:
            self._is_shut_down = True
            flying = list(self._flying)
        if cancel_futures:
            for future in flying:
                future.cancel()
        if wait:
            for future in flying:
                future.exception()


def _call(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return fn(*args, **kwargs)


class _RayFuture(Future[Any]):
    """The result of a task of Ray."""

    def __init__(self, reference: Any) -> None:
        super().__init__()
        self._reference = reference
        self.set_running_or_notify_cancel()  # Ray does not tell when a task begins

    def follow(self) -> None:
        """Take the result when there is one."""
        self._reference.future().add_done_callback(self._take)

    def _take(self, ended: Future[Any]) -> None:
        error = ended.exception()
        if error is None:
            self.set_result(ended.result())
        else:
            self.set_exception(_plain(error))

    def cancel(self) -> bool:
        if not self.done():
            ray.cancel(self._reference)
        return False


def _plain(error: BaseException) -> BaseException:
    """Return the error that a call raised, or BrokenExecutor for a lost worker."""
    if isinstance(error, RayTaskError):
        cause = error.cause
        if isinstance(cause, BaseException):
            cause.__cause__ = error  # it has the traceback of the worker
            return cause
    if isinstance(error, (WorkerCrashedError, NodeDiedError, OwnerDiedError)):
        broken = BrokenExecutor(f"a worker of Ray was killed, too often: {error}")
        broken.__cause__ = error
        return broken
    return error
