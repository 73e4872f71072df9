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
        mark = f"{self.threshold:.3g} × {self.over}"
        return f"{self.case}: {self.contestant} ≥ {mark} ({self.metric})"

    def value(self, results: Results) -> float | None:
        """What the threshold is compared with; None if it was not measured."""
        return results.ratio(self.case, self.contestant, self.over, self.metric)

    def verdict(self, results: Results) -> str:
        """PASS, below, or that there is nothing to judge."""
        value = self.value(results)
        if value is None:
            return "not measured"
        return "PASS" if value >= self.threshold else "below"


@dataclass(frozen=True, slots=True)
class Limit:
    """In a case, one contestant's metric should be at most `most`.

    With `over`: what it has more than `factor` times another's should be.
    """

    case: str
    contestant: str
    metric: str
    most: float
    factor: float = 0.0
    over: str | None = None

    def __str__(self) -> str:
        """The limit as one line of a report."""
        beyond = "" if self.over is None else f" − {self.factor:g} × {self.over}"
        return f"{self.case}: {self.contestant}{beyond} ≤ {self.most:g} ({self.metric})"

    def value(self, results: Results) -> float | None:
        """What is compared with `most`; None if it was not measured."""
        if self.over is None:
            return results.median(self.case, self.contestant, self.metric)
        return results.excess(self.case, self.contestant, self.over, self.metric, self.factor)

    def verdict(self, results: Results) -> str:
        """PASS, above, or that there is nothing to judge."""
        value = self.value(results)
        if value is None:
            return "not measured"
        return "PASS" if value <= self.most else "above"


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
        """The median of each repeat's own ratio; None if no repeat has both sides.

        Nothing is a multiple of zero: such a repeat has no ratio.
        """
        above = self._by_repeat(case, contestant, metric)
        below = self._by_repeat(case, over, metric)
        repeats = above.keys() & below.keys()
        return _median(above[repeat] / below[repeat] for repeat in repeats if below[repeat])

    def excess(
        self, case: str, contestant: str, over: str, metric: str, factor: float
    ) -> float | None:
        """The median of what each repeat has beyond `factor` times another's."""
        larger = self._by_repeat(case, contestant, metric)
        smaller = self._by_repeat(case, over, metric)
        repeats = larger.keys() & smaller.keys()
        return _median(larger[repeat] - factor * smaller[repeat] for repeat in repeats)

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
