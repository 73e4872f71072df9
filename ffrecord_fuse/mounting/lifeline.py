"""Ends a mount with the program that made it, however that program ends.

The caller hands the daemon two descriptors:

- the reading end of a pipe. It comes to its end when the caller closes its own end, exits, or
  becomes another program (exec);
- a pidfd of the caller, which tells of its death even while processes that it has forked keep the
  pipe open. Some sandboxes refuse pidfds; the pipe alone will do there.

A forked child neither keeps a mount alive nor ends it: the mount belongs to the process that made
it.
"""

from __future__ import annotations

import contextlib
import os
import select
import threading
from collections.abc import Callable, Iterator, Sequence

from ffrecord_fuse.errors import MountError
from ffrecord_fuse.mounting.mount import unmount
from ffrecord_fuse.mounting.mounttable import connection_at

RELEASE_SECONDS = 10.0
_held: set[int] = set()
"""The writing ends of this process."""


class Lifeline:
    """The caller's end. Mounts that were given `descriptors` last until it is closed."""

    def __init__(self) -> None:
        theirs, self._pipe = os.pipe()
        self.descriptors = [theirs]
        with contextlib.suppress(OSError):
            self.descriptors.append(os.pidfd_open(os.getpid()))
        _held.add(self._pipe)

    def handed_over(self) -> None:
        """Close the descriptors that the daemon has by now."""
        while self.descriptors:
            os.close(self.descriptors.pop())

    def close(self) -> None:
        self.handed_over()
        if self._pipe in _held:
            _held.discard(self._pipe)
            os.close(self._pipe)


def _close_in_child() -> None:
    while _held:
        with contextlib.suppress(OSError):
            os.close(_held.pop())


os.register_at_fork(after_in_child=_close_in_child)


class Caller:
    """The program that a mount belongs to, as the daemon sees it.

    Args:
        descriptors: those of a `Lifeline`.
        folder: a folder to make for the mount, and to remove when the caller has ended.
    """

    def __init__(self, descriptors: Sequence[int], folder: str | None = None) -> None:
        self.descriptors = tuple(descriptors)
        self._folder = folder
        self._released = threading.Event()
        self._poll = select.poll()
        for fd in self.descriptors:
            os.set_inheritable(fd, False)
            self._poll.register(fd, select.POLLIN)

    def has_ended(self) -> bool:
        return bool(self._poll.poll(0))

    def wait(self) -> None:
        """Return when the caller has ended."""
        self._poll.poll()

    @contextlib.contextmanager
    def folder(self) -> Iterator[None]:
        """Make the folder; remove it again if mounting fails."""
        if self._folder is not None:
            os.mkdir(self._folder, 0o700)
        try:
            yield
        except BaseException:
            self._remove_folder()
            raise

    def release(self, mountpoint: str, connection: int | None, log: Callable[[str], None]) -> None:
        """Unmount lazily after the caller's end: other programs may still read open files.

        A caller that ends in good order has unmounted already.
        """
        if connection is not None and connection_at(mountpoint) == connection:
            log(f"unmounting {mountpoint}: the program that mounted it has ended")
            try:
                unmount(mountpoint, lazy=True)
            except MountError as error:
                log(f"cannot unmount {mountpoint}: {error.strerror}")
        self._remove_folder()
        self._released.set()

    def wait_for_release(self) -> None:
        """Return when another thread is through with `release`."""
        self._released.wait(RELEASE_SECONDS)

    def _remove_folder(self) -> None:
        if self._folder is not None:
            with contextlib.suppress(OSError):
                os.rmdir(self._folder)
