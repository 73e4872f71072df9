"""The three shapes of data: records, named files, rows of fields.

Each format is read as one shape and written from one shape, so N formats need N modules. The items
of a shape come from an iterator, in order and once. Each item is used before the next one is
requested, so only a few items are in memory.
"""

from __future__ import annotations

import dataclasses
import stat
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

Buffer: TypeAlias = Any  # bytes, or anything else with the buffer protocol
Row: TypeAlias = dict[str, Any]

LARGEST_RECORD = (1 << 31) - 1
"""Limit in bytes. Lengths in a file cannot be trusted: a file with holes may claim any size."""


@dataclass(slots=True)
class Records:
    """Items of bytes."""

    item_name: ClassVar = "record"
    items: Iterable[Buffer]
    count: int | None = None  # None if it is not known beforehand


@dataclass(frozen=True, slots=True)
class FileEntry:
    """A file, folder or symlink below a top folder. The top folder's entry has an empty path.

    `target` is the target of a symlink. `hard_link` is the path of an earlier entry that is the
    same file. `content` returns a file's bytes in pieces. It may be called once, and only before
    the next entry is requested.
    """

    path: bytes
    mode: int  # st_mode: kind and permissions
    uid: int = 0
    gid: int = 0
    mtime_ns: int = 0
    size: int = 0
    target: bytes = b""
    hard_link: bytes = b""
    xattrs: tuple[tuple[bytes, bytes], ...] = ()
    content: Callable[[], Iterable[Buffer]] = tuple

    @property
    def is_folder(self) -> bool:
        return stat.S_ISDIR(self.mode)

    @property
    def is_symlink(self) -> bool:
        return stat.S_ISLNK(self.mode) and not self.hard_link

    @property
    def is_file(self) -> bool:
        """True for a regular file that is not a hard link to an earlier entry."""
        return stat.S_ISREG(self.mode) and not self.hard_link


@dataclass(slots=True)
class NamedFiles:
    """Entries, each folder before its contents. `count` does not include folders."""

    item_name: ClassVar = "file"
    items: Iterable[FileEntry]
    count: int | None = None


@dataclass(slots=True)
class Rows:
    """Dicts with a value for every field of the spec. The types are those of a dataset.

    Values are decoded by the dataset's decoders. Values of types in `field_types.PASSED_ON` and of
    unknown types are their stored bytes.
    """

    item_name: ClassVar = "row"
    spec: dict[str, str]
    items: Iterable[Row]
    count: int | None = None


Shape: TypeAlias = "Records | NamedFiles | Rows"


@dataclass(frozen=True, slots=True)
class ConvertOptions:
    """Options of a conversion, as described in `convert`."""

    field: str | None = None
    types: Mapping[str, str] = dataclasses.field(default_factory=dict)
    drop_names: bool = False
    codec: str | None = None
    shard_size: int | None = None
    align: int | None = None
    mtime_ns: int = 0
    """Time of files made of records or rows: the source's, so that the output is reproducible."""
    skipped: Counter[str] = dataclasses.field(default_factory=Counter)
    """Number of things left out, by kind. Formats and shapes add to it."""
    executor: Executor | None = None
    """Runs the tasks of a conversion that has several."""


@dataclass(frozen=True, slots=True)
class Written:
    """Counts of a writer.

    `items` is the number of items in the file, `replaced` the number of items that a later one of
    the same name replaced.
    """

    items: int
    replaced: int = 0
