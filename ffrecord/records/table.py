"""Open record files, and where each of their records is.

`KeptTable` has every file's header in memory: 12 bytes a record, and a record costs one read.
`StreamedTable` keeps nothing of them: what a batch needs is read from the headers before it, as a
batch of its own. `ffrecord.records.opening` makes both.

A table never changes. The reader of a file that grows puts another table in its place: a call
that has taken one goes on with files, offsets and checksums that belong together. Closing takes the
open files out of it: a table that is kept longer than its reader keeps them open.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ffrecord.aliases import Bytes, Ints
from ffrecord.disk.source import SourceSet
from ffrecord.errors import ClosedError, SampleChecksumError, StructureError
from ffrecord.format import records as record_layout
from ffrecord.format.checksum import crc32
from ffrecord.records.batch import Batch
from ffrecord.records.indices import check_bounds
from ffrecord.records.ranges import Extent

# A record or two of at most this size are a plain read each.
SMALL_BATCH = 2
SMALL_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Table(ABC):
    """The records of all files, numbered through: file f's from `first[f]` on.

    `sources` is None once the files are closed; `name` is theirs in errors. `mode` is how records
    are read, `check` whether their checksums are compared.
    """

    sources: SourceSet | None
    name: str
    mode: str
    check: bool
    n: int
    first: Ints
    header_crcs: list[int]

    @abstractmethod
    def read(self, records: Ints) -> list[Bytes]:
        """Read records, by their numbers."""

    @abstractmethod
    def entry(self, record: int) -> tuple[int, int, int]:
        """Return the bytes that a record begins and ends at, and its stored CRC-32."""

    @abstractmethod
    def _entries(
        self, records: Ints, file: Ints | None, number: Ints
    ) -> tuple[Ints, Ints, record_layout.Checksums]:
        """Return the bytes that records begin and end at, and their checksums. They are also given
        by file (None: there is only one) and by number in it."""

    def require_open(self) -> SourceSet:
        """Return the open files; ClosedError if they are not."""
        if self.sources is None:
            raise ClosedError(f"{self.name}: this reader is closed")
        return self.sources

    @property
    def file_bytes(self) -> int:
        """The size of all files."""
        return sum(os.fstat(source.fd).st_size for source in self.require_open().each)

    def batch(self, records: Ints) -> Batch:
        """Return the batch of some records, by their numbers."""
        sources = self.require_open()
        file, number = None, records
        if len(sources) > 1:
            file = self.first.searchsorted(records, side="right") - 1
            number = records - self.first[file]
        begin, end, stored = self._entries(records, file, number)
        return Batch(sources, file, number, begin, end, stored if self.check else None, self.mode)

    def read_pieces(
        self, record: int, begin: Ints, end: Ints, stored: record_layout.Checksums | None
    ) -> list[Bytes]:
        """Read parts of one record, each with a checksum of its own (None: unchecked)."""
        file, start = self.locate(record)
        which = np.full(len(begin), file) if len(self.first) > 2 else None
        number = np.full(len(begin), record - int(self.first[file]))
        stored = stored if self.check else None
        batch = Batch(
            self.require_open(), which, number, begin + start, end + start, stored, self.mode, start
        )
        return batch.begin_read(everything=False).result()

    def read_unchecked(self, record: int, offset: int, memory: Bytes) -> None:
        """Fill `memory` from a record's byte `offset` on, as it is on disk."""
        file, start = self.locate(record)
        self.require_open()[file].read_into(memory, start + offset)

    def copy_unchecked(self, record: int, offset: int, length: int, fd: int) -> None:
        """Append bytes of a record, as they are on disk, to another file."""
        file, start = self.locate(record)
        self.require_open()[file].copy_to(fd, start + offset, length)

    def locate(self, record: int) -> tuple[int, int]:
        """Return the number of the file that a record is in, and the byte that it begins at."""
        check_bounds(record, record, self.n, self.name)
        return self.file_of(record), self.entry(record)[0]

    def damage(self, record: int, stored: int, computed: int) -> SampleChecksumError:
        """Return the error for a record with another checksum than the stored one."""
        file = self.file_of(record)
        number = record - int(self.first[file])
        return SampleChecksumError(self.require_open()[file].path, number, stored, computed)

    def file_of(self, record: int) -> int:
        """Return the number of the file that a record is in."""
        if len(self.first) == 2:
            return 0
        return int(self.first.searchsorted(record, side="right")) - 1


