"""`python -m scripts.benchmarks NAME`: one subcommand per benchmark module."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from . import everything


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark named on the command line; goals missed do not make it fail."""
    options = make_parser().parse_args(arguments)
    status: int = options.run(options)
    return status


def make_parser() -> argparse.ArgumentParser:
    """With a subcommand for each benchmark."""
    parser = argparse.ArgumentParser(prog="scripts/bench", description="FFRecord's benchmarks")
    everything.add_commands(parser.add_subparsers(dest="benchmark", required=True))
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
