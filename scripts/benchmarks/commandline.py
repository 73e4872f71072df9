"""What the command lines of all benchmarks have in common."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from . import harness

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[argparse.ArgumentParser]

OUTPUTS = harness.ROOT / "docs" / "benchmarks"


def new_command(
    commands: Commands, name: str, summary: str, description: str | None, quick: str
) -> argparse.ArgumentParser:
    """A subcommand with the options that every benchmark takes; `quick` says what is less."""
    parser = commands.add_parser(name, help=summary, description=description)
    parser.add_argument("--quick", action="store_true", help=quick)
    parser.add_argument("--repeats", type=_positive, metavar="N", help="measurements of each kind")
    parser.add_argument(
        "--data", type=Path, default=harness.data_folder(), help="folder of the data sets"
    )
    parser.add_argument("--json", type=Path, default=OUTPUTS / f"{name}.json", metavar="OUT")
    return parser


def add_plot(parser: argparse.ArgumentParser, name: str) -> None:
    """The option of a benchmark that draws."""
    parser.add_argument("--plot", type=Path, default=OUTPUTS / f"{name}.png", metavar="OUT")


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return value
