"""Packing a folder into one file, warm and cold, against tar, cp, mksquashfs and zip."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from . import datasets, machine, packers, report
from .benchmark import Benchmark, Outcome
from .pack_cases import FULL, LARGE, QUICK, SMALL, Plan, case, samples
from .results import Goal, Results
from .trees import FileTree

SPEED = "bytes_per_s"
SECONDS = "seconds"
MEMORY = "peak_memory"
PACKAGES = ("ffrecord", "numpy", "isal")

OURS, TAR, CP = packers.OURS.name, packers.TAR.name, packers.CP.name
CP_DURABLE = packers.CP_DURABLE.name
# Thresholds are ratios of speeds. They stand for these times: no longer than tar (cold), at most
# 1.5 times as long as tar (warm), at most 1.2 times as long as cp. cp leaves the data in the page
# cache; only with fsync does it do the same work as ours.
MARKS = (
    (f"cold {SMALL}", TAR, 1.0),
    (f"warm {SMALL}", TAR, 1 / 1.5),
    (f"cold {LARGE}", CP, 1 / 1.2),
    (f"warm {LARGE}", CP, 1 / 1.2),
    (f"cold {LARGE}", CP_DURABLE, 1 / 1.2),
    (f"warm {LARGE}", CP_DURABLE, 1 / 1.2),
)
GOALS = tuple(
    Goal(name, ours.name, over, SPEED, threshold)
    for ours in (packers.OURS, packers.OURS_COMMAND)
    for name, over, threshold in MARKS
)
FOOTNOTES = f"""
- Seconds are wall time. Speeds are payload divided by time. Ratios are medians of each repeat's own
  ratio of speeds.
- {OURS}: a call of pack_folder, with its modules already loaded. All others: a process from start
  to end; cold, its program is loaded from disk too.
- Ours always ends with fsync of the file and its folder. Of the others, only those with "+ fsync"
  do; the rest end when the data is in the page cache.
- {packers.DISK.name}: writes as many bytes with O_DIRECT and fsync, without reading any file. No
  durable copy can be faster.
- mksquashfs runs with {" ".join(packers.SQUASHFS_OPTIONS)}, on all cores; zip with -0 -r.
- Peak memory below 20 MB is the memory of the process that started the command.
"""


def measure(options: argparse.Namespace) -> Outcome:
    """Create the data that is missing, measure, and report."""
    plan = QUICK if options.quick else FULL
    plan = replace(plan, repeats=options.repeats or plan.repeats)
    data: Path = options.data.resolve()
    results = Results(samples(plan, data))
    goals = [g for g in GOALS if g.contestant in results.contestants(g.case)]
    document = _document(results, goals, plan, data)
    return Outcome(_text(results, plan, goals), document, data)


BENCHMARK = Benchmark(
    "pack",
    summary="packing a folder, warm and cold",
    description=__doc__,
    quick="a tenth of the data, 3 repeats",
    measure=measure,
)


def _text(results: Results, plan: Plan, goals: Sequence[Goal]) -> str:
    tables = [
        report.section(f"{name}: {_amount(tree)}", _table(results, name))
        for state in _states(results, plan)
        for tree in plan.trees
        for name in [case(tree, state)]
    ]
    return report.page(*tables, FOOTNOTES, report.goals(results, goals))


def _states(results: Results, plan: Plan) -> list[str]:
    return [state for state in ("cold", "warm") if case(plan.trees[0], state) in results.cases()]


def _amount(tree: FileTree) -> str:
    mean = f"{tree.mean / 1e6:g} MB" if tree.mean >= 1e6 else f"{tree.mean / 1e3:g} kB"
    return f"{tree.count:,} × {mean}"


def _table(results: Results, name: str) -> str:
    references = [ref for ref in (OURS, TAR, CP) if ref in results.contestants(name)]
    header = ["contestant", "s", "MB/s", *(f"× {ref}" for ref in references), "peak MB"]
    rows = [_row(results, name, packer, references) for packer in results.contestants(name)]
    return report.table(header, rows)


def _row(results: Results, name: str, packer: str, references: Sequence[str]) -> list[str]:
    return [
        report.contestant(results, name, packer),
        report.number(results.median(name, packer, SECONDS), 2),
        report.scaled(results.median(name, packer, SPEED), 1e-6),
        *(report.number(results.ratio(name, packer, ref, SPEED), 2) for ref in references),
        report.scaled(results.median(name, packer, MEMORY), 1e-6),
    ]


def _document(results: Results, goals: Sequence[Goal], plan: Plan, data: Path) -> dict[str, Any]:
    """Return everything that is needed to check the tables or to run the benchmark again."""
    metrics = (SPEED, SECONDS, MEMORY)
    return {
        "machine": {**machine.describe(data, PACKAGES), "programs": packers.versions()},
        "parameters": {**asdict(plan), "sigma": datasets.SIGMA, "seed": datasets.SEED},
        **report.as_document(results, goals, (OURS, TAR, CP), metrics),
    }
