"""Build and control the C library that makes system calls fail.

`Fault` describes one fault. The functions at the end are for a process with the library preloaded.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tests.support.patience import PATIENCE

# Same order as `enum call` in shim.c.
CALLS = (
    "open", "read", "write", "fsync", "rename", "link", "truncate", "sendfile", "copy", "ioctl",
    "allocate", "lock", "cachestat", "io_setup", "io_submit", "io_getevents", "completion", "disk",
)  # fmt: skip
WITH_COUNT = (
    "read", "write", "sendfile", "copy", "io_submit", "io_getevents", "completion"
)  # fmt: skip
# Calls that return EINVAL on file systems without a feature, such as O_DIRECT.
REFUSABLE = ("open", "read", "write", "link", "copy", "io_submit", "completion")
ERRORS = ("EIO", "EAGAIN", "EINTR", "ENOSPC")
SHORT, NONE = "short", "none"
_CODES = {SHORT: -1, NONE: -2}

STORM = 100
"""Number of interrupts, or of empty event lists, in a row. With endless faults, retries hang."""

FOR_EVER = 1 << 60
COUNT_ONLY = -1
TIME_LIMIT = PATIENCE


@dataclass(frozen=True, slots=True)
class Fault:
    """One kind of fault at call `number`, counted from 0.

    A `lasting` fault happens at all later calls too. Interrupts and empty event lists last for
    STORM calls.
    """

    call: str
    kind: str
    number: int
    lasting: bool

    @property
    def arguments(self) -> tuple[int, int, int, int]:
        """The arguments of faults_arm."""
        last = self.number
        if self.lasting:
            last += STORM - 1 if self.kind in ("EINTR", NONE) else FOR_EVER
        code = _CODES.get(self.kind) or getattr(errno, self.kind)
        return CALLS.index(self.call), code, self.number, last

    def __str__(self) -> str:
        return f"{self.kind} from {self.call} {self.number}{' on' if self.lasting else ''}"


def kinds(call: str) -> Iterator[str]:
    """Yield all kinds of faults for a call. `disk` is any kind of read, and fails only with EIO."""
    if call == "disk":
        yield "EIO"
        return
    yield from ERRORS
    if call in REFUSABLE:
        yield "EINVAL"
    if call == "open":
        yield "EMFILE"
    if call in WITH_COUNT:
        yield SHORT
    if call in ("io_submit", "io_getevents"):
        yield NONE


def why_not() -> str | None:
    """Return the reason why the library cannot be built here; None if it can."""
    if sys.platform != "linux":
        return "system calls can be replaced only on Linux"
    return None if shutil.which("gcc") else "gcc, which builds the library, is not installed"


def build(folder: Path) -> Path:
    """Build the library, with the name that the Python package libaio loads."""
    out = folder / "faults.so"
    subprocess.run(
        ["gcc", "-O1", "-fPIC", "-shared", f"-Wl,-soname,{_libaio()}",
         "-o", str(out), str(Path(__file__).with_name("shim.c")), "-ldl"],
        check=True, timeout=TIME_LIMIT,
    )  # fmt: skip
    return out


def _libaio() -> str:
    for name in ("libaio.so.1t64", "libaio.so.1"):
        try:
            ctypes.CDLL(name)
        except OSError:
            continue
        return name
    return "libaio.so.1"


# ---- functions for a process with the library preloaded --------------------------------------


@cache
def _library() -> Any:
    library = ctypes.CDLL(os.environ["LD_PRELOAD"])
    library.faults_arm.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long)
    library.faults_seen.restype = library.faults_made.restype = ctypes.c_long
    return library


def set_base(folder: Path) -> None:
    """Count calls, and let them fail, only on files below this folder."""
    _library().faults_base(os.fsencode(folder))


def skip_syncing() -> None:
    """Make fsync return at once from now on."""
    _library().faults_skip_syncing()


def watch(fd: int) -> None:
    """Also count calls on this descriptor."""
    _library().faults_watch(fd)


def arm(fault: Fault | None) -> None:
    """Start to count calls, and make the fault happen if there is one."""
    _library().faults_arm(*(fault.arguments if fault is not None else (COUNT_ONLY, 0, 0, 0)))


def disarm() -> None:
    _library().faults_disarm()


@contextlib.contextmanager
def paused() -> Iterator[None]:
    """Do not count calls in the block, and do not let them fail."""
    was_active = _library().faults_pause()
    try:
        yield
    finally:
        _library().faults_resume(was_active)


def made() -> int:
    """Return how many calls were made to fail."""
    return int(_library().faults_made())


def seen() -> dict[str, int]:
    """Return the number of calls of each kind."""
    counts = ((call, int(_library().faults_seen(i))) for i, call in enumerate(CALLS))
    return {call: count for call, count in counts if count}
