"""`ReaderRegistry`: a base class that finds an object's readers in its attributes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ffrecord.archive.folder import PackedFolder
from ffrecord.records.fingerprints import has_fingerprint
from ffrecord.records.reader import FileReader

# Longer lists are not searched for every batch, unless they begin with a reader: they usually hold
# names or numbers.
MANY = 1000


class ReaderRegistry:
    """Base class of objects that list their readers.

    It finds every `FileReader` and `PackedFolder` in the object's attributes, and in attributes
    that are a list, a tuple or a dictionary. It also searches the registries among them.
    """

    def ffreaders(self) -> list[FileReader]:
        """Return all readers once: first this object's, then the readers of its registries."""
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
        """Yield the attributes of this object and of the registries in it, with list items."""
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
