"""The cases of `cluster`, and the loop over them in the parent process."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from . import cluster_data, cluster_worker, harness, rounds
from .cluster_data import Files
from .cluster_engines import ENGINES
from .results import Sample
from .rounds import Contestant, Values
from .trees import FileTree

CREATE_TIMEOUT = 1800.0
START_TIMEOUT = 120.0
READ_TIMEOUT = 300.0
PACK_TIMEOUT = 300.0

SMALL = "10 kB"
LARGER = "110 kB"
PACKING = "packing"
WORKERS = {"1 worker": 1, "2 workers": 2, "without an executor": 0}
SHARDS = 16
"""Shards of a packed folder: several for each worker, so that both end at about the same time."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The amount that is measured."""

    repeats: int
    trees: tuple[FileTree, ...]


FULL = Plan(3, (FileTree(SMALL, 10_000, 20_000, 500), FileTree(LARGER, 110_000, 5_000, 500)))
QUICK = Plan(1, (FileTree(SMALL, 10_000, 2_000, 50), FileTree(LARGER, 110_000, 300, 100)))


def case(what: str, tree: str) -> str:
    """Return the name of a case: an engine that reads, or packing in a state of the cache."""
    return f"{what}, {tree}"


def samples(plan: Plan, data: Path) -> Iterator[Sample]:
    """Create missing data and measure every case."""
    for tree in plan.trees:
        rounds.say(f"{tree.name}: {tree.count:,} files")
        harness.call_fresh(cluster_data.create, CREATE_TIMEOUT, root=str(data), **asdict(tree))
    for engine in ENGINES:
        yield from _reading(engine, plan, data)
    for state in rounds.states():
        for tree in plan.trees:
            contestants: list[Contestant] = [
                (name, partial(_pack, workers, tree, state, data))
                for name, workers in WORKERS.items()
            ]
            name = case(f"{state} {PACKING}", tree.name)
            yield from rounds.interleaved(name, contestants, plan.repeats)


def _reading(engine: str, plan: Plan, data: Path) -> Iterator[Sample]:
    """Measure what an engine reads, in one process that keeps the engine."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as process:
        process.submit(cluster_worker.start, engine).result(START_TIMEOUT)
        try:
            for tree in plan.trees:
                files = Files(tree, data)
                for folder in (files.place, files.plain):
                    harness.read_through(folder)
                contestants: list[Contestant] = [
                    (name, partial(_read, process, name, tree, data))
                    for name in ENGINES[engine].contestants
                ]
                yield from rounds.interleaved(case(engine, tree.name), contestants, plan.repeats)
        finally:
            process.submit(cluster_worker.stop).result(START_TIMEOUT)


def _read(
    process: ProcessPoolExecutor, contestant: str, tree: FileTree, data: Path, repeat: int
) -> Values:
    del repeat  # the work is the same in each repeat
    reading = process.submit(cluster_worker.read, contestant, tree, str(data))
    try:
        return reading.result(READ_TIMEOUT)
    except Exception as error:  # an engine may raise anything, and others can still be measured
        words = str(error).splitlines() or [""]
        raise harness.MeasurementError(f"{type(error).__name__}: {words[0]}") from error


def _pack(workers: int, tree: FileTree, state: str, data: Path, repeat: int) -> Values:
    del repeat  # the work is the same in each repeat
    values: Values = harness.call_fresh(
        cluster_worker.pack,
        PACK_TIMEOUT,
        workers=workers,
        shard_size=-(-tree.payload // SHARDS),
        folder=str(tree.top(data)),
        out=str(data / "packed"),
        count=tree.count,
        payload=tree.payload,
        cold=state == "cold",
    )
    return values
