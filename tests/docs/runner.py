"""`python -m tests.docs.runner PAGE SCRIPTS`: run the blocks of a page, in order, in this folder.

All Python blocks of a page share one interpreter, so that torch is loaded once. Each block is a
separate program, run from a file in SCRIPTS, because worker processes may import it. The first
error ends the run. Blocks that cannot run on this machine are listed on standard output.
"""

from __future__ import annotations

import ast
import contextlib
import importlib.util
import io
import os
import re
import runpy
import shutil
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

from tests.docs.pages import RUN, Block, blocks


def main(page: str, scripts: str) -> int:
    for block in blocks(page):
        if block.language not in RUN:
            continue
        missing = missing_feature(block)
        if missing is not None:
            print(f"{block}: {missing}")
            continue
        try:
            _RUNNERS[block.language](block, Path(scripts))
        except BaseException:  # a block that ends early fails, even with sys.exit
            traceback.print_exc()
            print(f"\n{block} failed:\n{block.text}", file=sys.stderr)
            return 1
    return 0


# ---- features that a machine may lack ----------------------------------------------------------


def missing_feature(block: Block) -> str | None:
    for pattern, is_there, otherwise in _NEEDS:
        if re.search(pattern, block.text) and not is_there():
            return otherwise
    for name in _imported(block) if block.language == "python" else ():
        if importlib.util.find_spec(name) is None:
            return f"{name} is not installed"
    return None


def _imported(block: Block) -> set[str]:
    """Return the packages that a program imports."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(block.text)):
        if isinstance(node, ast.Import):
            found |= {each.name.partition(".")[0] for each in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add((node.module or "").partition(".")[0])
    return found | ({"torch"} if "ffrecord.torch" in block.text else set())


def _can_mount() -> bool:
    return os.path.exists("/dev/fuse")


def _has_user_namespaces() -> bool:
    tried = ["unshare", "-Urm", "test", "-w", "/dev/fuse"]
    return subprocess.run(tried, check=False, capture_output=True).returncode == 0


def _can_use_mount8() -> bool:
    return os.geteuid() == 0 and shutil.which("mount.fuse3") is not None and _can_mount()


def _can_overlay() -> bool:
    from tests.support import overlays  # needed by one block

    return overlays.why_not(Path.cwd()) is None


def _has_java() -> bool:
    from tests.support import spark  # it imports pyspark

    return spark.java_is_there()


_NEEDS: tuple[tuple[str, Callable[[], bool], str], ...] = (
    (r"ffrecord mount|ffrecord_fuse", _can_mount, "/dev/fuse is missing"),
    (r"--overlay\b", _can_overlay, "no overlay can keep its changes here"),
    (r"\bmount\.fuse3\b", _can_use_mount8, "needs root and mount.fuse3"),
    (r"\bpyspark\b", _has_java, "Java is not installed"),
    (r"\bunshare\b", _has_user_namespaces, "needs user namespaces with /dev/fuse"),
)


# ---- running -----------------------------------------------------------------------------------


def _run_python(block: Block, scripts: Path) -> None:
    path = scripts / f"line_{block.line}.py"
    path.write_text(block.text)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        runpy.run_path(str(path), run_name="__main__")
    for said in promised(block.text):
        assert said in printed.getvalue(), f"printed {printed.getvalue()!r} instead of {said!r}"


def promised(code: str) -> list[str]:
    """Return the outputs that comments after print promise: `print(x)  # {'a': 1, ...}`."""
    comments = re.findall(r"^\s*print\(.*\)  # ([\[{(\d'].*)$", code, re.MULTILINE)
    return [comment.split("...")[0] for comment in comments]


def _run_bash(block: Block, scripts: Path) -> None:
    command = ["bash", "-euo", "pipefail", "-c", block.text]
    run = subprocess.run(command, check=False, capture_output=True, text=True, errors="replace")
    assert run.returncode == 0, f"exit code {run.returncode}: {run.stderr}"


_RUNNERS: dict[str, Callable[[Block, Path], None]] = {"python": _run_python, "bash": _run_bash}

if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))
