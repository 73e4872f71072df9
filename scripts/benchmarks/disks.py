"""One epoch in random order from the disks people have: hard disks, cloud volumes, small memory."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from typing import Any

from . import datasets, machine, mounters, peers, report, rounds
from .benchmark import Benchmark, Outcome, add_only
from .disks_cases import (
    BARE,
    CLIENTS,
    CLOUD,
    DISKS,
    FULL,
    HARD,
    LIMIT,
    LOADERS,
    MEMORY_SHARE,
    PARTS,
    QUICK,
    READAHEAD,
    SIZES,
    SMALL_MEMORY,
    TREES,
    Disk,
    Run,
    prepare,
    samples,
)
from .results import Goal, Results

SPEED = "records_per_s"
BYTES = "bytes_per_s"
FIRST = "first_s"
SHARE = "share"
READ = "read_per_byte"
METRICS = (SPEED, BYTES, FIRST, SHARE, READ)
PACKAGES = ("ffrecord", "torch", "numpy", "isal", "libaio", "array_record", "lmdb")

OURS = peers.OURS.name
WITHOUT = peers.OURS_AIO.name
SLOW = (HARD, CLOUD)
THROTTLED = tuple(disk for disk in DISKS if disk.rates is not None)
NEAR = {"1kB": 0.7, "10kB": 0.9, "110kB": 0.9}
"""The part of the disk's limit that an epoch from a slow disk shall reach, by the records' size."""

GOALS = (
    *(
        Goal(disk.records(size), name, LIMIT, SPEED, NEAR[size.name])
        for disk in SLOW
        for size in SIZES
        for name in (OURS, *LOADERS.values())
    ),
    *(Goal(disk.files(tree), OURS, LIMIT, SPEED, 0.6) for disk in SLOW for tree in TREES),
    *(
        Goal(disk.records(size), OURS, rival.name, SPEED, 1.0)
        for disk in THROTTLED
        for size in SIZES
        for rival in (peers.LMDB, peers.OURS_MMAP)
    ),
    *(
        Goal(disk.files(tree), OURS, mounters.SQUASHFUSE.name, SPEED, 1.0)
        for disk in THROTTLED
        for tree in TREES
    ),
    *(Goal(BARE.records(size), OURS, WITHOUT, SPEED, 0.95) for size in SIZES),
    Goal(SMALL_MEMORY[0].in_little_memory(SMALL_MEMORY[1]), OURS, WITHOUT, SPEED, 0.9),
)

FOOTNOTES = f"""
- Each record or file is read once, in random order. The clock runs from the opening of the file;
  for a mount, from the first request. The page cache is empty, and all data fits into memory.
- In brackets: the part of the epoch that was read when a slow contestant was stopped. Its speed is
  that of this part. {WITHOUT} and array_record have the same speed at all times. Plain
  files would become faster when their folders and inodes are in memory, and contestants that read
  through the page cache when more of the file is there.
- × limit: the speed in relation to "{LIMIT}": fio with O_DIRECT, requests of 1 MB,
  32 at a time, on our file.
- first batch: seconds from opening to the first {SIZES[0].batch} records.
- read: bytes read from the disk for each byte returned, by all processes of a contestant.
- The kernel's readahead of the disk is {READAHEAD} KiB. A cgroup sets the rates. Like many cloud
  volumes, it allows a burst at first: the bytes of a tenth of a second.
