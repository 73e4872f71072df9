"""Kill append, resume, salvage and the commit of a plan at many moments.

After each kill the file is the old or the new one, and no flushed record is lost.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from ffrecord import FileWriter, salvage_file
from ffrecord.archive import pack, planned
from ffrecord.atomic import file as atomic_file
from ffrecord.dataset import planned as planned_dataset
from ffrecord.format.journal import partial_path
from ffrecord.plan.values import PackPlan, WritePlan
from ffrecord.plan.work_folder import WorkFolder
from tests.support import handmade, kills, trees
from tests.support.executors import files_in
from tests.support.kills import Point

SHORT, LONG = 12, 100
COUNTS = [SHORT, pytest.param(LONG, marks=pytest.mark.long)]
COMMITS = [SHORT, pytest.param(50, marks=pytest.mark.long)]
ROWS = [{"number": number, "text": "x" * number} for number in range(20)]
OLD = handmade.random_records([0, 5, 70_000, 4096, 1, 200_000] * 4, seed=1)
ADDED = handmade.random_records([50_000, 0, 123_456, 7] * 6, seed=2)


@pytest.fixture(autouse=True)
def small_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use small buffers, so that the work has more steps."""
    monkeypatch.setattr(atomic_file, "SMALL_BUFFER", 16 << 10)


def litter(folder: Path, name: str) -> list[str]:
    """Return the names beside a file, except its temporary files, which are allowed."""
    temporary = f".{name}."
    return [
        each for each in os.listdir(folder)
        if each != name and not (each.startswith(temporary) and each.endswith(".tmp"))
    ]  # fmt: skip


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("n", [None, len(ADDED)])
def test_a_killed_append_leaves_the_old_or_the_new_file(
    n: int | None, count: int, tmp_path: Path
) -> None:
    path = tmp_path / "grown.ffr"

    def append(_tell: Callable[[int], None]) -> None:
        with FileWriter(path, n, append=True) as writer:
            writer.write(ADDED)

    handmade.write_records(path, OLD)
    _, calls, _ = kills.run(append, None)
    assert handmade.records_in(path.read_bytes()) == OLD + ADDED
    seen = set()
    for point in kills.points(calls, count):
        old = handmade.write_records(path, OLD).read_bytes()
        assert kills.run(append, point)[2], point
        data = path.read_bytes()
        seen.add(data == old)
        assert data == old or handmade.records_in(data) == OLD + ADDED, point
        assert litter(tmp_path, path.name) == [], point
    assert seen == {True, False}


def write_resumably(path: Path, n: int | None, tell: Callable[[int], None]) -> None:
    """Write the rest of ADDED after an earlier writer; report the count after each flush."""
    with FileWriter(path, n, resumable=True) as writer:
        tell(writer.count)
        while writer.count < len(ADDED):
            writer.write_one(ADDED[writer.count])
            if writer.count % 3 == 0:
                writer.flush()
                tell(writer.count)


