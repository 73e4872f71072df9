"""Reads over the network: the errno and the log of failures, and the counters of requests.

A lost network makes every read fail. So the log has one line when failures begin, and one when
reads work again.
"""

from __future__ import annotations

import errno
from collections.abc import Callable

from ffrecord.archive.archive import Archive
from ffrecord.errors import ChangedError, RemoteError
from ffrecord.text import counted
from ffrecord_fuse.serve import report
from ffrecord_fuse.serve.piecereads import Facts

CHANGED = "mount it again to read the new version"


def errno_of(error: Exception) -> int | None:
    """Return the errno for a program whose read failed over the network; None for other errors.

    ESTALE tells a replaced or deleted object from a lost network and from damage.
    """
    if isinstance(error, (ChangedError, FileNotFoundError)):
        return errno.ESTALE
    return errno.EIO if isinstance(error, (RemoteError, PermissionError)) else None


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
            advice = f"; {CHANGED}" if errno_of(error) == errno.ESTALE else ""
            self._log(f"reading fails: {error}{advice}")

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
        self.note()

    def note(self) -> None:
        """Add the requests since the last call."""
        now, before = self._reader.stats(), self._before
        self._before = now
        columns = zip(
            report.NETWORK, (report.REQUESTS, report.REPEATED, report.RECEIVED), strict=True
        )
        for name, column in columns:
            self._counts[column] += now[name] - before[name]
        self._tell(
            {name: now[name] for name in ("request_seconds", "bytes_per_second", "cached_bytes")}
        )