- {WITHOUT}: mode="aio".
- {peers.PLAIN_FILES.name}, 1 kB: only the first {peers.PLAIN_FILES.INSTEAD:,} records exist.
- Files: {CLIENTS} clients read them through a mount, or in the source folder itself.
"""


def measure(options: argparse.Namespace) -> Outcome:
    """Create the data that is missing, measure, and report."""
    plan = QUICK if options.quick else FULL
    plan = replace(
        plan,
        repeats=options.repeats or plan.repeats,
        disks=tuple(disk for disk in plan.disks if _slug(disk.name) in options.only_disk),
        sizes=tuple(size for size in plan.sizes if size.name in options.only_size),
        trees=tuple(tree for tree in plan.trees if tree.name.split()[-1] in options.only_size),
        parts=tuple(options.only_part),
    )
    load = rounds.load_before()
    run = prepare(plan, options.data.resolve())
    results = Results(samples(run))
    goals = [goal for goal in GOALS if goal.case in results.cases()]
    return Outcome(_text(results, run, goals), _document(results, run, goals, load), run.data)


def _add_options(parser: argparse.ArgumentParser) -> None:
    disks, sizes = [_slug(disk.name) for disk in DISKS], [size.name for size in SIZES]
    add_only(parser, disk=disks, size=sizes, part=PARTS)


BENCHMARK = Benchmark(
    "disks",
    summary="epochs from slow disks and in little memory",
    description=__doc__,
    quick="two disks, a tenth of the data, records and files of 10 kB only",
    measure=measure,
    add_options=_add_options,
)


def _slug(name: str) -> str:
    return name.replace(" ", "-")


def _text(results: Results, run: Run, goals: Sequence[Goal]) -> str:
    tables = [part for disk in run.plan.disks for part in _of_disk(results, run, disk)]
    skipped = (f"{name} was skipped: {why}" for name, why in run.skipped.items())
    return report.page(*tables, FOOTNOTES, *skipped, report.goals(results, goals))


def _of_disk(results: Results, run: Run, disk: Disk) -> Iterator[str]:
    """Yield the tables of one disk."""
    measured = results.cases()
    sizes = [size for size in run.plan.sizes if disk.records(size) in measured]
    if sizes:
        cases = {disk.records(size): _plain(size.name) for size in sizes}
        amounts = ", ".join(f"{size.records.count:,} × {_plain(size.name)}" for size in sizes)
        title = f"{disk.name}{_rates(disk)}: {amounts}, batches of {sizes[0].batch}"
        yield report.section(title, _speeds(results, cases, "records/s"))
        yield _costs(results, cases)
    trees = [tree for tree in run.plan.trees if disk.files(tree) in measured]
    if trees:
        cases = {disk.files(tree): _plain(tree.name.split()[-1]) for tree in trees}
        amounts = ", ".join(f"{tree.count:,} × {_plain(tree.name.split()[-1])}" for tree in trees)
        title = f"{disk.name}, mounted: {amounts}, {CLIENTS} clients"
        yield report.section(title, _speeds(results, cases, "files/s", READ))
    for size in run.plan.sizes:
        case = disk.in_little_memory(size)
        if case in measured:
            title = f"{disk.name}, in memory for 1/{MEMORY_SHARE} of the file"
            yield report.section(title, _speeds(results, {case: _plain(size.name)}, "records/s"))


def _rates(disk: Disk) -> str:
    if disk.rates is None:
        return ""
    return f", {disk.rates.requests:,} requests/s, {disk.rates.bytes / 1e6:,.0f} MB/s"


def _speeds(results: Results, cases: dict[str, str], unit: str, *more: str) -> str:
    """Return a table of speeds, with columns for each case."""
    header, limited = ["contestant"], any(LIMIT in results.contestants(case) for case in cases)
    for size in cases.values():
        header += [f"{size}, {unit}", *(["× limit"] if limited else [])]
        header += ["read"] * len(more)
    rows = []
    for name in results.contestants(next(iter(cases))):
        cells = [_contestant(results, cases, name)]
        for case in cases:
            cells.append(_speed(results, case, name))
            if limited:
                cells.append(report.number(results.ratio(case, name, LIMIT, SPEED), 2))
            cells += [report.number(results.median(case, name, one), 2) for one in more]
        rows.append(cells)
    return report.table(header, rows)


def _costs(results: Results, cases: dict[str, str]) -> str:
    """Return a table with the times of first batches, and the bytes read for those returned."""
    header = ["contestant"]
    for size in cases.values():
        header += [f"{size}, first batch, s", "read"]
    rows = [
        [name, *(
            cell
            for case in cases
            for cell in (
                report.number(results.median(case, name, FIRST), 2),
                report.number(results.median(case, name, READ), 2),
            )
        )]
        for name in results.contestants(next(iter(cases)))
        if name != LIMIT
    ]  # fmt: skip
    return report.table(header, rows)


def _contestant(results: Results, cases: dict[str, str], name: str) -> str:
    """Return the name, with the error of the first case that failed."""
    failed = (case for case in cases if results.failure(case, name))
    return report.contestant(results, next(failed, next(iter(cases))), name)


def _speed(results: Results, case: str, name: str) -> str:
    return report.partial_rate(results.median(case, name, SPEED), results.median(case, name, SHARE))


def _plain(size: str) -> str:
    return size.replace("kB", " kB")


def _document(results: Results, run: Run, goals: Sequence[Goal], load: float) -> dict[str, Any]:
    """Return everything that is needed to check the tables or to run the benchmark again."""
    described = machine.describe(run.data, PACKAGES)
    parameters = {
        **asdict(run.plan),
        "readahead_kib": READAHEAD,
        "clients": CLIENTS,
        "memory_share": MEMORY_SHARE,
        "sigma": datasets.SIGMA,
        "seed": datasets.SEED,
    }
    return {
        "machine": {**described, "programs": mounters.versions(), "load_before": load},
        "parameters": parameters,
        "skipped": run.skipped,
        **report.as_document(results, goals, (LIMIT, OURS), METRICS),
    }
