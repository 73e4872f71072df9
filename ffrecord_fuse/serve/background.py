"""Work that takes long, in a thread beside a worker's loop, which goes on answering meanwhile."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor


class Background:
    """One piece of work after the other; the eventfd wakes the loop when one has ended.

    A token comes back with None or what went wrong.
    """

    def __init__(self, eventfd: int) -> None:
        self._eventfd = eventfd
        self._thread: ThreadPoolExecutor | None = None  # most archives need none
        self._ended: deque[tuple[int, BaseException | None]] = deque()

    def run(self, token: int, work: Callable[[], object]) -> None:
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="ffrecord-fuse")

        def ended(future: Future[object]) -> None:
            self._ended.append((token, future.exception()))
            os.eventfd_write(self._eventfd, 1)

        self._thread.submit(work).add_done_callback(ended)

    def ended(self) -> list[tuple[int, BaseException | None]]:
        """What has ended since the last time."""
        found = []
        while self._ended:
            found.append(self._ended.popleft())
        return found

    def close(self) -> None:
        if self._thread is not None:
            self._thread.shutdown(cancel_futures=True)
