"""Granular bags: records end to end, and the end of each record in `.idx` or after the records.

docs/converting.md specifies the bytes. The ends are called limits. Bags have no checksums: a reader
can only check that the limits increase and cover the data exactly.
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
MOST_RECORDS = (1 << 32) - 1  # the limit of granular's writer


def index_path(path: str) -> str:
    """Return the path of the index beside a bag."""
    return os.path.splitext(path)[0] + ".idx"


@contextmanager
def read(path: str, options: ConvertOptions) -> Iterator[Records]:
    """Read a bag of two files if an `.idx` lies beside it, otherwise a bag of one file."""
    with BagFile(path) as bag:
        yield Records(bag.records(), len(bag))


def count(path: str) -> int:
    with BagFile(path) as bag:
        return len(bag)


def write(path: str, records: Records, options: ConvertOptions, *, single: bool = False) -> Written:
    """Write a bag of two files, or of one file with `single`."""
    with (SingleBagWriter if single else BagWriter)(path) as bag:
        for record in records.items:
            bag.append(record)
    return Written(bag.length)


class BagWriter(Closing):
    """Writer of a bag of two files, `.bag` and `.idx`."""

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
    """Writer of a bag of one file, in version 1: version 2 cannot express an empty first record."""

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
    """Reader of a bag of one or two files, from front to back. Limits are not kept in memory."""

    def __init__(self, path: str) -> None:
        with ExitStack() as opened:
            self._data = opened.enter_context(SourceFile(path))
            separate = os.path.exists(index_path(path)) and index_path(path) != path
            name = index_path(path) if separate else path
            self._index = opened.enter_context(SourceFile(name))
            if separate:
                self._length, rest = divmod(self._index.size, LIMIT.itemsize)
                if rest:
                    raise self._index.damaged(
                        f"the index of the bag has {self._index.size} bytes, not a multiple of 8"
                    )
            else:
                self._length = self._find_index()
            if self._length > MOST_RECORDS:
                raise self._index.damaged(
                    f"the index has {self._length} records; a bag has at most {MOST_RECORDS}"
                )
            self._opened = opened.pop_all()

    def __len__(self) -> int:
        return self._length

    def records(self) -> Iterator[bytes]:
        number = begin = 0
        for limits in self._limits():
            for end in limits.tolist():
                if end < begin:
                    raise self._data.damaged(
                        f"the index says it ends at byte {end}, before it begins", number, begin
                    )
                yield self._data.read(end - begin, number)
                begin, number = end, number + 1
        if begin != self._end_of_data:
            raise self._data.damaged(
                f"the index covers {begin} of {self._end_of_data} bytes of data", number, begin
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
            # Cap limits beyond the range of int64, so that they stay too large after the cast.
            yield np.minimum(raw, np.uint64(1 << 62)).astype(np.int64)
            left -= some

    def _find_index(self) -> int:
        """Seek to the index at the end of the file, and return the number of records.

        The last limit is the end of the data, so it is also where the index begins. Version 1 has a
        zero before the limits.
        """
        index, width = self._index, LIMIT.itemsize
        self._index_start = 0
        if not index.size:
            return 0
        if index.size < width:
            raise index.damaged(f"the file has {index.size} bytes; a bag has at least {width}")
        index.seek(index.size - width)
        start = int.from_bytes(index.read(width), "little")
        if start > index.size - width or (index.size - start) % width:
            raise index.damaged(
                f"the last 8 bytes say that the index begins at byte {start} of {index.size}, "
                "which is impossible",
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
