"""The page of `ffrecord view` in Chromium: the first screen, thumbnails, scrolling, and memory."""

from __future__ import annotations

import argparse
from dataclasses import asdict, replace
from pathlib import Path

from . import machine, report
from .benchmark import Benchmark, Outcome
from .results import Limit, Results
from .view_cases import FULL, MILLION, PAGE, PICTURES, QUICK, SETS, samples

PACKAGES = ("ffrecord", "numpy", "pillow", "playwright")
# Metrics and the headings of their columns.
COLUMNS = {
    "first_ms": "first screen, ms",
    "thumbnails_ms": "200 thumbnails, ms",
    "blocked_ms": "longest block while scrolling, ms",
    "busy_ms": "its processor time, ms",
    "server_mb": "server, MB",
}
GOALS = (
    Limit(MILLION, PAGE, "first_ms", 1000),
    Limit(MILLION, PAGE, "server_mb", 150),
    Limit(PICTURES, PAGE, "server_mb", 150),
    Limit(PICTURES, PAGE, "thumbnails_ms", 2000),
    Limit(MILLION, PAGE, "blocked_ms", 100),
    Limit(PICTURES, PAGE, "blocked_ms", 100),
    Limit(MILLION, PAGE, "busy_ms", 100),
    Limit(PICTURES, PAGE, "busy_ms", 100),
)
FOOTNOTES = """
- All times are measured in the browser, from the start of the navigation.
- first screen: the names of the folder's first files are in the page.
- 200 thumbnails: so many pictures are decoded, in a window of 2,560 × 2,400 pixels.
- longest block: the longest task of the page's main thread (Chromium's "longtask"; tasks below
  50 ms are not reported and count as 50) during small steps and jumps with the scroll bar.
- its processor time: the most that one task needed. It does not depend on other programs.
- server: PSS after all that.
- The pictures of "1,000,000 files" cannot be decoded: the page shows a sign for each.
"""


def measure(options: argparse.Namespace) -> Outcome:
    """Create the data that is missing, measure, and report."""
    plan = QUICK if options.quick else FULL
    plan = replace(plan, repeats=options.repeats or plan.repeats)
    data: Path = options.data.resolve()
    results = Results(samples(plan, data))
    rows = []
    for case in results.cases():
        medians = (results.median(case, PAGE, metric) for metric in COLUMNS)
        name = f"{case} {failure}" if (failure := results.failure(case, PAGE)) else case
        rows.append([name, *(report.number(median) for median in medians)])
    text = report.page(
        report.table(["folder", *COLUMNS.values()], rows), FOOTNOTES, report.goals(results, GOALS)
    )
    document = {
        "machine": machine.describe(data, PACKAGES),
        "parameters": {**asdict(plan), "sets": {name: str(each) for name, each in SETS.items()}},
        **report.as_document(results, GOALS, (), tuple(COLUMNS)),
    }
    return Outcome(text, document, data)


BENCHMARK = Benchmark(
    "view",
    summary="the page of `ffrecord view` in a browser",
    description=__doc__,
    quick="1 repeat",
    measure=measure,
)
