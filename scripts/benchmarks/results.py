"""Samples, their medians and ratios, and the goals for them.

The speed of a machine drifts during a run. Ratios are therefore computed within a repeat, in which
both sides ran close together, and the median is taken over those ratios.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Sample:
    """One measurement: its values, or its error message."""

    case: str
    contestant: str
    repeat: int
    values: dict[str, float] = field(default_factory=dict)
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Goal:
    """A goal for a case: one contestant's metric is at least `threshold` times another's."""

    case: str
    contestant: str
    over: str
    metric: str
    threshold: float

    def __str__(self) -> str:
        """Return the goal as one line of a report."""
        mark = f"{self.threshold:.3g} × {self.over}"
        return f"{self.case}: {self.contestant} ≥ {mark} ({self.metric})"

    def value(self, results: Results) -> float | None:
        """Return the value that is compared with the threshold; None if it was not measured."""
        return results.ratio(self.case, self.contestant, self.over, self.metric)

    def verdict(self, results: Results) -> str:
        """Return "PASS", "below" or "not measured"."""
        value = self.value(results)
        if value is None:
            return "not measured"
        return "PASS" if value >= self.threshold else "below"


@dataclass(frozen=True, slots=True)
class Limit:
    """A limit for a case: one contestant's metric is at most `most`.

    With `over`, `factor` times the metric of another contestant is subtracted first.
    """

    case: str
    contestant: str
    metric: str
    most: float
    factor: float = 0.0
    over: str | None = None

    def __str__(self) -> str:
        """Return the limit as one line of a report."""
        beyond = "" if self.over is None else f" − {self.factor:g} × {self.over}"
        return f"{self.case}: {self.contestant}{beyond} ≤ {self.most:g} ({self.metric})"

    def value(self, results: Results) -> float | None:
        """Return the value that is compared with `most`; None if it was not measured."""
        if self.over is None:
            return results.median(self.case, self.contestant, self.metric)
        return results.excess(self.case, self.contestant, self.over, self.metric, self.factor)

    def verdict(self, results: Results) -> str:
        """Return "PASS", "above" or "not measured"."""
        value = self.value(results)
        if value is None:
            return "not measured"
        return "PASS" if value <= self.most else "above"


class Results:
    """All samples of a run."""

    def __init__(self, samples: Iterable[Sample]) -> None:
        self.samples: Sequence[Sample] = tuple(samples)

    def cases(self) -> list[str]:
        """Return the measured cases, in order of appearance."""
        return list(dict.fromkeys(sample.case for sample in self.samples))

    def contestants(self, case: str) -> list[str]:
        """Return the contestants of a case, in the order of the first repeat."""
        return list(dict.fromkeys(s.contestant for s in self.samples if s.case == case))

    def median(self, case: str, contestant: str, metric: str) -> float | None:
        """Return the median over successful repeats; None if there are none."""
        return _median(self._by_repeat(case, contestant, metric).values())

    def ratio(self, case: str, contestant: str, over: str, metric: str) -> float | None:
        """Return the median of each repeat's own ratio; None if no repeat has both sides.

        A repeat with a zero as the divisor has no ratio.
        """
        above = self._by_repeat(case, contestant, metric)
        below = self._by_repeat(case, over, metric)
        repeats = above.keys() & below.keys()
        return _median(above[repeat] / below[repeat] for repeat in repeats if below[repeat])

    def excess(
        self, case: str, contestant: str, over: str, metric: str, factor: float
    ) -> float | None:
        """Return the median of each repeat's own excess over `factor` times another contestant."""
        larger = self._by_repeat(case, contestant, metric)
        smaller = self._by_repeat(case, over, metric)
        repeats = larger.keys() & smaller.keys()
        return _median(larger[repeat] - factor * smaller[repeat] for repeat in repeats)

    def failure(self, case: str, contestant: str) -> str | None:
        """Return how many repeats failed and the first error; None if all succeeded."""
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
