"""What has to be read, and to be checked, for some bytes of a file.

Every byte that is served was verified: a file of one block against its record's CRC-32, a larger
one block by block against the index. Which blocks were is remembered (verify "first"), so that
the rest of a block, asked for later, costs one short read. Blocks have numbers: those of files
of one block are their records, the others come after them.
"""

from __future__ import annotations

import errno
import mmap
import os
from bisect import bisect_right
from typing import NamedTuple

import numpy as np

from ffrecord.archive.archive import Archive
from ffrecord.format.checksum import crc32
from ffrecord.format.index import BLOCK
from ffrecord.records.reader import table_of
from ffrecord_fuse.mounting.options import VERIFY

UNNUMBERED = -1
"""Of blocks that the index has no checksums of: they are verified each time."""


class Piece(NamedTuple):
    """Bytes to read from one of the archive's files, and which of them were asked for."""

    inode: int
    file: int
    begin: int
    length: int
    skip: int  # bytes before those that were asked for, and how many those are
    asked: int
    checksums: list[int] | None  # of each block of it; None: nothing to check
    block: int  # the number of the first


class DamageError(Exception):
    """A block is not what was packed."""

    def __init__(self, stored: int, computed: int) -> None:
        super().__init__(f"its checksum is {computed:#010x} where {stored:#010x} is due")


class Content:
    """Where the contents of an archive's files are, and whether they are right.

    Made before workers are forked: they share what is known to be right.
    """

    def __init__(self, archive: Archive, verify: str = "first") -> None:
        if verify not in VERIFY:
            raise ValueError(f"verify must be one of {', '.join(VERIFY)}, not {verify!r}")
        self._archive = archive
        self._reader = archive.reader
        self._index = archive.index
        self._verify = verify
        self._blocks_from = archive.reader.n
        # As memory: a number of a numpy array takes several times as long.
        self._is_one_file = len(archive.reader.fnames) == 1
        self._offsets = archive.reader.get_offsets(0).data
        self._record_checksums = archive.reader.checksums.data
        # A bit for each block. Two workers that set neighbours at once may lose one of them: that
        # block is verified again.
        blocks = self._blocks_from + len(archive.index.tables.blocks)
        self._right = mmap.mmap(-1, blocks // 8 + 1)
        files = archive.reader.record_sizes()[:-1]
        self._has_no_blocks = not len(archive.index.tables.large) and bool((files > BLOCK).any())
        self._learned: set[int] = set()

    def piece(self, inode: int, offset: int, size: int, *, anew: bool = False) -> Piece | None:
        """What to read for `size` bytes from `offset` on; None where the file has ended.

        That a block is right says nothing of what was read before it was found to be: `anew` is
        for that.
        """
        found = self._index.record_and_length(inode)
        if found is None:
            raise OSError(errno.EISDIR, "not a file")
        record, length = found
        stop = min(offset + size, length)
        if offset >= stop:
            return None
        file, start = (
            (0, self._offsets[record])
            if self._is_one_file
            else table_of(self._reader).locate(record)
        )
        if self._verify == "off":
            return Piece(inode, file, start + offset, stop - offset, 0, stop - offset, None, 0)
        first, last = offset // BLOCK, -(-stop // BLOCK)
        if length <= BLOCK:
            checksums, block = [self._record_checksums[record]], record
        else:
            checksums, block = self._checksums(inode, first, last)
        if self._verify == "first" and not anew and self._all_right(block, last - first):
            return Piece(inode, file, start + offset, stop - offset, 0, stop - offset, None, 0)
        begin, end = first * BLOCK, min(last * BLOCK, length)
        return Piece(
            inode, file, start + begin, end - begin, offset - begin, stop - offset, checksums, block
        )

    def last_start(self, file: int, byte: int) -> int:
        """Where in one of the archive's files the record begins that has a byte; its end, if the
        byte is beyond that."""
        starts = self._reader.get_offsets(file).data
        return starts[bisect_right(starts, byte) - 1]

    def must_learn(self, inode: int) -> bool:
        """Whether the blocks of a file have no checksums yet, as the large ones in an archive of
        the original's: those come from reading all of it, which takes as long as that takes."""
        if self._verify == "off" or not self._has_no_blocks or inode in self._learned:
            return False
        found = self._index.record_and_length(inode)
        return found is not None and found[1] > BLOCK

    def learn(self, inode: int) -> None:
        """Read a file from end to end, and compute what its blocks' checksums are."""
        self._archive.block_checksums(inode)
        self._learned.add(inode)

    def check(self, piece: Piece, memory: memoryview) -> int:
        """Raise DamageError unless a piece is right; how many blocks of it were verified."""
        if piece.checksums is None:
            return 0
        for number, due in enumerate(piece.checksums):
            computed = crc32(memory[number * BLOCK : min((number + 1) * BLOCK, piece.length)])
            if computed != due:
                raise DamageError(due, computed)
        if piece.block != UNNUMBERED:
            for block in range(piece.block, piece.block + len(piece.checksums)):
                self._right[block >> 3] |= 1 << (block & 7)
        return len(piece.checksums)

    def read(self, piece: Piece) -> memoryview:
        """The bytes of a piece that were asked for, read now and checked; waits for the disk."""
        memory = np.empty(piece.length, np.uint8)
        table_of(self._reader).require_open()[piece.file].read_into(memory, piece.begin)
        self.check(piece, memory.data)
        return memory.data[piece.skip : piece.skip + piece.asked]

    def record_of(self, inode: int) -> str:
        """Which record of which file holds it, for messages."""
        record = self._index.record(inode)
        file, _ = table_of(self._reader).locate(record)
        return f"record {record} of {os.path.basename(self._reader.fnames[file])}"

    def _checksums(self, inode: int, first: int, last: int) -> tuple[list[int], int]:
        """Of some blocks of a large file, and the number of the first."""
        blocks = self._index.first_block(inode)
        if blocks is None:  # see `learn`
            return self._archive.block_checksums(inode)[first:last].tolist(), UNNUMBERED
        stored = self._index.tables.blocks[blocks + first : blocks + last]
        return stored.tolist(), self._blocks_from + blocks + first

    def _all_right(self, block: int, count: int) -> bool:
        if block == UNNUMBERED:
            return False
        right = self._right
        if count == 1:  # most files are small, and this is asked of every read
            return bool(right[block >> 3] >> (block & 7) & 1)
        return all(right[number >> 3] >> (number & 7) & 1 for number in range(block, block + count))
