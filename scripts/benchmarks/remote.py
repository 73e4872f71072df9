"""Reading over a network with 20 ms of delay: random batches, epochs, memory; and fsspec."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from . import datasets, loaders, machine, remote_loaders, remote_readers, report, rounds
from .benchmark import Benchmark, Outcome, add_only
from .remote_cases import (
    FFR,
    FULL,
    LISTING,
    MEMORY,
    OBSTORE,
    PARTS,
    QUICK,
    Plan,
    batches_of,
    capacity_of,
    cat_of,
    epochs_of,
    samples,
)
from .remote_fsspec import CAT, READ, ZIP
from .remote_worker import LATER
from .results import Goal, Limit, Results

RECORDS, BYTES_PER_S = "records_per_s", "bytes_per_s"
REQUESTS, BYTES, AGAIN = "requests", "bytes", "second_requests"
SPEED, SECOND, FIRST, SHARE = "samples_per_s", "second_samples_per_s", "first_batch_s", "share"
PART = "part_per_s"
OPENED, PEAK = "opened_mb", "peak_mb"
LS, FIND = "ls_s", "find_s"
METRICS = (
    RECORDS, BYTES_PER_S, REQUESTS, BYTES, AGAIN, SPEED, PART, SECOND, FIRST, SHARE, OPENED, PEAK,
    LS, FIND,
)  # fmt: skip
PACKAGES = (
    "ffrecord", "torch", "numpy", "obstore", "fsspec", "s3fs", "mosaicml-streaming", "litdata",
    "webdataset",
)  # fmt: skip

SIZES = ("10kB", "110kB")
SMALL = "10kB"
OURS, RAW = remote_readers.OURS.name, remote_readers.RAW.name
SHUFFLED, BLOCKS = remote_loaders.FULL.name, remote_loaders.BLOCKS.name
WHOLE = remote_loaders.WHOLE_BLOCKS.name
LOCAL = remote_loaders.LOCAL.name
WHOLE_SHARDS = (remote_loaders.STREAMING.name, remote_loaders.LITDATA.name)
RIVALS = (*WHOLE_SHARDS, remote_loaders.WEBDATASET.name)

MOST_MEMORY = 300
"""Megabytes. Python, numpy and obstore need 60, and an open file 12 bytes for each record."""

GOALS: tuple[Goal | Limit, ...] = (
    *(Goal(batches_of(size), OURS, RAW, RECORDS, 0.8) for size in SIZES),
    *(
        Goal(epochs_of(size), rival, ours, FIRST, 3.0)
        for size in SIZES
        for rival in WHOLE_SHARDS
        for ours in (SHUFFLED, BLOCKS, WHOLE)
    ),
    *(
        Goal(epochs_of(size), ours, rival, SPEED, 1.0)
        for size in SIZES
        for rival in RIVALS
        for ours in (BLOCKS, WHOLE)
    ),
    *(Goal(epochs_of(size), BLOCKS, LOCAL, SECOND, 0.9) for size in SIZES),
    *(Limit(MEMORY, large.name, PEAK, MOST_MEMORY) for large in FULL.large),
    Limit(LISTING, FFR, LS, 0.3),
    Limit(LISTING, FFR, FIND, 2.0),
    *(Goal(cat_of(size), CAT, READ, RECORDS, 0.8) for size in SIZES),
    Goal(cat_of(SMALL), CAT, ZIP, RECORDS, 10.0),  # larger files take the time of their copies
)


def _mixed(shuffle: remote_loaders.Blocks) -> str:
    """Describe a block shuffle."""
    each = (
        f"of {mean / 1e3:g} kB {block * window:,} records ({window} blocks)"
        for mean, (block, window) in shuffle.items()
    )
    return "mixes " + ", ".join(each)


FOOTNOTES = f"""
- The server is nginx on this machine, with all files in memory. A relay holds every request back
  for 20 ms; bandwidth and new connections cost nothing. Requests and bytes are counted by nginx.
- {OBSTORE}: how much of this the server can do, through a relay without a delay.
- All use S3 with signed requests, except WebDataset, which reads URLs with curl. nginx does not
  check signatures.
- requests, bytes: for each record, and for each byte of the records.
- raw obstore asks for the same ranges as our reader, checks nothing, and returns views.
- first batch: from opening the data, with the start of the workers, to the first batch. Epochs are
  measured from the same moment. Libraries are loaded before.
- In brackets: the part of the epoch after which a contestant was stopped. Its speed is not
  compared with others.
- {SHUFFLED}: any order. {BLOCKS}: {_mixed(remote_loaders.MIXED)}.
  {WHOLE}: {_mixed(remote_loaders.WHOLE)}, as the loader suggests:
  a window is a batch, so a batch has whole blocks, from anywhere in the file. WebDataset
  mixes {loaders.SHUFFLE_BUFFER:,} records, litdata a chunk of 64 MiB, and streaming all shards.
- second epoch: the second one and further ones, until they have taken {LATER:g} s together.
- The second epoch of WebDataset and of {SHUFFLED} is read over the network again.
- failed: a contestant stalled for 45 s, or returned other records. Its failed repeats have no
  figures, and no ratio is made of them.
- Every record must come in every epoch, with the CRC-32 of the written one.
- memory: the largest resident memory of a process that reads random batches and neighbours.
- fsspec reads local archives from the page cache. ls is the first of the process: it opens the
  archive.
