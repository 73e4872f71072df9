"""Many cycles of mounting and unmounting leave nothing behind."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.fuse.mounted import mounting
from tests.support import archives, handmade, trees

FEW, MANY = 20, 1_000

# Each cycle runs the commands in a forked process: starting Python would take longer than the rest.
# After each cycle, the remaining processes, descriptors and mounts are counted.
CYCLES = """
import contextlib, json, os, sys, time
import ffrecord.cli
from ffrecord_fuse import cli
from ffrecord_fuse.mounting.mount import unmount
from ffrecord_fuse.mounting.mounttable import find
with contextlib.suppress(ImportError):
    from ffrecord_fuse.libfuse import fusepy_adapter

archive, mountpoint, backend, count = sys.argv[1:]

def forked(run):
    pid = os.fork()
    if not pid:
        code = 99
        try:
            code = run()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

def others():
    found = 0
    for name in os.listdir("/proc"):
        with contextlib.suppress(OSError):
            if name.isdigit() and int(name) != os.getpid():
                with open(f"/proc/{name}/cmdline", "rb") as file:
                    found += os.fsencode(mountpoint) in file.read().split(b"\\0")
    return found

def table():
    with open("/proc/self/mountinfo") as file:
        return sum(mountpoint in line for line in file)

problems = []
descriptors = len(os.listdir("/proc/self/fd"))
for cycle in range(int(count)):
    code = forked(lambda: cli.main([archive, mountpoint, "--backend", backend, "--workers", "2"]))
    with open(mountpoint + "/file", "rb") as file:
        content = file.read()
    # Unmount with the command and with the function in turn.
    if cycle % 2:
        gone = forked(lambda: ffrecord.cli.main(["umount", mountpoint]))
    else:
        gone = unmount(mountpoint) or 0
    deadline = time.monotonic() + 600
    while others() and time.monotonic() < deadline:
        time.sleep(0.002)
    left = [code, gone, others(), table(), len(os.listdir("/proc/self/fd")) - descriptors]
    if any(left) or content != b"content" or os.listdir(mountpoint):
        problems.append([cycle, *left, repr(content)])
        break
print(json.dumps({"cycles": cycle + 1, "problems": problems}))
"""


@pytest.mark.parametrize("count", [FEW, pytest.param(MANY, marks=pytest.mark.long)])
def test_cycles_leave_no_process_descriptor_or_mount(
    tmp_path: Path, backend: str, count: int
) -> None:
    archives.pack(trees.plain_tree(tmp_path / "tree", {"file": b"content"}), tmp_path / "tree.ffr")
    mountpoint = tmp_path / "mnt"
    mountpoint.mkdir()
    with mounting.released(mountpoint):
        process = handmade.python(CYCLES, str(tmp_path / "tree.ffr"), str(mountpoint), backend,
                                  str(count))  # fmt: skip
        try:
            out, err = process.communicate(timeout=mounting.PATIENCE + count)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            raise
    assert process.returncode == 0, err
    assert json.loads(out) == {"cycles": count, "problems": []}
    assert not mounting.is_mounted(mountpoint)
    assert os.listdir(mountpoint) == []


def test_files_opened_in_a_mount_take_no_descriptors_of_its_daemon(
    tmp_path: Path, backend: str
) -> None:
    """A daemon has no table of open files: opening hundreds of files costs the daemon nothing."""
    archives.pack(trees.plain_tree(tmp_path / "tree", {"file": b"content"}), tmp_path / "tree.ffr")
    with mounting.mounted(tmp_path / "tree.ffr", tmp_path / "mnt", backend=backend) as path:
        (path / "file").read_bytes()
        before = descriptors(path)
        opened = [os.open(path / "file", os.O_RDONLY) for _ in range(500)]
        during = descriptors(path)
        for fd in opened:
            os.close(fd)
        assert before == during == descriptors(path)


def descriptors(mountpoint: Path) -> dict[int, int]:
    return {pid: len(os.listdir(f"/proc/{pid}/fd")) for pid in mounting.processes(mountpoint)}
