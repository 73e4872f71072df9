"""Disturbances of readers and of the mount, each at its own interval."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ffrecord.disk import aio

from .crew import Crew, fork, send
from .served import Mounted
from .stage import Stage

DROP_CACHES = Path("/proc/sys/vm/drop_caches")
STORM = 200
MOST_GREED = 4096


@dataclass(slots=True)
class Disturbance:
    """An action every `every` seconds. Unless `exact`, each interval varies by up to a half.

    If `happen` returns False, the action was not possible and is tried again soon.
    """

    name: str
    every: float
    happen: Callable[[], bool | None]
    exact: bool = False
    rare: bool = False  # only happens in long soaks
    due: float = 0.0
    count: int = 0

    @property
    def is_lacking(self) -> bool:
        return not (self.count or self.rare)


class Disturber:
    """Performs the disturbances that are due. No call takes long, so that kills are on time."""

    def __init__(
        self, crew: Crew, served: Mounted, stage: Stage, chance: random.Random, seconds: float
    ) -> None:
        self._crew = crew
        self._served = served
        self._stage = stage
        self._chance = chance
        # Shorter intervals let every disturbance happen in a short soak too.
        hold = min(3.0, seconds / 15)
        self._hold = hold
        self._dropper = 0
        self.all = [
            Disturbance("worker killed", 1.0, lambda: served.kill_worker(chance), exact=True),
            Disturbance(
                "elder changed",
                max(seconds / 4, 60.0),
                lambda: served.choose_elder(chance),
                exact=True,
                rare=seconds < 240,
            ),
            Disturbance("worker stopped", min(5.0, seconds / 5), self._stop_worker),
            Disturbance("reader killed", min(4.0, seconds / 5), lambda: crew.kill_one(chance)),
            Disturbance("caches dropped", min(2.0, seconds / 8), self._drop_caches),
            Disturbance("archive evicted", 0.5, lambda: _evict(stage.archive)),
            Disturbance("signal storm", min(3.0, seconds / 6), self._storm),
            Disturbance("AIO used up", min(45.0, seconds / 2.5), self._use_up_aio),
        ]
        self._later: list[tuple[float, Callable[[], object]]] = []
        now = time.monotonic()
        for each in self.all:
            each.due = now + self._interval(each)
        served.choose_elder(chance)

    def act(self) -> None:
        now = time.monotonic()
        for moment, action in [later for later in self._later if later[0] <= now]:
            self._later.remove((moment, action))
            action()
        for each in self.all:
            if each.due <= now and each.happen() is not False:
                each.count += 1
                each.due += self._interval(each)

    def end(self) -> None:
        """Undo disturbances that are still in effect."""
        for _, action in self._later:
            action()
        self._later.clear()
        self._served.let_go_on()

    def _interval(self, each: Disturbance) -> float:
        return each.every if each.exact else each.every * self._chance.uniform(0.5, 1.5)

    def _stop_worker(self) -> None:
        self._served.stop_worker(self._chance)
        moment = time.monotonic() + self._chance.uniform(0.05, 0.8)
        self._later.append((moment, self._served.let_go_on))

    def _drop_caches(self) -> bool:
        """Drop pages, names, or both. Without root, drop only the pages of the files that are read.

        A child does the work, because the kernel needs seconds if it has cached many files, and
        kills must be on time.
        """
        if self._dropper and os.path.exists(f"/proc/{self._dropper}"):
            return False
        what = self._chance.choice([1, 1, 2, 3])

        def drop() -> None:
            try:
                DROP_CACHES.write_text(str(what))
            except OSError:
                for path in self._stage.files_read():
                    _evict(path)

        self._dropper = fork(drop)
        return True

    def _storm(self) -> None:
        """Send signals to one actor as fast as possible; each ends a system call early."""
        victim = self._chance.choice(self._crew.actors)
        for _ in range(STORM):
            if not victim.pid or not send(victim.pid, signal.SIGUSR1):
                break
            time.sleep(0.0002)

    def _use_up_aio(self) -> None:
        """Start a process that takes all AIO contexts of the machine and keeps them for a while."""
        pid = fork(_be_greedy)
        self._later.append((time.monotonic() + self._hold, lambda: send(pid, signal.SIGKILL)))


def _be_greedy() -> None:
    """Take all AIO contexts for ever, also the ones that killed processes give back."""
    taken = []
    while True:
        for size in (MOST_GREED, 128, 1):
            with contextlib.suppress(OSError):
                while True:
                    taken.append(aio.Context(size))
        time.sleep(0.01)


def _evict(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(fd)
