"""Open objects: the counterpart of `ffrecord.disk.source` for the network.

Opening asks for the first and the last bytes at once. They contain the header, and the index of a
packed folder, unless these are long. The version of the object is pinned then, and demanded with
every later request.

Any number of threads may use these classes, and so may a forked process.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np

from ffrecord.aliases import Bytes, Ints
from ffrecord.disk import extents
from ffrecord.disk.slabs import SlabPool
from ffrecord.errors import RemoteError, TruncatedError
from ffrecord.remote import loop
from ffrecord.remote.answers import Answer, Place, Version
from ffrecord.remote.fetch import RemoteFetch
from ffrecord.remote.link import Link
from ffrecord.remote.trouble import Span, Trouble, replaced

GUESS = 256 << 10
"""First and last bytes that opening asks for: the header of 21,000 records, the index of about
3,000 files. On a connection of 1 Gbit/s this takes 2 ms, much less than a round trip."""

GUESSES = 16 << 20
"""Most first bytes of all files together. With many files, less is asked of each."""

SMALLEST_GUESS = 16 << 10

PART = 4 << 20
"""Bytes of a request when a long header or index is read. Several requests are faster than one,
because providers limit the speed of each."""

LONGEST = 16 << 20
"""Bytes of the longest request for records. Longer ranges are read in several requests."""

OPENINGS = 3  # attempts to open an object that is being replaced


@dataclass(frozen=True, slots=True)
class _Opened:
    """The first answers about an object."""

    version: Version
    first: Answer
    last: Answer | None


class RemoteSource:
    """An open object. The methods are those of `ffrecord.disk.source.Source`."""

    def __init__(self, place: Place, link: Link, opened: _Opened) -> None:
        self.path = place.shown
        self.place = place
        self.version = opened.version
        self._link = link
        self._first: Answer | None = opened.first
        self._last = opened.last
        self._ahead: dict[tuple[int, int], tuple[int, Future[Answer]]] = {}

    def size(self) -> int:
        """Return the size of the object."""
        return self.version.size

    def read_into(self, memory: Bytes, offset: int) -> None:
        """Fill `memory` with the bytes from `offset` on. Long reads are several requests."""
        self._require(offset, len(memory))
        done = 0
        while done < len(memory):
            found = self._from_memory(memory[done:], offset + done)
            if not found:
                break
            done += found
        if done < len(memory):
            loop.wait(self._read(memory[done:], offset + done))

    def read_again(self, memory: Bytes, offset: int) -> None:
        """Fill `memory` from the network, because bytes that arrived before are wrong."""
        loop.wait(self._link.recheck(self.place, self.version))
        loop.wait(self._read(memory, offset))

    def distrust(self) -> None:
        """Drop all bytes that have arrived, because some are wrong. They are fetched once more."""
        loop.wait(self._link.recheck(self.place, self.version))
        self._first = self._last = None
        self._ahead.clear()

    def forget_first(self) -> None:
        """Drop the first bytes: the header was read."""
        self._first = None

    def read_bytes(self, offset: int, length: int) -> bytes:
        """Return `length` bytes from `offset` on."""
        memory = np.empty(length, np.uint8)
        self.read_into(memory, offset)
        return memory.tobytes()

    def copy_to(self, fd: int, offset: int, length: int) -> None:
        """Write `length` bytes from `offset` on to a file at its position."""
        for at in range(offset, offset + length, PART):
            piece = memoryview(self.read_bytes(at, min(PART, offset + length - at)))
            while piece:
                piece = piece[os.write(fd, piece) :]

    def will_need(self, offset: int, length: int) -> None:
        """Put requests for these bytes on their way. The next read of them waits for the answer."""
        end = min(offset + length, self.version.size)
        # Bytes that have arrived already: opening asked for the first and the last ones.
        if self._first is not None:
            offset = max(offset, len(self._first.body))
        if self._last is not None:
            end = min(end, self._last.begin)
        for at in range(offset, end, PART):
            span = Span(at, min(at + PART, end))
            key = span.begin, span.end
            if key not in self._ahead:
                asked = loop.begin(self._link.get(self.place, span, self.version))
                self._ahead[key] = os.getpid(), asked

    def _from_memory(self, memory: Bytes, offset: int) -> int:
        """Copy bytes that have arrived or are on their way; return how many."""
        for kept in (self._first, self._last):
            if kept is not None and 0 <= offset - kept.begin < len(kept.body):
                return _copy(kept, memory, offset)
        for begin, end in list(self._ahead):
            if begin <= offset < end:
                process, asked = self._ahead[begin, end]
                if process != os.getpid():
                    self._ahead.pop((begin, end), None)
                    continue
                answer = asked.result()
                count = _copy(answer, memory, offset)
                if offset + count == end:
                    self._ahead.pop((begin, end), None)
                return count
        return 0

    async def _read(self, memory: Bytes, offset: int) -> None:
        async def part(at: int) -> None:
            target = memory[at : at + PART]
            span = Span(offset + at, offset + at + len(target))
            answer = await self._link.get(self.place, span, self.version)
            target[:] = np.frombuffer(answer.body, np.uint8)

        await loop.together(*(part(at) for at in range(0, len(memory), PART)))

    def _require(self, offset: int, length: int) -> None:
        if offset + length > self.version.size:
            raise TruncatedError(
                f"{self.path}: it has {self.version.size} bytes, but bytes up to "
                f"{offset + length} are needed; upload the file again"
            )

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"{self.path}: an open object cannot be pickled or copied; pickle or copy its reader"
        )


def _copy(kept: Answer, memory: Bytes, offset: int) -> int:
    found = np.frombuffer(kept.body, np.uint8)[offset - kept.begin :][: len(memory)]
    memory[: len(found)] = found
    return len(found)


class RemoteSources:
    """Open objects of one reader: the counterpart of `SourceSet`."""

    is_local = False

    def __init__(self, link: Link, each: Sequence[RemoteSource]) -> None:
        self.link = link
        self.each = tuple(each)
        self.maps: list[Bytes] = []

    def fetch(self, file: Ints | None, begin: Ints, end: Ints, slabs: SlabPool) -> RemoteFetch:
        """Return the requests for the records [begin, end) of the given files."""
        plan = extents.plan(file, begin, end, 1, self.link.meter.gap, LONGEST)
        objects = [(source.place, source.version) for source in self.each]
        return RemoteFetch(self.link, objects, plan, slabs.take(plan.size))

    def read_one(self, file: int, memory: Bytes, offset: int) -> None:
        """Fill `memory` with one record."""
        self.each[file].read_into(memory, offset)

    def stats(self) -> dict[str, Any]:
        """Return counts of requests, and the measurements that decide about the next ones."""
        link = self.link
        return {
            "requests": link.sent, "repeated": link.repeated, "bytes": link.received,
            "request_seconds": link.meter.latency, "bytes_per_second": link.meter.bandwidth,
            "gap": link.meter.gap,
        }  # fmt: skip

    def __getitem__(self, file: int) -> RemoteSource:
        return self.each[file]

    def __len__(self) -> int:
        return len(self.each)

    def __iter__(self) -> Iterator[RemoteSource]:
        return iter(self.each)


def open_places(link: Link, places: Sequence[Place]) -> RemoteSources:
    """Open objects, all at once. The last one may have an index at its end."""
    guess = max(SMALLEST_GUESS, min(GUESS, GUESSES // len(places)))

    last = len(places) - 1
    opening = (_open(link, place, guess, k == last) for k, place in enumerate(places))
    opened = loop.wait(loop.together(*opening))
    pairs = zip(places, opened, strict=True)
    return RemoteSources(link, [RemoteSource(place, link, each) for place, each in pairs])


async def _open(link: Link, place: Place, guess: int, with_end: bool) -> _Opened:
    for _ in range(OPENINGS):
        asked = [link.get(place, Span(0, guess), None, opening=True)]
        if with_end:
            asked.append(link.get(place, Span(-guess), None, opening=True))
        first, *rest = await asyncio.gather(*asked, return_exceptions=True)
        if isinstance(first, RemoteError) and first.status == 416:  # an empty object has no ranges
            return _Opened(Version(0, None, None), Answer(b"", 0, Version(0, None, None)), None)
        if isinstance(first, BaseException):
            raise first
        last: Any = rest[0] if rest else None
        if isinstance(last, Trouble):  # no suffixes here, but now the size is known
            last = None
            size = first.version.size
            if size > guess:
                span = Span(max(guess, size - guess), size)
                last = await link.get(place, span, first.version, opening=True)
        if isinstance(last, BaseException):
            raise last
        if last is None or last.version.agrees(first.version):
            return _Opened(first.version, first, last)
    raise replaced(place.shown)
