"""A profile of `read`: the time that each part takes.

Warm: the samples of `perf`, by library. The interpreter's share is an upper bound for Python
bytecode, because it includes memory allocation and calls into C. Cold: a clock around the system
calls of one plain read.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from . import datasets, harness, machine, peers, report
from .benchmark import Benchmark, Outcome
from .read_cases import QUICK, SIZES, Size

SECONDS = 4
PARTS = {
    "kernel: copies out of the page cache, io_submit": r"\[",
    "isal: CRC-32": r"isal",
    "numpy: planning the reads, views": r"multiarray|umath|numpy|openblas",
    "Python interpreter": r"python",
}


def measure(options: argparse.Namespace) -> Outcome:
    """Measure every record size; each is one column."""
    data: Path = options.data.resolve()
    sizes = [size.scaled(QUICK.share if options.quick else 1.0) for size in SIZES]
    document: dict[str, Any] = {
        "machine": machine.describe(data, ("ffrecord", "numpy", "isal", "libaio")),
        "warm_percent": {size.name: dict(_profile(size, data)) for size in sizes},
    }
    tables = [_warm_table(document["warm_percent"], sizes)]
    if harness.can_drop_caches():
        document["cold_us"] = {size.name: _cold_steps(size, data) for size in sizes}
        tables.append(_cold_table(document["cold_us"], sizes))
    return Outcome(report.page(*tables), document, data)


BENCHMARK = Benchmark(
    "profile",
    summary="where a read's time goes (needs perf)",
    description=__doc__,
    quick="a tenth of the records",
    measure=measure,
)


def _warm_table(percent: dict[str, dict[str, float]], sizes: Sequence[Size]) -> str:
    rows = [
        [part, *(f"{percent[size.name].get(part, 0):.1f} %" for size in sizes)]
        for part in [*PARTS, "other"]
    ]
    return report.table(["share of the time", *map(_column, sizes)], rows)


def _cold_table(steps: dict[str, dict[str, float]], sizes: Sequence[Size]) -> str:
    rows = [
        [step, *(f"{steps[size.name][step]:.0f}" for size in sizes)]
        for step in steps[sizes[0].name]
    ]
    return report.table(["µs of a cold read", *map(_column, sizes)], rows)


def _column(size: Size) -> str:
    return f"{size.batch} × {size.name}"


def _cold_steps(size: Size, data: Path) -> dict[str, float]:
    file = size.records.folder(data, peers.OURS.layout) / peers.OURS.file
    steps: dict[str, float] = harness.call_fresh(
        cold_steps, 120.0, file=str(file), batch=size.batch
    )
    return steps


def cold_steps(file: str, batch: int) -> dict[str, float]:
    """Return medians of the time before, in and between the system calls of a read."""
    import numpy as np

    from ffrecord import FileReader
    from ffrecord.disk import aio

    calls: list[tuple[str, float, float]] = []

    def timed(name: str) -> None:
        call = getattr(aio.Context, name)

        def wrapper(*arguments: object) -> object:
            began = time.perf_counter()
            result = call(*arguments)
            calls.append((name, began, time.perf_counter()))
            return result

        setattr(aio.Context, name, wrapper)

    timed("submit")
    timed("reap")
    reader = FileReader(file)
    order = np.random.default_rng(0).permutation(reader.n)
    batches = order[: len(order) // batch * batch].reshape(-1, batch)[:250].tolist()
    harness.drop_caches()
    rows = []
    for indices in batches:
        calls.clear()
        began = time.perf_counter()
        reader.read(indices)
        ended = time.perf_counter()
        inside = {n: sum(b - a for name, a, b in calls if name == n) for n in ("submit", "reap")}
        before, after = calls[0][1] - began, ended - calls[-1][2]
        between = ended - began - before - after - sum(inside.values())
        rows.append((before, inside["submit"], inside["reap"], between, after, ended - began))
    steps = (
        "planning, before the disk has anything to do",
        "io_submit",
        "waiting for the disk",
        "checksums and views while the disk works",
        "checksums and views after the last record came",
        "all",
    )
    medians = np.median(np.array(rows[20:]), axis=0) * 1e6
    return dict(zip(steps, medians.tolist(), strict=True))


def _profile(size: Size, data: Path) -> Counter[str]:
    """Return the percentage of samples in each part while a process reads batches."""
    harness.call_fresh(
        datasets.create, 1800.0, peer=peers.OURS.name, root=str(data), **_arguments(size)
    )
    file = size.records.folder(data, peers.OURS.layout) / peers.OURS.file
    command = [sys.executable, "-m", __name__, str(file), str(size.batch)]
    with (
        tempfile.NamedTemporaryFile() as samples,
        subprocess.Popen(command, stdout=subprocess.PIPE, cwd=harness.ROOT) as child,
    ):
        assert child.stdout is not None
        child.stdout.readline()  # the process is warm now
        perf = ["perf", "record", "-q", "-F", "4999", "-e", "cpu-clock", "-p", str(child.pid)]
        subprocess.run([*perf, "-o", samples.name, "sleep", str(SECONDS / 2)], check=True)
        return _shares(samples.name)


def _arguments(size: Size) -> dict[str, str | int]:
    return {"name": size.name, "mean": size.records.mean, "count": size.records.count}


def _shares(samples: str) -> Counter[str]:
    command = ["perf", "report", "-i", samples, "--sort", "dso", "--stdio", "-t", ","]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    shares: Counter[str] = Counter()
    for line in output.splitlines():
        if match := re.match(r"\s*([\d.]+)%?\s*,(.*)", line):
            kinds = (part for part, pattern in PARTS.items() if re.search(pattern, match[2]))
            shares[next(kinds, "other")] += float(match[1])  # type: ignore[assignment]
    return shares


def _read_batches(path: str, batch: int) -> None:
    import numpy as np

    from ffrecord import FileReader

    harness.read_through(Path(path).parent)
    reader = FileReader(path)
    random = np.random.default_rng(0)
    batches = [random.integers(0, reader.n, batch).tolist() for _ in range(500)]
    for indices in batches[:50]:
        reader.read(indices)
    print("warm", flush=True)
    end = time.perf_counter() + SECONDS
    while time.perf_counter() < end:
        for indices in batches:
            reader.read(indices)


if __name__ == "__main__":
    _read_batches(sys.argv[1], int(sys.argv[2]))
