"""scripts/bench mount: its contestants, its goals, and the mounts that have no daemon."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pytest

from ffrecord.archive.archive import Archive
from ffrecord.format.padding import ALIGNMENT
from scripts.benchmarks import (
    harness,
    mount,
    mount_archives,
    mount_cases,
    mount_client,
    mount_worker,
    mounters,
    rounds,
    summary,
    trees,
)
from scripts.benchmarks.mount_cases import FULL, QUICK, Run
from scripts.benchmarks.mounters import MOUNTERS, Mounter
from scripts.benchmarks.results import Goal
from scripts.benchmarks.trees import FileTree
from tests.fuse.mounted.mounting import require
from tests.support.patience import PATIENCE

TREE = FileTree("a few files", 1_000, 20, 10)
ALIGNED_TO_SOURCE = (mount.ALIGNED, mount.SOURCE)


@pytest.fixture
def data(tmp_path: Path) -> Iterator[Path]:
    """Provide a folder with a small tree; nothing stays mounted in it."""
    trees.create(str(tmp_path), **asdict(TREE))
    yield tmp_path
    mounters.clear(tmp_path / "mounted")


def packed(mounter: Mounter, data: Path) -> Path:
    mount_archives.create(mounter.name, str(data), **asdict(TREE))
    return mount_archives.file(mounter, TREE, data)


@pytest.mark.parametrize(
    ("mounter", "aligned"), [(mounters.OURS, False), (mounters.OURS_ALIGNED, True)]
)
def test_only_one_of_our_archives_is_aligned(data: Path, mounter: Mounter, aligned: bool) -> None:
    with Archive.open(packed(mounter, data)) as archive:
        assert (archive.alignment == ALIGNMENT) == aligned


def test_contestants_share_a_folder_only_if_they_share_an_archive(tmp_path: Path) -> None:
    folders: dict[Path, set[int]] = {}
    for mounter in MOUNTERS.values():
        folder = mount_archives.file(mounter, TREE, tmp_path).parent
        folders.setdefault(folder, set()).add(id(mounter.packer))
    assert all(len(packers) == 1 for packers in folders.values())


def test_a_contestant_that_cannot_take_part_is_skipped_with_the_reason(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(data))
    run = Run(FULL, data, (), {}, frozenset())
    monkeypatch.setattr(mount_cases.Plan, "trees", property(lambda plan: (TREE,)))
    reason = mount_cases._reason_not_to(mounters.EROFS, run)
    assert reason is not None
    assert "mkfs.erofs" in reason


def test_every_goal_is_about_a_figure_that_its_case_has() -> None:
    for goal in mount.GOALS:
        assert goal.metric in mount.COLUMNS[goal.case]
        assert {goal.contestant, goal.over or goal.contestant} <= MOUNTERS.keys()


def test_the_kernel_has_goals_for_both_sorts_of_archive_in_the_same_cases() -> None:
    goals = [goal for goal in mount.GOALS if isinstance(goal, Goal)]
    aligned = {(g.case, g.metric) for g in goals if (g.contestant, g.over) == ALIGNED_TO_SOURCE}
    assert aligned == {(g.case, g.metric) for g in goals if g.contestant == mount.KERNEL}
    cold = {case for case, _ in aligned if case.startswith("cold")}
    assert len(cold) == 4
    assert {metric for _, metric in aligned} == {
        mount.FILES, mount.AGAIN, mount.ENTRIES, mount.BYTES_AGAIN
    }  # fmt: skip


@pytest.mark.parametrize(("repeats", "times"), [(1, 1), (2, 1), (3, 1), (5, 2)])
def test_contestants_without_goals_are_measured_in_half_of_the_repeats(
    repeats: int, times: int
) -> None:
    contestants: list[rounds.Contestant] = [(n, lambda repeat: {}) for n in ("often", "seldom")]
    taken = [
        (sample.contestant, sample.repeat)
        for sample in rounds.interleaved("a case", contestants, repeats, {"seldom"})
    ]
    assert sorted(taken) == [
        *(("often", repeat) for repeat in range(repeats)),
        *(("seldom", repeat) for repeat in range(times)),
    ]


def test_quick_measures_only_some_cases_and_makes_only_their_trees(tmp_path: Path) -> None:
    run = Run(QUICK, tmp_path, (mounters.OURS,), {}, frozenset())
    assert run.plan.trees == (QUICK.small, QUICK.large)
    for case in (mount_cases.LISTED_UNPINNED, *QUICK.left_out):
        taken = mount_cases._interleaved(run, case, [mounters.OURS], lambda mounter, repeat: {})
        assert bool(list(taken)) == (case not in QUICK.left_out)


def test_a_large_file_is_read_twice(tmp_path: Path) -> None:
    size = mount_client.PIECE + 1
    (tmp_path / "file").write_bytes(bytes(size))
    took = mount_client.read_large(top=str(tmp_path), name="file")
    assert (took["size"], took["size_again"]) == (size, size)
    assert took["again"] > 0


@pytest.mark.parametrize("mounter", [mounters.OURS_ALIGNED, mounters.OURS_KERNEL, mounters.SOURCE])
def test_without_a_daemon_its_figures_are_missing(data: Path, mounter: Mounter) -> None:
    if mounter is not mounters.SOURCE:
        require("kernel")
    numbers = range(TREE.count)
    took = harness.call_fresh(
        mount_worker.read_small, PATIENCE,
        mounter=mounter.name, archive=str(packed(mounter, data)), point=str(data / "mounted"),
        cores=1, names=[TREE.path(number) for number in numbers], size=TREE.payload,
    )  # fmt: skip
    assert took["files_per_s"] > 0
    assert took["again_files_per_s"] > 0
    assert "daemon_us" not in took


def test_short_tables_leave_out_contestants_and_cases_that_were_not_measured() -> None:
    figures = {"ours": {"files_per_s": 1.0}, "source folder": {"files_per_s": 2.0}}
    cases = {"small files, one core": figures, "small files, two cores": figures}
    header, _, *rows = summary.of({"benchmark": "mount", "medians": cases}).splitlines()
    assert [cell.strip() for cell in header.split("|")[1:-1]] == ["", "ours", "ext4 itself"]
    assert len(rows) == 2
