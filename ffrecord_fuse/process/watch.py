"""Watch a mount that the kernel serves: wait for its end, or end it.

Such a mount needs no process. But `ffrecord mount -f` stays in the foreground, and a mount made by
a `with` block in Python ends with its program. A copy of a remote archive in the cache must be kept
while the kernel reads it. All three need a small process that runs `main`, without the index of the
archive and without numpy, and ends with the mount.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NoReturn

from ffrecord_fuse.errors import MountError
from ffrecord_fuse.mounting.lifeline import Caller
from ffrecord_fuse.mounting.mount import unmount
from ffrecord_fuse.mounting.mounttable import MOUNTINFO, connection_at
from ffrecord_fuse.process.events import ENDING, Events

MOST_PAUSE = 5.0
"""Seconds between two looks whether a copy is still in use."""

# `python -m` would import from the current folder first, which may contain a numpy.py.
_COMMAND = """
import sys
sys.path[:] = filter(None, sys.path)
from ffrecord_fuse.process.watch import main
main(*sys.argv[1:])
"""


def watch(
    mountpoint: str, number: int, log: Callable[[str], None], caller: Caller | None = None
) -> None:
    """Wait until a mount ends. Unmount after an ending signal, or when the caller has ended."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
    descriptors = () if caller is None else caller.descriptors
    try:
        with (
            open(MOUNTINFO, "rb") as table,
            contextlib.closing(Events(ENDING, descriptors, [table.fileno()])) as events,
        ):
            while connection_at(mountpoint) == number:
                signo = events.wait()
                if signo is not None:
                    log(f"unmounting {mountpoint}: received {signal.Signals(signo).name}")
                    _unmount(mountpoint, log)
                    return
                if caller is not None and caller.has_ended():
                    break
        if caller is not None and caller.has_ended():
            caller.release(mountpoint, number, log)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _unmount(mountpoint: str, log: Callable[[str], None]) -> None:
    try:
        unmount(mountpoint, lazy=True)
    except MountError as error:
        log(f"cannot unmount {mountpoint}: {error.strerror}")


@dataclass(frozen=True, slots=True)
class Pins:
    """Descriptors of the copies in the cache that the kernel reads, and their locks.

    The cache does not change a copy while a process has its lock open.
    """

    locks: tuple[int, ...] = ()
    copies: tuple[int, ...] = ()

    @property
    def descriptors(self) -> tuple[int, ...]:
        return self.locks + self.copies

    def wait(self) -> None:
        """Wait until nobody has the copies open any more.

        After a lazy unmount, programs still read files through the mount. Only who is alone gets a
        lease for writing, so a lease is the way to ask.
        """
        pause = 0.01
        for copy in self.copies:
            fd = os.open(f"/proc/self/fd/{copy}", os.O_RDONLY | os.O_CLOEXEC)
            os.close(copy)
            while True:
                try:
                    fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
                    break
                except BlockingIOError:
                    time.sleep(pause)
                    pause = min(2 * pause, MOST_PAUSE)
                except OSError:  # a file system without leases
                    break
            os.close(fd)


def start(mountpoint: str, number: int, log_file: str, caller: Caller | None, pins: Pins) -> None:
    """Start a process that ends the mount with its caller, and keeps the pins."""
    lifeline = () if caller is None else caller.descriptors
    folder = "" if caller is None or caller.folder_path is None else caller.folder_path
    arguments = _arguments(mountpoint, number, log_file, pins, lifeline, folder)
    subprocess.Popen(
        [sys.executable, "-c", _COMMAND, *arguments], pass_fds=(*lifeline, *pins.descriptors),
        cwd="/", start_new_session=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )  # fmt: skip


def _arguments(
    mountpoint: str, number: int, log_file: str, pins: Pins, lifeline: Sequence[int] = (),
    folder: str = "", is_foreground: bool = False,
) -> list[str]:  # fmt: skip
    """Return the arguments of `main`."""
    lists = [" ".join(map(str, each)) for each in (lifeline, pins.locks, pins.copies)]
    return [mountpoint, str(number), log_file, *lists, folder, "-f" * is_foreground]


def become(mountpoint: str, number: int, log_file: str, pins: Pins) -> NoReturn:
    """Turn this process into one that waits in the foreground.

    The signals that end a mount must be blocked. A new program has one thread. Here, threads of
    numpy would receive signals that the main thread has blocked.
    """
    for fd in pins.descriptors:
        os.set_inheritable(fd, True)
    arguments = _arguments(mountpoint, number, log_file, pins, is_foreground=True)
    os.execv(sys.executable, [sys.executable, "-c", _COMMAND, *arguments])


def main(
    mountpoint: str, number: str, log_file: str, lifeline: str, locks: str, copies: str,
    folder: str, flag: str,
) -> None:  # fmt: skip
    """Run the process of `start` or `become`."""
    caller = Caller(_numbers(lifeline), folder or None) if lifeline else None

    def log(text: str) -> None:
        from ffrecord_fuse.serve.report import Log  # imports numpy, so only if there is a line

        Log(log_file or None, foreground=bool(flag)).line(text)

    watch(mountpoint, int(number), log, caller)
    if caller is None:
        log(f"unmounted {mountpoint}")
    Pins(_numbers(locks), _numbers(copies)).wait()


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split()))
