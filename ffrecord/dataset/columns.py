"""The fields of a dataset as columns: the records of each datapoint, and their decoded values.

A column's values are records in its file, or copies of them in memory. The elements of a sequence
are neighbouring records. `Bounds` holds the first element of each sequence: datapoint i has the
elements from bound i up to, not including, bound i + 1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from ffrecord.aliases import Bytes, Ints
from ffrecord.dataset.codecs import Decoder, takes_view
from ffrecord.dataset.compression import Compression, decompressor, stated_size
from ffrecord.dataset.datapoints import Part
from ffrecord.dataset.files import RecordFiles
from ffrecord.dataset.optional import reason
from ffrecord.dataset.spec import BOUND, FieldType, Manifest, parse_type
from ffrecord.errors import DatasetError, DecodeError, FFRecordError, SpecError

# A column is loaded into memory in steps of about this many bytes and at most this many records.
LOAD_BYTES = 16 << 20
LOAD_RECORDS = 8192


class Bounds(Protocol):
    """The places of sequences among the elements of a field."""

    def spans(self, indices: Ints) -> tuple[Ints, Ints]:
        """Return the first element of each sequence, and the element after its last."""

    def kept(self) -> Bounds:
        """Return the same bounds, held in memory."""


@dataclass(frozen=True, slots=True)
class KeptBounds:
    """Bounds in memory: 8 bytes per datapoint."""

    bounds: Ints

    def kept(self) -> Bounds:
        return self

    def spans(self, indices: Ints) -> tuple[Ints, Ints]:
        return self.bounds[indices], self.bounds[indices + 1]


@dataclass(frozen=True, slots=True)
class StreamedBounds:
    """Bounds that are read from the file for every batch."""

    files: RecordFiles
    file: int
    record: int
    path: str
    elements: int
    length: int

    def kept(self) -> Bounds:
        return _open_bounds(self, keep=True)

    def spans(self, indices: Ints) -> tuple[Ints, Ints]:
        pairs = self.files.words(self.file, self.record, indices * BOUND.itemsize)
        begin, end = pairs[:, 0], pairs[:, 1]
        # The bounds were valid when the file was opened, so invalid ones mean that it changed.
        if ((begin < 0) | (end < begin) | (end > self.elements)).any():
            raise DatasetError(
                f"{self.path}: the bounds of its sequences changed while it was open; reopen the "
                "dataset"
            )
        return begin, end


@dataclass(frozen=True, slots=True)
class KeptRecords:
    """Records in memory, end to end in one block, so that forked workers share it."""

    content: Bytes
    ends: Ints

    @classmethod
    def of(cls, records: Iterable[Sequence[Bytes]]) -> KeptRecords:
        pieces, sizes = [np.empty(0, np.uint8)], [np.empty(0, np.int64)]
        for some in records:
            pieces.append(np.concatenate(some))
            sizes.append(np.array([len(record) for record in some], np.int64))
        return cls(np.concatenate(pieces), np.concatenate(sizes).cumsum())

    def copies(self, records: Ints) -> list[Bytes]:
        """Return copies of some records, because decoded values may be written to."""
        begin = np.where(records > 0, self.ends[records - 1], 0)
        spans = zip(begin.tolist(), self.ends[records].tolist(), strict=True)
        return [self.content[start:stop].copy() for start, stop in spans]


@dataclass(frozen=True, slots=True)
class Column:
    """One field. `file` is the number of its file, `elements` the number of values in the file."""

    name: str
    type: FieldType
    file: int
    path: str
    elements: int
    decode: Decoder
    bounds: Bounds | None = None
    kept: KeptRecords | None = None

    def spans(self, indices: Ints, part: Part) -> tuple[Ints, Ints]:
        """Return the first record of each of these datapoints, and the record after its last."""
        if self.bounds is None:
            return indices, indices + 1
        begin, end = self.bounds.spans(indices)
        if isinstance(part, range):
            if part.start >= part.stop:
                return begin, begin
            short = np.flatnonzero(end - begin < part.stop)
            if short.size:
                at = int(short[0])
                raise IndexError(
                    f"{self.name!r} of datapoint {indices[at]} has {end[at] - begin[at]} elements, "
                    f"but the mask asks for elements up to {part.stop}; available() returns the "
                    "longest range"
                )
            begin, end = begin + part.start, begin + part.stop
        return begin, end

    def values(self, records: Ints, contents: Sequence[Bytes]) -> list[Any]:
        """Decode some records, whose bytes are `contents`."""
        given: Callable[[Any], Any] = memoryview if takes_view(self.decode) else bytes
        return self._each(records, contents, self.decode, given)

    def unpacked_sizes(self, records: Ints, contents: Sequence[Bytes]) -> list[int]:
        """Return the sizes of the values of a compressed field, before they are unpacked."""
        assert self.type.compression is not None
        return self._each(records, contents, stated_size(self.type.compression), memoryview)

    def _each(
        self, records: Ints, contents: Sequence[Bytes], decode: Decoder,
        given: Callable[[Any], Any],
    ) -> list[Any]:  # fmt: skip
        values: list[Any] = []
        try:  # one `try` around the loop is faster; len(values) is the record that failed
            for content in contents:
                values.append(decode(given(content)))
        except Exception as error:
            if isinstance(error, FFRecordError) and not isinstance(error, DecodeError):
                raise
            raise DecodeError(
                f"{self.path}: record {records[len(values)]} cannot be decoded as "
                f"{self.type.text.removesuffix('[]')}: {reason(error)}"
            ) from error
        return values

    def loaded(self, files: RecordFiles) -> Column:
        """Return the same column with its records and bounds in memory."""
        bounds = None if self.bounds is None else self.bounds.kept()
        kept = self.kept or KeptRecords.of(self._everything(files))
        return replace(self, bounds=bounds, kept=kept)

    def _everything(self, files: RecordFiles) -> Iterator[Sequence[Bytes]]:
        start, step = 0, 16  # a few records at first: their sizes decide the next step
        while start < self.elements:
            records = np.arange(start, min(start + step, self.elements))
            contents = files.begin(np.full(len(records), self.file), records, ahead=False)()
            yield contents
            start += len(records)
            size = max(1, sum(map(len, contents)))
            step = max(1, min(LOAD_RECORDS, LOAD_BYTES * len(records) // size))


class Unpacking:
    """A decoder that decompresses the record first. It pickles as its three arguments."""

    takes_view = True

    def __init__(self, how: Compression, dictionary: bytes, decode: Decoder) -> None:
        self._made_of = how, dictionary, decode
        self._decompress = decompressor(how, dictionary)
        self._decode = decode
        self._given: Callable[[Any], Any] = memoryview if takes_view(decode) else bytes

    def __call__(self, record: memoryview) -> Any:
        return self._decode(self._given(self._decompress(record)))

    def __reduce__(self) -> tuple[type[Unpacking], tuple[Compression, bytes, Decoder]]:
        return type(self), self._made_of


def open_columns(
    directory: str, manifest: Manifest, paths: Sequence[str], files: RecordFiles,
    decoders: Mapping[str, Decoder], keep_bounds: bool,
) -> dict[str, Column]:  # fmt: skip
    """Return the columns of a dataset.

    Raises:
        DatasetError: A file is not the one that was written with this spec.
        SpecError: A type has no decoder.
    """
    types = parse_types(directory, manifest.spec, decoders)
    columns = {}
    for file, (name, type_) in enumerate(types.items()):
        path, trained = paths[file], bool(type_.compression and type_.compression.dictionary)
        elements = files.counts[file] - trained - type_.sequence
        if files.header_crc(file) != manifest.checksums[name]:
            raise DatasetError(
                f"{path}: not the file that this dataset was written with: its header has another "
                "checksum than spec.json says; restore this file or spec.json"
            )
        if elements < 0 or (not type_.sequence and elements != manifest.length):
            raise DatasetError(
                f"{path}: the file has {files.counts[file]} records, which does not fit "
                f"{manifest.length} datapoints of type {type_.text}; restore this file or spec.json"
            )
        dictionary = b"".join(map(bytes, files.stream(file, elements))) if trained else b""
        bounds: Bounds | None = None
        if type_.sequence:
            where = StreamedBounds(files, file, elements + trained, path, elements, manifest.length)
            bounds = _open_bounds(where, keep=keep_bounds)
        decode = decoders[type_.name]
        if type_.compression is not None:
            decode = Unpacking(type_.compression, dictionary, decode)
        columns[name] = Column(name, type_, file, path, elements, decode, bounds)
    return columns


def parse_types(
    directory: str, spec: Mapping[str, str], decoders: Mapping[str, Decoder]
) -> dict[str, FieldType]:
    """Parse the types of a spec; raise SpecError if one has no decoder."""
    try:
        return {name: parse_type(text, decoders) for name, text in spec.items()}
    except SpecError as error:
        known = ", ".join(sorted(decoders))
        raise SpecError(f"{directory}: {error} (types with a decoder: {known})") from None


def _open_bounds(where: StreamedBounds, *, keep: bool) -> Bounds:
    """Read and check all bounds. Return them in memory if `keep`, otherwise `where` itself."""
    kept, last, count, rest, in_order = [], 0, 0, b"", True
    for chunk in where.files.stream(where.file, where.record):
        raw = rest + chunk.tobytes()
        whole = len(raw) // BOUND.itemsize
        bounds, rest = np.frombuffer(raw, BOUND, whole), raw[whole * BOUND.itemsize :]
        if not whole:
            continue
        in_order &= bool(bounds[0] >= last and (bounds[1:] >= bounds[:-1]).all())
        in_order &= bool(count or bounds[0] == 0)
        last, count = int(bounds[-1]), count + whole
        if keep:
            kept.append(bounds)
    # Check only after the stream: at its end it raises an error if the record is damaged. Damage is
    # the better explanation.
    if not in_order:
        raise DatasetError(
            f"{where.path}: the bounds of its sequences are not in increasing order from 0; the "
            "file was not written by DatasetWriter"
        )
    if rest or count != where.length + 1 or last != where.elements:
        raise DatasetError(
            f"{where.path}: the bounds of its sequences do not fit {where.length} sequences with "
            f"{where.elements} elements in all; restore this file or spec.json"
        )
    return KeptBounds(np.concatenate(kept).astype(np.int64, copy=False)) if keep else where
