"""Puts what was measured into README.md and docs/benchmarks.md.

A part between `<!-- scripts/bench read -->` and `<!-- end -->` is what that benchmark printed;
between `<!-- scripts/bench read: summary -->` and `<!-- end -->` it is the short table of
`summary`, and after `<!-- scripts/bench read: machine -->` the machine that it ran on.
`<!-- scripts/bench all: headline -->` begins the README's own table, which `headline` makes.
Nobody copies figures by hand, and a test says when a page and its JSON differ.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from . import harness, headline, summary

PAGES = (harness.ROOT / "README.md", harness.ROOT / "docs" / "benchmarks.md")
PART = re.compile(
    r"(?P<begin><!-- scripts/bench (?P<name>\w+)(?P<form>: summary|: machine|: headline)? -->\n)"
    r".*?(?P<end><!-- end -->)",
    re.DOTALL,
)


def update(results: Path) -> int:
    """Write the pages again from the JSON in a folder."""
    for page in PAGES:
        page.write_text(rendered(page.read_text("utf-8"), results), "utf-8")
    return 0


def rendered(text: str, results: Path) -> str:
    """A page with all its parts as the JSON files have them."""

    def part(match: re.Match[str]) -> str:
        if match["form"] == ": headline":
            body = headline.table(lambda name: _document(results, name))
            return f"{match['begin']}\n{body}\n\n{match['end']}"
        document = _document(results, match["name"])
        if match["form"] == ": machine":
            body = machine_line(document["machine"])
        else:
            body = summary.of(document) if match["form"] else document["text"]
        return f"{match['begin']}\n{body}\n\n{match['end']}"

    return PART.sub(part, text)


def machine_line(machine: dict[str, Any]) -> str:
    """Say in one line what a benchmark ran on; versions of packages are in the JSON."""
    kernel = ".".join(machine["kernel"].split(".")[:2])
    gibibytes = round(int(machine["memory"].split()[0]) / (1 << 20))
    return (
        f"Machine: {machine['cores']} cores of {machine['cpu']}, {gibibytes} GiB, "
        f"{machine['filesystem']}, Linux {kernel}, Python {machine['python']}."
    )


def _document(results: Path, name: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((results / f"{name}.json").read_text("utf-8"))
    return document
