"""Receive a worker's requests: spin for a while, then sleep. `Idling` keeps idle cores awake.

Waking a process on another core takes longer than most answers. So a worker spins before it sleeps:
it looks for requests again and again, and yields its core between looks. A worker stops spinning
when spinning no longer pays off.

While a client waits for an answer, the client's core is idle, and an idle core halts. Waking the
core takes longer than the answer: a virtual machine's host must schedule the core again, and a
physical core may be in a deep sleep. While a process keeps /dev/cpu_dma_latency open, no core of
the machine halts. A worker opens this file only while that pays off, and by default only on
machines with few cores. The kernel closes the file when the worker ends.
"""

from __future__ import annotations

import io
import os
import select
import struct
import time
from typing import Protocol

from ffrecord.machine import processors

DEFAULT_SPIN = 500
"""Microseconds."""

CROWDED = 30e-6
"""Seconds. If a yield takes longer, other processes need the core, and spinning stops."""

MOST_WORTH = 8
"""Spinning stops after this many consecutive waits that were longer than the spin time."""

BUSY = 64
"""Idle cores poll after this many consecutive requests that came within the spin time."""


class Disk(Protocol):
    """Reads whose completion the eventfd announces; see `ColdReads`."""

    def has_landed(self) -> bool: ...

    def clear_event(self) -> None: ...


class Inbox:
    """The requests on one descriptor.

    Without reads in flight, the worker sleeps in read(2), which is the cheapest way to wait. With
    reads in flight, the descriptor does not block, and epoll waits for requests and reads together.
    A new request wakes only one of the sleeping workers.
    """

    def __init__(self, fd: int, eventfd: int, spin: float, idling: Idling) -> None:
        self._fd = fd
        self._receive = io.FileIO(fd, closefd=False).readinto  # cheaper than os.readv
        self._requests = select.poll()
        self._requests.register(fd, select.POLLIN)
        self._anything = select.epoll()
        self._anything.register(fd, select.EPOLLIN | select.EPOLLEXCLUSIVE)
        self._anything.register(eventfd, select.EPOLLIN)
        self._eventfd = eventfd
        # On a single core, spinning would keep the client from running.
        self._spin = spin if processors.available() > 1 else 0.0
        self._worth = MOST_WORTH
        self._in_a_row = 0
        self._idling = idling
        self._blocks: bool | None = None

    def look(self, memory: memoryview) -> int | None:
        """Read a request and return its length; None if no request waits."""
        self._set_blocking(False)
        return self._receive(memory)

    def wait(self, memory: memoryview) -> int | None:
        """Wait for a request, read it and return its length; None if another worker was first."""
        if not self._spin:
            self._set_blocking(True)
            return self._receive(memory)
        began = time.perf_counter()
        came = self._worth > 0 and self._spin_until(began + self._spin, None)
        if not came:
            self._idling.halt()  # a sleeping mount must not keep cores awake
        self._set_blocking(not came)  # if another worker takes the request first, do not sleep
        try:
            return self._receive(memory)
        finally:
            self._learn(time.perf_counter() - began)

    def wait_for_anything(self, disk: Disk) -> float:
        """Wait until a request arrives or a read completes; return the seconds."""
        began = time.perf_counter()
        if self._spin and self._worth > 0 and self._spin_until(began + self._spin, disk):
            return time.perf_counter() - began
        self._idling.halt()
        for fd, _ in self._anything.poll():
            if fd == self._eventfd:
                disk.clear_event()
        waited = time.perf_counter() - began
        self._learn(waited)
        return waited

    def close(self) -> None:
        self._anything.close()
        self._idling.halt()

    def _learn(self, waited: float) -> None:
        """Record whether a wait was shorter than the spin time."""
        if waited < self._spin:
            self._worth = MOST_WORTH
            self._in_a_row += 1
            if self._in_a_row == BUSY:
                self._idling.poll()
        else:
            self._worth = max(self._worth - 1, 0)
            self._in_a_row = 0

    def _spin_until(self, deadline: float, disk: Disk | None) -> bool:
        requests, now = self._requests, time.perf_counter()
        while now < deadline:
            if requests.poll(0) or (disk is not None and disk.has_landed()):
                return True
            os.sched_yield()
            before, now = now, time.perf_counter()
            if now - before > CROWDED:
                self._in_a_row = 0
                return False
        return False

    def _set_blocking(self, blocks: bool) -> None:
        if self._blocks is not blocks:
            os.set_blocking(self._fd, blocks)
            self._blocks = blocks


DEVICE = "/dev/cpu_dma_latency"
FEW = 8
"""The most cores of a machine on which `idle=poll` is the default."""

_NO_LATENCY = struct.pack("=i", 0)  # microseconds


def can_poll() -> bool:
    """Return True if this user may make idle cores poll."""
    return os.access(DEVICE, os.W_OK)


class Idling:
    """Makes idle cores poll while one worker is busy, and lets them halt before it sleeps.

    Args:
        idle: "poll", "halt", or None to decide by the number of cores.
    """

    def __init__(self, idle: str | None = None) -> None:
        # All cores of the machine: the setting affects every one of them.
        self._may_poll = (os.cpu_count() or 1) <= FEW if idle is None else idle == "poll"
        self._fd = -1

    def poll(self) -> None:
        """Make idle cores poll from now on. Needs root; for other users this is a no-op."""
        if not self._may_poll or self._fd >= 0:
            return
        try:
            self._fd = os.open(DEVICE, os.O_WRONLY | os.O_CLOEXEC)
            os.write(self._fd, _NO_LATENCY)
        except OSError:
            self._may_poll = False
            self.halt()

    def halt(self) -> None:
        """Let idle cores halt again."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
