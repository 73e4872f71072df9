"""One measurement of a mount, inside its fresh process.

The archive is read once, mounted, and used by a client in another fresh process, which times only
its reading. Daemon and client inherit the cores that this process has chosen.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from . import fio, harness, memory, mount_client, processes
from .mounters import MOUNTERS, Mounted, Server

CLIENT_TIMEOUT = 600.0
SETTLE = 0.5
"""Seconds after the last request before a mount counts as idle."""
COMPARED = 1 << 20
"""Bytes of a file that are compared to check that a mount works."""
MB = 1e6

Values = dict[str, float]


class WrongFilesError(Exception):
    """Raised when a client finds names or bytes that differ from the packed ones."""


class NoDaemonError(Exception):
    """Raised when no process serves a mount; its memory and CPU time would count as 0."""


def try_out(*, mounter: str, archive: str, point: str, witness: str, source: str) -> None:
    """Mount once and compare the start of a file. A contestant that fails is left out."""
    with MOUNTERS[mounter].mounted(Path(archive), Path(point), witness) as mount:
        with open(mount.top / witness, "rb") as file, open(source, "rb") as packed:
            same = file.read(COMPARED) == packed.read(COMPARED)
        _expect(f"start of {witness} is equal", same, True)


def read_small(
    *, mounter: str, archive: str, point: str, cores: int, names: Sequence[str], size: int
) -> Values:
    """Let one client read files in the given order, and all of them again."""
    with _warm(mounter, archive, point, cores, names[0]) as mount:
        daemon = processes.marked(mount.mark)
        took = _client(mount_client.read_twice, top=str(mount.top), names=names, daemon=daemon)
        _expect("bytes", (took["size"], took["size_again"]), (size, size))
        values = {
            "files_per_s": len(names) / took["first"],
            "again_files_per_s": len(names) / took["again"],
            "client_us": took["client_cpu"] / len(names) * 1e6,
            "mount_s": mount.seconds,
        }
        if MOUNTERS[mounter].server is Server.DAEMON:
            values["daemon_us"] = took["daemon_cpu"] / len(names) * 1e6
        return values


def read_listed(
    *, mounter: str, archive: str, point: str, cores: int, names: Sequence[str], size: int
) -> Values:
    """Let one client list everything, then read files in the given order."""
    with _warm(mounter, archive, point, cores, names[0]) as mount:
        took = _client(mount_client.list_and_read, top=str(mount.top), names=names)
        _expect("bytes", took["size"], size)
        return {
            "files_per_s": len(names) / took["reading"],
            "listing_s": took["listing"],
            "mount_s": mount.seconds,
        }


def walk(*, mounter: str, archive: str, point: str, cores: int, name: str, entries: int) -> Values:
    """Let one client visit every entry."""
    with _warm(mounter, archive, point, cores, name) as mount:
        took = _client(mount_client.walk, top=str(mount.top))
        _expect("entries", took["entries"], entries)
        return {
            "entries_per_s": entries / took["seconds"],
            "seconds": took["seconds"],
            "mount_s": mount.seconds,
        }


def read_large(
    *, mounter: str, archive: str, point: str, cores: int, name: str, size: int
) -> Values:
    """Let one client read one file, and again."""
    with _warm(mounter, archive, point, cores, name) as mount:
        took = _client(mount_client.read_large, top=str(mount.top), name=name)
        _expect("bytes", (took["size"], took["size_again"]), (size, size))
        return {
            "bytes_per_s": size / took["seconds"],
            "again_bytes_per_s": size / took["again"],
            "seconds": took["seconds"],
            "client_s": took["client_cpu"],
            "mount_s": mount.seconds,
        }


def read_direct(
    *, mounter: str, archive: str, point: str, cores: int, name: str, seconds: int, depth: int
) -> Values:
    """Let fio read random pages of one file past the page cache, `depth` of them at a time."""
    with _warm(mounter, archive, point, cores, name) as mount:
        rates = fio.random_read(mount.top / name, fio.ALIGNMENT, seconds, depth)
        return {"reads_per_s": rates["records_per_s"], "mount_s": mount.seconds}


def read_cold(
    *,
    mounter: str,
    archive: str,
    point: str,
    cores: int,
    names: Sequence[str],
    size: int,
    clients: int,
    most: int,
) -> Values:
    """Let clients read files of at most `most` bytes, with all caches empty at the start."""
    _keep_to(cores)
    harness.drop_caches()
    with MOUNTERS[mounter].mounted(Path(archive), Path(point), names[0]) as mount:
        took = _client(
            mount_client.read_together,
            top=str(mount.top),
            names=names,
            clients=clients,
            daemon=processes.marked(mount.mark),
            most=most,
        )
        _expect("bytes", took["size"], size)
        values = {"files_per_s": len(names) / took["seconds"], "mount_s": mount.seconds}
        if MOUNTERS[mounter].server is not Server.LOOP:
            values["read_per_byte"] = took["read_bytes"] / size
        return values


def idle(
    *, mounter: str, archive: str, point: str, cores: int, names: Sequence[str], seconds: float
) -> Values:
    """Return the processor time of a mount while it is idle after use."""
    with _warm(mounter, archive, point, cores, names[0]) as mount:
        daemon = _pids(mount)
        _client(mount_client.read_twice, top=str(mount.top), names=names, daemon=daemon)
        time.sleep(SETTLE)
        before = _cpu_seconds(mount)
        time.sleep(seconds)
        return {"cpu_ms": (_cpu_seconds(mount) - before) * 1e3, "idle_s": seconds}


def mount_many(*, mounter: str, archive: str, point: str, cores: int, name: str) -> Values:
    """Return the time until a file is visible, Python's part of it, and the daemon's memory."""
    python = _python_seconds()
    with _warm(mounter, archive, point, cores, name) as mount:
        values = {
            "mount_s": mount.seconds,
            "python_s": python,
            "beyond_python_s": mount.seconds - python,
        }
        if MOUNTERS[mounter].server is Server.DAEMON:
            values["mounted_mb"] = _pss(mount)
        return values


def remember(
    *,
    mounter: str,
    archive: str,
    point: str,
    cores: int,
    names: Sequence[Sequence[str]],
    sizes: Sequence[int],
    entries: int,
    clients: int,
) -> Values:
    """Return the memory of a mount after each of several rounds.

    A round is a walk over all names, and reading files that no earlier round has read. Caches are
    dropped before each round, so that the kernel asks the daemon for everything again.
    """
    after = []
    with _warm(mounter, archive, point, cores, names[0][0]) as mount:
        top, mounted = str(mount.top), _pss(mount)
        for share, size in zip(names, sizes, strict=True):
            harness.drop_caches()
            took = _client(mount_client.walk, top=top)
            _expect("entries", took["entries"], entries)
            took = _client(mount_client.read_together, top=top, names=share, clients=clients)
            _expect("bytes", took["size"], size)
            after.append(_pss(mount))
        pids = _pids(mount)
        return {
            "mounted_mb": mounted,
            "once_mb": after[0],
            "most_mb": max(mounted, *after),
            "growth_mb": after[-1] - after[0],
            "shared_mb": memory.shared(pids) / MB,
            "processes": float(len(pids)),
        }


@contextmanager
def _warm(mounter: str, archive: str, point: str, cores: int, witness: str) -> Iterator[Mounted]:
    """Provide a fresh mount of an archive that is in the page cache."""
    _keep_to(cores)
    contestant, path = MOUNTERS[mounter], Path(archive)
    harness.read_through(path if path.is_dir() else path.parent)
    harness.sync()
    with contestant.mounted(path, Path(point), witness) as mount:
        yield mount


def _keep_to(cores: int) -> None:
    """Stay on some of the cores, together with all processes started from here."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-cores:])


def _client(function: Callable[..., dict[str, Any]], **arguments: object) -> dict[str, Any]:
    values: dict[str, Any] = harness.call_fresh(function, CLIENT_TIMEOUT, **arguments)
    return values


def _pids(mount: Mounted) -> list[int]:
    found = processes.marked(mount.mark)
    if not found:
        raise NoDaemonError(f"no process serves {mount.top}")
    return found


def _cpu_seconds(mount: Mounted) -> float:
    return sum(map(processes.cpu_seconds, _pids(mount)))


def _pss(mount: Mounted) -> float:
    return sum(map(memory.proportional, _pids(mount))) / MB


def _python_seconds() -> float:
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", "pass"], check=True)
    return time.perf_counter() - began


def _expect(what: str, found: object, wanted: object) -> None:
    if found != wanted:
        raise WrongFilesError(f"{what}: {found} instead of {wanted}")
