"""`DatasetReader` and `MemoryDataset`: datapoints of typed fields, by number, in batches.

What one call asks for, of all fields and datapoints, is one batch: what lies next to each other in
a file, as the elements of a sequence do, is one read. Every record's checksum is verified.

Both may be used from any number of threads and after a fork. A `DatasetReader` pickles as its path
and options; for spawned processes its decoders must be functions that can be imported. A
`MemoryDataset` pickles with its content.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, SupportsIndex

import numpy as np

from ffrecord.aliases import Bytes, Closing, Ints, Path
from ffrecord.dataset import codecs
from ffrecord.dataset.codecs import Decoder
from ffrecord.dataset.columns import Column, open_columns, parse_types
from ffrecord.dataset.datapoints import Datapoint, Datapoints, Part, Parts
from ffrecord.dataset.files import RecordFiles
from ffrecord.dataset.spec import file_name, load
from ffrecord.errors import DatasetError
from ffrecord.records.fingerprints import combined
from ffrecord.records.unchanged import changed, refuse_replaced

SEQUENCE_BOUNDS = "refs"
"""Among `cache_keys`: granular has a file of this name, which holds what our bounds do."""


class _ColumnDatapoints(Datapoints):
    """Datapoints whose fields are columns of files, of memory, or of both."""

    _columns: dict[str, Column]
    _files: RecordFiles | None
    _length: int

    @property
    def spec(self) -> dict[str, str]:
        return {name: column.type.text for name, column in self._columns.items()}

    def __len__(self) -> int:
        return self._length

    def available(self, index: SupportsIndex) -> dict[str, Part]:
        number = self._number(index)
        found: dict[str, Part] = {}
        for name, column in self._columns.items():
            begin, end = column.spans(number, True)
            found[name] = range(int(end[0] - begin[0])) if column.type.sequence else True
        return found

    def _begin(
        self, indices: Ints, masks: Sequence[Parts], ahead: bool
    ) -> Callable[[], list[Datapoint]]:
        wanted = list(self._wanted(indices, masks))
        stored = [each for each in wanted if each.column.kept is None]
        records = [each.records() for each in stored]
        collect: Callable[[], Sequence[Any]] = list
        if any(map(len, records)):
            assert self._files is not None
            file = np.repeat([each.column.file for each in stored], list(map(len, records)))
            collect = self._files.begin(file, np.concatenate(records), ahead=ahead)

        def datapoints() -> list[Datapoint]:
            contents = iter(collect())
            result: list[Datapoint] = [{} for _ in range(len(indices))]
            for each in wanted:
                name = each.column.name
                for row, value in zip(each.rows, each.values(contents), strict=True):
                    result[row][name] = value
            return result

        return datapoints

    def _wanted(self, indices: Ints, masks: Sequence[Parts]) -> Iterator[_Wanted]:
        """Yield the records asked for, by column and part of it, in the order of the columns."""
        if len(masks) == 1:
            groups: dict[tuple[str, Part], Sequence[int]] = {
                asked: range(len(indices)) for asked in masks[0]
            }
        else:
            gathered: dict[tuple[str, Part], list[int]] = {}
            for row, mask in enumerate(masks):
                for asked in mask:
                    gathered.setdefault(asked, []).append(row)
            order = list(self._columns)
            groups = dict(sorted(gathered.items(), key=lambda item: order.index(item[0][0])))
        for (name, part), rows in groups.items():
            some = indices if len(rows) == len(indices) else indices[list(rows)]
            yield _Wanted(self._columns[name], rows, *self._columns[name].spans(some, part))


@dataclass(slots=True)
class _Wanted:
    """A column's records [begin, end) for some rows of a result."""

    column: Column
    rows: Sequence[int]
    begin: Ints
    end: Ints

    def records(self) -> Ints:
        """All of them, row after row."""
        if not self.column.type.sequence:
            return self.begin
        counts = self.end - self.begin
        before = counts.cumsum() - counts
        return np.repeat(self.begin - before, counts) + np.arange(counts.sum())

    def values(self, contents: Iterator[Bytes]) -> list[Any]:
        """One for each row; of `contents`, which go on with the next column's."""
        records, kept = self.records(), self.column.kept
        mine = list(islice(contents, len(records))) if kept is None else kept.copies(records)
        values = self.column.values(records, mine)
        if not self.column.type.sequence:
            return values
        each = iter(values)
        return [list(islice(each, count)) for count in (self.end - self.begin).tolist()]


