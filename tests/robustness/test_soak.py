"""scripts/soak: a short soak passes, and fails with each of several injected defects.

For a long soak, run `scripts/soak 20` (minutes).
"""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scripts.soaking.contents import LITTLE, Contents, Plan
from scripts.soaking.ledger import FAILURES, OPERATIONS, Ledger
from scripts.soaking.operations import Answer, difference
from scripts.soaking.trends import FEWEST, Trend, Watch

ROOT = Path(__file__).parents[2]
MINUTES = "0.1"
PATIENCE = "600"
"""Seconds until a reader counts as hanging: long, because the machine may be busy."""
LIMIT = 3600  # seconds for a whole soak

mounts = pytest.mark.skipif(
    not os.path.exists("/dev/fuse") or os.geteuid() != 0, reason="needs root and /dev/fuse to mount"
)


@pytest.fixture(autouse=True)
def own_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Use an empty folder for temporary files, so that tests notice leftovers; return its path."""
    top = tmp_path / "temporary"
    top.mkdir()
    monkeypatch.setenv("TMPDIR", str(top))
    tempfile.tempdir = None
    return top


def start(*arguments: str, first: Path | None = None) -> subprocess.Popen[str]:
    """Start a soak. Python looks for modules in `first` before other folders."""
    paths = [*([str(first)] if first else []), str(ROOT), *filter(None, sys.path)]
    return subprocess.Popen(
        [sys.executable, "-m", "scripts.soaking", *arguments], cwd=ROOT, text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip


def run(
    tmp_path: Path, seed: int, patience: str = PATIENCE, first: Path | None = None
) -> tuple[int, str, Any]:
    """Run a soak; return its exit code, its output and its figures."""
    figures = tmp_path / "soak.json"
    process = start(
        MINUTES, "--readers", "8", "--seed", str(seed), "--json", str(figures),
        "--patience", patience, first=first,
    )  # fmt: skip
    try:
        said, _ = process.communicate(timeout=LIMIT)
    finally:
        if process.poll() is None:
            process.terminate()  # the soak then ends the processes that it has started
            process.communicate(timeout=LIMIT)
    return process.returncode, said, json.loads(figures.read_text())


@mounts
def test_eight_readers_get_every_byte_right_while_workers_and_readers_are_killed(
    tmp_path: Path, own_temporary_folder: Path
) -> None:
    code, said, figures = run(tmp_path, seed=5)
    assert code == 0, said
    assert figures["operations"] > 8  # even a busy machine does more than one for each reader
    assert figures["mismatches"] == figures["failures"] == 0
    assert figures["restarts"] == figures["disturbances"]["worker killed"] > 0
    assert figures["disturbances"]["reader killed"] > 0
    assert figures["mount"]["disk_reads"] > 0
    assert os.listdir(own_temporary_folder) == []


@mounts
@pytest.mark.parametrize(
    "number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.long)]
)
def test_an_interrupted_soak_leaves_nothing_behind(
    number: signal.Signals, own_temporary_folder: Path
) -> None:
    process = start("1", "--readers", "3", "--seed", "6")
    try:
        assert process.stdout is not None
        while "operations" not in (line := process.stdout.readline()):
            assert line
        process.send_signal(number)
        said, _ = process.communicate(timeout=LIMIT)
    finally:
        process.kill()
    assert process.returncode == 130, said
    assert os.listdir(own_temporary_folder) == []
    assert str(own_temporary_folder) not in Path("/proc/self/mountinfo").read_text()


# ---- injected defects ----------------------------------------------------------------------

DEFECTS = {
    "a worker leaks a descriptor for each read": (
        """
        from ffrecord_fuse.serve.reading import Reading
        right = Reading.read
        def wrong(self, request):
            os.dup(self.cold.eventfd)
            return right(self, request)
        Reading.read = wrong
        """,
        "a spared worker: descriptors grew|Input/output error|Too many open files",
    ),
    "a worker leaks memory for each read": (
        """
        from ffrecord_fuse.serve.reading import Reading
        right, kept = Reading.read, []
        def wrong(self, request):
            kept.append(b"x" * 100_000)
            return right(self, request)
        Reading.read = wrong
        """,
        "a spared worker: MiB grew",
    ),
    "the supervisor leaks a descriptor for each restart": (
        """
        from ffrecord_fuse.process.supervisor import Supervisor
        right = Supervisor._restart
        def wrong(self, *which):
            os.dup(self._fd)
            return right(self, *which)
        Supervisor._restart = wrong
        """,
        "supervisor: descriptors grew",
    ),
    "requests of a dead worker are not sent again": (
        """
        from ffrecord_fuse.process.supervisor import Supervisor
        Supervisor._resend = lambda self: None
        """,
        "hangs",
    ),
    "a dead worker is not replaced": (
        """
        from ffrecord_fuse.process.supervisor import Supervisor
        Supervisor._restart = lambda self, *which: None
        """,
        "workers alive: [12] of 3",
    ),
    "a byte is sometimes wrong after it was verified": (
        """
        from ffrecord_fuse.serve.session import Session
        right = Session.send
        def wrong(self, answer, content=None):
            if random.random() < 0.01 and (content is not None or len(answer) > 5000):
                whole = bytearray(answer) + bytearray(content or b"")
                whole[-1] ^= 1
                answer, content = whole, None
            return right(self, answer, content)
        Session.send = wrong
        """,
        "wrong bytes",
    ),
    "the memory of a batch is reused too early": (
        """
        import numpy as np
        from ffrecord.disk import slabs
        from ffrecord.records import batch
        class Pool(slabs.SlabPool):
            memory = np.empty(64 << 20, np.uint8)
            def take(self, size):
                start = -self.memory.ctypes.data % slabs.ALIGN
                return self.memory[start : start + size]
        batch._slabs = Pool()
        """,
        "SampleChecksumError|wrong bytes",
    ),
    "a killed writer's records are lost": (
        """
        from ffrecord.records import resume as partial
        right = partial._whole
        partial._whole = lambda path, content: right(path, content)[:-20]
        """,
        "records: found False, expected True|resumable writer failed",
    ),
}


@mounts
@pytest.mark.long
@pytest.mark.parametrize("defect", DEFECTS)
def test_a_short_soak_finds_an_injected_defect(
    defect: str, tmp_path: Path, own_temporary_folder: Path
) -> None:
    code, words = DEFECTS[defect]
    first = tmp_path / "first"
    first.mkdir()
    # Python imports this at every start, so the defect is also in daemons and spawned readers.
    (first / "sitecustomize.py").write_text("import os, random\n" + textwrap.dedent(code))
    status, said, figures = run(tmp_path, seed=7, patience="30", first=first)
    assert status == 1, said
    told = figures["problems"] + [each["what"] for each in figures["first_problems"]]
    assert any(re.search(words, line) for line in told), said
    assert os.listdir(own_temporary_folder) == []


# ---- parts of the soak ---------------------------------------------------------------------


def test_contents_do_not_depend_on_the_range_requested() -> None:
    contents, chance = Contents(1), random.Random(1)
    whole = contents.bytes(12, 0, 3_000_000)
    for _ in range(20):
        begin = chance.randrange(3_000_000)
        length = chance.randrange(3_000_000 - begin)
        assert np.array_equal(Contents(1).bytes(12, begin, length), whole[begin : begin + length])


def test_contents_differ_between_files_offsets_and_seeds() -> None:
    def start(seed: int, number: int, offset: int) -> bytes:
        return Contents(seed).bytes(number, offset, 64).tobytes()

    places = [(1, number, offset) for number in (0, 1, 2) for offset in (0, 1, 4096, 1_048_583)]
    found = {start(*place) for place in [*places, (2, 0, 0)]}
    assert len(found) == len(places) + 1


def test_the_listings_of_a_plan_match_its_files() -> None:
    plan = Plan(3, LITTLE)
    names = [f"{folder}/{name}" for folder, inner in plan.listings.items() for name in inner]
    below = [name.lstrip("/") for name in names if name.lstrip("/") not in plan.listings]
    assert sorted(below) == sorted([*(file.path for file in plan.files), *plan.links])
    assert {0, LITTLE.big} < {file.size for file in plan.files}


@pytest.mark.parametrize(
    ("found", "words"),
    [(b"abc", ""), (b"abX", "the first at 2"), (b"ab", "2 bytes instead of 3"), (b"", "0 bytes")],
)
def test_a_difference_names_its_position(found: bytes, words: str) -> None:
    due = np.frombuffer(b"abc", np.uint8)
    said = difference(Answer("it", found, lambda: due))
    assert bool(said) == bool(words)
    assert words in said


def trend_of(samples: list[tuple[int, float, float]], monkeypatch: pytest.MonkeyPatch) -> Trend:
    watch = Watch()
    for life, when, value in samples:
        monkeypatch.setattr(time, "monotonic", lambda when=when: when)
        watch.note("it", life, value, 1.0)
    monkeypatch.undo()
    (trend,) = watch.trends()
    return trend


def test_noise_is_flat_and_a_slope_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(1)
    noise = [(0, float(second), 50 + chance.gauss(0, 5)) for second in range(300)]
    assert trend_of(noise, monkeypatch).is_flat
    rising = [(life, when, value + 0.1 * when) for life, when, value in noise]
    trend = trend_of(rising, monkeypatch)
    assert not trend.is_flat
    assert trend.per_minute == pytest.approx(6, rel=0.2)


def test_growth_within_each_life_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    saw = [(second // 50, float(second), 10 + 0.2 * (second % 50)) for second in range(300)]
    trend = trend_of(saw, monkeypatch)
    assert trend.per_minute == pytest.approx(12)
    assert not trend.is_flat


def test_lives_on_different_levels_are_flat(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = [(second // 50, float(second), 10.0 + second // 50) for second in range(300)]
    assert trend_of(steps, monkeypatch).growth == pytest.approx(0)


def test_a_single_step_is_flat_and_a_rise_in_both_halves_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    once = [(0, float(second), 10.0 + 80 * (second > 120)) for second in range(300)]
    assert trend_of(once, monkeypatch).is_flat
    often = [(0, float(second), 10.0 + second // 10) for second in range(300)]
    assert not trend_of(often, monkeypatch).is_flat


def test_a_few_samples_give_no_trend(monkeypatch: pytest.MonkeyPatch) -> None:
    """With six samples, three lay on a line by chance: a reader seemed to grow by 27 ± 0.1 MiB."""
    watch = Watch()
    for second in range(2 * FEWEST):
        told = [trend.name for trend in watch.trends()]
        monkeypatch.setattr(time, "monotonic", lambda second=second: float(second))
        watch.note("it", 0, second, 1.0)
        assert told == [] or second >= FEWEST
    monkeypatch.undo()
    assert ([trend.name for trend in watch.trends()], watch.untold()) == (["it"], [])


def test_a_ledger_counts_times_and_problems(tmp_path: Path) -> None:
    ledger = Ledger(2, ["one", "two"], tmp_path / "failures")
    for _ in range(10):
        with ledger.timed(1, "two"):
            assert ledger.at_work(1) is not None
    with pytest.raises(OSError, match="no"), ledger.timed(0, "one"):
        raise OSError("no")
    ledger.tell(0, "reader", "one", FAILURES, "lines\nof text")
    assert ledger.at_work(0) is ledger.at_work(1) is None
    assert (ledger.total(OPERATIONS), ledger.of_kind("two", OPERATIONS)) == (10, 10)
    assert (ledger.total(FAILURES), ledger.of_reader(0, FAILURES)) == (1, 1)
    assert ledger.percentile("two", 0.5) <= 2 * ledger.longest("two") + 1e-5
    (problem,) = ledger.problems()
    assert (problem.reader, problem.kind, problem.what) == ("reader", "one", "lines\nof text")
