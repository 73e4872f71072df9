"""Mounts that end by a signal, by kill -9 of their processes, or by an abort. Nothing hangs."""

from __future__ import annotations

import errno
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fuse.mounted_faults import daemons
from tests.fuse.mounted_faults.conftest import Packed

GONE = {errno.ENOTCONN, errno.ECONNABORTED}
IN_FLIGHT = 64
# Reads a file in many threads at once, without the page cache; prints the result of each.
_MANY_READS = f"""
import errno, mmap, os, sys, threading
fd = os.open(sys.argv[1], os.O_RDONLY | os.O_DIRECT)
met = []
def read(number):
    try:
        os.preadv(fd, [mmap.mmap(-1, 4096)], 4096 * number)
        met.append("nothing")
    except OSError as error:
        met.append(errno.errorcode[error.errno])
threads = [threading.Thread(target=read, args=(n,)) for n in range({IN_FLIGHT})]
for thread in threads: thread.start()
print("ready", flush=True)
for thread in threads: thread.join()
print(*met, flush=True)
"""
# Keeps a file open, and a page of it mapped, until its input ends.
_HOLDER = """
import mmap, sys
file = open(sys.argv[1], "rb")
mapping = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
mapping[:1]
print("ready", flush=True)
sys.stdin.read()
"""
# A daemon that is not permitted to unmount after an abort.
_CANNOT_UNMOUNT = """
import errno, sys
from ffrecord_fuse import cli
from ffrecord_fuse.process import daemon
def refuse(mountpoint, lazy=False):
    raise daemon.MountError(mountpoint, errno.EPERM, "not today")
daemon.unmount = refuse
sys.exit(cli.main(sys.argv[1:]))
"""


def file_in(packed: Packed) -> str:
    """Return the name of a file with several blocks."""
    return str((packed.source / "folder 0/file 155").relative_to(packed.source))


def holder(path: Path) -> subprocess.Popen[str]:
    process = daemons.script(_HOLDER, path)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def test_a_killed_supervisor_ends_its_workers_and_readers_get_errors(
    packed: Packed, point: Path
) -> None:
    with (
        daemons.daemon(packed.archive, point, "--workers", "3") as mounted,
        daemons.readers(point, packed.source, 8) as readers,
    ):
        serving = mounted.processes
        assert len(serving) == 4
        mounted.process.kill()
        assert readers.errors() <= GONE
        mounted.process.wait(daemons.LIMIT)
        daemons.wait_until(lambda: not any(map(daemons.is_alive, serving)), "processes are left")
        assert daemons.is_mounted(point), (
            "the dead mount is gone, and the empty folder looks like the data"
        )
        assert daemons.error_of(point / file_in(packed)) == "ENOTCONN"


def test_after_a_killed_supervisor_the_mount_point_can_be_used_again(
    packed: Packed, point: Path
) -> None:
    with daemons.daemon(packed.archive, point) as mounted:
        mounted.process.kill()
        mounted.process.wait(daemons.LIMIT)
        done = daemons.run("umount", point)
        assert (done.returncode, done.stdout) == (0, "")
        assert not daemons.is_mounted(point)
        with daemons.daemon(packed.archive, point):
            due = (packed.source / file_in(packed)).read_bytes()
            assert daemons.read(point / file_in(packed)) == due


def test_a_killed_daemon_leaves_no_process(packed: Packed, point: Path) -> None:
    """Kill a daemon in the background. The tests above kill one in the foreground."""
    point.mkdir()
    log = point.with_name("log")
    try:
        done = daemons.run("mount", packed.archive, point, "--log", log, "--workers", "2")
        assert (done.returncode, done.stdout) == (0, "")
        (first, *_) = log.read_text().splitlines()
        match = re.search(r"ffrecord-fuse\[(\d+)\] mounted ", first)
        assert match is not None
        supervisor = int(match[1])
        serving = [supervisor, *daemons.children(supervisor)]
        assert len(serving) == 3
        os.kill(supervisor, signal.SIGKILL)
        daemons.wait_until(lambda: not any(map(daemons.is_alive, serving)), "processes are left")
        assert daemons.error_of(point / file_in(packed)) == "ENOTCONN"
        assert daemons.run("umount", point).returncode == 0
    finally:
        daemons.release(point)


# ---- abort ---------------------------------------------------------------------------------


