"""Cut the power of every job that makes files, at each change of a name.

After each cut the target is missing, old or new. Once the job has ended, the target is new.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from ffrecord import FileWriter
from tests.support import jobs, powercut
from tests.support.jobs import EVERY, RECORDS, Job, Sources
from tests.support.powercut import Cut, Disk, Image


def append(_sources: Sources, target: Path) -> None:
    with FileWriter(target, append=True) as writer:
        writer.write(RECORDS)


def write_resumably(_sources: Sources, target: Path) -> None:
    with FileWriter(target, resumable=True) as writer:
        for number, record in enumerate(RECORDS):
            writer.write_one(record)
            if number % 10 == 0:
                writer.flush()


JOBS = [
    *[job for job in EVERY if job.leaves in (jobs.old_or_new, jobs.old_or_new_folder)],
    Job("append", append, over="a file"),
    Job("append", append),
    Job("resumable writer", write_resumably, over="a file"),
]


@pytest.fixture(scope="session")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Sources:
    """Make the inputs of all jobs once."""
    return jobs.make_sources(tmp_path_factory.mktemp("sources"))


@pytest.mark.parametrize("job", JOBS, ids=str)
def test_a_power_cut_leaves_the_old_or_new_target_and_after_the_job_the_new_one(
    job: Job, sources: Sources, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs.use_small_steps(monkeypatch)
    if job.named:
        jobs.without_tmpfile(monkeypatch)
    target = tmp_path / "place" / "target"
    chance = random.Random(str(job))
    synced = Cut("synced", "synced", chance)

    job.prepare(target)
    job.do(sources, target)
    with (disk := Disk(target.parent)).watching():
        new = disk.image(target, synced)
    job.prepare(target)
    disk = Disk(target.parent)
    old = disk.image(target, synced)
    seen: list[Image] = []

    def cut() -> None:
        for each in powercut.cuts(chance):
            seen.append(disk.image(target, each))
            assert seen[-1] in (old, new), each

    with disk.watching(cut):
        job.do(sources, target)
        cut()
        assert disk.image(target, synced) == new
    assert old in seen


def test_a_power_cut_never_leaves_the_data_of_one_bag_with_the_index_of_another(
    sources: Sources, tmp_path: Path
) -> None:
    target = tmp_path / "place" / "target"
    paths = [target, target.with_suffix(".idx")]
    chance = random.Random(5)
    jobs.TO_BAG.prepare(target)
    old = [path.read_bytes() for path in paths]
    jobs.TO_BAG.do(sources, target)
    new = [path.read_bytes() for path in paths]
    jobs.TO_BAG.prepare(target)
    disk = Disk(target.parent)
    seen: list[list[Image]] = []

    def cut() -> None:
        for each in [*powercut.cuts(chance)] * 3:
            seen.append([disk.image(path, each) for path in paths])
            assert None in seen[-1] or seen[-1] in (old, new), each

    with disk.watching(cut):
        jobs.TO_BAG.do(sources, target)
        synced = Cut("synced", "synced", chance)
        assert [disk.image(path, synced) for path in paths] == new
    assert old in seen
