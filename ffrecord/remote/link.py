"""The requests of one reader: a limit on those in flight, retries, checks and measurements."""

from __future__ import annotations

import asyncio
import os
import random
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from ffrecord.remote import retries
from ffrecord.remote.answers import Answer, Place, Version
from ffrecord.remote.meter import Meter
from ffrecord.remote.trouble import Kind, Span, Trouble, error_for

Result = TypeVar("Result")


class Link:
    """Requests to the stores of one reader. Its coroutines run in the loop of the process."""

    def __init__(self, requests: int, deadline: float) -> None:
        self.requests = requests
        self.deadline = deadline
        self.meter = Meter()
        self.sent = self.repeated = self.received = 0
        self.is_outdated = False  # True if an object was replaced since it was opened
        self._slots: tuple[int, asyncio.Semaphore] | None = None

    async def get(
        self, place: Place, span: Span, pinned: Version | None, *, opening: bool = False
    ) -> Answer:
        """Return bytes of an object, after as many attempts as are worth making."""

        async def attempt(limit: float) -> Answer:
            self.sent += 1
            began = time.perf_counter()
            answer = await _within(limit, place.store.get(place.key, span, pinned))
            _check(answer, span, pinned)
            self.received += len(answer.body)
            self.meter.note(len(answer.body), answer.waited, time.perf_counter() - began)
            return answer

        return await self._repeat(attempt, place.shown, span, opening=opening)

    async def get_unless(self, place: Place, span: Span, known: Version) -> Answer | None:
        """Return bytes of an object while it is opened; None if it has the version `known`."""

        async def attempt(limit: float) -> Answer | None:
            self.sent += 1
            answer = await _within(limit, place.store.get_unless(place.key, span, known))
            if answer is not None:
                _check(answer, span, None)
                self.received += len(answer.body)
            return answer

        return await self._repeat(attempt, place.shown, span, opening=True)

    async def names(self, place: Place) -> list[str]:
        """Return the names of the files and folders in a folder."""

        async def attempt(limit: float) -> list[str]:
            self.sent += 1
            return await _within(limit, place.store.names(place.key))

        return await self._repeat(attempt, place.shown, None, opening=True)

    async def recheck(self, place: Place, pinned: Version) -> None:
        """Raise ChangedError if a store that cannot demand a version has another one now."""

        async def attempt(limit: float) -> None:
            await _within(limit, place.store.recheck(place.key, pinned))

        await self._repeat(attempt, place.shown, None, opening=False)

    async def write(
        self, place: Place, request: Callable[[], Coroutine[Any, Any, Result]], length: int = 0,
        *, once: bool = False,
    ) -> Result:  # fmt: skip
        """Send a request of an upload of `length` bytes, with as many attempts as are worth it.

        With `once` there is one attempt without a time limit: obstore repeats parts by itself.
        """
        if once:
            try:
                return await request()
            except Trouble as trouble:
                raise error_for(place.shown, trouble, None, 1, writing=True) from None

        async def attempt(limit: float) -> Result:
            self.sent += 1
            return await _within(limit * retries.UPLOAD, request())

        span = Span(0, length)
        return await self._repeat(attempt, place.shown, span, opening=True, writing=True)

    async def _repeat(
        self, attempt: Callable[[float], Awaitable[Result]], shown: str, span: Span | None,
        *, opening: bool, writing: bool = False,
    ) -> Result:  # fmt: skip
        began, attempts, trouble = time.monotonic(), 0, None
        length = 0 if span is None else max(span.end - span.begin, -span.begin)
        while True:
            attempts += 1
            elapsed = time.monotonic() - began
            try:
                async with self._slot():
                    # The time in which the request waited for its slot does not count.
                    began = time.monotonic() if attempts == 1 else began
                    return await attempt(retries.time_limit(length, elapsed, self.deadline))
            except Trouble as caught:
                # The deadline may leave the last attempt no time for an answer.
                trouble = trouble if trouble is not None and caught.is_late else caught
            elapsed = time.monotonic() - began
            wait = retries.pause(
                trouble.kind, attempts, elapsed, self.deadline, random.random(), opening=opening
            )
            if wait is None:
                if trouble.kind is Kind.NO_SUFFIX:
                    raise trouble
                self.is_outdated |= trouble.kind is Kind.CHANGED
                raise error_for(shown, trouble, span, attempts, writing=writing) from None
            self.repeated += 1
            await asyncio.sleep(wait)

    def _slot(self) -> asyncio.Semaphore:
        if self._slots is None or self._slots[0] != os.getpid():
            self._slots = os.getpid(), asyncio.Semaphore(self.requests)
        return self._slots[1]


def _check(answer: Answer, span: Span, pinned: Version | None) -> None:
    """Raise `Trouble` unless the answer has the requested bytes of the pinned version."""
    if pinned is not None and not answer.version.agrees(pinned):
        raise Trouble(Kind.CHANGED, "replaced")
    begin, end = span.within(answer.version.size)
    if answer.begin != begin or len(answer.body) != end - begin:
        got = f"{len(answer.body)} bytes from byte {answer.begin} on"
        raise Trouble(Kind.BUSY, f"the answer has {got} instead of the bytes {begin} to {end - 1}")


async def _within(seconds: float, work: Coroutine[Any, Any, Result]) -> Result:
    """Run a coroutine in this task, with a time limit. (`asyncio.wait_for` needs another task.)"""
    task = asyncio.current_task()
    assert task is not None
    late = False

    def cancel() -> None:
        nonlocal late
        late = True
        task.cancel()

    before = _cancels(task)
    timer = asyncio.get_running_loop().call_later(seconds, cancel)
    try:
        return await work
    except asyncio.CancelledError:
        if late:
            if sys.version_info >= (3, 11):
                task.uncancel()
            if _cancels(task) <= before:  # nobody else has cancelled it in the same turn
                what = f"no whole answer within {seconds:.3g} s"
                raise Trouble(Kind.BUSY, what, is_late=True) from None
        raise
    finally:
        timer.cancel()


def _cancels(task: asyncio.Task[Any]) -> int:
    """Return how often a task was cancelled.

    Python 3.10 does not count. There, a task that is cancelled in the very turn of its time limit
    goes on with its next attempt.
    """
    if sys.version_info >= (3, 11):
        return task.cancelling()
    return 0
