"""The three shapes that data has, whatever the format: records, named files, rows of fields.

A format is read as one of them and written from one of them, so N formats need N modules. What is
in a shape comes as an iterator, in order, and once: an item is used before the next one is asked
for. Nothing holds more than a few items.
"""

from __future__ import annotations

import dataclasses
import stat
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

Buffer: TypeAlias = Any  # bytes, or anything else with the buffer protocol
Row: TypeAlias = dict[str, Any]

LARGEST_RECORD = (1 << 31) - 1
"""Of a format whose lengths cannot be believed: a file may have holes, and claim any size."""


@dataclass(slots=True)
class Records:
    """A sequence of bytes each."""

    items: Iterable[Buffer]
    count: int | None = None  # if that is known beforehand


@dataclass(frozen=True, slots=True)
class Entry:
    """A file, folder or symlink below some top, which itself is the entry with an empty path.

    `target` is what a symlink says, `hard_link` the earlier path that this is another name for.
    `content` gives a file's bytes, in pieces, at most once and before the next entry is taken.
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
        """A regular file with a content of its own."""
        return stat.S_ISREG(self.mode) and not self.hard_link


@dataclass(slots=True)
class Files:
    """Entries, each folder before what is in it. `count` is of those that are not folders."""

    items: Iterable[Entry]
    count: int | None = None


@dataclass(slots=True)
class Rows:
    """Dicts with a value for every field of the spec, whose types are those of a dataset.

    Values are what the dataset's decoders give; of types in `fieldtypes.PASSED_ON` and of types
    that are not known, the stored bytes.
    """

    spec: dict[str, str]
    items: Iterable[Row]
    count: int | None = None


Shape: TypeAlias = "Records | Files | Rows"


@dataclass(frozen=True, slots=True)
class Options:
    """What a conversion may be told; README and `convert` say what each means."""

    field: str | None = None
    types: Mapping[str, str] = dataclasses.field(default_factory=dict)
    drop_names: bool = False
    codec: str | None = None
    shard_size: int | None = None
    mtime_ns: int = 0
    """For files that are made of records or rows: the source's own time, so that the same source
    gives the same bytes."""
    skipped: Counter[str] = dataclasses.field(default_factory=Counter)
    """How many things are left out, by kind: for whoever leaves them out to add to."""


@dataclass(frozen=True, slots=True)
class Written:
    """What a writer did: how many items are in the file, and how many of those that it was given
    were replaced by later ones of the same name."""

    items: int
    replaced: int = 0
