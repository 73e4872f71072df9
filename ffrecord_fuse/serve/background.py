"""Work that takes long, in threads beside a worker's loop, which goes on answering meanwhile."""

from __future__ import annotations

import contextlib
import os
from collections import deque
from collections.abc import Callable
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any


class Background:
    """Threads, started when there is work for them; the eventfd wakes the loop when a job ended.

    A token comes back with None or what went wrong. Only the work itself is done in threads:
    `run`, `ended` and `close` are for the loop.

    Args:
        eventfd: written to when a job has ended.
        most: threads at a time.
    """

    def __init__(self, eventfd: int, most: int) -> None:
        self._eventfd = eventfd
        self._most = most
        self._threads: list[Thread] = []
        self._jobs: SimpleQueue[tuple[Any, Callable[[], object]] | None] = SimpleQueue()
        self._ended: deque[tuple[Any, Exception | None]] = deque()
        self.under_way = 0  # jobs that `ended` has not told of

    def run(self, token: object, work: Callable[[], object]) -> None:
        """Do some work in a thread. RuntimeError: none could be started, and nothing is done."""
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
        """Return what has ended since the last time."""
        found = []
        while self._ended:
            found.append(self._ended.popleft())
        self.under_way -= len(found)
        return found

    def close(self) -> None:
        """Drop work that was not begun, and wait for the rest: it uses the eventfd."""
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
            del job, token, work  # they hold memory, which is used again once nobody does


def problem_with(work: Callable[[], object]) -> Exception | None:
    """Do some work; return what went wrong."""
    try:
        work()
    except Exception as error:
        return error
    return None
