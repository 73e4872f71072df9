"""How much memory this process has, as the kernel counts it, in bytes."""

from __future__ import annotations

import re
from pathlib import Path


def private() -> int:
    """What is in memory for this process alone: what would be free if it ended."""
    text = Path("/proc/self/smaps_rollup").read_text()
    return sum(_kilobytes(field, text) for field in ("Private_Clean", "Private_Dirty"))


def shared() -> int:
    """Shared mappings of memory (memfd, anonymous), whether or not their pages are mapped now.

    They take memory, and `private` does not see them all: pages that a process gave back with
    MADV_DONTNEED stay allocated.
    """
    total = 0
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, permissions, _ = line.split(maxsplit=2)
        # Such memory is a file without a name; others that are deleted nobody maps here.
        if permissions.endswith("s") and line.endswith("(deleted)"):
            begin, end = span.split("-")
            total += int(end, 16) - int(begin, 16)
    return total


def peak() -> int:
    """The most that was resident, shared and mapped pages included.

    Not ru_maxrss: that begins with the peak of the process that started this one.
    """
    return _kilobytes("VmHWM", Path("/proc/self/status").read_text())


def _kilobytes(field: str, text: str) -> int:
    found = re.search(rf"^{field}:\s+(\d+) kB$", text, re.MULTILINE)
    return int(found[1]) * 1024 if found else 0
