"""Random batches of records from one file, warm and cold, against peers and the disk's limit."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from . import datasets, machine, peers, report
from .benchmark import Benchmark, Outcome
from .read_cases import FIO, FULL, QUICK, SIZES, Plan, Size, samples
from .results import Goal, Limit, Results

RECORDS = "records_per_s"
BYTES = "bytes_per_s"
READ = "read_per_byte"
OURS = peers.OURS.name
PACKAGES = (
    "ffrecord",
    "numpy",
    "isal",
    "libaio",
    "array_record",
    "lmdb",
    "h5py",
    "granular",
    "webdataset",
)

ALL_SIZES = ("110kB", "10kB", "1kB")
DISK_BOUND = ("110kB", "10kB")
"""Sizes that can come near fio's bytes/s: records smaller than its 4096-byte blocks cannot."""

GOALS: tuple[Goal | Limit, ...] = (
    *(Goal(f"cold {size}", OURS, FIO, BYTES, 0.8) for size in DISK_BOUND),
    *(Goal(f"cold {size}", peers.OURS_AHEAD.name, FIO, BYTES, 0.8) for size in DISK_BOUND),
    Goal("cold 10kB", OURS, peers.ARRAY_RECORD.name, RECORDS, 1.8),
    *(Goal(f"warm {size}", OURS, peers.ARRAY_RECORD.name, RECORDS, 1.5) for size in ALL_SIZES),
    *(
        Goal(f"warm {size}", peers.OURS_MMAP.name, peers.LMDB.name, RECORDS, 1.0)
        for size in ALL_SIZES
    ),
    Goal("cold 1kB", OURS, peers.LMDB.name, RECORDS, 1.0),
    Goal("warm 1kB", OURS, peers.LMDB.name, RECORDS, 0.9),
    *(
        Limit(f"cold {size}", name, READ, 1.1)
        for size in DISK_BOUND
        for name in (OURS, peers.OURS_AHEAD.name)
    ),
)


def measure(options: argparse.Namespace) -> Outcome:
    """Create the data that is missing, measure, and report."""
    plan = QUICK if options.quick else FULL
    plan = replace(plan, repeats=options.repeats or plan.repeats)
    sizes = [size.scaled(plan.share) for size in SIZES if size.name in options.only_size]
    data: Path = options.data.resolve()
    results = Results(samples(sizes, plan, data))
    goals = [goal for goal in GOALS if goal.case.split()[1] in options.only_size]
    document = _document(results, sizes, goals, plan, data)
    return Outcome(_text(results, sizes, goals), document, data)


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--only-size",
        nargs="+",
        choices=ALL_SIZES,
        default=ALL_SIZES,
        help="measure only records of these sizes",
    )


BENCHMARK = Benchmark(
    "read",
    summary="random batches, warm and cold",
    description=__doc__,
    quick="a tenth of the records, 3 repeats",
    measure=measure,
    add_options=_add_options,
)


def _cases(results: Results, sizes: Sequence[Size]) -> list[tuple[Size, str]]:
    """Return size and state of every measured case."""
    measured = results.cases()
    cases = [(size, state) for state in ("cold", "warm") for size in sizes]
    return [(size, state) for size, state in cases if size.case(state) in measured]


def _text(results: Results, sizes: Sequence[Size], goals: Sequence[Goal | Limit]) -> str:
    tables = [
        report.section(
            f"{size.case(state)} × {size.records.count:,}, batches of {size.batch}",
            _table(results, size.case(state)),
        )
        for size, state in _cases(results, sizes)
    ]
    footnotes = "\n".join(_footnotes(results, sizes))
    return report.page(*tables, footnotes, report.goals(results, goals))


def _table(results: Results, case: str) -> str:
    header = ["contestant", "records/s", "MB/s", "× ours", "× fio (bytes)", "read"]
    rows = [_row(results, case, name) for name in results.contestants(case)]
    columns = len(header) if case.startswith("cold") else 4
    return report.table(header[:columns], [row[:columns] for row in rows])


def _row(results: Results, case: str, name: str) -> list[str]:
    return [
        report.contestant(results, case, name),
        report.number(results.median(case, name, RECORDS)),
        report.scaled(results.median(case, name, BYTES), 1e-6),
        report.number(results.ratio(case, name, OURS, RECORDS), 2),
        report.number(results.ratio(case, name, FIO, BYTES), 2),
        report.number(results.median(case, name, READ), 2),
    ]


def _footnotes(results: Results, sizes: Sequence[Size]) -> Iterator[str]:
    """Yield the notes that explain the tables."""
    yield "- Ratios are medians of each repeat's own ratio. MB/s count payload."
    yield "- read: bytes read from the disk for each byte of payload."
    if any(FIO in results.contestants(case) for case in results.cases()):
        yield "- fio's records/s are reads of the mean size, rounded up to 4096 bytes."
    files = peers.PLAIN_FILES
    for size in sizes:
        kept = datasets.stored(files, size.records).count
        if kept < size.records.count:
            yield f"- {files.name}, {size.name}: only the first {kept:,} records exist as files."


def _document(
    results: Results, sizes: Sequence[Size], goals: Sequence[Goal | Limit], plan: Plan, data: Path
) -> dict[str, Any]:
    """Return everything that is needed to check the tables or to run the benchmark again."""
    parameters = {
        **asdict(plan),
        "sizes": [{**asdict(size.records), "batch": size.batch} for size in sizes],
        "sigma": datasets.SIGMA,
        "seed": datasets.SEED,
    }
    return {
        "machine": machine.describe(data, PACKAGES),
        "parameters": parameters,
        **report.as_document(results, goals, (OURS, FIO), (RECORDS, BYTES, READ)),
    }
