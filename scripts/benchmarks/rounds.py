"""The loop that every benchmark makes in the parent process.

Each repeat measures all contestants one after another, beginning with another one each time.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence

from . import harness
from .results import Sample

Values = dict[str, float]
Contestant = tuple[str, Callable[[int], Values]]
"""A name, and its measurement as a function of the repeat."""

BUSY = 0.5
"""A load above which others disturb the measurements."""


def states() -> list[str]:
    """Warm, and cold where that is possible.

    Warm comes first: dropping caches undoes the warming of every file.
    """
    if harness.can_drop_caches():
        return ["warm", "cold"]
    say("cold is skipped: dropping the page cache needs root")
    return ["warm"]


def interleaved(case: str, contestants: Sequence[Contestant], repeats: int) -> Iterator[Sample]:
    """All contestants once in every repeat."""
    for repeat in range(repeats):
        say(f"{case}: repeat {repeat + 1} of {repeats}")
        for name, take in harness.rotated(contestants, repeat):
            yield _sample(case, name, repeat, take)


def load_before() -> float:
    """How many processes wanted to run in the last minute.

    Contestants are several processes: if others take a core, they share what is left.
    """
    load = os.getloadavg()[0]
    if load > BUSY:
        say(f"the machine is busy (load {load:.1f}): figures of two cores will be off")
    return load


def say(text: str) -> None:
    """Tell whoever waits what is going on."""
    print(text, file=sys.stderr, flush=True)


def _sample(case: str, name: str, repeat: int, take: Callable[[int], Values]) -> Sample:
    try:
        return Sample(case, name, repeat, take(repeat))
    except harness.MeasurementError as error:
        return Sample(case, name, repeat, error=str(error))
