"""`ReaderRegistry`: what an object reads from, found in its attributes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ffrecord.folder import PackedFolder
from ffrecord.reader import FileReader


class ReaderRegistry:
    """An object that knows its readers.

    Every `FileReader` and `PackedFolder` that is an attribute, or stands in a list, tuple or
    dictionary that is one, counts, and those of registries that are attributes with them.
    """

    def ffreaders(self) -> list[FileReader]:
        """All readers, each once: this object's own, then those of the registries in it."""
        found: dict[int, FileReader] = {}
        seen: set[int] = set()
        waiting: list[ReaderRegistry] = [self]
        for registry in waiting:  # it grows while it is gone through
            if id(registry) in seen:
                continue
            seen.add(id(registry))
            for value in _values(vars(registry).values()):
                if isinstance(value, PackedFolder):
                    value = value.reader
                if isinstance(value, FileReader):
                    found[id(value)] = value
                elif isinstance(value, ReaderRegistry):
                    waiting.append(value)
        return list(found.values())


def _values(values: Any) -> Iterator[Any]:
    for value in values:
        if isinstance(value, (list, tuple)):
            yield from value
        elif isinstance(value, dict):
            yield from value.values()
        else:
            yield value
