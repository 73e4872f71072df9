"""Packing in tasks gives the bytes of one process, whatever happens to the tasks."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import signal
import threading
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ffrecord import (
    ChangedError,
    ChangedWarning,
    FFRecordError,
    FileReader,
    PackedFolder,
    PlanError,
    ShardedDatasetReader,
    SkippedWarning,
    pack_folder,
    write_dataset,
)
from ffrecord.archive import planned, scan_parts
from ffrecord.archive.pack import PackProgress, plan_pack
from ffrecord.convert import convert
from ffrecord.dataset.planned import begin_plan
from ffrecord.plan.values import PackPlan
from ffrecord.plan.work import Status
from ffrecord.plan.work_folder import WorkFolder
from tests.support import handmade, kills, trees
from tests.support.commands import in_a_shell
from tests.support.executors import EXECUTORS, files_in
from tests.support.packing import require_valid
from tests.support.patience import PATIENCE

FILES = 20_000
SIZE = 20_000  # of a shard of the small folder


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trees.many_files(tmp_path_factory.mktemp("many") / "tree", FILES)


@pytest.fixture(scope="module")
def alone(many: Path) -> dict[str, bytes]:
    """Pack the folder in this process; return the bytes of the shards."""
    pack_folder(many, many.with_name("alone"), shard_size="75kB")
    return files_in(many.with_name("alone"))


@pytest.fixture
def middle(tmp_path: Path) -> Path:
    """Make a folder for some ten shards."""
    files = {f"{k % 3}/{k:03}": trees.content(1000 + k, k) for k in range(150)}
    files["large"] = trees.content(300_000)
    return trees.plain_tree(tmp_path / "middle", files)


@pytest.fixture
def expected(middle: Path, tmp_path: Path) -> dict[str, bytes]:
    pack_folder(middle, tmp_path / "expected", shard_size=SIZE)
    found = files_in(tmp_path / "expected")
    shutil.rmtree(tmp_path / "expected")
    return found


@pytest.fixture
def plan(middle: Path, expected: dict[str, bytes], tmp_path: Path) -> PackPlan:
    return plan_pack(middle, tmp_path / "shards", SIZE)


def run(plan: PackPlan, *numbers: int) -> None:
    for number in numbers or range(len(plan.parts)):
        planned.run_task(planned.task_of(plan, number))


def litter(target: Path) -> list[str]:
    return [name for name in os.listdir(target.parent) if name.startswith(f".{target.name}.")]


# ---- the same bytes ----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", EXECUTORS)
def test_an_executor_writes_the_bytes_of_one_process(
    kind: str, many: Path, alone: dict[str, bytes], tmp_path: Path
) -> None:
    told: list[PackProgress] = []
    with EXECUTORS[kind]() as executor:
        report = pack_folder(
            many, tmp_path / "shards", shard_size="75kB", executor=executor, progress=told.append
        )
    assert files_in(tmp_path / "shards") == alone
    assert litter(tmp_path / "shards") == []
    assert (report.files + report.hard_links, report.shards) == (FILES, len(alone) - 1)
    assert (told[-1].files, told[-1].bytes) == (told[-1].total_files, told[-1].total_bytes)


def test_a_job_array_in_a_shell_writes_the_bytes_of_one_process(
    many: Path, alone: dict[str, bytes], tmp_path: Path
) -> None:
    """Tasks by number, by Slurm's variable, and every third one; some of them twice at once."""
    line = """set -e
    f pack "$1" "$2/shards" --shard-size 75kB --plan "$2/plan.json"
    f pack --task 3 "$2/plan.json"
    SLURM_ARRAY_TASK_ID=5 f pack --task "$2/plan.json"
    ! f pack --commit "$2/plan.json" 2>> "$2/errors"
    f pack --status "$2/plan.json"
    for k in 0 1 2; do f pack --task $k/3 "$2/plan.json" & f pack --task $k/3 "$2/plan.json"; done
    wait
    f pack --status "$2/plan.json"
    f pack --commit "$2/plan.json"
    f pack --commit "$2/plan.json"
    f pack --task 0 "$2/plan.json"
    f pack --status "$2/plan.json" --json"""
    ran = in_a_shell(line, many, tmp_path)
    assert ran.returncode == 0, ran.stderr.decode()
    assert files_in(tmp_path / "shards") == alone
    assert sorted(os.listdir(tmp_path)) == ["errors", "plan.json", "shards"]
    shards = len(alone) - 1
    assert f"{shards - 2} of {shards} tasks have no receipt" in (tmp_path / "errors").read_text()
    out = ran.stdout.decode()
    assert f"no receipt of {shards - 2} of {shards} tasks: 0-2,4,6-{shards - 1}\n" in out
    assert f"all {shards} tasks have receipts\n" in out
    assert "committed before; task 0 has nothing to do\n" in out
    assert '"is_committed": true' in out


