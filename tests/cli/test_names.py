"""Commands accept the names that commands print, with any bytes in them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ffrecord import cli
from ffrecord.cli.quoting import quoted
from tests.support import archives, trees

ODD = [
    "plain.jpg", "größe", "with space", "quo'te", 'both " and \'', "$(touch ran)", "`touch ran`",
    "new\nline", "\x1b[31mred", "odd\udcff", "back\\slash", "\u202egnp", "=ls", "~", "a=b", "!x",
    "\t", "*", "-rf",
]  # fmt: skip
Run = Callable[..., bytes]


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    files = {name: f"content of {number}".encode() for number, name in enumerate(ODD)}
    archives.pack(trees.plain_tree(tmp_path / "tree", files), tmp_path / "a.ffr")
    return tmp_path / "a.ffr"


@pytest.fixture
def run(capsysbinary: pytest.CaptureFixture[bytes]) -> Run:
    def run(*words: str | Path) -> bytes:
        assert cli.main(list(map(str, words))) == 0
        return capsysbinary.readouterr().out

    return run


def read_by_bash(words: str, folder: Path) -> list[str]:
    """Return the words that bash reads from a command line."""
    script = b"printf '%s\\0' " + os.fsencode(words)
    done = subprocess.run([b"bash", b"-c", script], cwd=folder, capture_output=True, check=True)
    assert done.stderr == b""
    return os.fsdecode(done.stdout).split("\0")[:-1]


def test_on_a_terminal_a_name_is_quoted_for_the_shell(
    run: Run, archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    lines = run("ls", archive).decode().splitlines()
    assert len(lines) == len(ODD)
    assert {"plain.jpg", "größe", "'with space'", '"quo\'te"', "$'odd\\377'"} < set(lines)
    for line in lines:
        assert line.isprintable()
        (name,) = read_by_bash(line, tmp_path)
        assert run("cat", archive, "--", name) == (tmp_path / "tree" / name).read_bytes()
    assert not (tmp_path / "ran").exists()
    assert run("ls", "--zero", archive).split(b"\0")[:-1] == sorted(map(os.fsencode, ODD))


@pytest.mark.parametrize("encoding", ["ascii", "utf-8"])
def test_in_a_pipe_a_name_is_printed_as_bytes(encoding: str, run: Run, archive: Path) -> None:
    assert run("ls", archive) == b"".join(name + b"\n" for name in sorted(map(os.fsencode, ODD)))
    done = subprocess.run(
        [sys.executable, "-m", "ffrecord", "ls", "-R", "--zero", archive], capture_output=True,
        env={**os.environ, "PYTHONIOENCODING": encoding}, check=True,
    )  # fmt: skip
    assert done.stdout.split(b"\0")[1:-1] == sorted(map(os.fsencode, ODD))


def test_a_listing_through_xargs_names_every_file(archive: Path, tmp_path: Path) -> None:
    script = '"$1" -m ffrecord ls --zero "$2" | xargs -0 "$1" -m ffrecord cat "$2" --'
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", script, "bash", sys.executable, archive],
        capture_output=True, check=True,
    )  # fmt: skip
    names = sorted(ODD, key=os.fsencode)
    assert done.stdout == b"".join((tmp_path / "tree" / name).read_bytes() for name in names)


@given(st.lists(st.binary(min_size=1).filter(lambda name: b"\0" not in name), min_size=50))
def test_bash_reads_back_any_quoted_name(names: list[bytes]) -> None:
    texts = [os.fsdecode(name) for name in names]
    shown = [quoted(text) for text in texts]
    assert all(each.isprintable() for each in shown)
    assert read_by_bash(" ".join(shown), Path("/")) == texts


def test_bytes_that_a_terminal_cannot_show_are_octal(monkeypatch: pytest.MonkeyPatch) -> None:
    with open(os.devnull, "w", encoding="ascii") as plain:
        monkeypatch.setattr("sys.stdout", plain)
        shown = quoted("ü'\u4e2d")
    assert shown == "$'\\303\\274\\'\\344\\270\\255'"
