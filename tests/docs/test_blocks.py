"""Every fenced block of README.md and docs/ is run exactly as printed, or checked another way.

`python` and `bash` blocks are run. `console` blocks need the network, privileges or hours, so only
their commands and arguments are checked. `fstab` blocks are parsed as mount options, and `ini`
blocks by systemd. All other blocks are `text`, which must not be code.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import itertools
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest

import ffrecord.cli
from ffrecord_fuse.mounting import options
from tests.docs.pages import PAGES, ROOT, RUN, Block, blocks
from tests.docs.prepared import PREPARE, SERVE
from tests.support.patience import PATIENCE

COMMANDS = Path(sys.executable).parent
PROJECT = (ROOT / "pyproject.toml").read_text()
TEXT = ("", "text")
CHECKED = ("console", "fstab", "ini")
SECONDS = PATIENCE  # longer than any block takes: only a block that hangs fails
SYSTEM = ("apt", "docker", "modprobe", "mount", "podman", "python3", "sbatch", "source")
"""Commands of `console` blocks that other projects provide."""


def in_language(language: str) -> list[Block]:
    return [block for page in PAGES for block in blocks(page) if block.language == language]


# ---- blocks that are run -----------------------------------------------------------------------


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """Yield a folder to work in; unmount everything in it afterwards."""
    folder = tmp_path / "place"
    folder.mkdir()
    yield folder
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        mountpoint = line.split(" ")[4]
        if mountpoint.startswith(f"{folder}/"):
            subprocess.run([COMMANDS / "ffrecord", "umount", mountpoint], check=False)


@pytest.mark.parametrize(
    "page", [page for page in PAGES if any(block.language in RUN for block in blocks(page))]
)
def test_the_blocks_of_a_page_work_in_their_order(page: str, place: Path) -> None:
    if page in PREPARE:
        PREPARE[page](place)
    scripts = place.parent / "scripts"
    scripts.mkdir()
    # The code of this checkout, not an installed package.
    found = os.pathsep.join([str(ROOT), *filter(None, sys.path)])
    path = f"{COMMANDS}{os.pathsep}{os.environ['PATH']}"
    with SERVE[page](place) if page in SERVE else nullcontext(dict[str, str]()) as variables:
        run = subprocess.run(
            [sys.executable, "-m", "tests.docs.runner", page, scripts], cwd=place, timeout=SECONDS,
            env={**os.environ, "PYTHONPATH": found, "PATH": path, **variables},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
    assert run.returncode == 0, run.stderr
    if run.stdout:
        pytest.skip(f"not run: {run.stdout.strip()} (all other blocks were run)")


# ---- blocks that cannot be run -----------------------------------------------------------------


@pytest.mark.parametrize("page", PAGES)
def test_every_block_is_in_a_language_that_is_run_or_checked(page: str) -> None:
    for block in blocks(page):
        assert block.language in (*RUN, *CHECKED, *TEXT), (
            f"{block}: no test runs or checks this language"
        )


@pytest.mark.parametrize("block", in_language("") + in_language("text"), ids=str)
def test_text_blocks_contain_no_code(block: Block) -> None:
    begins = (
        r"^\s*(\$ |#!|import |from \w+ import |def |with |sudo |pip |ffrecord \w|(\./)?scripts/)"
    )
    assert not re.search(begins, block.text, re.MULTILINE)


@pytest.mark.parametrize("block", in_language("console"), ids=str)
def test_the_commands_of_console_blocks_exist_and_accept_their_arguments(
    block: Block, monkeypatch: pytest.MonkeyPatch
) -> None:
    for line in block.text.splitlines():
        words = shlex.split(line, comments=True)
        for joined, part in itertools.groupby(words, lambda word: word == "&&"):
            if joined:
                continue
            command, *arguments = part
            if command == "sudo":
                command, *arguments = arguments
            check_command(command, arguments, monkeypatch)


def check_command(command: str, arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    script = command.removeprefix("./")
    if script == "scripts/bench":
        check_bench(arguments)
    elif script.startswith("scripts/"):
        assert os.access(ROOT / script, os.X_OK), f"{script} is not an executable file"
    elif command == "ffrecord":
        check_ffrecord(arguments, monkeypatch)
    elif command == "pip":
        check_pip(arguments)
    elif command in ("git", "cd"):  # their argument `ffrecord` is the clone, not the command
        assert arguments[0] in ("clone", "ffrecord")
    elif command == "python":
        assert arguments[0] == "-m"
        assert importlib.util.find_spec(arguments[1]) is not None
    elif command == "pytest":
        tests = [argument for argument in arguments if not argument.startswith("-")]
        assert tests
        assert all((ROOT / test.split("::")[0]).exists() for test in tests)
    else:
        assert command in SYSTEM
        if "ffrecord" in arguments:  # docker run … ffrecord mount …
            check_ffrecord(arguments[arguments.index("ffrecord") + 1 :], monkeypatch)


def check_ffrecord(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Parse the command line without running the command."""

    def check(given: argparse.Namespace) -> int:
        options.parse(getattr(given, "options", []))
        return 0

    monkeypatch.setattr(f"ffrecord.cli.{arguments[0]}.run", check)
    assert ffrecord.cli.main(arguments) == 0


def check_bench(arguments: list[str]) -> None:
    importlib.import_module("scripts.benchmarks.__main__").make_parser().parse_args(arguments)


def check_pip(arguments: list[str]) -> None:
    assert arguments[0] == "install"
    for package in arguments[1:]:
        named = re.fullmatch(r"(?:\.|ffrecord)(?:\[([\w,]+)\])?", package)
        assert named, f"{package} is not this package"
        for extra in filter(None, (named[1] or "").split(",")):
            assert re.search(rf"^{extra} = \[", PROJECT, re.MULTILINE), (
                f"{extra} is not an extra of this package"
            )


@pytest.mark.parametrize("block", in_language("fstab"), ids=str)
def test_a_line_of_fstab_names_our_command_and_options_that_it_accepts(block: Block) -> None:
    for line in block.text.splitlines():
        source, mountpoint, kind, words, dump, order = line.split()
        assert source.endswith(".ffr")
        assert mountpoint.startswith("/")
        assert re.search(rf"^{kind.removeprefix('fuse.')} = ", PROJECT, re.MULTILINE)
        options.parse(words)
        assert (dump, order) == ("0", "0")


@pytest.mark.parametrize("block", in_language("ini"), ids=str)
def test_systemd_accepts_a_unit_and_its_commands_are_ours(
    block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands = re.findall(r"^Exec\w+=(\S+) (.*)$", block.text, re.MULTILINE)
    assert len(commands) >= 2
    for path, arguments in commands:
        assert path.endswith("/bin/ffrecord")
        check_ffrecord(shlex.split(arguments), monkeypatch)
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd is not installed, so the unit is not verified")
    unit = tmp_path / "photos.service"
    unit.write_text(block.text.replace(commands[0][0], str(COMMANDS / "ffrecord")))
    verify = ["systemd-analyze", "verify", "--man=no", str(unit)]
    run = subprocess.run(verify, capture_output=True, text=True, check=False)
    about = [line for line in run.stderr.splitlines() if unit.name in line]
    assert not about  # other lines are about other units of this machine
