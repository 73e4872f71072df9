"""Memory of a process in bytes, as the kernel counts it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path


def private() -> int:
    """Return the private memory of this process, which would be free if it ended."""
    text = Path("/proc/self/smaps_rollup").read_text()
    return sum(_kilobytes(field, text) for field in ("Private_Clean", "Private_Dirty"))


def proportional(pid: int) -> int:
    """Return the PSS of a process: a page that n processes map counts as 1/n of a page."""
    return _kilobytes("Pss", Path(f"/proc/{pid}/smaps_rollup").read_text())


def resident(pid: int) -> int:
    """Return the resident memory of a process, without the pages of mapped files.

    Shared memory counts if the process has touched it. Pages that the process shares with forked
    children count in full, so that children do not change the result.
    """
    text = Path(f"/proc/{pid}/status").read_text()
    return _kilobytes("RssAnon", text) + _kilobytes("RssShmem", text)


def shared(pids: Iterable[int | str] = ("self",)) -> int:
    """Return the size of shared mappings (memfd, anonymous), mapped at the moment or not.

    A mapping of several processes counts once. These mappings take memory that `private` does not
    see: pages that a process gave back with MADV_DONTNEED stay allocated.
    """
    sizes: dict[tuple[str, ...], int] = {}
    for pid in pids:
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            span, permissions, offset, device, inode, *_ = line.split()
            # Shared memory is a file without a name. No other deleted file is mapped here.
            if permissions.endswith("s") and line.endswith("(deleted)"):
                begin, end = span.split("-")
                sizes[device, inode, offset] = int(end, 16) - int(begin, 16)
    return sum(sizes.values())


def peak() -> int:
    """Return the peak of resident memory, including shared pages and mapped files.

    Not ru_maxrss, which begins with the peak of the parent process.
    """
    return _kilobytes("VmHWM", Path("/proc/self/status").read_text())


def _kilobytes(field: str, text: str) -> int:
    found = re.search(rf"^{field}:\s+(\d+) kB$", text, re.MULTILINE)
    return int(found[1]) * 1024 if found else 0
