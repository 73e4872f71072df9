"""All attacks, by their number in README.md."""

from __future__ import annotations

from tests.robustness.attacks import extras, pickles, tables, trees

CASES = dict(
    enumerate(
        [
            *tables.attack.cases,
            *trees.attack.cases,
            *extras.attack.cases,
            *pickles.attack.cases,
        ],
        start=1,
    )
)
