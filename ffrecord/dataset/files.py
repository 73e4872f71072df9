"""The record files of a dataset, read together: one batch over all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from ffrecord.aliases import Bytes, Ints
from ffrecord.disk.source import SourceSet
from ffrecord.format.records import OFFSET
from ffrecord.records import iteration
from ffrecord.records.opening import (
    check_mode,
    open_files,
    open_remote,
    open_remote_streamed,
    open_streamed,
    warn_if_legacy,
)
from ffrecord.records.table import Table

if TYPE_CHECKING:  # loaded with the first URL
    from ffrecord.remote.files import RemoteFiles

Collect: TypeAlias = Callable[[], list[Bytes]]

CHUNK = 1 << 20


class RecordFiles:
    """Several record files. Files and the records in them are addressed by number.

    Args:
        paths: The paths of the files.
        check_data: Verify checksums, as in `FileReader`.
        mode: The way to read, as in `FileReader`.
        keep_headers: Keep checksums and offsets in memory, 12 bytes per record. Otherwise every
            batch first reads the checksums and offsets of its records.
        stacklevel: The stack frame that a warning about a file points at; 1 is the direct caller.
        remote: The files, if they are read over the network. `paths` are then only their names.
    """

    def __init__(
        self, paths: Sequence[str], check_data: bool, mode: str, *, keep_headers: bool,
        stacklevel: int = 1, remote: RemoteFiles | None = None,
    ) -> None:  # fmt: skip
        check_mode(mode)
        self._table: Table
        if remote is None:
            opened = open_files if keep_headers else open_streamed
            self._table = opened(paths, mode, check_data)
        elif keep_headers:
            _, self._table = open_remote(remote, check_data)
        else:
            self._table = open_remote_streamed(remote, check_data)
        self.counts: list[int] = np.diff(self._table.first).tolist()
        self.size = self._table.file_bytes
        for path, crc in zip(paths, self._table.header_crcs, strict=True):
            warn_if_legacy(path, crc, stacklevel + 2)

    @property
    def table(self) -> Table:
        """The open files and the positions of their records."""
        return self._table

    def header_crc(self, file: int) -> int:
        """Return the stored checksum of a file's header, or 0 if it has none."""
        return self._table.header_crcs[file]

    def record_sizes(self, file: int, record: Ints) -> Ints:
        """Return the sizes of records of a file."""
        batch = self._table.batch(self._table.first[file] + record)
        return batch.end - batch.begin

    def begin(self, file: Ints, record: Ints, *, ahead: bool) -> Collect:
        """Start to read records as one batch; return a function that waits for them.

        With `ahead`, all reads are put in flight now.
        """
        records = self._table.first[file] + record
        # `Table.read` would read each of two records by itself. Neighbours need only one read.
        is_pair = len(records) == 2 and file[0] == file[1] and records[1] == records[0] + 1
        if ahead or is_pair:
            return self._table.batch(records).begin_read(everything=True).result
        return lambda: self._table.read(records)

    def stream(self, file: int, record: int) -> Iterator[Bytes]:
        """Yield one record in chunks. A checksum error is raised after the last chunk."""
        return iteration.stream(lambda: self._table, self._number(file, record), CHUNK)

    def words(self, file: int, record: int, at: Ints) -> Ints:
        """Return two 64-bit numbers at each offset `at` of a record. No checksum is verified."""
        pieces = self._table.read_pieces(self._number(file, record), at, at + 16, None)
        raw = b"".join(piece.tobytes() for piece in pieces)
        return np.frombuffer(raw, OFFSET).reshape(-1, 2)

    def opened(self) -> list[tuple[str, int]]:
        """Return path and descriptor of each local file; an empty list after `close`."""
        sources = self._table.sources
        files = sources.each if isinstance(sources, SourceSet) else ()
        return [(source.path, source.fd) for source in files]

    def close(self) -> None:
        self._table = replace(self._table, sources=None)

    def _number(self, file: int, record: int) -> int:
        return int(self._table.first[file]) + record
