"""Interrupt reads and writes at any moment by a signal handler that raises.

The next read returns right records, and a writer keeps whole records only.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import handmade

TURNS = 60  # interrupts of each test, each after a longer delay

# Both programs work until the interrupt comes, so a slow machine changes only the moment.
# The handler notes the interrupt before it raises. So a turn also ends if a destructor or a weakref
# callback swallows the exception: Python prints and ignores exceptions in these.
INTERRUPT = """
import signal, sys
import numpy as np
from ffrecord import FileReader, FileWriter

class Interrupt:
    def __init__(self, delay):
        self.came = False
        signal.signal(signal.SIGALRM, self.interrupt)
        signal.setitimer(signal.ITIMER_REAL, delay)

    def interrupt(self, *_):
        self.came = True
        raise KeyboardInterrupt

turns = int(sys.argv[1])
interrupted = 0
"""

READER = """
mode, path = sys.argv[2:]
reader = FileReader(path, mode=mode, check_data=False)
want = [record.tobytes() for record in FileReader(path)]
for turn, delay in enumerate(np.linspace(1e-4, 6e-3, turns)):
    try:
        coming = Interrupt(delay)
        while not coming.came:
            reader.read(range(reader.n))
            reader.read_async(range(0, reader.n, 2)).result()
    except KeyboardInterrupt:
        interrupted += 1
    order = np.random.default_rng(turn).permutation(reader.n).tolist()
    got = reader.read(order)
    assert [record.tobytes() for record in got] == [want[i] for i in order]
print(interrupted)
"""

WRITER = """
path = sys.argv[2]
for turn in range(turns):
    with FileWriter(path) as writer:
        try:
            coming = Interrupt(2e-4 + turn * 2e-5)
            while not coming.came:
                writer.write_one(b"%d" % writer.count * 50)
        except KeyboardInterrupt:
            interrupted += 1
        kept = writer.count
    with FileReader(path) as reader:
        assert reader.n == kept
        assert all(r.tobytes() == b"%d" % i * 50 for i, r in enumerate(reader))
print(interrupted)
"""


def count_interrupts(program: str, *arguments: str) -> int:
    """Run a program; return the number of interrupts that ended a read or write."""
    result = subprocess.run(
        [sys.executable, "-c", INTERRUPT + program, str(TURNS), *arguments],
        capture_output=True, timeout=600, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr.decode()
    return int(result.stdout)


@pytest.mark.parametrize("mode", ["auto", "aio", "buffered"])
def test_an_interrupted_batch_does_not_spoil_the_next_one(mode: str, tmp_path: Path) -> None:
    path = tmp_path / "many.ffr"
    # Far enough apart that each record is a separate read: more reads, more moments.
    sizes = [3000 if i % 2 else 20_000 for i in range(600)]
    path.write_bytes(handmade.record_bytes(handmade.random_records(sizes)))
    assert count_interrupts(READER, mode, str(path)) > TURNS // 2


def test_an_interrupted_writer_keeps_whole_records(tmp_path: Path) -> None:
    assert count_interrupts(WRITER, str(tmp_path / "kept.ffr")) > TURNS // 2
