"""scripts/bench compare: the code that is measured, the order of runs, and the verdicts."""

from __future__ import annotations

import subprocess
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from scripts.benchmarks import compare, compare_cases, compare_worker, harness, pages
from scripts.benchmarks.__main__ import main
from scripts.benchmarks.compare_cases import AFTER, BEFORE, Line
from scripts.benchmarks.compare_checkouts import checked_out, compile_packages, revision
from scripts.benchmarks.results import Results, Sample


@pytest.fixture
def other(tmp_path: Path) -> Path:
    """Return another tree, whose packages only print their location."""
    tree = tmp_path / "other tree"
    for package in compare_worker.PACKAGES:
        (tree / package).mkdir(parents=True)
        (tree / package / "__init__.py").write_text("")
    (tree / "ffrecord" / "__main__.py").write_text("import ffrecord\nprint(ffrecord.__file__)\n")
    return tree


@pytest.mark.parametrize(
    ("ratio", "before", "after", "verdict"),
    [
        (1.0, 0.0, 0.0, "same"),
        (0.96, 0.0, 0.0, "same"),
        (0.94, 0.0, 0.0, "slower"),
        (0.94, 0.02, 0.0, "same"),
        (0.94, 0.0, 0.02, "same"),
        (0.92, 0.02, 0.01, "slower"),
        (0.5, 0.5, 0.01, "same"),
        (1.04, 0.0, 0.0, "same"),
        (1.06, 0.0, 0.0, "faster"),
        (1.06, 0.0, 0.02, "same"),
        (None, 0.0, 0.0, "not measured"),
        (0.5, None, 0.0, "not measured"),
    ],
)
def test_a_line_counts_as_slower_only_beyond_five_percent_and_its_spread(
    ratio: float | None, before: float | None, after: float | None, verdict: str
) -> None:
    assert compare.verdict(ratio, [before, after]) == verdict


@pytest.mark.parametrize(
    ("values", "spread"),
    [
        ([7.0], None),
        ([10.0, 10.0, 10.0], 0.0),
        ([8.0, 9.0, 10.0, 11.0, 12.0], 0.1),
        ([8.0, 9.0, 10.0, 11.0, 1000.0], 0.1),  # one disturbed run does not count
    ],
)
def test_the_spread_is_half_the_width_of_the_middle_half(
    values: list[float], spread: float | None
) -> None:
    assert compare.spread(values) == spread


def results(after: float) -> Results:
    """Return eight repeats of one line, on a machine that becomes 1 % faster each time."""
    drift = [1000.0 * 1.01**repeat for repeat in range(8)]
    return Results(
        Sample("read", side, repeat, {"per_s": speed * factor, "cpu_us": 1e6 / speed / factor})
        for repeat, speed in enumerate(drift)
        for side, factor in ((BEFORE, 1.0), (AFTER, after))
    )


@pytest.mark.parametrize(("after", "verdict"), [(1.0, "same"), (0.8, "slower"), (1.25, "faster")])
def test_the_drift_of_the_machine_does_not_change_a_ratio(after: float, verdict: str) -> None:
    found = compare.figures(results(after), "read")
    assert found["ratio"] == pytest.approx(after)
    assert found["cpu_ratio"] == pytest.approx(1 / after)
    assert found["verdict"] == verdict


def named(line: str, repeat: int) -> dict[str, Any]:
    return {"line": line}


def test_the_sides_take_turns_to_be_first(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, str]] = []

    def measured(function: Any, timeout: float, *, tree: str, line: str) -> dict[str, float]:
        asked.append((line, tree))
        return {"per_s": 1.0}

    monkeypatch.setattr(harness, "call_fresh", measured)
    lines = [Line(name, compare_worker.read, partial(named, name)) for name in ("one", "two")]
    sides = {BEFORE: Path("A"), AFTER: Path("B")}
    found = list(compare_cases.samples(lines, sides, 3))
    for name in ("one", "two"):
        assert "".join(tree for line, tree in asked if line == name) == "ABBAAB"
    assert [line for line, _ in asked] == ["one", "one", "two", "two"] * 3
    assert [(sample.case, sample.contestant == AFTER) for sample in found] == [
        (line, tree == "B") for line, tree in asked
    ]


def test_each_tree_is_measured_with_its_own_code(other: Path) -> None:
    for tree in (other, harness.ROOT):
        files = harness.call_fresh(compare_worker.use, 60.0, tree=str(tree))
        assert {Path(file).parents[1] for file in files.values()} == {tree}


