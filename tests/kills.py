"""Work that is killed with SIGKILL at one of its system calls: before, in the middle of, or after.

In a forked child, which kills itself, so that the moment is exact and no timing decides. Only what
changes files is counted; a write in the middle has half of its bytes.
"""

from __future__ import annotations

import fcntl
import os
import signal
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

CALLS = ("pwrite", "fsync", "rename", "link", "unlink", "ftruncate", "fchmod", "fchown", "open")
WHEN = ("before", "within", "after")


@dataclass(frozen=True)
class Point:
    """A moment: the number of the call, and when in it."""

    call: int
    when: str


class _Counter:
    def __init__(self, stop: Point | None) -> None:
        self.calls = 0
        self._stop = stop

    def wrap(self, call: Callable[..., Any], name: str) -> Callable[..., Any]:
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            if name == "open" and not args[1] & os.O_CREAT:
                return call(*args, **kwargs)
            at = self.calls
            self.calls += 1
            stop = self._stop if self._stop is not None and self._stop.call == at else None
            if stop is not None and stop.when == "within" and name == "pwrite":
                fd, data, offset = args
                call(fd, memoryview(data)[: len(data) // 2], offset)
                os.kill(os.getpid(), signal.SIGKILL)
            if stop is not None and stop.when == "before":
                os.kill(os.getpid(), signal.SIGKILL)
            try:
                return call(*args, **kwargs)
            finally:  # also if it failed: some calls are tried, and another way is taken then
                if stop is not None:
                    os.kill(os.getpid(), signal.SIGKILL)

        return wrapped


def run(work: Callable[[Callable[[int], None]], None], stop: Point | None) -> tuple[int, int, bool]:
    """Do `work` in a child that is killed at `stop`. What it was given told last before that (-1 if
    nothing), how many calls it made if it came to its end, and whether it was killed."""
    told, tell = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(told)
        try:
            counter = _Counter(stop)
            for name in CALLS:
                setattr(os, name, counter.wrap(getattr(os, name), name))
            fcntl.ioctl = counter.wrap(fcntl.ioctl, "ioctl")
            work(lambda number: (os.write(tell, number.to_bytes(4, "little")), None)[1])
            os.write(tell, counter.calls.to_bytes(4, "little"))
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    os.close(tell)
    with open(told, "rb") as pipe:
        said = pipe.read()
    _, status = os.waitpid(pid, 0)
    killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
    assert killed or status == 0, "the work failed"
    numbers = [int.from_bytes(said[at : at + 4], "little") for at in range(0, len(said), 4)]
    if not killed:
        return (numbers[-2] if len(numbers) > 1 else -1), numbers[-1], False
    return (numbers[-1] if numbers else -1), 0, True


def points(calls: int, count: int) -> list[Point]:
    """So many moments of work that makes `calls` calls, spread evenly; both ends among them."""
    every = [Point(call, when) for call in range(calls) for when in WHEN]
    assert len(every) >= count, f"only {len(every)} moments"
    return [every[round(i * (len(every) - 1) / (count - 1))] for i in range(count)]