def resumed(path: Path, n: int | None, flushed: int) -> int:
    """Return how many records a new writer finds. Check them all."""
    with FileWriter(path, n, resumable=True) as writer:
        there = writer.count
        assert there >= flushed
        writer.suspend()
    out = path.with_name("taken.ffr")
    report = salvage_file(partial_path(os.fspath(path)), out)
    assert (report.kept, report.lost) == (there, [])
    assert handmade.records_in(out.read_bytes()) == ADDED[:there]
    out.unlink()
    return there


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("n", [None, len(ADDED)])
def test_a_killed_resumable_writer_loses_no_flushed_record(
    n: int | None, count: int, tmp_path: Path
) -> None:
    path = tmp_path / "long.ffr"

    def work(tell: Callable[[int], None]) -> None:
        write_resumably(path, n, tell)

    old = handmade.record_bytes([b"what was there before"])
    _, calls, _ = kills.run(work, None)
    whole = path.read_bytes()
    assert handmade.records_in(whole) == ADDED
    assert litter(tmp_path, path.name) == []
    found = set()
    for number, point in enumerate(kills.points(calls, count)):
        path.write_bytes(old)
        flushed, _, killed = kills.run(work, point)
        assert killed, point
        if path.read_bytes() == old:
            found.add(resumed(path, n, flushed))
            # Kill the second writer too, earlier or later than the first.
            again = Point(number * 7 % (calls // 2), kills.WHEN[number % 3])
            flushed = max(flushed, kills.run(work, again)[0])
        if path.read_bytes() == old:
            resumed(path, n, flushed)
            write_resumably(path, n, lambda _: None)
            assert litter(tmp_path, path.name) == [], point
        assert handmade.records_in(path.read_bytes()) == ADDED, point
        # The next writer removes the leftovers of a finished file.
        if left := litter(tmp_path, path.name):
            assert {os.path.splitext(each)[1] for each in left} <= {".partial", ".journal"}, point
            write_resumably(path, n, lambda _: None)
            assert handmade.records_in(path.read_bytes()) == ADDED, point
            assert litter(tmp_path, path.name) == [], point
    assert len(found) > 2


@pytest.mark.parametrize("count", COUNTS)
def test_a_killed_salvage_leaves_the_old_or_the_new_file(count: int, tmp_path: Path) -> None:
    records = OLD + ADDED
    broken, out = tmp_path / "broken.ffr", tmp_path / "out.ffr"
    data = bytearray(handmade.record_bytes(records))
    data[12 + 4 * len(records) + 8 * 9] ^= 1  # an offset
    data[-1] ^= 1  # the last record that is not empty
    broken.write_bytes(data)
    folder = tmp_path / "out"
    folder.mkdir()
    out = folder / "out.ffr"

    def salvage(_tell: Callable[[int], None]) -> None:
        salvage_file(broken, out)

    out.write_bytes(b"old")
    _, calls, _ = kills.run(salvage, None)
    expected = out.read_bytes()
    assert handmade.records_in(expected) == records[:-1]
    seen = set()
    for point in kills.points(calls, count):
        out.write_bytes(b"old")
        assert kills.run(salvage, point)[2], point
        seen.add(out.read_bytes())
        assert litter(folder, out.name) == [], point
        assert broken.read_bytes() == data, point
    assert seen == {b"old", expected}


def packed(tmp_path: Path, target: Path) -> tuple[Callable[[], object], WorkFolder]:
    """Run all tasks of a new plan; return the commit, as another process does it, and the work."""
    folder = tmp_path / "folder"
    if not folder.exists():
        trees.plain_tree(folder, {f"{k % 3}/{k:02}": trees.content(k * 50, k) for k in range(30)})
    plan = pack.plan_pack(folder, target, 4000)
    for number in range(len(plan.parts)):
        planned.run_task(planned.task_of(plan, number))
    text = plan.to_json()
    return lambda: planned.commit(PackPlan.from_json(text)), WorkFolder(plan)


def written(_tmp_path: Path, target: Path) -> tuple[Callable[[], object], WorkFolder]:
    plan = planned_dataset.begin_plan(str(target), len(ROWS), {"number": "int", "text": "utf8"}, 3)
    for number, part in enumerate(plan.parts):
        rows = (ROWS[row] for row in part.rows)
        planned_dataset.write_rows(planned_dataset.task_of(plan, number), rows)
    text = plan.to_json()
    return lambda: planned_dataset.commit(WritePlan.from_json(text)), WorkFolder(plan)


def committing(commit: Callable[[], object]) -> kills.Work:
    def work(_tell: Callable[[int], None]) -> None:
        commit()

    return work


@pytest.mark.parametrize("count", COMMITS)
@pytest.mark.parametrize("make", [packed, written])
def test_a_killed_commit_leaves_nothing_or_the_whole_and_can_be_repeated(
    make: Callable[[Path, Path], tuple[Callable[[], object], WorkFolder]], count: int,
    tmp_path: Path,
) -> None:  # fmt: skip
    (tmp_path / "out").mkdir()
    target = tmp_path / "out" / "shards"
    commit, _ = make(tmp_path, target)
    _, calls, _ = kills.run(committing(commit), None)
    expected = files_in(target)
    assert expected
    seen = set()
    for number, point in enumerate(kills.points(calls, count)):
        shutil.rmtree(target)
        commit, work = make(tmp_path, target)
        assert kills.run(committing(commit), point)[2], point
        seen.add(target.exists())
        assert not target.exists() or files_in(target) == expected, point
        # Kill the second commit too, earlier or later than the first.
        again = Point(number * 7 % calls, kills.WHEN[number % 3])
        kills.run(committing(commit), again)
        assert not target.exists() or files_in(target) == expected, point
        commit()
        assert files_in(target) == expected, point
        assert not os.path.exists(work.path), point
        assert os.listdir(target.parent) == [target.name], point
    assert seen == {True, False}