"""


def measure(options: argparse.Namespace) -> Outcome:
    """Create the data that is missing, measure, and report."""
    plan = QUICK if options.quick else FULL
    plan = replace(
        plan,
        repeats=options.repeats or plan.repeats,
        sizes=tuple(size for size in plan.sizes if size.name in options.only_size),
        larger=tuple(size for size in plan.larger if size.name in options.only_size),
        parts=tuple(options.only_part),
    )
    data: Path = options.data.resolve()
    load = rounds.load_before()
    results = Results(samples(plan, data))
    measured = results.cases()
    # A contestant that this plan leaves out is a goal that was not measured.
    goals = [goal for goal in GOALS if goal.case in measured]
    return Outcome(_text(results, plan, goals), _document(results, plan, goals, load, data), data)


def _add_options(parser: argparse.ArgumentParser) -> None:
    add_only(parser, size=SIZES, part=PARTS)


BENCHMARK = Benchmark(
    "remote",
    summary="reading over a network",
    description=__doc__,
    quick="fewer records, of 110 kB only, 1 repeat, no slow contestants",
    measure=measure,
    add_options=_add_options,
)


def _text(results: Results, plan: Plan, goals: Sequence[Goal | Limit]) -> str:
    return report.page(*_sections(results, plan), FOOTNOTES, report.goals(results, goals))


def _sections(results: Results, plan: Plan) -> Iterator[str]:
    measured = results.cases()
    for larger in plan.larger:
        if batches_of(larger.name) not in measured:
            continue
        title = f"{batches_of(larger.name)} × {larger.count:,}, {plan.batch} at a time"
        cases = [capacity_of(larger.name), batches_of(larger.name)]
        yield report.section(title, _batches(results, cases))
    for size in plan.sizes:
        if epochs_of(size.name) not in measured:
            continue
        title = f"{epochs_of(size.name)} × {size.count:,}, batches of {plan.batch}"
        title += f", {plan.workers} workers"
        yield report.section(title, _epochs(results, epochs_of(size.name)))
    if MEMORY in measured:
        yield report.section("memory", _memory(results))
    if LISTING in measured:
        yield report.section("fsspec", _fsspec(results, [cat_of(size.name) for size in plan.sizes]))


def _batches(results: Results, cases: Sequence[str]) -> str:
    header = ["contestant", "records/s", "MB/s", "× raw obstore", "requests", "bytes"]
    rows = [
        [
            report.contestant(results, case, name),
            report.number(results.median(case, name, RECORDS)),
            report.scaled(results.median(case, name, BYTES_PER_S), 1e-6),
            report.number(results.ratio(case, name, RAW, RECORDS), 2),
            report.number(results.median(case, name, REQUESTS), 2),
            report.number(results.median(case, name, BYTES), 2),
        ]
        for case in cases
        for name in results.contestants(case)
    ]
    return report.table(header, rows)


def _epochs(results: Results, case: str) -> str:
    header = [
        "contestant", "first batch, s", "first epoch, records/s", "second epoch, records/s",
        "requests", "… second epoch", "bytes",
    ]  # fmt: skip
    rows = [
        [
            report.contestant(results, case, name),
            report.number(results.median(case, name, FIRST), 2),
            _first_epoch(results, case, name),
            report.number(results.median(case, name, SECOND)),
            report.number(results.median(case, name, REQUESTS), 3),
            report.number(results.median(case, name, AGAIN), 3),
            report.number(results.median(case, name, BYTES), 2),
        ]
        for name in results.contestants(case)
    ]
    return report.table(header, rows)


def _first_epoch(results: Results, case: str, name: str) -> str:
    whole = results.median(case, name, SPEED)
    if whole is not None:
        return report.number(whole)
    return report.partial_rate(results.median(case, name, PART), results.median(case, name, SHARE))


def _memory(results: Results) -> str:
    rows = [
        [
            report.contestant(results, MEMORY, name),
            report.number(results.median(MEMORY, name, OPENED)),
            report.number(results.median(MEMORY, name, PEAK)),
        ]
        for name in results.contestants(MEMORY)
    ]
    return report.table(["10 kB records", "opened, MB", "peak, MB"], rows)


def _fsspec(results: Results, cases: Sequence[str]) -> str:
    rows = [
        [f"{LISTING}: first ls of 1,000, s", report.number(results.median(LISTING, FFR, LS), 2)],
        [f"{LISTING}: find, s", report.number(results.median(LISTING, FFR, FIND), 2)],
    ]
    rows += [
        [f"{case}: {name}, files/s", report.number(results.median(case, name, RECORDS))]
        for case in cases
        for name in results.contestants(case)
    ]
    return report.table(["work", "ours, fsspec"], rows)


def _document(
    results: Results, plan: Plan, goals: Sequence[Goal | Limit], load: float, data: Path
) -> dict[str, Any]:
    """Return everything that is needed to check the tables or to run the benchmark again."""
    return {
        "machine": {**machine.describe(data, PACKAGES), "load_before": load},
        "parameters": {
            **asdict(plan),
            "mixed": {str(mean): mixed for mean, mixed in remote_loaders.MIXED.items()},
            "whole": {str(mean): mixed for mean, mixed in remote_loaders.WHOLE.items()},
            "shuffle_buffer": loaders.SHUFFLE_BUFFER,
            "sigma": datasets.SIGMA,
            "seed": datasets.SEED,
        },
        **report.as_document(results, goals, (OURS, RAW, SHUFFLED, BLOCKS, WHOLE), METRICS),
    }
