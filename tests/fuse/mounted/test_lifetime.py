"""A mount made by `with mount(…)` ends with its program, however the program ends."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fuse.mounted import mounting
from tests.support import archives, trees

FILES = {"file": b"content", "folder/inside": b"more", "empty/": b""}
DEADLY = [signal.SIGTERM, signal.SIGHUP, signal.SIGKILL]

# Each program prints one line with its mountpoints, and waits for the end of its input.
ONE = """
with mount(archive, backend=backend) as path:
    tell(path)
"""
NAMED = """
with mount(archive, sys.argv[3], backend=backend) as path:
    tell(path)
"""
SEVERAL_AND_NESTED = """
with mount(archive, backend=backend) as one, mount(archive, backend=backend) as other:
    with mount(archive, one + "/empty", backend=backend) as inner:
        tell(one, other, inner)
"""
FORKED = """
with mount(archive, backend=backend) as path:
    if not os.fork():
        sys.stdin.read()
        os._exit(0)
    tell(path)
"""
MULTIPROCESSING = """
import multiprocessing, time
with mount(archive, backend=backend) as path:
    context = multiprocessing.get_context("fork")
    context.Process(target=time.sleep, args=(600,)).start()
    tell(path)
"""
FORKED_IN_C = """
import ctypes
with mount(archive, backend=backend) as path:
    if not ctypes.PyDLL(None).fork():
        os.read(0, 1)
        os._exit(0)
    tell(path)
"""
EXECUTED = """
import subprocess
with mount(archive, backend=backend) as path:
    subprocess.Popen([sys.executable, "-S", "-c", "input()"], close_fds=False)
    tell(path)
