"""`FileReader`: random access to the records of one or many files.

Results are uint8 arrays, views into memory that belongs to their batch alone: writable, and valid
for as long as they are referenced, also after the reader is closed. In mode "mmap" they are
read-only views of the mapped file. A view keeps its whole batch in memory; `.copy()` what is to
be kept for long.

A reader may be used from any number of threads at once and after a fork, and pickles as its
paths and options, so a spawned process opens the files again. If they were replaced, that is a
ChangedError.
"""

from __future__ import annotations

import operator
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, SupportsIndex, overload

from ffrecord.aliases import Bytes, Closing, Ints, Path
from ffrecord.errors import FFRecordError
from ffrecord.format import records as record_layout
from ffrecord.format.checksum import crc32
from ffrecord.records import iteration, opening
from ffrecord.records.ahead import ReadAhead
from ffrecord.records.batch import PendingRead
from ffrecord.records.indices import Indices, check_bounds, record_number, record_numbers
from ffrecord.records.ranges import part, tasks
from ffrecord.records.table import KeptTable
from ffrecord.records.unchanged import changed, refuse_replaced

if TYPE_CHECKING:
    from ffrecord.records.unfinished import UnfinishedFile


ON_ERROR = ("raise", "skip")

# Iteration reads this much at a time, one such step ahead.
STEP_BYTES = 4 << 20
STEP_RECORDS = 1024