@pytest.fixture
def connections(tmp_path: Path) -> Iterator[Path]:
    """Mount the kernel's folder of FUSE connections for this test."""
    folder = tmp_path / "fusectl"
    folder.mkdir()
    mounting = subprocess.run(
        ["mount", "-t", "fusectl", "none", str(folder)], capture_output=True, check=False
    )
    if mounting.returncode:
        pytest.skip(f"fusectl cannot be mounted: {os.fsdecode(mounting.stderr).strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.parametrize("workers", [1, 3])
def test_an_abort_ends_every_read_in_flight_and_every_process(
    packed: Packed, point: Path, connections: Path, workers: int
) -> None:
    path = point / file_in(packed)
    with daemons.daemon(packed.archive, point, "--workers", str(workers)) as mounted:
        assert daemons.error_of(path, 0, 10) == ""
        serving = mounted.processes
        for pid in mounted.workers:
            os.kill(pid, signal.SIGSTOP)
        number = daemons.connection(point)
        client = daemons.script(_MANY_READS, path)
        try:
            waiting = connections / str(number) / "waiting"
            daemons.wait_until(
                lambda: int(waiting.read_text()) >= IN_FLIGHT, "the reads are not in flight"
            )
            (connections / str(number) / "abort").write_text("1")
            for pid in serving[1:]:
                os.kill(pid, signal.SIGCONT)
            out, _ = client.communicate(timeout=daemons.LIMIT)
        finally:
            daemons.end(client)
        met = out.splitlines()[-1].split()
        assert len(met) == IN_FLIGHT
        assert set(met) <= {"ECONNABORTED", "ENOTCONN"}
        assert mounted.end() == 0
        daemons.wait_until(lambda: not any(map(daemons.is_alive, serving)), "processes are left")
        assert not daemons.is_mounted(point)
        said = f"{point}: the connection was aborted; the dead mount was unmounted"
        assert said in mounted.log()[-1]


@pytest.mark.parametrize("arguments", [(), ("--backend", "fusepy")])
def test_a_dead_mount_that_stays_is_not_reported_as_unmounted(
    packed: Packed, point: Path, connections: Path, arguments: tuple[str, ...]
) -> None:
    command = ("-c", _CANNOT_UNMOUNT)
    with daemons.daemon(packed.archive, point, *arguments, command=command) as mounted:
        assert daemons.error_of(point / file_in(packed), 0, 10) == ""
        (connections / str(daemons.connection(point)) / "abort").write_text("1")
        assert mounted.end() == 0
        assert daemons.is_mounted(point)
        said = f"{point}: the connection was aborted; a dead mount is left: not today"
        assert said in mounted.log()[-1]


def test_after_an_abort_under_load_nothing_hangs(
    packed: Packed, point: Path, connections: Path
) -> None:
    with (
        daemons.daemon(packed.archive, point, "--workers", "2") as mounted,
        daemons.readers(point, packed.source, 8) as readers,
    ):
        serving = mounted.processes
        time.sleep(0.2)
        (connections / str(daemons.connection(point)) / "abort").write_text("1")
        assert readers.errors() <= GONE
        assert mounted.end() == 0
        daemons.wait_until(lambda: not any(map(daemons.is_alive, serving)), "processes are left")


# ---- signals -------------------------------------------------------------------------------


@pytest.mark.parametrize("signo", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
@pytest.mark.parametrize("busy", [False, True])
def test_a_signal_unmounts_even_if_files_are_open(
    packed: Packed, point: Path, signo: signal.Signals, busy: bool
) -> None:
    with daemons.daemon(packed.archive, point, "--workers", "2") as mounted:
        serving = mounted.processes
        user = holder(point / file_in(packed)) if busy else None
        try:
            mounted.process.send_signal(signo)
            assert mounted.end() == 0
            assert not daemons.is_mounted(point)
            daemons.wait_until(
                lambda: not any(map(daemons.is_alive, serving)), "processes are left"
            )
        finally:
            if user is not None:
                daemons.end(user)
        assert f"unmounting {point}: received {signo.name}" in mounted.log()[-2]
        assert f"unmounted {point}" in mounted.log()[-1]


def test_a_signal_under_load_ends_everything(packed: Packed, point: Path) -> None:
    with (
        daemons.daemon(packed.archive, point, "--workers", "2") as mounted,
        daemons.readers(point, packed.source, 8) as readers,
    ):
        serving = mounted.processes
        mounted.process.terminate()
        errors = readers.errors()  # late readers see the empty folder: no such file
        assert errors <= GONE | {errno.ENOENT}
        assert mounted.end() == 0
        assert not daemons.is_mounted(point)
        assert not any(map(daemons.is_alive, serving))


def test_a_signal_ends_a_mount_with_a_copy_in_another_namespace(
    packed: Packed, point: Path
) -> None:
    if shutil.which("unshare") is None:
        pytest.skip("unshare(1) is not installed")
    with daemons.daemon(packed.archive, point, "--workers", "2") as mounted:
        serving = mounted.processes
        other = subprocess.Popen(
            ["unshare", "--mount", "--propagation", "private", "sh", "-c", "echo ready; cat"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        try:
            assert other.stdout is not None
            assert other.stdout.readline() == "ready\n"
            mounted.process.terminate()
            assert mounted.end() == 0
            assert not daemons.is_mounted(point)
            daemons.wait_until(
                lambda: not any(map(daemons.is_alive, serving)), "processes are left"
            )
        finally:
            daemons.end(other)


def test_a_late_signal_does_not_unmount_another_mount(packed: Packed, point: Path) -> None:
    path = point / file_in(packed)
    due = (packed.source / file_in(packed)).read_bytes()
    with daemons.daemon(packed.archive, point) as first:
        user = holder(path)
        try:
            assert daemons.run("umount", point).returncode == 0  # lazily, because a program uses it
            with daemons.daemon(packed.archive, point):
                first.process.terminate()
                assert first.end() == 0
                assert daemons.is_mounted(point)
                assert daemons.read(path) == due
        finally:
            daemons.end(user)


# ---- failing starts, and unusual environments ----------------------------------------------


# Makes `module.function` fail after a number of successful calls, when mount(2) has succeeded.
_HALF_WAY = """
import errno, importlib, os, sys
from ffrecord_fuse import cli
from ffrecord_fuse.process import daemon
from ffrecord_fuse.process import supervisor
module, _, name = sys.argv[1].rpartition(".")
module, left = importlib.import_module(module), int(sys.argv[2])
def failing(*arguments):
    global left
    left -= 1
    if left < 0:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
    return function(*arguments)
function = getattr(module, name)
setattr(module, name, failing)
sys.exit(cli.main(sys.argv[3:]))
"""


def assert_it_does_not_mount(command: list[str], packed: Packed, point: Path, limit: int) -> str:
    """Check that mounting fails and leaves nothing behind; return the error line."""
    point.mkdir()

    def few_descriptors() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))

    try:
        done = subprocess.run(
            [sys.executable, *command, str(packed.archive), str(point)],
            cwd=daemons.ROOT, env=daemons.ENVIRONMENT, preexec_fn=few_descriptors, text=True,
            capture_output=True, timeout=daemons.LIMIT, check=False,
        )  # fmt: skip
        assert done.returncode != 0
        assert "Traceback" not in done.stderr
        assert not daemons.is_mounted(point)
        return done.stderr.splitlines()[-1]
    finally:
        daemons.release(point)


@pytest.mark.parametrize(
    ("limit", "workers", "foreground"),
    [(7, 1, False), (8, 1, True), (9, 1, False), (10, 1, True), (40, 60, False)],
)
def test_too_few_open_files_are_reported_before_mounting(
    packed: Packed, point: Path, limit: int, workers: int, foreground: bool
) -> None:
    command = ["-m", "ffrecord_fuse", *(["-f"] if foreground else []), "--workers", str(workers)]
    said = assert_it_does_not_mount(command, packed, point, limit)
    due = f"{point}: serving needs {workers + 16} more open files: Too many open files"
    assert said == f"ffrecord-fuse: {due}; raise `ulimit -n`"


@pytest.mark.parametrize(
    ("call", "times", "arguments"),
    [
        ("os.pipe", 0, []), ("ffrecord_fuse.process.daemon.agree", 0, []),
        ("ffrecord_fuse.process.daemon.connection_at", 0, ["-f"]),
        ("ffrecord_fuse.process.supervisor.clone", 1, []),
        ("ffrecord_fuse.process.supervisor.Events", 0, ["-f"]),
        ("os.fork", 0, []), ("os.fork", 0, ["-f"]), ("os.fork", 1, []),
    ],
)  # fmt: skip
def test_a_mount_that_fails_half_way_leaves_no_dead_mount(
    packed: Packed, point: Path, call: str, times: int, arguments: list[str]
) -> None:
    command = ["-c", _HALF_WAY, call, str(times), *arguments, "--workers", "2"]
    said = assert_it_does_not_mount(command, packed, point, 1024)
    assert said.startswith("ffrecord-fuse: ")


# Every worker ends with an error as soon as it starts.
_HOPELESS = """
import sys
from ffrecord_fuse import cli
from ffrecord_fuse.process import supervisor
class Hopeless(supervisor.Session):
    def __init__(self, *arguments, **options):
        raise OSError(24, "no descriptor for a worker")
supervisor.Session = Hopeless
sys.exit(cli.main(sys.argv[1:]))
"""


def test_a_daemon_whose_workers_all_fail_ends_when_unmounted(packed: Packed, point: Path) -> None:
    with daemons.daemon(packed.archive, point, command=("-c", _HOPELESS)) as mounted:
        subprocess.run(["umount", "--lazy", str(point)], check=True, timeout=daemons.LIMIT)
        assert mounted.end() == 0


def test_a_supervisor_may_be_the_first_process_of_a_container(packed: Packed, point: Path) -> None:
    if shutil.which("unshare") is None:
        pytest.skip("unshare(1) is not installed")
    due = (packed.source / file_in(packed)).read_bytes()
    alone = ["unshare", "--pid", "--fork", "--kill-child"]
    with daemons.daemon(packed.archive, point, before=alone) as mounted:
        (supervisor,) = mounted.workers  # unshare's child
        daemons.wait_until(lambda: bool(daemons.children(supervisor)), "no worker was started")
        assert daemons.read(point / file_in(packed)) == due
        (worker,) = daemons.children(supervisor)
        os.kill(worker, signal.SIGKILL)
        assert daemons.read(point / file_in(packed), 4096) == due[4096:]
        os.kill(supervisor, signal.SIGTERM)
        assert mounted.end() == 0
        assert not daemons.is_mounted(point)
