"""The record files of a dataset, read together: one batch over all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TypeAlias

import numpy as np

from ffrecord.aliases import Bytes, Ints
from ffrecord.format.records import OFFSET
from ffrecord.records import iteration
from ffrecord.records.opening import check_mode, open_files, open_streamed, warn_if_legacy
from ffrecord.records.table import Table

Collect: TypeAlias = Callable[[], list[Bytes]]

CHUNK = 1 << 20


class RecordFiles:
    """Files and the records in them, both by number.

    Args:
        paths: the files.
        check_data, mode: as `FileReader` has them.
        keep_headers: keep checksums and offsets in memory, 12 bytes a record. Otherwise what a
            batch needs of them is read before it.
        stacklevel: which caller a warning about a file is for, counted from this one.
    """

    def __init__(
        self, paths: Sequence[str], check_data: bool, mode: str, *, keep_headers: bool,
        stacklevel: int = 1,
    ) -> None:  # fmt: skip
        check_mode(mode)
        opened = open_files if keep_headers else open_streamed
        self._table: Table = opened(paths, mode, check_data)
        self.counts: list[int] = np.diff(self._table.first).tolist()
        self.size = self._table.file_bytes
        for path, crc in zip(paths, self._table.header_crcs, strict=True):
            warn_if_legacy(path, crc, stacklevel + 2)

    def header_crc(self, file: int) -> int:
        """The stored checksum of a file's header; 0 if it has none."""
        return self._table.header_crcs[file]

    def begin(self, file: Ints, record: Ints, *, ahead: bool) -> Collect:
        """Begin to read some records of some files, as one batch; with `ahead`, all at once."""
        records = self._table.first[file] + record
        # A table takes one or two records by a plain read each; neighbours are to be one read.
        is_pair = len(records) == 2 and file[0] == file[1] and records[1] == records[0] + 1
        if ahead or is_pair:
            return self._table.batch(records).begin_read(everything=True).result
        return lambda: self._table.read(records)

    def stream(self, file: int, record: int) -> Iterator[Bytes]:
        """One record in chunks; whether it is whole shows at the end."""
        return iteration.stream(lambda: self._table, self._number(file, record), CHUNK)

    def words(self, file: int, record: int, at: Ints) -> Ints:
        """Two 64-bit numbers from each of these bytes of a record on, unchecked."""
        pieces = self._table.read_pieces(self._number(file, record), at, at + 16, None)
        raw = b"".join(piece.tobytes() for piece in pieces)
        return np.frombuffer(raw, OFFSET).reshape(-1, 2)

    def opened(self) -> list[tuple[str, int]]:
        """The paths of the files and their descriptors; none if they are closed."""
        sources = self._table.sources
        return [] if sources is None else [(source.path, source.fd) for source in sources.each]

    def close(self) -> None:
        self._table = replace(self._table, sources=None)

    def _number(self, file: int, record: int) -> int:
        return int(self._table.first[file]) + record
