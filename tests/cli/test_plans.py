"""`ffrecord pack --plan`, `--task`, `--commit` and `--status`: output and errors.

tests/archive/test_planned.py compares the bytes.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from ffrecord import PackedFolder, pack_folder
from ffrecord.errors import ChangedError, PlanError, UrlError
from tests.support import trees, users
from tests.support.commands import SYSTEM, Command


@pytest.fixture
def plan(ffrecord: Command, tmp_path: Path) -> Path:
    """Make the plan of a folder of three shards."""
    trees.plain_tree(tmp_path / "photos", {name: name.encode() * 9 for name in ("a", "b", "c")})
    path = tmp_path / "plan.json"
    made = ffrecord(
        "pack", tmp_path / "photos", tmp_path / "out", "--shard-size", "9B", "--plan", path
    )
    assert (made.code, made.err) == (0, b"")
    assert made.lines == [f"{path}: 3 tasks, 3 files, 27 B; run --task 0 to 2, then --commit"]
    return path


def test_every_step_prints_one_line(
    plan: Path, ffrecord: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "2")
    assert ffrecord("pack", "--task", plan).lines == ["task 2: PART_00002.ffr, 1 file, 33 B"]
    state = f"{tmp_path}/out: not committed; no receipt of 2 of 3 tasks: 0-1"
    assert ffrecord("pack", "--status", plan).lines == [state]
    assert len(ffrecord("pack", "--task", "0/1", plan).lines) == 3
    done = ffrecord("pack", "--commit", plan)
    assert done.lines == [f"{tmp_path}/out: 3 files, 3 shards, 27 B"]
    assert ffrecord("pack", "--status", plan).lines == [f"{tmp_path}/out: committed"]
    with PackedFolder(tmp_path / "out") as folder:
        assert folder.read_one("b").tobytes() == b"b" * 9


def test_json_has_the_documented_keys(plan: Path, ffrecord: Command, tmp_path: Path) -> None:
    again = [tmp_path / "photos", tmp_path / "out", "--shard-size", "9B", "--plan", plan]
    made = json.loads(ffrecord("pack", *again, "--force", "--json").out)
    assert made == {"plan": str(plan), "tasks": 3, "files": 3, "bytes": 27}
    task = json.loads(ffrecord("pack", "--json", "--task", "1", plan).out)
    assert task == {"task": 1, "shard": "PART_00001.ffr", "files": 1, "bytes": 33}
    status = json.loads(ffrecord("pack", "--json", "--status", plan).out)
    assert len(status.pop("litter")) == 1  # the folder of the plan that was replaced
    assert status == {
        "out": f"{tmp_path}/out", "tasks": 3, "missing": [0, 2], "is_committed": False,
        "has_ended": False,
    }  # fmt: skip


def test_an_existing_plan_is_not_replaced(plan: Path, ffrecord: Command, tmp_path: Path) -> None:
    before = plan.read_bytes(), sorted(os.listdir(tmp_path))
    given = [tmp_path / "photos", tmp_path / "out", "--shard-size", "9B", "--plan", plan]
    refused = ffrecord("pack", *given)
    assert (refused.code, "pass --force" in refused.error) == (SYSTEM, True)
    assert (plan.read_bytes(), sorted(os.listdir(tmp_path))) == before


def test_a_plan_that_cannot_be_saved_leaves_nothing(
    plan: Path, ffrecord: Command, tmp_path: Path
) -> None:
    before = sorted(os.listdir(tmp_path))
    where = tmp_path / "missing" / "plan.json"
    given = [tmp_path / "photos", tmp_path / "new", "--shard-size", "9B", "--plan", where]
    refused = ffrecord("pack", *given)
    assert refused.code != 0
    assert refused.error
    assert sorted(os.listdir(tmp_path)) == before


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["--commit", "{plan}"], PlanError.exit_code, "run `ffrecord pack --task 0 PLAN`"),
        (["--task", "3", "{plan}"], PlanError.exit_code, "no task 3; it has 3 tasks"),
        (["--task", "0", "{photos}/a"], PlanError.exit_code, "a: not a plan, or damaged; make"),
        (["--task", "0", "{photos}/../p.ffr"], PlanError.exit_code, "is a packed folder, not a"),
        (["--task", "3/3", "{plan}"], 2, "must be less than 3; an array of 3 tasks is --array=0-2"),
        (["--task", "0/1", "--jobs", "2", "{plan}"], 2, "belong together: --task 0/1 {plan}"),
        *(([*step, "--ignore-changed", "{plan}"], 2, "make a new plan, with --ignore-changed")
          for step in (["--task", "0"], ["--task", "0/1"])),
        (["--align", "512", "--commit", "{plan}"], 2, "--commit does not take --align"),
        (["--status", "{plan}", "--shard-size", "9MB"], 2, "--status does not take --shard-size"),
        (["--task", "0", "{photos}/none"], SYSTEM, "No such file"),
        (["--status", "{photos}"], SYSTEM, "Is a directory"),
        (["{photos}", "https://host/x", "--shard-size", "1MB", "--plan", "{photos}/p"],
         UrlError.exit_code, "https://host/x: web servers are not written to"),
    ],
)  # fmt: skip
def test_an_error_is_one_line_with_its_exit_code(
    words: list[str], code: int, says: str, plan: Path, ffrecord: Command, tmp_path: Path
) -> None:
    names = {"plan": plan, "photos": tmp_path / "photos"}
    pack_folder(tmp_path / "photos", tmp_path / "p.ffr")
    says = says.format(**names)
    failed = ffrecord("pack", *(word.format(**names) for word in words))
    assert (failed.code, says in failed.error) == (code, True), failed.error


def test_the_other_shards_of_an_array_element_are_written_after_a_failure(
    plan: Path, ffrecord: Command, tmp_path: Path
) -> None:
    for name in "ab":
        (tmp_path / "photos" / name).write_bytes(b"something else")
    changed = ffrecord("pack", "--task", "0/1", plan)
    assert changed.code == ChangedError.exit_code
    assert changed.lines == ["task 2: PART_00002.ffr, 1 file, 33 B"]
    lines = changed.err.decode().splitlines()
    assert [f"photos/{name}: changed" in line for name, line in zip("ab", lines, strict=True)]
    assert all("make a new plan, with --ignore-changed" in line for line in lines)


def test_a_task_of_an_array_that_is_too_long_says_so(plan: Path, ffrecord: Command) -> None:
    done = ffrecord("pack", "--task", "4/5", plan)
    assert (done.code, done.lines) == (0, ["no shard for 4/5: the plan has 3 tasks"])


def test_another_user_is_told_that_the_permission_is_missing(
    plan: Path, ffrecord: Command, tmp_path: Path
) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    (tmp_path / "plan.json").chmod(0o644)
    script = """
import io
sys.stderr = io.StringIO()
assert ffrecord.cli.main(["pack", *sys.argv[1:]]) == 41
print(sys.stderr.getvalue())
"""
    for step in (["--task", "0"], ["--commit"], ["--status"]):
        with users.reachable(tmp_path):
            assert "permission denied: only the user who made" in users.run(script, *step, plan)


def test_a_changed_file_is_named_and_a_lost_work_folder_too(
    plan: Path, ffrecord: Command, tmp_path: Path
) -> None:
    (tmp_path / "photos" / "b").write_bytes(b"something else")
    changed = ffrecord("pack", "--task", "1", plan)
    assert changed.code == ChangedError.exit_code
    assert f"{tmp_path}/photos/b: changed" in changed.error
    (hidden,) = tmp_path.glob(".out.*.packing")
    hidden.rename(tmp_path / "elsewhere")
    for step in (["--task", "0"], ["--commit"], ["--status"], ["--json", "--status"]):
        lost = ffrecord("pack", *step, plan)
        assert (lost.code, "make a new plan" in lost.error) == (PlanError.exit_code, True)
    status = json.loads(lost.out)
    assert (status["missing"], status["has_ended"]) == ([], True)
