"""One asyncio loop in one thread, for all requests of a process.

A forked child has no thread any more, so it starts its own loop.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import sys
import threading
import time
from collections.abc import Coroutine
from concurrent import futures
from concurrent.futures import Future
from typing import Any, TypeVar

Result = TypeVar("Result")

GRACE = 0.05  # seconds for obstore's threads at the end of the process

_lock = threading.Lock()
_running: tuple[int, asyncio.AbstractEventLoop, threading.Thread] | None = None
_has_ended = False  # with the interpreter
_abandoned: list[object] = []
"""Loops of parent processes. They are never freed: their descriptors are shared with the parent."""


def loop() -> asyncio.AbstractEventLoop:
    """Return the loop of this process; start it if there is none.

    Raises RuntimeError at the end of the interpreter, when nothing answers any more.
    """
    global _running
    if _has_ended:
        raise ended()
    running = _running
    if running is not None and running[0] == os.getpid():
        return running[1]
    with _lock:
        if _running is None or _running[0] != os.getpid():
            made = asyncio.new_event_loop()
            thread = threading.Thread(target=made.run_forever, name="ffrecord-remote", daemon=True)
            thread.start()
            if _running is None:
                atexit.register(stop)
            else:
                _abandoned.append(_running)
            _running = os.getpid(), made, thread
        return _running[1]


def ended() -> RuntimeError:
    """Return the error for requests that come too late."""
    return RuntimeError("Python is shutting down, so no request can be sent; close readers before")


def begin(work: Coroutine[Any, Any, Result]) -> Future[Result]:
    """Start a coroutine in the loop."""
    try:
        return asyncio.run_coroutine_threadsafe(work, loop())
    except RuntimeError:
        work.close()  # otherwise Python warns that nobody has awaited it
        raise


def wait(work: Coroutine[Any, Any, Result]) -> Result:
    """Run a coroutine in the loop and return its result. An interrupt cancels it."""
    future = begin(work)
    try:
        return future.result()
    except BaseException:
        future.cancel()
        raise


async def together(*work: Coroutine[Any, Any, Result]) -> list[Result]:
    """Run coroutines at the same time and return their results.

    The first error cancels the others: requests that nobody waits for cost money, too.
    """
    tasks = [asyncio.ensure_future(each) for each in work]
    try:
        return await asyncio.gather(*tasks)
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise


def is_used() -> bool:
    """Return True if this process has made requests."""
    return _running is not None and _running[0] == os.getpid()


def stop() -> None:
    """End the loop before the interpreter is taken down, because answers still call into it.

    Functions that were registered with atexit earlier are called after this one. They get an error
    when they wait for an answer.

    A thread of obstore that runs Python code while Python shuts down aborts the process. So such
    threads get a moment to end, in which Python does not interrupt them.
    """
    global _has_ended
    if _running is not None and _running[0] == os.getpid():
        _, running, thread = _running
        _has_ended = True
        futures.wait([asyncio.run_coroutine_threadsafe(_cancel_all(), running)], 1)
        running.call_soon_threadsafe(running.stop)
        thread.join(1)
        sys.setswitchinterval(GRACE)
        time.sleep(GRACE)


async def _cancel_all() -> None:
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _forget() -> None:
    """Drop the parent's loop in a child. Its lock may have been held by another thread."""
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_forget)
