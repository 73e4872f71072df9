"""A packed folder of a million files against one of a thousand: opening, and reading by name."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from . import datasets, machine, report
from .benchmark import Benchmark, Outcome
from .folder_archives import MEAN
from .folder_cases import ARCHIVES, FULL, MILLION, OPEN, QUICK, READ, THOUSAND, Plan, case, samples
from .results import Limit, Results

PACKAGES = ("ffrecord", "numpy", "isal", "libaio")
# Metrics and the headings of their columns.
OPEN_COLUMNS = {
    "ms": "ms",
    "private_mb_before": "private MB before",
    "private_mb": "private MB",
    "shared_mb": "shared MB",
    "peak_mb": "peak MB",
}
READ_COLUMNS = {
    "folder_files_per_s": "folder.read, files/s",
    "reader_files_per_s": "FileReader.read, files/s",
    "slowdown": "folder.read takes ×",
}
STATES = ("cold", "warm")

GOALS = (
    *(Limit(case(s, OPEN), MILLION, "ms", 150, 1.5, THOUSAND) for s in STATES),
    *(Limit(case(s, OPEN), MILLION, "private_mb", 64) for s in STATES),
    *(Limit(case(s, READ), MILLION, "slowdown", 1.3) for s in STATES),
)
FOOTNOTES = """
- open: PackedFolder(path) and the stat of one name, with modules loaded before.
- private MB: Private_Clean + Private_Dirty of smaps_rollup, of the whole process with the
  interpreter.
- shared MB: shared mappings of memory, which hold the index. All forked workers share one copy.
- peak MB: resident pages, including pages mapped from files.
- pickle: the original's way. The pickle of the index record is loaded, and one name is looked up.
- read: both readers take turns batch by batch in one process. They read the same batches, all of
  new names.
"""


def measure(options: argparse.Namespace) -> Outcome:
    """Create the data that is missing, measure, and report."""
    plan = QUICK if options.quick else FULL
    plan = replace(plan, repeats=options.repeats or plan.repeats)
    data: Path = options.data.resolve()
    results = Results(samples(plan, data))
    goals = [goal for goal in GOALS if goal.case in results.cases()]
    return Outcome(_text(results, plan, goals), _document(results, goals, plan, data), data)


BENCHMARK = Benchmark(
    "folder",
    summary="a packed folder of a million files",
    description=__doc__,
    quick="fewer batches, 3 repeats",
    measure=measure,
)


def _text(results: Results, plan: Plan, goals: Sequence[Limit]) -> str:
    opened, read = (
        [name for state in STATES if (name := case(state, what)) in results.cases()]
        for what in (OPEN, READ)
    )
    return report.page(
        *(report.section(name, _open_table(results, name)) for name in opened),
        report.section(f"read, batches of {plan.batch} random names", _read_table(results, read)),
        FOOTNOTES,
        report.goals(results, goals),
    )


def _open_table(results: Results, name: str) -> str:
    rows = []
    for archive in results.contestants(name):
        medians = (results.median(name, archive, metric) for metric in OPEN_COLUMNS)
        cells = (report.number(median, 1) for median in medians)
        rows.append([report.contestant(results, name, archive), *cells])
    return report.table(["archive", *OPEN_COLUMNS.values()], rows)


def _read_table(results: Results, cases: Sequence[str]) -> str:
    rows = []
    for name in cases:
        folder, reader, slowdown = (results.median(name, MILLION, m) for m in READ_COLUMNS)
        cells = [report.number(folder), report.number(reader), report.number(slowdown, 2)]
        rows.append([f"{name}, {report.contestant(results, name, MILLION)}", *cells])
    return report.table(["case", *READ_COLUMNS.values()], rows)


def _document(results: Results, goals: Sequence[Limit], plan: Plan, data: Path) -> dict[str, Any]:
    """Return everything that is needed to check the tables or to run the benchmark again."""
    parameters = {
        **asdict(plan),
        "archives": {name: asdict(archive) for name, archive in ARCHIVES.items()},
        "mean": MEAN,
        "sigma": datasets.SIGMA,
        "seed": datasets.SEED,
    }
    metrics = (*OPEN_COLUMNS, *READ_COLUMNS)
    return {
        "machine": machine.describe(data, PACKAGES),
        "parameters": parameters,
        **report.as_document(results, goals, (), metrics),
    }
