"""`Archive`: a packed folder, read by inode number. It joins the records with the index.

`PackedFolder`, extraction and the mount use this class. The index is copied from the archive into
private memory, checked there, and never read from the file again. So if an archive is truncated or
overwritten while it is in use, reading its files raises errors and the process survives. Mode
"mmap" is an exception: file contents are then read straight from the archive, see `FileReader`.

Any number of threads may use an archive, and so may a forked process.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from typing import TYPE_CHECKING, Any

import numpy as np

from ffrecord.aliases import Bytes, Closing, Ints, Path
from ffrecord.archive import shards
from ffrecord.archive.blocks import STEP_BLOCKS, Blocks, FilePiece
from ffrecord.archive.counts import kinds_of
from ffrecord.archive.index import Index, legacy
from ffrecord.archive.index.build import build
from ffrecord.archive.index_copy import ImageCopy
from ffrecord.disk.source import Recheck, Source, SourceSet
from ffrecord.errors import (
    IndexChecksumError,
    IndexStructureError,
    NotPackedFolderError,
    ReadFailedError,
    RemoteError,
    SampleChecksumError,
)
from ffrecord.format import index as index_layout
from ffrecord.format.index import BLOCK, WAY_OUT
from ffrecord.format.padding import ALIGNMENT, UNALIGNED
from ffrecord.records.opening import MOST_EXPLAINED
from ffrecord.records.reader import FileReader, table_of
from ffrecord.remote.urls import is_remote
from ffrecord.text import Advised

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ffrecord.remote.options import RemoteOptions


class _Sizes:
    """Sizes of all records except the last, the index. Computed on request, not kept in memory."""

    def __init__(self, reader: FileReader) -> None:
        self._reader = reader

    def __len__(self) -> int:
        return self._reader.n - 1

    def __getitem__(self, records: Ints, /) -> Ints:
        return self._reader.record_sizes(records)


class Naming:
    """Context manager that adds a file's name to errors about the archive's bytes."""

    __slots__ = ("_name",)

    def __init__(self, name: Path) -> None:
        self._name = name

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, (SampleChecksumError, ReadFailedError)):
            error.name = os.fspath(self._name)


def _refuse_dataset(given: Any, remote: RemoteOptions) -> None:
    """Raise an error if `given` is the folder of a typed dataset: its files have no index."""
    from ffrecord.plan.values import WritePlan  # needed only here

    if isinstance(given, (list, tuple)) or str(given).endswith(".ffr"):
        return
    if is_remote(given, remote):
        from ffrecord.remote.files import remote_folder  # needed for URLs only

        folder = remote_folder(given, remote)
        name, has_spec = folder.name, folder.read(WritePlan.COMPLETING, 1) is not None
    else:
        name = os.fsdecode(given)
        has_spec = os.path.exists(os.path.join(name, WritePlan.COMPLETING))
    if has_spec:
        before = f"{name}: this is a typed dataset, not a packed folder; "
        how = "read it with DatasetReader", "`ffrecord info` shows its fields"
        raise NotPackedFolderError(Advised(before, *how))


class Archive(Closing):
    """A packed folder on top of the reader of its records. Closing the archive closes the reader.

    Args:
        reader: the reader of the archive's records.
    """

    def __init__(self, reader: FileReader) -> None:
        self.reader = reader
        self.path = self.reader.fnames[-1]
        self.legacy_size = 0  # bytes of the last record that are for the original FFRecord
        try:
            self.index = self._open_index()
        except (IndexChecksumError, IndexStructureError, NotPackedFolderError):
            sources = table_of(reader).require_open()
            if isinstance(sources, SourceSet):
                raise
            sources[-1].distrust()  # perhaps only the transfer was wrong
            self.index = self._open_index()
            sources[-1].trust()
        self.blocks = Blocks(reader, self.index)

    @classmethod
    def open(
        cls, ffr_file: Path | Sequence[Path], check_data: bool = True, *, mode: str = "auto",
        lone: bool = False, memory: int | str | None = None, **remote: Unpack[RemoteOptions],
    ) -> Archive:  # fmt: skip
        """Open an archive: one file, a folder of shards, or a list of shards.

        With `lone`, `ffr_file` may also be a folder that contains an archive of one file. The
        original FFRecord accepts that too.
        """
        reader = FileReader(ffr_file, check_data, mode=mode, memory=memory, **remote)
        try:
            archive = cls(reader)
            if not lone:
                archive.refuse_lone(ffr_file)
            return archive
        except BaseException as error:
            reader.close()
            if isinstance(error, NotPackedFolderError):
                with contextlib.suppress(OSError, RemoteError):  # perhaps not a folder
                    _refuse_dataset(ffr_file, remote)
            raise

    def moved_to(self, reader: FileReader) -> Archive:
        """Return this archive on a reader of copies of its files, whatever their names are."""
        moved = copy(self)
        moved.reader, moved.path = reader, reader.fnames[-1]
        moved.blocks = Blocks(reader, self.index)
        return moved

    def refuse_lone(self, given: Path | Sequence[Path]) -> None:
        """Raise an error if `given` is a folder that contains this archive of one file."""
        if not isinstance(given, (str, os.PathLike)) or len(self.reader.fnames) > 1:
            return
        if os.path.isdir(given):
            raise NotPackedFolderError(
                f"{os.fsdecode(given)}: not a folder of shards; it contains a packed folder in one "
                f"file: pass {self.path}"
            )

    @property
    def is_local(self) -> bool:
        """False if the archive is read over the network."""
        return table_of(self.reader).require_open().is_local

    @property
    def alignment(self) -> int:
        """512 if every file begins at a multiple of 512 bytes, otherwise 1.

        The 512 bytes in which a file ends must be complete too. Empty files can be anywhere.
        Computed from the offsets at every call: a million files take some 20 ms.
        """
        rows = self.index.tables.inodes
        files = ((kinds_of(self.index) == stat.S_IFREG) & (rows["length"] > 0)).nonzero()[0]
        if not len(files):
            return ALIGNMENT
        batch = table_of(self.reader).batch(rows["data"][files].astype(np.int64))
        sizes = [int(self.reader.get_offsets(file)[-1]) for file in range(len(batch.sources))]
        whole = np.array(sizes) // ALIGNMENT * ALIGNMENT
        complete = batch.end <= whole[0 if batch.file is None else batch.file]
        is_aligned = complete.all() and not (batch.begin % ALIGNMENT).any()
        return ALIGNMENT if is_aligned else UNALIGNED

    def read(self, inodes: Ints) -> list[Bytes]:
        """Return the verified contents of regular files, read as one batch."""
        return self.reader.read(self.index.records(inodes))

    def read_records(self, records: Ints, name: Callable[[int], Path]) -> list[Bytes]:
        """Return verified records, read as one batch.

        An error about a record includes the file's name: `name` returns it for a position in
        `records`.
        """
        try:
            return self.reader.read(records)
        except SampleChecksumError as error:
            file = self.reader.fnames.index(error.path)
            before = sum(len(self.reader.get_checksums(each)) for each in range(file))
            error.name = os.fspath(name(records.tolist().index(before + error.record)))
            raise

    def read_bytes(self, records: Ints, name: Callable[[int], Path]) -> list[bytes]:
        """Return verified records as bytes. `name` is as for `read_records`."""
        found = table_of(self.reader).cached_bytes(records)
        return found or list(map(np.ndarray.tobytes, self.read_records(records, name)))

    def read_range(self, inode: int, offset: int, length: int) -> Bytes:
        """Return verified bytes of a regular file; fewer than `length` at its end."""
        piece = self.blocks.piece(inode, offset, length, self.reader.check_data)
        if piece is None:
            return np.empty(0, np.uint8)
        record, size = self.index.record_and_length(inode)
        if size <= BLOCK:
            return self.reader.read_one(record)[offset : offset + piece.asked]
        return self._read_pieces([(record, offset, piece)])[0]

    def read_ranges(self, wanted: Sequence[tuple[int, int, int]]) -> list[Bytes]:
        """Return verified bytes of regular files, read as one batch.

        Each item of `wanted` is an inode, an offset and a length, as for `read_range`.
        """
        if not self.reader.check_data:
            # Nothing makes these reads whole blocks, and a batch must not have reads that overlap.
            return [self.read_range(*each) for each in wanted]
        pieces = [self.blocks.piece(*each) for each in wanted]
        found = iter(self._read_pieces([
            (self.index.record(inode), offset, piece)
            for (inode, offset, _), piece in zip(wanted, pieces, strict=True)
            if piece is not None
        ]))  # fmt: skip
        return [np.empty(0, np.uint8) if piece is None else next(found) for piece in pieces]

    def _read_pieces(self, pieces: Sequence[tuple[int, int, FilePiece]]) -> list[Bytes]:
        """Return the requested bytes of pieces, each with its record and the requested offset.

        All blocks are read as one batch. A block that several pieces need is read once.
        """
        rows: dict[tuple[int, int, int], int] = {}  # record, begin and end of a block -> its row
        due: list[int] = []
        rows_of = []
        for record, offset, piece in pieces:
            first = offset - piece.skip
            last = first + piece.length
            blocks = [(record, at, min(at + BLOCK, last)) for at in range(first, last, BLOCK)]
            for block, crc in zip(blocks, piece.checksums or [0] * len(blocks), strict=True):
                if rows.setdefault(block, len(rows)) == len(due):
                    due.append(crc)
            rows_of.append([rows[block] for block in blocks])
        if not rows:
            return []
        records, begin, end = np.array(list(rows), np.int64).T
        stored = np.array(due, np.uint32) if self.reader.check_data else None
        found = table_of(self.reader).read_pieces(records, begin, end, stored)
        results = []
        for (_, _, piece), needed in zip(pieces, rows_of, strict=True):
            parts = [found[row] for row in needed]
            whole = parts[0] if len(parts) == 1 else np.concatenate(parts)
            results.append(whole[piece.skip : piece.skip + piece.asked])
        return results

    def stream(self, inode: int) -> Iterator[Bytes]:
        """Yield a regular file of any size in pieces, each verified first."""
        size = self.index.status(inode).size
        for offset in range(0, size, STEP_BLOCKS * BLOCK):
            yield self.read_range(inode, offset, STEP_BLOCKS * BLOCK)

    def close(self) -> None:
        self.reader.close()

    def _open_index(self) -> Index:
        reader = self.reader
        record = reader.n - 1
        size = reader.record_size(record) if reader.n else 0
        end = np.empty(min(size, index_layout.TRAILER.size), np.uint8)
        if size:
            table_of(reader).read_unchecked(record, size - len(end), end)
        trailer = index_layout.parse_trailer(self.path, end.tobytes(), size)
        self.legacy_size = size if trailer is None else size - len(end) - trailer.length
        if trailer is None:
            return self._open_legacy_index(record, size)

        def copy_to(fd: int, offset: int, length: int) -> None:
            table_of(reader).copy_unchecked(record, self.legacy_size + offset, length, fd)

        def announce(offset: int, length: int) -> None:
            table_of(reader).will_need(record, self.legacy_size + offset, length)

        is_local = self.is_local
        try:
            with ImageCopy(
                self.path, copy_to, trailer.length, None if is_local else announce
            ) as copy:
                tables = index_layout.parse(self.path, copy.image)
                shards.compare(reader, tables, copy.wait_for)
                index = Index(self.path, copy.image, _Sizes(reader), copy.wait_for)
                computed = copy.finish()
        except IndexStructureError:
            # If the checksum is wrong too, damage is the better explanation.
            if trailer.length <= MOST_EXPLAINED:
                self._compare_checksum(self._image_checksum(trailer.length), trailer)
            raise
        self._compare_checksum(computed, trailer)
        # The memfd keeps the index. Pages that only the checks touched need not stay mapped.
        copy.image.madvise(mmap.MADV_DONTNEED)
        return index

    def _image_checksum(self, length: int) -> int:
        """Return the CRC-32 of the index image on disk, without keeping the image."""
        file, start = table_of(self.reader).locate(self.reader.n - 1)
        begin = start + self.legacy_size
        return Recheck(table_of(self.reader).require_open()[file]).checksum(begin, begin + length)

    def _compare_checksum(self, computed: int, trailer: index_layout.Trailer) -> None:
        if self.reader.check_data and computed != trailer.crc:
            raise IndexChecksumError(
                f"{self.path}: its index is damaged: its checksum is {computed:#010x}, "
                f"the file says {trailer.crc:#010x}; {WAY_OUT}"
            )

    def status(self) -> os.stat_result:
        """Return the status of the archive, for the files of an index without attributes."""
        source = table_of(self.reader).require_open()[-1]
        if isinstance(source, Source):
            return os.stat(self.path)
        seconds = int(source.version.modified or 0)
        mode = stat.S_IFREG | 0o644
        fields = (mode, 0, 0, 1, os.getuid(), os.getgid(), source.size(), *[seconds] * 3)
        return os.stat_result(fields, {"st_mtime_ns": seconds * 1_000_000_000})

    def _open_legacy_index(self, record: int, size: int) -> Index:
        start = np.empty(min(size, len(index_layout.LEGACY_MAGIC)), np.uint8)
        if size:
            table_of(self.reader).read_unchecked(record, 0, start)
        if start.tobytes() != index_layout.LEGACY_MAGIC:
            raise NotPackedFolderError(shards.no_archive(self.reader))
        if size > legacy.most_bytes(record):
            raise IndexStructureError(
                f"{self.path}: its index has {size} bytes, more than {record} files can need; "
                f"{WAY_OUT}"
            )
        raw = bytearray()
        for piece in self.reader.stream(record):
            raw += piece.data
        sizes = self.reader.record_sizes()[:-1]
        most = legacy.most_entries(record)
        tree = legacy.read_tree(self.path, raw, sizes, self.status(), most)
        if shards.names_own_records(self.reader, tree):
            raise IndexStructureError(shards.no_archive(self.reader))
        return Index(self.path, build(tree), sizes)
