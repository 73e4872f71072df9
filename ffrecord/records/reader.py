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

import numpy as np

from ffrecord.aliases import Bytes, Ints, Path
from ffrecord.disk.source import SourceSet
from ffrecord.errors import FFRecordError, SampleChecksumError
from ffrecord.format import checksum
from ffrecord.format import records as record_layout
from ffrecord.records import iteration
from ffrecord.records.batch import Batch, PendingRead
from ffrecord.records.indices import Indices, check_bounds, record_numbers
from ffrecord.records.opening import one_path, paths, read_header, warn_if_legacy
from ffrecord.records.ranges import part, tasks
from ffrecord.records.table import open_files
from ffrecord.records.unchanged import changed, refuse_replaced

if TYPE_CHECKING:
    from ffrecord.records.unfinished import UnfinishedFile


MODES = ("auto", "aio", "buffered", "mmap")
ON_ERROR = ("raise", "skip")

# A record or two of at most this size are a plain read each.
SMALL_BATCH = 2
SMALL_BYTES = 1 << 20
# Iteration reads this much at a time, one such step ahead.
STEP_BYTES = 4 << 20
STEP_RECORDS = 1024
# So many prefetched batches are kept for a reader that asks for them.
MOST_AHEAD = 8


class FileReader:
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
        for name, value, known in (("mode", mode, MODES), ("on_error", on_error, ON_ERROR)):
            if value not in known:
                raise ValueError(f"{name} must be one of {', '.join(known)}, not {value!r}")
        self.fnames = one_path(fname) if unfinished else paths(fname)
        self.check_data = check_data
        self.mode = mode
        self.on_error = on_error
        self.unfinished = unfinished
        self._open()

    def _open(self, seen: tuple[int, int] | None = None) -> None:
        """`seen` says how many records of an unfinished file there are to be, and which."""
        # For other processes: this one may change its folder.
        self._absolute = [os.path.abspath(path) for path in self.fnames]
        self._ahead: dict[bytes, PendingRead] = {}  # by the record numbers, as bytes
        self.prefetch_hits = 0  # how often a read found its records on their way
        self._fingerprint: str | None = None
        self._closed = False
        self._growing: UnfinishedFile | None = None
        if self.unfinished:
            from ffrecord.records.unfinished import UnfinishedFile  # which few readers need

            self._growing = UnfinishedFile(self.fnames[0], self.mode, self.check_data, seen)
            self._show(self._growing)
        else:
            self._table = open_files(self.fnames, self.mode, self.check_data)
        for path, crc in zip(self.fnames, self._table.header_crcs, strict=True):
            if not self.unfinished:
                warn_if_legacy(path, crc, stacklevel=4)

    # ---- reading -------------------------------------------------------------------------

    def read(self, indices: Indices) -> list[Bytes]:
        """The records at `indices`, in that order, as one batch."""
        _ = self.sources  # an error if it is closed
        records = record_numbers(indices, self.n, self._table.name)
        if self._ahead and (pending := self._ahead.pop(records.tobytes(), None)) is not None:
            self.prefetch_hits += 1
            return pending.result()
        if len(records) <= SMALL_BATCH:
            return [self._read_single(record) for record in records.tolist()]
        return self._batch(records).begin_read(everything=False).result()

    def read_one(self, index: SupportsIndex) -> Bytes:
        """The record at `index`."""
        record = operator.index(index)
        table = self._table
        check_bounds(record, record, table.n, table.name)
        return self._read_single(record + table.n if record < 0 else record)

    def read_range(self, start: int, stop: int) -> list[Bytes]:
        """The records from `start` up to `stop`, which lie next to each other, as one read."""
        if not 0 <= start <= stop <= self.n:
            due = f"range [{start}, {stop}) is not within [0, {self.n:,})"
            raise IndexError(f"{self._table.name}: {due}")
        return self.read(range(start, stop))

    def read_async(self, indices: Indices) -> PendingRead:
        """Begin to read `indices` and return at once; `.result()` gives what `read` would."""
        _ = self.sources  # an error if it is closed
        return self._batch(record_numbers(indices, self.n, self._table.name)).begin_read(
            everything=True
        )

    def prefetch(self, indices: Indices) -> None:
        """Begin to read `indices`: the next `read` of just these finds them on their way.

        The last few calls count; what nobody reads is let go of with them.
        """
        _ = self.sources  # an error if it is closed
        records = record_numbers(indices, self.n, self._table.name)
        key = records.tobytes()
        if key not in self._ahead:
            self._ahead[key] = self._batch(records).begin_read(everything=True)
            for oldest in list(self._ahead)[:-MOST_AHEAD]:  # a list: other threads may be at it
                self._ahead.pop(oldest, None)

    @property
    def prefetched(self) -> int:
        """How many batches are kept that `prefetch` began and nobody has read yet."""
        return len(self._ahead)

    def drop_prefetched(self) -> None:
        """Let go of what `prefetch` began and nobody has read."""
        self._ahead.clear()

    def read_pieces(
        self, index: int, begin: Ints, end: Ints, checksums: record_layout.Checksums | None
    ) -> list[Bytes]:
        """Parts of one record, each with a checksum of its own (None: unchecked)."""
        stored = checksums if self.check_data else None
        batch = self._table.pieces(index, begin, end, stored, self.mode)
        return batch.begin_read(everything=False).result()

    def read_unchecked(self, index: int, offset: int, memory: Bytes) -> None:
        """Fill `memory` from a record's byte `offset` on, as it is on disk."""
        table = self._table
        file, start = table.locate(index)
        table.opened[file].read_into(memory, start + offset)

    def copy_unchecked(self, index: int, offset: int, length: int, fd: int) -> None:
        """Append bytes of a record, as they are on disk, to another file."""
        table = self._table
        file, start = table.locate(index)
        table.opened[file].copy_to(fd, start + offset, length)

    def stream(self, index: int, chunk: int = STEP_BYTES) -> Iterator[Bytes]:
        """A record of any size, in chunks.

        Whether it is whole shows at the end: SampleChecksumError comes after the last chunk.
        """
        size, crc = self.record_size(index), 0
        for offset in range(0, size, chunk):
            begin, end = np.array([offset]), np.array([min(offset + chunk, size)])
            (piece,) = self.read_pieces(index, begin, end, None)
            crc = checksum.crc32(piece, crc)
            yield piece
        if self.check_data:
            self._compare(index, crc)

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
            check_bounds(first, first, n, self._table.name)
        first += n if first < 0 else 0
        if follow:
            return iteration.follow(self, self._steps, first, timeout)
        return iteration.in_order(self, self._steps(first, n))

    def _steps(self, start: int, stop: int) -> Iterator[range]:
        return tasks(self._table.extent, range(start, stop), STEP_RECORDS, STEP_BYTES)

    def steps(self) -> Iterator[tuple[int, int]]:
        """Ranges of records that cover everything in order: a few MiB each, or one record."""
        return ((each.start, each.stop) for each in self._steps(0, self.n))

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
        for source in self.sources.each:
            warn_if_legacy(source.path, read_header(source, check=True).crc, stacklevel=3)

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

    def record_size(self, index: int) -> int:
        """How many bytes a record has."""
        table = self._table
        check_bounds(index, index, table.n, table.name)
        at = index + table.file_of(index)
        return int(table.offsets[at + 1] - table.offsets[at])

    def record_sizes(self, indices: Indices = slice(None)) -> Ints:
        """How many bytes each record has, or each of some records."""
        table = self._table
        return table.sizes(record_numbers(indices, table.n, table.name))

    def locate(self, index: int) -> tuple[int, int]:
        """The number of the file that a record is in, and the byte that it begins at."""
        return self._table.locate(index)

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
        _ = self.sources  # an error if it is closed
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
        self._ahead.clear()
        self._table = replace(self._table, sources=None)

    def __enter__(self) -> FileReader:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        kept = ("check_data", "mode", "on_error", "unfinished")
        state = {name: getattr(self, name) for name in kept} | {"fnames": self._absolute}
        if self.unfinished:
            state["_seen"] = self.n, checksum.crc32(self.checksums.tobytes())
            return state
        refuse_replaced(
            self.opened(), self.fingerprint, lambda: type(self)(self._absolute).fingerprint
        )
        return {**state, "fingerprint": self.fingerprint}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update({"unfinished": False, **state})
        due = self.__dict__.pop("fingerprint", None)
        self._open(self.__dict__.pop("_seen", None))
        if due not in (None, self.fingerprint):
            raise changed(self._table.name)

    def opened(self) -> list[tuple[str, int]]:
        """Return the absolute paths of the files and their descriptors; none if it is closed."""
        sources = [] if self._table.sources is None else self._table.sources.each
        return [(path, s.fd) for path, s in zip(self._absolute, sources, strict=False)]

    def __repr__(self) -> str:
        so_far = " so far" if self.unfinished else ""
        state = "closed" if self._table.sources is None else f"{self.n} records{so_far}"
        files = self.fnames[0] if len(self.fnames) == 1 else f"{len(self.fnames)} files"
        return f"<FileReader {files}: {state}>"

    # ---- inside --------------------------------------------------------------------------

    @property
    def sources(self) -> SourceSet:
        """The open files; ClosedError if they are not."""
        return self._table.opened

    def _read_single(self, index: int) -> Bytes:
        """One record by a plain read: setting up a batch would cost more than it brings."""
        table = self._table
        sources = table.opened
        file = table.file_of(index)
        begin, end = table.offsets[index + file : index + file + 2].tolist()
        if self.mode == "mmap":
            record = sources.maps[file][begin:end]
        elif self.mode == "aio" or end - begin > SMALL_BYTES:
            return self._batch(np.array([index])).begin_read(everything=False).result()[0]
        else:
            record = np.empty(end - begin, np.uint8)
            sources[file].read_into(record, begin)
        if self.check_data:
            self._compare(index, checksum.crc32(record))
        return record

    def _compare(self, index: int, computed: int) -> None:
        stored = self.checksum(index)
        if stored != computed:
            file = self._table.file_of(index)
            number = index - int(self._table.first[file])
            path = self._table.opened[file].path
            raise SampleChecksumError(path, number, stored, computed)

    def _batch(self, records: Ints) -> Batch:
        return self._table.batch(records, self.mode, check=self.check_data)
