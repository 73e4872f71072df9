"""`ReaderRegistry`: a base class that finds an object's readers in its attributes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ffrecord.archive.folder import PackedFolder
from ffrecord.records.fingerprints import has_fingerprint
from ffrecord.records.reader import FileReader

# Longer lists are searched only if they begin with a reader. They usually hold names or numbers,
# and a search for every batch would be slow.
MANY = 1000


class ReaderRegistry:
    """Base class of objects that list their readers.

    `ffreaders` finds every `FileReader` and `PackedFolder` among the object's attributes, and in
    attributes that are a list, a tuple or a dictionary. If it finds another `ReaderRegistry`, it
    searches that one too.
    """

    def ffreaders(self) -> list[FileReader]:
        """Return each reader once: first this object's readers, then the readers of registries."""
        found: dict[int, FileReader] = {}
        for value in self._everything():
            if isinstance(value, PackedFolder):
                value = value.reader
            if isinstance(value, FileReader):
                found[id(value)] = value
        return list(found.values())

    def ffdatasets(self) -> list[Any]:
        """Return all other objects with a fingerprint, such as `DatasetReader`s.

        The search is the same as for readers.
        """
        found: dict[int, Any] = {}
        for value in self._everything():
            ours = isinstance(value, (FileReader, PackedFolder, ReaderRegistry))
            if not ours and not isinstance(value, type) and has_fingerprint(value):
                found[id(value)] = value
        return list(found.values())

    def _everything(self) -> Iterator[Any]:
        """Yield the attributes of this object and of registries in it. Lists yield their items."""
        seen: set[int] = set()
        waiting: list[ReaderRegistry] = [self]
        for registry in waiting:  # the list grows during the loop
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
