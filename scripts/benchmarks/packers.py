"""The contestants of `pack`: ways to make one file, or one copy, of a folder.

This module imports nothing large. Commands are started from a process that has loaded only this
module, because the peak memory of a process begins with the memory of its parent.
"""

from __future__ import annotations

import mmap
import os
import resource
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from . import harness, memory


class CommandError(Exception):
    """Raised when a command fails; the message is the last line of its output."""


class Packer(ABC):
    """A way to pack a folder."""

    def __init__(self, name: str, result: str, *, durable: bool = False) -> None:
        self.name = name
        self.result = result
        """The name of the packed file; zip requires the suffix .zip."""
        self.durable = durable
        """True if syncing the result is part of the measurement."""

    @abstractmethod
    def ready(self, folder: Path, out: Path) -> Callable[[], None]:
        """Prepare everything that is not measured, and return the function that packs."""

    @abstractmethod
    def peak_memory(self) -> int:
        """Return the peak memory of packing in bytes; called after packing."""


class Library(Packer):
    """A call of `pack_folder`, which does its own fsync."""

    def __init__(self, name: str, result: str, *, align: int | None = None) -> None:
        super().__init__(name, result)
        self.align = align

    def ready(self, folder: Path, out: Path) -> Callable[[], None]:
        from ffrecord.archive.pack import pack_folder

        def pack() -> None:
            pack_folder(folder, out, align=self.align)

        return pack

    def peak_memory(self) -> int:
        return memory.peak()


class Command(Packer):
    """A program, measured from its start to its end. {folder} stands for its working folder."""

    def __init__(
        self, name: str, result: str, command: Sequence[str], *, durable: bool = False
    ) -> None:
        super().__init__(name, result, durable=durable)
        self.command = command

    def ready(self, folder: Path, out: Path) -> Callable[[], None]:
        command = [part.format(folder=folder, out=out) for part in self.command]

        def pack() -> None:
            run(command, folder)

        return pack

    def peak_memory(self) -> int:
        # The measuring process has no other children.
        return resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024


class DiskAlone(Packer):
    """Writes as many bytes as a folder has, past the page cache, and syncs them.

    It reads and computes nothing: no durable copy of the folder can be faster.
    """

    PIECE = 4 << 20
    AT_ONCE = 4

    def ready(self, folder: Path, out: Path) -> Callable[[], None]:
        size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
        piece = mmap.mmap(-1, self.PIECE)  # page-aligned, as O_DIRECT requires
        piece.write(os.urandom(self.PIECE))

        def write(fd: int, offset: int) -> None:
            if os.pwrite(fd, piece, offset) != self.PIECE:
                raise CommandError("a write to disk was short")

        def pack() -> None:
            fd = os.open(out, os.O_WRONLY | os.O_CREAT | os.O_DIRECT, 0o600)
            try:
                with ThreadPoolExecutor(self.AT_ONCE) as threads:
                    for done in [
                        threads.submit(write, fd, offset) for offset in range(0, size, self.PIECE)
                    ]:
                        done.result()
                os.fsync(fd)
            finally:
                os.close(fd)

        return pack

    def peak_memory(self) -> int:
        return memory.peak()


def run(command: Sequence[str], folder: Path) -> str:
    """Run a command in a folder, and return its output."""
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        words = (done.stderr or done.stdout).strip().splitlines()
        raise CommandError(words[-1] if words else f"exit status {done.returncode}")
    return done.stdout


def has_command_line() -> bool:
    """Return True if this version of FFRecord has the `pack` command."""
    try:
        run([*FFRECORD, "pack", "--help"], harness.ROOT)
    except CommandError:
        return False
    return True


def versions() -> dict[str, str]:
    """Return the version line of each program."""
    asked = {
        "tar": ("--version", 0),
        "cp": ("--version", 0),
        "mksquashfs": ("-version", 0),
        "zip": ("-v", 1),
    }
    found = {}
    for program, (option, line) in asked.items():
        try:
            found[program] = run([program, option], harness.ROOT).splitlines()[line]
        except (CommandError, OSError):
            found[program] = "not found"
    return found


FFRECORD = (sys.executable, "-m", "ffrecord")
_TAR = ("tar", "cf", "{out}", ".")
_CP = ("cp", "-r", "{folder}", "{out}")

OURS = Library("ours", "packed.ffr")
OURS_ALIGNED = Library("ours, aligned", "packed.aligned", align=512)
OURS_COMMAND = Command(
    "ours, command line", "packed.ffr", [*FFRECORD, "pack", "{folder}", "{out}", "--no-progress"]
)
TAR = Command("tar", "packed.tar", _TAR)
TAR_DURABLE = Command("tar + fsync", "packed.tar", _TAR, durable=True)
CP = Command("cp -r", "packed", _CP)
CP_DURABLE = Command("cp -r + fsync", "packed", _CP, durable=True)
DISK = DiskAlone("the disk alone", "packed.raw")
# No compression and, like ours, no search for duplicates. mksquashfs keeps extended attributes, as
# ours does; tar and zip do not with the options used here.
SQUASHFS_OPTIONS = ("-noI", "-noD", "-noF", "-noX", "-no-duplicates")
SQUASHFS = Command(
    "mksquashfs",
    "packed.squashfs",
    ["mksquashfs", ".", "{out}", *SQUASHFS_OPTIONS, "-noappend", "-no-progress", "-quiet"],
)
EROFS = Command("mkfs.erofs", "packed.erofs", ["mkfs.erofs", "--quiet", "{out}", "."])
ZIP = Command("zip -0", "packed.zip", ["zip", "-0", "-r", "-q", "{out}", "."])

PACKERS: dict[str, Packer] = {
    packer.name: packer
    for packer in (OURS, OURS_COMMAND, TAR, TAR_DURABLE, CP, CP_DURABLE, DISK, SQUASHFS, ZIP)
}
