"""The record files of a dataset, read together: one batch over all of them.

`IndexedFiles` keeps every file's checksums and offsets in memory, as `FileReader` does: 12 bytes a
record, and a record costs one read. `StreamedFiles` keeps nothing: what it needs of a header is
read for every batch, as a batch before it. It verifies headers when they are opened, in passing;
what it reads of them later is checked by the records: an offset that is wrong leads to bytes that
do not have the checksum.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Protocol, TypeAlias

import numpy as np

from ffrecord.aliases import Bytes, Ints
from ffrecord.disk.source import Recheck, SourceSet
from ffrecord.errors import (
    ClosedError,
    HeaderChecksumError,
    SampleChecksumError,
    StructureError,
)
from ffrecord.format import records as record_layout
from ffrecord.format.checksum import crc32
from ffrecord.records.batch import Batch
from ffrecord.records.opening import refuse_other_kinds
from ffrecord.records.reader import FileReader

Collect: TypeAlias = Callable[[], list[Bytes]]

CHUNK = 1 << 20


class Files(Protocol):
    """Files and the records in them, both by number."""

    counts: list[int]
    size: int

    def header_crc(self, file: int) -> int: ...
    def begin(self, file: Ints, record: Ints, *, ahead: bool) -> Collect:
        """Begin to read some records of some files, as one batch."""

    def stream(self, file: int, record: int) -> Iterator[Bytes]:
        """One record in chunks; whether it is whole shows at the end."""

    def words(self, file: int, record: int, at: Ints) -> Ints:
        """Two 64-bit numbers from each of these bytes of a record on, unchecked."""

    def opened(self) -> list[tuple[str, int]]:
        """The paths of the files and their descriptors; none if they are closed."""

    def close(self) -> None: ...


class IndexedFiles:
    """Files whose headers are in memory."""

    def __init__(self, paths: Sequence[str], check_data: bool, mode: str) -> None:
        self._reader = FileReader(list(paths), check_data, mode=mode)
        files = range(len(paths))
        self.counts = [len(self._reader.get_checksums(file)) for file in files]
        self._first = np.concatenate([[0], np.cumsum(self.counts, dtype=np.int64)])
        self.size = sum(int(self._reader.get_offsets(file)[-1]) for file in files)

    def header_crc(self, file: int) -> int:
        return self._reader.header_crc(file)

    def begin(self, file: Ints, record: Ints, *, ahead: bool) -> Collect:
        records = self._first[file] + record
        # FileReader takes one or two records by a plain read each; neighbours are to be one read.
        if ahead or (len(records) == 2 and records[1] == records[0] + 1 and file[0] == file[1]):
            return self._reader.read_async(records).result
        return lambda: self._reader.read(records)

    def stream(self, file: int, record: int) -> Iterator[Bytes]:
        return self._reader.stream(int(self._first[file]) + record, CHUNK)

    def words(self, file: int, record: int, at: Ints) -> Ints:
        index = int(self._first[file]) + record
        return _joined_words(self._reader.read_pieces(index, at, at + 16, None))

    def opened(self) -> list[tuple[str, int]]:
        return self._reader.opened()

    def close(self) -> None:
        self._reader.close()


class StreamedFiles:
    """Files whose headers stay on disk."""

    def __init__(self, paths: Sequence[str], check_data: bool, mode: str) -> None:
        self._paths = list(paths)
        self._check = check_data
        self._mode = mode
        self._open: SourceSet | None = None
        for path in self._paths:
            refuse_other_kinds(path)
        sources = SourceSet(self._paths, direct=mode in ("auto", "aio"))
        self._sizes = np.array([os.fstat(source.fd).st_size for source in sources.each])
        self.counts = []
        self._crcs = []
        for source, size in zip(sources.each, self._sizes.tolist(), strict=True):
            prefix = source.read_bytes(0, min(size, record_layout.PREFIX.size))
            self.counts.append(record_layout.parse_prefix(source.path, prefix, size))
            self._crcs.append(int.from_bytes(prefix[: record_layout.CRC_SIZE], "little"))
        self._headers = np.array([record_layout.header_size(n) for n in self.counts])
        self._n = np.array(self.counts)
        self.size = int(self._sizes.sum())
        if mode == "mmap":
            sources.map_all()
        elif mode == "auto":
            sources.ask_about_the_cache()
        self._open = sources
        if check_data:
            self._verify_headers()

    def header_crc(self, file: int) -> int:
        return self._crcs[file]

    def begin(self, file: Ints, record: Ints, *, ahead: bool) -> Collect:
        begin, end, stored = self._entries(file, record)
        batch = Batch(
            self._sources, file, record, begin, end, stored if self._check else None, self._mode
        )
        return batch.begin_read(everything=ahead).result

    def stream(self, file: int, record: int) -> Iterator[Bytes]:
        begin, end, stored = self._entries(np.array([file]), np.array([record]))
        crc = 0
        for chunk in self._chunks(file, int(begin[0]), int(end[0])):
            crc = crc32(chunk, crc)
            yield chunk
        if self._check and crc != stored[0]:
            raise SampleChecksumError(self._paths[file], record, int(stored[0]), crc)

    def words(self, file: int, record: int, at: Ints) -> Ints:
        begin, _, _ = self._entries(np.array([file]), np.array([record]))
        at = at + begin
        return _joined_words(self._raw(np.full(len(at), file), at, at + 16))

    def opened(self) -> list[tuple[str, int]]:
        return [] if self._open is None else [(s.path, s.fd) for s in self._open.each]

    def close(self) -> None:
        self._open = None

    @property
    def _sources(self) -> SourceSet:
        if self._open is None:
            raise ClosedError(f"{self._paths[0]}: this reader is closed")
        return self._open

    def _entries(self, file: Ints, record: Ints) -> tuple[Ints, Ints, record_layout.Checksums]:
        """Where records begin and end, and their checksums, from the headers on disk."""
        n, size, header = self._n[file], self._sizes[file], self._headers[file]
        crcs_at = record_layout.PREFIX.size + record_layout.CHECKSUM.itemsize * record
        begin_at = (
            record_layout.PREFIX.size
            + record_layout.CHECKSUM.itemsize * n
            + record_layout.OFFSET.itemsize * record
        )
        end_at = np.minimum(
            begin_at + record_layout.OFFSET.itemsize, header - record_layout.OFFSET.itemsize
        )
        starts = np.concatenate([crcs_at, begin_at, end_at])
        widths = np.repeat([4, 8, 8], len(file))
        raw = b"".join(
            entry.tobytes() for entry in self._raw(np.tile(file, 3), starts, starts + widths)
        )
        stored = np.frombuffer(raw, record_layout.CHECKSUM, len(file))
        begin, end = np.frombuffer(raw, record_layout.OFFSET, offset=4 * len(file)).reshape(2, -1)
        end = np.where(record == n - 1, size, end)
        wrong = np.flatnonzero((begin < header) | (end < begin) | (end > size))
        if wrong.size:
            at = int(wrong[0])
            raise StructureError(
                f"{self._paths[int(file[at])]}: record {record[at]} would reach from byte "
                f"{begin[at]} to {end[at]} of {size[at]}"
            )
        return begin, end, stored

    def _raw(self, file: Ints, begin: Ints, end: Ints) -> list[Bytes]:
        batch = Batch(self._sources, file, begin, begin, end, None, self._mode)
        return batch.begin_read(everything=True).result()

    def _chunks(self, file: int, begin: int, end: int) -> Iterator[Bytes]:
        for start, stop in pairwise([*range(begin, end, CHUNK), end]):
            chunk = np.empty(stop - start, np.uint8)
            self._sources[file].read_into(chunk, start)
            yield chunk

    def _verify_headers(self) -> None:
        for file, source in enumerate(self._sources.each):
            crc = Recheck(source).checksum(record_layout.CRC_SIZE, int(self._headers[file]))
            if crc != self._crcs[file]:
                raise HeaderChecksumError(
                    f"{source.path}: the header is damaged: its checksum is {crc:#010x}, "
                    f"the file says {self._crcs[file]:#010x}"
                )


def _joined_words(pieces: list[Bytes]) -> Ints:
    raw = b"".join(piece.tobytes() for piece in pieces)
    return np.frombuffer(raw, record_layout.OFFSET).reshape(-1, 2)
