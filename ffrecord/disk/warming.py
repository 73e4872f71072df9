"""Read ranges of files into the page cache in order, with several steps in flight.

`ffrecord warm`, the mount's option `warm` and the background reads of `pieces` share this loop. It
uses no memory of its own: POSIX_FADV_WILLNEED starts the disk, and reading one byte at the end of
a step waits for that step. Checksums are not compared.

A file system may ignore advice, so `warm` asks about each step, and reads an incomplete one. After
the last step it asks again, because pages of complete steps go missing: on 6.18, 8 to 134 single
pages of 195,000 in 10 of 132 runs, with free memory. The likely cause is DAMON, which pages out
regions that look unused, and which runs on the machine of these measurements.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ffrecord.disk import pagecache
from ffrecord.disk.policy import LONG
from ffrecord.machine import memory
from ffrecord.text import human

if TYPE_CHECKING:
    from ffrecord.disk.source import Source, SourceSet

STEP = LONG  # bytes of the longest step
BYTES_AHEAD = 4 << 20  # in flight
MOST_AHEAD = 64  # steps in flight, if they are short


@dataclass(frozen=True, slots=True)
class Range:
    """Bytes of an open file, from `begin` up to `end`."""

    source: Source
    begin: int
    end: int

    @property
    def size(self) -> int:
        return self.end - self.begin

    def cached(self) -> int:
        """Return how many bytes are in the page cache; 0 if nobody can tell."""
        return pagecache.cached_bytes(self.source.fd, self.begin, self.size) or 0

    def announce(self) -> None:
        """Let the disk begin to read these bytes into the page cache."""
        self.source.will_need(self.begin, self.size)

    def wait(self) -> None:
        """Wait until the disk has read the last byte."""
        self.source.wait_for(self.end - 1)


def whole_files(sources: SourceSet) -> list[Range]:
    """Return one range for each file that is not empty, with the size that it has now."""
    ranges = [Range(source, 0, source.size()) for source in sources.each]
    return [each for each in ranges if each.size]


def total(ranges: Iterable[Range]) -> int:
    """Return the bytes of all ranges."""
    return sum(each.size for each in ranges)


def warm(ranges: Sequence[Range]) -> Iterator[int]:
    """Read ranges into the page cache; yield the bytes of each step that has arrived.

    Raises:
        TruncatedError: A file has become shorter than a range of it.
        ReadFailedError: The disk cannot read a step.
    """
    for step in announced(_steps(ranges)):
        step.wait()
        # If nobody can tell, this only copies pages that are cached already.
        if step.cached() != step.size:
            step.source.read_through(step.begin, step.size)
        yield step.size
    _complete(ranges)


def _complete(ranges: Sequence[Range]) -> None:
    """Read pages that have gone missing, unless they had to go because memory is short."""
    if total(ranges) > memory.available():
        return
    for step in _steps(ranges):
        if 0 < step.cached() < step.size:  # 0: probably nobody can tell
            step.source.read_through(step.begin, step.size)


def announced(steps: Iterable[Range]) -> Iterator[Range]:
    """Let the disk begin with steps ahead of time; yield each step when the caller should wait.

    The disk is busy with later steps while the caller waits for one.
    """
    ahead: deque[Range] = deque()
    in_flight = 0
    for step in steps:
        step.announce()
        ahead.append(step)
        in_flight += step.size
        while in_flight >= BYTES_AHEAD or len(ahead) >= MOST_AHEAD:
            in_flight -= ahead[0].size
            yield ahead.popleft()
    yield from ahead


def cached(sources: SourceSet, ranges: Sequence[Range]) -> int | None:
    """Return the bytes of these ranges that are in the page cache; None if nobody can tell."""
    if not sources.cache.use_cachestat:
        return None
    found = 0
    for each in ranges:
        size = pagecache.cached_bytes(each.source.fd, each.begin, each.size)
        if size is None:
            return None
        found += size
    return found


def summary(sources: SourceSet, ranges: Sequence[Range]) -> str:
    """Return `1.2 GB in the page cache`, or `0.8 GB of 1.2 GB …` if a part was dropped again.

    If nobody can tell, everything counts: it was in the page cache at least for a moment.
    """
    size, found = total(ranges), cached(sources, ranges)
    some = "" if found is None or found == size else f"{human(found)} of "
    return f"{some}{human(size)} in the page cache"


def excess(ranges: Sequence[Range]) -> str | None:
    """Return a warning if the ranges do not fit into memory; None if they do."""
    size, available = total(ranges), memory.available()
    if size <= available:
        return None
    return (
        f"{human(size)} do not fit into the available memory of {human(available)}, so the first "
        "bytes will be dropped again"
    )


def _steps(ranges: Iterable[Range]) -> Iterator[Range]:
    """Cut ranges at multiples of STEP."""
    for each in ranges:
        begin = each.begin
        while begin < each.end:
            end = min(each.end, (begin // STEP + 1) * STEP)
            yield Range(each.source, begin, end)
            begin = end
