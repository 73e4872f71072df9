"""Open record files, and where each of their records is.

A `Table` never changes. The reader of a file that grows puts another table in its place: a call
that has taken one goes on with files, offsets and checksums that belong together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ffrecord.aliases import Ints
from ffrecord.disk.source import SourceSet
from ffrecord.errors import ClosedError
from ffrecord.format import records as record_layout
from ffrecord.records.batch import Batch
from ffrecord.records.indices import check_bounds
from ffrecord.records.opening import read_header, refuse_other_kinds
from ffrecord.records.ranges import Extent
from ffrecord.text import counted


@dataclass(frozen=True, slots=True)
class Table:
    """The records of all files, numbered through: file f's from `first[f]` on.

    `offsets` has one entry more than records for each file: record i of file f begins at entry
    i + f and ends at the next one. `sources` is None once the files are closed; `name` is theirs in
    errors.
    """

    sources: SourceSet | None
    name: str
    n: int
    first: Ints
    offsets: Ints
    checksums: record_layout.Checksums
    header_crcs: list[int]
    extent: Extent

    @classmethod
    def of(cls, sources: SourceSet, headers: Sequence[record_layout.Header], name: str) -> Table:
        first = np.concatenate([[0], np.cumsum([each.n for each in headers], dtype=np.int64)])
        checksums = _joined([each.checksums for each in headers])
        offsets = _joined([each.offsets for each in headers])
        # Handed out to users, and relied on for every read.
        offsets.flags.writeable = checksums.flags.writeable = False
        crcs = [each.crc for each in headers]
        extent = Extent.of(offsets, first)
        return cls(sources, name, int(first[-1]), first, offsets, checksums, crcs, extent)

    @property
    def opened(self) -> SourceSet:
        """The open files; ClosedError if they are not."""
        if self.sources is None:
            raise ClosedError(f"{self.name}: this reader is closed")
        return self.sources

    def batch(self, records: Ints, mode: str, *, check: bool) -> Batch:
        """Records to read, by their numbers."""
        sources = self.opened
        file = None
        at, record = records, records
        if len(sources) > 1:
            file = self.first.searchsorted(records, side="right") - 1
            at, record = records + file, records - self.first[file]
        stored = self.checksums[records] if check else None
        begin, end = self.offsets[at], self.offsets[at + 1]
        return Batch(sources, file, record, begin, end, stored, mode)

    def pieces(
        self, record: int, begin: Ints, end: Ints, stored: record_layout.Checksums | None, mode: str
    ) -> Batch:
        """Parts of one record to read, each with a checksum of its own (None: unchecked)."""
        file, start = self.locate(record)
        which = np.full(len(begin), file) if len(self.first) > 2 else None
        number = np.full(len(begin), record - int(self.first[file]))
        return Batch(self.opened, which, number, begin + start, end + start, stored, mode, start)

    def sizes(self, records: Ints) -> Ints:
        """How many bytes each of these records has."""
        at = records
        if len(self.first) > 2:
            at = records + self.first.searchsorted(records, side="right") - 1
        sizes: Ints = self.offsets[at + 1] - self.offsets[at]
        return sizes

    def locate(self, record: int) -> tuple[int, int]:
        """The number of the file that a record is in, and the byte that it begins at."""
        if len(self.first) == 2 and 0 <= record < self.n:
            return 0, int(self.offsets[record])
        check_bounds(record, record, self.n, self.name)
        file = self.file_of(record)
        return file, int(self.offsets[record + file])

    def file_of(self, record: int) -> int:
        """The number of the file that a record is in."""
        if len(self.first) == 2:
            return 0
        return int(self.first.searchsorted(record, side="right")) - 1

    def offsets_of(self, file: int) -> Ints:
        """Where each record of a file begins, and where the last one ends."""
        return self.offsets[self.first[file] + file : self.first[file + 1] + file + 1]

    def checksums_of(self, file: int) -> record_layout.Checksums:
        """The stored CRC-32 of each record of a file."""
        return self.checksums[self.first[file] : self.first[file + 1]]

    def fingerprint(self) -> str:
        """SHA-256 over the files' headers."""
        from hashlib import sha256  # and OpenSSL with it, which takes some milliseconds

        digest = sha256()
        for file, crc in enumerate(self.header_crcs):
            body = record_layout.body(self.checksums_of(file), self.offsets_of(file)[:-1])
            digest.update(record_layout.seal(crc, body))
        return digest.hexdigest()


def open_files(paths: Sequence[str], mode: str, check: bool) -> Table:
    """Open finished files and read their headers, which are checked if `check` says so."""
    for path in paths:
        refuse_other_kinds(path)
    sources = sources_for(paths, mode)
    headers = [read_header(source, check) for source in sources.each]
    if mode == "mmap":
        sources.map_all()
    elif mode == "auto":
        sources.ask_about_the_cache()
    more = len(paths) - 1
    name = paths[0] + (f" and {counted(more, 'more file')}" if more else "")
    return Table.of(sources, headers, name)


def sources_for(paths: Sequence[str], mode: str) -> SourceSet:
    """Open files for a mode of reading."""
    return SourceSet(paths, direct=mode in ("auto", "aio"))


def _joined(arrays: list[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)
