"""One measurement of packing, inside its fresh process.

Dirty pages of earlier work are written back first. Then the caches are dropped (cold), or the
folder is read once (warm), and the clock starts.
"""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

from . import harness
from .packers import PACKERS


class WrongResultError(Exception):
    """Raised when a contestant's result is smaller than the packed files."""


def measure(*, packer: str, folder: str, out: str, payload: int, cold: bool) -> dict[str, float]:
    """Return the seconds, payload bytes per second and peak memory of one contestant."""
    contestant = PACKERS[packer]
    place = Path(out)
    shutil.rmtree(place, ignore_errors=True)  # a killed run may have left it
    place.mkdir()
    result = place / contestant.result
    try:
        pack = contestant.ready(Path(folder), result)
        _prepare(Path(folder), cold)
        began = time.perf_counter()
        pack()
        if contestant.durable:
            _fsync(result)
        seconds = time.perf_counter() - began
        _check(result, payload)
    finally:
        shutil.rmtree(place)
    return {
        "seconds": seconds,
        "bytes_per_s": payload / seconds,
        "peak_memory": float(contestant.peak_memory()),
    }


def _prepare(folder: Path, cold: bool) -> None:
    if cold:
        harness.drop_caches()
    else:
        harness.read_through(folder)
        harness.sync()


def _files(result: Path) -> list[Path]:
    return [result, *result.rglob("*")] if result.is_dir() else [result]


def _fsync(result: Path) -> None:
    """Sync a file, or a folder and everything in it, and the parent folder."""
    for path in [*_files(result), result.parent]:
        fd = os.open(path, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def _check(result: Path, payload: int) -> None:
    size = sum(path.stat().st_size for path in _files(result))
    if size < payload:
        raise WrongResultError(
            f"{result.name}: {size:,} bytes, but the packed files have {payload:,}"
        )
