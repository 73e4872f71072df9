"""What the clients of `mount` do, the same for every contestant; called in a fresh process.

Only the standard library: a client is a program that knows nothing of archives.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Sequence
from multiprocessing.queues import SimpleQueue
from multiprocessing.synchronize import Barrier

from . import harness

Values = dict[str, float]

MOST = 1 << 16
"""Bytes asked for by the one read of a small file; none is larger."""
PIECE = 1 << 20
"""Bytes asked for by each read of a large file."""
PATIENCE = 120.0
"""Seconds that forked clients wait for each other before they give up."""


class ClientError(Exception):
    """A forked client ended without a result."""


def read_twice(*, top: str, names: Sequence[str]) -> Values:
    """All files one after another, and again when the kernel has their pages."""
    paths = [f"{top}/{name}" for name in names]
    began = time.perf_counter()
    size = _read_all(paths)
    between = time.perf_counter()
    again = _read_all(paths)
    ended = time.perf_counter()
    return {"first": between - began, "again": ended - between, "size": size, "size_again": again}


def read_together(*, top: str, names: Sequence[str], clients: int) -> Values:
    """Several processes, each with its share of the files; caches are dropped as they start."""
    context = multiprocessing.get_context("fork")
    barrier = context.Barrier(clients + 1)
    sizes: SimpleQueue[int] = context.SimpleQueue()
    paths = [f"{top}/{name}" for name in names]
    children = [
        context.Process(target=_client, args=(paths[first::clients], barrier, sizes))
        for first in range(clients)
    ]
    for child in children:
        child.start()
    barrier.wait(PATIENCE)  # all are there
    harness.drop_caches()
    barrier.wait(PATIENCE)
    began = time.perf_counter()
    for child in children:
        child.join()
    seconds = time.perf_counter() - began
    if any(child.exitcode for child in children):
        raise ClientError("a client failed to read")
    return {"seconds": seconds, "size": sum(sizes.get() for _ in children)}


def walk(*, top: str) -> Values:
    """Every entry below a folder and its attributes, like `find -ls`."""
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
    """One file from its begin to its end."""
    buffer, size = bytearray(PIECE), 0
    began = time.perf_counter()
    fd = os.open(f"{top}/{name}", os.O_RDONLY)
    while length := os.readv(fd, [buffer]):
        size += length
    os.close(fd)
    return {"seconds": time.perf_counter() - began, "size": size}


def _client(paths: Sequence[str], barrier: Barrier, sizes: SimpleQueue[int]) -> None:
    barrier.wait(PATIENCE)
    barrier.wait(PATIENCE)
    sizes.put(_read_all(paths))


def _read_all(paths: Sequence[str]) -> int:
    """Open, read and close each file; their bytes together."""
    size = 0
    for path in paths:
        fd = os.open(path, os.O_RDONLY)
        size += len(os.read(fd, MOST))
        os.close(fd)
    return size
