"""Open objects: the counterpart of `ffrecord.disk.source` for the network.

The version of an object was pinned when it was opened, and is demanded with every request.

Any number of threads may use these classes, and so may a forked process.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn, TypeAlias

import numpy as np

from ffrecord.aliases import Bytes, Ints
from ffrecord.disk import extents
from ffrecord.disk.fetch import Fetch
from ffrecord.disk.slabs import SlabPool
from ffrecord.disk.tally import TALLY
from ffrecord.errors import ReadFailedError, RemoteError, TruncatedError
from ffrecord.format.cachemap import BLOCK
from ffrecord.remote import loop
from ffrecord.remote.answers import Answer, Place, Version
from ffrecord.remote.cache import publisher
from ffrecord.remote.cache.copies import Copies
from ffrecord.remote.cache.copy import Copy, LocalCopy
from ffrecord.remote.fetch import RemoteFetch
from ffrecord.remote.link import Link
from ffrecord.remote.trouble import Span

PART = 4 << 20
"""Bytes of a request when a long header or index is read. Several requests are faster than one,
because providers limit the speed of each."""

LONGEST = 16 << 20
"""Bytes of the longest request for records. Longer ranges are read in several requests."""

Part: TypeAlias = "tuple[Fetch | RemoteFetch | None, Ints | None]"
"""Reads in flight, and the rows of their records (None: all rows). Without reads: the rows are
going to be in the cache, because other batches of this process have asked for their blocks."""


@dataclass(frozen=True, slots=True)
class Opened:
    """The first answers about an object; none if the cache has its version."""

    version: Version
    first: Answer | None
    last: Answer | None
    is_offline: bool = False


class RemoteSource:
    """An open object. The methods are those of `ffrecord.disk.source.Source`.

    Bytes come from the first answers, from requests that are on their way, from the copy in the
    cache if there is one, or from a new request.
    """

    def __init__(self, place: Place, link: Link, opened: Opened, copy: Copy | None = None) -> None:
        self.path = place.shown
        self.place = place
        self.version = opened.version
        self.copy = copy
        self._link = link
        self._first = opened.first
        self._last = opened.last
        self._ahead: dict[tuple[int, int], tuple[int, Future[Answer]]] = {}
        self._distrusted = False
        self._keep([answer for answer in (opened.first, opened.last) if answer is not None])

    def size(self) -> int:
        """Return the size of the object."""
        return self.version.size

    def read_into(self, memory: Bytes, offset: int) -> None:
        """Fill `memory` with the bytes from `offset` on. Long reads are several requests."""
        self._require(offset, len(memory))
        missing, done = [], 0
        while done < len(memory):
            rest, at = memory[done:], offset + done
            found = self._from_memory(rest, at) or self._from_copy(rest, at)
            if not found:
                found = self._until_known(at, offset + len(memory)) - at
                missing.append((rest[:found], at))
            done += found
        if missing:
            self._keep(loop.wait(self._read(missing)), again=self._distrusted)

    def read_again(self, memory: Bytes, offset: int) -> None:
        """Fill `memory` from the network, because bytes that arrived before are wrong.

        Blocks of the cache are put right.
        """
        loop.wait(self._link.recheck(self.place, self.version))
        self._keep(loop.wait(self._read([(memory, offset)])), again=True)

    def distrust(self) -> None:
        """Read from the network until `trust` is called, because some bytes are wrong."""
        loop.wait(self._link.recheck(self.place, self.version))
        self._first = self._last = None
        self._ahead.clear()
        self._distrusted = True

    def trust(self) -> None:
        """Read from the cache again: wrong bytes in it were put right."""
        self._distrusted = False

    def forget_first(self) -> None:
        """Drop the first bytes: the header was read."""
        self._first = None

    def local_copy(self) -> LocalCopy | None:
        """Return the copy in the cache if it is whole, otherwise None.

        The cache does not change the copy while the caller keeps the result.
        """
        copy = self.copy
        return None if copy is None else copy.pinned()

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
        while offset < end:
            there, until = self._run(offset, end)
            if not there:
                self._ask_for(*self._in_blocks(offset, until))
            offset = until

    def _ask_for(self, begin: int, end: int) -> None:
        for at in range(begin, end, PART):
            span = Span(at, min(at + PART, end))
            key = span.begin, span.end
            if key not in self._ahead:
                asked = loop.begin(self._link.get(self.place, span, self.version))
                self._ahead[key] = os.getpid(), asked

    def _from_memory(self, memory: Bytes, offset: int) -> int:
        """Copy bytes that have arrived or are on their way; return how many.

        A request that has failed counts as one that was never sent.
        """
        for kept in (self._first, self._last):
            if kept is not None and 0 <= offset - kept.begin < len(kept.body):
                return _copy(kept, memory, offset)
        for (begin, end), (process, asked) in list(self._ahead.items()):
            if begin <= offset < end:
                if process != os.getpid():
                    self._ahead.pop((begin, end), None)
                    continue
                try:
                    answer = asked.result()
                except Exception:  # the network may be there again
                    self._ahead.pop((begin, end), None)
                    return 0
                self._keep([answer], again=self._distrusted)
                count = _copy(answer, memory, offset)
                # With a cache, the answer may have more bytes than anybody is going to read.
                if offset + count == end or self._run(begin, end) == (True, end):
                    self._ahead.pop((begin, end), None)
                return count
        return 0

    def _from_copy(self, memory: Bytes, offset: int) -> int:
        """Copy verified bytes of the cache; return how many."""
        copy, (there, until) = self.copy, self._run(offset, offset + len(memory))
        if not there or copy is None:
            return 0
        return until - offset if copy.read_into(memory[: until - offset], offset) else 0

    def _run(self, begin: int, end: int) -> tuple[bool, int]:
        """Return whether the cache has the byte at `begin`, and how far the same holds."""
        copy = self.copy  # another thread may give it up
        if copy is None or self._distrusted or not copy.usable:
            return False, end
        return copy.run(begin, end)

    def _until_known(self, begin: int, end: int) -> int:
        """Return how far the bytes from `begin` on are neither in memory nor in the cache."""
        known = [at for at, _ in list(self._ahead) if begin < at]
        if self._last is not None and begin < self._last.begin:
            known.append(self._last.begin)
        return min([self._run(begin, end)[1], *known])

    async def _read(self, missing: Sequence[tuple[Bytes, int]]) -> list[Answer]:
        """Fill parts of memory from the network; return the answers for the cache."""

        async def part(memory: Bytes, offset: int, begin: int, end: int) -> Answer:
            answer = await self._link.get(self.place, Span(begin, end), self.version)
            first, last = max(begin, offset), min(end, offset + len(memory))
            found = np.frombuffer(answer.body, np.uint8)[first - begin : last - begin]
            memory[first - offset : last - offset] = found
            return answer

        parts = []
        for memory, offset in missing:
            begin, end = self._in_blocks(offset, offset + len(memory))
            for at in range(begin, end, PART):
                parts.append(part(memory, offset, at, min(at + PART, end)))
        answers = await loop.together(*parts)
        return list(answers) if self.copy is not None else []

    def _in_blocks(self, begin: int, end: int) -> tuple[int, int]:
        """Return the range of whole blocks around a range, if there is a copy to keep them in."""
        if self.copy is None:
            return begin, end
        return begin // BLOCK * BLOCK, min(-(-end // BLOCK) * BLOCK, self.version.size)

    def _keep(self, answers: Sequence[Answer], *, again: bool = False) -> None:
        copy = self.copy
        if copy is not None and answers:
            pieces = [(each.begin, np.frombuffer(each.body, np.uint8)) for each in answers]
            copy.put(pieces, again=again)

    def __del__(self) -> None:
        if getattr(self, "copy", None) is not None:
            publisher.hurry()

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
        self._copies = Copies([source.copy for source in each])

    @property
    def copies(self) -> Copies:
        """The copies of the objects in the cache."""
        return self._copies

    def fetch(
        self, file: Ints | None, begin: Ints, end: Ints, slabs: SlabPool, *, checked: bool,
        shares: bool,
    ) -> list[Part]:  # fmt: skip
        """Return the reads of the records [begin, end) of the given files, in up to three parts.

        Each part has the rows of its records; None stands for all rows. Records that the cache has
        are read by the engine for local files, and come after the requests, which should be on
        their way first. `checked`: the caller compares checksums. `shares`: the last part may be
        records whose blocks are on their way for other batches.
        """
        copies = self._copies  # another thread may give them up
        there = copies.have(file, begin, end, checked=checked)
        due = copies.expect(file, begin, end) if shares else None
        if there is None and due is None:
            return [(self._request(file, begin, end, slabs), None)]
        if there is None:
            there = np.zeros(len(begin), bool)
        if there.all():
            return [(_read_copies(copies, file, begin, end, slabs), None)]
        if due is None:
            due = there
        parts: list[Part] = []
        missing, kept, later = ~(there | due), there, due & ~there
        for mask, read in ((missing, self._request), (kept, partial(_read_copies, copies))):
            rows = mask.nonzero()[0]
            if len(rows):
                some = None if file is None else file[rows]
                parts.append((read(some, begin[rows], end[rows], slabs), rows))
        rows = later.nonzero()[0]
        if len(rows):
            TALLY.missed += 1  # it is no batch that the cache had
            parts.append((None, rows))
        return parts

    def _request(
        self, file: Ints | None, begin: Ints, end: Ints, slabs: SlabPool
    ) -> RemoteFetch:  # fmt: skip
        align = BLOCK if self._copies.are_used else 1
        plan = extents.plan(file, begin, end, align, self.link.meter.gap, LONGEST)
        return RemoteFetch(self.link, self.each, plan, slabs.take(plan.size))

    def read_one(self, file: int, memory: Bytes, offset: int) -> None:
        """Fill `memory` with one record, for a caller that waits and compares its checksum."""
        try:
            if self._copies.read_one(file, memory, offset):
                return
        except (ReadFailedError, TruncatedError) as error:
            self.give_up_copies(error)
        self.each[file].read_into(memory, offset)

    def give_up_copies(self, error: Exception) -> bool:
        """Read from the network only, because a copy cannot be read.

        Returns:
            False if the error is not about a copy.
        """
        if isinstance(error, RemoteError):
            return False
        if self._copies.are_used:  # otherwise another read that was under way has failed before
            self._copies.give_up(error)
            for source in self.each:
                source.copy = None
            self._copies = Copies([None for _ in self.each])
        return True

    def traffic(self) -> dict[str, int]:
        """Return counts of requests and of their bytes."""
        link = self.link
        return {"requests": link.sent, "repeated": link.repeated, "bytes": link.received}

    def stats(self) -> dict[str, Any]:
        """Return counts of requests, and the measurements that decide about the next ones."""
        link = self.link
        return self.traffic() | {
            "request_seconds": link.meter.latency, "bytes_per_second": link.meter.bandwidth,
            "gap": link.meter.gap, "cached_bytes": self._copies.bytes_there,
        }  # fmt: skip

    def __getitem__(self, file: int) -> RemoteSource:
        return self.each[file]

    def __len__(self) -> int:
        return len(self.each)

    def __iter__(self) -> Iterator[RemoteSource]:
        return iter(self.each)


def _read_copies(
    copies: Copies, file: Ints | None, begin: Ints, end: Ints, slabs: SlabPool
) -> Fetch:  # fmt: skip
    return Fetch(copies.local, copies.places(file), begin, end, "auto", slabs)
