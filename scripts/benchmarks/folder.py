"""Opening a packed folder of a million files against a thousand, and reading it by names."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import commandline, datasets, machine, report
from .folder_archives import MEAN
from .folder_cases import ARCHIVES, FULL, MILLION, OPEN, QUICK, READ, THOUSAND, Plan, case, samples
from .results import Limit, Results

if TYPE_CHECKING:
    from .commandline import Commands

PACKAGES = ("ffrecord", "numpy", "isal", "libaio")
# Metrics and the heads of their columns.
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
open: PackedFolder(path) and the stat of one name, modules loaded before. Private memory is
Private_Clean + Private_Dirty of smaps_rollup, of the whole process, the interpreter included.
"shared" are its shared mappings of memory: where the index is. Not private, but memory too, one
copy for all forked workers. The peak counts resident pages, those mapped from files included.
pickle: the original's way. The index record's pickle is read and loaded, and one name looked up.
read: batch by batch in turns, in one process; both read the same batches, all of fresh names.
"""


def add_command(commands: Commands) -> None:
    """Register `folder` and its options."""
    parser = commandline.new_command(
        commands,
        "folder",
        summary="a packed folder of a million files",
        description=__doc__,
        quick="fewer batches, 3 repeats",
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Create what is missing, measure, and report."""
    plan = QUICK if options.quick else FULL
    plan = replace(plan, repeats=options.repeats or plan.repeats)
    data: Path = options.data.resolve()
    results = Results(samples(plan, data))
    goals = [goal for goal in GOALS if goal.case in results.cases()]
    _print(results, plan, goals)
    report.save_json(_document(results, goals, plan, data), options.json, private=data)
    return 0


def _print(results: Results, plan: Plan, goals: Sequence[Limit]) -> None:
    measured = results.cases()
    for name in (case(state, OPEN) for state in STATES):
        if name in measured:
            print(f"\n### {name}\n\n{_open_table(results, name)}")
    print(f"\n### read, batches of {plan.batch} random names\n")
    print(_read_table(results, [name for s in STATES if (name := case(s, READ)) in measured]))
    print(FOOTNOTES)
    print(f"### Goals\n\n{report.verdicts(results, goals)}")


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
    """Everything a reader needs to check the tables or to run this again."""
    parameters = {
        **asdict(plan),
        "archives": {name: asdict(archive) for name, archive in ARCHIVES.items()},
        "mean": MEAN,
        "sigma": datasets.SIGMA,
        "seed": datasets.SEED,
    }
    metrics = (*OPEN_COLUMNS, *READ_COLUMNS)
    return {
        "benchmark": "folder",
        "machine": machine.describe(data, PACKAGES),
        "parameters": parameters,
        **report.as_document(results, goals, (), metrics),
    }