class FileReader(Closing):
    """Reads records from a file, a list of files, or a folder's `*.ffr` in sorted order.

    Args:
        fname: a path, a list or tuple of paths, or a folder.
        check_data: verify the header's and every record's CRC-32.
        mode: "auto" takes what the page cache has and reads the rest with O_DIRECT AIO; "aio"
            reads everything with O_DIRECT AIO; "buffered" goes through the page cache and fills
            it; "mmap" returns views of the mapped file, the fastest on cached data, but a file
            that is truncated under a mapping kills the process.
        on_error: what iteration does with a damaged record. "skip" leaves it out, with a
            `BadRecordWarning` that names it. Everything else always raises.
        unfinished: read what a resumable writer has flushed so far. `fname` is the name that the
            file will get. `refresh` takes in what was flushed since; once the file has its name,
            that is the one that is read, and `unfinished` is False.
    """

    def __init__(
        self,
        fname: Path | Sequence[Path],
        check_data: bool = True,
        *,
        mode: str = "auto",
        on_error: str = "raise",
        unfinished: bool = False,
    ) -> None:
        opening.check_mode(mode)
        if on_error not in ON_ERROR:
            raise ValueError(f"on_error must be one of {', '.join(ON_ERROR)}, not {on_error!r}")
        self.fnames = opening.one_path(fname) if unfinished else opening.paths(fname)
        self.check_data = check_data
        self.mode = mode
        self.on_error = on_error
        self.unfinished = unfinished
        self._open()

    def _open(self, seen: tuple[int, int] | None = None) -> None:
        """`seen` says how many records of an unfinished file there are to be, and which."""
        # For other processes: this one may change its folder.
        self._absolute = [os.path.abspath(path) for path in self.fnames]
        self._ahead = ReadAhead()
        self._fingerprint: str | None = None
        self._closed = False
        self._growing: UnfinishedFile | None = None
        if self.unfinished:
            from ffrecord.records.unfinished import UnfinishedFile  # which few readers need

            self._growing = UnfinishedFile(self.fnames[0], self.mode, self.check_data, seen)
            self._show(self._growing)
        else:
            self._table = opening.open_files(self.fnames, self.mode, self.check_data)
        if not self.unfinished:
            for path, crc in zip(self.fnames, self._table.header_crcs, strict=True):
                opening.warn_if_legacy(path, crc, stacklevel=4)

    # ---- reading -------------------------------------------------------------------------

    def read(self, indices: Indices) -> list[Bytes]:
        """The records at `indices`, in that order, as one batch."""
        table = self._table
        table.require_open()
        records = record_numbers(indices, table.n, table.name)
        if self._ahead.pending and (pending := self._ahead.take(records)) is not None:
            return pending.result()
        return table.read(records)

    def read_one(self, index: SupportsIndex) -> Bytes:
        """The record at `index`."""
        record = operator.index(index)
        table = self._table
        check_bounds(record, record, table.n, table.name)
        return table.read_one(record + table.n if record < 0 else record)

    def read_range(self, start: int, stop: int) -> list[Bytes]:
        """The records from `start` up to `stop`, which lie next to each other, as one read."""
        if not 0 <= start <= stop <= self.n:
            due = f"range [{start}, {stop}) is not within [0, {self.n:,})"
            raise IndexError(f"{self._table.name}: {due}")
        return self.read(range(start, stop))

    def read_async(self, indices: Indices) -> PendingRead:
        """Begin to read `indices` and return at once; `.result()` gives what `read` would."""
        table = self._table
        table.require_open()
        records = record_numbers(indices, table.n, table.name)
        return table.batch(records).begin_read(everything=True)

    def prefetch(self, indices: Indices) -> None:
        """Begin to read `indices`: the next `read` of just these finds them on their way.

        The last few calls count; what nobody reads is let go of with them.
        """
        table = self._table
        table.require_open()
        records = record_numbers(indices, table.n, table.name)
        self._ahead.add(records, lambda: table.batch(records).begin_read(everything=True))

    @property
    def prefetched(self) -> int:
        """How many batches are kept that `prefetch` began and nobody has read yet."""
        return len(self._ahead.pending)

    @property
    def prefetch_hits(self) -> int:
        """How often a `read` found its records on their way."""
        return self._ahead.hits

    def drop_prefetched(self) -> None:
        """Let go of what `prefetch` began and nobody has read."""
        self._ahead.drop()

    def stream(self, index: SupportsIndex, chunk: int = STEP_BYTES) -> Iterator[Bytes]:
        """A record of any size, in chunks.

        Whether it is whole shows at the end: SampleChecksumError comes after the last chunk.
        """
        record = record_number(index, self.n, self._table.name)
        return iteration.stream(lambda: self._table, record, chunk)

    @overload
    def __getitem__(self, index: SupportsIndex) -> Bytes: ...
    @overload
    def __getitem__(self, index: slice | Sequence[SupportsIndex]) -> list[Bytes]: ...
    def __getitem__(
        self, index: SupportsIndex | slice | Sequence[SupportsIndex]
    ) -> Bytes | list[Bytes]:
        if isinstance(index, (slice, Sequence)) or getattr(index, "ndim", 0) > 0:
            return self.read(index)
        return self.read_one(index)

    def __getitems__(self, indices: Sequence[SupportsIndex]) -> list[Bytes]:
        """Return a batch of records: torch's loaders ask for it, and it is one read."""
        return self.read(indices)

    def __iter__(self) -> Iterator[Bytes]:
        return self.iterate()

    def iterate(
        self, start: SupportsIndex = 0, *, follow: bool = False, timeout: float | None = None
    ) -> Iterator[Bytes]:
        """The records from `start` on, in order.

        With `follow`, those of an unfinished file that are added too, until it is finished. If for
        `timeout` seconds none is added, that is a TimedOutError: a loop that ends has seen all.
        """
        if timeout is not None and not (follow and timeout >= 0):
            raise ValueError("timeout must be 0 or more seconds, and needs follow=True")
        first, n = operator.index(start), self.n
        if first != n:
            first = record_number(first, n, self._table.name)
        if follow:
            return iteration.follow(self, self._steps, first, timeout)
        return iteration.in_order(self, self._steps(first, n))

    def _steps(self, start: int, stop: int) -> Iterator[range]:
        return tasks(self._table.extent, range(start, stop), STEP_RECORDS, STEP_BYTES)

    def tasks(
        self, max_records: int | None = None, max_bytes: int | None = None
    ) -> Iterator[range]:
        """Ranges of records, for `read`, that cover everything in order: none of more records or
        bytes than that, but for a single record that is larger. Nothing is read for it."""
        extent = self._table.extent
        return tasks(extent, range(extent.records), max_records, max_bytes)

    def partition(self, k: int, n: int) -> range:
        """The k-th (from 0) of `n` ranges of records, for `read`, that together are all of them:
        as equal in bytes as can be without reading anything. Some are empty if n is large."""
        return part(self._table.extent, k, n)

    @property
    def n(self) -> int:
        """How many records there are."""
        return self._table.n

    def __len__(self) -> int:
        return self.n

    def __bool__(self) -> bool:
        """True for a reader without records too, as in the original."""
        return True

    # ---- checking ------------------------------------------------------------------------

    def validate(self) -> None:
        """Check every file's header again, or an unfinished one's journal, as it is on disk now.
        Records are not read."""
        if self._growing is not None:
            self._growing.look()
            return
        for source in self._table.require_open().each:
            crc = opening.read_header(source, check=True).crc
            opening.warn_if_legacy(source.path, crc, stacklevel=3)

    def find_damaged(self, start: int, stop: int) -> list[tuple[int, FFRecordError]]:
        """Read records `start` up to `stop`; the number of each that fails, and its error."""
        return iteration.find_damaged(self, range(start, stop))

    @property
    def fingerprint(self) -> str:
        """SHA-256 over the headers: copies of the files, in the same order, have the same one.

        The same records written another way need not: their places in the file count too.
        """
        if self._fingerprint is None:
            self._fingerprint = self._table.fingerprint()
        return self._fingerprint

    def record_size(self, index: SupportsIndex) -> int:
        """How many bytes a record has."""
        table = self._table
        begin, end, _ = table.entry(record_number(index, table.n, table.name))
        return end - begin

    def record_sizes(self, indices: Indices = slice(None)) -> Ints:
        """How many bytes each record has, or each of some records."""
        table = self._table
        return table.sizes(record_numbers(indices, table.n, table.name))

    def checksum(self, index: int) -> int:
        """The stored CRC-32 of a record."""
        return int(self._table.checksums[index])

    @property
    def checksums(self) -> record_layout.Checksums:
        """The stored CRC-32 of each record of all files."""
        return self._table.checksums

    def get_offsets(self, file_index: int) -> Ints:
        """Where each record of that file starts, and where the last one ends."""
        return self._table.offsets_of(range(len(self.fnames))[file_index])

    def get_checksums(self, file_index: int) -> record_layout.Checksums:
        """The stored CRC-32 of each record of that file."""
        return self._table.checksums_of(range(len(self.fnames))[file_index])

    def header_crc(self, file_index: int) -> int:
        """The stored checksum of that file's header; 0 if it has none."""
        return self._table.header_crcs[file_index]

    # ---- life ----------------------------------------------------------------------------

    def refresh(self) -> int:
        """Take in what the writer of an unfinished file has flushed since; how many records that
        is. For one thread at a time; others may read meanwhile."""
        self._table.require_open()
        before = self.n
        if (growing := self._growing) is not None:
            growing.look()
            self._show(growing)
        return self.n - before

    def _show(self, growing: UnfinishedFile) -> None:
        self._table = growing.table
        self._fingerprint = None
        if growing.finished:
            self.unfinished, self._growing = False, None
        if self._closed:  # by another thread, since
            self.close()

    def close(self) -> None:
        """Close the files. Records that were read stay valid."""
        self._closed = True
        self._growing = None
        self._ahead.drop()
        self._table = replace(self._table, sources=None)

    def __getstate__(self) -> dict[str, Any]:
        kept = ("check_data", "mode", "on_error", "unfinished")
        state = {name: getattr(self, name) for name in kept} | {"fnames": self._absolute}
        if self.unfinished:
            state["_seen"] = self.n, crc32(self.checksums.tobytes())
            return state
        sources = () if self._table.sources is None else self._table.sources.each
        opened = [(path, s.fd) for path, s in zip(self._absolute, sources, strict=False)]
        refuse_replaced(opened, self.fingerprint, lambda: type(self)(self._absolute).fingerprint)
        return {**state, "fingerprint": self.fingerprint}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update({"unfinished": False, **state})
        due = self.__dict__.pop("fingerprint", None)
        self._open(self.__dict__.pop("_seen", None))
        if due not in (None, self.fingerprint):
            raise changed(self._table.name)

    def __repr__(self) -> str:
        so_far = " so far" if self.unfinished else ""
        state = "closed" if self._table.sources is None else f"{self.n} records{so_far}"
        files = self.fnames[0] if len(self.fnames) == 1 else f"{len(self.fnames)} files"
        return f"<FileReader {files}: {state}>"


def table_of(reader: FileReader) -> KeptTable:
    """Return a reader's open files and where its records are, for our own modules.

    Ask for it when it is used: closing the reader, and `refresh`, put another one in its place.
    """
    return reader._table
