"""Processes that left their parent: found by a mark in their environment, and what they use.

A daemon forks, starts a session and changes its parent, but keeps the environment it was started
with.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

MARK = "FFRECORD_BENCH_MARK"

POLL = 0.02

CPU_CLOCK = 2
"""The kernel's number for a process's clock of processor time; clock_getcpuclockid(3) gives it."""


def marked(mark: str) -> list[int]:
    """The ids of all living processes that were started with this mark, or forked from one."""
    wanted = f"{MARK}={mark}".encode()
    found = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            environment = (folder / "environ").read_bytes()
        except OSError:  # it ended, or is not ours to look at
            continue
        if wanted in environment.split(b"\0"):
            found.append(int(folder.name))
    return sorted(found)


def cpu_seconds(pid: int) -> float:
    """The time that all threads of a process have run, those that ended since included."""
    return time.clock_gettime((~pid << 3) | CPU_CLOCK)


def end(mark: str, patience: float) -> None:
    """Wait until no process with this mark is left; kill what is after `patience` seconds."""
    deadline = time.monotonic() + patience
    while found := marked(mark):
        if time.monotonic() >= deadline:
            kill(found)  # and look again: one of them may have started another before it died
        time.sleep(POLL)


def kill(pids: Iterable[int]) -> None:
    """End processes that may have ended already."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