class DatasetReader(Closing, _ColumnDatapoints):
    """Reads a dataset that `DatasetWriter` wrote.

    Args:
        directory: its folder.
        decoders: type name -> function from `bytes` to a value, or from a `memoryview` if it is
            marked with `view_decoder`.
        cache_index: keep checksums, offsets and sequence bounds in memory, 12 bytes a record and
            8 a sequence. Without, they are read for every batch: one more batch of small reads in
            front of it, and for sequences two.
        cache_keys: small fields to keep in memory, encoded as they are stored. "refs", unless a
            field has that name, keeps the sequence bounds: what granular calls so.
        check_data: verify every record's CRC-32.
        mode: as for `FileReader`.
    """

    def __init__(
        self,
        directory: Path,
        decoders: Mapping[str, Decoder] = codecs.decoders,
        *,
        cache_index: bool = True,
        cache_keys: Collection[str] = (),
        check_data: bool = True,
        mode: str = "auto",
    ) -> None:
        self._options: dict[str, Any] = {
            "directory": os.path.abspath(os.fsdecode(directory)),
            "decoders": decoders,
            "cache_index": cache_index,
            "cache_keys": tuple(cache_keys),
            "check_data": check_data,
            "mode": mode,
        }
        self._open(**self._options)

    def _open(self, *, directory: str, **options: Any) -> None:
        while True:
            found = os.stat(directory)
            try:
                self._open_files(directory, **options)
                return
            except DatasetError:
                # A writer that appends may have put a new folder there meanwhile.
                if os.path.samestat(found, os.stat(directory)):
                    raise

    def _open_files(
        self, directory: str, decoders: Mapping[str, Decoder], cache_index: bool,
        cache_keys: tuple[str, ...], check_data: bool, mode: str,
    ) -> None:  # fmt: skip
        manifest = load(directory)
        self.directory = directory
        self._length = manifest.length
        parse_types(directory, manifest.spec, decoders)
        paths = [os.path.join(directory, file_name(name)) for name in manifest.spec]
        # The caller to warn is the one of `__init__`, above `_open` and this.
        files = RecordFiles(paths, check_data, mode, keep_headers=cache_index, stacklevel=4)
        keep_bounds = cache_index or SEQUENCE_BOUNDS in cache_keys
        self._columns = open_columns(directory, manifest, paths, files, decoders, keep_bounds)
        for name in cache_keys:
            if name == SEQUENCE_BOUNDS and name not in self._columns:
                continue
            if name not in self._columns:
                raise KeyError(f"cache_keys: there is no field {name!r} in {directory}")
            self._columns[name] = self._columns[name].loaded(files)
        self._files = files
        # Only what is used goes along when the reader is pickled.
        names = {column.type.name for column in self._columns.values()}
        self._options["decoders"] = {name: decoders[name] for name in names}

    @property
    def fingerprint(self) -> str:
        """SHA-256 over the fields and the checksums of their files' headers."""
        assert self._files is not None
        fields = (
            f"{column.name} {column.type.text} {self._files.counts[column.file]} "
            f"{self._files.header_crc(column.file)}"
            for column in self._columns.values()
        )
        return combined(str(self._length), *fields)

    @property
    def size(self) -> int:
        """The bytes of all its record files."""
        assert self._files is not None
        return self._files.size

    def to_memory(self, fields: Collection[str] | None = None) -> MemoryDataset:
        """All of it, or some fields, in memory, encoded as it is stored."""
        chosen = self.spec if fields is None else fields
        for name in chosen:
            if name not in self._columns:
                raise KeyError(f"there is no field {name!r} in {self.directory}")
        assert self._files is not None
        columns = [column.loaded(self._files) for column in self._columns.values()
                   if column.name in chosen]  # fmt: skip
        names = [column.name for column in columns]
        return MemoryDataset(columns, self._length, combined(self.fingerprint, *names))

    def close(self) -> None:
        """Close the files. Values that were read stay valid."""
        if self._files is not None:
            self._files.close()

    def __getstate__(self) -> dict[str, Any]:
        opened = [] if self._files is None else self._files.opened()
        refuse_replaced(opened, self.fingerprint, lambda: type(self)(**self._options).fingerprint)
        return {**self._options, "fingerprint": self.fingerprint}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._options = {**state}
        fingerprint = self._options.pop("fingerprint", None)
        self._open(**self._options)
        if fingerprint not in (None, self.fingerprint):
            raise changed(self.directory)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.directory}: {len(self)} datapoints>"


class MemoryDataset(_ColumnDatapoints):
    """A dataset, or some of its fields, in memory; made by `to_memory`. Needs no files."""

    def __init__(self, columns: Sequence[Column], length: int, fingerprint: str) -> None:
        self._files = None
        self._length = length
        self._fingerprint = fingerprint
        self._columns = {column.name: column for column in columns}

    @property
    def fingerprint(self) -> str:
        return self._fingerprint

    @property
    def size(self) -> int:
        """The bytes of all its records."""
        return sum(len(c.kept.content) for c in self._columns.values() if c.kept is not None)

    def __repr__(self) -> str:
        return f"<MemoryDataset: {len(self)} datapoints of {', '.join(self._columns)}>"
