"""scripts/setup tells of what takes long, and says nothing when there is nothing to do.

With a pip and an apt-get of the test's own: nothing is installed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.docs.pages import ROOT

PIP = """#!/bin/sh
case "$*" in
-c*) exit 0 ;;
*install*) ;;
esac
cat <<'EOF'
Collecting numpy
  Downloading numpy-2.1.0-cp311-cp311-linux.whl.metadata (60 kB)
Downloading numpy-2.1.0-cp311-cp311-manylinux_2_17.whl (16.3 MB)
Downloading https://wheels.example/cpu/torch-2.5.1%2Bcpu-cp311-linux.whl (174.7 MB)
Downloading small-1.0-py3-none-any.whl (1.9 MB)
Installing collected packages: numpy, torch, small
EOF
exit ${PIP_EXIT:-0}
"""


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    (tmp_path / "scripts").mkdir()
    for name in ("pyproject.toml", "scripts/setup", "scripts/requirements-torch.txt"):
        shutil.copy(ROOT / name, tmp_path / name)
    for name, text in ((".venv/bin/python", PIP), ("bin/apt-get", "#!/bin/sh\nexit 1\n")):
        program = tmp_path / name
        program.parent.mkdir(parents=True)
        program.write_text(text)
        program.chmod(0o755)
    return tmp_path


def said(clone: Path, code: int = 0, **more: str) -> list[str]:
    """Without what is said of system packages, which this machine may lack."""
    environment = {**os.environ, **more, "PATH": f"{clone}/bin:{os.environ['PATH']}"}
    done = subprocess.run(
        [clone / "scripts/setup"], env=environment, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (code, "")
    return [line for line in done.stderr.splitlines() if "torch" in line or "numpy" in line]


def test_what_takes_long_is_a_line_each_and_then_nothing(clone: Path) -> None:
    first, *more = said(clone)
    assert first.startswith("setup: installing numpy, torch and others (dev) into .venv")
    assert more == ["setup: downloading numpy, 16.3 MB", "setup: downloading torch, 174.7 MB"]
    assert said(clone) == []


def test_a_pip_that_fails_is_heard_and_asked_again(clone: Path) -> None:
    assert "Collecting numpy" in said(clone, code=1, PIP_EXIT="1")
    assert said(clone) != []
