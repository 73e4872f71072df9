"""The server process that runs operations with faults, and the count of cases."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.robustness.faults import shim
from tests.robustness.faults.cases import Tally
from tests.support.patience import PATIENCE

ROOT = Path(__file__).parents[3]
SECONDS = PATIENCE
LONG_SECONDS = 7200.0
"""Time limits for all cases of one operation, without and with `--long`."""

_tallies: dict[str, Tally] = {}


class Server:
    """A Python process with the library preloaded. It starts when it is first used."""

    def __init__(self, folder: Path, library: Path, seconds: float) -> None:
        self._folder = folder
        self._library = library
        self._seconds = seconds
        self._process: subprocess.Popen[str] | None = None

    def run(self, name: str, *, every: bool) -> Tally:
        """Run the cases of an operation and return their tally."""
        if self._process is None:
            self._process = self._start()
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        watchdog = threading.Timer(self._seconds, process.kill)
        watchdog.start()
        try:
            print(f"{name} {'every' if every else 'some'}", file=process.stdin, flush=True)
            line = process.stdout.readline()
        finally:
            watchdog.cancel()
            watchdog.join()
        if not line:
            self.stop()
            pytest.fail(f"{name}: the server ended with exit code {process.returncode}")
        tally = _tallies[name] = Tally(**json.loads(line))
        return tally

    def stop(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.communicate()

    def _start(self) -> subprocess.Popen[str]:
        folder = self._folder / str(len(list(self._folder.iterdir())))
        folder.mkdir()
        return subprocess.Popen(
            [sys.executable, "-m", "tests.robustness.faults.server", str(folder)],
            cwd=ROOT, env=environment(self._library), text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip


def environment(library: Path, **more: str) -> dict[str, str]:
    """Return the environment of a process with the library preloaded.

    numpy gets one thread, because more threads would slow down forks.
    """
    found = os.pathsep.join([str(ROOT), *filter(None, sys.path)])
    return {
        **os.environ, "PYTHONPATH": found, "LD_PRELOAD": str(library), "OPENBLAS_NUM_THREADS": "1",
        **more,
    }  # fmt: skip


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    why = shim.why_not()
    if why is not None:
        pytest.skip(why)
    return shim.build(tmp_path_factory.mktemp("faults-library"))


@pytest.fixture(scope="session")
def server(
    library: Path, tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config
) -> Iterator[Server]:
    seconds = LONG_SECONDS if pytestconfig.getoption("--long") else SECONDS
    started = Server(tmp_path_factory.mktemp("faults"), library, seconds)
    yield started
    started.stop()


@pytest.fixture
def every(pytestconfig: pytest.Config) -> bool:
    """Return True to try every call with every fault, False to try a few of each."""
    return bool(pytestconfig.getoption("--long"))


def note(name: str, outcome: str) -> None:
    """Count a case that does not run in the server."""
    tally = _tallies.setdefault(name, Tally(outcomes=Counter()))
    tally.cases += 1
    tally.outcomes[outcome] += 1


def pytest_terminal_summary(terminalreporter: Any) -> None:
    if not _tallies:
        return
    outcomes: Counter[str] = Counter()
    for tally in _tallies.values():
        outcomes.update(tally.outcomes)
    cases = sum(tally.cases for tally in _tallies.values())
    ends = ", ".join(f"{count:,} {outcome}" for outcome, count in outcomes.most_common())
    terminalreporter.write_line(f"faults: {cases:,} cases of {len(_tallies)} operations: {ends}")
