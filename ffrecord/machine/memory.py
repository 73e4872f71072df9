"""Find out how much memory the kernel and the cgroups leave to this process for file data."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

SHARE = 1 / 2
"""Part of the available memory that is used by default. The rest is for the program and others."""

_ROOTS = {"v1": "/sys/fs/cgroup/memory", "v2": "/sys/fs/cgroup"}
# Above memory.high, the kernel frees cached files and slows the program down.
_LIMITS = {"v1": ("memory.limit_in_bytes",), "v2": ("memory.max", "memory.high")}
_USAGE = {"v1": "memory.usage_in_bytes", "v2": "memory.current"}
_CACHED = {
    "v1": ("total_inactive_file", "total_active_file"),
    "v2": ("inactive_file", "active_file"),
}


def available(root: str = "/") -> int:
    """Return the bytes that can be taken without swapping. `root` is for tests.

    This is the smallest of the kernel's MemAvailable and the free memory of each cgroup. Cached
    files of a cgroup count as free.
    """
    return max(0, min([_of_machine(root), *_of_cgroups(root)]))


def _of_machine(root: str) -> int:
    with contextlib.suppress(OSError, ValueError), open(f"{root}/proc/meminfo", "rb") as file:
        for line in file:
            if line.startswith(b"MemAvailable:"):
                return int(line.split()[1]) << 10
    return 0


def _of_cgroups(root: str) -> Iterator[int]:
    """Yield the free memory of each cgroup with a limit, from this process's own up to the root."""
    for version, path in _groups(root):
        while True:
            folder = f"{root}{_ROOTS[version]}{path}"
            for name in _LIMITS[version]:
                with contextlib.suppress(OSError, ValueError):
                    limit = int(_text(f"{folder}/{name}"))  # "max" is a ValueError: no limit
                    usage = int(_text(f"{folder}/{_USAGE[version]}"))
                    yield limit - usage + _cached(f"{folder}/memory.stat", _CACHED[version])
            if path in ("", "/"):
                break
            path = os.path.dirname(path)


def _groups(root: str) -> Iterator[tuple[str, str]]:
    """Yield the version and path of the cgroups that may limit this process's memory."""
    with contextlib.suppress(OSError):
        for line in _text(f"{root}/proc/self/cgroup").splitlines():
            number, controllers, path = line.split(":", 2)
            if number == "0":
                yield "v2", path
            elif "memory" in controllers.split(","):
                yield "v1", path


def _cached(path: str, names: tuple[str, ...]) -> int:
    counts = dict(line.split() for line in _text(path).splitlines())
    return sum(int(counts.get(name, 0)) for name in names)


def _text(path: str) -> str:
    with open(path, "rb") as file:  # bytes: a text file would import a codec
        return file.read().decode().strip()
