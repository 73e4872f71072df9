"""`ffrecord view` as a process: its URL, its end, and its errors."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

COMMAND = [sys.executable, "-m", "ffrecord", "view"]
PATIENCE = 60


def test_the_command_prints_a_url_and_ends_with_ctrl_c(archive: Path) -> None:
    with subprocess.Popen(
        [*COMMAND, str(archive)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as running:
        try:
            assert running.stdout is not None
            url = running.stdout.readline().strip()
            with urllib.request.urlopen(f"{url}api/about", timeout=PATIENCE) as answer:
                assert answer.status == 200
            running.send_signal(signal.SIGINT)
            _, said = running.communicate(timeout=PATIENCE)
        finally:
            running.kill()
    assert running.returncode == 0
    assert "Ctrl-C" in said
    assert "Traceback" not in said


def test_the_command_line_of_the_browser_has_no_token(archive: Path, tmp_path: Path) -> None:
    browser, seen = tmp_path / "browser", tmp_path / "seen"
    browser.write_text(
        f'#!/bin/sh\necho "$1" > {seen}.new\ncat "${{1#file://}}" >> {seen}.new\n'
        f"mv {seen}.new {seen}\n"
    )
    browser.chmod(0o700)
    with subprocess.Popen(
        [*COMMAND, str(archive), "--open"], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True, env={**os.environ, "BROWSER": str(browser), "TMPDIR": str(tmp_path)},
    ) as running:  # fmt: skip
        try:
            assert running.stdout is not None
            url = running.stdout.readline().strip()
            deadline = time.monotonic() + PATIENCE
            while not seen.exists():
                assert time.monotonic() < deadline, "no browser was started"
                time.sleep(0.05)
            running.send_signal(signal.SIGINT)
            running.communicate(timeout=PATIENCE)
        finally:
            running.kill()
    given, content = seen.read_text().splitlines()
    assert given.startswith("file:///")
    assert url not in given
    assert url in content
    assert not Path(given.removeprefix("file://")).exists()


def test_without_a_browser_the_command_says_so(archive: Path) -> None:
    env = {"PATH": "", "PYTHONPATH": os.environ.get("PYTHONPATH", "")}
    with subprocess.Popen(
        [*COMMAND, str(archive), "--open"], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        text=True, env=env,
    ) as running:  # fmt: skip
        try:
            assert running.stderr is not None
            said = [running.stderr.readline() for _ in range(2)]
        finally:
            running.send_signal(signal.SIGINT)
    assert "no browser was found" in said[1]


@pytest.mark.parametrize(
    ("arguments", "said", "code"),
    [
        (["missing.ffr"], "missing.ffr", 13),
        (["{archive}", "--port", "99999"], "from 0 to 65535", 2),
        (["{archive}", "--host", "198.51.100.7"], "198.51.100.7: not an address of this", 13),
    ],
)
def test_mistakes_are_one_line(archive: Path, arguments: list[str], said: str, code: int) -> None:
    words = [word.format(archive=archive) for word in arguments]
    done = subprocess.run(
        [*COMMAND, *words], capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert done.returncode == code
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
