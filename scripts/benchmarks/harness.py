"""What makes a measurement fair: fresh processes, caches in a known state, interleaving.

Every measurement runs in a process of its own: no contestant inherits another's heap, page tables
or threads, and one that crashes costs its own sample and nothing else.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")

ROOT = Path(__file__).resolve().parents[2]
DROP_CACHES = Path("/proc/sys/vm/drop_caches")


def data_folder() -> Path:
    """Where data sets are kept between runs, unless told otherwise."""
    return Path(os.environ.get("FFRECORD_BENCH_DIR") or ROOT / "bench-data")


class MeasurementError(Exception):
    """A measurement ended without a result; the message says why in one line."""


class ChildError(MeasurementError):
    """A fresh process ended without a result; the message is its last words in one line."""


def call_fresh(function: Callable[..., Any], timeout: float, **arguments: Any) -> Any:
    """Call a module-level function of this package in a new interpreter.

    Arguments and result travel as JSON. A plain command line, unlike multiprocessing, leaves the
    child nothing of the parent: neither open files nor imported modules.
    """
    command = [sys.executable, "-m", f"{__package__}.worker", _address(function)]
    try:
        child = subprocess.run(
            command,
            input=json.dumps(arguments),
            capture_output=True,
            text=True,
            cwd=ROOT,
            timeout=timeout,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise ChildError(f"no result after {timeout:.0f} s") from None
    if child.returncode:
        raise ChildError(_last_words(child))
    return json.loads(child.stdout.splitlines()[-1])


def sync() -> None:
    """Write dirty pages back: drop_caches leaves those alone, and they disturb the disk."""
    os.sync()


def drop_caches() -> None:
    """Empty the page cache, and the kernel's directory entries and inodes."""
    sync()
    DROP_CACHES.write_text("3")


def can_drop_caches() -> bool:
    """Whether cold measurements are possible. Opening says so without dropping anything."""
    try:
        os.close(os.open(DROP_CACHES, os.O_WRONLY))
    except OSError:
        return False
    return True


def read_through(folder: Path) -> None:
    """Bring every file below a folder into the page cache by reading it, as `cat` would."""
    buffer = bytearray(1 << 20)
    for parent, _, names in os.walk(folder):
        for name in names:
            with open(os.path.join(parent, name), "rb", buffering=0) as file:
                while file.readinto(buffer):
                    pass


def rotated(items: Sequence[T], by: int) -> list[T]:
    """The items starting at another one in each repeat, so that none always follows the same.

    Every other time backwards: going round alone would leave each one behind the same neighbour.
    """
    start = by % len(items)
    turned = [*items[start:], *items[:start]]
    return turned[::-1] if by % 2 else turned


def _address(function: Callable[..., Any]) -> str:
    module = sys.modules[function.__module__]
    name = module.__spec__.name if module.__spec__ else function.__module__
    return f"{name}:{function.__name__}"


def _last_words(child: subprocess.CompletedProcess[str]) -> str:
    if child.returncode < 0:
        return f"killed by {signal.Signals(-child.returncode).name}"
    lines = child.stderr.strip().splitlines()
    # "package.module.SomeError: why" without the modules.
    return (
        re.sub(r"^(\w+\.)+(?=\w+:)", "", lines[-1]) if lines else f"exit status {child.returncode}"
    )
