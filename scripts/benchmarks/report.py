"""Results as markdown for a terminal and as JSON for the record."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from .results import Goal, Limit, Results

LONGEST_FAILURE = 90
"""Characters of a failure that a table shows; the JSON has all of it."""


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A markdown table with aligned columns; all but the first are right-aligned."""
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    return "\n".join(_line(cells, widths) for cells in (header, rule, *rows))


def number(value: float | None, digits: int = 0) -> str:
    """A value for a cell; a dash where there is none."""
    return "–" if value is None else f"{value:,.{digits}f}"


def scaled(value: float | None, by: float, digits: int = 0) -> str:
    """A value for a cell in another unit: bytes as MB, seconds as ms."""
    return number(None if value is None else value * by, digits)


def contestant(results: Results, case: str, name: str) -> str:
    """The first cell of a row: who it is, and what went wrong."""
    failure = results.failure(case, name)
    return f"{name} {failure[:LONGEST_FAILURE]}" if failure else name


def page(*parts: str) -> str:
    """Parts of a report below each other, with a line between them."""
    return "\n\n".join(part.strip("\n") for part in parts)


def section(title: str, body: str) -> str:
    """A part with a heading."""
    return f"### {title}\n\n{body}"


def goals(results: Results, those: Sequence[Goal | Limit]) -> str:
    """The section that says of each goal its value, and whether it is met."""
    rows = [[str(goal), number(goal.value(results), 2), goal.verdict(results)] for goal in those]
    return section("Goals", table(["goal", "value", "verdict"], rows))


def as_document(
    results: Results,
    goals: Sequence[Goal | Limit],
    references: Sequence[str],
    metrics: Sequence[str],
) -> dict[str, Any]:
    """All that was measured: medians, ratios to each of `references`, goals, raw samples."""
    return {
        "medians": _medians(results, metrics),
        "ratios": {name: _ratios(results, name, metrics) for name in references},
        "goals": [_judged(results, goal) for goal in goals],
        "samples": [asdict(sample) for sample in results.samples],
    }


def save_json(document: dict[str, Any], path: Path, private: Path) -> None:
    """Write a document; `private`, a folder of this machine, is left out of error messages."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(document, indent=1, ensure_ascii=False)
    path.write_text(text.replace(str(private), "DATA") + "\n", encoding="utf-8")


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    first = cells[0].ljust(widths[0])
    others = (cell.rjust(width) for cell, width in zip(cells[1:], widths[1:], strict=True))
    return f"| {' | '.join([first, *others])} |"


def _medians(results: Results, metrics: Sequence[str]) -> dict[str, Any]:
    return {
        case: {
            name: {metric: results.median(case, name, metric) for metric in metrics}
            for name in results.contestants(case)
        }
        for case in results.cases()
    }


def _ratios(results: Results, reference: str, metrics: Sequence[str]) -> dict[str, Any]:
    return {
        case: {
            name: {metric: results.ratio(case, name, reference, metric) for metric in metrics}
            for name in results.contestants(case)
        }
        for case in results.cases()
    }


def _judged(results: Results, goal: Goal | Limit) -> dict[str, Any]:
    return {**asdict(goal), "value": goal.value(results), "verdict": goal.verdict(results)}
