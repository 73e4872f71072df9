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
from typing import Any, ClassVar, TypeAlias

from ffrecord.archive.names import to_text
from ffrecord.errors import ConversionError
from ffrecord.format.index import DEEPEST, LONGEST_NAME

Buffer: TypeAlias = Any  # bytes, or anything else with the buffer protocol
Row: TypeAlias = dict[str, Any]

LARGEST_RECORD = (1 << 31) - 1
"""Bytes. A length in a file cannot be believed: with holes the file may claim any size."""


@dataclass(slots=True)
class Records:
    """A sequence of bytes each."""

    item_name: ClassVar = "record"
    items: Iterable[Buffer]
    count: int | None = None  # if that is known beforehand


@dataclass(frozen=True, slots=True)
class FileEntry:
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


def split_path(path: bytes) -> list[bytes]:
    """Return the names of an entry's path; none for the top.

    Raises:
        ConversionError: it leads out of the top, or cannot be a path.
    """
    if not path:
        return []
    names = path.split(b"/")
    for name in names:
        reason = ""
        if name in (b"", b".", b".."):
            reason = "it has an empty name, . or .. in it"
        elif b"\0" in name or len(name) > LONGEST_NAME:
            reason = f"it has a NUL in it, or a name of more than {LONGEST_NAME} bytes"
        if reason:
            raise ConversionError(f"{to_text(path)[:200]!r} is no path below a folder: {reason}")
    if len(names) > DEEPEST:
        raise ConversionError(f"{to_text(path)[:200]!r}…: more than {DEEPEST} levels deep")
    return names


@dataclass(slots=True)
class NamedFiles:
    """Entries, each folder before what is in it. `count` is of those that are not folders."""

    item_name: ClassVar = "file"
    items: Iterable[FileEntry]
    count: int | None = None


@dataclass(slots=True)
class Rows:
    """Dicts with a value for every field of the spec, whose types are those of a dataset.

    Values are what the dataset's decoders give; of types in `field_types.PASSED_ON` and of types
    that are not known, the stored bytes.
    """

    item_name: ClassVar = "row"
    spec: dict[str, str]
    items: Iterable[Row]
    count: int | None = None


Shape: TypeAlias = "Records | NamedFiles | Rows"


@dataclass(frozen=True, slots=True)
class ConvertOptions:
    """Options of a conversion; `convert` says what each means."""

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
    """Counts of a writer: the items in the file, and those that it was given and then replaced by
    later ones of the same name."""

    items: int
    replaced: int = 0