@pytest.mark.parametrize(
    "options",
    [{}, {"align": 512}, {"legacy_index": False}, {"exclude": ["many", "*.log"]}],
    ids=str,
)
def test_every_kind_of_entry_is_packed_as_by_one_process(
    options: dict[str, Any], rich: Path, tmp_path: Path
) -> None:
    reports = []
    with ThreadPoolExecutor(3) as executor:
        for name, how in (("one", None), ("tasks", executor)):
            with pytest.warns(SkippedWarning, match="1 fifo, 1 socket"):
                reports.append(pack_folder(
                    rich, tmp_path / name, shard_size=200_000, executor=how, **options
                ))  # fmt: skip
    assert reports[0] == reports[1]
    assert files_in(tmp_path / "one") == files_in(tmp_path / "tasks")
    assert (tmp_path / "one").stat().st_mode == (tmp_path / "tasks").stat().st_mode
    require_valid(tmp_path / "tasks")


def test_followed_symlinks_are_packed_as_by_one_process(middle: Path, tmp_path: Path) -> None:
    (middle / "0" / "again").symlink_to("../1")
    (middle / "2" / "again").symlink_to("../large")
    with ThreadPoolExecutor(3) as executor:
        for name, how in (("one", None), ("tasks", executor)):
            pack_folder(middle, tmp_path / name, shard_size=SIZE, dereference=True, executor=how)
    assert files_in(tmp_path / "one") == files_in(tmp_path / "tasks")


def test_names_with_odd_bytes_survive_the_plan(tmp_path: Path) -> None:
    odd = os.fsdecode(b" \xff\n(.*)")
    tree = trees.plain_tree(
        tmp_path / f"tree{odd}", {f"{odd}/{k}{odd}": b"%d" % k for k in range(4)}
    )
    plan_pack(tree, tmp_path / f"tasks{odd}", 1).save(tmp_path / "plan.json")
    plan = PackPlan.load(tmp_path / "plan.json")
    run(plan)
    assert planned.status(plan).litter == []
    planned.commit(plan)
    pack_folder(tree, tmp_path / "one", shard_size=1)
    assert files_in(tmp_path / f"tasks{odd}") == files_in(tmp_path / "one")
    assert litter(tmp_path / f"tasks{odd}") == []


def test_the_target_and_its_leftovers_are_not_packed_into_it(middle: Path) -> None:
    cancelled = plan_pack(middle, middle / "0" / "shards", SIZE)
    run(cancelled, 0)
    with ThreadPoolExecutor(2) as executor:
        pack_folder(middle, middle / "0" / "shards", shard_size=SIZE, executor=executor)
    with PackedFolder(middle / "0" / "shards") as folder:
        assert len(folder) == 151
    assert litter(middle / "0" / "shards") == []


