"""The work of the clients of `mount`, the same for every contestant; called in a fresh process.

It uses only the standard library: a client is a program that knows nothing of archives.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import time
from collections.abc import Sequence
from multiprocessing.queues import SimpleQueue
from multiprocessing.synchronize import Barrier
from typing import Any

from . import harness, processes, throttle

Values = dict[str, float]
_Answer = tuple[int, int, int, int]
"""The number of a client, its files, their bytes, and the bytes that it read from disks itself."""

MOST = 1 << 16
"""Bytes requested by the only read of a small file; no small file is larger."""
PIECE = 1 << 20
"""Bytes requested by each read of a large file."""
AGAIN = 0.5
"""Seconds of reading files again: one pass over them would be too short beside the noise."""
PATIENCE = 120.0
"""Seconds that forked clients wait for each other."""


class ClientError(Exception):
    """Raised when a forked client ends without a result."""


def read_twice(*, top: str, names: Sequence[str], daemon: Sequence[int]) -> Values:
    """Read all files one after another, then repeatedly while the kernel has their pages.

    Processor time is measured in the first pass, for this process and those that serve the mount.
    """
    paths = [f"{top}/{name}" for name in names]
    used, began = _cpu(daemon), time.perf_counter()
    size = _read_all(paths)
    first = time.perf_counter() - began
    client, served = (after - before for before, after in zip(used, _cpu(daemon), strict=True))
    times, size_again, began = 0, 0, time.perf_counter()
    while (again := time.perf_counter() - began) < AGAIN:
        size_again += _read_all(paths)
        times += 1
    return {
        "first": first,
        "again": again / times,
        "client_cpu": client,
        "daemon_cpu": served,
        "size": size,
        "size_again": size_again / times,
    }


def list_and_read(*, top: str, names: Sequence[str]) -> Values:
    """List all folders, then read files, like a loader of a folder."""
    began = time.perf_counter()
    for _ in os.walk(top):
        pass
    listed = time.perf_counter()
    size = _read_all([f"{top}/{name}" for name in names])
    ended = time.perf_counter()
    return {"listing": listed - began, "reading": ended - listed, "size": size}


def read_together(
    *,
    top: str,
    names: Sequence[str],
    clients: int,
    daemon: Sequence[int] = (),
    groups: Sequence[str] = (),
    patience: float = math.inf,
    most: int = MOST,
) -> dict[str, Any]:
    """Read with several processes, each with its share of the files; drop caches at the start.

    Clients and daemon join the cgroups `groups` before the clock starts. A client that has read for
    `patience` seconds stops. Client number i reads every file whose number is i modulo the number
    of clients; `counts` are the files that each of them has read.
    """
    context = multiprocessing.get_context("fork")
    barrier = context.Barrier(clients + 1)
    answers: SimpleQueue[_Answer] = context.SimpleQueue()
    paths = [f"{top}/{name}" for name in names]
    children = [
        context.Process(
            target=_client, args=(first, paths[first::clients], barrier, answers, patience, most)
        )
        for first in range(clients)
    ]
    for child in children:
        child.start()
    barrier.wait(PATIENCE)  # wait until all are ready
    harness.drop_caches()
    throttle.enter(groups, [*daemon, *(child.pid for child in children if child.pid)])
    served = processes.read_bytes(daemon)
    barrier.wait(PATIENCE)
    began = time.perf_counter()
    for child in children:
        child.join()
    seconds = time.perf_counter() - began
    if any(child.exitcode for child in children):
        raise ClientError("a client failed to read")
    answered = sorted(answers.get() for _ in children)
    return {
        "seconds": seconds,
        "counts": [count for _, count, _, _ in answered],
        "size": sum(size for _, _, size, _ in answered),
        "read_bytes": processes.read_bytes(daemon) - served + sum(own for *_, own in answered),
    }


def walk(*, top: str) -> Values:
    """Visit every entry below a folder with its attributes, like `find -ls`."""
    entries, folders = 0, [top]
    began = time.perf_counter()
    while folders:
        with os.scandir(folders.pop()) as found:
            for entry in found:
                entry.stat(follow_symlinks=False)
                entries += 1
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.path)
    return {"seconds": time.perf_counter() - began, "entries": entries}


def read_large(*, top: str, name: str) -> Values:
    """Read one file from start to end, and again."""
    path, buffer = f"{top}/{name}", bytearray(PIECE)
    used, began = time.process_time(), time.perf_counter()
    size = _read_whole(path, buffer)
    seconds, used = time.perf_counter() - began, time.process_time() - used
    began = time.perf_counter()
    size_again = _read_whole(path, buffer)
    return {
        "seconds": seconds,
        "again": time.perf_counter() - began,
        "client_cpu": used,
        "size": size,
        "size_again": size_again,
    }


def _cpu(daemon: Sequence[int]) -> tuple[float, float]:
    """Return the processor seconds of this process, and of those that serve the mount."""
    return time.process_time(), sum(map(processes.cpu_seconds, daemon))


def _client(
    number: int,
    paths: Sequence[str],
    barrier: Barrier,
    answers: SimpleQueue[_Answer],
    patience: float,
    most: int,
) -> None:
    barrier.wait(PATIENCE)
    barrier.wait(PATIENCE)
    before, count, size = processes.read_bytes(), 0, 0
    deadline = time.perf_counter() + patience
    for path in paths:
        size += _read(path, most)
        count += 1
        if time.perf_counter() > deadline:
            break
    answers.put((number, count, size, processes.read_bytes() - before))


def _read_all(paths: Sequence[str]) -> int:
    """Open, read and close each file; return the sum of their bytes."""
    return sum(_read(path, MOST) for path in paths)


def _read_whole(path: str, buffer: bytearray) -> int:
    size = 0
    fd = os.open(path, os.O_RDONLY)
    while length := os.readv(fd, [buffer]):
        size += length
    os.close(fd)
    return size


def _read(path: str, most: int) -> int:
    fd = os.open(path, os.O_RDONLY)
    size = len(os.read(fd, most))
    os.close(fd)
    return size
