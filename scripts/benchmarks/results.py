"""Samples, their medians and ratios, and the goals they are held to.

A machine drifts over a run: clocks, neighbours on the same disk. Ratios are therefore taken within
a repeat, where both sides ran close together, and the median is over those ratios.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Sample:
    """One measurement: its values, or the error that it ended with."""

    case: str
    contestant: str
    repeat: int
    values: dict[str, float] = field(default_factory=dict)
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Goal:
    """In a case, one contestant's metric should be at least `threshold` times another's."""

    case: str
    contestant: str
    over: str
    metric: str
    threshold: float

    def __str__(self) -> str:
        """The goal as one line of a report."""
        return f"{self.case}: {self.contestant} ≥ {self.threshold:g} × {self.over} ({self.metric})"


class Results:
    """All samples of a run."""

    def __init__(self, samples: Iterable[Sample]) -> None:
        self.samples: Sequence[Sample] = tuple(samples)

    def cases(self) -> list[str]:
        """The cases measured, in order of appearance."""
        return list(dict.fromkeys(sample.case for sample in self.samples))

    def contestants(self, case: str) -> list[str]:
        """Who took part in a case, in the order of the first repeat."""
        return list(dict.fromkeys(s.contestant for s in self.samples if s.case == case))

    def median(self, case: str, contestant: str, metric: str) -> float | None:
        """The median over the repeats that worked; None if none did."""
        return _median(self._by_repeat(case, contestant, metric).values())

    def ratio(self, case: str, contestant: str, over: str, metric: str) -> float | None:
        """The median of each repeat's own ratio; None if no repeat has both sides."""
        above = self._by_repeat(case, contestant, metric)
        below = self._by_repeat(case, over, metric)
        return _median(above[repeat] / below[repeat] for repeat in above.keys() & below.keys())

    def failure(self, case: str, contestant: str) -> str | None:
        """How many repeats of a contestant failed and why the first did; None if all worked."""
        repeats = self._of(case, contestant)
        errors = [sample.error for sample in repeats if sample.error is not None]
        return f"failed {len(errors)} of {len(repeats)}: {errors[0]}" if errors else None

    def _of(self, case: str, contestant: str) -> list[Sample]:
        return [s for s in self.samples if s.case == case and s.contestant == contestant]

    def _by_repeat(self, case: str, contestant: str, metric: str) -> dict[int, float]:
        return {
            s.repeat: s.values[metric] for s in self._of(case, contestant) if metric in s.values
        }


def _median(values: Iterable[float]) -> float | None:
    found = list(values)
    return statistics.median(found) if found else None
