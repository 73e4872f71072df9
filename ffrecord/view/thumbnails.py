"""Thumbnails: read in batches, made by a small pool, and kept in memory.

The page asks for many thumbnails with one request, and gets each as soon as it is made. When the
page no longer shows them, it drops the request, and the rest is not made.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import Lock

from ffrecord.errors import FFRecordError
from ffrecord.view.contents import Contents, Found, message
from ffrecord.view.pictures import thumbnail

SIDES = (160, 320)
"""Pixels of the longer side, for screens with one and two pixels to a point. Not 256 for all: a
JPEG can be decoded at a half, a quarter or an eighth of its size, and often 160 allows one more."""
KEPT_BYTES = 24 << 20  # about 2,000 thumbnails
BATCH_BYTES = 8 << 20  # bytes of files that are read at once
LARGEST = 64 << 20  # larger files get no thumbnail


@dataclass(frozen=True, slots=True)
class Thumbnail:
    """A thumbnail, or the reason why there is none: `media_type` is then empty."""

    key: str
    media_type: str
    data: bytes


class Thumbnails:
    """Thumbnails of items. Any number of threads may use it."""

    def __init__(self, contents: Contents) -> None:
        self._contents = contents
        self._pool = ThreadPoolExecutor(len(os.sched_getaffinity(0)), "thumbnails")
        self._kept: OrderedDict[tuple[str, int], Thumbnail] = OrderedDict()
        self._kept_bytes = 0
        self._lock = Lock()

    def make(
        self, keys: Sequence[str], side: int, go_on: Callable[[], bool]
    ) -> Iterator[Thumbnail]:
        """Yield the thumbnails of some items, until `go_on` returns False.

        Those that are kept in memory come first.
        """
        due: dict[str, int] = {}
        for key in keys:
            kept = self._find(key, side)
            if kept is not None:
                yield kept
                continue
            try:
                size = self._contents.item(key).size
            except FFRecordError as error:  # a compressed value has no size if it is damaged
                yield _failed(key, error)
                continue
            if size > LARGEST:
                yield Thumbnail(key, "", b"the file is too large for a thumbnail")
            else:
                due[key] = size
        for batch in self._batches(due):
            if not go_on():
                return
            found = self._contents.whole(batch)
            made = [
                self._pool.submit(_made, key, each, side)
                for key, each in zip(batch, found, strict=True)
            ]
            for future in made:
                if not go_on():
                    for each in made:
                        each.cancel()
                    return
                result = future.result()
                self._keep(result, side)
                yield result

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _batches(self, sizes: Mapping[str, int]) -> Iterator[list[str]]:
        batch: list[str] = []
        total = 0
        for key, size in sizes.items():
            if batch and total + size > BATCH_BYTES:
                yield batch
                batch, total = [], 0
            batch.append(key)
            total += size
        if batch:
            yield batch

    def _find(self, key: str, side: int) -> Thumbnail | None:
        with self._lock:
            if (key, side) in self._kept:
                self._kept.move_to_end((key, side))
            return self._kept.get((key, side))

    def _keep(self, made: Thumbnail, side: int) -> None:
        with self._lock:
            if (made.key, side) in self._kept:
                return
            self._kept[made.key, side] = made
            self._kept_bytes += len(made.data)
            while self._kept_bytes > KEPT_BYTES:
                _, old = self._kept.popitem(last=False)
                self._kept_bytes -= len(old.data)


def _made(key: str, found: Found, side: int) -> Thumbnail:
    try:
        if isinstance(found, FFRecordError):
            raise found
        return Thumbnail(key, *thumbnail(found, side))
    except Exception as error:  # hostile contents may make a decoder fail in any way
        return _failed(key, error)


def _failed(key: str, error: Exception) -> Thumbnail:
    return Thumbnail(key, "", message(error).encode("utf-8", "replace"))