def test_an_empty_folder_becomes_one_empty_shard(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with ThreadPoolExecutor(1) as executor:
        for name, how in (("one", None), ("tasks", executor)):
            pack_folder(tmp_path / "empty", tmp_path / name, shard_size=1, executor=how)
    assert files_in(tmp_path / "one") == files_in(tmp_path / "tasks")


def test_verbose_prints_every_file_once(
    middle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with ThreadPoolExecutor(2) as executor:
        for name, how in (("one", None), ("tasks", executor)):
            pack_folder(middle, tmp_path / name, verbose=True, shard_size=SIZE, executor=how)
            lines = capsys.readouterr().out.splitlines()
            assert len(lines) == len(set(lines)) == 151
            assert "150/151" in lines[-1]


# ---- errors ------------------------------------------------------------------------------------


def test_an_executor_needs_a_shard_size(middle: Path, tmp_path: Path) -> None:
    with ThreadPoolExecutor(1) as executor, pytest.raises(ValueError, match="needs shard_size"):
        pack_folder(middle, tmp_path / "shards", executor=executor)


@pytest.mark.parametrize("kind", ["threads", "processes"])
def test_an_error_in_the_walk_names_the_file_and_leaves_nothing(
    kind: str, middle: Path, tmp_path: Path
) -> None:
    (middle / "0" / "loop").symlink_to("..")
    with EXECUTORS[kind]() as executor, pytest.raises(OSError, match="leads to a folder") as caught:
        pack_folder(middle, tmp_path / "x", shard_size=SIZE, dereference=True, executor=executor)
    assert caught.value.filename == str(middle / "0" / "loop")
    assert os.listdir(tmp_path) == ["middle"]


def end_worker(task: Any) -> Any:
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_worker_that_is_killed_in_the_walk_is_an_error_that_names_the_folder(
    middle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scan_parts, "list_folders", end_worker)
    killed = pytest.raises(FFRecordError, match="middle: a worker of the executor ended early")
    with ProcessPoolExecutor(2) as executor, killed:
        pack_folder(middle, tmp_path / "x", shard_size=SIZE, executor=executor)
    assert os.listdir(tmp_path) == ["middle"]


@pytest.mark.parametrize("kind", ["threads", "processes"])
def test_a_broken_symlink_is_an_error_or_left_out(kind: str, middle: Path, tmp_path: Path) -> None:
    (middle / "1" / "broken").symlink_to("nowhere")
    options: dict[str, Any] = {"shard_size": SIZE, "dereference": True}
    with EXECUTORS[kind]() as executor:
        with pytest.raises(ChangedError, match="a broken symlink; remove it"):
            pack_folder(middle, tmp_path / "x", executor=executor, **options)
        with pytest.warns(ChangedWarning, match="broken: a broken symlink; left out"):
            report = pack_folder(
                middle, tmp_path / "x", executor=executor, ignore_changed=True, **options
            )
    assert report.changed == [str(middle / "1" / "broken")]
    assert sorted(os.listdir(tmp_path)) == ["middle", "x"]


def test_a_disk_that_the_workers_have_not_mounted_is_an_error(
    middle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The workers list an empty folder where this process sees a full one."""
    full = middle / "2" / "disk"
    trees.plain_tree(full, {"a": b"a", "b": b"b"})
    (empty := tmp_path / "empty").mkdir()

    def swap() -> None:
        full.rename(tmp_path / "other")
        empty.rename(full)
        (tmp_path / "other").rename(empty)

    def list_without(task: Any) -> Any:
        swap()
        try:
            return list_folders(task)
        finally:
            swap()

    list_folders = scan_parts.list_folders
    (middle / "1" / "folder").mkdir()
    monkeypatch.setattr(scan_parts, "list_folders", list_without)
    said = "disk: disappeared while its folder was packed, or the machines do not share it"
    with ThreadPoolExecutor(1) as executor:
        with pytest.raises(ChangedError, match=said):
            pack_folder(middle, tmp_path / "x", shard_size=SIZE, executor=executor)
        with pytest.warns(ChangedWarning, match=said):
            pack_folder(
                middle, tmp_path / "x", shard_size=SIZE, executor=executor, ignore_changed=True
            )


def change(middle: Path) -> None:
    (middle / "1" / "001").write_bytes(b"shorter")
    (middle / "2" / "002").unlink()
    os.link(middle / "0" / "000", middle / "0" / "linked")


def test_a_file_that_changed_since_the_plan_is_an_error(plan: PackPlan, middle: Path) -> None:
    change(middle)
    with pytest.raises(ChangedError, match="changed while its folder was packed"):
        run(plan)
    work = WorkFolder(plan)
    assert all(name.endswith(".json") or os.path.isfile(f"{work.inside('attempts/0')}/{name}.json")
               for name in os.listdir(work.inside("attempts/0")))  # fmt: skip


def test_changed_files_are_packed_as_read_and_missing_ones_left_out(
    middle: Path, tmp_path: Path
) -> None:
    os.link(middle / "2" / "002", middle / "2" / "z")
    plan = plan_pack(middle, tmp_path / "shards", SIZE, ignore_changed=True)
    change(middle)
    (middle / "2" / "z").unlink()
    run(plan)
    with pytest.warns(ChangedWarning) as warned:
        report = planned.commit(PackPlan.from_json(plan.to_json()))
    gone = [str(middle / "2" / name) for name in ("002", "z")]
    assert sorted(report.changed) == sorted([
        *gone, str(middle / "1" / "001"), str(middle / "0" / "000")
    ])  # fmt: skip
    assert len(warned) == 4
    assert (report.files, report.hard_links) == (150, 0)
    with PackedFolder(tmp_path / "shards") as folder:
        assert len(folder) == 150
        assert folder.read_one("1/001").tobytes() == b"shorter".ljust(1001, b"\0")


# ---- tasks that are lost, repeated, doubled or late --------------------------------------------


def end_once(flag: Path, task: planned.PackTask, path: str) -> Any:
    """Kill the worker in the middle of its first shard number 3."""
    if task.number == 3 and not flag.exists():
        flag.touch()
        Path(path).write_bytes(b"half a shard")
        os.kill(os.getpid(), signal.SIGKILL)
    return write_shard(task, path)


write_shard = planned._write_shard


def call_and_end_once(flag: Path, function: Callable[..., Any], *arguments: Any) -> Any:
    planned._write_shard = partial(end_once, flag)
    return function(*arguments)


@pytest.mark.parametrize("kind", ["processes", "loky"])
def test_a_killed_worker_leaves_nothing_and_the_next_run_has_the_same_bytes(
    kind: str, middle: Path, expected: dict[str, bytes], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    for is_last in (False, True):
        with EXECUTORS[kind]() as executor:
            submit: Callable[..., Any] = executor.submit
            call = partial(submit, call_and_end_once, tmp_path / "flag")
            monkeypatch.setattr(executor, "submit", call)
            if is_last:
                pack_folder(middle, tmp_path / "shards", shard_size=SIZE, executor=executor)
            else:
                with pytest.raises(FFRecordError, match="a worker of the executor ended early"):
                    pack_folder(middle, tmp_path / "shards", shard_size=SIZE, executor=executor)
                assert sorted(os.listdir(tmp_path)) == ["flag", "middle"]
    assert files_in(tmp_path / "shards") == expected
    assert sorted(os.listdir(tmp_path)) == ["flag", "middle", "shards"]


def test_a_killed_task_is_run_again(
    plan: PackPlan, expected: dict[str, bytes], tmp_path: Path
) -> None:
    def work(_tell: Callable[[int], None]) -> None:
        run(plan, 2)

    attempts = WorkFolder(plan).inside("attempts/0")
    _, calls, _ = kills.run(work, None)
    for name in os.listdir(attempts):
        os.unlink(os.path.join(attempts, name))
    for point in kills.points(calls, 12):
        kills.run(work, point)
        run(plan, 2)
        for name in os.listdir(attempts):
            if name.endswith(".json"):
                os.unlink(os.path.join(attempts, name))
    left = planned.status(plan)
    assert left.missing == list(range(len(plan.parts)))
    assert left.litter
    run(plan)
    planned.commit(plan)
    assert files_in(tmp_path / "shards") == expected
    assert sorted(os.listdir(tmp_path)) == ["middle", "shards"]


def test_array_tasks_that_are_killed_in_a_shell_are_run_again(
    middle: Path, expected: dict[str, bytes], tmp_path: Path
) -> None:
    """Task k is killed in its system call k, and again later; then all tasks run."""
    line = """set -e
    killed() { if "$PYTHON" "$3" "${@:4}"; then false; else test $? = 137; fi }
    f pack "$1" "$2/shards" --shard-size 20000B --plan "$2/plan.json"
    for k in 0 1 2 3 4 5; do
      SLURM_ARRAY_TASK_ID=$k killed "$@" $k within pack --task "$2/plan.json"
      SLURM_ARRAY_TASK_ID=$k killed "$@" $((k + 2)) before pack --task "$2/plan.json"
    done
    f pack --status "$2/plan.json"
    f pack --task 0/2 "$2/plan.json" & f pack --task 1/2 "$2/plan.json"
    wait
    f pack --commit "$2/plan.json" """
    ran = in_a_shell(line, middle, tmp_path, kills.__file__)
    assert ran.returncode == 0, ran.stderr.decode()
    shards = len(expected) - 1
    assert f"no receipt of {shards} of {shards} tasks" in ran.stdout.decode()
    assert files_in(tmp_path / "shards") == expected
    assert sorted(os.listdir(tmp_path)) == ["middle", "plan.json", "shards"]


def test_a_task_that_runs_twice_at_once_changes_nothing(
    plan: PackPlan, expected: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = threading.Barrier(2)

    def write(task: planned.PackTask, path: str) -> Any:
        receipt = write_shard(task, path)
        both.wait(PATIENCE)  # both shards are on disk before one has a receipt
        return receipt

    monkeypatch.setattr(planned, "_write_shard", write)
    with ThreadPoolExecutor(2) as pool:
        for number in range(len(plan.parts)):
            list(pool.map(lambda _, n=number: run(plan, n), range(2)))
    assert len(os.listdir(WorkFolder(plan).inside("attempts/0"))) == 4 * len(plan.parts)
    assert len(planned.status(plan).litter) == 2 * len(plan.parts)
    planned.commit(plan)
    assert files_in(tmp_path / "shards") == expected
    assert sorted(os.listdir(tmp_path)) == ["middle", "shards"]


def test_an_attempt_that_ends_after_the_commit_does_not_reach_the_target(
    plan: PackPlan, expected: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, committed = threading.Event(), threading.Event()

    def write(task: planned.PackTask, path: str) -> Any:
        begun.set()
        assert committed.wait(PATIENCE)
        return write_shard(task, path)

    with ThreadPoolExecutor(1) as pool:
        with monkeypatch.context() as patched:
            patched.setattr(planned, "_write_shard", write)
            late = pool.submit(run, plan, 1)
            assert begun.wait(PATIENCE)
        run(plan)
        planned.commit(plan)
        committed.set()
        with pytest.raises(PlanError, match="the work folder of this plan is missing"):
            late.result()
    assert files_in(tmp_path / "shards") == expected
    assert sorted(os.listdir(tmp_path)) == ["middle", "shards"]


def test_an_old_listing_of_the_work_folder_loses_no_task(
    middle: Path, expected: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A network disk may list a folder as it was half a minute ago."""
    listdir = os.listdir
    monkeypatch.setattr(
        os, "listdir", lambda path=".": [] if ".out." in str(path) else listdir(path)
    )
    with ThreadPoolExecutor(2) as executor:
        pack_folder(middle, tmp_path / "out", shard_size=SIZE, executor=executor)
        assert files_in(tmp_path / "out") == expected
        shutil.rmtree(tmp_path / "out")
        write_dataset(tmp_path / "out", [{"x": 1}] * 9, shardlen=2, executor=executor)
        assert len(ShardedDatasetReader(tmp_path / "out")) == 9
        shutil.rmtree(tmp_path / "out")
        sources = [handmade.write_records(tmp_path / f"{k}.ffr", [b"1"]) for k in range(3)]
        convert(sources, tmp_path / "out", target_format="records", shard_per_source=True,
                executor=executor)  # fmt: skip
    assert FileReader(tmp_path / "out").n == 3


# ---- the commit --------------------------------------------------------------------------------


def test_a_commit_may_be_repeated_and_reports_the_same(plan: PackPlan, tmp_path: Path) -> None:
    run(plan)
    first = planned.commit(plan)
    assert planned.commit(plan) == first
    assert planned.status(plan) == Status(len(plan.parts), [], True, [])


@pytest.mark.parametrize("change", ["size", "time", "name"])
def test_a_plan_ends_when_another_one_for_its_target_is_committed(
    change: str, plan: PackPlan, middle: Path, tmp_path: Path
) -> None:
    """The names and records of the shards are the same, but not the files in them."""
    run(plan)
    file = middle / "1" / "004"
    if change == "size":
        file.write_bytes(trees.content(file.stat().st_size + 1, 1))
    elif change == "time":
        file.write_bytes(trees.content(file.stat().st_size, 1))
    else:
        file.rename(middle / "1" / "004-b")
    other = plan_pack(middle, tmp_path / "shards", SIZE)
    assert len(other.parts) == len(plan.parts)
    run(other)
    report = planned.commit(other)
    before = files_in(tmp_path / "shards")
    assert planned.status(plan) == Status(len(plan.parts), [], False, [], has_ended=True)
    with pytest.raises(PlanError, match="the work folder of this plan is missing"):
        planned.commit(plan)
    assert planned.commit(other) == report
    assert files_in(tmp_path / "shards") == before


def test_the_status_of_a_plan_whose_place_is_not_shared_is_that_of_an_ended_plan(
    middle: Path, tmp_path: Path
) -> None:
    (tmp_path / "disk").mkdir()
    plan = plan_pack(middle, tmp_path / "disk" / "shards", SIZE)
    (tmp_path / "disk").rename(tmp_path / "unmounted")
    assert planned.status(plan) == Status(len(plan.parts), [], False, [], has_ended=True)


def test_a_commit_of_files_that_disappeared_may_be_repeated(middle: Path, tmp_path: Path) -> None:
    plan = plan_pack(middle, tmp_path / "shards", SIZE, ignore_changed=True)
    (middle / "1" / "004").unlink()
    run(plan)
    with pytest.warns(ChangedWarning, match="disappeared"):
        planned.commit(plan)
    planned.commit(plan)
    assert planned.status(plan).is_committed


def test_a_target_that_appeared_is_to_be_moved_before_the_commit(
    plan: PackPlan, expected: dict[str, bytes], tmp_path: Path
) -> None:
    run(plan)
    (tmp_path / "shards" / "foreign").mkdir(parents=True)
    with pytest.raises(FileExistsError, match="move it elsewhere, then commit again"):
        planned.commit(plan)
    (tmp_path / "shards").rename(tmp_path / "elsewhere")
    planned.commit(plan)
    assert files_in(tmp_path / "shards") == expected


def test_a_commit_without_all_receipts_names_the_missing_tasks(
    plan: PackPlan, tmp_path: Path
) -> None:
    run(plan, 0, 2)
    with pytest.raises(PlanError, match=r"have no receipt: tasks 1,3-\d+; run"):
        planned.commit(plan)
    assert not (tmp_path / "shards").exists()
    run(plan)
    planned.commit(plan)
    require_valid(tmp_path / "shards")


def test_a_commit_removes_what_cancelled_jobs_left(
    plan: PackPlan, middle: Path, tmp_path: Path
) -> None:
    run(plan, 0)
    again = plan_pack(middle, tmp_path / "shards", SIZE)
    other = plan_pack(middle, tmp_path / "another", SIZE)
    assert planned.status(again).litter == [WorkFolder(plan).path]
    run(again)
    planned.commit(again)
    assert sorted(os.listdir(tmp_path)) == sorted([
        "middle", "shards", os.path.basename(WorkFolder(other).path)
    ])  # fmt: skip
    with pytest.raises(PlanError, match="make a new plan"):
        run(plan, 1)


@pytest.mark.parametrize("trouble", [FileNotFoundError, PermissionError])
def test_a_commit_that_cannot_look_for_other_plans_is_no_failure(
    trouble: type[OSError], plan: PackPlan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another commit removes a work folder at the same time; or the folder cannot be listed."""
    run(plan)
    scandir = os.scandir
    other = tmp_path / ".shards.00000000.packing"

    def failing(path: Any) -> Any:
        if path != str(tmp_path):
            return scandir(path)
        if trouble is PermissionError:
            raise PermissionError(errno.EACCES, "", path)
        other.mkdir()
        with scandir(path) as entries:
            found = list(entries)
        other.rmdir()
        return contextlib.nullcontext(found)

    with monkeypatch.context() as patched:
        patched.setattr(os, "scandir", failing)
        planned.commit(plan)
    assert sorted(os.listdir(tmp_path)) == ["middle", "shards"]


def test_packing_in_one_process_removes_what_cancelled_jobs_left(
    plan: PackPlan, middle: Path, expected: dict[str, bytes], tmp_path: Path
) -> None:
    run(plan, 0)
    begin_plan(str(tmp_path / "shards"), 5, {"x": "int"}, 2)  # a cancelled job of another kind
    pack_folder(middle, tmp_path / "shards", shard_size=SIZE)
    assert sorted(os.listdir(tmp_path)) == ["middle", "shards"]
    assert files_in(tmp_path / "shards") == expected


def test_a_target_of_another_program_is_not_replaced(plan: PackPlan, tmp_path: Path) -> None:
    run(plan)
    trees.plain_tree(tmp_path / "shards", {"mine": b"precious"})
    with pytest.raises(FileExistsError, match="already exists"):
        planned.commit(plan)
    assert files_in(tmp_path / "shards") == {"mine": b"precious"}
    shutil.rmtree(tmp_path / "shards")
    planned.commit(plan)
    require_valid(tmp_path / "shards")


def damage_shard(attempts: Path) -> None:
    shard = next(each for each in sorted(attempts.iterdir()) if each.suffix != ".json")
    os.truncate(shard, shard.stat().st_size - 1)


def exchange_shard(attempts: Path) -> None:
    shard = next(each for each in sorted(attempts.iterdir()) if each.suffix != ".json")
    shard.write_bytes(bytes(shard.stat().st_size))


def lose_shard(attempts: Path) -> None:
    next(each for each in sorted(attempts.iterdir()) if each.suffix != ".json").unlink()


def damage_receipt(attempts: Path) -> None:
    next(each for each in attempts.iterdir() if each.suffix == ".json").write_text("{}")


def misdirect_receipt(attempts: Path) -> None:
    """Let a receipt claim a file elsewhere, which a commit would move."""
    receipt = next(each for each in attempts.iterdir() if each.suffix == ".json")
    receipt.write_text(json.dumps({**json.loads(receipt.read_text()), "attempt": "../../files"}))


@pytest.mark.parametrize(
    "damage", [damage_shard, exchange_shard, lose_shard, damage_receipt, misdirect_receipt]
)
def test_a_commit_refuses_shards_that_are_not_those_of_their_receipts(
    damage: Callable[[Path], None], plan: PackPlan, tmp_path: Path
) -> None:
    run(plan)
    damage(Path(WorkFolder(plan).inside("attempts/0")))
    with pytest.raises(PlanError, match="receipt"):
        planned.commit(plan)
    assert not (tmp_path / "shards").exists()


def test_the_attempts_of_many_tasks_are_in_several_folders(
    plan: PackPlan, expected: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ffrecord.plan.work_folder.GROUP", 4)
    run(plan)
    groups = os.listdir(WorkFolder(plan).inside("attempts"))
    assert sorted(map(int, groups)) == list(range(-(-len(plan.parts) // 4)))
    assert planned.status(plan) == Status(len(plan.parts), [], False, [])
    planned.commit(plan)
    assert files_in(tmp_path / "shards") == expected


def test_two_commits_at_once_publish_once(
    plan: PackPlan, expected: dict[str, bytes], tmp_path: Path
) -> None:
    run(plan)
    with ThreadPoolExecutor(4) as pool:
        ends = [pool.submit(planned.commit, plan) for _ in range(4)]
        errors = [end.exception() for end in ends]
    assert any(error is None for error in errors)
    assert all(error is None or isinstance(error, FFRecordError) for error in errors)
    assert files_in(tmp_path / "shards") == expected
    assert sorted(os.listdir(tmp_path)) == ["middle", "shards"]
