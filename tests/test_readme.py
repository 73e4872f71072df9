"""What README.md and the guides in docs/ show is run exactly as printed."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.printed import ROOT, blocks, run_python

README = (ROOT / "README.md").read_text()
GUIDES = ["docs/converting.md", "docs/torch.md"]  # tests/dataset has docs/datasets.md
COMMANDS = Path(sys.executable).parent


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """A folder to work in, in which nothing stays mounted."""
    yield tmp_path
    subprocess.run([COMMANDS / "ffrecord", "umount", tmp_path / "mounted"], check=False)


def test_the_python_blocks_and_then_the_commands_work(place: Path) -> None:
    """In the order printed: the commands look at the file that the Python block wrote."""
    can_mount = Path("/dev/fuse").exists()
    for code in blocks("README.md", "python"):
        if "ffrecord_fuse" in code and not can_mount:
            continue
        run_python(code, place)
    lines = [line for block in blocks("README.md", "bash") for line in block.splitlines()]
    ours = [line for line in lines if line.startswith(("ffrecord ", "mkdir "))]
    assert len(ours) >= 3
    for line in ours:
        command, *arguments = shlex.split(line, comments=True)
        if arguments[0] in ("mount", "umount") and not can_mount:
            continue
        if command == "ffrecord":
            command = str(COMMANDS / command)
        result = subprocess.run([command, *arguments], cwd=place, capture_output=True, check=False)
        assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("guide", GUIDES)
def test_the_python_blocks_of_a_guide_work_in_their_order(guide: str, tmp_path: Path) -> None:
    found = blocks(guide, "python")
    assert found
    for code in found:
        run_python(code, tmp_path)


@pytest.mark.parametrize("script", re.findall(r"^\./(scripts/\w+)", README, re.MULTILINE))
def test_the_scripts_it_names_are_there_and_executable(script: str) -> None:
    path = ROOT / script
    assert path.stat().st_mode & 0o111
