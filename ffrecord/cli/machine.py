"""Facts about this machine: the features that FFRecord uses, and the cost of missing ones.

No feature is required to read or write. Without AIO, O_DIRECT, cachestat or huge pages the library
is only slower. `facts` inspects the machine; `missing` judges these facts and does no I/O.
"""

from __future__ import annotations

import contextlib
import errno
import os
import platform
import re
import resource
import shutil
import stat
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeAlias

from ffrecord.disk import aio, pagecache
from ffrecord.disk.source import DESCRIPTORS_EACH, SPARE_DESCRIPTORS, Source
from ffrecord.machine import processors
from ffrecord.version import __version__
from ffrecord_fuse.mounting import mounttable

Facts: TypeAlias = "dict[str, Any]"

FEW_FILES = 4096  # a limit of open files below this number is reported
_AIO = Path("/proc/sys/fs")
_HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")
_MEMORY = Path("/proc/meminfo")
_READ_AHEAD = Path("/sys/class/bdi")
_FUSE = Path("/dev/fuse")


def facts(path: str) -> Facts:
    """Return facts about the machine and the file system of `path`, ready for JSON.

    A value is None if it is not known or has no limit.
    """
    found = os.stat(path)
    if not (stat.S_ISDIR(found.st_mode) or stat.S_ISREG(found.st_mode)):
        raise OSError(errno.EINVAL, "neither a file nor a folder; name a file or a folder", path)
    files = resource.getrlimit(resource.RLIMIT_NOFILE)
    locked, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    direct, cachestat = _probed(path, is_folder=stat.S_ISDIR(found.st_mode))
    return {
        "kind": "system",
        "ffrecord": __version__,
        "python": platform.python_version(),
        "kernel": platform.release(),
        "processors": processors.available(),
        "memory_bytes": _memory("MemTotal"),
        "page_cache_bytes": _memory("Cached"),
        "huge_pages": _huge_pages(),
        "open_files": _limit(files[0]),
        "open_files_most": _limit(files[1]),
        "locked_memory_bytes": _limit(locked),
        "libaio": aio.is_available(),
        "aio_context": _has_aio_context(),
        "aio_requests": _number(_AIO / "aio-nr"),
        "aio_requests_most": _number(_AIO / "aio-max-nr"),
        "fuse_device": _FUSE.exists(),
        "fusermount": shutil.which("fusermount3") or shutil.which("fusermount"),
        "fuse_overlayfs": shutil.which("fuse-overlayfs"),
        "fuse_packages": [name for name in ("mfusepy", "fuse") if find_spec(name)],
        "root": os.geteuid() == 0,
        "file_system": file_system(Path(path)),
        "direct_bytes": direct,
        "cachestat": cachestat,
        "read_ahead_bytes": _read_ahead(found.st_dev),
    }


def _memory(name: str) -> int | None:
    """Return the value of one line of /proc/meminfo, in bytes."""
    with contextlib.suppress(OSError):
        for line in _MEMORY.read_text().splitlines():
            key, _, value = line.partition(":")
            if key == name:
                return int(value.split()[0]) * 1024
    return None


def _huge_pages() -> str | None:
    """Return the active mode: always, madvise or never."""
    with contextlib.suppress(OSError):
        chosen = re.search(r"\[(\w+)\]", _HUGE_PAGES.read_text())
        return chosen.group(1) if chosen else None
    return None


def _limit(value: int) -> int | None:
    return None if value == resource.RLIM_INFINITY else value


def _number(path: Path) -> int | None:
    with contextlib.suppress(OSError, ValueError):
        return int(path.read_text())
    return None


def _has_aio_context() -> bool:
    """Return True if the kernel creates an AIO context.

    A sandbox may forbid it, or other programs may have used up the limit.
    """
    try:
        aio.Context(aio.CAPACITIES[0]).close()
    except OSError:
        return False
    return True


def _read_ahead(device: int) -> int | None:
    number = _number(_READ_AHEAD / f"{os.major(device)}:{os.minor(device)}" / "read_ahead_kb")
    return None if number is None else number * 1024


