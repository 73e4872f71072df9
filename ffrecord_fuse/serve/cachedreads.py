"""Read an archive with a URL through its cache: from the local disk what is there, the rest by
requests.

The copy of an object in the cache is a file, and `ColdReads` reads its blocks as those of any local
archive. Answers of the network are written into the copy by a thread, because that waits for the
disk and for other processes. If the copy cannot be read, the network replaces it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from ffrecord.aliases import Bytes
from ffrecord.format.cachemap import BLOCK
from ffrecord.remote.cache.copy import Copy
from ffrecord.remote.source import RemoteSources
from ffrecord_fuse.serve import network
from ffrecord_fuse.serve.background import Background
from ffrecord_fuse.serve.coldreads import ColdReads
from ffrecord_fuse.serve.remotereads import Joint, RemoteReads

MOST_UNWRITTEN = 64 << 20
"""Bytes of answers that wait to be written into the cache. Further ones are not kept: a slow disk
must not fill the memory."""


FINISH_SECONDS = 10.0
"""The longest wait for answers to be written, after the file system was unmounted."""


class _Local(NamedTuple):
    """The token of a read from the copy, with the place to read from if that fails."""

    token: object
    file: int
    begin: int
    length: int


class CachedReads:
    """The reads of one worker, from the cache and from the network.

    Args:
        sources: the objects. At least one has a copy in the cache.
        is_checked: True if the checksums of the files are compared. Otherwise the blocks of the
            cache are verified by their own checksums before they are read.
    """

    def __init__(self, sources: RemoteSources, *, is_checked: bool) -> None:
        self._sources = sources
        self._is_checked = is_checked
        self.local = sources.copies.local
        files = np.arange(len(sources))
        self.places: list[int] = (
            files if len(sources) == 1 else sources.copies.places(files)
        ).tolist()  # type: ignore[union-attr]
        self._network = RemoteReads(sources, self._around, self._keep)
        self.eventfd = self._network.eventfd
        self.disk = ColdReads(self.local, eventfd=os.dup(self.eventfd))
        self._writer = Background(self.eventfd, 1)
        self._unwritten = 0

    def has(self, file: int, begin: int, length: int) -> bool:
        """Return True if the cache has these bytes.

        Without checks, their blocks are verified here, and the worker waits for the disk.
        """
        copy = self._copy(file)
        if copy is None:
            return False
        ends = np.array([begin + length])
        return bool(copy.has_each(np.array([begin]), ends, verified=not self._is_checked)[0])

    def cut(self, file: int, begin: int, end: int) -> int:
        """Return how far all blocks of a range are there, or all are missing.

        The end of a block is preferred: otherwise the next request would fetch the block again.
        """
        copy = self._copy(file)
        if copy is None:
            return end
        until = copy.run(begin, end, verified=False)[1]
        whole = until // BLOCK * BLOCK
        return whole if whole > begin else until

    # ---- as ColdReads ----------------------------------------------------------------------

    @property
    def busy(self) -> bool:
        return self._network.busy or self.disk.busy

    @property
    def has_room(self) -> bool:
        return self._network.has_room  # without AIO, the disk never has any

    def add(
        self, token: object, file: int, begin: int, length: int, *, kept: bool = False,
        again: bool = False,
    ) -> None:  # fmt: skip
        if not again and self.has(file, begin, length):
            local = _Local(token, file, begin, length)
            self.disk.add(local, self.places[file], begin, length, kept=kept)
        else:
            self._network.add(token, file, begin, length, again=again)

    def submit(self) -> None:
        self._network.submit()
        self.disk.submit()

    def landed(self) -> Iterator[tuple[Any, memoryview | Exception]]:
        yield from self._network.landed()
        for local, result in self.disk.landed():
            if isinstance(result, Exception):
                self._sources.give_up_copies(result)
                self._network.add(local.token, local.file, local.begin, local.length)
            else:
                yield local.token, result
        self._network.submit()  # nothing else may happen for a while

    def has_landed(self) -> bool:
        for length, _ in self._writer.ended():
            self._unwritten -= length
        from_network = self._network.has_landed()
        return self.disk.has_landed() or from_network

    def clear_event(self) -> None:
        self._network.clear_event()

    def close(self) -> None:
        self._writer.close()
        self.disk.close()
        self._network.close()

    def finish(self) -> None:
        """Make sure that other processes find what was written. A disk that hangs is given up."""
        deadline = time.monotonic() + FINISH_SECONDS
        while self._unwritten and time.monotonic() < deadline:
            time.sleep(0.005)
            self.has_landed()
        network.finish()

    # ---- the copies ------------------------------------------------------------------------

    def _copy(self, file: int) -> Copy | None:
        copy = self._sources[file].copy
        return copy if copy is not None and copy.usable else None

    def _around(self, file: int, begin: int, end: int) -> tuple[int, int]:
        """Return the range of whole blocks around a range, if they can be kept."""
        if self._copy(file) is None:
            return begin, end
        return begin // BLOCK * BLOCK, min(-(-end // BLOCK) * BLOCK, self._sources[file].size())

    def _keep(self, request: Joint) -> None:
        """Write an answer into the copy, in the thread. Answers are written in their order."""
        copy, length = self._copy(request.file), request.end - request.begin
        if copy is None or self._unwritten + length > MOST_UNWRITTEN:
            return
        assert isinstance(request.result, memoryview)
        pieces: list[tuple[int, Bytes]] = [(request.begin, np.frombuffer(request.result, np.uint8))]
        write = partial(copy.put, pieces, again=request.reads[0].again)
        try:
            self._writer.run(length, write)
        except RuntimeError:  # no thread can be started; the bytes are fetched again next time
            return
        self._unwritten += length
