"""Measurements of `cluster`: an engine that reads, and packing by a plan.

An engine takes 5 to 15 seconds to start, so one process keeps it for all repeats of a case.
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from . import harness
from .cluster_data import Files
from .cluster_engines import ENGINES, Engine
from .trees import FileTree

Values = dict[str, float]


class WrongResultError(Exception):
    """Raised when a contestant read or packed other bytes than there are."""


_running: Engine | None = None
_warmed: set[tuple[str, str]] = set()


def start(engine: str) -> None:
    """Start an engine in this process."""
    global _running
    _running = ENGINES[engine]()


def stop() -> None:
    """End the engine."""
    assert _running is not None
    _running.stop()


def read(contestant: str, tree: FileTree, root: str) -> Values:
    """Return the rows per second of one contestant.

    Its first read of a set is not measured: workers import modules, and Java compiles.
    """
    assert _running is not None
    files = Files(tree, Path(root))
    if (contestant, tree.name) not in _warmed:
        _check(contestant, tree, *_running.read(contestant, files))
        _warmed.add((contestant, tree.name))
    began = time.perf_counter()
    rows, size = _running.read(contestant, files)
    seconds = time.perf_counter() - began
    _check(contestant, tree, rows, size)
    return {"seconds": seconds, "rows_per_s": rows / seconds, "bytes_per_s": size / seconds}


def _check(contestant: str, tree: FileTree, rows: int, size: int) -> None:
    if (rows, size) != (tree.count, tree.payload):
        raise WrongResultError(
            f"{contestant}: {rows:,} rows of {size:,} bytes, but there are {tree.count:,} of "
            f"{tree.payload:,}"
        )


def pack(
    *, workers: int, shard_size: int, folder: str, out: str, count: int, payload: int, cold: bool
) -> Values:
    """Pack a folder into shards with so many workers, or without an executor if there are none.

    A worker is a process with a core of its own, which has loaded all modules.
    """
    from ffrecord.archive.pack import pack_folder

    place = Path(out)
    shutil.rmtree(place, ignore_errors=True)  # a killed run may have left it
    executor = _processes(workers) if workers else None
    if cold:
        harness.drop_caches()
    else:
        harness.read_through(Path(folder))
        harness.sync()
    try:
        began = time.perf_counter()
        report = pack_folder(folder, place, shard_size=shard_size, executor=executor)
        seconds = time.perf_counter() - began
        if (report.files, report.bytes) != (count, payload):
            raise WrongResultError(f"{report.files:,} files of {report.bytes:,} bytes were packed")
    finally:
        shutil.rmtree(place, ignore_errors=True)
        if executor is not None:
            executor.shutdown()
    return {"seconds": seconds, "rows_per_s": count / seconds, "bytes_per_s": payload / seconds}


def _processes(workers: int) -> ProcessPoolExecutor:
    """Return an executor whose workers run, each on a core of its own."""
    context = multiprocessing.get_context("spawn")
    cores = context.Queue()
    for core in sorted(os.sched_getaffinity(0))[:workers]:
        cores.put(core)
    started = context.Barrier(workers)
    executor = ProcessPoolExecutor(
        workers, mp_context=context, initializer=_take_core, initargs=(cores, started)
    )
    for ready in [executor.submit(_is_ready) for _ in range(workers)]:
        ready.result()
    return executor


def _take_core(cores: multiprocessing.Queue[int], started: object) -> None:
    from ffrecord.archive import pack as loaded  # so that no measured task imports it

    assert loaded
    os.sched_setaffinity(0, {cores.get()})
    started.wait()  # type: ignore[attr-defined]


def _is_ready() -> None:
    """Do nothing, in a worker that has been initialized."""
