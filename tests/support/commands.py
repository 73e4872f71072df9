"""The folder that tests run commands on, and functions that run them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from tests.support import trees
from tests.support.trees import BLOCK

FILES = {
    "a.txt": b"first\n",
    "d/b": b"second\n",
    "d/e/c": b"third\n",
    "d/large": trees.content(3 * BLOCK + 7),
    "-rf": b"a name like an option\n",
    "z": b"",
    "empty/": b"",
}
TOP = ["-rf", "a.txt", "d", "empty", "link", "z"]
USAGE, SYSTEM, NO_FOLDER, INTERRUPTED = 2, 13, 23, 130


@dataclass(frozen=True)
class Result:
    code: int
    out: bytes
    err: bytes

    @property
    def lines(self) -> list[str]:
        return self.out.decode().splitlines()

    @property
    def error(self) -> str:
        """The only line on standard error; fails if there is more than one."""
        assert self.err.count(b"\n") == 1, self.err.decode()
        return self.err.decode().rstrip("\n")


Command: TypeAlias = Callable[..., Result]


def in_a_process(*arguments: str | Path, **options: Any) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "ffrecord", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, timeout=600, check=False, **options)


def in_a_shell(line: str, *arguments: str | Path) -> subprocess.CompletedProcess[bytes]:
    """Run a line of bash, where `f` is the command and "$1" … are the arguments."""
    script = f'f() {{ "$PYTHON" -m ffrecord "$@"; }}; {line}'
    return subprocess.run(
        ["bash", "-o", "pipefail", "-c", script, "bash", *map(str, arguments)],
        capture_output=True, timeout=600, check=False, env={**os.environ, "PYTHON": sys.executable},
    )  # fmt: skip
