"""Read and verify the contents of files for READ requests, before they are served.

`ffrecord.archive.blocks` plans the bytes to read and the checksums to compare. With verify "first",
`CheckedContent` remembers verified blocks, and later reads only the requested bytes of them. With
verify "off", `CheckedContent` checks nothing.
"""

from __future__ import annotations

import mmap

import numpy as np

from ffrecord.archive.archive import Archive
from ffrecord.archive.blocks import UNNUMBERED, FilePiece
from ffrecord.disk.source import Source
from ffrecord.format.checksum import crc32
from ffrecord.format.index import BLOCK
from ffrecord.records.reader import table_of
from ffrecord_fuse.mounting.options import VERIFY


class DamageError(Exception):
    """A block whose checksum differs from the stored one."""

    def __init__(self, stored: int, computed: int) -> None:
        super().__init__(f"its checksum is {computed:#010x}, but the archive says {stored:#010x}")


class CheckedContent:
    """Plans, reads and verifies the contents of an archive's files.

    Create it before the workers are forked, so that they share the table of verified blocks.
    """

    def __init__(self, archive: Archive, verify: str = "first") -> None:
        if verify not in VERIFY:
            raise ValueError(f"verify must be one of {', '.join(VERIFY)}, not {verify!r}")
        self._reader = archive.reader
        self._blocks = archive.blocks
        self._check = verify != "off"
        self._known = self._are_right if verify == "first" else None
        # One bit for each verified block. If two workers set neighbouring bits at the same time,
        # one bit may be lost. That block is then verified again.
        self._right = mmap.mmap(-1, len(archive.blocks) // 8 + 1)
        # True only for archives of the original FFRecord with large files. Computed once, because
        # every read needs it.
        files = self._reader.record_sizes()[:-1]
        is_stored = len(archive.index.tables.large) > 0
        self._may_have_to_learn = self._check and not is_stored and bool((files > BLOCK).any())

    @property
    def is_checking(self) -> bool:
        """False with verify "off"."""
        return self._check

    def piece(self, inode: int, offset: int, size: int, *, anew: bool = False) -> FilePiece | None:
        """Plan a read of `size` bytes from `offset` on; return None at the end of the file.

        Verified blocks are not checked again, unless `anew` is True. Pass it for memory that was
        filled before the block was verified, because that memory may hold other bytes.
        """
        known = None if anew else self._known
        return self._blocks.piece(inode, offset, size, self._check, known)

    def must_learn(self, inode: int) -> bool:
        """Return True if the file's blocks have no checksums yet, and `learn` must be called.

        These are large files in archives of the original FFRecord.
        """
        return self._may_have_to_learn and not self._blocks.are_known(inode)

    def learn(self, inode: int) -> None:
        """Read a whole file and compute the checksums of its blocks. Takes long for large files."""
        self._blocks.derive(inode)

    def check(self, piece: FilePiece, memory: memoryview) -> int:
        """Return the number of verified blocks; raise DamageError if a block is damaged."""
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
        """Read a piece, check it, and return the requested bytes. Waits for disk or network."""
        memory = np.empty(piece.length, np.uint8)
        source = table_of(self._reader).require_open()[piece.file]
        source.read_into(memory, piece.begin)
        try:
            self.check(piece, memory.data)
        except DamageError:
            if isinstance(source, Source):
                raise
            source.read_again(memory, piece.begin)  # perhaps only the transfer was wrong
            self.check(piece, memory.data)
        return memory.data[piece.skip : piece.skip + piece.asked]

    def _are_right(self, block: int, count: int) -> bool:
        right = self._right
        if count == 1:  # a fast path: most files are small, and every read comes here
            return bool(right[block >> 3] >> (block & 7) & 1)
        return all(right[number >> 3] >> (number & 7) & 1 for number in range(block, block + count))