"""
IN_A_THREAD = """
import contextlib, threading
undo = contextlib.ExitStack()
thread = threading.Thread(target=lambda: undo.enter_context(mount(archive, backend=backend)))
thread.start()
thread.join()
path = next(iter(Path(tempfile.gettempdir()).glob("ffrecord-*")))
assert (path / "file").read_bytes() == b"content"
tell(str(path))
"""
PROGRAMS = {
    "one": ONE, "several and nested": SEVERAL_AND_NESTED, "with a fork": FORKED,
    "with a worker": MULTIPROCESSING, "with a fork in C": FORKED_IN_C,
    "with a child that was executed": EXECUTED, "in a thread that has ended": IN_A_THREAD,
}  # fmt: skip
START = """
import json, os, sys, tempfile
from pathlib import Path
from ffrecord_fuse import mount
archive, backend = sys.argv[1:3]
def tell(*paths):
    print(json.dumps(paths), flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    archives.pack(trees.plain_tree(tmp_path / "tree", FILES), tmp_path / "tree.ffr")
    return tmp_path / "tree.ffr"


class Program:
    """A separate Python program, whose temporary folders are in `folder`."""

    def __init__(self, text: str, archive: Path, folder: Path, *arguments: str) -> None:
        folder.mkdir(exist_ok=True)
        self.folder = folder
        self.process = subprocess.Popen(
            [sys.executable, "-c", START + text, str(archive), *arguments], text=True,
            env={**mounting.environment(), "TMPDIR": str(folder)}, cwd=folder.parent,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            start_new_session=True,
        )  # fmt: skip

    def paths(self) -> list[Path]:
        """Wait until the program has mounted, and return its mountpoints."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line.startswith("["), line + self.process.stdout.read()
        return [Path(path) for path in json.loads(line)]

    def end(self) -> None:
        """Kill all processes of the program, which has its own session."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(mounting.PATIENCE)
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()


@contextlib.contextmanager
def program(text: str, archive: Path, *arguments: str) -> Iterator[Program]:
    started = Program(text, archive, archive.parent / "temporary", *arguments)
    try:
        yield started
    finally:
        started.end()
        for path in mounted_below(archive.parent):
            subprocess.run(["umount", "--lazy", path], check=False)
            mounting.kill(path)


def mounted_below(folder: Path) -> list[str]:
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    return [line.split()[4] for line in lines if line.split()[4].startswith(f"{folder}/")]


def assert_nothing_is_left(folder: Path, paths: list[Path]) -> None:
    """Check that no mount, no daemon and no temporary folder is left."""
    assert mounting.wait_until(lambda: not mounted_below(folder.parent)), "a mount is left"
    assert mounting.wait_until(lambda: not os.listdir(folder)), "a folder is left"
    for path in paths:
        assert mounting.wait_until_ended(path), "a daemon is left"


# The back ends share the code that ends a mount with its program: each signal and each kind of
# program is tried with one of them.
@pytest.mark.parametrize(
    ("name", "signo", "backend"),
    [
        *(("one", signal.SIGKILL, backend) for backend in mounting.BACKENDS),
        ("one", signal.SIGTERM, "native"), ("one", signal.SIGHUP, "kernel"),
        *((name, signal.SIGKILL, backend) for name, backend in zip(
            [*PROGRAMS][1:], itertools.cycle(mounting.BACKENDS), strict=False)),
    ],
    indirect=["backend"],
)  # fmt: skip
def test_nothing_is_left_of_a_mount_whose_program_was_killed(
    archive: Path, name: str, signo: signal.Signals, backend: str
) -> None:
    with program(PROGRAMS[name], archive, backend) as running:
        paths = running.paths()
        for path in paths:
            assert (path / "file").read_bytes() == b"content"
        running.process.send_signal(signo)
        assert running.process.wait(mounting.PATIENCE) == -signo
        assert_nothing_is_left(running.folder, paths)


def test_a_given_mountpoint_stays_when_its_program_is_killed(
    archive: Path, mountpoint: Path, backend: str
) -> None:
    with program(NAMED, archive, backend, str(mountpoint)) as running:
        paths = running.paths()
        running.process.kill()
        assert_nothing_is_left(running.folder, paths)
    assert os.listdir(mountpoint) == []


def test_open_files_can_be_read_after_the_program_was_killed(archive: Path, backend: str) -> None:
    """The mountpoint is free, and the daemon ends when the last file is closed."""
    with program(ONE, archive, backend) as running:
        (path,) = running.paths()
        with open(path / "folder/inside", "rb", buffering=0) as file:
            running.process.kill()
            assert mounting.wait_until(lambda: not os.path.lexists(path))
            assert file.read() == b"more"
        assert_nothing_is_left(running.folder, [path])


REPLACED = """
with mount(archive, backend=backend) as path:
    print(json.dumps([path]), flush=True)
    os.execv(sys.executable, [sys.executable, "-S", "-c", "input()"])
"""


def test_a_program_that_calls_exec_leaves_no_mount(archive: Path, backend: str) -> None:
    with program(REPLACED, archive, backend) as running:
        assert_nothing_is_left(running.folder, running.paths())
        assert running.process.poll() is None


DAEMONISED = """
with mount(archive, backend=backend) as path:
    if os.fork():
        os._exit(0)
    os.setsid()
    tell(path)
"""


def test_a_mount_is_not_inherited_by_a_program_that_goes_into_the_background(
    archive: Path, backend: str
) -> None:
    with program(DAEMONISED, archive, backend) as running:
        assert_nothing_is_left(running.folder, running.paths())


LEFT_BY_A_CHILD = """
with mount(archive, backend=backend) as path:
    child = os.fork()
    if child:
        assert os.waitpid(child, 0) == (child, 0)
        assert open(path + "/file").read() == "content"
        tell(path)
if child:
    assert not os.path.lexists(path)
    print("unmounted")
os._exit(0)
"""


def test_a_forked_child_that_leaves_the_block_does_not_end_the_mount(
    archive: Path, backend: str
) -> None:
    with program(LEFT_BY_A_CHILD, archive, backend) as running:
        paths = running.paths()
        assert running.process.communicate(timeout=mounting.PATIENCE)[0] == "unmounted\n"
        assert_nothing_is_left(running.folder, paths)


@pytest.mark.parametrize("signo", [*DEADLY, signal.SIGINT], ids=lambda signo: signo.name)
@pytest.mark.parametrize("to_all", [False, True], ids=["alone", "with its children"])
def test_nothing_is_left_of_a_program_that_was_killed_while_it_mounts(
    archive: Path, signo: signal.Signals, to_all: bool
) -> None:
    # A moment between creating the folder and mounting.
    moment = random.Random(f"{signo} {to_all}").uniform(0, 0.5)
    with program(ONE, archive, "native") as running:
        assert mounting.wait_until(lambda: bool(os.listdir(running.folder)))
        time.sleep(moment)
        (os.killpg if to_all else os.kill)(running.process.pid, signo)
        running.process.wait(mounting.PATIENCE)
        folder = [running.folder / name for name in os.listdir(running.folder)]
        assert_nothing_is_left(running.folder, folder)
