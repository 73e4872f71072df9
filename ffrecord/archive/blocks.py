"""Plans of reads: the blocks that hold a range of a file, their places, and their checksums.

A file of one block is verified against the CRC-32 of its record. A larger file is verified block
by block, against checksums in the index. Archives of the original FFRecord have no such checksums:
their large files are read once from end to end to compute them.

Every block with a stored checksum has a number. The block of a one-block file has the number of its
record; the blocks of larger files are numbered after all records.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from ffrecord.archive.index import Index
from ffrecord.format.checksum import crc32
from ffrecord.format.index import BLOCK
from ffrecord.records.reader import FileReader

Known: TypeAlias = Callable[[int, int], bool]
"""Takes the number of a block and a count; returns True if these blocks were verified before."""

STEP_BLOCKS = 32  # blocks per read when a large file is read from end to end

UNNUMBERED = -1
"""The block number of a piece that is not checked, or whose checksums are not in the index."""


class FilePiece(NamedTuple):
    """Bytes to read from one file of an archive, and the requested range among them."""

    inode: int
    file: int  # number of the archive's file (shard) to read from
    begin: int  # the first byte to read there
    length: int  # bytes to read
    skip: int  # bytes that are read before the requested ones
    asked: int  # number of requested bytes
    checksums: list[int] | None  # one for each block; None: nothing to check
    block: int  # the number of the first block


class Blocks:
    """Planner of reads of an archive's files. Any number of threads may use it."""

    def __init__(self, reader: FileReader, index: Index) -> None:
        files = range(len(reader.fnames))
        counts = [len(reader.get_checksums(file)) for file in files]
        self._reader = reader
        self._index = index
        self._is_one_file = len(files) == 1
        self._first: list[int] = np.cumsum([0, *counts[:-1]]).tolist()  # first record of each file
        # Memoryviews: taking one number out of a numpy array takes several times as long.
        self._starts = [reader.get_offsets(file).data for file in files]
        self._starts_here = self._starts[0]
        self._of_records = reader.checksums.data
        self._of_blocks = index.tables.blocks.data
        self._derived: dict[int, npt.NDArray[np.uint32]] = {}  # by record

    def __len__(self) -> int:
        """Return how many blocks have a number."""
        return len(self._of_records) + len(self._of_blocks)

    def piece(
        self, inode: int, offset: int, size: int, check: bool = True, known: Known | None = None
    ) -> FilePiece | None:
        """Plan a read of `size` bytes of a file from `offset` on; None beyond the file's end.

        The plan reads whole blocks. Without `check`, or if the blocks are `known` to be right, it
        reads only the requested bytes.
        """
        record, length = self._index.record_and_length(inode)
        stop = min(offset + size, length)
        if offset >= stop:
            return None
        if self._is_one_file:
            file, start = 0, self._starts_here[record]
        else:
            file, start = self.locate(record)
        asked = stop - offset
        if check and length <= BLOCK:
            if known is None or not known(record, 1):
                due = [self._of_records[record]]
                return FilePiece(inode, file, start, length, offset, asked, due, record)
        elif check:
            first, last = offset // BLOCK, -(-stop // BLOCK)
            due, number = self._due(inode, first, last)
            if known is None or number == UNNUMBERED or not known(number, last - first):
                begin, end = first * BLOCK, min(last * BLOCK, length)
                return FilePiece(
                    inode, file, start + begin, end - begin, offset - begin, asked, due, number
                )
        return FilePiece(inode, file, start + offset, asked, 0, asked, None, UNNUMBERED)

    def _due(self, inode: int, first: int, last: int) -> tuple[list[int], int]:
        """Return the checksums of some blocks of a large file, and the number of the first."""
        at = self._index.first_block(inode)
        if at is None:
            return self.derive(inode)[first:last].tolist(), UNNUMBERED
        stored = self._of_blocks[at + first : at + last].tolist()
        return stored, len(self._of_records) + at + first

    def locate(self, record: int) -> tuple[int, int]:
        """Return the number of the file that contains a record, and the record's first byte."""
        file = bisect_right(self._first, record) - 1
        return file, self._starts[file][record - self._first[file]]

    def last_start(self, file: int, byte: int) -> int:
        """Return where the record that contains `byte` begins in one of the archive's files.

        If `byte` is beyond the last record, return the end of the file.
        """
        starts = self._starts[file]
        return starts[bisect_right(starts, byte) - 1]

    def are_known(self, inode: int) -> bool:
        """Return True if the checksums of a file's blocks are known without `derive`."""
        record, length = self._index.record_and_length(inode)
        return length <= BLOCK or len(self._of_blocks) > 0 or record in self._derived

    def derive(self, inode: int) -> npt.NDArray[np.uint32]:
        """Compute the CRC-32 of each block of a large file in an archive of the original FFRecord.

        Such an archive does not store them. The first call reads the whole file.
        """
        record, _ = self._index.record_and_length(inode)
        if record not in self._derived:
            # `stream` verifies the record's checksum at the end, so these can be trusted.
            blocks = [
                crc32(piece[at : at + BLOCK])
                for piece in self._reader.stream(record, STEP_BLOCKS * BLOCK)
                for at in range(0, len(piece), BLOCK)
            ]
            self._derived[record] = np.array(blocks, np.uint32)
        return self._derived[record]
