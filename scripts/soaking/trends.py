"""Samples of the memory and descriptors of processes, and the test for growth.

A killed worker or reader starts again with fresh memory. Samples therefore belong to a life (a
pid). One line is fitted by least squares to all lives at once: each life has its own level, all
share one slope. The remaining noise gives the slope's standard error. Growth counts only if it
exceeds the tolerated amount by more than three standard errors.

One line is fitted to the first half of each life, another to the second, and the flatter one
counts. A leak rises in both halves. Memory that is allocated once and reused rises only in one.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from scripts.benchmarks import memory

from .contents import MIB

Points: TypeAlias = npt.NDArray[np.float64]

WARM_UP = 0.3
"""Share of each life in which memory may grow, because pools for reuse fill up first."""
ERRORS = 3.0
FEWEST = 16
"""Fewest samples of a life after its warm-up: fewer can lie on a line by chance."""


@dataclass(frozen=True, slots=True)
class Trend:
    """The trend of one quantity over the time in which it was watched."""

    name: str
    mean: float
    per_minute: float
    growth: float  # over the longest life
    error: float  # one standard error of the growth
    tolerated: float
    samples: int

    @property
    def is_flat(self) -> bool:
        return self.growth - ERRORS * self.error <= self.tolerated


class Watch:
    """Samples of quantities, by name."""

    def __init__(self) -> None:
        self._samples: dict[str, list[tuple[int, float, float]]] = {}
        self._tolerated: dict[str, float] = {}

    def note(self, name: str, life: int, value: float, tolerated: float) -> None:
        self._tolerated[name] = tolerated
        self._samples.setdefault(name, []).append((life, time.monotonic(), value))

    def note_process(self, name: str, pid: int, *, descriptors: float, mebibytes: float) -> None:
        """Sample a process's descriptors and memory; the keywords are the tolerated growth."""
        count, size = open_descriptors(pid), _asked(memory.resident, pid)
        if size:  # 0: the process has just died
            self.note(f"{name}: descriptors", pid, count, descriptors)
            self.note(f"{name}: MiB", pid, size / MIB, mebibytes)

    def note_sum(
        self, name: str, pids: Sequence[int], *, descriptors: float, mebibytes: float
    ) -> None:
        """Sample the sums over processes that come and go.

        Each process counts its share of the pages that several processes map (PSS).
        """
        self.note(f"{name}: descriptors", 0, sum(map(open_descriptors, pids)), descriptors)
        shares = [_asked(memory.proportional, pid) / MIB for pid in pids]
        self.note(f"{name}: PSS MiB", 0, sum(shares), mebibytes)

    @property
    def samples(self) -> dict[str, list[tuple[int, float, float]]]:
        """The samples by name: pid (0 for a sum), time in seconds, value."""
        return self._samples

    def untold(self) -> list[str]:
        """Return the quantities that have too few samples for a trend."""
        return sorted(self._samples.keys() - {trend.name for trend in self.trends()})

    def trends(self) -> list[Trend]:
        return [
            trend
            for name, samples in self._samples.items()
            if (trend := _trend(name, samples, self._tolerated[name])) is not None
        ]


def open_descriptors(pid: int) -> int:
    return _asked(lambda pid: len(os.listdir(f"/proc/{pid}/fd")), pid)


def _asked(question: Callable[[int], int], pid: int) -> int:
    """Return an answer from /proc; 0 if the process is gone."""
    try:
        return question(pid)
    except (FileNotFoundError, ProcessLookupError):
        return 0


def _trend(name: str, samples: list[tuple[int, float, float]], tolerated: float) -> Trend | None:
    """Fit the trend of one quantity; None if no life was long enough."""
    lives: dict[int, list[tuple[float, float]]] = {}
    for life, when, value in samples:
        lives.setdefault(life, []).append((when, value))
    late = [np.array(points)[round(WARM_UP * len(points)) :] for points in lives.values()]
    late = [points for points in late if len(points) >= FEWEST]
    if not late:
        return None
    halves = zip(*(np.array_split(points, 2) for points in late), strict=True)
    slope, error = min((_line(half) for half in halves), key=lambda line: line[0])
    longest = max(float(points[-1, 0] - points[0, 0]) for points in late)
    everything = np.concatenate(late)
    return Trend(
        name, float(everything[:, 1].mean()), slope * 60, slope * longest, error * longest,
        tolerated, len(everything),
    )  # fmt: skip


def _line(lives: Sequence[Points]) -> tuple[float, float]:
    """Return slope and standard error of the line through the (time, value) of several lives."""
    x, y = np.concatenate([points - points.mean(axis=0) for points in lives]).T
    spread = float((x * x).sum())
    slope = float((x * y).sum()) / spread
    freedom = len(x) - len(lives) - 1
    return slope, float(np.sqrt(((y - slope * x) ** 2).sum() / freedom / spread))
