"""Wait for signals and for descriptors at the same time, with signalfd."""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Iterable

from ffrecord.disk.libc import signalfd


class Events:
    """Signals and readable descriptors to wait for. The caller must block the signals first."""

    def __init__(self, signals: Iterable[signal.Signals], descriptors: Iterable[int] = ()) -> None:
        self._signals = set(signals)
        self._descriptors = tuple(descriptors)
        self._fd = signalfd(self._signals)
        self._poll = select.poll()
        for fd in (self._fd, *self._descriptors):
            self._poll.register(fd, select.POLLIN)

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
