"""Wait for signals and for descriptors at the same time, with signalfd."""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Iterable

from ffrecord.disk.libc import signalfd

ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""The signals that end a mount."""


class Events:
    """Signals and readable descriptors to wait for. The caller must block the signals first.

    `tables` are descriptors of /proc/self/mountinfo: waiting ends when the mount table changes.
    """

    def __init__(
        self, signals: Iterable[signal.Signals], descriptors: Iterable[int] = (),
        tables: Iterable[int] = (),
    ) -> None:  # fmt: skip
        self._signals = set(signals)
        self._descriptors = tuple(descriptors)
        self._fd = signalfd(self._signals)
        self._poll = select.poll()
        for fd in (self._fd, *self._descriptors):
            self._poll.register(fd, select.POLLIN)
        for fd in tables:
            self._poll.register(fd, select.POLLPRI)

    def wait(self, seconds: float | None = None) -> int | None:
        """Return the next signal; None if a descriptor is readable or the time is over."""
        self._poll.poll(None if seconds is None else seconds * 1000)
        found = signal.sigtimedwait(self._signals, 0)
        return None if found is None else found.si_signo

    def signals_only(self) -> None:
        """Stop waiting for the descriptors."""
        for fd in self._descriptors:
            self._poll.unregister(fd)
        self._descriptors = ()

    def close(self) -> None:
        os.close(self._fd)
