"""Fields of an existing dataset, for a writer that appends datapoints to it.

The new file of a field begins with the old values: copied, or as disk blocks that both files share
(`ffrecord.records.append`). The dictionary and the bounds come after the values: they are read from
the old file and written again at the end of the new one.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from ffrecord.dataset.compression import decompressor
from ffrecord.dataset.reader import DatasetReader
from ffrecord.dataset.spec import BOUND, FieldType
from ffrecord.errors import SpecError
from ffrecord.records import append
from ffrecord.records.draft import Draft
from ffrecord.records.reader import FileReader
from ffrecord.records.writer import FileWriter


@dataclass(frozen=True, slots=True)
class OldField:
    """The file of one field: its values, then its dictionary and its bounds, if it has them."""

    path: str
    type: FieldType
    elements: int

    def dictionary(self) -> bytes:
        if self.type.compression is None or not self.type.compression.dictionary:
            return b""
        with FileReader(self.path, mode="buffered") as reader:
            return bytes(reader.read_one(self.elements))

    def bounds(self) -> array[int]:
        """Return the bounds of all sequences. Other fields have just the first bound, 0."""
        if not self.type.sequence:
            return array("q", [0])
        with FileReader(self.path, mode="buffered") as reader:
            stored = np.frombuffer(reader.read_one(reader.n - 1), BOUND)
        return array("q", stored.astype(np.int64, copy=False).tobytes())

    def values(self, most: int, most_bytes: int) -> list[bytes] | None:
        """Return all values, decompressed, or None if they reach `most` or `most_bytes`."""
        if self.elements >= most:
            return None
        assert self.type.compression is not None
        unpack = decompressor(self.type.compression)
        values: list[bytes] = []
        size = 0
        with FileReader(self.path, mode="buffered") as reader:
            for number in range(self.elements):
                record = reader.read_one(number)
                values.append(bytes(unpack(record.data)))
                size += len(values[-1])
                if size >= most_bytes:
                    return None
        return values

    def writer(self, path: str) -> FileWriter:
        """Return a writer of a new file at `path` that begins with the old values."""
        with FileReader(self.path, mode="buffered") as reader:
            append.refuse_damage(reader)
            return _ContinuedWriter(path, reader, self.elements)


class _ContinuedWriter(FileWriter):
    """A writer of a new file that begins with the first records of another file."""

    def __init__(self, path: str, reader: FileReader, records: int) -> None:
        self._first = reader, records
        super().__init__(path)
        del self._first

    def _begin(self, n: int | None, append_to: bool) -> Draft:
        return append.begin_with(*self._first, self._path)


def open_old(
    directory: str, spec: Mapping[str, str], known: Iterable[str]
) -> tuple[int, dict[str, OldField]]:
    """Open and check a dataset; return its length and its fields."""
    with DatasetReader(directory, dict.fromkeys(known, bytes), mode="buffered") as reader:
        require_same(directory, reader.spec, spec)
        columns = reader._columns.values()
        fields = {each.name: OldField(each.path, each.type, each.elements) for each in columns}
        return len(reader), fields


def require_same(directory: str, found: Mapping[str, str], given: Mapping[str, str]) -> None:
    """Raise SpecError if the given spec differs from the dataset's."""
    parts = [
        f"field {name!r} is {found.get(name, 'missing')} in the dataset and "
        f"{given.get(name, 'missing')} in the given spec"
        for name in {**found, **given}
        if found.get(name) != given.get(name)
    ]
    if parts:
        raise SpecError(
            f"{directory}: the dataset has another spec: {', '.join(parts)}; leave the spec out to "
            "use the dataset's own"
        )
