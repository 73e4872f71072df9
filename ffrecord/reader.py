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
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, SupportsIndex, TypeAlias, overload

import numpy as np
import numpy.typing as npt

from ffrecord import checksum, layout
from ffrecord.batch import Batch, PendingRead
from ffrecord.engine import SourceSet
from ffrecord.errors import ClosedError, FFRecordError, SampleChecksumError
from ffrecord.indices import Indices, check_bounds, record_numbers
from ffrecord.iteration import in_order
from ffrecord.opening import Path, paths, read_header, refuse_other_kinds, warn_if_legacy
from ffrecord.partition import Extent, part, tasks
from ffrecord.unchanged import changed, refuse_replaced
from ffrecord.wording import counted

Bytes: TypeAlias = npt.NDArray[np.uint8]
Ints: TypeAlias = npt.NDArray[np.int64]

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
# A record larger than this is checked piece by piece: it may not fit into memory.
STREAM_BYTES = 64 << 20


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
    """

    def __init__(
        self,
        fname: Path | Sequence[Path],
        check_data: bool = True,
        *,
        mode: str = "auto",
        on_error: str = "raise",
    ) -> None:
        for name, value, known in (("mode", mode, MODES), ("on_error", on_error, ON_ERROR)):
            if value not in known:
                raise ValueError(f"{name} must be one of {', '.join(known)}, not {value!r}")
        self.fnames = paths(fname)
        self.check_data = check_data
        self.mode = mode
        self.on_error = on_error
        self._open()

    def _open(self) -> None:
        self._sources: SourceSet | None = None
        # For other processes: this one may change its folder.
        self._absolute = [os.path.abspath(path) for path in self.fnames]
        more = len(self.fnames) - 1
        self._shown = self.fnames[0] + (f" and {counted(more, 'more file')}" if more else "")
        self._ahead: dict[bytes, PendingRead] = {}  # by the record numbers, as bytes
        self.prefetch_hits = 0  # how often a read found its records on their way
        for path in self.fnames:
            refuse_other_kinds(path)
        sources = SourceSet(self.fnames, direct=self.mode in ("auto", "aio"))
        headers = [read_header(source, self.check_data) for source in sources.each]
        for path, header in zip(self.fnames, headers, strict=True):
            warn_if_legacy(path, header, stacklevel=4)
        counts = [header.n for header in headers]
        self._header_crcs = [header.crc for header in headers]
        self._first = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])
        self._checksums = _joined([header.checksums for header in headers])
        # One entry more than records in each file: record i of file f begins at entry i + f.
        self._offsets = _joined([header.offsets for header in headers])
        self.n = int(self._first[-1])
        # Handed out by get_offsets and get_checksums: the reader relies on them.
        self._offsets.flags.writeable = self._checksums.flags.writeable = False
        self._extent = Extent.of(self._offsets, self._first)
        if self.mode == "mmap":
            sources.map_all()
        elif self.mode == "auto":
            sources.ask_about_the_cache()
        self._fingerprint: str | None = None
        self._sources = sources

    # ---- reading -------------------------------------------------------------------------

    def read(self, indices: Indices) -> list[Bytes]:
        """The records at `indices`, in that order, as one batch."""
        _ = self.sources  # an error if it is closed
        records = record_numbers(indices, self.n, self._shown)
        if self._ahead and (pending := self._ahead.pop(records.tobytes(), None)) is not None:
            self.prefetch_hits += 1
            return pending.result()
        if len(records) <= SMALL_BATCH:
            return [self._read_single(record) for record in records.tolist()]
        return self._batch(records).begin_read(everything=False).result()

    def read_one(self, index: SupportsIndex) -> Bytes:
        """The record at `index`."""
        record = operator.index(index)
        check_bounds(record, record, self.n, self._shown)
        return self._read_single(record + self.n if record < 0 else record)

    def read_range(self, start: int, stop: int) -> list[Bytes]:
        """The records from `start` up to `stop`, which lie next to each other, as one read."""
        if not 0 <= start <= stop <= self.n:
            due = f"range [{start}, {stop}) is not within [0, {self.n:,})"
            raise IndexError(f"{self._shown}: {due}")
        return self.read(range(start, stop))

    def read_async(self, indices: Indices) -> PendingRead:
        """Begin to read `indices` and return at once; `.result()` gives what `read` would."""
        _ = self.sources  # an error if it is closed
        return self._batch(record_numbers(indices, self.n, self._shown)).begin_read(everything=True)

    def prefetch(self, indices: Indices) -> None:
        """Begin to read `indices`: the next `read` of just these finds them on their way.

        The last few calls count; what nobody reads is let go of with them.
        """
        _ = self.sources  # an error if it is closed
        records = record_numbers(indices, self.n, self._shown)
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
        self, index: int, begin: Ints, end: Ints, checksums: layout.Checksums | None
    ) -> list[Bytes]:
        """Parts of one record, each with a checksum of its own (None: unchecked)."""
        file, start = self.locate(index)
        which = np.full(len(begin), file) if len(self.fnames) > 1 else None
        record = np.full(len(begin), index - int(self._first[file]))
        sources = self.sources
        stored = checksums if self.check_data else None
        batch = Batch(sources, which, record, begin + start, end + start, stored, self.mode, start)
        return batch.begin_read(everything=False).result()

    def read_unchecked(self, index: int, offset: int, memory: Bytes) -> None:
        """Fill `memory` from a record's byte `offset` on, as it is on disk."""
        file, start = self.locate(index)
        self.sources[file].read_into(memory, start + offset)

    def copy_unchecked(self, index: int, offset: int, length: int, fd: int) -> None:
        """Append bytes of a record, as they are on disk, to another file."""
        file, start = self.locate(index)
        self.sources[file].copy_to(fd, start + offset, length)

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
        return in_order(self, self.tasks(STEP_RECORDS, STEP_BYTES))

    def steps(self) -> Iterator[tuple[int, int]]:
        """Ranges of records that cover everything in order: a few MiB each, or one record."""
        return ((each.start, each.stop) for each in self.tasks(STEP_RECORDS, STEP_BYTES))

    def tasks(
        self, max_records: int | None = None, max_bytes: int | None = None
    ) -> Iterator[range]:
        """Ranges of records, for `read`, that cover everything in order: none of more records or
        bytes than that, but for a single record that is larger. Nothing is read for it."""
        return tasks(self._extent, max_records, max_bytes)

    def partition(self, k: int, n: int) -> range:
        """The k-th (from 0) of `n` ranges of records, for `read`, that together are all of them:
        as equal in bytes as can be without reading anything. Some are empty if n is large."""
        return part(self._extent, k, n)

    def __len__(self) -> int:
        return self.n

    # ---- checking ------------------------------------------------------------------------

    def validate(self) -> None:
        """Check every file's header again, as it is on disk now. Records are not read."""
        for source in self.sources.each:
            warn_if_legacy(source.path, read_header(source, check=True), stacklevel=3)

    def find_damaged(self, start: int, stop: int) -> list[tuple[int, FFRecordError]]:
        """Read records `start` up to `stop`; the number of each that fails, and its error."""
        damaged: list[tuple[int, FFRecordError]] = []
        if stop - start == 1 and self.record_size(start) > STREAM_BYTES:
            try:
                deque(self.stream(start), maxlen=0)
            except ClosedError:
                raise
            except FFRecordError as error:
                damaged.append((start, error))
            return damaged
        try:
            self.read(range(start, stop))
        except ClosedError:
            raise
        except FFRecordError as problem:
            for record in range(start, stop):
                try:
                    self.read_one(record)
                except FFRecordError as error:
                    damaged.append((record, error))
            if not damaged:  # it came and went: still not a file to trust
                damaged.append((start, problem))
        return damaged

    @property
    def fingerprint(self) -> str:
        """SHA-256 over the headers: copies of the files, in the same order, have the same one.

        The same records written another way need not: their places in the file count too.
        """
        if self._fingerprint is None:
            from hashlib import sha256  # and OpenSSL with it, which takes some milliseconds

            digest = sha256()
            for file, crc in enumerate(self._header_crcs):
                body = layout.body(self.get_checksums(file), self.get_offsets(file)[:-1])
                digest.update(layout.seal(crc, body))
            self._fingerprint = digest.hexdigest()
        return self._fingerprint

    def record_size(self, index: int) -> int:
        """How many bytes a record has."""
        check_bounds(index, index, self.n, self._shown)
        at = index + self._file_of(index)
        return int(self._offsets[at + 1] - self._offsets[at])

    def record_sizes(self, indices: Indices = slice(None)) -> Ints:
        """How many bytes each record has, or each of some records."""
        at = record_numbers(indices, self.n, self._shown)
        if len(self.fnames) > 1:
            at = at + self._first.searchsorted(at, side="right") - 1
        sizes: Ints = self._offsets[at + 1] - self._offsets[at]
        return sizes

    def locate(self, index: int) -> tuple[int, int]:
        """The number of the file that a record is in, and the byte that it begins at."""
        if len(self.fnames) == 1 and 0 <= index < self.n:
            return 0, int(self._offsets[index])
        check_bounds(index, index, self.n, self._shown)
        file = self._file_of(index)
        return file, int(self._offsets[index + file])

    def checksum(self, index: int) -> int:
        """The stored CRC-32 of a record."""
        return int(self._checksums[index])

    @property
    def checksums(self) -> layout.Checksums:
        """The stored CRC-32 of each record of all files."""
        return self._checksums

    def get_offsets(self, file_index: int) -> Ints:
        """Where each record of that file starts, and where the last one ends."""
        file = range(len(self.fnames))[file_index]
        return self._offsets[self._first[file] + file : self._first[file + 1] + file + 1]

    def get_checksums(self, file_index: int) -> layout.Checksums:
        """The stored CRC-32 of each record of that file."""
        file = range(len(self.fnames))[file_index]
        return self._checksums[self._first[file] : self._first[file + 1]]

    def header_crc(self, file_index: int) -> int:
        """The stored checksum of that file's header; 0 if it has none."""
        return self._header_crcs[file_index]

    # ---- life ----------------------------------------------------------------------------

    def close(self) -> None:
        """Close the files. Records that were read stay valid."""
        self._ahead.clear()
        self._sources = None

    def __enter__(self) -> FileReader:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        refuse_replaced(
            self.opened(), self.fingerprint, lambda: type(self)(self._absolute).fingerprint
        )
        kept = ("check_data", "mode", "on_error", "fingerprint")
        return {name: getattr(self, name) for name in kept} | {"fnames": self._absolute}

    def __setstate__(self, state: dict[str, Any]) -> None:
        fingerprint = state.get("fingerprint")
        self.__dict__.update({k: v for k, v in state.items() if k != "fingerprint"})
        self._open()
        if fingerprint not in (None, self.fingerprint):
            raise changed(self._shown)

    def opened(self) -> list[tuple[str, int]]:
        """Return the absolute paths of the files and their descriptors; none if it is closed."""
        sources = [] if self._sources is None else self._sources.each
        return [(path, s.fd) for path, s in zip(self._absolute, sources, strict=False)]

    def __repr__(self) -> str:
        state = "closed" if self._sources is None else f"{self.n} records"
        files = self.fnames[0] if len(self.fnames) == 1 else f"{len(self.fnames)} files"
        return f"<FileReader {files}: {state}>"

    # ---- inside --------------------------------------------------------------------------

    @property
    def sources(self) -> SourceSet:
        """The open files; ClosedError if they are not."""
        if self._sources is None:
            raise ClosedError(f"{self.fnames[0]}: this reader is closed")
        return self._sources

    def _read_single(self, index: int) -> Bytes:
        """One record by a plain read: setting up a batch would cost more than it brings."""
        sources = self.sources
        file = self._file_of(index)
        begin, end = self._offsets[index + file : index + file + 2].tolist()
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

    def _file_of(self, index: int) -> int:
        if len(self.fnames) == 1:
            return 0
        return int(self._first.searchsorted(index, side="right")) - 1

    def _compare(self, index: int, computed: int) -> None:
        stored = self.checksum(index)
        if stored != computed:
            file = self._file_of(index)
            number = index - int(self._first[file])
            raise SampleChecksumError(self.fnames[file], number, stored, computed)

    def _batch(self, records: Ints) -> Batch:
        sources = self.sources
        file = None
        at, record = records, records
        if len(sources) > 1:
            file = self._first.searchsorted(records, side="right") - 1
            at, record = records + file, records - self._first[file]
        stored = self._checksums[records] if self.check_data else None
        begin, end = self._offsets[at], self._offsets[at + 1]
        return Batch(sources, file, record, begin, end, stored, self.mode)


def _joined(arrays: list[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)
