"""`DatasetReader` and `MemoryDataset`: datapoints of typed fields, by number, in batches.

One call reads all of its fields and datapoints as one batch. Neighbours in a file, such as the
elements of a sequence, are one read. Every record's checksum is verified.

Any number of threads may share them, and so may a forked process. A `DatasetReader` pickles as its
path and options; spawned processes can unpickle it if its decoders are importable functions. A
`MemoryDataset` pickles with its content.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, SupportsIndex

import numpy as np

from ffrecord.aliases import Bytes, Closing, Ints, Path
from ffrecord.dataset import codecs
from ffrecord.dataset.codecs import Decoder
from ffrecord.dataset.columns import Column, open_columns, parse_types
from ffrecord.dataset.datapoints import Datapoint, Datapoints, Part, Parts
from ffrecord.dataset.files import RecordFiles
from ffrecord.dataset.remote import is_remote_dataset, load_remote, remote_dataset
from ffrecord.dataset.spec import Manifest, file_name, load
from ffrecord.errors import DatasetError
from ffrecord.records.fingerprints import combined
from ffrecord.records.opening import refuse_remote_options
from ffrecord.records.unchanged import changed, refuse_replaced
from ffrecord.text import path_text

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ffrecord.remote.files import RemoteFolder
    from ffrecord.remote.options import RemoteOptions

_OWN = ("decoders", "cache_index", "cache_keys", "check_data", "mode")
"""Options of a reader that are not about URLs."""

_OPENED = ("_options", "directory", "_length", "_remote", "_columns", "_files")
"""The attributes of a `DatasetReader` itself. All others belong to a subclass or to the user."""

SEQUENCE_BOUNDS = "refs"
"""The name of the sequence bounds in `cache_keys`. granular's file of bounds has that name."""


class _ColumnDatapoints(Datapoints):
    """Datapoints whose fields are columns in files, in memory, or both."""

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
        """Yield the requested records, grouped by column and part, in the order of the columns."""
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
        """Return the numbers of all records, row after row."""
        if not self.column.type.sequence:
            return self.begin
        counts = self.end - self.begin
        before = counts.cumsum() - counts
        return np.repeat(self.begin - before, counts) + np.arange(counts.sum())

    def values(self, contents: Iterator[Bytes]) -> list[Any]:
        """Return a value for each row. Takes this column's records from the front of `contents`."""
        records, kept = self.records(), self.column.kept
        mine = list(islice(contents, len(records))) if kept is None else kept.copies(records)
        values = self.column.values(records, mine)
        if not self.column.type.sequence:
            return values
        each = iter(values)
        return [list(islice(each, count)) for count in (self.end - self.begin).tolist()]


