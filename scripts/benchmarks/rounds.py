"""The loop that every benchmark runs in the parent process.

Each repeat measures all contestants one after another, and starts with another one each time.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Collection, Iterator, Sequence

from . import harness
from .results import Sample

Values = dict[str, float]
Contestant = tuple[str, Callable[[int], Values]]
"""A name, and a function that takes the number of the repeat and measures."""

BUSY = 0.5
"""Load of the machine above which other programs disturb the measurements."""


def states() -> list[str]:
    """Return "warm", and "cold" if caches can be dropped.

    Warm comes first, because dropping caches undoes the warming of every file.
    """
    if harness.can_drop_caches():
        return ["warm", "cold"]
    say("cold is skipped: dropping the page cache needs root")
    return ["warm"]


def interleaved(
    case: str, contestants: Sequence[Contestant], repeats: int, seldom: Collection[str] = ()
) -> Iterator[Sample]:
    """Measure all contestants once in every repeat.

    Those of `seldom` are measured in half of the repeats, rounded down, but at least once.
    """
    for repeat in range(repeats):
        say(f"{case}: repeat {repeat + 1} of {repeats}")
        if repeat >= max(1, repeats // 2):
            contestants = [one for one in contestants if one[0] not in seldom]
        for name, take in harness.rotated(contestants, repeat):
            yield _sample(case, name, repeat, take)


def load_before() -> float:
    """Return the load of the last minute, and warn if it is high.

    A contestant may have several processes, which share a core if other programs use the rest.
    """
    load = os.getloadavg()[0]
    if load > BUSY:
        say(
            f"the machine is busy (load {load:.1f}), so figures for two cores will be wrong; stop "
            "other programs and run the benchmark again"
        )
    return load


def say(text: str) -> None:
    """Print a line of progress to standard error."""
    print(text, file=sys.stderr, flush=True)


def _sample(case: str, name: str, repeat: int, take: Callable[[int], Values]) -> Sample:
    try:
        return Sample(case, name, repeat, take(repeat))
    except harness.MeasurementError as error:
        return Sample(case, name, repeat, error=str(error))
