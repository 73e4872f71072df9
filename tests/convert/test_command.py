"""`ffrecord convert` as users run it: output, exit codes, one line per error."""

from __future__ import annotations

import fcntl
import io
import json
import os
import pty
import struct
import subprocess
import sys
import tarfile
import termios
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from ffrecord import (
    ConversionError,
    DamagedSourceError,
    MissingFolderError,
    MissingPackageError,
    cli,
)
from ffrecord.archive.archive import Archive
from ffrecord.dataset import optional
from tests.convert import foreign
from tests.support import handmade, trees

RECORDS = [b"one", b"", b"three"]
ROOT = Path(__file__).parents[2]
USAGE, SYSTEM = 2, 13


@dataclass(frozen=True)
class Result:
    code: int
    out: str
    err: str


Command: TypeAlias = Callable[..., Result]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Command:
    """Return a function that runs `ffrecord convert` in this process."""

    def run(*arguments: str | Path) -> Result:
        try:
            code: Any = cli.main(["convert", *map(str, arguments)])
        except SystemExit as end:  # argparse exits if the command line is wrong
            code = end.code
        return Result(code, *capsys.readouterr())

    return run


@pytest.fixture
def ours(tmp_path: Path) -> Path:
    return handmade.write_records(tmp_path / "ours.ffr", RECORDS)


def test_the_summary_names_counts_and_formats(run: Command, ours: Path, tmp_path: Path) -> None:
    target = tmp_path / "x.tfrecord"
    result = run(ours, target)
    assert result == Result(0, f"{target}: 3 records (records) became 3 records (tfrecord)\n", "")
    assert target.read_bytes() == foreign.tfrecord(RECORDS)


def test_json_has_the_formats_and_counts(run: Command, ours: Path, tmp_path: Path) -> None:
    result = run(ours, tmp_path / "x.tar", "--json")
    assert json.loads(result.out) == {
        "source_format": "records", "target_format": "tar", "read": 3, "written": 3,
        "replaced": 0, "skipped": {}, "source_contents": None,
        "target_contents": {
            "files": 3, "folders": 0, "symlinks": 0, "hard_links": 0, "bytes": 8
        },
    }  # fmt: skip


@pytest.fixture
def linked(tmp_path: Path) -> Path:
    """Return a tree of 3 files, one with three names, 2 folders, one empty, and 2 symlinks."""
    top = trees.plain_tree(tmp_path / "tree", {"a.bin": b"1" * 1000, "b": b"", "sub/c": b"234"})
    (top / "empty").mkdir()
    (top / "symlink").symlink_to("a.bin")
    (top / "sub/dangling").symlink_to("nowhere")
    os.link(top / "a.bin", top / "sub/again")
    os.link(top / "a.bin", top / "thrice")
    return top


