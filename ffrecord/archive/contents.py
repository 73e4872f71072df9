"""Write the contents of files into an archive, and gather the facts that the index needs."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable
from typing import Protocol

from ffrecord.archive.index.columns import BlocksOf, XattrsOf
from ffrecord.archive.source_files import Found, read_ahead
from ffrecord.format import padding
from ffrecord.format.checksum import crc32_joined
from ffrecord.format.index import BLOCK
from ffrecord.records.writer import FileWriter


class Facts(Protocol):
    """Facts that are known when a file has been read. A `Tree` has them, for example."""

    xattrs: XattrsOf
    blocks: BlocksOf


def write_contents(
    writer: FileWriter,
    found: Found,
    inodes: Iterable[int],
    facts: Facts,
    *,
    jobs: int | None,
    align: int,
    changed: Callable[[int, bool], None],
    tell: Callable[[int, int], None],
) -> None:
    """Write files and their padding, and add their block checksums and xattrs to `facts`.

    Args:
        writer: the archive or shard.
        found: the files, and how to read them.
        inodes: the files to write, in order.
        facts: receives the extended attributes, and the checksums of blocks.
        jobs: read at most this many files at once.
        align: alignment of the files.
        changed: called for a file that has changed, or is gone (True).
        tell: called with the files and bytes written since the last call.
    """
    begun: list[int] = []  # block checksums of a large file that is not complete yet
    for batch in read_ahead(found, inodes, jobs, align):
        piece, size = batch.piece, sum(batch.piece.lengths)
        writer.append(batch.memory[: batch.size])
        for inode in batch.changed + batch.gone:
            changed(inode, inode in batch.gone)
        for inode, xattrs in batch.xattrs.items():
            facts.xattrs[inode] = xattrs
        if not piece.is_last:
            begun += batch.checksums[0]
            tell(0, size)
            continue
        checksums, lengths = batch.checksums, piece.lengths
        if begun:
            checksums, lengths = [begun + checksums[0]], [found.lengths[piece.inodes[0]]]
            begun = []
        joined = [blocks[0] for blocks in checksums]
        for k, (inode, blocks) in enumerate(zip(piece.inodes, checksums, strict=True)):
            if len(blocks) > 1:
                joined[k] = crc32_joined(blocks, BLOCK, lengths[k])
                facts.blocks[inode] = array("I", blocks)
        writer.seal(*padding.with_padding(lengths, joined, align))
        tell(len(lengths), size)
