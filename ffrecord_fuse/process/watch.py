"""Watch a mount that the kernel serves: wait for its end, or end it.

Such a mount needs no process. But `ffrecord mount -f` stays in the foreground, and a mount made by
a `with` block in Python ends with its program. Both need a small process that runs `main`, without
the index of the archive and without numpy, and ends with the mount.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import NoReturn

from ffrecord_fuse.errors import MountError
from ffrecord_fuse.mounting.lifeline import Caller
from ffrecord_fuse.mounting.mount import unmount
from ffrecord_fuse.mounting.mounttable import MOUNTINFO, connection_at
from ffrecord_fuse.process.events import ENDING, Events

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


def start(mountpoint: str, number: int, log_file: str, caller: Caller) -> None:
    """Start a process that ends the mount with its caller."""
    descriptors = " ".join(map(str, caller.descriptors))
    arguments = [mountpoint, str(number), log_file, descriptors, caller.folder_path or ""]
    subprocess.Popen(
        [sys.executable, "-c", _COMMAND, *arguments], pass_fds=caller.descriptors, cwd="/",
        start_new_session=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )  # fmt: skip


def become(mountpoint: str, number: int, log_file: str) -> NoReturn:
    """Turn this process into one that waits in the foreground.

    The signals that end a mount must be blocked. A new program has one thread. Here, threads of
    numpy would receive signals that the main thread has blocked.
    """
    arguments = [mountpoint, str(number), log_file]
    os.execv(sys.executable, [sys.executable, "-c", _COMMAND, *arguments])


def main(
    mountpoint: str, number: str, log_file: str, descriptors: str = "", folder: str = ""
) -> None:
    """Run the process of `start` or `become`. Without descriptors it is in the foreground."""
    caller = None
    if descriptors:
        caller = Caller([int(fd) for fd in descriptors.split()], folder or None)

    def log(text: str) -> None:
        from ffrecord_fuse.serve.report import Log  # imports numpy, so only if there is a line

        Log(log_file or None, foreground=caller is None).line(text)

    watch(mountpoint, int(number), log, caller)
    if caller is None:
        log(f"unmounted {mountpoint}")
