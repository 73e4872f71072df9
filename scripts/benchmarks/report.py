"""Results as Markdown for people and as JSON for storage."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from .results import Goal, Limit, Results

WHOLE = 0.95
"""Share above which work was not stopped. Records that fill no batch are left out."""
LONGEST_FAILURE = 90
"""Characters of an error message that a table shows; the JSON has the whole message."""


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table with aligned columns; all but the first are right-aligned."""
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    return "\n".join(_line(cells, widths) for cells in (header, rule, *rows))


def number(value: float | None, digits: int = 0) -> str:
    """Format a value for a cell; a dash if it is None."""
    return "–" if value is None else f"{value:,.{digits}f}"


def scaled(value: float | None, by: float, digits: int = 0) -> str:
    """Format a value for a cell in another unit: bytes as MB, seconds as ms."""
    return number(None if value is None else value * by, digits)


def partial_rate(value: float | None, share: float | None) -> str:
    """Format the speed of a contestant, and in brackets the share of the work if it was stopped."""
    stopped = share is not None and share < WHOLE
    return f"{number(value)} ({share:.1%})" if stopped else number(value)


def contestant(results: Results, case: str, name: str) -> str:
    """Return the first cell of a row: the contestant, and its error if it failed."""
    failure = results.failure(case, name)
    return f"{name} {failure[:LONGEST_FAILURE]}" if failure else name


def page(*parts: str) -> str:
    """Join the parts of a report with an empty line between them."""
    return "\n\n".join(part.strip("\n") for part in parts)


def section(title: str, body: str) -> str:
    """Return a part with a heading."""
    return f"### {title}\n\n{body}"


def goals(results: Results, those: Sequence[Goal | Limit]) -> str:
    """Return the section with the value and the verdict of each goal."""
    rows = [[str(goal), number(goal.value(results), 2), goal.verdict(results)] for goal in those]
    return section("Goals", table(["goal", "value", "verdict"], rows))


def as_document(
    results: Results,
    goals: Sequence[Goal | Limit],
    references: Sequence[str],
    metrics: Sequence[str],
) -> dict[str, Any]:
    """Return all results: medians, ratios to each of `references`, goals, single measurements."""
    return {
        "medians": _medians(results, metrics),
        "ratios": {name: _ratios(results, name, metrics) for name in references},
        "goals": [_judged(results, goal) for goal in goals],
        "samples": [asdict(sample) for sample in results.samples],
    }


def save_json(document: dict[str, Any], path: Path, private: Path) -> None:
    """Write a document. "DATA" replaces the path of the folder `private` on this machine."""
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
