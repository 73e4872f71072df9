"""The servers of scripts/demo.py: what they send, and that they end with it."""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from tests.cli.test_help import programs
from tests.docs.pages import ROOT
from tests.support import archives, trees
from tests.support.patience import PATIENCE

DEMO = (sys.executable, ROOT / "scripts" / "demo.py")


@pytest.fixture
def place(tmp_path: Path) -> Path:
    files = {f"docs/{number}.md": trees.content(1000 * number) for number in range(20)}
    archives.pack(trees.plain_tree(tmp_path / "photos", files), tmp_path / "photos.ffr")
    return tmp_path


def environment(place: Path) -> dict[str, str]:
    return {**programs(place / "bin"), "PYTHONPATH": str(ROOT)}


def test_the_demo_takes_no_arguments() -> None:
    done = subprocess.run(
        [ROOT / "scripts/demo", "-x"], capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "demo: takes no arguments, only --help\n"


def test_files_are_read_from_the_server_with_few_requests(place: Path) -> None:
    done = subprocess.run(
        [*DEMO, "remote", "photos.ffr", "photos"], cwd=place, env=environment(place),
        capture_output=True, text=True, timeout=PATIENCE, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    requests = re.search(r"^(\d+) requests for ([\d,]+) of ", done.stdout, re.MULTILINE)
    assert requests is not None, done.stdout
    assert int(requests[1]) < 20
    assert int(requests[2].replace(",", "")) > 0
    assert "read of 20 names, each compared" in done.stdout


def test_a_part_that_differs_from_the_source_is_an_error(place: Path) -> None:
    (place / "photos/docs/7.md").write_bytes(b"changed")
    done = subprocess.run(
        [*DEMO, "remote", "photos.ffr", "photos"], cwd=place, env=environment(place),
        capture_output=True, text=True, timeout=PATIENCE, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert "docs/7.md differs" in done.stderr


def test_ctrl_c_ends_the_page_and_the_browser(place: Path) -> None:
    variables = environment(place)
    browser = place / "bin" / "chromium"
    browser.write_text("#!/bin/sh\necho $$ >started\nexec sleep 1000\n")
    browser.chmod(0o755)
    os.mkfifo(place / "started")
    started = os.open(place / "started", os.O_RDONLY | os.O_NONBLOCK)
    with subprocess.Popen(
        [*DEMO, "view", "photos.ffr", "picture.png"], cwd=place, env=variables,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    ) as demo:  # fmt: skip
        assert demo.stdout is not None
        assert demo.stdout.readline() == "$ ffrecord view photos.ffr\n"
        url = demo.stdout.readline().strip()
        assert select.select([started], [], [], PATIENCE)[0]
        number = int(os.read(started, 100))
        os.close(started)
        ended = os.pidfd_open(number)
        os.killpg(demo.pid, signal.SIGINT)
        _, errors = demo.communicate(timeout=PATIENCE)
    assert (demo.returncode, errors) == (130, "")
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(url, timeout=PATIENCE)
    assert select.select([ended], [], [], PATIENCE)[0]  # the kernel may be a moment behind the demo
    os.close(ended)
