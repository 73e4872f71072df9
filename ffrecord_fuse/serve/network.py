"""Reads over the network: the errno and the log of failures, and the counters of requests.

A lost network makes every read fail. So the log has one line when failures begin, and one when
reads work again.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Callable

from ffrecord.archive.archive import Archive
from ffrecord.disk.source import SourceSet
from ffrecord.errors import ChangedError, RemoteError
from ffrecord.records.reader import table_of
from ffrecord.text import counted
from ffrecord_fuse.serve import report
from ffrecord_fuse.serve.piecereads import Facts

TELLING_PAUSE = 0.1
"""Seconds between two reports of measurements. Counting what is in a large cache takes time."""

MEASUREMENTS = ("request_seconds", "bytes_per_second", "cached_bytes")
GONE = "replaced or deleted while it was mounted; unmount it, then mount it again"


def errno_of(error: Exception) -> int | None:
    """Return the errno for a program whose read failed over the network; None for other errors.

    ESTALE tells a replaced or deleted object from a lost network and from damage.
    """
    if isinstance(error, (ChangedError, FileNotFoundError)):
        return errno.ESTALE
    return errno.EIO if isinstance(error, (RemoteError, PermissionError)) else None


def finish() -> None:
    """Let other processes find what was written into the cache, after the mount has ended."""
    from ffrecord.remote.cache import publisher  # loaded with the first URL

    publisher.publish_all()


class Outage:
    """Counts one worker's failed reads, and logs the first one since a read worked."""

    def __init__(self, path: str, counts: memoryview, log: Callable[[str], None]) -> None:
        self._path = path
        self._counts = counts
        self._log = log
        self._failed = 0

    def tell(self, error: Exception) -> None:
        """Count a failed read."""
        self._counts[report.ERRORS] += 1
        self._failed += 1
        if self._failed == 1:
            is_gone = errno_of(error) == errno.ESTALE
            self._log(f"{self._path}: {GONE}" if is_gone else f"reading fails: {error}")

    def ends(self) -> None:
        """Take note of a read that worked."""
        if self._failed:
            self._log(
                f"{self._path}: reading works again after {counted(self._failed, 'failed read')}"
            )
            self._failed = 0


class Traffic:
    """Adds one worker's requests to the counters, and tells the measurements."""

    def __init__(self, archive: Archive, counts: memoryview, tell: Callable[[Facts], None]) -> None:
        self._reader = archive.reader
        self._counts = counts
        self._tell = tell
        self._before = self._reader.stats()  # requests of the process that mounted
        self._told = 0.0
        self.note()

    def note(self) -> None:
        """Add the requests since the last call."""
        sources = table_of(self._reader).require_open()
        assert not isinstance(sources, SourceSet)
        now = sources.traffic()
        columns = (report.REQUESTS, report.REPEATED, report.RECEIVED)
        for name, column in zip(report.NETWORK, columns, strict=True):
            self._counts[column] += now[name] - self._before[name]
        self._before = now
        if time.monotonic() >= self._told + TELLING_PAUSE:
            self._told = time.monotonic()
            facts = sources.stats()
            self._tell({name: facts[name] for name in MEASUREMENTS})
