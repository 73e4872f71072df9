"""Tables of open record files and the positions of their records.

`KeptTable` keeps every header in memory, 12 bytes per record, so reading a record takes one read.
`StreamedTable` leaves the headers on disk. Before each batch it reads the header entries of the
records in it. `ffrecord.records.opening` makes both kinds.

A table never changes. When a file grows, its reader switches to a new table. A call that already
holds the old table continues with files, offsets and checksums that belong together. Closing a
reader gives it a table without files. A table that outlives its reader keeps the files open.
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
from ffrecord.disk.warming import Range
from ffrecord.errors import ClosedError, SampleChecksumError, StructureError
from ffrecord.format import records as record_layout
from ffrecord.format.checksum import crc32
from ffrecord.format.padding import ALIGNMENT
from ffrecord.records.batch import Batch, Sources
from ffrecord.records.indices import check_bounds
from ffrecord.records.ranges import Extent
from ffrecord.remote.urls import not_local

# One or two records of at most this size are read one by one, without a batch.
SMALL_BATCH = 2
SMALL_BYTES = 1 << 20

ENOUGH = 4 << 10
"""Mean size of records from which a system call for each takes less time than to copy it again."""


@dataclass(frozen=True, slots=True)
class Table(ABC):
    """Records of all files, with consecutive numbers: file f starts with record `first[f]`.

    `sources` is None once the files are closed. `name` names the files in errors. `mode` is the
    mode of reading. If `check` is True, checksums are compared.
    """

    sources: Sources | None
    name: str
    mode: str
    check: bool
    n: int
    first: Ints
    header_crcs: list[int]

    @abstractmethod
    def read(self, records: Ints) -> list[Bytes]:
        """Return the records with these numbers."""

    @abstractmethod
    def entry(self, record: int) -> tuple[int, int, int]:
        """Return the start, the end and the stored CRC-32 of a record."""

    @abstractmethod
    def _entries(
        self, records: Ints, file: Ints | None, number: Ints
    ) -> tuple[Ints, Ints, record_layout.Checksums]:
        """Return the starts, ends and checksums of records.

        `records` are numbers over all files. `file` (None: there is only one file) and `number` are
        the file of each record and its number in that file.
        """

    def require_open(self) -> Sources:
        """Return the open files, or raise ClosedError."""
        if self.sources is None:
            raise ClosedError(f"{self.name}: this reader is closed; open a new one")
        return self.sources

    def require_files(self) -> SourceSet:
        """Return the open files; raise an error if they are read over the network."""
        sources = self.require_open()
        if not isinstance(sources, SourceSet):
            raise not_local(self.name)
        return sources

    @property
    def file_bytes(self) -> int:
        """Total size of all files."""
        return sum(source.size() for source in self.require_open().each)

    def batch(self, records: Ints) -> Batch:
        """Return a batch of the records with these numbers."""
        sources = self.require_open()
        file, number = None, records
        if len(sources) > 1:
            file = self.first.searchsorted(records, side="right") - 1
            number = records - self.first[file]
        begin, end, stored = self._entries(records, file, number)
        return Batch(sources, file, number, begin, end, stored if self.check else None, self.mode)

    def cached_bytes(self, records: Ints) -> list[bytes] | None:
        """Return verified records as bytes, if the page cache has them and they are not small.

        Each is copied once, where `read` and `tobytes` copy twice. None: `read` does it, because it
        is faster, or because it says what is wrong with a record.
        """
        if self.mode != "auto" or not isinstance(self.require_open(), SourceSet):
            return None
        batch, sources = self.batch(records), self.require_files()
        length = batch.end - batch.begin
        if int(length.sum()) < len(records) * ENOUGH:
            return None
        fds = np.broadcast_to(sources.fds[0 if batch.file is None else batch.file], len(records))
        if not sources.cache.has_most(fds, batch.begin, length):
            return None
        stored = [None] * len(records) if batch.stored is None else batch.stored.tolist()
        found = []
        places = zip(fds.tolist(), length.tolist(), batch.begin.tolist(), stored, strict=True)
        for fd, size, at, crc in places:
            try:
                content = os.pread(fd, size, at)
            except OSError:
                return None
            # At once, while the bytes are in the cache of the processor.
            if len(content) != size or (crc is not None and crc32(content) != crc):
                return None
            found.append(content)
        return found

    def ranges(self, records: Ints) -> list[Range]:
        """Return the bytes of records, which are sorted.

        Neighbours are joined, also across the padding of an aligned archive.
        """
        batch = self.batch(records)
        rows = (batch.end > batch.begin).nonzero()[0]
        begin, end = batch.begin[rows], batch.end[rows]
        file = np.zeros_like(begin) if batch.file is None else batch.file[rows]
        is_first = np.ones(len(rows), bool)
        is_first[1:] = (begin[1:] - end[:-1] >= ALIGNMENT) | (file[1:] != file[:-1])
        firsts = is_first.nonzero()[0]
        lasts = np.append(firsts[1:], len(rows))[: len(firsts)] - 1
        spans = zip(file[firsts].tolist(), begin[firsts].tolist(), end[lasts].tolist(), strict=True)
        sources = self.require_files()
        return [Range(sources[number], start, stop) for number, start, stop in spans]

    def read_pieces(
        self, record: int | Ints, begin: Ints, end: Ints, stored: record_layout.Checksums | None
    ) -> list[Bytes]:
        """Return parts of one record, or parts of several: `record` then has one for each part.

        Each part has its checksum in `stored` (None: unchecked).
        """
        records, n = np.atleast_1d(record), len(begin)
        check_bounds(int(records.min()), int(records.max()), self.n, self.name)
        whole = self.batch(records)
        start = np.resize(whole.begin, n)  # one record's start is repeated for all its parts
        parts = Batch(
            whole.sources, None if whole.file is None else np.resize(whole.file, n),
            np.resize(whole.record, n), begin + start, end + start,
            stored if self.check else None, self.mode, start,
        )  # fmt: skip
        return parts.begin_read(everything=False).result()

    def read_unchecked(self, record: int, offset: int, memory: Bytes) -> None:
        """Fill `memory` with the bytes of a record from `offset` on, without checking them."""
        file, start = self.locate(record)
        self.require_open()[file].read_into(memory, start + offset)

    def copy_unchecked(self, record: int, offset: int, length: int, fd: int) -> None:
        """Write bytes of a record to another file at its position, without checking them."""
        file, start = self.locate(record)
        self.require_open()[file].copy_to(fd, start + offset, length)

    def will_need(self, record: int, offset: int, length: int) -> None:
        """Ask for bytes of a record over the network, before they are read."""
        file, start = self.locate(record)
        self.require_open()[file].will_need(start + offset, length)

    def locate(self, record: int) -> tuple[int, int]:
        """Return the number of a record's file, and the offset of the record in it."""
        check_bounds(record, record, self.n, self.name)
        return self.file_of(record), self.entry(record)[0]

    def damage(self, record: int, stored: int, computed: int) -> SampleChecksumError:
        """Return the error for a record whose checksum is not the stored one."""
        file = self.file_of(record)
        number = record - int(self.first[file])
        return SampleChecksumError(self.require_open()[file].path, number, stored, computed)

    def file_of(self, record: int) -> int:
        """Return the number of a record's file."""
        if len(self.first) == 2:
            return 0
        return int(self.first.searchsorted(record, side="right")) - 1


