"""`ReaderRegistry`: what an object reads from, found in its attributes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ffrecord.archive.folder import PackedFolder
from ffrecord.records.fingerprints import has_fingerprint
from ffrecord.records.reader import FileReader

# A longer list than this is one of names or numbers, unless it begins with something to read from:
# it is not gone through for every batch.
MANY = 1000


class ReaderRegistry:
    """An object that knows its readers.

    Every `FileReader` and `PackedFolder` that is an attribute, or stands in a list, tuple or
    dictionary that is one, counts, and those of registries that are attributes with them.
    """

    def ffreaders(self) -> list[FileReader]:
        """All readers, each once: this object's own, then those of the registries in it."""
        found: dict[int, FileReader] = {}
        for value in self._everything():
            if isinstance(value, PackedFolder):
                value = value.reader
            if isinstance(value, FileReader):
                found[id(value)] = value
        return list(found.values())

    def ffdatasets(self) -> list[Any]:
        """Return everything else in this object, and in the registries in it, that has a
        fingerprint: `DatasetReader`s, for example."""
        found: dict[int, Any] = {}
        for value in self._everything():
            mine = isinstance(value, (FileReader, PackedFolder, ReaderRegistry))
            if not mine and not isinstance(value, type) and has_fingerprint(value):
                found[id(value)] = value
        return list(found.values())

    def _everything(self) -> Iterator[Any]:
        """The attributes of this object, and of the registries among them, with their items."""
        seen: set[int] = set()
        waiting: list[ReaderRegistry] = [self]
        for registry in waiting:  # it grows while it is gone through
            if id(registry) in seen:
                continue
            seen.add(id(registry))
            for value in _values(vars(registry).values()):
                yield value
                if isinstance(value, ReaderRegistry):
                    waiting.append(value)


def _values(values: Any) -> Iterator[Any]:
    for value in values:
        if isinstance(value, dict):
            value = value.values()
        elif not isinstance(value, (list, tuple)):
            yield value
            continue
        if len(value) <= MANY or isinstance(
            next(iter(value)), (FileReader, PackedFolder, ReaderRegistry)
        ):
            yield from value
