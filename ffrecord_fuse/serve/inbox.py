"""Where a worker's requests come in: it looks for a while, then sleeps; `Idling` keeps cores awake.

Waking a process on another core takes longer than most answers. So a worker goes on looking before
it sleeps, for as long as that has been paying, and yields its core between looks.

A client that waits for an answer leaves its core idle, and an idle core halts. Waking it takes
longer than the answer did: on a virtual machine the host has to schedule it again, on others it may
be in a deep sleep. A process that keeps /dev/cpu_dma_latency open forbids that; the kernel ends it
with the process. It holds for all cores of the machine, so it is done only while it pays, and by
default only on machines with few cores.
"""

from __future__ import annotations

import io
import os
import select
import struct
import time
from typing import Protocol

DEFAULT_SPIN = 500
"""Microseconds."""

CROWDED = 30e-6
"""Seconds that giving the core away has taken when others wanted it: they need it more."""

MOST_WORTH = 8
"""So often in a row staying awake may have been for nothing before it is given up."""

BUSY = 64
"""So many requests in a row that came while it was awake are worth more than one core's time."""


class Disk(Protocol):
    """Reads whose end is announced on the eventfd; see `ColdReads`."""

    def has_landed(self) -> bool: ...

    def clear_event(self) -> None: ...


class Inbox:
    """The requests on one descriptor.

    Of several workers that sleep, one is woken. A sleeping read is the cheapest way to wait, so
    that is done while nothing else can happen; while reads are under way, the descriptor does not
    block, and both are waited for.
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
        # On one core, whoever is waited for could not run meanwhile.
        self._spin = spin if len(os.sched_getaffinity(0)) > 1 else 0.0
        self._worth = MOST_WORTH
        self._in_a_row = 0
        self._idling = idling
        self._blocks: bool | None = None

    def look(self, memory: memoryview) -> int | None:
        """Read a request, if there is one: how many bytes; None if not."""
        self._set_blocking(False)
        return self._receive(memory)

    def wait(self, memory: memoryview) -> int | None:
        """Read a request, when there is one; None if another worker was first."""
        if not self._spin:
            self._set_blocking(True)
            return self._receive(memory)
        began = time.perf_counter()
        came = self._worth > 0 and self._spin_until(began + self._spin, None)
        if not came:
            self._idling.halt()  # nothing is asked of the machine by a mount that sleeps
        self._set_blocking(not came)  # another worker may be first: that is not slept on
        try:
            return self._receive(memory)
        finally:
            self._learn(time.perf_counter() - began)

    def wait_for_anything(self, disk: Disk) -> None:
        """Until there is a request, or a read has ended."""
        began = time.perf_counter()
        if self._spin and self._worth > 0 and self._spin_until(began + self._spin, disk):
            return
        self._idling.halt()
        for fd, _ in self._anything.poll():
            if fd == self._eventfd:
                disk.clear_event()
        self._learn(time.perf_counter() - began)

    def close(self) -> None:
        self._anything.close()
        self._idling.halt()

    def _learn(self, waited: float) -> None:
        """Whether it would have paid to stay awake for as long as that."""
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
"""Cores that may poll without being asked to."""

_NO_LATENCY = struct.pack("=i", 0)  # microseconds


class Idling:
    """The wish of one worker that idle cores poll; made and taken back again and again.

    Args:
        idle: "poll", "halt", or None for what suits the machine.
    """

    def __init__(self, idle: str | None = None) -> None:
        self._may_poll = (os.cpu_count() or 1) <= FEW if idle is None else idle == "poll"
        self._fd = -1

    def poll(self) -> None:
        """Have idle cores poll from now on. It is for root; who may not does without."""
        if not self._may_poll or self._fd >= 0:
            return
        try:
            self._fd = os.open(DEVICE, os.O_WRONLY | os.O_CLOEXEC)
            os.write(self._fd, _NO_LATENCY)
        except OSError:
            self._may_poll = False
            self.halt()

    def halt(self) -> None:
        """Let them halt again."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
