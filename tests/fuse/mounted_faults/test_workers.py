"""Killed workers are replaced, and programs that read only wait."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from pathlib import Path

import pytest

from tests.fuse.mounted_faults import daemons
from tests.fuse.mounted_faults.conftest import Packed
from tests.support import handmade

READERS = 8
# Kills the worker as soon as it starts.
_DOOMED = """
import os, signal, sys
from ffrecord_fuse import cli
from ffrecord_fuse.process import supervisor
class Doomed(supervisor.Session):
    def run(self):
        os.kill(os.getpid(), signal.SIGKILL)
supervisor.Session = Doomed
sys.exit(cli.main(sys.argv[1:]))
"""
# The first fork succeeds, and the next few fail.
_NO_FORK = """
import errno, os, sys
from ffrecord_fuse import cli
fork, failures = os.fork, int(sys.argv[1])
forks = 0
def failing():
    global forks
    forks += 1
    if 1 < forks <= 1 + failures:
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))
    return fork()
os.fork = failing
sys.exit(cli.main(sys.argv[2:]))
"""
# Kills the worker at a read if a marker file exists, and removes that file.
_FATAL = """
import os, signal, sys
from ffrecord_fuse import cli
from ffrecord_fuse.wire import abi
from ffrecord_fuse.wire import handshake
from ffrecord_fuse.serve import session
flag, may_resend = sys.argv[1], sys.argv[2] == "resend"
class Fatal(session.Reading):
    def read(self, request):
        try:
            os.unlink(flag)
        except FileNotFoundError:
            return super().read(request)
        os.kill(os.getpid(), signal.SIGKILL)
session.Reading = Fatal
if not may_resend:
    handshake.WANTED &= ~abi.InitFlag.HAS_RESEND
sys.exit(cli.main(sys.argv[3:]))
"""


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("kills", [10, pytest.param(100, marks=pytest.mark.long)])
def test_no_read_fails_and_no_byte_is_wrong_while_workers_are_killed(
    packed: Packed, point: Path, workers: int, kills: int
) -> None:
    generator = random.Random(workers)
    with (
        daemons.daemon(packed.archive, point, "--workers", str(workers)) as mounted,
        daemons.readers(point, packed.source, READERS) as readers,
    ):
        for number in range(kills):
            if number % 2:
                handmade.evict(packed.archive)  # so that some workers die with reads in flight
            time.sleep(generator.uniform(0.05, 0.3))
            mounted.kill_worker(number)
        assert min(readers.stop()) > 0
        stats = json.loads(os.getxattr(point, "user.ffrecord.stats"))
        assert stats["restarts"] == kills
        assert stats["errors"] == stats["damaged_reads"] == 0
        restarts = [line for line in mounted.log() if "killed by signal 9" in line]
        assert len(restarts) == kills


def test_all_workers_killed_at_once_are_all_replaced(packed: Packed, point: Path) -> None:
    with (
        daemons.daemon(packed.archive, point, "--workers", "3") as mounted,
        daemons.readers(point, packed.source, READERS) as readers,
    ):
        for _ in range(3):
            before = mounted.workers
            assert len(before) == 3
            for pid in before:
                os.kill(pid, signal.SIGKILL)
            daemons.wait_until(
                lambda: len(now := mounted.workers) == 3 and not set(now) & set(before),  # noqa: B023
                "not all workers were replaced",
            )
        assert min(readers.stop()) > 0


def test_a_read_of_a_stopped_worker_is_answered_by_the_next_worker(
    packed: Packed, point: Path
) -> None:
    path = "folder 0/file 150"
    due = (packed.source / path).read_bytes()
    script = "import sys; sys.stdout.write(str(hash(open(sys.argv[1], 'rb').read()) != 0))"
    with daemons.daemon(packed.archive, point, "--workers", "1", "-o", "spin=0") as mounted:
        (worker,) = mounted.workers
        os.kill(worker, signal.SIGSTOP)
        waiting = daemons.script(script, point / path)
        try:
            time.sleep(0.2)
            assert waiting.poll() is None, "the read was answered while the worker was stopped"
            mounted.kill_worker(0)
            assert waiting.wait(daemons.LIMIT) == 0
        finally:
            daemons.end(waiting)
        assert daemons.read(point / path) == due


@pytest.mark.parametrize(
    ("resend", "workers"), [("resend", "1"), ("resend", "3"), ("no resend", "1")]
)
def test_a_request_of_a_dead_worker_is_sent_again_if_the_kernel_can(
    packed: Packed, point: Path, tmp_path: Path, resend: str, workers: str
) -> None:
    path, due = "folder 0/file 150", (packed.source / "folder 0/file 150").read_bytes()
    flag = tmp_path / "flag"
    command = ("-c", _FATAL, str(flag), resend)
    with daemons.daemon(packed.archive, point, "--workers", workers, command=command) as mounted:
        assert daemons.read(point / path, 100_000, 100) == due[100_000:100_100]
        flag.touch()
        if resend == "resend":
            assert daemons.read(point / path) == due
        else:  # the read does not wait for ever; the kernel repeats its read-ahead by itself
            assert daemons.error_of(point / path) in ("", "ECONNABORTED", "EIO")
            assert daemons.read(point / path) == due
        assert not flag.exists()
        assert sum("killed by signal 9" in line for line in mounted.log()) == 1


def test_a_worker_that_keeps_dying_is_restarted_with_pauses(packed: Packed, point: Path) -> None:
    began = time.monotonic()
    with daemons.daemon(packed.archive, point, command=("-c", _DOOMED)) as mounted:
        daemons.wait_until(
            lambda: sum("starting another" in line for line in mounted.log()) >= 10,
            "the worker is not started again",
        )
        assert time.monotonic() - began > 1.0, "the pauses between the starts are too short"
        mounted.process.send_signal(signal.SIGTERM)
        assert mounted.end() == 0
        assert not daemons.is_mounted(point)


def test_a_worker_that_cannot_start_at_first_is_started_later(packed: Packed, point: Path) -> None:
    path, due = "folder 0/file 150", (packed.source / "folder 0/file 150").read_bytes()
    command = ("-c", _NO_FORK, "1")
    with daemons.daemon(packed.archive, point, "--workers", "1", command=command) as mounted:
        mounted.kill_worker(0)
        assert daemons.read(point / path) == due
        assert sum("cannot start: " in line for line in mounted.log()) == 1


def test_a_signal_unmounts_even_if_no_worker_can_start(packed: Packed, point: Path) -> None:
    command = ("-c", _NO_FORK, "1000000")
    with daemons.daemon(packed.archive, point, "--workers", "1", command=command) as mounted:
        os.kill(mounted.workers[0], signal.SIGKILL)
        daemons.wait_until(
            lambda: any("cannot start: " in line for line in mounted.log()),
            "no start of a worker failed",
        )
        mounted.process.terminate()
        assert mounted.end() == 0
        assert not daemons.is_mounted(point)


def test_restarts_leave_no_descriptors_in_the_supervisor(packed: Packed, point: Path) -> None:
    with daemons.daemon(packed.archive, point, "--workers", "2") as mounted:
        for number in range(2):
            mounted.kill_worker(number)
        above = daemons.descriptors(mounted.process.pid)
        for number in range(4):
            mounted.kill_worker(number)
        assert daemons.descriptors(mounted.process.pid) == above
