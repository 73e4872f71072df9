"""The contestants of `mount`: ways to see a packed folder as files again.

Each is a command line that mounts and returns. FUSE leaves a daemon behind, the kernel does not.
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from . import harness, packers, processes
from .packers import FFRECORD, CommandError, Packer

MOUNT_TIMEOUT = 120.0
"""Seconds; ratarmount makes its index at the first mount."""
UNMOUNT_TIMEOUT = 20.0
PATIENCE = 5.0
"""Seconds in which a daemon must end after its mount."""
POLL = 0.001


class Server(Enum):
    """The part of the system that fetches the bytes of a file, and pays for it."""

    DAEMON = "daemon"
    CLIENT = "client"
    """The kernel, on behalf of the process that reads."""
    LOOP = "loop"
    """The kernel through a loop device. No process is charged for the bytes from the disk."""


@dataclass(frozen=True, slots=True)
class Mounted:
    """The folder of the files, the seconds of mounting, and the mark of the serving processes."""

    top: Path
    seconds: float
    mark: str


@dataclass(frozen=True, slots=True)
class Mounter:
    """A way to mount the result of a packer. {archive} and {point} stand for the two paths."""

    name: str
    packer: Packer
    command: Sequence[str]
    unmount: Sequence[str] = ("fusermount3", "-u", "{point}")
    server: Server = Server.DAEMON

    @contextmanager
    def mounted(self, archive: Path, point: Path, witness: str) -> Iterator[Mounted]:
        """Mount until the block ends. The mount is ready when it has the file `witness`."""
        point.mkdir(parents=True, exist_ok=True)
        clear(point)  # a killed run may have left its mount
        try:
            began = time.perf_counter()
            _run(_filled(self.command, archive, point), str(point), MOUNT_TIMEOUT)
            _wait_for(point / witness)
            yield Mounted(point, time.perf_counter() - began, str(point))
            _run(_filled(self.unmount, archive, point), str(point), UNMOUNT_TIMEOUT)
        finally:
            clear(point)


class SourceFolder(Mounter):
    """The packed files themselves: nothing is mounted."""

    __slots__ = ()

    @contextmanager
    def mounted(self, archive: Path, point: Path, witness: str) -> Iterator[Mounted]:
        yield Mounted(archive, 0.0, str(point))


def clear(point: Path) -> None:
    """Unmount everything at `point`, and end every process that serves it.

    If something is still mounted, its daemon is killed before unmounting, because a daemon that
    hangs would block the unmounting.
    """
    mark = str(point)
    processes.end(mark, 0 if _is_mounted(point) else PATIENCE)
    while _is_mounted(point):
        commands = (["fusermount3", "-u", mark], ["umount", mark], ["umount", "-l", mark])
        if not any(_succeeds(command) for command in commands):
            raise CommandError(f"{point}: cannot be unmounted; try umount -l as root")


def versions() -> dict[str, str]:
    """Return the version line of each program."""
    asked = {
        "squashfuse": ["squashfuse_ll", "--help"],
        "mksquashfs": ["mksquashfs", "-version"],
        "mkfs.erofs": ["mkfs.erofs", "--help"],
        "fuse-zip": ["fuse-zip", "-V"],
        "fusermount3": ["fusermount3", "-V"],
        "tar": ["tar", "--version"],
        "zip": ["zip", "-v"],
    }
    return {program: _version(program, command) for program, command in asked.items()}


def _filled(command: Sequence[str], archive: Path, point: Path) -> list[str]:
    return [part.format(archive=archive, point=point) for part in command]


def _run(command: Sequence[str], mark: str, timeout: float) -> None:
    """Run a command that may leave a daemon behind.

    Its output goes to a file, because a daemon that keeps a pipe open would block the reader.
    """
    # Where both are installed, mfusepy prefers libfuse 2, which is slower.
    environment = {**os.environ, processes.MARK: mark, "FUSE_LIBRARY_NAME": "fuse3"}
    with tempfile.TemporaryFile("w+") as output:
        try:
            status = subprocess.run(
                command,
                cwd=harness.ROOT,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                timeout=timeout,
                check=False,
            ).returncode
        except FileNotFoundError:
            raise CommandError(f"{command[0]} is not installed") from None
        except subprocess.TimeoutExpired:
            raise CommandError(f"{command[0]}: still running after {timeout:.0f} s") from None
        if status:
            output.seek(0)
            words = output.read().strip().splitlines()
            raise CommandError(words[-1] if words else f"exit status {status}")


def _wait_for(file: Path) -> None:
    deadline = time.monotonic() + MOUNT_TIMEOUT
    while True:
        try:
            file.stat()
            return
        except OSError as error:
            if time.monotonic() > deadline:
                raise CommandError(f"mounted, but {error}") from None
            time.sleep(POLL)


def _is_mounted(point: Path) -> bool:
    """Ask the kernel's list of mounts: a stat in a mount with a dead daemon fails or hangs.

    The list is bytes: other programs may mount at names that are not text.
    """
    escaped = os.fsencode(point).replace(b"\\", rb"\134").replace(b" ", rb"\040")
    lines = Path("/proc/self/mountinfo").read_bytes().splitlines()
    return any(line.split()[4] == escaped for line in lines)


def _succeeds(command: Sequence[str]) -> bool:
    try:
        done = subprocess.run(command, capture_output=True, timeout=UNMOUNT_TIMEOUT, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def _version(program: str, command: Sequence[str]) -> str:
    try:
        # Some programs print it to standard error, after other lines, or with an exit status.
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return "not found"
    found = re.search(rf"^.*{program}.*\d\.\d.*$", done.stderr + done.stdout, re.I | re.M)
    return found[0] if found else "unknown"


def _loop(kind: str) -> tuple[str, ...]:
    return ("mount", "-t", kind, "-o", "loop,ro", "{archive}", "{point}")


_OURS = (*FFRECORD, "mount", "{archive}", "{point}")
_OURS_UNMOUNT = (*FFRECORD, "umount", "{point}")
_OURS_KERNEL = (*_OURS, "--backend", "kernel")
_UMOUNT = ("umount", "{point}")
_RATARMOUNT = (FFRECORD[0], "-m", "ratarmount", "{archive}", "{point}")

OURS = Mounter("ours", packers.OURS, _OURS, _OURS_UNMOUNT)
OURS_FUSEPY = Mounter("ours, fusepy", packers.OURS, (*_OURS, "--backend", "fusepy"), _OURS_UNMOUNT)
OURS_KERNEL = Mounter("ours, kernel", packers.OURS, _OURS_KERNEL, _OURS_UNMOUNT, Server.CLIENT)
OURS_ALIGNED = Mounter(
    "ours, kernel, aligned", packers.OURS_ALIGNED, _OURS_KERNEL, _OURS_UNMOUNT, Server.CLIENT
)
SQUASHFS = Mounter("squashfs, kernel", packers.SQUASHFS, _loop("squashfs"), _UMOUNT, Server.LOOP)
EROFS = Mounter("erofs, kernel", packers.EROFS, _loop("erofs"), _UMOUNT, Server.LOOP)
SQUASHFUSE = Mounter("squashfuse_ll", packers.SQUASHFS, ("squashfuse_ll", "{archive}", "{point}"))
RATARMOUNT = Mounter("ratarmount", packers.TAR, _RATARMOUNT)
FUSE_ZIP = Mounter("fuse-zip", packers.ZIP, ("fuse-zip", "-r", "{archive}", "{point}"))
SOURCE = SourceFolder("source folder", packers.CP, (), (), Server.CLIENT)

MOUNTERS = {
    mounter.name: mounter
    for mounter in (
        OURS,
        OURS_FUSEPY,
        OURS_KERNEL,
        OURS_ALIGNED,
        SQUASHFS,
        EROFS,
        SQUASHFUSE,
        RATARMOUNT,
        FUSE_ZIP,
        SOURCE,
    )
}
