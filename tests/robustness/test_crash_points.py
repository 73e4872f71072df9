"""Kill every job that makes files at many moments.

After a kill the target is missing, or it is the old or the new one, whole. A second run completes
the job and removes all leftovers. `test_kills` tests appending, resuming and salvaging.
"""

from __future__ import annotations

import os
import random
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from ffrecord import PackedFolder, pack_folder
from ffrecord.archive import placing
from tests.support import jobs, kills, trees
from tests.support.jobs import EVERY, OTHERS, PACKING, WRITING, Content, Job, Sources
from tests.support.trees import Found

SHORT, LONG, MANY = 5, 200, 60


@pytest.fixture(scope="session")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Sources:
    """Make the inputs of all jobs once."""
    return jobs.make_sources(tmp_path_factory.mktemp("sources"))


@pytest.fixture(autouse=True)
def _small_and_fast_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use small steps, and no fsync: a kill loses nothing that was passed to the kernel.

    `test_power_cuts` tests power cuts.
    """
    jobs.use_small_steps(monkeypatch)
    monkeypatch.setattr(os, "fsync", lambda _fd: None)


class Trial:
    """A job and its target."""

    def __init__(self, job: Job, sources: Sources, place: Path) -> None:
        self.job = job
        self.sources = sources
        self.target = place / "place" / "target"

    def prepare(self) -> Content:
        return self.job.prepare(self.target)

    def work(self, _tell: Callable[[int], None] = lambda _: None) -> None:
        self.job.do(self.sources, self.target)

    def found(self) -> Content:
        return self.job.found(self.target)

    def finish(self, new: Content) -> None:
        """Run the job again, in this process; check that the result is complete and alone."""
        self.job.do_again(self.sources, self.target, done=self.found() == new)
        assert self.found() == new
        assert sorted(os.listdir(self.target.parent)) == self.job.names(self.target)

    def finished(self) -> tuple[Content, int]:
        """Return the result of the job and the number of its calls.

        Also check after each call that the target is old or new. Once it is new, it must stay new.
        """
        old = self.prepare()
        kills.run(self.work, None)
        new = self.found()
        assert new not in (old, None)
        assert sorted(os.listdir(self.target.parent)) == self.job.names(self.target)
        self.prepare()
        seen = [old]

        def watch() -> None:
            seen.append(self.found())
            assert seen[-1] == new if seen[-2] == new else self.job.leaves(seen[-1], old, new)

        _, calls, _ = kills.run(self.work, None, watch)
        return new, calls


@pytest.fixture
def trial(
    request: pytest.FixtureRequest,
    sources: Sources,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Trial:
    job: Job = request.param
    if job.named:
        jobs.without_tmpfile(monkeypatch)
    return Trial(job, sources, tmp_path)


def each(trials: list[Job], short: int, long: int) -> pytest.MarkDecorator:
    """Parametrize a test with jobs and numbers of kills: `short`, and `long` for long runs."""
    every = [
        pytest.param(job, count, id=f"{job}-{count}", marks=pytest.mark.long if is_long else [])
        for job in trials
        for is_long, count in enumerate((short, long))
    ]
    return pytest.mark.parametrize(("trial", "count"), every, indirect=["trial"])


def kill_at_points(trial: Trial, count: int, *, all_of_them: bool) -> None:
    new, calls = trial.finished()
    most = len(kills.WHEN) * calls
    assert most >= count or not all_of_them
    moments = kills.points(calls, min(count, most))
    outcomes = set()
    for number, point in enumerate(moments):
        old = trial.prepare()
        assert kills.run(trial.work, point)[2], point
        outcomes.add(trial.found() == new)
        assert trial.job.leaves(trial.found(), old, new), point
        beside = {*os.listdir(trial.target.parent)} - {*trial.job.names(trial.target)}
        assert all(name.startswith(f".{trial.target.stem}") for name in beside), point
        if number % 2 and trial.found() != new:  # kill the second run too, at another moment
            kills.run(trial.work, moments[number * 5 % len(moments)])
            assert trial.job.leaves(trial.found(), old, new), point
        trial.finish(new)
    assert outcomes == {True, False}


@each(WRITING + PACKING, SHORT, LONG)
def test_a_killed_writer_or_packer_leaves_the_old_or_new_target_or_none(
    trial: Trial, count: int
) -> None:
    kill_at_points(trial, count, all_of_them=True)


@each(OTHERS, SHORT, LONG)
def test_any_other_killed_job_leaves_the_old_or_new_target_or_none(
    trial: Trial, count: int
) -> None:
    kill_at_points(trial, count, all_of_them=False)


@pytest.mark.long  # only calls change files, and the tests above kill at calls
@pytest.mark.parametrize("trial", EVERY, indirect=True, ids=str)
def test_a_kill_at_a_random_time_leaves_the_old_or_new_target_or_none(trial: Trial) -> None:
    old = trial.prepare()
    began = time.monotonic()
    trial.work()
    seconds = time.monotonic() - began
    new = trial.found()
    for _ in range(MANY):
        seed = random.randrange(1 << 32)
        print(f"{trial.job}: seed {seed}")  # shown if the test fails, to repeat this moment
        old = trial.prepare()

        def look(old: Content = old) -> None:
            assert trial.job.leaves(trial.found(), old, new)

        # Check during the run only if the target changes in one step.
        meanwhile = look if trial.job.leaves is jobs.old_or_new else lambda: None
        kills.run_for(random.Random(seed).uniform(0, 1.2 * seconds), trial.work, meanwhile)
        look()
        trial.finish(new)


@pytest.mark.parametrize("named", [False, True])
def test_leftovers_of_a_killed_packer_are_not_packed(
    named: bool, sources: Sources, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The archive is inside the folder that it is made from."""
    if named:
        jobs.without_tmpfile(monkeypatch)
    tree = tmp_path / "tree"
    shutil.copytree(sources.tree, tree, symlinks=True)
    target = tree / "itself.ffr"
    names = sorted(os.fsdecode(path) for path in trees.paths(tree))

    def work(_tell: Callable[[int], None]) -> None:
        pack_folder(tree, target)

    _, calls, _ = kills.run(work, None)
    target.unlink()
    last = [point for point in kills.points(calls, 3 * calls) if point.call >= calls - 4]
    litter = set()
    for point in last:
        kills.run(work, point)
        litter |= set(os.listdir(tree)) - {*names, target.name}
        pack_folder(tree, target)
        with PackedFolder(target) as folder:
            assert sorted([".", *map(str, folder.list(recursive=True))]) == names
        assert sorted(os.listdir(tree)) == sorted([*os.listdir(sources.tree), target.name])
        target.unlink()
    assert litter  # otherwise the test proves nothing


