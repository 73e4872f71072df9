"""CPU time of an idle mount, and memory of a mount that serves the same files again."""

from __future__ import annotations

import os
import time
from pathlib import Path

from tests.fuse.mounted_faults import daemons
from tests.fuse.mounted_faults.conftest import Packed
from tests.support import handmade

MIB = 1 << 20
_READ_ALL = """
import mmap, os, sys
memory = mmap.mmap(-1, 1 << 20)
for folder, _, names in os.walk(sys.argv[1]):
    for name in names:
        fd = os.open(os.path.join(folder, name), os.O_RDONLY | os.O_DIRECT)
        offset = 0
        while count := os.preadv(fd, [memory], offset):
            offset += count
        os.close(fd)
"""


def read_everything(point: Path, processes: int = 1) -> None:
    """Read all files without the mount's page cache, so that each read is a request."""
    reading = [daemons.script(_READ_ALL, point) for _ in range(processes)]
    try:
        assert [process.wait(daemons.LIMIT) for process in reading] == [0] * processes
    finally:
        for process in reading:
            daemons.end(process)


def test_an_idle_mount_uses_no_cpu(packed: Packed, point: Path) -> None:
    with daemons.daemon(packed.archive, point, "--workers", "3") as mounted:
        handmade.evict(packed.archive)  # so that some reads complete by AIO
        read_everything(point, 2)

        def rests() -> bool:
            before = daemons.ticks(mounted.processes)
            time.sleep(1.5)
            return daemons.ticks(mounted.processes) == before

        # A worker spins for a moment, and on a busy machine that moment may come late.
        assert any(rests() for _ in range(20)), "the mount always uses CPU time"


def test_reading_everything_again_and_again_takes_no_more_memory(
    packed: Packed, point: Path
) -> None:
    with daemons.daemon(packed.archive, point, "--workers", "1") as mounted:
        (worker,) = mounted.workers

        def passes(count: int) -> None:
            for number in range(count):
                if number % 2:
                    handmade.evict(packed.archive)
                read_everything(point, 2)

        passes(4)
        memory, files = daemons.resident(worker), daemons.descriptors(worker)
        passes(6)
        assert mounted.workers == [worker]
        assert daemons.resident(worker) - memory < 8 * MIB
        assert daemons.descriptors(worker) == files
        assert os.path.getsize(mounted.log_file) < 1000, "the log grows with the number of reads"
