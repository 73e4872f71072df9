"""The mount under test: its supervisor, its workers, which are killed, and its own counts.

Beside it are two mounts that are only read: one by the kernel, and one of a URL.
"""

from __future__ import annotations

import json
import os
import random
import select
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from ffrecord_fuse.errors import MountError
from ffrecord_fuse.mounting.mount import unmount
from ffrecord_fuse.mounting.mounttable import connection_of, find

from .crew import POLL, children, fork, send
from .stage import Stage

WORKERS = 3
LIMIT = 600.0
EXPECTED = ("mounted ", "was killed by signal 9; starting another", "unmount")
"""Parts of log lines that are normal in a soak."""


@dataclass(slots=True)
class Mounted:
    """The mount under test.

    One worker, the elder, is spared for a while, because leaks grow with age.
    """

    point: Path
    log: Path
    supervisor: int
    kills: int = 0
    stops: int = 0
    elder: int = 0
    _stopped: set[int] = field(default_factory=set)
    _killed: deque[int] = field(default_factory=lambda: deque(maxlen=20))

    @property
    def workers(self) -> list[int]:
        return children(self.supervisor)

    def choose_elder(self, chance: random.Random) -> None:
        """Choose another worker as the elder; the previous elder may be killed from now on."""
        others = [pid for pid in self.workers if pid != self.elder]
        if others:
            self.elder = chance.choice(others)

    def kill_worker(self, chance: random.Random) -> bool:
        """Kill a worker, and return True if one was killed.

        No worker is killed twice: one that waits for the disk takes time to die.
        """
        victims = [pid for pid in self.workers if pid != self.elder and pid not in self._killed]
        if not victims:  # all others are just being started
            return False
        victim = chance.choice(victims)
        self._killed.append(victim)
        killed = send(victim, signal.SIGKILL)
        self.kills += killed
        return killed

    def stop_worker(self, chance: random.Random) -> None:
        """Stop a worker with SIGSTOP, at any point. It may be killed while it is stopped."""
        workers = self.workers
        if workers:
            pid = chance.choice(workers)
            self._stopped.add(pid)
            self.stops += send(pid, signal.SIGSTOP)

    def let_go_on(self) -> None:
        for pid in self._stopped & set(self.workers):
            send(pid, signal.SIGCONT)
        self._stopped.clear()

    def stats(self) -> dict[str, int]:
        """Return the mount's own counts; an empty dict if the mount does not answer.

        A child asks the mount, because the system call may hang.
        """
        told, tell = os.pipe()
        fork(lambda: (os.write(tell, os.getxattr(self.point, "user.ffrecord.stats")), None)[1])
        os.close(tell)
        with open(told, "rb", buffering=0) as pipe:
            ready = select.select([pipe], [], [], LIMIT)[0]
            found: dict[str, int] = json.loads((pipe.read(1 << 16) if ready else b"") or b"{}")
        return found

    def waiting(self) -> int:
        """Return the kernel's count of unanswered requests; -1 if it is not known."""
        try:
            number = connection_of(str(self.point))
            return int(Path(f"/sys/fs/fuse/connections/{number}/waiting").read_text())
        except (OSError, MountError):
            return -1

    def news(self) -> list[str]:
        """Return the log lines that are not about killed workers or the mount itself."""
        return _news(self.log)


@contextmanager
def mounted(stage: Stage, workers: int) -> Iterator[Mounted]:
    """Mount the archive until the block ends, with or without an error."""
    command = [
        sys.executable, "-m", "ffrecord_fuse", str(stage.archive), str(stage.point), "-f",
        "--workers", str(workers), "--log", str(stage.log),
    ]  # fmt: skip
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)
    here = Mounted(stage.point, stage.log, process.pid)
    try:
        _wait_until_served(here, workers)
        yield here
    finally:
        here.let_go_on()
        unmount_all(stage)
        send(process.pid, signal.SIGKILL)
        process.wait(LIMIT)


@contextmanager
def mounted_by_kernel(stage: Stage) -> Iterator[bool]:
    """Let the kernel serve the archive until the block ends; yield False if it cannot."""
    command = ["mount", str(stage.archive), str(stage.kernel_point), "--backend", "kernel"]
    try:
        yield _ffrecord(*command)
    finally:
        _unmount(stage.kernel_point)


@contextmanager
def mounted_from(url: str, stage: Stage) -> Iterator[bool]:
    """Mount the archive behind a URL until the block ends; yield False if that is not possible."""
    command = ["mount", url, str(stage.url_point), "--log", str(stage.url_log)]
    try:
        yield _ffrecord(*command)
    finally:
        _unmount(stage.url_point)


def news_of_url(stage: Stage) -> list[str]:
    """Return the log lines of the mount of a URL that are not about the mount itself."""
    return _news(stage.url_log) if stage.url_log.exists() else []


def _ffrecord(*arguments: str) -> bool:
    """Run a command, which prints its reason if it fails."""
    command = [sys.executable, "-m", "ffrecord", *arguments]
    return subprocess.run(command, stdin=subprocess.DEVNULL, check=False).returncode == 0


def _news(log: Path) -> list[str]:
    lines = log.read_text().splitlines()
    return [line for line in lines if not any(part in line for part in EXPECTED)]


def unmount_all(stage: Stage) -> None:
    for point in stage.points:
        _unmount(point)


def _unmount(point: Path) -> None:
    while find(str(point)) is not None:
        unmount(str(point), lazy=True)


def _wait_until_served(here: Mounted, workers: int) -> None:
    deadline = time.monotonic() + LIMIT
    while find(str(here.point)) is None or len(here.workers) < workers:
        if time.monotonic() > deadline:
            raise RuntimeError(f"{here.point}: not mounted after {LIMIT:.0f} s")
        time.sleep(POLL)
