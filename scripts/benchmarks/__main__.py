"""`python -m scripts.benchmarks NAME`: one subcommand per benchmark module."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from . import folder, loader, mount, pack, profile_read, read


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark named on the command line; goals missed do not make it fail."""
    parser = argparse.ArgumentParser(prog="scripts/bench", description="FFRecord's benchmarks")
    commands = parser.add_subparsers(dest="benchmark", required=True)
    read.add_command(commands)
    pack.add_command(commands)
    folder.add_command(commands)
    mount.add_command(commands)
    loader.add_command(commands)
    profile_read.add_command(commands)
    options = parser.parse_args(arguments)
    status: int = options.run(options)
    return status


if __name__ == "__main__":
    raise SystemExit(main())
