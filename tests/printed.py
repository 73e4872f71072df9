"""What a page prints, to be run exactly as printed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


def blocks(page: str, language: str) -> list[str]:
    """The fenced blocks of a page that are in a language."""
    text = (ROOT / page).read_text()
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def run_python(code: str, place: Path) -> str:
    """In an interpreter of its own, in that folder: what it prints. An error of it is one here.

    As a file: worker processes may have to import the program that starts them.
    """
    (place / "example.py").write_text(code)
    found = os.pathsep.join(filter(None, sys.path))  # as the tests' own: they may be of a worktree
    run = subprocess.run(
        [sys.executable, "example.py"], cwd=place, env={**os.environ, "PYTHONPATH": found},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert run.returncode == 0, f"{run.stderr}\n{code}"
    return run.stdout
