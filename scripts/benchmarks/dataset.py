"""Random samples of five fields of mixed size, warm and cold, against granular and HDF5."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from . import dataset_peers, machine, report
from .benchmark import Benchmark, Outcome
from .dataset_cases import BATCH, ENTRIES, FULL, QUICK, SIZE, Plan, masked, samples
from .dataset_peers import (
    GRANULAR,
    HDF5,
    HDF5_FLAT,
    HDF5_GZIP,
    HDF5_LZF,
    OURS,
    OURS_LZ4,
    OURS_ZSTD,
)
from .dataset_samples import FIELDS, SEED, SMALL_FIELD
from .results import Goal, Results

SAMPLES = "samples_per_s"
BYTES = "bytes"
BYTES_EACH = "bytes_each"
PACKAGES = ("ffrecord", "numpy", "isal", "lz4", "zstandard", "granular", "msgpack", "h5py")

PAIRS = (
    (OURS, GRANULAR),
    (OURS, HDF5),
    (OURS, HDF5_FLAT),
    (OURS_LZ4, HDF5_LZF),
    (OURS_ZSTD, HDF5_GZIP),
)
EQUAL_SIZE = 0.99
"""Sizes that differ by less than a hundredth count as equal."""

STATES = ("warm", "cold")
GOALS = (
    *(Goal(state, ours.name, its.name, SAMPLES, 1.0) for state in STATES for ours, its in PAIRS),
    *(Goal(SIZE, its.name, ours.name, BYTES, EQUAL_SIZE) for ours, its in PAIRS),
    *(Goal(state, masked(OURS), OURS.name, SAMPLES, 5.0) for state in STATES),
)


FOOTNOTES = f"""
- Ratios are medians of each repeat's own ratio.
- Bytes are the size of the files. Sizes that differ by less than a hundredth count as equal.
- ": {SMALL_FIELD}": only that field, an int, is read.
"""


def measure(options: argparse.Namespace) -> Outcome:
    """Create the data that is missing, measure, and report."""
    plan = QUICK if options.quick else FULL
    plan = replace(plan, repeats=options.repeats or plan.repeats)
    data: Path = options.data.resolve()
    results = Results(samples(plan, data))
    return Outcome(_text(results, plan), _document(results, plan, data), data)


BENCHMARK = Benchmark(
    "dataset",
    summary="samples of typed fields, warm and cold",
    description=__doc__,
    quick="a fifth of the samples, 3 repeats",
    measure=measure,
)


def _states(results: Results) -> list[str]:
    return [state for state in STATES if state in results.cases()]


def _text(results: Results, plan: Plan) -> str:
    amount = f"{plan.count:,} samples of {len(FIELDS)} fields, batches of {BATCH}"
    table = report.section(amount, _table(results))
    return report.page(table, FOOTNOTES, report.goals(results, GOALS))


def _table(results: Results) -> str:
    """Return the table of sizes and rates of all contestants."""
    states = _states(results)
    header = ["contestant", "bytes a sample"]
    for state in states:
        header += [f"{state}, samples/s", f"× {OURS.name}"]
    return report.table(header, [_row(results, entry.name, states) for entry in ENTRIES])


def _row(results: Results, name: str, states: Sequence[str]) -> list[str]:
    cells = [
        report.contestant(results, states[0], name),
        report.number(results.median(SIZE, name, BYTES_EACH)),
    ]
    for state in states:
        cells.append(report.number(results.median(state, name, SAMPLES)))
        cells.append(report.number(results.ratio(state, name, OURS.name, SAMPLES), 2))
    return cells


def _document(results: Results, plan: Plan, data: Path) -> dict[str, Any]:
    """Return everything that is needed to check the tables or to run the benchmark again."""
    parameters = {
        **asdict(plan), "batch": BATCH, "fields": FIELDS, "seed": SEED,
        "formats": [peer.layout for peer in dataset_peers.formats()],
    }  # fmt: skip
    return {
        "machine": machine.describe(data, PACKAGES),
        "parameters": parameters,
        **report.as_document(results, GOALS, (OURS.name,), (SAMPLES, BYTES, BYTES_EACH)),
    }
