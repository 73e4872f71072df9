"""An epoch of a training loop, warm and cold, with our loader, other loaders and other formats."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

from . import datasets, loaders, machine, report, rounds
from .benchmark import Benchmark, Outcome
from .loader_cases import FULL, QUICK, Run, prepare, samples
from .results import Goal, Limit, Results

SPEED = "samples_per_s"
SECONDS = "seconds"
FIRST = "first_batch_s"
CPU = "cpu_s_per_sample"
READ = "read_per_byte"
METRICS = (SPEED, SECONDS, FIRST, CPU, READ)
PACKAGES = ("ffrecord", "torch", "numpy", "isal", "libaio", "webdataset", "array_record", "pillow")

OURS = loaders.OURS.name
MOUNTED_KERNEL = loaders.MOUNTED_KERNEL.name
PLAIN_FOLDER = loaders.PLAIN_FOLDER.name
RIVALS = (
    loaders.PLAIN_FOLDER,
    loaders.MOUNTED,
    loaders.WEBDATASET,
    loaders.ARRAY_RECORD,
    loaders.OURS_TORCHS,
)
STATES = ("cold", "warm")
GOALS: tuple[Goal | Limit, ...] = (
    *(Goal(state, OURS, rival.name, SPEED, 1.0) for state in STATES for rival in RIVALS),
    Limit("cold", OURS, READ, 1.1),
    *(Goal(state, MOUNTED_KERNEL, PLAIN_FOLDER, SPEED, 0.9) for state in STATES),
)

FOOTNOTES = f"""
- The clock runs from the request for an epoch to its last batch. Workers have been started and have
  loaded some batches before.
- first batch: the time from the request to the first batch.
- Ratios are medians of each repeat's own ratio of speeds.
- CPU: processor time of the workers, and of the mount's daemon, for one sample, with decoding.
- read: bytes read from the disk by these processes for each byte of the samples.
- Every sample's CRC-32 is compared with that of the written file. All samples except WebDataset's
  must come in the requested random order.
- {loaders.WEBDATASET.name} shuffles its shards, and samples in a buffer of
  {loaders.SHUFFLE_BUFFER:,}. Its order is not fully random, and it reads sequentially.
- {loaders.MOUNTED.name}, {MOUNTED_KERNEL} and {PLAIN_FOLDER}: the same code, which
  opens and reads each file.
- mounted, warm: the kernel has the files, because they were read through the mount.
- {MOUNTED_KERNEL}: `ffrecord mount --backend kernel` of an archive packed with
  `--align 512`. The kernel does not verify checksums. CPU leaves out the kernel's own threads.
"""


def measure(options: argparse.Namespace) -> Outcome:
    """Create the data that is missing, measure, and report."""
    plan = QUICK if options.quick else FULL
    repeats = options.repeats or plan.repeats
    plan = replace(plan, repeats=repeats, decode_us=options.decode_us)
    load = rounds.load_before()
    measuring = prepare(plan, options.data.resolve())
    results = Results(samples(measuring))
    goals = [goal for goal in GOALS if goal.case in results.cases()]
    document = _document(results, measuring, goals, load)
    return Outcome(_text(results, measuring, goals), document, measuring.data)


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--decode-us",
        type=float,
        default=FULL.decode_us,
        metavar="N",
        help="microseconds to decode a sample (default: %(default)g)",
    )


BENCHMARK = Benchmark(
    "loader",
    summary="epochs of a DataLoader, warm and cold",
    description=__doc__,
    quick="a fifth of the pictures, 2 repeats",
    measure=measure,
    add_options=_add_options,
)


def _text(results: Results, measured: Run, goals: Sequence[Goal | Limit]) -> str:
    tables = [
        report.section(f"{state}: {_amount(measured)}", _table(results, state))
        for state in _states(results)
    ]
    return report.page(*tables, FOOTNOTES, report.goals(results, goals))


def _states(results: Results) -> list[str]:
    return [state for state in STATES if state in results.cases()]


def _amount(measured: Run) -> str:
    plan = measured.plan
    files = f"{plan.pictures.count:,} × {plan.pictures.mean / 1e3:g} kB"
    work = f"{plan.decode_us / 1e3:g} ms to decode each"
    return f"{files}, {work}, batches of {plan.batch}, {plan.workers} workers"


def _table(results: Results, state: str) -> str:
    header = ["contestant", "samples/s", "× ours", "first batch, ms", "CPU, µs", "read"]
    rows = [_row(results, state, name) for name in results.contestants(state)]
    columns = len(header) if state == "cold" else len(header) - 1
    return report.table(header[:columns], [row[:columns] for row in rows])


def _row(results: Results, state: str, name: str) -> list[str]:
    return [
        report.contestant(results, state, name),
        report.number(results.median(state, name, SPEED)),
        report.number(results.ratio(state, name, OURS, SPEED), 2),
        report.scaled(results.median(state, name, FIRST), 1e3, 1),
        report.scaled(results.median(state, name, CPU), 1e6),
        report.number(results.median(state, name, READ), 2),
    ]


def _document(
    results: Results, measured: Run, goals: Sequence[Goal | Limit], load: float
) -> dict[str, Any]:
    """Return everything that is needed to check the tables or to run the benchmark again."""
    described = machine.describe(measured.data, PACKAGES)
    parameters = {
        **asdict(measured.plan),
        "payload": measured.plan.pictures.payload(measured.data),
        "decode_loops": measured.loops,
        "shuffle_buffer": loaders.SHUFFLE_BUFFER,
        "sigma": datasets.SIGMA,
        "seed": datasets.SEED,
    }
    return {
        "machine": {**described, "load_before": load},
        "parameters": parameters,
        **report.as_document(results, goals, (OURS,), METRICS),
    }
