"""Undo a mount that cannot be finished, or that the user no longer wants."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator

from ffrecord_fuse.errors import MountError
from ffrecord_fuse.mounting.mount import unmount
from ffrecord_fuse.process.events import ENDING


def unmount_quietly(mountpoint: str) -> None:
    with contextlib.suppress(MountError, OSError):
        unmount(mountpoint, lazy=True)


@contextlib.contextmanager
def undone_if_interrupted(mountpoint: str) -> Iterator[None]:
    """Delay Ctrl-C and other ending signals while the block mounts; unmount if one has arrived.

    A signal in the middle of mounting would leave a mount behind. In the foreground, the supervisor
    receives these signals while it serves, and unmounts.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
    try:
        yield
        if signal.sigpending() & set(ENDING):
            unmount_quietly(mountpoint)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
