"""What processors do that have nothing to do: halt, or poll while requests keep coming.

Whoever waits for an answer leaves its core idle, and an idle core halts. Waking it takes longer
than the answer did: of a virtual machine the host has to put it back to work, on others it is in
some deep sleep. The kernel lets a process ask that this does not happen, for as long as it keeps
/dev/cpu_dma_latency open; when it dies, that ends as well. The wish holds for all cores of the
machine, so it is made only while it pays, and by default only where those are few.
"""

from __future__ import annotations

import os
import struct

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
