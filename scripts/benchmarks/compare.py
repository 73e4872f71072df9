"""The same work with the code of two trees, in turn: is this tree slower than the one before?

BEFORE is the folder of another checkout of this project, or a git revision of this repository. For
a revision, a temporary worktree is made. This tree creates the data once. The code of this tree
measures both libraries, and uses only their public names.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from . import datasets, harness, machine, report, rounds
from .benchmark import Benchmark, Outcome
from .compare_cases import AFTER, BEFORE, FULL, GROUPS, QUICK, prepare, samples
from .compare_checkouts import NoCheckoutError, checked_out, compile_packages, revision
from .results import Results

SPEED = "per_s"
CPU = "cpu_us"
SIDES = (BEFORE, AFTER)
PACKAGES = ("numpy", "isal", "libaio", "torch")

ALLOWED = 0.05
"""Difference in speed, beyond the larger spread, that still counts as the same."""

FOOTNOTES = f"""
- before, after: records, files or samples per second, medians of all repeats.
- ×: the median of each repeat's own ratio. Below 1.00 this tree is slower. × CPU above 1.00: this
  tree needs more processor time.
- spread: half of the interquartile range of the measurements, divided by their median.
- slower (faster): × differs from 1 by more than {ALLOWED:.0%} plus the larger of the two spreads.
- CPU: processor time for each record, file or sample: of the reading process, of the mount's daemon
  (on two cores it polls while it waits), or of the loader's process with its workers.
- Every repeat measures each line with one tree, then with the other. The next repeat starts with
  the other tree. Each measurement is a fresh process.
"""


def measure(options: argparse.Namespace) -> Outcome:
    """Create the data that is missing, measure both trees, and report."""
    plan = QUICK if options.quick else FULL
    plan = replace(plan, repeats=options.repeats or plan.repeats)
    data: Path = options.data.resolve()
    try:
        with checked_out(options.before) as tree:
            trees = {BEFORE: tree, AFTER: harness.ROOT}
            for one in trees.values():
                compile_packages(one)
            revisions = {side: revision(trees[side]) for side in SIDES}
            load = rounds.load_before()
            lines = prepare(options.only, plan, data)
            results = Results(samples(lines, trees, plan.repeats))
    except (NoCheckoutError, harness.MeasurementError) as error:
        raise SystemExit(f"scripts/bench compare: {error}") from None
    names = [line.name for group in options.only for line in lines if line.name.startswith(group)]
    document = {
        "machine": {**machine.describe(data, PACKAGES), "load_before": load},
        "parameters": {**asdict(plan), "sigma": datasets.SIGMA, "seed": datasets.SEED},
        "revisions": revisions,
        "lines": {name: figures(results, name) for name in names},
        **report.as_document(results, (), (BEFORE,), (SPEED, CPU)),
    }
    return Outcome(_text(results, names, revisions, plan.repeats), document, data)


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "before",
        metavar="BEFORE",
        help="folder of another checkout, or a git revision, to compare with",
    )
    parser.add_argument(
        "--only",
        nargs="+",
        choices=GROUPS,
        default=tuple(GROUPS),
        metavar="NAME",
        help=f"measure only these benchmarks ({', '.join(GROUPS)})",
    )


BENCHMARK = Benchmark(
    "compare",
    summary="this tree against another tree of this project",
    description=__doc__,
    quick=f"a tenth of the data, {QUICK.repeats} repeats",
    measure=measure,
    add_options=_add_options,
)


def figures(results: Results, line: str) -> dict[str, Any]:
    """Return the figures of a line of the table: its ratios, spreads and verdict."""
    ratio = results.ratio(line, AFTER, BEFORE, SPEED)
    spreads = {side: spread(_speeds(results, line, side)) for side in SIDES}
    return {
        "ratio": ratio,
        "cpu_ratio": results.ratio(line, AFTER, BEFORE, CPU),
        "spread": spreads,
        "verdict": verdict(ratio, list(spreads.values())),
    }


def spread(values: Sequence[float]) -> float | None:
    """Return half of the interquartile range divided by the median; None for one value."""
    if len(values) < 2:
        return None
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return (high - low) / 2 / middle


def verdict(ratio: float | None, spreads: Sequence[float | None]) -> str:
    """Return the verdict on a ratio of speeds: a difference must exceed the noise."""
    known = [one for one in spreads if one is not None]
    if ratio is None or len(known) < len(spreads):
        return "not measured"
    margin = ALLOWED + max(known)
    if ratio < 1 - margin:
        return "slower"
    return "faster" if ratio > 1 + margin else "same"


def _speeds(results: Results, line: str, side: str) -> list[float]:
    return [
        sample.values[SPEED]
        for sample in results.samples
        if (sample.case, sample.contestant) == (line, side) and SPEED in sample.values
    ]


def _text(results: Results, names: Sequence[str], revisions: dict[str, str], repeats: int) -> str:
    header = ["line", "before, /s", "after, /s", "×", "spread before", "spread after"]
    header += ["CPU before, µs", "CPU after, µs", "× CPU", "verdict"]
    trees = ", ".join(f"{side}: {revisions[side]}" for side in SIDES)
    table = report.table(header, [_row(results, name) for name in names])
    return report.page(f"{trees}; {repeats} repeats", table, FOOTNOTES)


def _row(results: Results, line: str) -> list[str]:
    found = figures(results, line)
    return [
        _label(results, line),
        *(report.number(results.median(line, side, SPEED)) for side in SIDES),
        report.number(found["ratio"], 2),
        *(_percent(found["spread"][side]) for side in SIDES),
        *(report.number(results.median(line, side, CPU), 2) for side in SIDES),
        report.number(found["cpu_ratio"], 2),
        found["verdict"],
    ]


def _label(results: Results, line: str) -> str:
    """Return the name of a line, and the reason if its measurements failed."""
    failures = ((side, results.failure(line, side)) for side in SIDES)
    told = [f"{side} {why[: report.LONGEST_FAILURE]}" for side, why in failures if why]
    return ", ".join([line, *told])


def _percent(part: float | None) -> str:
    return "–" if part is None else f"{part:.1%}"
