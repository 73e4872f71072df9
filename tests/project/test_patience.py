"""No test may fail because the machine is slow: every wait lasts at least PATIENCE.

A test of a time limit passes the limit to the function under test, or replaces the clock.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.patience import PATIENCE

TESTS = Path(__file__).parents[1]
WAITING = {"acquire", "communicate", "get", "join", "result", "run", "settimeout", "wait"}
"""Functions that wait for a process, a thread, a lock or an answer."""
BY_POSITION = {"join", "result", "settimeout", "wait"}
"""Functions whose first argument is the time limit."""


def short_waits(source: str) -> Iterator[int]:
    """Yield the lines of calls that wait for a number of seconds less than PATIENCE."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        if node.func.attr not in WAITING:
            continue
        limits = [keyword.value for keyword in node.keywords if keyword.arg == "timeout"]
        limits += node.args[:1] if node.func.attr in BY_POSITION else []
        for limit in limits:
            seconds = limit.value if isinstance(limit, ast.Constant) else None
            if isinstance(seconds, (int, float)) and seconds < PATIENCE:
                yield limit.lineno


def test_no_test_waits_less_than_patience() -> None:
    paths = sorted(TESTS.rglob("*.py"))
    hasty = [(str(path), line) for path in paths for line in short_waits(path.read_text("utf-8"))]
    assert hasty == []


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ("process.communicate(timeout=60)", [1]),
        ("process.wait(1.5)", [1]),
        ("subprocess.run(command, check=True, timeout=30)", [1]),
        ("process.wait(PATIENCE)", []),
        ("process.communicate(timeout=600)", []),
        ("','.join('abc'); reader.iterate(timeout=1); inbox.wait(memory)", []),
    ],
)
def test_a_short_wait_is_found(source: str, lines: list[int]) -> None:
    assert [*short_waits(source)] == lines
