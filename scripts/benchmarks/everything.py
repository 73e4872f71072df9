"""Run all benchmarks but compare, which needs another version; write the tables of docs/.

Data that exists from an earlier run is used again. Data that has not been used for the longest time
is removed if the disk gets full.
"""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING

from . import (
    cluster,
    compare,
    dataset,
    datasets,
    disks,
    folder,
    loader,
    mount,
    pack,
    pages,
    profile_read,
    read,
    remote,
    rounds,
    view,
)
from .benchmark import OUTPUTS, Benchmark, add_common_options, outputs

if TYPE_CHECKING:
    from .benchmark import Commands

BENCHMARKS = tuple(
    module.BENCHMARK
    for module in (
        read, pack, folder, mount, loader, dataset, profile_read, remote, view, cluster, disks
    )
)  # fmt: skip
REPEATS = 3
"""Repeats that fit into an hour on two cores. Odd, so that a median is a measurement."""
LONG = (disks.BENCHMARK,)
"""Benchmarks with one repeat: the disk's rates are fixed, and a measurement takes half a minute."""

ROOM = 30 * 10**9
"""Bytes of free disk before each benchmark. Only the first one, read, makes more: 45 GB."""


def add_commands(commands: Commands) -> None:
    """Register every benchmark, `all` and `pages`."""
    for benchmark in (*BENCHMARKS, compare.BENCHMARK):
        benchmark.add_command(commands)
    parser = commands.add_parser(
        "all",
        help="run all benchmarks but compare, then pages",
        description=__doc__,
    )
    add_common_options(parser, "small amounts, 1 repeat: shows only that everything works")
    parser.set_defaults(run=run)
    parser = commands.add_parser(
        "pages",
        help="write the tables of README.md and docs/, and draw the charts, from the JSON files",
        description=pages.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=lambda options: pages.update(OUTPUTS))


def run(options: argparse.Namespace) -> int:
    """Run all benchmarks; then write the pages, unless the results go elsewhere."""
    began = time.monotonic()
    for benchmark in BENCHMARKS:
        rounds.say(f"== {benchmark.name}: {benchmark.summary}")
        print(f"\n## scripts/bench {benchmark.name}\n")
        if not options.quick and options.data.exists():
            datasets.make_room(options.data, ROOM)
        benchmark.run(_options(benchmark, options))
        rounds.say(f"== {benchmark.name} is done after {time.monotonic() - began:.0f} s in total")
    if outputs(options) == OUTPUTS:
        pages.update(OUTPUTS)
    return 0


def _options(benchmark: Benchmark, given: argparse.Namespace) -> argparse.Namespace:
    """Return the options of one benchmark: the common ones as given, its own by default."""
    repeats = 1 if given.quick or benchmark in LONG else REPEATS
    common = {"quick": given.quick, "data": given.data, "out": outputs(given)}
    own = vars(benchmark.default_options())
    return argparse.Namespace(**{**own, **common, "repeats": given.repeats or repeats})
