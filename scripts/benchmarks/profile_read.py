"""Where the time of a `read` goes.

Warm: samples of `perf`, by what was running. The interpreter's share is an upper bound for Python
bytecode: it counts everything that the interpreter does, memory allocation and calls into C
included. Cold: the clock around the system calls of one plain read.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from . import datasets, harness, peers, report
from .read_cases import SIZES, Size

if TYPE_CHECKING:
    from .commandline import Commands

SECONDS = 4
PARTS = {
    "kernel: copies out of the page cache, io_submit": r"\[",
    "isal: CRC-32": r"isal",
    "numpy: planning the reads, views": r"multiarray|umath|numpy|openblas",
    "Python interpreter": r"python",
}


def add_command(commands: Commands) -> None:
    """Register `profile` and its options."""
    parser = commands.add_parser("profile", help="where a warm read's time goes (needs perf)")
    parser.add_argument("--data", type=Path, default=harness.data_folder())
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print one column per record size."""
    columns = [_profile(size, options.data.resolve()) for size in SIZES]
    header = ["share of the time", *(f"{size.batch} × {size.name}" for size in SIZES)]
    parts = [*PARTS, "other"]
    print(report.table(header, [[part, *(f"{c[part]:.1f} %" for c in columns)] for part in parts]))
    if harness.can_drop_caches():
        _print_cold(options.data.resolve())
    return 0


def _print_cold(data: Path) -> None:
    columns = []
    for size in SIZES:
        file = size.records.folder(data, peers.OURS.layout) / peers.OURS.file
        columns.append(harness.call_fresh(cold_steps, 120.0, file=str(file), batch=size.batch))
    header = ["µs of a cold read", *(f"{size.batch} × {size.name}" for size in SIZES)]
    rows = [[step, *(f"{column[step]:.0f}" for column in columns)] for step in columns[0]]
    print("\n" + report.table(header, rows))


def cold_steps(file: str, batch: int) -> dict[str, float]:
    """Medians over batches of the time before, in and between the system calls of a read."""
    import numpy as np

    from ffrecord import FileReader, aio

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
    """Percent of the samples in each part, while a process reads batches."""
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
        child.stdout.readline()  # it is warm now
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
