"""Open record files, and where each of their records is.

A `Table` never changes. The reader of a file that grows puts another table in its place: a call
that has taken one goes on with files, offsets and checksums that belong together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ffrecord import layout
from ffrecord.engine import SourceSet
from ffrecord.partition import Extent

Ints: TypeAlias = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Table:
    """The records of all files, numbered through: file f's from `first[f]` on.

    `offsets` has one entry more than records for each file: record i of file f begins at entry
    i + f and ends at the next one. `sources` is None once the files are closed.
    """

    sources: SourceSet | None
    n: int
    first: Ints
    offsets: Ints
    checksums: layout.Checksums
    header_crcs: list[int]
    extent: Extent

    @classmethod
    def of(cls, sources: SourceSet, headers: Sequence[layout.Header]) -> Table:
        first = np.concatenate([[0], np.cumsum([each.n for each in headers], dtype=np.int64)])
        checksums = _joined([each.checksums for each in headers])
        offsets = _joined([each.offsets for each in headers])
        # Handed out to users, and relied on for every read.
        offsets.flags.writeable = checksums.flags.writeable = False
        crcs = [each.crc for each in headers]
        extent = Extent.of(offsets, first)
        return cls(sources, int(first[-1]), first, offsets, checksums, crcs, extent)

    def file_of(self, record: int) -> int:
        """The number of the file that a record is in."""
        if len(self.first) == 2:
            return 0
        return int(self.first.searchsorted(record, side="right")) - 1

    def offsets_of(self, file: int) -> Ints:
        """Where each record of a file begins, and where the last one ends."""
        return self.offsets[self.first[file] + file : self.first[file + 1] + file + 1]

    def checksums_of(self, file: int) -> layout.Checksums:
        """The stored CRC-32 of each record of a file."""
        return self.checksums[self.first[file] : self.first[file + 1]]

    def fingerprint(self) -> str:
        """SHA-256 over the files' headers."""
        from hashlib import sha256  # and OpenSSL with it, which takes some milliseconds

        digest = sha256()
        for file, crc in enumerate(self.header_crcs):
            body = layout.body(self.checksums_of(file), self.offsets_of(file)[:-1])
            digest.update(layout.seal(crc, body))
        return digest.hexdigest()


def _joined(arrays: list[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)
