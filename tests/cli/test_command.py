"""Output that cannot be written: the command prints one line and ends with the exit code for it."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from ffrecord.cli.arguments import COMMANDS
from tests.support import archives, handmade, trees

NO_ROOM, NOT_WRITTEN, SYSTEM, BROKEN_PIPE = 11, 22, 13, 141
ADVICE = "free some space or write to another disk"

# Every command line that prints, run in the folder `place`. `{}` becomes a new name each time.
PRINTING = [
    "ffrecord --help",
    "ffrecord ls --help",
    "ffrecord --version",
    "ffrecord-fuse --help",
    "ffrecord-fuse --version",
    "ffrecord pack tree {}",
    "ffrecord pack tree {} --json",
    "ffrecord ls a.ffr",
    "ffrecord ls -lR a.ffr",
    "ffrecord ls --json a.ffr",
    "ffrecord cat a.ffr d/b",
    "ffrecord cat a.ffr large",
    "ffrecord cat r.ffr --record 1",
    "ffrecord extract a.ffr -C {}",
    "ffrecord extract a.ffr -C {} --json",
    "ffrecord convert a.ffr {}.tar",
    "ffrecord info a.ffr",
    "ffrecord info r.ffr --json",
    "ffrecord info --system",
    "ffrecord verify a.ffr r.ffr",
    "ffrecord verify --json a.ffr",
    "ffrecord verify damaged.ffr",
    "ffrecord salvage r.ffr {}",
    "ffrecord warm a.ffr d",
    "ffrecord warm --json r.ffr",
    "ffrecord cache ls --cache tree",
    "ffrecord view a.ffr",
    "ffrecord completion bash",
    "ffrecord completion fish",
]
SILENT = {"mount", "umount"}  # they print nothing here, because nothing is mounted


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    top = tmp_path_factory.mktemp("running")
    files = {"a": b"1" * 1500, "d/b": b"2", "large": trees.content(3_000_000)}
    archives.pack(trees.plain_tree(top / "tree", files), top / "a.ffr")
    handmade.write_records(top / "r.ffr", [b"one", b"two"])
    archives.flip(handmade.write_records(top / "damaged.ffr", [b"one", b"two"]), -1)
    return top


names = (f"new{number}" for number in itertools.count())


def run(line: str, place: Path, streams: str) -> tuple[int, str]:
    """Run a command line with streams redirected by bash; return its exit code and standard error.

    By default standard output is a pipe that nobody reads.
    """
    program, *words = line.format(next(names)).split()
    module = program.replace("-", "_")
    command = [sys.executable, "-m", module, *words]
    reader, writer = os.pipe()
    os.close(reader)
    with ExitStack() as closing:
        closing.callback(os.close, writer)
        done = subprocess.run(
            ["bash", "-c", f'"$@" {streams}', "bash", *command], cwd=place, stdout=writer,
            stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, timeout=600, check=False,
        )  # fmt: skip
    return done.returncode, done.stderr


def test_every_command_is_in_the_table() -> None:
    tried = {line.split()[1] for line in PRINTING}
    assert COMMANDS.keys() - SILENT <= tried


@pytest.mark.parametrize("line", PRINTING)
def test_a_full_disk_behind_standard_output_gives_one_line_and_its_code(
    line: str, place: Path
) -> None:
    said = f"{line.split()[0]}: standard output: no room to write: No space left on device"
    assert run(line, place, ">/dev/full") == (NO_ROOM, f"{said}; {ADVICE}\n")


# Every command meets a failed write above and below. What made it fail is no matter of the command.
@pytest.mark.parametrize("line", PRINTING[::2])
def test_a_closed_standard_output_gives_one_line_and_its_code(line: str, place: Path) -> None:
    said = f"{line.split()[0]}: standard output: writing failed: Bad file descriptor\n"
    assert run(line, place, ">&-") == (NOT_WRITTEN, said)


@pytest.mark.parametrize("line", PRINTING)
def test_a_closed_pipe_gives_no_message(line: str, place: Path) -> None:
    assert run(line, place, "") == (BROKEN_PIPE, "")


@pytest.mark.parametrize("line", PRINTING[1::2])
def test_a_command_ends_with_its_code_even_if_nothing_can_be_printed(
    line: str, place: Path
) -> None:
    assert run(line, place, "<&- >&- 2>&-")[0] == NOT_WRITTEN


def test_only_the_code_reports_a_full_disk_when_errors_cannot_be_printed(place: Path) -> None:
    assert run("ffrecord ls a.ffr", place, ">/dev/full 2>&-") == (NO_ROOM, "")


# ---- standard error ----------------------------------------------------------------------------

FAILING = {
    "ffrecord info missing": SYSTEM,
    "ffrecord nonsense": 2,
    "ffrecord cat a.ffr missing": SYSTEM,
    "ffrecord-fuse missing tree": SYSTEM,
    "ffrecord-fuse": 2,
    "ffrecord umount tree": 18,
    "ffrecord pack tree {} --shard-size 10": 2,
    "ffrecord verify a.ffr": 0,
}


BROKEN_ERRORS = ("2>/dev/full", "2>&-", "2</dev/null", "<&- 2>&-")


@pytest.mark.parametrize(
    ("line", "streams"),
    [
        *((line, BROKEN_ERRORS[0]) for line in FAILING),
        *((line, streams) for line in list(FAILING)[1::2] for streams in BROKEN_ERRORS[1:]),
    ],
)
def test_a_broken_standard_error_changes_no_exit_code(line: str, streams: str, place: Path) -> None:
    assert run(line, place, f"{streams} >/dev/null") == (FAILING[line], "")


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_warning_comes_before_the_result(unbuffered: str, tmp_path: Path) -> None:
    """With PYTHONUNBUFFERED, plain Python has no line-buffered streams."""
    os.mkfifo(trees.plain_tree(tmp_path / "tree", {"a": b"1"}) / "fifo")
    done = subprocess.run(
        [sys.executable, "-m", "ffrecord", "pack", "tree", "new.ffr"], cwd=tmp_path,
        env={**os.environ, "PYTHONUNBUFFERED": unbuffered}, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, timeout=600, check=True,
    )  # fmt: skip
    warning, result = done.stdout.splitlines()
    assert warning.startswith("ffrecord: warning: ")
    assert result.startswith("new.ffr: ")


@pytest.mark.parametrize("stdout", [">/dev/full", ">&-"])
def test_the_first_error_is_reported_when_the_output_fails_too(stdout: str, place: Path) -> None:
    code, said = run("ffrecord cat a.ffr d/b missing", place, stdout)
    assert (code, said.count("\n")) == (SYSTEM, 1)
    assert "missing" in said


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_partial_write_of_a_record_is_an_error(unbuffered: str, place: Path) -> None:
    """With PYTHONUNBUFFERED, plain Python takes a partial write for a complete one."""
    limit = f'(export PYTHONUNBUFFERED={unbuffered}; ulimit -f 1000; exec "$@"'
    command = [sys.executable, "-m", "ffrecord", "cat", "a.ffr", "large"]
    done = subprocess.run(
        ["bash", "-c", f"{limit} > out)", "bash", *command],
        cwd=place, capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    said = f"ffrecord: standard output: no room to write: File too large; {ADVICE}\n"
    assert (done.returncode, done.stderr) == (NO_ROOM, said)
    assert trees.content(3_000_000).startswith((place / "out").read_bytes())


@pytest.fixture
def full_pipe() -> Iterator[int]:
    """Yield the end of a non-blocking pipe that nobody reads."""
    reader, writer = os.pipe2(os.O_NONBLOCK)
    yield writer
    os.close(reader)
    os.close(writer)


def test_a_full_pipe_that_must_not_block_gives_one_line(full_pipe: int, place: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "ffrecord", "cat", "a.ffr", "large"],
        cwd=place, stdout=full_pipe, stderr=subprocess.PIPE, text=True, timeout=600, check=False,
    )  # fmt: skip
    said = "ffrecord: standard output: writing failed: Resource temporarily unavailable\n"
    assert (done.returncode, done.stderr) == (NOT_WRITTEN, said)
