"""scripts/bench disks: slow disks are set up and put back, and slow contestants are stopped.

Also the bytes from the disk for each byte returned, and disks that data sets fill, in this and in
other benchmarks.
"""

from __future__ import annotations

import mmap
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from scripts.benchmarks import (
    datasets,
    disks,
    disks_cases,
    harness,
    headline,
    loader,
    mount,
    mount_cases,
    mount_client,
    processes,
    read,
    throttle,
)
from scripts.benchmarks.__main__ import main
from scripts.benchmarks.disks_cases import BARE, HARD, LIMIT, SIZES
from scripts.benchmarks.results import Goal, Limit, Results, Sample
from scripts.benchmarks.throttle import NotPermittedError, Rates
from tests.support.patience import PATIENCE

RATES = Rates(200, 150_000_000)


@pytest.fixture
def removable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let folders of the test be removed as cgroups are: together with their files."""
    monkeypatch.setattr(Path, "rmdir", shutil.rmtree)


def machine(root: Path, own: str, files: dict[str, str]) -> Path:
    """Make the files of a kernel below `root`; `own` is /proc/self/cgroup."""
    for name, text in {**files, "proc/self/cgroup": own}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def settings(group: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in group.iterdir()}


VERSION_1 = {
    "sys/fs/cgroup/blkio/jobs/7/cgroup.procs": "",
    "sys/fs/cgroup/memory/cgroup.procs": "",
    "sys/fs/cgroup/memory/jobs/cgroup.procs": "",
}
VERSION_2 = {
    "sys/fs/cgroup/cgroup.subtree_control": "cpu io memory\n",
    "sys/fs/cgroup/jobs/cgroup.subtree_control": "memory\n",
    "sys/fs/cgroup/jobs/7/cgroup.subtree_control": "\n",
}


@pytest.mark.usefixtures("removable")
@pytest.mark.parametrize(
    ("own", "files", "disk_at", "disk_set", "memory_at", "memory_set"),
    [
        (
            "8:blkio:/jobs/7\n4:cpu,memory:/jobs/7\n0::/\n",
            VERSION_1,
            "blkio/jobs/7",
            {
                "blkio.throttle.read_iops_device": "8:0 200",
                "blkio.throttle.read_bps_device": "8:0 150000000",
            },
            "memory/jobs",
            {"memory.limit_in_bytes": "1000"},
        ),
        (
            "0::/jobs/7\n",
            VERSION_2,
            ".",
            {"io.max": "8:0 rbps=150000000 riops=200"},
            "jobs",
            {"memory.max": "1000"},
        ),
    ],
    ids=["version 1", "version 2"],
)
def test_a_group_gets_its_limits_and_is_removed(
    tmp_path: Path,
    own: str,
    files: dict[str, str],
    disk_at: str,
    disk_set: dict[str, str],
    memory_at: str,
    memory_set: dict[str, str],
) -> None:
    root = machine(tmp_path, own, files)
    top = root / "sys/fs/cgroup"
    with throttle.slow_disk("8:0", RATES, root) as slow:
        assert slow.parent == top / disk_at
        assert settings(slow) == disk_set
    with throttle.small_memory(1000, root) as small:
        assert small.parent == top / memory_at
        assert settings(small) == memory_set
    assert not slow.exists()
    assert not small.exists()


@pytest.mark.parametrize("own", ["", "0::/jobs/7\n", "8:blkio:/jobs/7\n4:memory:/\n"])
def test_a_machine_without_the_controllers_says_so(tmp_path: Path, own: str) -> None:
    root = machine(tmp_path, own, {"sys/fs/cgroup/cgroup.subtree_control": "cpu\n"})
    with pytest.raises(NotPermittedError, match="'io'"), throttle.slow_disk("8:0", RATES, root):
        pass
    with pytest.raises(NotPermittedError, match="'memory'"), throttle.small_memory(1000, root):
        pass


def disk_of(path: Path) -> str:
    number = path.stat().st_dev
    return f"{os.major(number)}:{os.minor(number)}"


@pytest.mark.parametrize("partition", [False, True])
def test_limits_are_for_the_whole_disk(tmp_path: Path, partition: bool) -> None:
    root, own = tmp_path / "root", disk_of(tmp_path)
    place = root / "sys/devices/sda" / ("sda1" if partition else ".")
    place.mkdir(parents=True)
    (root / "sys/devices/sda/dev").write_text("8:0\n")
    if partition:
        (place / "partition").write_text("1\n")
    (root / "sys/dev/block").mkdir(parents=True)
    (root / "sys/dev/block" / own).symlink_to(place)
    assert throttle.disk(tmp_path, root) == ("8:0" if partition else own)


def test_data_that_is_on_no_disk_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotPermittedError, match="not on a disk"):
        throttle.disk(tmp_path, tmp_path)


@pytest.mark.parametrize("number", [signal.SIGINT, *throttle.ENDING])
def test_readahead_is_put_back_after_a_signal(tmp_path: Path, number: signal.Signals) -> None:
    setting = tmp_path / "sys/dev/block/8:0/queue/read_ahead_kb"
    setting.parent.mkdir(parents=True)
    setting.write_text("8192\n")
    handler = signal.getsignal(number)
    seen = []

    def run() -> None:
        with throttle.ended_in_order(), throttle.readahead("8:0", 128, tmp_path):
            seen.append(setting.read_text())
            signal.raise_signal(number)

    with pytest.raises((SystemExit, KeyboardInterrupt)):
        run()
    assert seen == ["128"]
    assert setting.read_text() == "8192"
    assert signal.getsignal(number) is handler


def test_readahead_that_another_program_changes_is_noticed_and_set_again(tmp_path: Path) -> None:
    setting = tmp_path / "sys/dev/block/8:0/queue/read_ahead_kb"
    setting.parent.mkdir(parents=True)
    setting.write_text("8192\n")
    with throttle.readahead("8:0", 128, tmp_path) as set_again:
        assert not set_again()
        setting.write_text("4096\n")
        assert set_again()
        assert setting.read_text() == "128"
    assert setting.read_text() == "8192"


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as child:
        yield child
        child.kill()


def test_processes_that_are_left_in_a_group_are_ended(
    tmp_path: Path, sleeper: subprocess.Popen[bytes]
) -> None:
    try:
        with throttle.slow_disk(throttle.disk(tmp_path), RATES) as group:
            throttle.enter([group], [sleeper.pid])
            inside = (group / "cgroup.procs").read_text().split()
    except NotPermittedError as error:
        pytest.skip(str(error))
    assert inside == [str(sleeper.pid)]
    assert sleeper.wait(PATIENCE) == -signal.SIGKILL
    assert not group.exists()


def test_disks_that_cannot_be_slow_are_skipped_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(path: Path) -> str:
        raise NotPermittedError("no disk here")

    monkeypatch.setattr(throttle, "disk", refuse)
    monkeypatch.setattr(disks, "prepare", disks_cases.Run)
    out = tmp_path / "out"
    assert main(["disks", "--quick", "--data", str(tmp_path), "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    for disk in disks_cases.QUICK.disks:
        assert f"{disk.name} was skipped: no disk here" in printed


def test_a_measurement_with_another_readahead_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changed = iter([False, True, False])
    whole = [Sample("case", name, 0, {"records_per_s": 1.0}) for name in "abc"]

    @contextmanager
    def readahead(device: str, kibibytes: int) -> Iterator[Callable[[], bool]]:
        yield lambda: next(changed)

    monkeypatch.setattr(throttle, "disk", lambda path: "8:0")
    monkeypatch.setattr(throttle, "readahead", readahead)
    monkeypatch.setattr(disks_cases, "_on", lambda disk, device, run: iter(whole))
    run = disks_cases.Run(replace(disks_cases.FULL, disks=(BARE,)), tmp_path)
    found = list(disks_cases.samples(run))
    assert [sample.error for sample in found] == [None, disks_cases.CHANGED, None]
    assert [bool(sample.values) for sample in found] == [True, False, True]


def test_only_the_wanted_disks_and_parts_are_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plans = []

    def prepare(plan: disks_cases.Plan, data: Path) -> disks_cases.Run:
        plans.append(plan)
        return disks_cases.Run(replace(plan, disks=()), data)

    monkeypatch.setattr(disks, "prepare", prepare)
    monkeypatch.setattr(disks, "samples", lambda run: [])
    only = ["--only-disk", "hard-disk", "--only-size", "110kB", "--only-part", "mount"]
    main(["disks", *only, "--data", str(tmp_path), "--out", str(tmp_path)])
    (plan,) = plans
    assert [disk.name for disk in plan.disks] == ["hard disk"]
    assert [size.name for size in plan.sizes] == ["110kB"]
    assert [tree.mean for tree in plan.trees] == [110_000]
    assert plan.parts == ("mount",)


def test_a_stopped_contestant_shows_how_far_it_came() -> None:
    size = SIZES[0]

    def sample(name: str, speed: float, share: float) -> Sample:
        return Sample(HARD.records(size), name, 0, {"records_per_s": speed, "share": share})

    results = Results([sample("slow", 200.0, 0.085), sample(LIMIT, 10_000.0, 1.0)])
    table = disks._speeds(results, {HARD.records(size): "1 kB"}, "records/s")
    slow, limit = (line.split("|") for line in table.splitlines()[2:])
    assert [cell.strip() for cell in slow] == ["", "slow", "200 (8.5%)", "0.02", ""]
    assert [cell.strip() for cell in limit] == ["", LIMIT, "10,000", "1.00", ""]


@pytest.mark.parametrize(
    ("share", "peer", "ratio"), [(0.5, "steady", "4.0 ×"), (1.0, "fast", "0.5 ×")]
)
def test_a_stopped_peer_is_not_the_fastest_of_the_headline(
    share: float, peer: str, ratio: str
) -> None:
    row = headline.Row("work", "disks", "case", "records_per_s")
    speeds = {"ours": (400.0, 1.0), "steady": (100.0, 1.0), "fast": (800.0, share)}
    medians = {
        name: {"records_per_s": speed, "share": part} for name, (speed, part) in speeds.items()
    }
    cells = row.cells({"medians": {"case": medians}})
    assert cells is not None
    _, ours, theirs, value = cells
    assert ours == "400"
    assert theirs.endswith(peer)
    assert value == ratio


def test_every_goal_is_for_a_case_that_is_measured() -> None:
    cases = {disk.records(size) for disk in disks_cases.DISKS for size in SIZES}
    cases |= {disk.files(tree) for disk in disks_cases.DISKS for tree in disks_cases.TREES}
    disk, size = disks_cases.SMALL_MEMORY
    cases.add(disk.in_little_memory(size))
    assert {goal.case for goal in disks.GOALS} <= cases
    assert BARE.rates is None


@pytest.mark.parametrize(("patience", "counts"), [(60.0, [4, 3, 3]), (0.0, [1, 1, 1])])
def test_clients_of_a_mount_stop_when_their_time_is_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, patience: float, counts: list[int]
) -> None:
    monkeypatch.setattr(harness, "drop_caches", lambda: None)
    for number in range(10):
        (tmp_path / str(number)).write_bytes(bytes(number + 1))
    names = [str(number) for number in range(10)]
    took: dict[str, Any] = mount_client.read_together(
        top=str(tmp_path), names=names, clients=3, patience=patience
    )
    assert took["counts"] == counts
    read = [number for client, n in enumerate(counts) for number in range(client, 10, 3)[:n]]
    assert took["size"] == sum(number + 1 for number in read)


def test_bytes_that_processes_read_from_a_disk_are_counted(tmp_path: Path) -> None:
    size = 1 << 20
    file = tmp_path / "file"
    file.write_bytes(os.urandom(size))
    before = processes.read_bytes()
    try:
        fd = os.open(file, os.O_RDONLY | os.O_DIRECT)
    except OSError as error:
        pytest.skip(f"no O_DIRECT here: {error}")
    with mmap.mmap(-1, size) as buffer:  # page-aligned, as O_DIRECT requires
        os.preadv(fd, [buffer], 0)
    os.close(fd)
    read = processes.read_bytes() - before
    if not read:
        pytest.skip("the files of the tests are on no disk")
    assert size <= read < 2 * size
    assert processes.read_bytes(["self", os.getpid()]) >= 2 * read


COLD_AND_WARM = [
    (read._table, "cold 10kB", "warm 10kB"),
    (loader._table, "cold", "warm"),
    (mount._table, mount_cases.COLD, mount_cases.UNPINNED),
    (mount._table, mount_cases.IN_ORDER, mount_cases.LISTED_PINNED),
]


@pytest.mark.parametrize(("table", "cold", "warm"), COLD_AND_WARM)
def test_cold_tables_show_the_bytes_read_for_each_byte_returned(
    table: Callable[[Results, str], str], cold: str, warm: str
) -> None:
    results = Results(Sample(case, "ours", 0, {"read_per_byte": 1.25}) for case in (cold, warm))
    header, _, row = (line.split("|") for line in table(results, cold).splitlines())
    shown = {name.strip(): value.strip() for name, value in zip(header, row, strict=True)}
    assert shown["read"] == "1.25"
    assert "1.25" not in table(results, warm)


@pytest.mark.parametrize(
    ("goals", "cases"),
    [
        (read.GOALS, {"cold 10kB", "cold 110kB"}),
        (loader.GOALS, {"cold"}),
        (mount.GOALS, {mount_cases.COLD}),
    ],
)
def test_reading_a_tenth_too_much_misses_a_goal(
    goals: Sequence[Goal | Limit], cases: set[str]
) -> None:
    limits = [goal for goal in goals if goal.metric == "read_per_byte"]
    assert {limit.case for limit in limits} == cases
    for value, verdict in ((1.1, "PASS"), (1.11, "above")):
        for limit in limits:
            sample = Sample(limit.case, limit.contestant, 0, {"read_per_byte": value})
            assert limit.verdict(Results([sample])) == verdict


@pytest.mark.parametrize(("missing", "kept"), [(0, "abc"), (1, "ac"), (2, "a"), (3, "")])
def test_a_full_disk_loses_the_sets_that_were_not_used_for_the_longest_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: int, kept: str
) -> None:
    folders = {name: tmp_path / name / "layout" for name in "abc"}
    for age, name in enumerate("cba"):
        datasets.make_once(folders[name], "1", (folders[name] / "file").touch)
        os.utime(folders[name] / datasets.MARKER, (0, 1000 - age))
    datasets.make_once(folders["a"], "1", pytest.fail)  # a use

    def usage(path: Path) -> Any:
        return SimpleNamespace(free=sum(not each.exists() for each in folders.values()))

    monkeypatch.setattr(shutil, "disk_usage", usage)
    datasets.make_room(tmp_path, missing)
    assert "".join(name for name, folder in folders.items() if folder.exists()) == kept
