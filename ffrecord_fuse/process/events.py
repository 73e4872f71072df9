"""Waits for signals and for descriptors at the same time (signalfd)."""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Iterable

from ffrecord.disk.libc import signalfd


class Events:
    """Signals, which have to be blocked, and descriptors that become readable."""

    def __init__(self, signals: Iterable[signal.Signals], descriptors: Iterable[int] = ()) -> None:
        self._signals = set(signals)
        self._descriptors = tuple(descriptors)
        self._fd = signalfd(self._signals)
        self._poll = select.poll()
        for fd in (self._fd, *self._descriptors):
            self._poll.register(fd, select.POLLIN)

    def wait(self, seconds: float | None = None) -> int | None:
        """Return the next signal; None if a descriptor is readable, or after so many seconds."""
        self._poll.poll(None if seconds is None else seconds * 1000)
        found = signal.sigtimedwait(self._signals, 0)
        return None if found is None else found.si_signo

    def signals_only(self) -> None:
        """Wait for the descriptors no longer."""
        for fd in self._descriptors:
            self._poll.unregister(fd)
        self._descriptors = ()

    def close(self) -> None:
        os.close(self._fd)
