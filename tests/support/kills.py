"""Work that is killed with SIGKILL: at one of its system calls, or from outside at any moment.

In a forked child. At a call it kills itself: before, in the middle of, or after it, so that the
moment is exact and no timing decides. Only what changes files is counted; a write in the middle has
half of its bytes. From outside the moment is whatever it is: what is to hold, holds at all of them.
"""

from __future__ import annotations

import fcntl
import itertools
import os
import signal
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from ffrecord.disk import libc

CALLS = (
    "pwrite", "write", "fsync", "rename", "replace", "link", "symlink", "unlink", "mkdir", "rmdir",
    "ftruncate", "copy_file_range", "fchmod", "chmod", "fchown", "utime", "setxattr", "open",
)  # fmt: skip
WHEN = ("before", "within", "after")

Work: TypeAlias = Callable[[Callable[[int], None]], None]
"""It is given a function that tells a number to whoever has started it."""


@dataclass(frozen=True)
class Point:
    """A moment: the number of the call, and when in it."""

    call: int
    when: str


class _Counter:
    """Numbers calls, from any thread, and dies at one of them; after others it calls `watch`."""

    def __init__(self, stop: Point | None, watch: Callable[[], object]) -> None:
        self._numbers = itertools.count()
        self._stop = stop
        self._watch = watch

    @property
    def calls(self) -> int:
        """How many there were. Asked once, at the end."""
        return next(self._numbers)

    def wrap(self, call: Callable[..., Any], name: str) -> Callable[..., Any]:
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            if name == "open" and not args[1] & os.O_CREAT:
                return call(*args, **kwargs)
            at = next(self._numbers)
            stop = self._stop if self._stop is not None and self._stop.call == at else None
            if stop is not None and stop.when == "within" and name in ("pwrite", "write"):
                fd, data, *offset = args
                call(fd, memoryview(data)[: len(data) // 2], *offset)
                os.kill(os.getpid(), signal.SIGKILL)
            if stop is not None and stop.when == "before":
                os.kill(os.getpid(), signal.SIGKILL)
            try:
                return call(*args, **kwargs)
            finally:  # also if it failed: some calls are tried, and another way is taken then
                if stop is not None:
                    os.kill(os.getpid(), signal.SIGKILL)
                self._watch()

        return wrapped


def run(
    work: Work, stop: Point | None, watch: Callable[[], object] = lambda: None
) -> tuple[int, int, bool]:
    """Do `work` in a child that is killed at `stop`. What it was given told last before that (-1 if
    nothing), how many calls it made if it came to its end, and whether it was killed. The child
    calls `watch` after each call that was not its last."""
    told, tell = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(told)
        write = os.write
        counter = _Counter(stop, watch)
        for name in CALLS:
            setattr(os, name, counter.wrap(getattr(os, name), name))
        fcntl.ioctl = counter.wrap(fcntl.ioctl, "ioctl")
        libc.exchange = counter.wrap(libc.exchange, "exchange")

        def whole() -> None:
            work(lambda number: (write(tell, number.to_bytes(4, "little")), None)[1])
            write(tell, counter.calls.to_bytes(4, "little"))

        _do_and_exit(whole)
    os.close(tell)
    with open(told, "rb") as pipe:
        said = pipe.read()
    killed = _ended(pid)
    numbers = [int.from_bytes(said[at : at + 4], "little") for at in range(0, len(said), 4)]
    if not killed:
        return (numbers[-2] if len(numbers) > 1 else -1), numbers[-1], False
    return (numbers[-1] if numbers else -1), 0, True


def run_for(seconds: float, work: Callable[[], None], meanwhile: Callable[[], object]) -> bool:
    """Do `work` in a child that is killed from outside after a time, with all that it has started.
    Whether it was before its end. `meanwhile` is called here again and again until then."""
    pid = os.fork()
    if pid == 0:
        os.setsid()
        _do_and_exit(work)
    try:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            meanwhile()
            time.sleep(0.0005)  # not to take its time from it
    finally:
        # It is not reaped yet, so the number is still its own; the group may not be there yet.
        for kill in (os.killpg, os.kill):
            try:
                kill(pid, signal.SIGKILL)
                break
            except ProcessLookupError:
                continue
        killed = _ended(pid)
    return killed


def _do_and_exit(work: Callable[[], None]) -> None:
    try:
        work()
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        os._exit(1)


def _ended(pid: int) -> bool:
    """Wait for a child; whether it was killed, and not because the work failed."""
    _, status = os.waitpid(pid, 0)
    killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
    assert killed or status == 0, "the work failed"
    return killed


def points(calls: int, count: int) -> list[Point]:
    """So many moments of work that makes `calls` calls, spread evenly; both ends among them."""
    every = [Point(call, when) for call in range(calls) for when in WHEN]
    assert len(every) >= count, f"only {len(every)} moments"
    return [every[round(i * (len(every) - 1) / (count - 1))] for i in range(count)]
