"""Write the measured tables of README.md and docs/, and draw the charts, from the JSON files.

A part of a page that begins with one of these marks and ends with `<!-- end -->` is generated:

    <!-- scripts/bench read -->            the output of that benchmark
    <!-- scripts/bench read: summary -->   the short table that `summary` makes of it, and the goals
    <!-- scripts/bench read: goals -->     only the sentence about the goals
    <!-- scripts/bench read: machine -->   the machine on which the benchmark ran
    <!-- scripts/bench all: headline -->   the table of README.md, which `headline` makes
    <!-- scripts/bench all: decisions -->  that of docs/benchmarks.md, with more rows and links
    <!-- scripts/bench all: runs -->       the days and machines of all benchmarks

No figure is copied by hand. A test fails when a page and its JSON differ. `charts` draws the PNGs.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from . import charts, harness, headline, report, summary

DOCS = harness.ROOT / "docs"
PAGES = (
    harness.ROOT / "README.md",
    DOCS / "benchmarks.md",
    *sorted((DOCS / "benchmarks").glob("*.md")),
)
PART = re.compile(
    r"(?P<begin><!-- scripts/bench (?P<name>\w+)"
    r"(?P<form>: (?:summary|goals|machine|headline|decisions|runs))? -->\n)"
    r".*?(?P<end><!-- end -->)",
    re.DOTALL,
)


def update(results: Path) -> int:
    """Write all tables and draw all charts again from the JSON files in the folder `results`."""
    for page in PAGES:
        page.write_text(rendered(page.read_text("utf-8"), results), "utf-8")
    charts.update(results)
    return 0


def rendered(text: str, results: Path) -> str:
    """Return the text of a page with every generated part made from the JSON files."""

    def part(match: re.Match[str]) -> str:
        form = match["form"]
        if form == ": runs":
            body = runs(results)
        elif match["name"] == "all":
            body = headline.table(
                lambda name: _document(results, name), links=form == ": decisions"
            )
        else:
            document = _document(results, match["name"])
            body = FORMS[form](document) if form else document["text"]
        return f"{match['begin']}\n{body}\n\n{match['end']}"

    return PART.sub(part, text)


def machine_line(machine: dict[str, Any]) -> str:
    """Describe a machine in one line. The versions of packages are only in the JSON."""
    kernel = ".".join(machine["kernel"].split(".")[:2])
    gibibytes = round(int(machine["memory"].split()[0]) / (1 << 20))
    return (
        f"Machine: {machine['cores']} cores of {machine['cpu']}, {gibibytes} GiB, "
        f"{machine['filesystem']}, Linux {kernel}, Python {machine['python']}."
    )


def runs(results: Path) -> str:
    """List the benchmarks by the day and the machine of their stored figures."""
    found: dict[tuple[str, str], list[str]] = {}
    for path in sorted(results.glob("*.json")):
        machine = _document(results, path.stem)["machine"]
        found.setdefault((machine["date"][:10], machine_line(machine)), []).append(path.stem)
    return "\n".join(
        f"- {day}: {', '.join(names)}. {machine}" for (day, machine), names in sorted(found.items())
    )


FORMS: dict[str, Callable[[dict[str, Any]], str]] = {
    ": summary": lambda document: report.page(summary.of(document), summary.goals(document)),
    ": goals": summary.goals,
    ": machine": lambda document: machine_line(document["machine"]),
}


def _document(results: Path, name: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((results / f"{name}.json").read_text("utf-8"))
    return document
