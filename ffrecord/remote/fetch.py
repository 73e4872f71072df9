"""Send the requests of a plan, and hand out the reads as their answers arrive.

The counterpart of `ffrecord.disk.fetch` for the network. All requests are tasks in the loop of the
process, which copies each answer into the memory of the batch.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from queue import Empty, SimpleQueue
from typing import Any, Protocol

import numpy as np

from ffrecord.aliases import Bytes
from ffrecord.disk.extents import Plan
from ffrecord.disk.tally import TALLY
from ffrecord.remote import loop
from ffrecord.remote.answers import Place, Version
from ffrecord.remote.cache.copy import Copy
from ffrecord.remote.link import Link
from ffrecord.remote.trouble import Span

LONG = 1 << 20
"""Bytes whose copy takes longer than it takes to give the interpreter away and to get it back."""


class Object(Protocol):
    """An open object: `remote.source.RemoteSource`."""

    @property
    def place(self) -> Place: ...
    @property
    def version(self) -> Version: ...
    @property
    def copy(self) -> Copy | None: ...


class RemoteFetch:
    """Requests of one plan, into `memory`. Call `start`, iterate over `waves`, then `close`.

    Answers are also written into the copies of the objects in the cache, before the caller gets
    their memory: the caller may change it. The plan's reads are then whole blocks.
    """

    is_complete = False  # no read is done when `start` returns

    def __init__(self, link: Link, objects: Sequence[Object], plan: Plan, memory: Bytes) -> None:
        self.plan = plan
        self.memory = memory
        self._objects = objects
        self._expected: dict[int, tuple[Copy, int]] = {}  # read -> note in the copy
        self._flight = _Flight(link, objects, plan, memory)
        self._process = os.getpid()
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def mine(self) -> bool:
        """True unless a parent process sent the requests: their answers never arrive in a child."""
        return self._process == os.getpid()

    def start(self, *, everything: bool) -> None:
        """Put all requests on their way. The link limits how many are in flight."""
        self._loop = loop.loop()
        TALLY.memory += self.plan.size
        TALLY.missed += len(self.plan.offset)
        self._expect()
        self._loop.call_soon_threadsafe(self._flight.launch)

    def _expect(self) -> None:
        """Tell the copies which blocks are on their way."""
        plan = self.plan
        for read, offset in enumerate(plan.offset.tolist()):
            where = self._objects[0 if plan.file is None else int(plan.file[read])]
            copy = where.copy
            if copy is not None:
                end = offset + wanted(plan, read, where)
                self._expected[read] = copy, copy.expect(offset, end)

    def _expect_no_more(self, reads: Iterable[int]) -> None:
        for read in reads:
            found = self._expected.pop(read, None)
            if found is not None:
                copy, note = found
                copy.expect_no_more(note)

    def waves(self) -> Iterator[list[int]]:
        """Yield the numbers of complete reads, in groups as they arrive."""
        left, arrivals = len(self.plan.offset), self._flight.arrivals
        while left:
            began = time.perf_counter()
            wave = list(map(_checked, arrivals.get()))
            TALLY.waited += time.perf_counter() - began
            while True:
                try:
                    wave += map(_checked, arrivals.get_nowait())
                except Empty:
                    break
            left -= len(wave)
            self._keep(wave)
            self._expect_no_more(wave)
            yield wave

    def _keep(self, wave: Sequence[int]) -> None:
        """Write the answers of a wave into the copies of their objects."""
        plan = self.plan
        pieces: dict[int, list[tuple[int, Bytes]]] = {}
        for read in wave:
            file = 0 if plan.file is None else int(plan.file[read])
            if self._objects[file].copy is not None:
                place, length = int(plan.place[read]), wanted(plan, read, self._objects[file])
                piece = int(plan.offset[read]), self.memory[place : place + length]
                pieces.setdefault(file, []).append(piece)
        for file, some in pieces.items():
            copy = self._objects[file].copy
            if copy is not None:
                copy.put(some)

    def close(self) -> None:
        """Cancel the requests that have no answer, and wait until nothing writes into memory."""
        over = threading.Event()
        if self._cancel(over):
            over.wait()

    def __del__(self) -> None:
        if hasattr(self, "_loop"):
            # A batch that nobody wants any more. The tasks keep its memory until they have ended.
            self._cancel(None)

    def _cancel(self, over: threading.Event | None) -> bool:
        """Cancel the requests that have no answer; return False if there are none."""
        self._expect_no_more(list(self._expected))
        if self._loop is None or self._flight.is_over or not self.mine:
            return False
        self._loop.call_soon_threadsafe(self._flight.cancel, over)
        return True


class _Flight:
    """The tasks of one fetch. They do not refer to the fetch, so that it can be dropped."""

    def __init__(self, link: Link, objects: Sequence[Object], plan: Plan, memory: Bytes) -> None:
        self.arrivals: SimpleQueue[list[int | BaseException]] = SimpleQueue()
        self.is_over = False
        self._link = link
        self._objects = objects
        self._plan = plan
        self._memory = memory
        self._tasks: list[asyncio.Task[None]] = []
        self._left = 0
        self._news: list[int | BaseException] = []

    def launch(self) -> None:
        plan = self._plan
        files = [0] * len(plan.offset) if plan.file is None else plan.file.tolist()
        needs = [wanted(plan, read, self._objects[file]) for read, file in enumerate(files)]
        rows = zip(
            range(len(files)), files, plan.offset.tolist(), needs, plan.place.tolist(), strict=True
        )
        self._left = len(files)
        running = asyncio.get_running_loop()
        self._tasks = [running.create_task(self._read(*row)) for row in rows]

    async def _read(self, read: int, file: int, offset: int, need: int, place: int) -> None:
        where = self._objects[file]
        try:
            span = Span(offset, offset + need)
            answer = await self._link.get(where.place, span, where.version)
            if not self.is_over:
                _copy(answer.body, self._memory[place : place + need])
                self._arrived(read)
        except asyncio.CancelledError:
            if not self.is_over:  # nobody has called `cancel`: the interpreter ends
                self._arrived(loop.ended())
        except BaseException as error:
            self._arrived(error)
        self._left -= 1
        if not self._left:
            self.is_over = True
            self._tasks.clear()

    def _arrived(self, result: int | BaseException) -> None:
        """Announce the reads of one pass of the loop together: waking a thread is slow."""
        if not self._news:
            asyncio.get_running_loop().call_soon(self._announce)
        self._news.append(result)

    def _announce(self) -> None:
        self.arrivals.put(self._news)
        self._news = []

    def cancel(self, over: threading.Event | None) -> None:
        """End all tasks. The copies are made in this thread, so none is under way."""
        self.is_over = True
        for task in self._tasks:
            task.cancel()
        if over is not None:
            over.set()


def _copy(body: Any, target: Bytes) -> None:
    """Copy an answer. numpy lets other threads run meanwhile, which pays only for long ones."""
    if len(target) < LONG:
        target.data[:] = memoryview(body)
    else:
        target[:] = np.frombuffer(body, np.uint8)


def wanted(plan: Plan, read: int, where: Object) -> int:
    """Return the bytes to ask for: those of records, or whole blocks for the cache."""
    if where.copy is None:
        return int(plan.need[read])
    return min(int(plan.length[read]), where.version.size - int(plan.offset[read]))


def _checked(arrived: int | BaseException) -> int:
    if isinstance(arrived, BaseException):
        raise arrived
    return arrived
