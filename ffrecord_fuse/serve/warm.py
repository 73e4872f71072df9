"""Read the archive into the page cache in the background, for the option `warm`.

One process of a mount does it, in a daemon thread: the end of the process ends the thread, so
unmounting never waits for it. A failure is a line in the log, and the mount continues.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Thread

from ffrecord.archive.archive import Archive
from ffrecord.disk import warming
from ffrecord.records.reader import table_of


def start(archive: Archive, log: Callable[[str], None]) -> None:
    """Start the thread and return at once."""
    thread = Thread(target=warm, args=(archive, log), name="ffrecord-warm", daemon=True)
    try:
        thread.start()
    except RuntimeError as error:
        log(f"{archive.path}: cannot be warmed: {error}")


def warm(archive: Archive, log: Callable[[str], None]) -> None:
    """Read the whole archive into the page cache. Log the result, also if it is an error."""
    try:
        sources = table_of(archive.reader).require_files()
        ranges = warming.whole_files(sources)
        excess = warming.excess(ranges)
        if excess is not None:
            log(f"{archive.path}: {excess}")
        for _ in warming.warm(ranges):
            pass
        log(f"{archive.path}: {warming.summary(sources, ranges)}")
    except Exception as error:  # whatever it is, the mount must go on
        log(f"warming has stopped: {error}")
