"""The number of processors that this process may use.

A machine's own count is wrong in a container and in a job of a cluster: too many threads or
processes would wait for each other. Four things limit a process: its affinity, its control group,
Slurm, and the variable PYTHON_CPU_COUNT of Python 3.13.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path

GROUPS = Path("/sys/fs/cgroup")  # where control groups are mounted
OWN_GROUPS = Path("/proc/self/cgroup")


def available() -> int:
    """Return how many processors this process may use, at least 1."""
    count = getattr(os, "process_cpu_count", None)
    allowed = [(count() if count is not None else None) or len(os.sched_getaffinity(0))]
    if (shared := _of_groups()) is not None:
        allowed.append(shared)
    if (job := os.environ.get("SLURM_CPUS_PER_TASK", "")).isdecimal():
        allowed.append(int(job))
    return max(1, min(allowed))


@cache  # reading the files takes longer than many a caller's work, and limits hardly ever change
def _of_groups() -> int | None:
    """Return the limit of the control groups, rounded up; None if they have none."""
    limits = [-(-quota // period) for quota, period in _quotas() if quota > 0 and period > 0]
    return min(limits, default=None)


def _quotas() -> Iterator[tuple[int, int]]:
    """Yield the processor time that each group above this process may use in a period."""
    try:
        lines = OWN_GROUPS.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, own = line.split(":", 2)
        if not controllers:  # version 2
            yield from _each(GROUPS, own, ("cpu.max",))
        elif "cpu" in controllers.split(","):
            files = ("cpu.cfs_quota_us", "cpu.cfs_period_us")
            yield from _each(GROUPS / controllers, own, files)
            yield from _each(GROUPS / "cpu", own, files)


def _each(mount: Path, own: str, files: tuple[str, ...]) -> Iterator[tuple[int, int]]:
    """Yield the quota of a group and of all groups above it.

    In a container, the path may be the one outside. Then only the mount itself has the files.
    """
    group = mount / own.lstrip("/")
    for folder in (group, *group.parents):
        try:
            quota, period = " ".join((folder / each).read_text() for each in files).split()
        except (OSError, ValueError):
            pass
        else:
            if quota != "max":
                yield int(quota), int(period)
        if folder == mount:
            return