BEFORE = {
    "folder 0/0.bin": b"old", "folder 1/5.bin": b"older", "again.bin": b"another",
    "link": b"a file", "mine": b"not in the archive",
}  # fmt: skip


@pytest.mark.parametrize("count", [SHORT, pytest.param(LONG, marks=pytest.mark.long)])
@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize("before", [{}, BEFORE], ids=["over nothing", "over files"])
def test_a_killed_extraction_leaves_whole_files_and_the_next_one_removes_leftovers(
    before: dict[str, bytes],
    named: bool,
    count: int,
    sources: Sources,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Kill extractions, some twice in a row. Every file with its final name is whole."""
    if named:
        jobs.without_tmpfile(monkeypatch)
    place = tmp_path / "place"
    due = {os.fsdecode(path): found for path, found in trees.snapshot(sources.tree).items()}
    litter = 0

    def work(_tell: Callable[[int], None] = lambda _: None) -> None:
        with PackedFolder(sources.archive) as archive:
            archive.extract(place, overwrite=True)

    def check(point: kills.Point) -> None:
        nonlocal litter
        found = left_in(place)
        litter += len({path for path in found if placing.PASSING.decode() in path})
        for path, each in found.items():
            if placing.PASSING.decode() not in path:
                old = each.kind == "file" and each.content == before.get(path)
                assert old or is_whole(each, due[path]), (point, path)
        assert before.keys() <= found.keys(), point

    trees.plain_tree(place, before)
    _, calls, _ = kills.run(work, None)
    moments = kills.points(calls, min(count, 3 * calls))
    for number, point in enumerate(moments):
        shutil.rmtree(place)
        trees.plain_tree(place, before)
        kills.run(work, point)
        check(point)
        if number % 2:
            kills.run(work, moments[number * 5 % len(moments)])
            check(point)
        work()
        if before:
            assert (place / "mine").read_bytes() == before["mine"]
            (place / "mine").unlink()
        # Extraction keeps the mode of a folder that is not empty.
        shutil.copymode(sources.tree, place)
        assert without_folder_times(place) == without_folder_times(sources.tree), point
    assert litter or not named  # otherwise the test proves nothing


def left_in(top: Path) -> dict[str, Found]:
    """Return the content of a folder; empty if the folder does not exist yet."""
    if not top.exists():
        return {}
    return {os.fsdecode(path): found for path, found in trees.snapshot(top).items()}


def is_whole(found: Found, due: Found) -> bool:
    """Return True if a file is whole, or a folder or symlink has the right kind and target.

    Folders get their attributes last, symlinks right after they are made. A hard-linked file may
    have only one of its names yet.
    """
    if found.kind != "file":
        return (found.kind, found.target) == (due.kind, due.target)
    return replace(found, same_file=due.same_file, links=due.links) == due


def without_folder_times(top: Path) -> dict[bytes, Found]:
    """Return a snapshot without the times of folders, which change with the names in them."""
    found = trees.snapshot(top)
    return {
        path: replace(each, mtime_ns=0) if each.kind == "folder" else each
        for path, each in found.items()
    }
