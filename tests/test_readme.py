"""What README.md shows is run exactly as printed."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

README = (Path(__file__).parent.parent / "README.md").read_text()
COMMANDS = Path(sys.executable).parent


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def test_the_python_blocks_and_then_the_commands_work(tmp_path: Path) -> None:
    """In the order printed: the commands look at the file that the Python block wrote."""
    for code in blocks("python"):
        run = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=False)
        assert run.returncode == 0
    lines = [line for block in blocks("bash") for line in block.splitlines()]
    ours = [line for line in lines if line.startswith("ffrecord ")]
    assert len(ours) >= 3
    for line in ours:
        name, *arguments = shlex.split(line, comments=True)
        result = subprocess.run(
            [str(COMMANDS / name), *arguments], cwd=tmp_path, capture_output=True, check=False
        )
        assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("script", re.findall(r"^\./(scripts/\w+)", README, re.MULTILINE))
def test_the_scripts_it_names_are_there_and_executable(script: str) -> None:
    path = Path(__file__).parent.parent / script
    assert path.stat().st_mode & 0o111