def test_each_tree_is_mounted_by_its_own_command(other: Path) -> None:
    # `mounters` starts the command in this tree, whose code the command must not import.
    command = compare_worker.command(str(other))
    run = subprocess.run(command, cwd=harness.ROOT, capture_output=True, text=True, check=True)
    assert Path(run.stdout.strip()) == other / "ffrecord" / "__init__.py"


def test_importing_the_code_of_another_tree_is_an_error(other: Path) -> None:
    (other / "ffrecord" / "__init__.py").write_text("__file__ = '/elsewhere/ffrecord'\n")
    with pytest.raises(harness.ChildError, match="imported from /elsewhere/ffrecord, not from"):
        harness.call_fresh(compare_worker.use, 60.0, tree=str(other))


@pytest.mark.parametrize("packed", [False, True], ids=["records", "packed folder"])
def test_the_sizes_that_are_read_are_checked(packed: bool, tmp_path: Path) -> None:
    from ffrecord import FileWriter, pack_folder

    contents = [bytes([number]) * (number + 1) for number in range(10)]
    file = tmp_path / "store" / "file.ffr"
    file.parent.mkdir()
    (tmp_path / "files").mkdir()
    for number, content in enumerate(contents):
        (tmp_path / "files" / str(number)).write_bytes(content)
    if packed:
        pack_folder(tmp_path / "files", file)
    else:
        with FileWriter(file, len(contents)) as writer:
            writer.write(contents)
    rows = [[first, first + 1] for first in range(0, 10, 2)]
    arguments = {
        "tree": str(harness.ROOT),
        "packed": packed,
        "file": str(file),
        "keys": [[str(number) for number in row] for row in rows] if packed else rows,
        "sizes": [sum(len(contents[number]) for number in row) for row in rows],
        "cold": False,
        "budget": 0.0,
    }
    values = harness.call_fresh(compare_worker.read, 60.0, **arguments)
    assert values.keys() == {"per_s", "cpu_us"}
    with pytest.raises(harness.ChildError, match="bytes: 3 instead of 4"):
        harness.call_fresh(compare_worker.read, 60.0, **{**arguments, "sizes": [4] * 5})


def complaint(before: str, capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as ended:
        main(["compare", before, "--quick"])
    assert capsys.readouterr().out == ""
    message = str(ended.value.code)
    assert message.startswith("scripts/bench compare: ")
    assert "\n" not in message
    return message


def test_a_folder_that_is_not_a_checkout_gives_one_line(
    other: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (other / "ffrecord_fuse" / "__init__.py").unlink()
    message = complaint(str(other), capsys)
    assert f"{other}: not a checkout of this project" in message
    assert "ffrecord_fuse/__init__.py is missing" in message


@pytest.mark.parametrize("before", ["no-such-revision", "no/such/folder"])
def test_an_unknown_folder_or_revision_gives_one_line(
    before: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert f"{before}: neither a folder nor a git revision" in complaint(before, capsys)


@pytest.fixture
def repository(other: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make the other tree a repository with one commit, and use it as this project's."""
    git("init", "--quiet", folder=other)
    git("add", ".", folder=other)
    who = ["-c", "user.name=Test", "-c", "user.email=test@localhost"]
    git(*who, "commit", "--quiet", "--message", "All", folder=other)
    monkeypatch.setattr(harness, "ROOT", other)
    return other


def git(*arguments: str, folder: Path) -> str:
    command = ["git", "-C", str(folder), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_a_revision_is_checked_out_only_during_the_run(repository: Path) -> None:
    commit = git("rev-parse", "--short", "HEAD", folder=repository).strip()
    (repository / "ffrecord" / "__init__.py").write_text("changed = True\n")
    assert revision(repository) == f"{commit}-dirty"
    with checked_out("HEAD") as tree:
        assert tree != repository
        assert (tree / "ffrecord" / "__init__.py").read_text() == ""
        assert revision(tree) == commit
    assert not tree.exists()
    assert len(git("worktree", "list", folder=repository).splitlines()) == 1


def test_both_trees_are_compiled_before_the_measurement(other: Path) -> None:
    # Otherwise, with PYTHONDONTWRITEBYTECODE, each measured process would compile the modules.
    compile_packages(other)
    found = {path.name.partition(".")[0] for path in other.glob("*/__pycache__/*.pyc")}
    assert found == {"__init__", "__main__"}


def test_the_page_gets_the_table_as_printed(tmp_path: Path) -> None:
    (tmp_path / "compare.json").write_text('{"benchmark": "compare", "text": "| line |"}')
    page = "<!-- scripts/bench compare -->\n\nNot measured yet.\n\n<!-- end -->\n"
    wanted = page.replace("Not measured yet.", "| line |")
    assert pages.rendered(page, tmp_path) == wanted
