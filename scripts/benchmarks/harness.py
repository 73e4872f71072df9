"""Fair measurements: fresh processes, caches in a known state, interleaved contestants.

Every measurement runs in its own process. No contestant inherits another's heap, page tables or
threads, and a crash costs only one measurement.
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
    """Return the default folder of the data sets, which are kept between runs."""
    return Path(os.environ.get("FFRECORD_BENCH_DIR") or ROOT / "bench-data")


class MeasurementError(Exception):
    """Raised when a measurement ends without a result; the message is one line."""


class ChildError(MeasurementError):
    """Raised when a fresh process ends without a result; the message is its last line of stderr."""


def call_fresh(function: Callable[..., Any], timeout: float, **arguments: Any) -> Any:
    """Call a module-level function of this package in a new interpreter.

    Arguments and result are passed as JSON. Unlike multiprocessing, a plain command line gives the
    child neither open files nor imported modules of the parent.
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
    """Write dirty pages back: drop_caches skips them, and they disturb the disk."""
    os.sync()


def drop_caches() -> None:
    """Empty the page cache, and the kernel's caches of names and inodes."""
    sync()
    DROP_CACHES.write_text("3")


def can_drop_caches() -> bool:
    """Return True if caches can be dropped. Opening the file shows this without dropping them."""
    try:
        os.close(os.open(DROP_CACHES, os.O_WRONLY))
    except OSError:
        return False
    return True


def read_through(folder: Path) -> None:
    """Read every file below a folder, to bring it into the page cache."""
    buffer = bytearray(1 << 20)
    for parent, _, names in os.walk(folder):
        for name in names:
            with open(os.path.join(parent, name), "rb", buffering=0) as file:
                while file.readinto(buffer):
                    pass


def rotated(items: Sequence[T], by: int) -> list[T]:
    """Return the items in another order for each repeat, so that no pair always stays in sequence.

    Every other repeat is reversed, because rotation alone keeps each item behind the same one.
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
