"""scripts/setup announces slow steps, and prints nothing when there is nothing to do.

The tests replace pip and apt-get, so nothing is installed.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import ROOT
from tests.project.test_layers import imports_of

PIP = """#!/bin/sh
case "$*" in
-c*) exit 0 ;;
*install*) echo "$*" >>asked ;;
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

# Replaces Python: it claims to be new enough, and `-m venv .venv` makes a venv like the fixture's.
MAKING_A_VENV = """#!/bin/sh
[ "$1" = -m ] || exit 0
mkdir -p .venv/bin
cp python-of-the-venv .venv/bin/python
echo "#!$PWD/.venv/bin/python" >.venv/bin/pip
"""


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    tmp_path = tmp_path / "clone"
    (tmp_path / "scripts").mkdir(parents=True)
    for name in (
        "pyproject.toml", "scripts/setup", "scripts/test", "scripts/requirements-torch.txt",
    ):  # fmt: skip
        shutil.copy(ROOT / name, tmp_path / name)
    for name, text in (
        (".venv/bin/python", PIP),
        (".venv/bin/pip", f"#!{tmp_path}/.venv/bin/python\n"),
        ("python-of-the-venv", PIP),
        (".venv/bin/ruff", "#!/bin/sh\n"),
        (".venv/bin/mypy", "#!/bin/sh\n"),
        ("bin/apt-get", "#!/bin/sh\nexit 1\n"),
        ("bin/making-a-venv", MAKING_A_VENV),
    ):
        program = tmp_path / name
        program.parent.mkdir(parents=True, exist_ok=True)
        program.write_text(text)
        program.chmod(0o755)
    return tmp_path


