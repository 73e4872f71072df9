"""Slow disks and small memory for a group of processes, with cgroups of version 1 or 2.

A group is made below the cgroup of this process, so that all limits above stay in force. Processes
join a group with `enter`. The disk's rates count the reads of processes in the group only: a
process that serves a mount must join as well.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import NoReturn

from . import processes
from .harness import MeasurementError

ROOT = Path("/")
"""Tests pass another root, with files instead of the kernel's."""

CGROUPS = "sys/fs/cgroup"
PATIENCE = 10.0
"""Seconds in which the killed processes of a group must end."""
POLL = 0.02
ENDING = (signal.SIGTERM, signal.SIGHUP)
"""Signals that would end this process without putting anything back."""


class NotPermittedError(MeasurementError):
    """Raised when the machine has no way to set a limit, or this user may not set it."""


@dataclass(frozen=True, slots=True)
class Rates:
    """The reads and bytes that a disk gives in a second."""

    requests: int
    bytes: int


def disk(path: Path, root: Path = ROOT) -> str:
    """Return "MAJOR:MINOR" of the disk that has a file; of the whole disk for a partition."""
    number = path.stat().st_dev
    found = f"{os.major(number)}:{os.minor(number)}"
    folder = root / "sys/dev/block" / found
    if not folder.exists():
        raise NotPermittedError("the data is not on a disk of this machine")
    if (folder / "partition").exists():
        return (folder.resolve().parent / "dev").read_text().strip()
    return found


@contextmanager
def readahead(device: str, kibibytes: int, root: Path = ROOT) -> Iterator[Callable[[], bool]]:
    """Set the kernel's readahead of a disk until the block ends.

    Provide a function that sets it again; it returns True if another program had changed it.
    """
    setting = root / "sys/dev/block" / device / "queue/read_ahead_kb"

    def set_again() -> bool:
        if setting.read_text().strip() == str(kibibytes):
            return False
        setting.write_text(str(kibibytes))
        return True

    try:
        before = setting.read_text().strip()
        set_again()
    except OSError as error:
        raise NotPermittedError(f"the disk's readahead cannot be set: {error}") from None
    try:
        yield set_again
    finally:
        setting.write_text(before)


@contextmanager
def slow_disk(device: str, rates: Rates, root: Path = ROOT) -> Iterator[Path]:
    """Provide a group whose processes read from a disk at most at these rates."""
    try:
        parent = _parent("blkio", root)
        settings = {
            "blkio.throttle.read_iops_device": f"{device} {rates.requests}",
            "blkio.throttle.read_bps_device": f"{device} {rates.bytes}",
        }
    except NotPermittedError:
        parent = _parent_2("io", root)
        settings = {"io.max": f"{device} rbps={rates.bytes} riops={rates.requests}"}
    with _group(parent, "disk", settings) as group:
        yield group


@contextmanager
def small_memory(limit: int, root: Path = ROOT) -> Iterator[Path]:
    """Provide a group whose processes have `limit` bytes for themselves and for cached files."""
    try:
        parent, setting = _parent("memory", root), "memory.limit_in_bytes"
    except NotPermittedError:
        parent, setting = _parent_2("memory", root), "memory.max"
    with _group(parent, "memory", {setting: str(limit)}) as group:
        yield group


def enter(groups: Iterable[str | Path], pids: Iterable[int] = (0,)) -> None:
    """Move processes into groups; 0 is this process. Their future children will be there too."""
    joining = list(pids)
    for group in groups:
        for pid in joining:
            (Path(group) / "cgroup.procs").write_text(str(pid))


@contextmanager
def ended_in_order() -> Iterator[None]:
    """Let signals that end this process raise SystemExit, so that everything is put back."""
    before = {number: signal.signal(number, _end) for number in ENDING}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _end(number: int, frame: FrameType | None) -> NoReturn:
    del frame
    raise SystemExit(128 + number)  # the exit code that shells give to a killed program


@contextmanager
def _group(parent: Path, kind: str, settings: Mapping[str, str]) -> Iterator[Path]:
    """Provide a new cgroup. At the end, kill the processes that are still in it, and remove it."""
    group = parent / f"ffrecord-bench-{kind}-{os.getpid()}"
    try:
        group.mkdir()
    except OSError as error:
        raise NotPermittedError(f"a cgroup cannot be made: {error}") from None
    try:
        for name, value in settings.items():
            try:
                (group / name).write_text(value)
            except OSError as error:
                raise NotPermittedError(f"{name} cannot be set: {error}") from None
        yield group
    finally:
        _remove(group)


def _remove(group: Path) -> None:
    deadline = time.monotonic() + PATIENCE
    while True:
        with suppress(FileNotFoundError):
            processes.kill(map(int, (group / "cgroup.procs").read_text().split()))
        try:
            group.rmdir()
            return
        except OSError:
            if time.monotonic() > deadline:
                raise
        time.sleep(POLL)


def _parent(controller: str, root: Path) -> Path:
    """Return the cgroup of version 1 that holds this process for a controller."""
    for _, names, path in _own(root):
        if controller in names.split(","):
            top = root / CGROUPS / controller
            # A container may see its own cgroup as the top, whatever its path outside is.
            found = next((at for at in _upwards(top, path) if (at / "cgroup.procs").exists()), None)
            if found is not None:
                return found
    raise NotPermittedError(f"there is no cgroup with the controller {controller!r}")


def _parent_2(controller: str, root: Path) -> Path:
    """Return the nearest cgroup of version 2 whose children have a controller.

    The cgroup of a process is never the one: a cgroup with processes passes nothing on.
    """
    for number, _, path in _own(root):
        if number == "0":
            for at in _upwards(root / CGROUPS, path):
                with suppress(OSError):
                    if controller in (at / "cgroup.subtree_control").read_text().split():
                        return at
    raise NotPermittedError(f"no cgroup of this process has the controller {controller!r}")


def _own(root: Path) -> Iterator[tuple[str, str, str]]:
    """Yield number, controllers and path of each cgroup of this process."""
    for line in (root / "proc/self/cgroup").read_text().splitlines():
        number, controllers, path = line.split(":", 2)
        yield number, controllers, path


def _upwards(top: Path, path: str) -> Iterator[Path]:
    inner = Path(path.lstrip("/"))
    yield top / inner
    for outer in inner.parents:
        yield top / outer
