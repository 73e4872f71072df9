"""Record files as the driver saw them. Workers open them, and keep a few of them open."""

from __future__ import annotations

import contextlib
import os
import pickle
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, TypeVar

from ffrecord.records import opening
from ffrecord.records.reader import FileReader, places_of, table_of
from ffrecord.records.table import KeptTable
from ffrecord.records.unchanged import changed

if TYPE_CHECKING:
    from ffrecord.remote.options import Options

Value = TypeVar("Value")

OPEN_AT_ONCE = 8
"""Files that a process keeps open between tasks, because each header is read when it is opened."""


class Opened(Generic[Value]):
    """The values that this process has opened last. Safe for threads, and after a fork."""

    def __init__(self) -> None:
        self._values: OrderedDict[Hashable, Value] = OrderedDict()
        self._process = os.getpid()

    def get(self, key: Hashable, open_it: Callable[[], Value]) -> Value:
        """Return the value for a key; open it if it is not open."""
        if self._process != os.getpid():  # connections cannot be shared with the parent process
            self._values, self._process = OrderedDict(), os.getpid()
        values = self._values
        value = values.pop(key, None)  # each operation on the dict is atomic
        if value is None:
            value = open_it()
        values[key] = value
        while len(values) > OPEN_AT_ONCE:
            with contextlib.suppress(KeyError):  # another thread has just removed the last one
                values.popitem(last=False)
        return value


@dataclass(frozen=True, slots=True)
class RecordFile:
    """One record file: its place, and what its header said when the source was made."""

    path: str
    """An absolute path, a URL, or a key in the store of `options`."""
    count: int
    crc: int
    options: Options | None = field(default=None, repr=False, compare=False)

    def open(self) -> KeptTable:
        """Return the open file; raise ChangedError if it is not the one that was seen.

        A file that was opened before is used again. Use the result at once, and do not keep it.
        """
        table = _tables.get(_key(self), lambda: _open(self))
        if (table.n, table.header_crcs[0]) != (self.count, self.crc):
            raise changed(table.name)
        return table


def version_of(path: str) -> Hashable:
    """Return a value that differs for another version of a local file."""
    found = os.stat(path)
    return path, found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def _key(file: RecordFile) -> Hashable:
    if file.options is None:
        return version_of(file.path)
    return file, pickle.dumps(file.options)


def _open(file: RecordFile) -> KeptTable:
    if file.options is None:
        return opening.open_files([file.path], "auto", check=True)
    from ffrecord.remote.files import RemoteFiles  # needed for URLs only

    return opening.open_remote(RemoteFiles([file.path], file.options), check=True)[1]


_tables: Opened[KeptTable] = Opened()


def record_files(reader: FileReader) -> list[RecordFile]:
    """Return the files of an open reader."""
    table = table_of(reader)
    paths, options = places_of(reader)
    counts = (table.first[1:] - table.first[:-1]).tolist()
    facts = zip(paths, counts, table.header_crcs, strict=True)
    return [RecordFile(path, count, crc, options) for path, count, crc in facts]
