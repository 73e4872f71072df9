"""Kill work with SIGKILL: at one of its system calls, or from outside at any moment.

The work runs in a forked child. At a call, the child kills itself before, during or after the call,
so the moment is exact and no timing decides. Only calls that change files count. A write that is
killed in the middle has written half of its bytes. A kill from outside comes at a random moment,
and the tested promise must hold at every moment.

`python kills.py CALL WHEN ARGUMENTS` runs the command `ffrecord`, which kills itself at that point.
"""

from __future__ import annotations

import fcntl
import itertools
import os
import signal
import sys
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
"""Work gets a function that reports a number to the parent process."""


@dataclass(frozen=True)
class Point:
    """A moment of the work: the number of a system call, and when in that call."""

    call: int
    when: str


class _Counter:
    """Counts the calls of all threads.

    Kills the process at the call `stop`. Calls `watch` after every other call.
    """

    def __init__(self, stop: Point | None, watch: Callable[[], object]) -> None:
        self._numbers = itertools.count()
        self._stop = stop
        self._watch = watch

    @property
    def calls(self) -> int:
        """Number of calls. Read it once, at the end."""
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
            finally:  # also after a failure: the code may then try another way
                if stop is not None:
                    os.kill(os.getpid(), signal.SIGKILL)
                self._watch()

        return wrapped


def _counted(stop: Point | None, watch: Callable[[], object]) -> _Counter:
    """Count the calls of this process from now on, and kill it at `stop`."""
    counter = _Counter(stop, watch)
    for name in CALLS:
        setattr(os, name, counter.wrap(getattr(os, name), name))
    fcntl.ioctl = counter.wrap(fcntl.ioctl, "ioctl")
    libc.exchange = counter.wrap(libc.exchange, "exchange")
    return counter


def run(
    work: Work, stop: Point | None, watch: Callable[[], object] = lambda: None
) -> tuple[int, int, bool]:
    """Run `work` in a child that is killed at `stop`.

    Return the last number that the work reported (-1 if none), its number of calls (0 if it was
    killed), and True if it was killed. The child calls `watch` after each call but the last.
    """
    told, tell = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(told)
        write = os.write
        counter = _counted(stop, watch)

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
    """Run `work` in a child that is killed after `seconds`, together with all its children.

    Return True if it was killed before its end. Until then `meanwhile` is called again and again.
    """
    pid = os.fork()
    if pid == 0:
        os.setsid()
        _do_and_exit(work)
    try:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            meanwhile()
            time.sleep(0.0005)  # leave the CPU to the child
    finally:
        # The child is not reaped yet, so its number is valid; its process group may not exist yet.
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
    """Wait for a child; return True if it was killed. Fail if its work failed."""
    _, status = os.waitpid(pid, 0)
    killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
    assert killed or status == 0, "the work failed"
    return killed


def points(calls: int, count: int) -> list[Point]:
    """Return `count` moments of work with `calls` calls, spread evenly from first to last."""
    every = [Point(call, when) for call in range(calls) for when in WHEN]
    assert len(every) >= count, f"only {len(every)} moments"
    return [every[round(i * (len(every) - 1) / (count - 1))] for i in range(count)]


def main(call: str, when: str, *arguments: str) -> int:
    from ffrecord.cli import main as command  # only this process needs it

    _counted(Point(int(call), when), lambda: None)
    return command(arguments)


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))
