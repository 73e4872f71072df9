"""Granular bags: records end to end, and where each one ends, in `.idx` or at the end of the file.

docs/converting.md has the bytes. Bags have no checksums: what can be checked is that their limits
fit the data, and fill it.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import numpy as np

from ffrecord.aliases import Closing, Ints
from ffrecord.convert.files import SourceFile, open_new
from ffrecord.convert.shapes import Buffer, ConvertOptions, Records, Written

LIMIT = np.dtype("<u8")
LIMITS_AT_ONCE = 8192
MOST_RECORDS = (1 << 32) - 1  # as granular's writer has it


def index_path(path: str) -> str:
    return os.path.splitext(path)[0] + ".idx"


@contextmanager
def read(path: str, options: ConvertOptions) -> Iterator[Records]:
    """Read a bag of two files if there is an `.idx` beside it, else of one."""
    with BagFile(path) as bag:
        yield Records(bag.records(), len(bag))


def count(path: str) -> int:
    with BagFile(path) as bag:
        return len(bag)


def write(path: str, records: Records, options: ConvertOptions, *, single: bool = False) -> Written:
    """Write a bag of two files, or a `single` one."""
    with (SingleBagWriter if single else BagWriter)(path) as bag:
        for record in records.items:
            bag.append(record)
    return Written(bag.length)


class BagWriter(Closing):
    """Writes `.bag` and `.idx`."""

    def __init__(self, path: str) -> None:
        self.length = 0
        self._end = 0
        with ExitStack() as opened:
            self._data = opened.enter_context(open_new(path))
            self._index = opened.enter_context(open_new(index_path(path)))
            self._opened = opened.pop_all()

    def append(self, record: Buffer) -> None:
        self._data.write(record)
        self._end += memoryview(record).nbytes
        self._index.write(self._end.to_bytes(LIMIT.itemsize, "little"))
        self.length += 1

    def close(self) -> None:
        self._opened.close()


class SingleBagWriter:
    """Writes one file, in version 1 of the format: of both, the one that holds empty records."""

    def __init__(self, path: str) -> None:
        self._limits = array("Q", [0])
        self._file = open_new(path)

    @property
    def length(self) -> int:
        return len(self._limits) - 1

    def append(self, record: Buffer) -> None:
        self._file.write(record)
        self._limits.append(self._limits[-1] + memoryview(record).nbytes)

    def __enter__(self) -> SingleBagWriter:
        return self

    def __exit__(self, exc_type: type[BaseException] | None, *exc: object) -> None:
        with self._file:
            if exc_type is None:
                self._file.write(np.array(self._limits, LIMIT).tobytes())


class BagFile(Closing):
    """A bag that is read from front to back, of either kind. Its limits are not kept."""

    def __init__(self, path: str) -> None:
        with ExitStack() as opened:
            self._data = opened.enter_context(SourceFile(path))
            separate = os.path.exists(index_path(path)) and index_path(path) != path
            name = index_path(path) if separate else path
            self._index = opened.enter_context(SourceFile(name))
            if separate:
                self._length, rest = divmod(self._index.size, LIMIT.itemsize)
                if rest:
                    raise self._index.damaged("its size is not a multiple of 8")
            else:
                self._length = self._find_index()
            if self._length > MOST_RECORDS:
                raise self._index.damaged(f"{self._length} records are more than a bag holds")
            self._opened = opened.pop_all()

    def __len__(self) -> int:
        return self._length

    def records(self) -> Iterator[bytes]:
        number = begin = 0
        for limits in self._limits():
            for end in limits.tolist():
                if end < begin:
                    raise self._data.damaged(
                        f"it ends at byte {end}, before it begins", number, begin
                    )
                yield self._data.read(end - begin, number)
                begin, number = end, number + 1
        if begin != self._end_of_data:
            raise self._data.damaged(
                "what follows the last record is not in the index", number, begin
            )

    @property
    def _end_of_data(self) -> int:
        same = self._index.path == self._data.path
        return self._index_start if same else self._data.size

    def _limits(self) -> Iterator[Ints]:
        left = self._length
        while left:
            some = min(left, LIMITS_AT_ONCE)
            raw = np.frombuffer(self._index.read(some * LIMIT.itemsize), LIMIT)
            # A limit beyond what a signed number holds stays too large when it is made one.
            yield np.minimum(raw, np.uint64(1 << 62)).astype(np.int64)
            left -= some

    def _find_index(self) -> int:
        """Go to the index at the end of the file; how many records it has.

        The last limit is where the data ends, and so where the index begins. Version 1 has a zero
        in front of the limits.
        """
        index, width = self._index, LIMIT.itemsize
        self._index_start = 0
        if not index.size:
            return 0
        if index.size < width:
            raise index.damaged("too short for a bag")
        index.seek(index.size - width)
        start = int.from_bytes(index.read(width), "little")
        if start > index.size - width or (index.size - start) % width:
            raise index.damaged(
                f"its index begins at byte {start} of {index.size}, says its end",
                offset=index.size - width,
            )
        self._index_start = start
        index.seek(start)
        entries = (index.size - start) // width
        if int.from_bytes(index.read(width), "little") == 0:
            return entries - 1
        index.seek(start)
        return entries

    def close(self) -> None:
        self._opened.close()
