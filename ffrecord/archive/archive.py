"""`Archive`: a packed folder by inode numbers. Records and index together, and verified reads.

`PackedFolder`, extraction and the mount are made of this. The index is copied out of the archive
into memory of our own, checked there, and never read from the file again: whoever truncates or
overwrites an archive that is in use gets errors for its files, not a dead process.

An archive may be used by any number of threads and after a fork.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import numpy.typing as npt

from ffrecord.aliases import Bytes, Ints, Path
from ffrecord.archive.index import Index, legacy
from ffrecord.archive.index.build import Tree, build
from ffrecord.archive.index_copy import ImageCopy
from ffrecord.disk.source import Recheck
from ffrecord.errors import (
    IndexChecksumError,
    IndexStructureError,
    NotPackedFolderError,
    ReadFailedError,
    SampleChecksumError,
)
from ffrecord.format import index as index_layout
from ffrecord.format.checksum import crc32
from ffrecord.format.index import BLOCK
from ffrecord.records.opening import MOST_EXPLAINED
from ffrecord.records.reader import FileReader, table_of
from ffrecord.text import said

STEP_BLOCKS = 32  # that a large file is read by, from end to end

MOST_SHARDS = 1 << 17
"""More files than a process may have open. One that is missing is named, so all are looked at."""


SHOWN = 3  # archives, of those that could be meant


class _Sizes:
    """Of all records but the last, which is the index: asked for a few at a time, not kept."""

    def __init__(self, reader: FileReader) -> None:
        self._reader = reader

    def __len__(self) -> int:
        return self._reader.n - 1

    def __getitem__(self, records: Ints, /) -> Ints:
        return self._reader.record_sizes(records)


class Naming:
    """Lets what goes wrong in a block say which file of the archive that is about."""

    __slots__ = ("_name",)

    def __init__(self, name: Path) -> None:
        self._name = name

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, (SampleChecksumError, ReadFailedError)):
            error.name = os.fspath(self._name)


class Archive:
    """The packed folder that a reader's records are. Closing the reader closes it."""

    def __init__(self, reader: FileReader) -> None:
        self.reader = reader
        self.path = self.reader.fnames[-1]
        self.legacy_size = 0  # of what the index's record has for the original FFRecord
        self.index = self._open_index()
        # Of large files in an archive of the original's, which does not store them.
        self._derived: dict[int, npt.NDArray[np.uint32]] = {}

    @classmethod
    def open(
        cls, ffr_file: Path | Sequence[Path], check_data: bool = True, *, mode: str = "auto",
        lone: bool = False,
    ) -> Archive:  # fmt: skip
        """From a file, the folder of its shards, or the list of those. With `lone` also from a
        folder that an archive of one file lies in, as the original has it."""
        reader = FileReader(ffr_file, check_data, mode=mode)
        try:
            archive = cls(reader)
            if not lone:
                archive.refuse_lone(ffr_file)
            return archive
        except BaseException:
            reader.close()
            raise

    def refuse_lone(self, given: Path | Sequence[Path]) -> None:
        """An error if this was opened by the name of a folder that it only lies in."""
        if not isinstance(given, (str, os.PathLike)) or len(self.reader.fnames) > 1:
            return
        if os.path.isdir(given):
            raise NotPackedFolderError(
                f"{os.fsdecode(given)}: is not the shards of a packed folder, but one lies in it: "
                f"give {self.path}"
            )

    def read(self, inodes: Ints) -> list[Bytes]:
        """The contents of regular files, each checked, as one batch."""
        return self.reader.read(self.index.records(inodes))

    def read_records(self, records: Ints, name: Callable[[int], Path]) -> list[Bytes]:
        """Records, each checked, as one batch. An error about one has the file's name in it:
        `name` is asked with its place among `records`."""
        try:
            return self.reader.read(records)
        except SampleChecksumError as error:
            file = self.reader.fnames.index(error.path)
            before = sum(len(self.reader.get_checksums(each)) for each in range(file))
            error.name = os.fspath(name(records.tolist().index(before + error.record)))
            raise

    def read_range(self, inode: int, offset: int, length: int) -> Bytes:
        """Bytes of a regular file, checked; fewer where it ends before that."""
        size = self.index.status(inode).size
        stop = min(offset + length, size)
        if offset >= stop:
            return np.empty(0, np.uint8)
        record = self.index.record(inode)
        if size <= BLOCK:
            return self.reader.read_one(record)[offset:stop]
        first, last = offset // BLOCK, -(-stop // BLOCK)
        begin = np.arange(first, last) * BLOCK
        end = np.minimum(begin + BLOCK, size)
        checksums = self.block_checksums(inode)[first:last] if self.reader.check_data else None
        pieces = table_of(self.reader).read_pieces(record, begin, end, checksums)
        whole = pieces[0] if len(pieces) == 1 else np.concatenate(pieces)
        return whole[offset - first * BLOCK : stop - first * BLOCK]

    def stream(self, inode: int) -> Iterator[Bytes]:
        """A regular file of any size, in pieces that are checked before they are yielded."""
        size = self.index.status(inode).size
        for offset in range(0, size, STEP_BLOCKS * BLOCK):
            yield self.read_range(inode, offset, STEP_BLOCKS * BLOCK)

    def block_checksums(self, inode: int) -> npt.NDArray[np.uint32]:
        """The CRC-32 of every block of a file that has more than one."""
        stored = self.index.block_checksums(inode)
        if stored is not None:
            return stored
        record = self.index.record(inode)
        if record not in self._derived:
            # The record's own checksum is compared at the end: what was derived can be trusted.
            blocks = [
                crc32(piece[at : at + BLOCK])
                for piece in self.reader.stream(record, STEP_BLOCKS * BLOCK)
                for at in range(0, len(piece), BLOCK)
            ]
            self._derived[record] = np.array(blocks, np.uint32)
        return self._derived[record]

    def close(self) -> None:
        self.reader.close()

    def __enter__(self) -> Archive:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

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

        try:
            with ImageCopy(self.path, copy_to, trailer.length) as copy:
                self._compare_shards(index_layout.parse(self.path, copy.image), copy)
                index = Index(self.path, copy.image, _Sizes(reader), copy.wait_for)
                computed = copy.finish()
        except IndexStructureError:
            if trailer.length <= MOST_EXPLAINED:  # damage is the better explanation
                self._compare_checksum(self._image_checksum(trailer.length), trailer)
            raise
        self._compare_checksum(computed, trailer)
        # It stays in memory, but what only the checks had to touch need not stay mapped.
        copy.image.madvise(mmap.MADV_DONTNEED)
        return index

    def _image_checksum(self, length: int) -> int:
        """Of an image that is not worth keeping."""
        file, start = table_of(self.reader).locate(self.reader.n - 1)
        begin = start + self.legacy_size
        return Recheck(table_of(self.reader).require_open()[file]).checksum(begin, begin + length)

    def _compare_checksum(self, computed: int, trailer: index_layout.Trailer) -> None:
        if self.reader.check_data and computed != trailer.crc:
            raise IndexChecksumError(
                f"{self.path}: its index is damaged: the checksum is {computed:#010x}, "
                f"the file says {trailer.crc:#010x}"
            )

    def _open_legacy_index(self, record: int, size: int) -> Index:
        start = np.empty(min(size, len(index_layout.LEGACY_MAGIC)), np.uint8)
        if size:
            table_of(self.reader).read_unchecked(record, 0, start)
        if start.tobytes() != index_layout.LEGACY_MAGIC:
            raise NotPackedFolderError(self._no_archive())
        if size > legacy.most_bytes(record):
            raise IndexStructureError(
                f"{self.path}: its index has {size} bytes, more than {record} files need"
            )
        raw = bytearray(size)
        at = 0
        for piece in self.reader.stream(record):
            raw[at : at + len(piece)] = piece.data
            at += len(piece)
        sizes = self.reader.record_sizes()[:-1]
        most = legacy.most_entries(record)
        tree = legacy.read_tree(self.path, raw, sizes.tolist(), os.stat(self.path), most)
        if self._names_own_records(tree):
            raise IndexStructureError(self._no_archive())
        return Index(self.path, build(tree), sizes)

    def _names_own_records(self, tree: Tree) -> bool:
        """Whether an index of the original's, which knows no shards, is that of its own file
        alone. There are others before it: their records are not what its names mean."""
        if len(self.reader.fnames) == 1:
            return False
        own = len(self.reader.get_checksums(-1)) - 1
        files = filter(tree.is_file, range(len(tree.mode)))
        return max((tree.record[each] for each in files), default=-1) == own - 1

    def _compare_shards(self, tables: index_layout.Image, copy: ImageCopy) -> None:
        """The index names its shards: others in their place are found here, not as wrong data."""
        if len(tables.shards) > MOST_SHARDS:
            raise IndexStructureError(
                f"{self.path}: its index claims {len(tables.shards)} shards; the most is "
                f"{MOST_SHARDS}"
            )
        copy.wait_for("large")
        found = [
            (os.fsencode(os.path.basename(name)), len(self.reader.get_checksums(file)),
             self.reader.header_crc(file))
            for file, name in enumerate(self.reader.fnames[:-1])
        ]  # fmt: skip
        due = [
            (
                tables.texts[text : text + min(length, index_layout.LONGEST_NAME)].tobytes(),
                records,
                crc,
            )
            for records, text, length, crc in tables.shards.tolist()
        ]
        if found == due:
            return
        if not due:
            raise IndexStructureError(self._no_archive())
        names = [name for name, *_ in found]
        for shard in due:
            if shard not in found:
                what = "another file than the one" if shard[0] in names else "missing, a shard"
                name = shard[0].decode("utf-8", "surrogateescape")
                raise IndexStructureError(f"{self.path}: {name} is {what} that it was packed with")
        for shard in found:
            if shard not in due:
                raise IndexStructureError(_beside(self.path, os.fsdecode(shard[0])))
        raise IndexStructureError(f"{self.path}: its shards are not in the order of the packing")

    def _no_archive(self) -> str:
        """What is wrong with files that have no index, or more records than it names; and if one
        of them is an archive, what to do about that."""
        reader, names = self.reader, self.reader.fnames
        archives = [file for file in range(len(names)) if self._ends_with_index(file)]
        if len(names) == 1 or not archives:
            how = said("FileReader is", "`ffrecord info` and `cat --record N` are")
            return f"{self.path}: not a packed folder: it has no index; {how} for records"
        for file in archives:
            is_index = os.path.basename(names[file]) == index_layout.INDEX_NAME
            if is_index and len(reader.get_checksums(file)) == 1 and names[file] != self.path:
                # It sorts behind the index of the shards.
                return _beside(names[file], os.path.basename(self.path))
        shown = ", ".join(names[file] for file in archives[:SHOWN])
        more = f" and {len(archives) - SHOWN:,} more" if len(archives) > SHOWN else ""
        return (
            f"{os.path.dirname(self.path) or os.curdir}: its {len(names):,} record files are not "
            f"the shards of one packed folder; give one that is one: {shown}{more}"
        )

    def _ends_with_index(self, file: int) -> bool:
        """Whether the last record of a file is an index."""
        begin, end = [0, 0, *self.reader.get_offsets(file).tolist()][-2:]
        source = table_of(self.reader).require_open()[file]
        return end > begin and index_layout.is_index(
            end - begin, lambda at, length: source.read_bytes(begin + at, length)
        )


def _beside(index: str, stray: str) -> str:
    return f"{index}: {stray} lies beside it and is none of its shards: move it elsewhere"
