"""How much memory a process has, as the kernel counts it, in bytes; this one unless told."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path


def private() -> int:
    """What is in memory for this process alone: what would be free if it ended."""
    text = Path("/proc/self/smaps_rollup").read_text()
    return sum(_kilobytes(field, text) for field in ("Private_Clean", "Private_Dirty"))


def proportional(pid: int) -> int:
    """What is in memory for a process; of pages that several have mapped, its share (PSS)."""
    return _kilobytes("Pss", Path(f"/proc/{pid}/smaps_rollup").read_text())


def resident(pid: int) -> int:
    """What is in memory for a process but files: its own, and shared memory that it has touched.

    Also of pages that it shares with forks all counts, so that these come and go without a trace.
    """
    text = Path(f"/proc/{pid}/status").read_text()
    return _kilobytes("RssAnon", text) + _kilobytes("RssShmem", text)


def shared(pids: Iterable[int | str] = ("self",)) -> int:
    """Shared mappings of memory (memfd, anonymous), whether or not their pages are mapped now.

    What several of the processes have mapped counts once.
    They take memory, and `private` does not see them all: pages that a process gave back with
    MADV_DONTNEED stay allocated.
    """
    sizes: dict[tuple[str, ...], int] = {}
    for pid in pids:
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            span, permissions, offset, device, inode, *_ = line.split()
            # Such memory is a file without a name; others that are deleted nobody maps here.
            if permissions.endswith("s") and line.endswith("(deleted)"):
                begin, end = span.split("-")
                sizes[device, inode, offset] = int(end, 16) - int(begin, 16)
    return sum(sizes.values())


def peak() -> int:
    """The most that was resident, shared and mapped pages included.

    Not ru_maxrss: that begins with the peak of the process that started this one.
    """
    return _kilobytes("VmHWM", Path("/proc/self/status").read_text())


def _kilobytes(field: str, text: str) -> int:
    found = re.search(rf"^{field}:\s+(\d+) kB$", text, re.MULTILINE)
    return int(found[1]) * 1024 if found else 0
