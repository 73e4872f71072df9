"""The C library that makes system calls fail: how it is built, and what it is told.

`Fault` is one thing that goes wrong. The functions at the end are for a process that the library is
preloaded into.
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

# In the order of shim.c.
CALLS = (
    "open", "read", "write", "fsync", "rename", "link", "truncate", "sendfile", "copy", "ioctl",
    "allocate", "lock", "cachestat", "io_setup", "io_submit", "io_getevents", "completion", "disk",
)  # fmt: skip
WITH_COUNT = (
    "read", "write", "sendfile", "copy", "io_submit", "io_getevents", "completion"
)  # fmt: skip
# What file systems say that cannot do what is asked for, such as O_DIRECT.
REFUSABLE = ("open", "read", "write", "link", "copy", "io_submit", "completion")
ERRORS = ("EIO", "EAGAIN", "EINTR", "ENOSPC")
SHORT, NONE = "short", "none"
_CODES = {SHORT: -1, NONE: -2}

STORM = 100
"""Interrupts, or looks for events that find none, in a row: for ever would be for ever."""

FOR_EVER = 1 << 60
COUNT_ONLY = -1
TIME_LIMIT = PATIENCE


@dataclass(frozen=True, slots=True)
class Fault:
    """What goes wrong with which call, counted from 0, and whether with all after it too."""

    call: str
    kind: str
    number: int
    lasting: bool

    @property
    def words(self) -> tuple[int, int, int, int]:
        """As faults_arm takes it."""
        last = self.number
        if self.lasting:
            last += STORM - 1 if self.kind in ("EINTR", NONE) else FOR_EVER
        code = _CODES.get(self.kind) or getattr(errno, self.kind)
        return CALLS.index(self.call), code, self.number, last

    def __str__(self) -> str:
        return f"{self.kind} from {self.call} {self.number}{' on' if self.lasting else ''}"


def kinds(call: str) -> Iterator[str]:
    """All that can go wrong with a call; with a disk, by whichever call, only one thing."""
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
    """Why it cannot be built here; None if it can."""
    if sys.platform != "linux":
        return "system calls are replaced on Linux only"
    return None if shutil.which("gcc") else "there is no gcc to build the library with"


def build(folder: Path) -> Path:
    """The library, under the name that the libaio package will look for."""
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


# ---- in the process that it is preloaded into ------------------------------------------------


@cache
def _library() -> Any:
    library = ctypes.CDLL(os.environ["LD_PRELOAD"])
    library.faults_arm.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long)
    library.faults_seen.restype = library.faults_made.restype = ctypes.c_long
    return library


def set_base(folder: Path) -> None:
    """Only calls on what is below this folder fail, or are counted."""
    _library().faults_base(os.fsencode(folder))


def skip_syncing() -> None:
    """From now on fsync returns at once."""
    _library().faults_skip_syncing()


def watch(fd: int) -> None:
    """And those on this one descriptor."""
    _library().faults_watch(fd)


def arm(fault: Fault | None) -> None:
    """From now on calls fail; None: they are only counted."""
    _library().faults_arm(*(fault.words if fault is not None else (COUNT_ONLY, 0, 0, 0)))


def disarm() -> None:
    _library().faults_disarm()


@contextlib.contextmanager
def paused() -> Iterator[None]:
    """Calls in here do not fail, and are not counted."""
    was_active = _library().faults_pause()
    try:
        yield
    finally:
        _library().faults_go_on(was_active)


def made() -> int:
    """How many calls were made to fail."""
    return int(_library().faults_made())


def seen() -> dict[str, int]:
    """How many calls of each kind there were."""
    counts = ((call, int(_library().faults_seen(i))) for i, call in enumerate(CALLS))
    return {call: count for call, count in counts if count}
