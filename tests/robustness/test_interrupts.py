"""Interrupt reads and writes at any moment by a signal handler that raises.

The next read returns right records, and a writer keeps whole records only.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import handmade

READER = """
import signal, sys
import numpy as np
from ffrecord import FileReader

def interrupt(*_):
    raise KeyboardInterrupt

mode, path = sys.argv[1:]
reader = FileReader(path, mode=mode, check_data=False)
want = [record.tobytes() for record in FileReader(path)]
signal.signal(signal.SIGALRM, interrupt)
interrupted = 0
for delay in np.linspace(1e-4, 6e-3, 60):
    try:
        signal.setitimer(signal.ITIMER_REAL, delay)
        for _ in range(4):
            reader.read(range(reader.n))
            reader.read_async(range(0, reader.n, 2)).result()
    except KeyboardInterrupt:
        interrupted += 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    order = np.random.default_rng(interrupted).permutation(reader.n).tolist()
    got = reader.read(order)
    assert [record.tobytes() for record in got] == [want[i] for i in order]
print(interrupted)
"""

WRITER = """
import itertools, signal, sys, time
from ffrecord import FileReader, FileWriter

def interrupt(*_):
    raise KeyboardInterrupt

path = sys.argv[1]
signal.signal(signal.SIGALRM, interrupt)
interrupted = 0
for turn in range(40):
    kept = 0
    with FileWriter(path) as writer:
        try:
            signal.setitimer(signal.ITIMER_REAL, 2e-4 + turn * 2e-5)
            for i in itertools.count():
                writer.write_one(b"%d" % i * 50)
        except KeyboardInterrupt:
            interrupted += 1
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        kept = writer.count
    with FileReader(path) as reader:
        assert reader.n == kept
        assert all(r.tobytes() == b"%d" % i * 50 for i, r in enumerate(reader))
print(interrupted)
"""


def interrupted_times(script: str, *arguments: str) -> int:
    result = subprocess.run(
        [sys.executable, "-c", script, *arguments],
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
    assert interrupted_times(READER, mode, str(path)) > 10


def test_an_interrupted_writer_keeps_whole_records(tmp_path: Path) -> None:
    assert interrupted_times(WRITER, str(tmp_path / "kept.ffr")) > 20
