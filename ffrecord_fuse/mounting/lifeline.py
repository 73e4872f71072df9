"""End a mount together with the program that made it, however that program ends.

The program that mounts (the caller) gives the daemon two descriptors:

- The reading end of a pipe. It reports end of file when the caller closes the writing end, exits,
  or runs another program (exec).
- A pidfd of the caller. It reports the caller's death even while forked children keep the pipe
  open. Some sandboxes refuse pidfds. Then only the pipe is used.

The mount belongs to the process that made it. A forked child neither keeps the mount alive nor ends
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
"""The longest wait for another thread's `release` at the end of the process."""
_held: set[int] = set()
"""The writing ends of this process's pipes."""


class Lifeline:
    """The caller's side. The mount that received `descriptors` lasts until `close`."""

    def __init__(self) -> None:
        theirs, self._pipe = os.pipe()
        self.descriptors = [theirs]
        with contextlib.suppress(OSError):
            self.descriptors.append(os.pidfd_open(os.getpid()))
        _held.add(self._pipe)

    def handed_over(self) -> None:
        """Close the descriptors after the daemon has received its copies."""
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
    """The daemon's side: represents the program that a mount belongs to.

    Args:
        descriptors: the descriptors of a `Lifeline`.
        folder: a folder to create for the mount, and to remove after the caller has ended.
    """

    def __init__(self, descriptors: Sequence[int], folder: str | None = None) -> None:
        self.descriptors = tuple(descriptors)
        self.folder_path = folder
        self._released = threading.Event()
        self._poll = select.poll()
        for fd in self.descriptors:
            os.set_inheritable(fd, False)
            self._poll.register(fd, select.POLLIN)

    def has_ended(self) -> bool:
        return bool(self._poll.poll(0))

    def wait(self) -> None:
        """Wait until the caller has ended."""
        self._poll.poll()

    @contextlib.contextmanager
    def folder(self) -> Iterator[None]:
        """Create the folder; remove it again if mounting fails."""
        if self.folder_path is not None:
            os.mkdir(self.folder_path, 0o700)
        try:
            yield
        except BaseException:
            self._remove_folder()
            raise

    def release(self, mountpoint: str, connection: int | None, log: Callable[[str], None]) -> None:
        """Unmount after the caller's end, if the caller has not done so.

        The unmount is lazy: other programs can still read files that they have open.
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
        """Wait until another thread has finished `release`."""
        self._released.wait(RELEASE_SECONDS)

    def _remove_folder(self) -> None:
        if self.folder_path is not None:
            with contextlib.suppress(OSError):
                os.rmdir(self.folder_path)
