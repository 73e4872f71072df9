"""A process that reads files through a cache, and is killed at one of its system calls.

Usage: python -m tests.remote.cache_user CACHE BOUND POINT SEED CRCS URL...

POINT is the number of the call at which the process kills itself; 0 for never. A write is done by
half before that. CRCS is a file with the CRC-32 of every record of each URL.
"""

from __future__ import annotations

import fcntl
import os
import signal
import sys
import time
import warnings
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np

from ffrecord import CacheWarning, FileReader
from ffrecord.disk import libc
from ffrecord.format.cachemap import BLOCK
from ffrecord.remote.cache import folder, publisher

CALLS = [
    (os, "pwrite"), (os, "fdatasync"), (os, "fsync"), (os, "ftruncate"), (os, "rename"),
    (os, "unlink"), (os, "utime"), (fcntl, "flock"), (libc, "punch_hole"),
]  # fmt: skip


class Killer:
    """Counts calls, and kills the process at one of them."""

    def __init__(self, point: int) -> None:
        self.point = point
        self.count = 0

    def watch(self, module: Any, name: str) -> None:
        real = getattr(module, name)

        def call(*arguments: Any) -> Any:
            self.count += 1
            if self.count == self.point:
                self._die(name, real, arguments)
            return real(*arguments)

        setattr(module, name, call)

    def _die(self, name: str, real: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        if name == "pwrite":
            fd, data, offset = arguments
            real(fd, bytes(data)[: len(data) // 2], offset)
        os.kill(os.getpid(), signal.SIGKILL)


def main(cache: str, bound: str, point: str, seed: str, crcs: str, *urls: str) -> None:
    warnings.simplefilter("ignore", CacheWarning)
    folder.STRIDE = 4 * BLOCK
    publisher.PAUSE = 0.01
    killer = Killer(int(point))
    for module, name in CALLS:
        killer.watch(module, name)
    due = np.load(crcs)
    chance = np.random.default_rng(int(seed))
    for _ in range(4):
        k, check_data = int(chance.integers(len(urls))), bool(chance.integers(2))
        with FileReader(urls[k], check_data, cache=cache, cache_size=f"{bound}B") as reader:
            for _ in range(4):
                some = chance.integers(0, reader.n, 100)
                for i, record in zip(some.tolist(), reader.read(some), strict=True):
                    assert zlib.crc32(record.tobytes()) == due[k, i], (urls[k], i)
                time.sleep(0.02)  # for the thread that adds blocks to the map


if __name__ == "__main__":
    main(*sys.argv[1:])
