"""The machine of a benchmark, for its JSON: enough to compare, nothing that identifies it."""

from __future__ import annotations

import datetime
import os
import platform
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

from ffrecord.cli.machine import file_system


def describe(data: Path, packages: Sequence[str]) -> dict[str, object]:
    """Return CPU, memory, kernel, file system of the data, versions, and the date."""
    return {
        "cpu": _field("/proc/cpuinfo", "model name"),
        "cores": len(os.sched_getaffinity(0)),
        "memory": _field("/proc/meminfo", "MemTotal"),
        "kernel": platform.release(),
        "filesystem": file_system(data) or "unknown",
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in packages},
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
    }


def _field(path: str, name: str) -> str:
    for line in Path(path).read_text().splitlines():
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.strip()
    return "unknown"


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"