@dataclass(frozen=True, slots=True)
class KeptTable(Table):
    """Table of files whose headers are in memory.

    For each file, `offsets` has one entry per record, then the end of the last record. So record i,
    which is in file f, begins at `offsets[i + f]` and ends at `offsets[i + f + 1]`.
    """

    offsets: Ints
    checksums: record_layout.Checksums
    extent: Extent

    @classmethod
    def of(
        cls, sources: Sources, headers: Sequence[record_layout.Header], name: str, mode: str,
        check: bool,
    ) -> KeptTable:  # fmt: skip
        first = first_of([each.n for each in headers])
        checksums = _joined([each.checksums for each in headers])
        offsets = _joined([each.offsets for each in headers])
        # Read-only: users get these arrays, and every read relies on them.
        offsets.flags.writeable = checksums.flags.writeable = False
        crcs = [each.crc for each in headers]
        extent = Extent.of(offsets, first)
        return cls(
            sources, name, mode, check, int(first[-1]), first, crcs, offsets, checksums, extent
        )

    def read(self, records: Ints) -> list[Bytes]:
        # Over the network, two records are requested at once: a batch does that.
        if len(records) <= SMALL_BATCH and (len(records) < 2 or self.require_open().is_local):
            return [self.read_one(record) for record in records.tolist()]
        return self.batch(records).begin_read(everything=False).result()

    def read_one(self, record: int) -> Bytes:
        """Return one record, with a plain read if it is small: faster than setting up a batch."""
        sources = self.require_open()
        file = self.file_of(record)
        begin, end = self.offsets[record + file : record + file + 2].tolist()
        if self.mode == "mmap":
            content = sources.maps[file][begin:end]
        elif self.mode == "aio" or end - begin > SMALL_BYTES:
            return self.batch(np.array([record])).begin_read(everything=False).result()[0]
        else:
            content = np.empty(end - begin, np.uint8)
            if self.check or isinstance(sources, SourceSet):
                sources.read_one(file, content, begin)
            else:
                sources[file].read_into(content, begin)
        if self.check:
            computed, stored = crc32(content), int(self.checksums[record])
            if computed != stored and not isinstance(sources, SourceSet):
                sources[file].read_again(content, begin)
                computed = crc32(content)
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
        return self.offsets.take(at), self.offsets.take(at + 1), self.checksums.take(records)

    def locate(self, record: int) -> tuple[int, int]:
        if len(self.first) == 2 and 0 <= record < self.n:  # a shortcut: the mount calls this often
            return 0, int(self.offsets[record])
        return Table.locate(self, record)

    def sizes(self, records: Ints) -> Ints:
        """Return the sizes of these records in bytes."""
        at = records
        if len(self.first) > 2:
            at = records + self.first.searchsorted(records, side="right") - 1
        sizes: Ints = self.offsets[at + 1] - self.offsets[at]
        return sizes

    def places(self, records: Ints) -> tuple[Ints, Ints]:
        """Return the number of each record's file, and the offset of the record in it."""
        file = self.first.searchsorted(records, side="right") - 1
        return file, self.offsets[records + file]

    def offsets_of(self, file: int) -> Ints:
        """Return the offset of each record in a file, and the end of the last one."""
        return self.offsets[self.first[file] + file : self.first[file + 1] + file + 1]

    def checksums_of(self, file: int) -> record_layout.Checksums:
        """Return the stored CRC-32 of each record in a file."""
        return self.checksums[self.first[file] : self.first[file + 1]]

    def fingerprint(self) -> str:
        """Return the SHA-256 over the files' headers."""
        from hashlib import sha256  # loads OpenSSL, which takes some milliseconds

        digest = sha256()
        for file, crc in enumerate(self.header_crcs):
            body = record_layout.body(self.checksums_of(file), self.offsets_of(file)[:-1])
            digest.update(record_layout.seal(crc, body))
        return digest.hexdigest()


@dataclass(frozen=True, slots=True)
class StreamedTable(Table):
    """Table of files whose headers stay on disk.

    Each header was verified when its file was opened. Entries read later are compared with the
    file's size. A wrong offset also shows in the checksum of the record.
    """

    file_sizes: Ints

    def read(self, records: Ints) -> list[Bytes]:
        # No shortcut for one or two records: reading their entries takes a batch anyway.
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
            raise StructureError(
                f"{path}: record {number[at]} would reach {reach}, which is impossible; "
                "use another copy of the file"
            )
        return begin, end, stored


def first_of(counts: Sequence[int]) -> Ints:
    """Return the number of each file's first record, then the number of all records."""
    return np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])


def _joined(arrays: list[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)