class DatasetReader(Closing, _ColumnDatapoints):
    """Reader of a dataset that `DatasetWriter` wrote.

    Args:
        directory: The dataset's folder, or its URL.
        decoders: A function for each type name, from `bytes` to a value. A function marked with
            `view_decoder` gets a `memoryview` instead.
        cache_index: Keep checksums, offsets and sequence bounds in memory: 12 bytes per record and
            8 per sequence. Otherwise every batch reads them first, with one more batch of small
            reads, or two for sequences.
        cache_keys: Small fields to keep in memory, encoded as in the file. The name "refs" keeps
            the sequence bounds, as in granular, unless a field has that name.
        check_data: Verify the CRC-32 of every record.
        mode: The way to read, as for `FileReader`.
        remote: Options for URLs, as for `FileReader`.
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
        **remote: Unpack[RemoteOptions],
    ) -> None:
        place: Any = directory
        if not is_remote_dataset(directory, remote):
            if remote:
                refuse_remote_options(remote)
            place = os.path.abspath(path_text(directory))
        self._options: dict[str, Any] = {
            "directory": place,
            "decoders": decoders,
            "cache_index": cache_index,
            "cache_keys": tuple(cache_keys),
            "check_data": check_data,
            "mode": mode,
            **remote,
        }
        self._open(**self._options)

    def _open(self, *, directory: Any, **options: Any) -> None:
        remote: Any = {name: options.pop(name) for name in list(options) if name not in _OWN}
        if is_remote_dataset(directory, remote):
            self._open_remote(remote_dataset(directory, remote), **options)
            return
        while True:
            found = os.stat(directory)
            try:
                self._open_files(directory, **options)
                return
            except DatasetError:
                # An appending writer may have replaced the folder in the meantime: try again.
                if os.path.samestat(found, os.stat(directory)):
                    raise

    def _open_files(self, directory: str, **options: Any) -> None:
        self._open_fields(directory, load(directory), None, **options)

    def _open_remote(self, folder: RemoteFolder, **options: Any) -> None:
        self._open_fields(folder.name, load_remote(folder), folder, **options)

    def _open_fields(
        self, directory: str, manifest: Manifest, folder: RemoteFolder | None,
        decoders: Mapping[str, Decoder], cache_index: bool, cache_keys: tuple[str, ...],
        check_data: bool, mode: str,
    ) -> None:  # fmt: skip
        self.directory = directory
        self._length = manifest.length
        parse_types(directory, manifest.spec, decoders)
        paths = [os.path.join(directory, file_name(name)) for name in manifest.spec]
        remote = None if folder is None else folder.files(list(map(file_name, manifest.spec)))
        self._remote = remote
        # Warnings point at the caller of `__init__`, above `_open` and two more functions.
        files = RecordFiles(
            paths, check_data, mode, keep_headers=cache_index, stacklevel=5, remote=remote
        )
        keep_bounds = cache_index or SEQUENCE_BOUNDS in cache_keys
        self._columns = open_columns(directory, manifest, paths, files, decoders, keep_bounds)
        for name in cache_keys:
            if name == SEQUENCE_BOUNDS and name not in self._columns:
                continue
            if name not in self._columns:
                raise KeyError(
                    f"cache_keys: {directory} has no field {name!r}; its fields are "
                    f"{', '.join(self._columns)}"
                )
            self._columns[name] = self._columns[name].loaded(files)
        self._files = files
        # Only decoders in use are pickled: others might not be importable.
        names = {column.type.name for column in self._columns.values()}
        self._options["decoders"] = {name: decoders[name] for name in names}

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the fields and the checksums of their files' headers."""
        assert self._files is not None
        fields = (
            f"{column.name} {column.type.text} {self._files.counts[column.file]} "
            f"{self._files.header_crc(column.file)}"
            for column in self._columns.values()
        )
        return combined(str(self._length), *fields)

    @property
    def size(self) -> int:
        """Total size of the record files in bytes."""
        assert self._files is not None
        return self._files.size

    def to_memory(self, fields: Collection[str] | None = None) -> MemoryDataset:
        """Load all fields, or those in `fields`, into memory, encoded as in the files."""
        chosen = self.spec if fields is None else fields
        for name in chosen:
            if name not in self._columns:
                raise KeyError(
                    f"{self.directory} has no field {name!r}; its fields are "
                    f"{', '.join(self._columns)}"
                )
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
        refuse_replaced(
            opened, self.fingerprint, lambda: DatasetReader(**self._options).fingerprint
        )
        added = {name: value for name, value in vars(self).items() if name not in _OPENED}
        return {**self._options, "fingerprint": self.fingerprint, "added": added}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._options = {**state}
        fingerprint = self._options.pop("fingerprint", None)
        vars(self).update(self._options.pop("added", {}))
        self._open(**self._options)
        if fingerprint not in (None, self.fingerprint):
            raise changed(self.directory)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.directory}: {len(self)} datapoints>"


class MemoryDataset(_ColumnDatapoints):
    """A dataset, or some of its fields, in memory. `DatasetReader.to_memory` makes it.

    It does not need the files any more.
    """

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
        """Total size of the records in bytes."""
        return sum(len(c.kept.content) for c in self._columns.values() if c.kept is not None)

    def __repr__(self) -> str:
        return f"<MemoryDataset: {len(self)} datapoints of {', '.join(self._columns)}>"
