"""`SparkExecutor`: calls as jobs of Spark.

Only `ffrecord.cluster.spark` imports this module, when it knows that PySpark is installed.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, Future, ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, cast

from pyspark import cloudpickle, inheritable_thread_target

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

Result = TypeVar("Result")
dumps: Callable[[Any], bytes] = cloudpickle.dumps  # it has no types


class SparkExecutor(ThreadPoolExecutor):
    """A `concurrent.futures.Executor` whose calls run as tasks of a Spark session.

    Each call is a job with one task. Spark runs it again if its executor is lost, and may run a
    slow one twice (`spark.speculation`), so a call must be repeatable. An exception of the call
    itself is raised by the future, and the call is not run again. If Spark gives a call up, its
    future raises `BrokenExecutor`.

    The threads of this class only wait for jobs. The jobs have the tags, the group and the pool of
    the thread that calls `submit`.

    Args:
        session: a session with its own driver. A session of Spark Connect has no tasks to give.
        jobs: the most jobs at once; by default, two for each core that Spark has now. A cluster
            that grows on demand needs a number.
    """

    def __init__(self, session: SparkSession, jobs: int | None = None) -> None:
        self._session = session
        jobs = jobs or 2 * session.sparkContext.defaultParallelism
        super().__init__(jobs, "ffrecord-spark")

    def submit(
        self, fn: Callable[..., Result], /, *args: Any, **kwargs: Any
    ) -> Future[Result]:  # fmt: skip
        run = inheritable_thread_target(self._session)(_run_job)
        return super().submit(run, self._session.sparkContext, partial(fn, *args, **kwargs))


def _run_job(context: SparkContext, call: Callable[[], Result]) -> Result:
    """Run a call as a task; return its result, or raise its exception."""
    pickled = dumps(call)
    task = context.range(1, numSlices=1).map(lambda _: _outcome(pickled))
    try:
        (outcome,) = task.collect()
    except Exception as failure:  # of Spark: an error of the call is in the outcome
        reason = str(failure).splitlines() or [type(failure).__name__]
        raise BrokenExecutor(f"Spark could not run a task: {reason[0]}") from failure
    result, error = pickle.loads(outcome)
    if error is not None:
        raise error
    return cast(Result, result)


def _outcome(pickled: bytes) -> bytes:
    """Run a pickled call in a task. Return its result and exception, pickled.

    If the exception were raised here, Spark would repeat the call and report the text alone.
    """
    result = error = None
    try:
        result = pickle.loads(pickled)()
    except Exception as raised:
        error = raised
    return dumps((result, error))
