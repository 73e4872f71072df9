"""Tables and charts of figures match the stored JSON, and every JSON file is of a benchmark."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from scripts.benchmarks import charts, compare, everything, headline, pages, summary
from scripts.benchmarks.benchmark import OUTPUTS
from scripts.benchmarks.harness import ROOT


@pytest.mark.parametrize("page", pages.PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_tables_of_a_page_match_the_measurements(page: Path) -> None:
    text = page.read_text("utf-8")
    assert pages.PART.search(text)
    assert pages.rendered(text, OUTPUTS) == text, "run scripts/bench pages"


def test_a_figure_that_was_changed_by_hand_is_noticed() -> None:
    _, main, *_ = pages.PAGES
    text = main.read_text("utf-8")
    elsewhere = re.sub(r" Machine: .*", " Machine: a laptop", text)
    assert elsewhere != text
    assert pages.rendered(elsewhere, OUTPUTS) == text
    text = (OUTPUTS / "read.md").read_text("utf-8")
    changed = re.sub(r"\| ours  (.*?)\d", r"| ours  \g<1>X", text, count=1)
    assert changed != text
    assert pages.rendered(changed, OUTPUTS) == text


def document(name: str) -> dict[str, Any]:
    stored: dict[str, Any] = json.loads((OUTPUTS / f"{name}.json").read_text("utf-8"))
    return stored


@pytest.mark.parametrize("row", headline.ROWS, ids=lambda row: row.label)
def test_every_row_of_the_table_with_the_fastest_peers_was_measured(row: headline.Row) -> None:
    assert row.cells(document(row.benchmark)) is not None


@pytest.mark.parametrize("name", charts.CHARTS)
def test_every_panel_and_contestant_of_a_chart_was_measured(name: str) -> None:
    chart = charts.CHARTS[name]
    panels = chart.of(document(chart.benchmark))
    assert [panel.title for panel in panels] == list(chart.panels)
    shown = {bar.label for panel in panels for bar in panel.bars}
    assert shown == set(chart.contestants.values())
    assert (OUTPUTS / f"{name}.png").exists(), "run scripts/bench pages"


def test_charts_are_drawn_from_the_stored_figures(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    charts.draw(document("disks"), tmp_path)
    assert (tmp_path / "disks.png").read_bytes().startswith(b"\x89PNG")
    panels = {panel.title: panel.bars for panel in charts.CHARTS["disks"].of(document("disks"))}
    assert [bar.kind.name for bar in panels["hard disk"]] == ["OURS", "PEER", "PEER", "PEER"]
    assert [bar.note for bar in panels["hard disk"][:2]] == ["", "(stopped)"]


def test_the_goals_that_were_missed_most_are_named() -> None:
    common = {"case": "cold", "contestant": "ours", "metric": "seconds"}
    values = [("PASS", 2.0), ("below", 0.9), ("below", 0.5), ("not measured", None), ("below", 0.8)]
    goals = [
        {**common, "over": "tar", "threshold": 1.0, "value": value, "verdict": verdict}
        for verdict, value in values
    ]
    goals.append({**common, "over": None, "most": 10.0, "value": 40.0, "verdict": "above"})
    assert summary.goals({"goals": goals}) == (
        "Goals met: 1 of 5. Missed: cold: ours 40.00 seconds (at most 10); "
        "cold: ours 0.50 × tar in seconds (goal 1); cold: ours 0.80 × tar in seconds (goal 1); "
        "and 1 more."
    )


def test_every_benchmark_has_its_json() -> None:
    found = [document(path.stem)["benchmark"] for path in sorted(OUTPUTS.glob("*.json"))]
    assert found == sorted(each.name for each in (*everything.BENCHMARKS, compare.BENCHMARK))


def test_figures_are_listed_by_day_and_machine(tmp_path: Path) -> None:
    machine = document("read")["machine"]
    for name, date, cpu in (
        ("a", "2026-01-02", "X"),
        ("b", "2026-01-02", "X"),
        ("c", "2026-01-01", "Y"),
    ):
        facts = {"machine": {**machine, "cpu": cpu, "date": f"{date}T01:02:03+00:00"}}
        (tmp_path / f"{name}.json").write_text(json.dumps(facts))
    lines = pages.runs(tmp_path).splitlines()
    assert [line.partition(".")[0] for line in lines] == ["- 2026-01-01: c", "- 2026-01-02: a, b"]
    assert "cores of Y" in lines[0]