@dataclass(frozen=True, slots=True)
class KeptTable(Table):
    """Files whose headers are in memory.

    `offsets` has one entry more than records for each file: record i of file f begins at entry
    i + f and ends at the next one.
    """

    offsets: Ints
    checksums: record_layout.Checksums
    extent: Extent

    @classmethod
    def of(
        cls, sources: SourceSet, headers: Sequence[record_layout.Header], name: str, mode: str,
        check: bool,
    ) -> KeptTable:  # fmt: skip
        first = first_of([each.n for each in headers])
        checksums = _joined([each.checksums for each in headers])
        offsets = _joined([each.offsets for each in headers])
        # Handed out to users, and relied on for every read.
        offsets.flags.writeable = checksums.flags.writeable = False
        crcs = [each.crc for each in headers]
        extent = Extent.of(offsets, first)
        return cls(
            sources, name, mode, check, int(first[-1]), first, crcs, offsets, checksums, extent
        )

    def read(self, records: Ints) -> list[Bytes]:
        if len(records) <= SMALL_BATCH:
            return [self.read_one(record) for record in records.tolist()]
        return self.batch(records).begin_read(everything=False).result()

    def read_one(self, record: int) -> Bytes:
        """Read a record by a plain read: setting up a batch would cost more than it brings."""
        sources = self.require_open()
        file = self.file_of(record)
        begin, end = self.offsets[record + file : record + file + 2].tolist()
        if self.mode == "mmap":
            content = sources.maps[file][begin:end]
        elif self.mode == "aio" or end - begin > SMALL_BYTES:
            return self.batch(np.array([record])).begin_read(everything=False).result()[0]
        else:
            content = np.empty(end - begin, np.uint8)
            sources[file].read_into(content, begin)
        if self.check:
            computed, stored = crc32(content), int(self.checksums[record])
            if computed != stored:
                raise self.damage(record, stored, computed)
        return content

    def entry(self, record: int) -> tuple[int, int, int]:
        at = record + self.file_of(record)
        begin, end = self.offsets[at : at + 2].tolist()
        return begin, end, int(self.checksums[record])

    def _entries(
        self, records: Ints, file: Ints | None, number: Ints
    ) -> tuple[Ints, Ints, record_layout.Checksums]:
        at = records if file is None else records + file
        return self.offsets[at], self.offsets[at + 1], self.checksums[records]

    def locate(self, record: int) -> tuple[int, int]:
        if len(self.first) == 2 and 0 <= record < self.n:  # what the mount asks most
            return 0, int(self.offsets[record])
        return Table.locate(self, record)

    def sizes(self, records: Ints) -> Ints:
        """Return how many bytes each of these records has."""
        at = records
        if len(self.first) > 2:
            at = records + self.first.searchsorted(records, side="right") - 1
        sizes: Ints = self.offsets[at + 1] - self.offsets[at]
        return sizes

    def offsets_of(self, file: int) -> Ints:
        """Return where each record of a file begins, and where the last one ends."""
        return self.offsets[self.first[file] + file : self.first[file + 1] + file + 1]

    def checksums_of(self, file: int) -> record_layout.Checksums:
        """Return the stored CRC-32 of each record of a file."""
        return self.checksums[self.first[file] : self.first[file + 1]]

    def fingerprint(self) -> str:
        """Return the SHA-256 over the files' headers."""
        from hashlib import sha256  # and OpenSSL with it, which takes some milliseconds

        digest = sha256()
        for file, crc in enumerate(self.header_crcs):
            body = record_layout.body(self.checksums_of(file), self.offsets_of(file)[:-1])
            digest.update(record_layout.seal(crc, body))
        return digest.hexdigest()


@dataclass(frozen=True, slots=True)
class StreamedTable(Table):
    """Files whose headers stay on disk.

    A header was verified when its file was opened. The entries that are read later are checked
    against the file's size, and by the records: a wrong offset leads to bytes that do not have the
    checksum.
    """

    file_sizes: Ints

    def read(self, records: Ints) -> list[Bytes]:
        # One or two of them too: their entries are a batch in any case.
        return self.batch(records).begin_read(everything=False).result()

    def entry(self, record: int) -> tuple[int, int, int]:
        file = np.array([self.file_of(record)])
        records = np.array([record])
        begin, end, stored = self._entries(records, file, records - self.first[file])
        return int(begin[0]), int(end[0]), int(stored[0])

    def _entries(
        self, records: Ints, file: Ints | None, number: Ints
    ) -> tuple[Ints, Ints, record_layout.Checksums]:
        file = np.zeros_like(records) if file is None else file
        n, size = self.first[file + 1] - self.first[file], self.file_sizes[file]
        checksum, offset = record_layout.CHECKSUM, record_layout.OFFSET
        header = record_layout.PREFIX.size + record_layout.PER_RECORD * n
        checksums_at = record_layout.PREFIX.size + checksum.itemsize * number
        begins_at = header - offset.itemsize * (n - number)
        ends_at = np.minimum(begins_at + offset.itemsize, header - offset.itemsize)
        starts = np.concatenate([checksums_at, begins_at, ends_at])
        widths = np.repeat([checksum.itemsize, offset.itemsize, offset.itemsize], len(file))
        batch = Batch(
            self.require_open(), np.tile(file, 3), starts, starts, starts + widths, None, self.mode
        )
        raw = b"".join(each.tobytes() for each in batch.begin_read(everything=True).result())
        stored = np.frombuffer(raw, checksum, len(file))
        begin, end = np.frombuffer(raw, offset, offset=stored.nbytes).reshape(2, -1)
        end = np.where(number == n - 1, size, end)
        wrong = np.flatnonzero((begin < header) | (end < begin) | (end > size))
        if wrong.size:
            at = int(wrong[0])
            path = self.require_open()[int(file[at])].path
            reach = f"from byte {begin[at]} to {end[at]} of {size[at]}"
            raise StructureError(f"{path}: record {number[at]} would reach {reach}")
        return begin, end, stored


def first_of(counts: Sequence[int]) -> Ints:
    """Return the number of each file's first record, and of the one after the last."""
    return np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])


def _joined(arrays: list[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)
