"""Read over the network: many requests in flight, and an eventfd that announces their answers.

The counterpart of `coldreads` for URLs, with the same interface. Requests are tasks in the loop of
the process (`ffrecord.remote.loop`), which runs in a thread of its own. The worker never waits for
it. Reads of one turn that are neighbours share a request.

A worker starts with its first read to connect: connections do not survive a fork.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from ffrecord.errors import RemoteError
from ffrecord.remote import loop
from ffrecord.remote.source import PART, RemoteSources
from ffrecord.remote.trouble import Span

SAME_FAILURE = 1.0
"""Seconds in which a read that has failed fails again at once. After a failed read-ahead the kernel
asks for the same bytes again, and the program would wait for a second deadline."""

MOST_FAILURES = 256
"""Failed requests to remember: as many reads as the kernel has in flight."""


class Wanted(NamedTuple):
    """A read that was added."""

    file: int
    begin: int
    end: int
    token: object
    again: bool


@dataclass(eq=False, slots=True)
class Joint:
    """One request for one read, or for several neighbours."""

    file: int
    begin: int
    end: int
    reads: list[Wanted]
    submitted: float = 0.0
    result: memoryview | Exception | None = None

    def has(self, read: Wanted) -> bool:
        """Return True if the answer has all bytes of a read."""
        return self.file == read.file and self.begin <= read.begin and read.end <= self.end


Around: TypeAlias = "Callable[[int, int, int], tuple[int, int]]"
"""Takes a file and a range; returns the range to ask for. The cache keeps whole blocks only."""


def joined(reads: list[Wanted], gap: int, around: Around) -> list[Joint]:
    """Join neighbours: at most `gap` bytes lie between them, and a request stays below `PART`."""
    found: list[Joint] = []
    for read in sorted(reads, key=lambda each: each[:3]):
        begin, end = around(*read[:3])
        last = found[-1] if found else None
        if (
            last is not None and read.file == last.file and begin <= last.end + gap
            and max(end, last.end) - last.begin <= PART
            and read.again == last.reads[0].again
        ):  # fmt: skip
            last.reads.append(read)
            last.end = max(last.end, end)
        else:
            found.append(Joint(read.file, begin, end, [read]))
    return found


class RemoteReads:
    """The requests of one worker. Each read has a token, which `landed` yields with the data.

    Args:
        sources: the objects.
        around: see `Around`.
        keep: called with each request that was answered.
    """

    def __init__(
        self, sources: RemoteSources, around: Around = lambda file, begin, end: (begin, end),
        keep: Callable[[Joint], None] = lambda request: None,
    ) -> None:  # fmt: skip
        self._sources = sources
        self._around = around
        self._keep = keep
        self._link = sources.link
        self.eventfd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._added: list[Wanted] = []
        self._failed: deque[tuple[float, Joint]] = deque(maxlen=MOST_FAILURES)
        self._done: list[tuple[Any, memoryview | Exception]] = []
        self._flying: list[Joint] = []  # submitted, and not yet taken from `_arrived`
        # The loop's thread uses the fields below.
        self._arrived: deque[Joint] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._slots: asyncio.Semaphore | None = None
        self._answered = 0.0  # when the last answer came
        self._lost: tuple[float, Exception] | None = None

    @property
    def busy(self) -> bool:
        """True while requests are in flight, or have ended but were not yielded by `landed`."""
        return bool(self._flying or self._added or self._done)

    @property
    def has_room(self) -> bool:
        """True if over half of the permitted requests are free. Reading ahead leaves the rest."""
        return len(self._flying) + len(self._added) < max(self._link.requests // 2, 1)

    def add(
        self, token: object, file: int, begin: int, length: int, *, kept: bool = False,
        again: bool = False,
    ) -> None:  # fmt: skip
        """Add a read for `submit` to send. All answers are kept as long as their data is used.

        With `again`, bytes that arrived before were wrong: the object may have been replaced.
        """
        read = Wanted(file, begin, begin + length, token, again)
        if again:
            self._added.append(read)
            return
        failure = self._recent_failure(read)
        if failure is not None:
            self._done.append((token, failure))
            return
        for request in self._flying:
            if request.has(read):
                request.reads.append(read)
                return
        self._added.append(read)

    def submit(self) -> None:
        """Send all reads that were added since the last call."""
        if not self._added:
            return
        requests = joined(self._added, self._link.meter.gap, self._around)
        self._added = []
        now = time.monotonic()
        for request in requests:
            request.submitted = now
        self._flying += requests
        loop.loop().call_soon_threadsafe(self._launch, requests)

    def landed(self) -> Iterator[tuple[Any, memoryview | Exception]]:
        """Yield the token and the data, or the error, of each completed read. Does not wait."""
        self.has_landed()
        while self._done:
            yield self._done.pop()

    def has_landed(self) -> bool:
        """Return True if `landed` has something to yield."""
        while self._arrived:
            request = self._arrived.popleft()
            self._flying.remove(request)
            result = request.result
            if isinstance(result, memoryview):
                for read in request.reads:
                    data = result[read.begin - request.begin : read.end - request.begin]
                    self._done.append((read.token, data))
                self._keep(request)
            else:
                assert result is not None
                self._failed.append((time.monotonic(), request))
                self._done += [(read.token, result) for read in request.reads]
        return bool(self._done)

    def clear_event(self) -> None:
        """Reset the eventfd."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self.eventfd)

    def close(self) -> None:
        """Cancel the requests in flight, and wait until no task uses the eventfd."""

        async def cancel() -> None:
            tasks = list(self._tasks)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        loop.wait(cancel())
        os.close(self.eventfd)

    def _recent_failure(self, read: Wanted) -> Exception | None:
        """Return the error of a request for these bytes that failed just now."""
        since = time.monotonic() - SAME_FAILURE
        while self._failed and self._failed[0][0] < since:
            self._failed.popleft()
        for _, request in self._failed:
            if request.has(read):
                assert isinstance(request.result, Exception)
                return request.result
        return None

    # ---- in the loop's thread --------------------------------------------------------------

    def _launch(self, requests: list[Joint]) -> None:
        running = asyncio.get_running_loop()
        for request in requests:
            task = running.create_task(self._answer(request))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _answer(self, request: Joint) -> None:
        try:
            request.result = memoryview(await self._get(request))
        except Exception as error:
            request.result = error
        self._arrived.append(request)
        os.eventfd_write(self.eventfd, 1)

    async def _get(self, request: Joint) -> Any:
        if self._slots is None:
            self._slots = asyncio.Semaphore(self._link.requests)
        async with self._slots:
            if self._lost is not None and request.submitted < self._lost[0]:
                # The network was lost while this request waited for its turn: it has waited enough.
                raise self._lost[1]
            source, began = self._sources[request.file], time.monotonic()
            try:
                if request.reads[0].again:
                    await self._link.recheck(source.place, source.version)
                span = Span(request.begin, request.end)
                answer = await self._link.get(source.place, span, source.version)
            except RemoteError as error:
                if self._answered < began:
                    self._lost = time.monotonic(), error
                raise
            self._answered, self._lost = time.monotonic(), None
            return answer.body
