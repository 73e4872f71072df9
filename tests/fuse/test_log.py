"""The default log of a mount: syslog, or a file of limited size without syslog."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ffrecord_fuse.serve import report
from ffrecord_fuse.serve.report import MOST_BYTES, NOWHERE, SYSLOG, Log


@pytest.fixture
def no_syslog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Hide syslog, and return the folder of the default log file."""
    monkeypatch.setattr(report, "_SYSLOG_SOCKET", str(tmp_path / "dev log"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state/ffrecord"


@pytest.mark.parametrize("kind", [socket.SOCK_DGRAM, socket.SOCK_STREAM])
def test_a_syslog_that_listens_is_used(no_syslog: Path, kind: socket.SocketKind) -> None:
    with socket.socket(socket.AF_UNIX, kind) as listening:
        listening.bind(report._SYSLOG_SOCKET)
        if kind == socket.SOCK_STREAM:
            listening.listen()
        log = Log()
        assert (log.place, log.is_our_choice) == (SYSLOG, False)
    assert not no_syslog.exists()
    # The socket of a syslog that has ended still exists.
    assert Log().place == str(no_syslog / "ffrecord-fuse.log")


def test_without_syslog_lines_go_to_a_file(no_syslog: Path) -> None:
    log = Log()
    log.line("one\ntwo")
    path = no_syslog / "ffrecord-fuse.log"
    assert (log.place, log.is_our_choice) == (str(path), True)
    assert path.read_text().endswith(f"ffrecord-fuse[{os.getpid()}] one\\ntwo\n")
    assert path.stat().st_mode & 0o007 == 0
    Log().line("three")  # the log of another mount
    assert path.read_text().count("\n") == 2


def test_a_log_that_the_user_chose_is_not_our_choice(no_syslog: Path, tmp_path: Path) -> None:
    for log in (Log(str(tmp_path / "log")), Log(foreground=True)):
        assert not log.is_our_choice
    assert not no_syslog.exists()


@pytest.mark.parametrize(
    ("state", "home", "user", "due"),
    [
        ("/state", "/home/me", 1000, "/state/ffrecord/ffrecord-fuse.log"),
        ("/state", "/root", 0, "/state/ffrecord/ffrecord-fuse.log"),
        ("", "/home/me", 1000, "/home/me/.local/state/ffrecord/ffrecord-fuse.log"),
        ("not/absolute", "/home/me", 1000, "/home/me/.local/state/ffrecord/ffrecord-fuse.log"),
        ("", "/root", 0, "/var/log/ffrecord-fuse.log"),
    ],
)
def test_the_default_file_depends_on_the_user(
    monkeypatch: pytest.MonkeyPatch, state: str, home: str, user: int, due: str
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", state)
    monkeypatch.setenv("HOME", home)
    monkeypatch.setattr("tempfile.tempdir", "/temporary")
    monkeypatch.setattr(os, "geteuid", lambda: user)
    assert list(report._our_own_paths()) == [due, f"/temporary/ffrecord-fuse-{user}.log"]


def test_without_a_writable_folder_nothing_is_logged(
    no_syslog: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "state").write_bytes(b"in the way")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert Log().place == str(tmp_path / f"ffrecord-fuse-{os.geteuid()}.log")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "state"))
    log = Log()
    assert (log.place, log.is_our_choice) == (NOWHERE, True)
    log.line("lost")


def lines(path: Path) -> Iterator[int]:
    for line in path.read_text().splitlines():
        yield int(line.split()[2])


def test_the_default_file_stays_below_its_limit_and_keeps_the_last_lines(no_syslog: Path) -> None:
    log = Log()
    text = "x" * 4000
    count = 4 * MOST_BYTES // len(text)
    for number in range(count):
        log.line(f"{number} {text}")
    new, old = no_syslog / "ffrecord-fuse.log", no_syslog / "ffrecord-fuse.log.1"
    assert sorted(os.listdir(no_syslog)) == [new.name, old.name]
    assert max(new.stat().st_size, old.stat().st_size) < MOST_BYTES + 2 * len(text)
    kept = [*lines(old), *lines(new)]
    assert kept == list(range(count - len(kept), count))


def test_processes_that_share_a_file_lose_no_line_when_it_is_renamed(
    no_syslog: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Six processes with two descriptors write a little more than the size limit."""
    each = 400
    monkeypatch.setattr(report, "MOST_BYTES", 6 * each * 100 * 2 // 3)
    children = []
    for log in (Log(), Log()):
        for _ in range(3):
            pid = os.fork()
            if not pid:
                try:
                    for number in range(each):
                        log.line(f"{number}".ljust(60, "."))
                finally:
                    os._exit(sys.exc_info()[0] is not None)
            children.append(pid)
    assert [os.waitpid(pid, 0)[1] for pid in children] == [0] * 6
    text = "".join(path.read_text() for path in no_syslog.iterdir())
    assert sorted(os.listdir(no_syslog)) == ["ffrecord-fuse.log", "ffrecord-fuse.log.1"]
    for pid in children:
        assert sum(f"ffrecord-fuse[{pid}]" in line for line in text.splitlines()) == each
