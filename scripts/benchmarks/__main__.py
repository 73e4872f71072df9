"""The command line `scripts/bench NAME`, with one subcommand for each benchmark."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from . import everything


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark named on the command line. Missed goals do not make it fail."""
    options = make_parser().parse_args(arguments)
    status: int = options.run(options)
    return status


def make_parser() -> argparse.ArgumentParser:
    """Return a parser with a subcommand for each benchmark."""
    parser = argparse.ArgumentParser(prog="scripts/bench", description="FFRecord's benchmarks")
    everything.add_commands(parser.add_subparsers(dest="benchmark", required=True))
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
