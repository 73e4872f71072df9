"""Output to a terminal or a log: each message is one line, with any name in it.

`tests/cli/test_folders_listing.py` tests `ls`, `info`, `cat`, `extract` and `verify` with odd names
in an archive. This module tests the other commands, names on the command line, and a real terminal.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest

import ffrecord_fuse.cli
from ffrecord import cli
from ffrecord_fuse.serve.report import NAME, Log
from tests.fuse.mounted.mounting import environment
from tests.support import archives, handmade, trees

NASTY = (
    "\x1b[31mred",
    "\x1b]0;title\x07",
    "new\nffrecord: all is well",
    "back\rffrecord",
    "\x9b0m",
    "\udcff\udc9b",
    "\u202egnp",
    "\u2028line",
    "\x7f\x08\x08",
)
CONTROL = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


@pytest.fixture(
    params=["".join(NASTY), *(pytest.param(name, marks=pytest.mark.long) for name in NASTY)],
    ids=ascii,
)
def nasty(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def says(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, list[str]]:
    """Return the exit code and the output, split into lines at \\n only."""
    words = [str(each) for each in arguments]
    try:
        code = ffrecord_fuse.cli.main(words[1:]) if words[0] == "fuse" else cli.main(words)
    except SystemExit as end:
        code = int(end.code or 0)
    out, err = capsys.readouterr()
    assert not CONTROL.search(out + err), words
    return code, (out + err).split("\n")[:-1]


def test_names_on_the_command_line_stay_on_one_line(
    nasty: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    there = handmade.write_records(tmp_path / f"{nasty}.ffr", [b"one", b"two"])
    missing, new = tmp_path / f"missing {nasty}", tmp_path / f"new {nasty}"
    trees.plain_tree(tmp_path / f"tree {nasty}", {nasty: b"x"})
    os.mkfifo(tmp_path / f"tree {nasty}" / f"fifo {nasty}")
    (tmp_path / "mnt").mkdir()
    lines = [
        ["info", missing], ["verify", there, missing], ["cat", there, nasty], ["ls", there],
        ["salvage", there, f"{new}.ffr"], ["salvage", there, there], ["salvage", missing, new],
        ["convert", there, f"{new}.tfrecord"], ["convert", missing, new], ["convert", there, new],
        ["convert", there, f"{new}.bag", "--field", nasty], ["convert", there, there],
        ["pack", tmp_path / f"tree {nasty}", f"{new}.pack"], ["pack", missing, new],
        ["pack", tmp_path / f"tree {nasty}", f"{new}.shards", "--shard-size", "1kB"],
        ["mount", missing, tmp_path / "mnt"], ["mount", there, tmp_path / "mnt"],
        ["mount", there, missing], ["mount", there, tmp_path / "mnt", "-o", nasty],
        ["mount", there, tmp_path / "mnt", "-o", f"uid={nasty}"],
        ["umount", missing], ["info", there, nasty], ["mount", there, there, nasty],
        ["fuse", missing, tmp_path / "mnt"], ["fuse", there, tmp_path / "mnt", nasty],
    ]  # fmt: skip
    for line in lines:
        code, said = says(capsys, *line)
        # `verify` gets two files; `pack` also warns about the fifo.
        due = 2 if line[0] in ("verify", "pack") else 1
        assert len(said) <= due, line
        assert code in (0, 1, 2, 3, 13, 14, 18, 36), line


def test_a_warning_about_a_mounted_file_gives_one_line(
    nasty: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file without a header checksum gives a warning."""
    old = handmade.write_records(tmp_path / f"{nasty}.ffr", [b"one"])
    data = bytearray(old.read_bytes())
    data[:4] = bytes(4)
    old.write_bytes(data)
    (tmp_path / "mnt").mkdir()
    code, said = says(capsys, "fuse", old, tmp_path / "mnt")
    assert (code, len(said)) == (14, 2)
    assert said[0].startswith("ffrecord-fuse: warning: ")


def test_no_name_forges_a_line_of_the_log(nasty: str, tmp_path: Path) -> None:
    log = Log(str(tmp_path / "log"))
    forged = f"2026-01-01T00:00:00+0000 {NAME}[1] mounted /etc"
    for text in (nasty, f"{nasty}\n{forged}", f"{nasty}\r\n{forged}", f"\x85{forged}"):
        log.line(text)
    # str.splitlines splits at every kind of line end.
    lines = (tmp_path / "log").read_bytes().decode().splitlines()
    assert len(lines) == 4
    for line in lines:
        assert re.match(rf"\d{{4}}-\d\d-\d\dT[\d:]+[+-]\d{{4}} {NAME}\[{os.getpid()}\] ", line)
        assert not CONTROL.search(line)


def test_no_control_character_reaches_a_terminal_beside_progress_bars(
    tmp_path: Path,
) -> None:
    tree = trees.plain_tree(tmp_path / "tree", {f"d/{name}": b"x" * 50 for name in NASTY})
    archives.pack(tree, tmp_path / "a.ffr")
    for name in NASTY:
        archives.damage(tmp_path / "a.ffr", f"d/{name}")
    lines = ["ls -lR a.ffr", "info a.ffr", "verify a.ffr", "extract a.ffr -C out",
             "convert tree b.tar", "pack tree b.ffr", "salvage a.ffr c.ffr"]  # fmt: skip
    said = on_a_terminal(tmp_path, lines)
    # A bar returns to the start of its line with \r; lines end with \r\n.
    assert not CONTROL.search(said.replace("\r", ""))
    assert said.count("\\x1b[31mred") >= 2  # in messages
    assert said.count("$'\\E[31mred'") == 1  # in the listing, quoted for a shell
    assert "$'d/\\E[31mred'" in said  # among the largest files
    assert re.search(r"\r[^\n]", said)  # bars were drawn


def on_a_terminal(place: Path, lines: list[str]) -> str:
    script = "import sys, ffrecord.cli\nfor line in sys.argv[1:]: ffrecord.cli.main(line.split())"
    ours, theirs = pty.openpty()
    size = struct.pack("4H", 24, 80, 0, 0)  # without a size, no bar is drawn
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, size)
    with subprocess.Popen(
        [sys.executable, "-c", script, *lines], cwd=place,
        env={**environment(), "NO_COLOR": "1"},  # our own colours are control characters
        stdin=theirs, stdout=theirs, stderr=theirs,
    ) as process:  # fmt: skip
        os.close(theirs)
        said = b""
        with contextlib.suppress(OSError):  # a closed terminal raises OSError
            while piece := os.read(ours, 1 << 16):
                said += piece
        process.wait(600)
    os.close(ours)
    return said.decode(errors="surrogateescape")
