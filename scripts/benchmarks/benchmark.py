"""The definition of a benchmark: every one is measured, printed and stored in the same way."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import charts, harness, report

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[argparse.ArgumentParser]

OUTPUTS = harness.ROOT / "docs" / "benchmarks"


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a run: its tables as Markdown, and all measurements."""

    text: str
    document: dict[str, Any]
    data: Path
    """The folder of the data sets; its path on this machine must not be stored."""


@dataclass(frozen=True, slots=True)
class Benchmark:
    """A named benchmark. `measure` creates missing data, measures, and returns the outcome."""

    name: str
    summary: str
    description: str | None
    quick: str
    """The help text of --quick: how it measures less."""
    measure: Callable[[argparse.Namespace], Outcome]
    add_options: Callable[[argparse.ArgumentParser], None] = lambda parser: None

    def add_command(self, commands: Commands) -> None:
        """Register the benchmark as a subcommand."""
        parser = commands.add_parser(self.name, help=self.summary, description=self.description)
        add_common_options(parser, self.quick)
        self.add_options(parser)
        parser.set_defaults(run=self.run)

    def run(self, options: argparse.Namespace) -> int:
        """Measure, print the tables, and store the JSON and the charts."""
        outcome = self.measure(options)
        print(outcome.text)
        folder = outputs(options)
        document = {"benchmark": self.name, **outcome.document, "text": outcome.text}
        report.save_json(document, folder / f"{self.name}.json", private=outcome.data)
        charts.draw(document, folder)
        return 0

    def default_options(self) -> argparse.Namespace:
        """Return the options of a command line without arguments."""
        parser = argparse.ArgumentParser()
        add_common_options(parser, self.quick)
        self.add_options(parser)
        return parser.parse_args([])


def add_common_options(parser: argparse.ArgumentParser, quick: str) -> None:
    """Add the options that every benchmark has."""
    parser.add_argument("--quick", action="store_true", help=quick)
    parser.add_argument(
        "--repeats", type=_positive, metavar="N", help="number of repeats of each measurement"
    )
    parser.add_argument(
        "--data", type=Path, default=harness.data_folder(), help="folder of the data sets"
    )
    parser.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help="folder for JSON and charts (default: docs/benchmarks; with --quick DATA/quick)",
    )


def add_only(parser: argparse.ArgumentParser, **choices: Sequence[str]) -> None:
    """Add an option `--only-NAME` for each keyword, which measures only some of its choices."""
    for name, all_of_them in choices.items():
        parser.add_argument(
            f"--only-{name}",
            nargs="+",
            choices=all_of_them,
            default=all_of_them,
            help=f"measure only these: {', '.join(all_of_them)}",
            metavar=name.upper(),
        )


def outputs(options: argparse.Namespace) -> Path:
    """Return the folder for JSON and charts. Results of --quick do not go into docs/."""
    if options.out is not None:
        return Path(options.out)
    return Path(options.data) / "quick" if options.quick else OUTPUTS


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return value