def said(clone: Path, *part: str, code: int = 0, **more: str) -> list[str]:
    """Run scripts/setup; return its lines, except those about missing system packages."""
    environment = {**os.environ, **more, "PATH": f"{clone}/bin:{os.environ['PATH']}"}
    done = subprocess.run(
        [clone / "scripts/setup", *part],
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (code, "")
    return [line for line in done.stderr.splitlines() if "torch" in line or "numpy" in line]


def test_slow_steps_are_one_line_each_and_a_second_run_is_silent(clone: Path) -> None:
    first, *more = said(clone)
    assert first.startswith("setup: installing numpy, torch and others (dev) into .venv")
    assert more == ["setup: downloading numpy, 16.3 MB", "setup: downloading torch, 174.7 MB"]
    assert said(clone) == []


def installed(clone: Path, *part: str) -> list[str]:
    """Run scripts/setup; return the extras that it asks pip to install."""
    asked = clone / "asked"
    asked.unlink(missing_ok=True)
    said(clone, *part)
    return re.findall(r"-e \.\[(.*?)\]", asked.read_text()) if asked.exists() else []


def test_each_part_installs_only_its_extras(
    clone: Path,
) -> None:
    assert installed(clone, "demo") == ["demo"]
    assert installed(clone, "demo") == []
    assert installed(clone) == ["dev"]
    assert installed(clone, "long") == ["dev,frameworks"]
    assert installed(clone, "bench") == ["dev,bench"]
    for part in ((), ("demo",), ("long",), ("bench",)):
        assert installed(clone, *part) == []


@pytest.mark.parametrize(
    ("arguments", "extras"),
    [((), "dev"), (("-q", "tests"), "dev"), (("-q", "--long"), "dev,frameworks")],
)
def test_scripts_test_installs_the_extras_of_its_tests(
    clone: Path, arguments: tuple[str, ...], extras: str
) -> None:
    environment = {**os.environ, "PATH": f"{clone}/bin:{os.environ['PATH']}"}
    subprocess.run(
        [clone / "scripts/test", *arguments], env=environment, capture_output=True, check=True
    )
    assert f"-e .[{extras}] " in (clone / "asked").read_text()


@pytest.mark.parametrize(
    ("first", "then"), [("dev", "demo"), ("bench", "demo"), ("bench", "dev"), ("long", "dev")]
)
def test_an_installed_part_is_not_installed_again(clone: Path, first: str, then: str) -> None:
    assert installed(clone, first) != []
    assert installed(clone, then) == []
    (clone / "pyproject.toml").write_text("changed\n")
    assert installed(clone, then) == [then]


def test_the_demo_extra_has_the_imports_of_its_programs() -> None:
    imported = set()
    for name in ("scripts/demo.py", "scripts/train.py"):
        imported |= {each.partition(".")[0] for each in imports_of((ROOT / name).read_text())}
    project = ROOT.joinpath("pyproject.toml").read_text()
    lists = dict(re.findall(r"^(\w+) = \[(.*)\]", project, re.MULTILINE))
    assert re.findall(r'"(.*?)"', lists["demo"]) == ["ffrecord[remote,view]"]
    # The programs read from a URL and show a page, which import the packages of the two extras.
    installed = {
        package
        for extra in ("dependencies", "remote", "view")
        for package in re.findall(r'"(\w+)', lists[extra])
    }
    installed |= set(
        re.findall(r"^(\w+)==", (ROOT / "scripts/requirements-torch.txt").read_text(), re.M)
    )
    wanted = imported - sys.stdlib_module_names - {"ffrecord"}
    assert {"pillow" if name == "PIL" else name for name in wanted} <= installed


def test_a_moved_venv_is_created_again(clone: Path) -> None:
    """The programs of a venv contain the path of its Python."""
    said(clone)
    moved = clone.rename(clone.with_name("moved"))
    assert said(moved, PYTHON=f"{moved}/bin/making-a-venv") != []
    assert said(moved) == []


SAYS_17 = "echo 'openjdk version \"17.0.15\" 2025-04-15' >&2"
SAYS_11 = "echo 'openjdk version \"11.0.28\" 2025-07-15' >&2"


@pytest.mark.parametrize(
    ("java", "part", "asked"),
    [
        ("exit 127", "dev", True),
        (SAYS_11, "dev", True),
        (SAYS_17, "dev", False),
        ("exit 127", "bench", True),
        ("exit 127", "demo", False),
        ("exit 127", "docs", False),
    ],
)
def test_java_is_installed_for_the_tests_if_it_is_missing_or_too_old(
    clone: Path, java: str, part: str, asked: bool
) -> None:
    replace_programs(clone, {
        "java": java,
        "id": "echo 1000",
        "sudo": '[ "$1" = -n ] && shift; exec env -i PATH="$PATH" "$@"',
        "apt-get": 'echo "$DEBIAN_FRONTEND $*" >>apt; case "$*" in *openjdk*) exit 1 ;; esac',
    })  # fmt: skip
    said(clone, part, JAVA_HOME="")
    log = clone / "apt"
    lines = [line.split() for line in log.read_text().splitlines()] if log.exists() else []
    assert {line[0] for line in lines if "install" in line} <= {"noninteractive"}
    tried = [line[-1] for line in lines if "jre" in line[-1]]
    # The second is for releases of Debian that have a newer Java only.
    assert tried == (["openjdk-17-jre-headless", "default-jre-headless"] if asked else [])


def replace_programs(clone: Path, lines: dict[str, str]) -> None:
    for name, line in lines.items():
        (clone / "bin" / name).write_text(f"#!/bin/sh\n{line}\n")
        (clone / "bin" / name).chmod(0o755)


def test_a_user_without_root_is_told_once_what_is_missing(clone: Path) -> None:
    replace_programs(clone, {
        "java": "exit 127", "id": "echo 1000", "sudo": "exit 1", "apt-get": "echo >>apt",
    })  # fmt: skip
    done = subprocess.run(
        [clone / "scripts/setup"], env={**os.environ, "PATH": f"{clone}/bin:{os.environ['PATH']}"},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    (line,) = (line for line in done.stderr.splitlines() if "openjdk" in line)
    assert line.startswith("setup: continuing without these packages")
    assert not (clone / "apt").exists()


def test_an_unknown_part_is_an_error(clone: Path) -> None:
    done = subprocess.run(
        [clone / "scripts/setup", "dmeo"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "setup: unknown part dmeo; choose dev, demo, docs, long or bench\n"
    assert not (clone / "asked").exists()


def test_a_failed_pip_is_shown_and_retried(clone: Path) -> None:
    assert "Collecting numpy" in said(clone, code=1, PIP_EXIT="1")
    assert said(clone) != []