def test_a_tree_is_counted_alike_in_every_format(
    run: Command, linked: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = "3 files, 2 folders, 2 symlinks, 2 hard links, 1.0 kB"
    packed, back = tmp_path / "packed.ffr", tmp_path / "back"
    assert cli.main(["pack", str(linked), str(packed)]) == 0
    assert cli.main(["extract", str(packed), "-C", str(back)]) == 0
    assert capsys.readouterr().out == f"{packed}: {words}\n{back}: {words}\n"
    for source, target, formats in (
        (linked, tmp_path / "c.ffr", "folder became packed"),
        (packed, tmp_path / "c", "packed became folder"),
        (linked, tmp_path / "c.tar", "folder became tar"),
        (tmp_path / "c.tar", tmp_path / "from tar.ffr", "tar became packed"),
        (packed, tmp_path / "packed.tar.gz", "packed became tar"),
        (tmp_path / "c.tar", tmp_path / "from tar", "tar became folder"),
    ):
        assert run(source, target) == Result(0, f"{target}: {words} ({formats})\n", "")


def test_formats_have_the_names_that_were_given(run: Command, tmp_path: Path) -> None:
    top = trees.plain_tree(tmp_path / "t", {"0.txt": b"a", "1.txt": b"b"})
    result = run(top, tmp_path / "wds.tar", "--to", "webdataset")
    assert result.out.endswith(" (folder became webdataset)\n")
    result = run(tmp_path / "wds.tar", tmp_path / "t2", "--from", "webdataset", "--json")
    assert json.loads(result.out)["source_format"] == "webdataset"


def test_different_counts_are_shown_for_both_sides(run: Command, tmp_path: Path) -> None:
    tar = tmp_path / "two.tar"
    with tarfile.open(tar, "w") as file:
        for name, content in (("deep/down/a", b"old"), ("deep/down/a", b"new one")):
            member = tarfile.TarInfo(name)
            member.size = len(content)
            file.addfile(member, io.BytesIO(content))
    result = run(tar, tmp_path / "x.ffr")
    became = "2 files, 10 B (tar) became 1 file, 2 folders, 7 B (packed), 1 replaced"
    assert result.out == f"{tmp_path}/x.ffr: {became}\n"


def test_files_that_become_records_are_counted_as_files(
    run: Command, linked: Path, tmp_path: Path
) -> None:
    result = run(linked, tmp_path / "x.tfrecord", "--drop-names")
    words = "3 files, 2 folders, 2 symlinks, 2 hard links, 1.0 kB (folder)"
    assert result.out == f"{tmp_path}/x.tfrecord: {words} became 3 records (tfrecord)\n"


def test_options_may_come_anywhere_and_there_may_be_many_sources(
    run: Command, ours: Path, tmp_path: Path
) -> None:
    target = tmp_path / "x"
    result = run(ours, "--to", "recordio-go", ours, "--codec", "gzip", target)
    assert result.out == f"{target}: 6 records (records) became 6 records (recordio-go)\n"
    assert foreign.read_recordio(target.read_bytes(), "go") == RECORDS * 2


def test_every_option_reaches_the_conversion(run: Command, tmp_path: Path) -> None:
    top = trees.plain_tree(tmp_path / "tree", {"a.x": b"1", "a.y": b"2", "b.x": b"3", "b.y": b"4"})
    assert run(top, tmp_path / "one.bag", "--drop-names").code == 0
    assert (tmp_path / "one.bag").read_bytes() == b"1234"
    assert run(top, tmp_path / "two.bag", "--field", "y").code == 0
    assert (tmp_path / "two.bag").read_bytes() == b"24"
    assert run(top, tmp_path / "three", "--to", "dataset", "--type", "x=int", "--type",
               "y=utf8+gzip").code == 0  # fmt: skip
    spec = json.loads((tmp_path / "three/spec.json").read_text())["spec"]
    assert spec == {"__key__": "utf8", "x": "int", "y": "utf8+gzip"}
    assert run(top, tmp_path / "four", "--to", "webdataset", "--shard-size", "1kB").code == 0
    assert sorted(os.listdir(tmp_path / "four")) == ["000000.tar", "000001.tar"]
    assert run(tmp_path / "four", tmp_path / "one.bag", "--from", "tar", "--drop-names",
               "--force").code == 0  # fmt: skip
    assert (tmp_path / "one.bag").read_bytes() == b"1234"
    assert run("--align", "512", top, tmp_path / "five.ffr").code == 0
    assert run("--align", "512", tmp_path / "four", tmp_path / "six.ffr").code == 0
    for name in ("five.ffr", "six.ffr"):
        with Archive.open(tmp_path / name) as archive:
            assert archive.alignment == 512


def test_errors_are_one_line_with_their_code(run: Command, ours: Path, tmp_path: Path) -> None:
    bad = tmp_path / "bad.tfrecord"
    bad.write_bytes(foreign.tfrecord(RECORDS)[:-1])
    text = tmp_path / "text"
    text.write_text("neither this nor that, but long enough\n")
    cases: list[tuple[tuple[str | Path, ...], int, str]] = [
        ((bad, tmp_path / "x.ffr"), DamagedSourceError.exit_code, f"{bad}: record 2 at byte"),
        ((text, tmp_path / "x.ffr"), ConversionError.exit_code, "--from"),
        ((ours, tmp_path / "x.zip"), ConversionError.exit_code, "--to"),
        ((ours, bad), SYSTEM, "--force"),
        ((ours, tmp_path / "no/x.bag"), MissingFolderError.exit_code, f"folder {tmp_path}/no does"),
        ((tmp_path / "nope", tmp_path / "x.bag"), SYSTEM, f"{tmp_path}/nope: No such file"),
        ((ours,), USAGE, "DST is missing"),
    ]
    for arguments, code, message in cases:
        result = run(*arguments)
        assert (result.code, result.out) == (code, ""), arguments
        assert result.err.count("\n") == 1
        assert message in result.err
    assert sorted(os.listdir(tmp_path)) == ["bad.tfrecord", "ours.ffr", "text"]


@pytest.mark.parametrize(
    "arguments",
    [
        ["--to", "zip"], ["--from", "zip"], ["--codec", "lzma"], ["--type", "x"],
        ["--shard-size", "-1"], ["--align", "1"], ["--what"],
    ],
)  # fmt: skip
def test_a_wrong_command_line_is_a_usage_error(
    arguments: list[str], run: Command, ours: Path, tmp_path: Path
) -> None:
    assert run(ours, tmp_path / "x", *arguments).code == USAGE
    assert os.listdir(tmp_path) == ["ours.ffr"]


@pytest.mark.parametrize(
    ("module", "target"),
    [
        ("crc32c", "x.tfrecord"),
        ("crc32c", "x.recordio"),
        ("cramjam", "x.recordio"),
        ("h5py", "x.h5"),
    ],
)
def test_a_missing_package_is_named_with_the_pip_command(
    module: str, target: str, run: Command, ours: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setitem(sys.modules, module, None)
    optional.load.cache_clear()
    try:
        result = run(ours, tmp_path / target)
    finally:
        optional.load.cache_clear()
    assert result.code == MissingPackageError.exit_code
    assert f"the package {module}, " in result.err
    assert "run: pip install 'ffrecord[convert]'" in result.err
    assert result.err.count("\n") == 1
    assert os.listdir(tmp_path) == ["ours.ffr"]


def test_skipped_files_are_a_warning_of_one_line(run: Command, tmp_path: Path) -> None:
    top = trees.plain_tree(tmp_path / "tree", {"a": b"1"})
    for number in range(2):
        os.mkfifo(top / f"fifo {number}")
        what = ("1 fifo", "2 fifos")[number]
        for target, done in (("x.tar", "converted"), ("x.ffr", "packed")):
            result = run(top, tmp_path / target, "--force")
            assert result.code == 0
            assert result.err == f"ffrecord: warning: {top}: not {done}: {what}\n"


def on_a_terminal(*arguments: str | Path) -> bytes:
    """Return the command's output on a standard error that is a terminal."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("<4H", 24, 80, 0, 0))
    process = subprocess.Popen(
        [sys.executable, "-m", "ffrecord", "convert", *map(str, arguments)],
        stdout=subprocess.DEVNULL, stderr=theirs, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    os.close(theirs)
    said = b""
    with open(ours, "rb", buffering=0) as terminal:
        while True:
            try:
                said += terminal.read(4096)
            except OSError:  # the other end was closed
                break
    assert process.wait() == 0
    return said


def test_a_terminal_shows_progress_unless_disabled(ours: Path, tmp_path: Path) -> None:
    assert b"converting" in on_a_terminal(ours, tmp_path / "x.tfrecord")
    assert on_a_terminal(ours, tmp_path / "y.tfrecord", "--no-progress") == b""
