"""Other processes: found by a mark in their environment, measured, ended.

A daemon forks, starts a session and changes its parent, but it keeps its environment.
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
"""The kernel's number of a process's CPU clock, as in clock_getcpuclockid(3)."""


def marked(mark: str) -> list[int]:
    """Return the pids of all living processes that have this mark in their environment."""
    wanted = f"{MARK}={mark}".encode()
    found = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            environment = (folder / "environ").read_bytes()
        except OSError:  # it ended, or it belongs to another user
            continue
        if wanted in environment.split(b"\0"):
            found.append(int(folder.name))
    return sorted(found)


def cpu_seconds(pid: int) -> float:
    """Return the processor time of all threads of a process, including those that have ended."""
    return time.clock_gettime((~pid << 3) | CPU_CLOCK)


def read_bytes(pids: Iterable[int | str] = ("self",)) -> int:
    """Return the bytes that processes have had read from disks, for themselves or a cache."""
    return sum(_read_bytes(pid) for pid in pids)


def end(mark: str, patience: float) -> None:
    """Wait until no process with this mark is left; kill the rest after `patience` seconds."""
    deadline = time.monotonic() + patience
    while found := marked(mark):
        if time.monotonic() >= deadline:
            kill(found)  # then look again: a process may have started another before it died
        time.sleep(POLL)


def kill(pids: Iterable[int]) -> None:
    """Kill processes, some of which may have ended already."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _read_bytes(pid: int | str) -> int:
    for line in Path(f"/proc/{pid}/io").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == "read_bytes":
            return int(value)
    return 0
