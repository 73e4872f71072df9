"""Run long jobs in threads, so that a worker's loop can continue to answer requests."""

from __future__ import annotations

import contextlib
import os
from collections import deque
from collections.abc import Callable
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any


class Background:
    """A pool of threads that start on demand.

    Each job has a token. `ended` returns the token with the job's exception, or with None. Jobs run
    in the threads; only the loop calls `run`, `ended` and `close`.

    Args:
        eventfd: written to when a job has ended; this wakes the loop.
        most: the maximum number of threads.
    """

    def __init__(self, eventfd: int, most: int) -> None:
        self._eventfd = eventfd
        self._most = most
        self._threads: list[Thread] = []
        self._jobs: SimpleQueue[tuple[Any, Callable[[], object]] | None] = SimpleQueue()
        self._ended: deque[tuple[Any, Exception | None]] = deque()
        self.under_way = 0  # jobs that `ended` has not returned yet

    def run(self, token: object, work: Callable[[], object]) -> None:
        """Run `work` in a thread. Raise RuntimeError if no thread can be started."""
        if self.under_way >= len(self._threads) < self._most:
            thread = Thread(target=self._work, name="ffrecord-fuse", daemon=True)
            try:
                thread.start()
            except RuntimeError:
                if not self._threads:
                    raise
            else:
                self._threads.append(thread)
        self.under_way += 1
        self._jobs.put((token, work))

    def ended(self) -> list[tuple[Any, Exception | None]]:
        """Return the tokens and results of the jobs that have ended since the last call."""
        found = []
        while self._ended:
            found.append(self._ended.popleft())
        self.under_way -= len(found)
        return found

    def close(self) -> None:
        """Drop jobs that have not started, and wait for running jobs, which use the eventfd."""
        with contextlib.suppress(Empty):
            while True:
                self._jobs.get_nowait()
        for _ in self._threads:
            self._jobs.put(None)
        for thread in self._threads:
            thread.join()

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            token, work = job
            self._ended.append((token, problem_with(work)))
            os.eventfd_write(self._eventfd, 1)
            del job, token, work  # these references would keep slabs in use


def problem_with(work: Callable[[], object]) -> Exception | None:
    """Call `work`; return its exception, or None."""
    try:
        work()
    except Exception as error:
        return error
    return None