def file_system(path: Path) -> str | None:
    """Return the type of the path's file system: the type of the longest mountpoint above it."""
    found: tuple[int, str | None] = (0, None)
    with contextlib.suppress(OSError):
        whole = path.resolve()
        for entry in mounttable.entries():
            length = len(entry.mountpoint)
            if whole.is_relative_to(entry.mountpoint) and length >= found[0]:
                found = length, entry.type  # a later mount hides an earlier one
    return found[1]


def _probed(path: str, *, is_folder: bool) -> tuple[int | None, bool | None]:
    """Return the block size of O_DIRECT (0 without it), and True if cachestat sees cached pages.

    For a folder, both are measured with an unnamed temporary file in it.
    """
    if not is_folder:
        return _probed_file(path) if os.path.getsize(path) else (None, None)
    try:
        fd = os.open(path, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError:  # no permission to write, or a file system without O_TMPFILE
        return None, None
    try:
        os.write(fd, bytes(4096))
        return _probed_file(f"/proc/self/fd/{fd}")
    except OSError:
        return None, None
    finally:
        os.close(fd)


def _probed_file(path: str) -> tuple[int, bool]:
    source = Source(path, direct=True)
    source.read_bytes(0, 1)  # so that cachestat has a cached page to find
    return source.align if source.direct_fd >= 0 else 0, pagecache.tells(source.fd)


# ---- missing features ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Missing:
    """Feature that this machine lacks, with the cost of its absence and the way to get it."""

    what: str
    cost: str
    remedy: str


def missing(found: Facts) -> list[Missing]:
    """Return the features that this machine lacks, given the result of `facts`."""
    return [told for is_missing, told in _RULES if is_missing(found)]


def _version(release: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", release)[:2]))


_RULES: tuple[tuple[Callable[[Facts], bool], Missing], ...] = (
    (lambda found: not found["libaio"], Missing("libaio",
        "plain reads replace it, so batches from a cold disk are read at 0.3 to 0.6 of the speed",
        "install the system package libaio1, or libaio1t64 on newer releases")),
    (lambda found: found["libaio"] and not found["aio_context"], Missing("AIO contexts",
        "plain reads replace AIO, so batches from a cold disk are read at 0.3 to 0.6 of the speed",
        "if all of fs.aio-max-nr is in use, raise it: sysctl fs.aio-max-nr=1048576; a sandbox "
        "must allow io_setup")),
    (lambda found: found["direct_bytes"] == 0, Missing("O_DIRECT",
        "cold batches are read through the page cache, and displace other files there",
        "keep the data on a local disk with ext4, XFS, btrfs or a similar file system")),
    (lambda found: found["cachestat"] is False, Missing("cachestat",
        "a few pages of each batch are read to find out whether the rest is cached",
        "use Linux 6.5 or newer, files that you own, and a file system other than overlayfs")),
    (lambda found: found["huge_pages"] in (None, "never"), Missing("huge pages",
        "a large batch takes up to 1.8 times as long, because a disk request lists each page",
        "as root: echo madvise > /sys/kernel/mm/transparent_hugepage/enabled")),
    (lambda found: (found["open_files_most"] or FEW_FILES) < FEW_FILES, Missing("open files",
        f"the limit is below {FEW_FILES}, and each record file uses {DESCRIPTORS_EACH} "
        f"({SPARE_DESCRIPTORS} are kept for other uses), so datasets and archives of many files "
        "cannot be opened",
        f"raise the hard limit to {FEW_FILES}: ulimit -Hn {FEW_FILES}, or "
        f"LimitNOFILE={FEW_FILES} in systemd")),
    (lambda found: not found["fuse_device"], Missing("/dev/fuse",
        "archives cannot be mounted",
        "as root: modprobe fuse; for a container: start it with --device /dev/fuse")),
    (lambda found: found["fusermount"] is None and not found["root"], Missing("fusermount3",
        "only root can mount archives",
        "install the system package fuse3")),
    (lambda found: found["fuse_overlayfs"] is None and not found["root"], Missing("fuse-overlayfs",
        "only root can change files in a mount (mount --overlay)",
        "install the system package fuse-overlayfs")),
    (lambda found: _version(found["kernel"]) < (6, 9), Missing("Linux 6.9",
        "if a worker of a mount is killed, the reads that it was serving fail",
        "install Linux 6.9 or newer, which resends these reads to another worker")),
)  # fmt: skip
