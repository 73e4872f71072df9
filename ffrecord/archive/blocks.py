"""Plans of reads: the blocks that some bytes of a file need, where they are, and their checksums.

A file of one block is verified against its record's CRC-32, a larger one block by block: its
checksums are in the index or, in an archive of the original's, come from reading the whole file
once. Blocks have numbers: those of files of one block are their records', the others come after
those.
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
"""Tells whether so many blocks, from one with this number on, are right for certain."""

STEP_BLOCKS = 32  # that a large file is read by, from end to end

UNNUMBERED = -1
"""The number of blocks that the index has no checksums of, and of those that are not checked."""


class FilePiece(NamedTuple):
    """Bytes to read from one of an archive's files, and which of them were asked for."""

    inode: int
    file: int
    begin: int
    length: int
    skip: int  # bytes before those that were asked for, and how many those are
    asked: int
    checksums: list[int] | None  # of each block of it; None: nothing to check
    block: int  # the number of the first


class Blocks:
    """Plans reads of an archive's files. Any number of threads may use it."""

    def __init__(self, reader: FileReader, index: Index) -> None:
        files = range(len(reader.fnames))
        counts = [len(reader.get_checksums(file)) for file in files]
        self._reader = reader
        self._index = index
        self._is_one_file = len(files) == 1
        self._first: list[int] = np.cumsum([0, *counts[:-1]]).tolist()  # record of each file
        # As memory: a number of a numpy array takes several times as long.
        self._starts = [reader.get_offsets(file).data for file in files]
        self._starts_here = self._starts[0]
        self._of_records = reader.checksums.data
        self._of_blocks = index.tables.blocks.data
        self._derived: dict[int, npt.NDArray[np.uint32]] = {}  # by record

    def __len__(self) -> int:
        """How many numbers there are."""
        return len(self._of_records) + len(self._of_blocks)

    def piece(
        self, inode: int, offset: int, size: int, check: bool = True, known: Known | None = None
    ) -> FilePiece | None:
        """Plan a read of `size` bytes of a file from `offset` on; None where it has ended.

        Whole blocks are read, unless there is nothing to `check` or they are `known` to be right.
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
        """The checksums of some blocks of a large file, and the number of the first."""
        at = self._index.first_block(inode)
        if at is None:
            return self.derive(inode)[first:last].tolist(), UNNUMBERED
        stored = self._of_blocks[at + first : at + last].tolist()
        return stored, len(self._of_records) + at + first

    def locate(self, record: int) -> tuple[int, int]:
        """The number of the file that a record is in, and the byte that it begins at."""
        file = bisect_right(self._first, record) - 1
        return file, self._starts[file][record - self._first[file]]

    def last_start(self, file: int, byte: int) -> int:
        """Where in one of the archive's files the record begins that has a byte; the file's end,
        if the byte is beyond that."""
        starts = self._starts[file]
        return starts[bisect_right(starts, byte) - 1]

    def are_known(self, inode: int) -> bool:
        """Whether a file's blocks have checksums without reading all of it, see `derive`."""
        record, length = self._index.record_and_length(inode)
        return length <= BLOCK or len(self._of_blocks) > 0 or record in self._derived

    def derive(self, inode: int) -> npt.NDArray[np.uint32]:
        """The CRC-32 of each block of a large file in an archive of the original's, which does not
        store them. The first time the whole file is read."""
        record, _ = self._index.record_and_length(inode)
        if record not in self._derived:
            # The record's own checksum is compared at the end: what was derived can be trusted.
            blocks = [
                crc32(piece[at : at + BLOCK])
                for piece in self._reader.stream(record, STEP_BLOCKS * BLOCK)
                for at in range(0, len(piece), BLOCK)
            ]
            self._derived[record] = np.array(blocks, np.uint32)
        return self._derived[record]
