"""Run scripts as an ordinary user, also when root runs the tests."""

from __future__ import annotations

import contextlib
import os
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import handmade

NOBODY = 65534
_CANNOT = 77
# Imports come first: afterwards, the ordinary user may not be allowed to read the packages.
_PREAMBLE = f"""
import contextlib, errno, json, os, stat, sys, traceback, warnings
import ffrecord, ffrecord.cli, ffrecord.archive.extract
from ffrecord import PackedFolder, pack_folder
if os.geteuid() == 0:
    try:
        os.setgroups([])
        os.setgid({NOBODY})
        os.setuid({NOBODY})
    except OSError:
        sys.exit({_CANNOT})
"""


@contextlib.contextmanager
def reachable(folder: Path) -> Iterator[Path]:
    """Yield a folder that an ordinary user owns and can reach, in spite of pytest's private one."""
    changed = []
    if os.geteuid() == 0:
        os.chown(folder, NOBODY, NOBODY)
        for above in folder.parents:
            mode = stat.S_IMODE(above.stat().st_mode)
            if mode & 0o001:
                break
            above.chmod(mode | 0o011)
            changed.append((above, mode))
    try:
        yield folder
    finally:
        for above, mode in changed:
            above.chmod(mode)


def run(script: str, *arguments: str | Path, imports: str = "") -> str:
    """Run a script as an ordinary user, and return its output. `imports` runs first, as root."""
    process = handmade.python(imports + _PREAMBLE + script, *map(str, arguments))
    try:
        out, err = process.communicate(timeout=600)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise
    if process.returncode == _CANNOT:
        pytest.skip("this process cannot become another user")
    assert process.returncode == 0, err
    return out
