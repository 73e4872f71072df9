"""What a benchmark is: measured, printed, kept as JSON and as a chart, the same way for all."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import harness, plot, report

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[argparse.ArgumentParser]

OUTPUTS = harness.ROOT / "docs" / "benchmarks"


@dataclass(frozen=True, slots=True)
class Chart:
    """What is drawn; contestants whose name begins with `ours` stand out."""

    title: str
    unit: str
    ours: str
    panels: Sequence[plot.Panel]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a run: its tables as markdown, and everything that was measured."""

    text: str
    document: dict[str, Any]
    data: Path
    """Where the data sets are: a folder of this machine, which no document names."""
    chart: Chart | None = None


@dataclass(frozen=True, slots=True)
class Benchmark:
    """A benchmark of a name: `measure` makes what is missing, measures, and tells."""

    name: str
    summary: str
    description: str | None
    quick: str
    """What is less with --quick."""
    measure: Callable[[argparse.Namespace], Outcome]
    add_options: Callable[[argparse.ArgumentParser], None] = lambda parser: None

    def add_command(self, commands: Commands) -> None:
        """Register the benchmark as a subcommand."""
        parser = commands.add_parser(self.name, help=self.summary, description=self.description)
        add_common_options(parser, self.quick)
        self.add_options(parser)
        parser.set_defaults(run=self.run)

    def run(self, options: argparse.Namespace) -> int:
        """Measure, print, and keep what was measured."""
        outcome = self.measure(options)
        print(outcome.text)
        folder = outputs(options)
        document = {"benchmark": self.name, **outcome.document, "text": outcome.text}
        report.save_json(document, folder / f"{self.name}.json", private=outcome.data)
        if outcome.chart is not None:
            chart, path = outcome.chart, folder / f"{self.name}.png"
            plot.grouped_bars(chart.panels, chart.title, chart.unit, chart.ours, path)
        return 0

    def default_options(self) -> argparse.Namespace:
        """The options as they are when none is given."""
        parser = argparse.ArgumentParser()
        add_common_options(parser, self.quick)
        self.add_options(parser)
        return parser.parse_args([])


def add_common_options(parser: argparse.ArgumentParser, quick: str) -> None:
    """What every benchmark takes."""
    parser.add_argument("--quick", action="store_true", help=quick)
    parser.add_argument("--repeats", type=_positive, metavar="N", help="measurements of each kind")
    parser.add_argument(
        "--data", type=Path, default=harness.data_folder(), help="folder of the data sets"
    )
    parser.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help="folder of the JSON and the chart (docs/benchmarks; with --quick DATA/quick)",
    )


def outputs(options: argparse.Namespace) -> Path:
    """Where JSON and charts go: what --quick measured is not for the documentation."""
    if options.out is not None:
        return Path(options.out)
    return Path(options.data) / "quick" if options.quick else OUTPUTS


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return value
