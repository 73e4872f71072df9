"""The content of files for READ requests: every byte is verified before it is served.

`ffrecord.archive.blocks` plans what to read and to check. `CheckedContent` remembers which blocks
were right (verify "first"), so that the rest of a block, asked for later, costs one short read;
with verify "off" it checks nothing.
"""

from __future__ import annotations

import mmap

import numpy as np

from ffrecord.archive.archive import Archive
from ffrecord.archive.blocks import UNNUMBERED, FilePiece
from ffrecord.format.checksum import crc32
from ffrecord.format.index import BLOCK
from ffrecord.records.reader import table_of
from ffrecord_fuse.mounting.options import VERIFY


class DamageError(Exception):
    """A block is not what was packed."""

    def __init__(self, stored: int, computed: int) -> None:
        super().__init__(f"its checksum is {computed:#010x} where {stored:#010x} is due")


class CheckedContent:
    """Where the contents of an archive's files are, and whether they are right.

    Made before workers are forked: they share what is known to be right.
    """

    def __init__(self, archive: Archive, verify: str = "first") -> None:
        if verify not in VERIFY:
            raise ValueError(f"verify must be one of {', '.join(VERIFY)}, not {verify!r}")
        self._reader = archive.reader
        self._blocks = archive.blocks
        self._check = verify != "off"
        self._known = self._are_right if verify == "first" else None
        # A bit for each block. Two workers that set neighbours at once may lose one of them: that
        # block is verified again.
        self._right = mmap.mmap(-1, len(archive.blocks) // 8 + 1)
        # Only in an archive of the original's with large files. Asked of every read.
        files = self._reader.record_sizes()[:-1]
        is_stored = len(archive.index.tables.large) > 0
        self._may_have_to_learn = self._check and not is_stored and bool((files > BLOCK).any())

    def piece(self, inode: int, offset: int, size: int, *, anew: bool = False) -> FilePiece | None:
        """Plan a read of `size` bytes from `offset` on; None where the file has ended.

        A block that is known to be right is not checked again, unless it is to be checked `anew`:
        memory that was filled before the block was found to be right may hold something else.
        """
        known = None if anew else self._known
        return self._blocks.piece(inode, offset, size, self._check, known)

    def must_learn(self, inode: int) -> bool:
        """Whether the blocks of a file have no checksums yet, as the large ones in an archive of
        the original's: those come from reading all of it, which takes as long as that takes."""
        return self._may_have_to_learn and not self._blocks.are_known(inode)

    def learn(self, inode: int) -> None:
        """Read a file from end to end, and compute what its blocks' checksums are."""
        self._blocks.derive(inode)

    def check(self, piece: FilePiece, memory: memoryview) -> int:
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

    def read(self, piece: FilePiece) -> memoryview:
        """The bytes of a piece that were asked for, read now and checked; waits for the disk."""
        memory = np.empty(piece.length, np.uint8)
        table_of(self._reader).require_open()[piece.file].read_into(memory, piece.begin)
        self.check(piece, memory.data)
        return memory.data[piece.skip : piece.skip + piece.asked]

    def _are_right(self, block: int, count: int) -> bool:
        right = self._right
        if count == 1:  # most files are small, and this is asked of every read
            return bool(right[block >> 3] >> (block & 7) & 1)
        return all(right[number >> 3] >> (number & 7) & 1 for number in range(block, block + count))
