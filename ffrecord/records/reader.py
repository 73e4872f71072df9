"""`FileReader`: random access to the records of one or many files.

Results are uint8 arrays. They are views into memory that belongs to their batch alone: writable,
and valid as long as they are referenced, even after the reader is closed. In mode "mmap" they are
read-only views of the mapped file. A view keeps its whole batch in memory, so `.copy()` the records
that you keep for long.

A reader may be used from any number of threads at once, and after a fork. It pickles as its paths
and options, so a spawned process opens the files again. If a file was replaced since the reader
opened it, pickling or unpickling raises ChangedError.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn, SupportsIndex, overload

from ffrecord.aliases import Bytes, Closing, Ints, Path
from ffrecord.disk.source import SourceSet
from ffrecord.disk.tally import TALLY
from ffrecord.errors import FFRecordError
from ffrecord.format import records as record_layout
from ffrecord.format.checksum import crc32
from ffrecord.records import iteration, opening
from ffrecord.records.ahead import ReadAhead
from ffrecord.records.batch import PendingRead
from ffrecord.records.indices import (
    Indices,
    as_integer,
    check_bounds,
    record_number,
    record_numbers,
)
from ffrecord.records.ranges import part, tasks
from ffrecord.records.table import KeptTable
from ffrecord.records.unchanged import changed, refuse_replaced
from ffrecord.remote.urls import is_remote
from ffrecord.text import counted, integer

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ffrecord.records.unfinished import UnfinishedFile
    from ffrecord.remote.files import RemoteFiles
    from ffrecord.remote.options import Options, RemoteOptions


ON_ERROR = ("raise", "skip")

# Iteration reads steps of at most this size, one step ahead.
STEP_BYTES = 4 << 20
STEP_RECORDS = 1024

_OPENED = ("_ahead", "_fingerprint", "_closed", "_growing", "_absolute", "_table")
"""The attributes that `FileReader._open` sets. Another process opens the files again."""


class FileReader(Closing):
    """Reader of the records of one file, a list of files, or a folder's `*.ffr` in sorted order.

    Args:
        fname: a path, a list or tuple of paths, or a folder; or URLs, as `docs/remote.md` says.
        check_data: verify the CRC-32 of headers and records.
        mode: `"auto"` takes cached pages from the page cache and reads the rest with O_DIRECT AIO.
            `"aio"` reads everything with O_DIRECT AIO. `"buffered"` reads through the page cache
            and fills it. `"mmap"` returns views of the mapped file: the fastest for cached data,
            but if a mapped file is truncated, the process is killed.
        memory: largest total size of files for which `"auto"` may read more than the requested
            records into the page cache, as a number or a text such as `"8GB"`. It does so on slow
            disks. `None` allows half of the available memory, `0` switches it off.
        on_error: the way iteration treats a damaged record. `"raise"` raises its error. `"skip"`
            skips the record with a `BadRecordWarning` that names it. All other methods always
            raise.
        unfinished: read the records that a resumable writer has flushed so far. `fname` is the name
            that the finished file will have. `refresh` adds records flushed later. It also notices
            that the file is finished: then the reader continues with the finished file, and
            `unfinished` becomes False.
        remote: options for URLs: `storage_options`, `store`, `fs`, `requests`, `deadline`, `cache`
            and `cache_size`. See "Options" in the guide for remote files.
    """

    def __init__(
        self,
        fname: Path | Sequence[Path],
        check_data: bool = True,
        *,
        mode: str = "auto",
        on_error: str = "raise",
        unfinished: bool = False,
        memory: int | str | None = None,
        **remote: Unpack[RemoteOptions],
    ) -> None:
        opening.check_mode(mode)
        if on_error not in ON_ERROR:
            raise ValueError(f"on_error must be one of {', '.join(ON_ERROR)}, not {on_error!r}")
        self._remote: RemoteFiles | None = None
        if is_remote(fname, remote):
            self._remote = opening.remote_files(fname, remote, mode, unfinished)
            self.fnames: list[str] = []  # known when the files are open
        else:
            if remote:
                opening.refuse_remote_options(remote)
            self.fnames = opening.one_path(fname) if unfinished else opening.paths(fname)
        self.check_data = check_data
        self.mode = mode
        self.on_error = on_error
        self.unfinished = unfinished
        self.memory = opening.memory_limit(memory)
        self._open()

    def _open(self, seen: tuple[int, int] | None = None) -> None:
        """Open the files. `seen` is the count and CRC of the records that a pickled reader saw."""
        self._ahead = ReadAhead()
        self._fingerprint: str | None = None
        self._closed = False
        self._growing: UnfinishedFile | None = None
        # Absolute, for pickling: this process may change its working directory.
        self._absolute = [os.path.abspath(path) for path in self.fnames]
        if self._remote is not None:
            self._remote, self._table = opening.open_remote(self._remote, self.check_data)
            self.fnames = self._remote.names
        elif self.unfinished:
            from ffrecord.records.unfinished import UnfinishedFile  # needed by few readers

            self._growing = UnfinishedFile(
                self.fnames[0], self.mode, self.check_data, seen, self.memory
            )
            self._show(self._growing)
        else:
            self._table = opening.open_files(self.fnames, self.mode, self.check_data, self.memory)
        if not self.unfinished:
            for path, crc in zip(self.fnames, self._table.header_crcs, strict=True):
                opening.warn_if_legacy(path, crc, stacklevel=4)

    # ---- reading -------------------------------------------------------------------------

    def read(self, indices: Indices) -> list[Bytes]:
        """Return the records at `indices`, in that order, read as one batch.

        Args:
            indices: a list, tuple, range, slice, set, generator, array or tensor of integers, in
                any order, with repetitions. Negative ones count from the end.
        """
        table = self._table
        table.require_open()
        records = record_numbers(indices, table.n, table.name)
        if self._ahead.pending and (pending := self._ahead.take(records)) is not None:
            return pending.result()
        missed = TALLY.missed
        results = table.read(records)
        self._ahead.note(missed)
        return results

    def read_one(self, index: SupportsIndex) -> Bytes:
        """Return the record at `index`."""
        record = as_integer(index)
        table = self._table
        check_bounds(record, record, table.n, table.name)
        return table.read_one(record + table.n if record < 0 else record)

    def read_range(self, start: int, stop: int) -> list[Bytes]:
        """Return the records from `start` up to, not including, `stop`."""
        start, stop = integer(start, "start"), integer(stop, "stop")
        if not 0 <= start <= stop <= self.n:
            due = f"read_range needs 0 <= start <= stop <= {self.n}"
            raise IndexError(f"{self._table.name}: range({start}, {stop}) is not valid; {due}")
        return self.read(range(start, stop))

    def read_async(self, indices: Indices) -> PendingRead:
        """Start to read `indices` and return at once; `.result()` returns the same as `read`."""
        table = self._table
        table.require_open()
        records = record_numbers(indices, table.n, table.name)
        return table.batch(records).begin_read(everything=True)

    def prefetch(self, indices: Indices) -> None:
        """Start to read `indices`, so that the next `read` of exactly these indices is faster.

        The newest 32 batches are kept. Older ones that nobody has read are dropped. While the page
        cache has all records that are read, this method does nothing.
        """
        table = self._table
        table.require_open()
        records = record_numbers(indices, table.n, table.name)
        self._ahead.add(records, lambda: table.batch(records).begin_read(everything=True))

    @property
    def prefetched(self) -> int:
        """Number of batches that `prefetch` has started and nobody has read yet."""
        return len(self._ahead.pending)

    @property
    def prefetch_hits(self) -> int:
        """Number of `read` calls that found their records prefetched."""
        return self._ahead.hits

    def drop_prefetched(self) -> None:
        """Drop all prefetched batches that nobody has read."""
        self._ahead.drop()

    def stream(self, index: SupportsIndex, chunk: int = STEP_BYTES) -> Iterator[Bytes]:
        """Yield a record of any size in chunks of `chunk` bytes.

        Its checksum is known only at the end: SampleChecksumError is raised after the last chunk.
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
        """Return a batch of records. The loaders of torch call this method if it exists."""
        return self.read(indices)

    def __iter__(self) -> Iterator[Bytes]:
        return self.iterate()

    def iterate(
        self, start: SupportsIndex = 0, *, follow: bool = False, timeout: float | None = None
    ) -> Iterator[Bytes]:
        """Yield the records from `start` on, in order.

        Args:
            start: number of the first record.
            follow: wait for records that are added to an unfinished file, until it is finished.
            timeout: seconds to wait for the next record; None waits for ever.

        Raises:
            TimedOutError: no record was added within `timeout` seconds. So a loop that ends without
                an error has seen all records.
        """
        if timeout is not None and not (follow and timeout >= 0):
            raise ValueError("timeout must be 0 or more seconds and needs follow=True")
        first, n = integer(start, "start"), self.n
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
        """Yield ranges of records, for `read`, that together cover all records in order.

        No range has more than `max_records` records or `max_bytes` bytes, unless a single record is
        larger. The ranges are computed from the header: no record is read.
        """
        extent = self._table.extent
        return tasks(extent, range(extent.records), max_records, max_bytes)

    def partition(self, k: int, n: int) -> range:
        """Return the k-th (from 0) of `n` ranges that together cover all records, for `read`.

        The ranges are about equal in bytes. They are computed from the header: no record is read.
        If `n` is large, some ranges are empty.
        """
        return part(self._table.extent, k, n)

    @property
    def n(self) -> int:
        """Number of records."""
        return self._table.n

    def __len__(self) -> int:
        return self.n

    def __contains__(self, item: object) -> NoReturn:
        """Raise TypeError: every record would have to be read."""
        raise TypeError(
            f"{self._table.name}: `in` would read all records; compare them in a loop over the "
            "reader, or test a record's number with 0 <= number < len(reader)"
        )

    def __bool__(self) -> bool:
        """Return True even if there are no records, like the original FFRecord."""
        return True

    # ---- checking ------------------------------------------------------------------------

    def validate(self) -> None:
        """Read and check every header again, or the journal of an unfinished file.

        Records are not read.
        """
        if self._growing is not None:
            self._growing.look()
            return
        for source in self._table.require_open().each:
            crc = opening.read_header(source, check=True).crc
            opening.warn_if_legacy(source.path, crc, stacklevel=3)

    def find_damaged(self, start: int, stop: int) -> list[tuple[int, FFRecordError]]:
        """Read the records from `start` up to `stop`; return number and error of each bad one."""
        return iteration.find_damaged(self, range(start, stop))

    def stats(self) -> dict[str, Any]:
        """Return how the disk is read, and why: see "Read from a slow disk" in the Python guide.

        `piece` is the number of bytes that are read for a record that is not in memory; 0 means
        only the record. `why` gives the reason. `request_seconds` and `byte_seconds` are the
        measured costs of the disk. `hits` and `misses` count reads, `piece_bytes` is the size of
        all pieces. The dictionary is empty if pieces are never read: in modes other than `"auto"`,
        with `memory=0`, without O_DIRECT, for files in memory (tmpfs) and for unfinished files.

        For URLs the dictionary has counts of `requests`, of `repeated` requests and of `bytes`. It
        has the measured `request_seconds` and `bytes_per_second`, and the `gap`: records that are
        closer share a request. `cached_bytes` is the size of what the cache has of the files.
        """
        sources = self._table.require_open()
        if not isinstance(sources, SourceSet):
            return sources.stats()
        return {} if sources.pieces is None else sources.pieces.stats()

    @property
    def fingerprint(self) -> str:
        """SHA-256 over the headers: the same for copies of the files in the same order.

        The same records written in another way may have a different fingerprint, because their
        positions in the file count too.
        """
        if self._fingerprint is None:
            self._fingerprint = self._table.fingerprint()
        return self._fingerprint

    def record_size(self, index: SupportsIndex) -> int:
        """Return the size of a record in bytes."""
        table = self._table
        begin, end, _ = table.entry(record_number(index, table.n, table.name))
        return end - begin

    def record_sizes(self, indices: Indices = slice(None)) -> Ints:
        """Return the sizes of records in bytes; by default of all records."""
        table = self._table
        return table.sizes(record_numbers(indices, table.n, table.name))

    def loc(self, indexes: Indices) -> tuple[list[int], list[int]]:
        """Return the offsets of records, each in its file, and their sizes in bytes."""
        table = self._table
        batch = table.batch(record_numbers(indexes, table.n, table.name))
        return batch.begin.tolist(), (batch.end - batch.begin).tolist()

    def checksum(self, index: int) -> int:
        """Return the stored CRC-32 of a record."""
        return int(self._table.checksums[index])

    @property
    def checksums(self) -> record_layout.Checksums:
        """Stored CRC-32 of each record of all files."""
        return self._table.checksums

    def get_offsets(self, file_index: int) -> Ints:
        """Return the offset of each record in that file, and the end of the last one."""
        return self._table.offsets_of(self._file_number(file_index))

    def get_checksums(self, file_index: int) -> record_layout.Checksums:
        """Return the stored CRC-32 of each record in that file."""
        return self._table.checksums_of(self._file_number(file_index))

    def header_crc(self, file_index: int) -> int:
        """Return the stored checksum of that file's header; 0 if it has none."""
        return self._table.header_crcs[self._file_number(file_index)]

    def _file_number(self, index: int) -> int:
        files = len(self.fnames)
        number = integer(index, "file_index")
        if not -files <= number < files:
            due = "number 0" if files == 1 else f"numbers 0 to {files - 1}"
            raise IndexError(
                f"{self._table.name}: file {number} is out of range: the reader has "
                f"{counted(files, 'file')}, {due}"
            )
        return number % files

    # ---- refreshing, closing, pickling ---------------------------------------------------

    def refresh(self) -> int:
        """Add the records that the writer of an unfinished file has flushed since the last look.

        Call it from one thread at a time; other threads may read meanwhile.

        Returns:
            The number of records added.
        """
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
        if self._closed:  # by another thread in the meantime
            self.close()

    def close(self) -> None:
        """Close the files. Records that were already read stay valid."""
        self._closed = True
        self._growing = None
        self._ahead.drop()
        self._table = replace(self._table, sources=None)

    def __getstate__(self) -> dict[str, Any]:
        # Everything but the open files, so that attributes of subclasses are kept too.
        state = {name: value for name, value in vars(self).items() if name not in _OPENED}
        state["fnames"] = self._absolute
        if self.unfinished:
            return {**state, "_seen": (self.n, crc32(self.checksums.tobytes()))}
        if self._remote is not None:
            # The other process opens the URLs that the user passed, and compares the fingerprint.
            return {**state, "fingerprint": self.fingerprint}
        sources = self._table.sources
        files = sources.each if isinstance(sources, SourceSet) else ()
        opened = [(path, s.fd) for path, s in zip(self._absolute, files, strict=False)]
        refuse_replaced(opened, self.fingerprint, lambda: FileReader(self._absolute).fingerprint)
        return {**state, "fingerprint": self.fingerprint}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update({"unfinished": False, "memory": None, "_remote": None, **state})
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
    """Return the table of a reader: its open files and the positions of its records.

    For modules of this package. Call it each time: closing and `refresh` replace the table.
    """
    return reader._table


def places_of(reader: FileReader) -> tuple[list[str], Options | None]:
    """Return the absolute paths of a reader's files, or their URLs and the options for these.

    For modules of this package that open the files again in another process.
    """
    if reader._remote is None:
        return reader._absolute, None
    return reader._remote.paths, reader._remote.options
