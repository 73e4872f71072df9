"""The results of a soak as text and as JSON, and the verdict."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from .crew import Crew
from .disturbances import Disturber
from .ledger import BYTES, FAILURES, MISMATCHES, OPERATIONS, Problem
from .served import Mounted
from .trends import Trend, Watch

if TYPE_CHECKING:
    from .soak import Order

SHOWN = 5


@dataclass(frozen=True, slots=True)
class Kind:
    """Counts and times of all operations of one kind. Times are in seconds."""

    kind: str
    operations: int
    bytes: int
    mismatches: int
    failures: int
    median: float
    p99: float
    longest: float


@dataclass(frozen=True, slots=True)
class Report:
    """All results of a soak."""

    seconds: float
    seed: int
    readers: int
    workers: int
    kernel: str
    kinds: list[Kind]
    disturbances: dict[str, int]
    restarts: int
    mount: dict[str, int]
    trends: list[Trend]
    problems: list[str]
    first_problems: list[Problem]
    interrupted: bool
    samples: dict[str, list[tuple[int, float, float]]]

    @property
    def operations(self) -> int:
        return sum(kind.operations for kind in self.kinds)

    @property
    def mismatches(self) -> int:
        return sum(kind.mismatches for kind in self.kinds)

    @property
    def failures(self) -> int:
        return sum(kind.failures for kind in self.kinds)

    @property
    def passed(self) -> bool:
        return not (self.mismatches or self.failures or self.problems)

    def as_json(self) -> dict[str, Any]:
        totals = {name: getattr(self, name) for name in ("operations", "mismatches", "failures")}
        return {"passed": self.passed, **totals, **asdict(self)}

    def lines(self) -> Iterator[str]:
        yield f"{'':22}{'operations':>12}{'MB':>10}{'median':>11}{'99 %':>11}{'longest':>11}"
        for kind in self.kinds:
            yield (
                f"{kind.kind:22}{kind.operations:12,}{kind.bytes / 1e6:10,.0f}"
                f"{_time(kind.median)}{_time(kind.p99)}{_time(kind.longest)}"
            )
        yield ""
        yield f"{'':34}{'mean':>10}{'a minute':>12}{'total':>10}{'± error':>10}"
        for trend in self.trends:
            yield (
                f"{trend.name:34}{trend.mean:10.1f}{trend.per_minute:+12.3f}{trend.growth:+10.2f}"
                f"{trend.error:10.2f}{'' if trend.is_flat else '  GROWS'}"
            )
        yield ""
        yield ", ".join(f"{name}: {count}" for name, count in self.disturbances.items())
        served = {name: f"{count:,}" for name, count in self.mount.items() if name != "disk"}
        yield "the mount's counts: " + ", ".join(f"{name} {n}" for name, n in served.items())
        for problem in self.first_problems[:SHOWN]:
            yield f"after {problem.seconds} s: {problem.reader}: {problem.kind}: {problem.what}"
        if len(self.first_problems) > SHOWN:
            yield f"… and {len(self.first_problems) - SHOWN} more"
        yield from self.problems
        yield (
            f"{'INTERRUPTED: ' if self.interrupted else ''}{'PASS' if self.passed else 'FAIL'}: "
            f"{self.seconds / 60:.1f} minutes, "
            f"{self.readers} readers, {self.operations:,} operations, "
            f"{sum(kind.bytes for kind in self.kinds) / 1e9:.1f} GB, "
            f"{self.mismatches} mismatches, {self.failures} failures, "
            f"{self.disturbances['worker killed']} workers killed, {self.restarts} restarted"
        )


def finding(
    order: Order, seconds: float, crew: Crew, served: Mounted, disturber: Disturber, watch: Watch,
    stats: dict[str, int], problems: list[str], interrupted: bool,
) -> Report:  # fmt: skip
    """Return a report with the results of ledger, mount, disturbances and trends."""
    ledger = crew.ledger
    kinds = [
        Kind(
            kind, ledger.of_kind(kind, OPERATIONS), ledger.of_kind(kind, BYTES),
            ledger.of_kind(kind, MISMATCHES), ledger.of_kind(kind, FAILURES),
            ledger.percentile(kind, 0.5), ledger.percentile(kind, 0.99), ledger.longest(kind),
        )
        for kind in ledger.kinds
    ]  # fmt: skip
    trends = watch.trends()
    problems = problems + [
        f"{trend.name} grew by {trend.growth:.1f}" for trend in trends if not trend.is_flat
    ]
    return Report(
        seconds=seconds, seed=order.seed, readers=order.readers, workers=order.workers,
        kernel=os.uname().release, kinds=kinds,
        disturbances={each.name: each.count for each in disturber.all},
        restarts=stats.get("restarts", 0), mount=stats, trends=trends, problems=problems,
        first_problems=ledger.problems(), interrupted=interrupted, samples=watch.samples,
    )  # fmt: skip


def _time(seconds: float) -> str:
    if seconds >= 1:
        return f"{seconds:9.2f} s"
    return f"{seconds * 1e3:8.2f} ms"
