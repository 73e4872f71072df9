"""`Contents`: the interface of everything that can be previewed, and reads that survive damage.

An item is named by a text: the number of an entry, the number of a record, or the place of a cell.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias, TypeVar

from ffrecord.aliases import Bytes
from ffrecord.errors import FFRecordError
from ffrecord.text import for_shell

Key = TypeVar("Key")
Found: TypeAlias = "Bytes | FFRecordError"

PIECE = 1 << 20  # bytes that are read, checked and sent at once


@dataclass(frozen=True, slots=True)
class Item:
    """A file, a record or a cell. `name` is empty if the item has none."""

    name: str
    size: int


class Contents(Protocol):
    """Contents of items. Every returned byte was verified."""

    def item(self, key: str) -> Item:
        """Return the name and the size of an item. Raise `LookupError` if there is none."""

    def part(self, key: str, offset: int, length: int) -> Bytes:
        """Return a part of an item; fewer bytes at its end."""

    def whole(self, keys: Sequence[str]) -> list[Found]:
        """Return items, read as one batch. A damaged item is its error."""


def read_all(read: Callable[[list[Key]], Sequence[Bytes]], keys: Sequence[Key]) -> list[Found]:
    """Read a batch. If a part of it is damaged, read each by itself and return its error."""
    if not keys:
        return []
    try:
        return list(read(list(keys)))
    except FFRecordError:
        return [_or_error(read, key) for key in keys]


def _or_error(read: Callable[[list[Key]], Sequence[Bytes]], key: Key) -> Found:
    try:
        return read([key])[0]
    except FFRecordError as error:
        return error.with_traceback(None)  # which would keep the frames and data of the request


def pieces(contents: Contents, key: str, begin: int, end: int) -> Iterator[Bytes]:
    """Yield a part of an item in pieces."""
    for offset in range(begin, end, PIECE):
        yield contents.part(key, offset, min(PIECE, end - offset))


def message(error: BaseException) -> str:
    """Return an error for the page: one sentence, without Python's names."""
    if isinstance(error, KeyError):
        return str(error.args[0]) if error.args else "not found"
    if isinstance(error, OSError) and error.strerror and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    return for_shell(error)
