"""Ray and Spark reading our files against other forms of the same data, and packing in tasks."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from . import datasets, machine, report
from .benchmark import Benchmark, Outcome
from .cluster_cases import FULL, LARGER, PACKING, QUICK, SHARDS, SMALL, Plan, case, samples
from .cluster_data import SHARDS as FILES_EACH
from .cluster_engines import (
    BINARY_FILE,
    BINARY_FILES,
    CORES,
    OURS_ARCHIVE,
    OURS_RECORDS,
    PARQUET,
    WEBDATASET,
)
from .results import Goal, Results

PACKAGES = ("ffrecord", "numpy", "ray", "pyspark", "pyarrow", "isal", "libaio")
RATE, SPEED, SECONDS = "rows_per_s", "bytes_per_s", "seconds"
ALONE, BOTH = "1 worker", "2 workers"

RIVALS = {
    "Ray": {WEBDATASET: 3.0, BINARY_FILES: 5.0, PARQUET: 1.0},
    "Spark": {BINARY_FILE: 5.0, PARQUET: 1.0},
}
GOALS = (
    *(
        Goal(case(engine, tree), ours, rival, RATE, threshold)
        for engine, rivals in RIVALS.items()
        for tree in (SMALL, LARGER)
        for ours in (OURS_RECORDS, OURS_ARCHIVE)
        for rival, threshold in rivals.items()
    ),
    *(
        Goal(case(f"{state} {PACKING}", tree), BOTH, ALONE, RATE, 1.7)
        for state in ("cold", "warm")
        for tree in (SMALL, LARGER)
    ),
)
FOOTNOTES = f"""
- Reading: the engine has {CORES} cores. Its workers compute the number of rows and the sum of their
  lengths; only these numbers reach the driver. All files are in the page cache. The engine runs
  already, and has read the same files once before.
- ours: one record file, or one archive. Checksums are verified.
- {WEBDATASET}: {FILES_EACH} tars, decoder=False. {PARQUET}: {FILES_EACH} files with a binary
  column, without compression and dictionaries. The others read the folder of files.
- Packing: `pack_folder` into {SHARDS} shards with fsync, by a `ProcessPoolExecutor`. A worker is a
  process that is bound to one core and has loaded its modules. Without an executor, one process
  with threads uses both cores.
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
    "cluster",
    summary="Ray and Spark reading, and packing in tasks",
    description=__doc__,
    quick="a tenth of the data, 1 repeat",
    measure=measure,
)


def _text(results: Results, plan: Plan, goals: Sequence[Goal]) -> str:
    amounts = {tree.name: f"{tree.count:,} × {tree.name}" for tree in plan.trees}
    sections = []
    for name in results.cases():
        what, tree = name.split(", ")
        sections.append(report.section(f"{what}: {amounts[tree]}", _table(results, name)))
    return report.page(*sections, FOOTNOTES, report.goals(results, goals))


def _table(results: Results, name: str) -> str:
    there = results.contestants(name)
    references = [one for one in (OURS_RECORDS, OURS_ARCHIVE, ALONE) if one in there]
    rows = [
        [
            report.contestant(results, name, one),
            report.number(results.median(name, one, SECONDS), 2),
            report.number(results.median(name, one, RATE)),
            report.scaled(results.median(name, one, SPEED), 1e-6),
            *(report.number(results.ratio(name, one, ref, RATE), 2) for ref in references),
        ]
        for one in there
    ]
    header = ["contestant", "s", "rows/s", "MB/s", *(f"× {each}" for each in references)]
    return report.table(header, rows)


def _document(results: Results, goals: Sequence[Goal], plan: Plan, data: Path) -> dict[str, Any]:
    """Return everything that is needed to check the tables or to run the benchmark again."""
    return {
        "machine": machine.describe(data, PACKAGES),
        "parameters": {
            **asdict(plan), "cores": CORES, "shards": SHARDS, "sigma": datasets.SIGMA,
            "seed": datasets.SEED,
        },
        **report.as_document(
            results, goals, (OURS_RECORDS, OURS_ARCHIVE, ALONE), (RATE, SPEED, SECONDS)
        ),
    }  # fmt: skip
