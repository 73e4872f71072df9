"""CRC-32 (the zlib polynomial) of one buffer or of many.

ISA-L computes it at some 10 GB/s per core, five times as fast as zlib. It releases the GIL for
large buffers, so a helper thread can compute half of a batch of large records. That helps checked
reads of mapped files, whose only cost is the checksum (110 kB records, 2 cores: 10 -> 15 GB/s). It
does not help if a disk or a copy is part of the work: waking the other core costs more than it
saves.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from isal import isal_zlib

from ffrecord.aliases import Bytes
from ffrecord.machine import processors

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor


crc32 = isal_zlib.crc32

# A second core pays off for batches whose records have at least SHARE_RECORD bytes on average and
# SHARE_TOTAL bytes together.
SHARE_RECORD = 32 << 10
SHARE_TOTAL = 2 << 20

_helper: ThreadPoolExecutor | None = None


def crc32_many(buffers: Sequence[Bytes]) -> list[int]:
    """Return the CRC-32 of each buffer, in order."""
    return list(map(crc32, buffers))


def crc32_many_shared(buffers: Sequence[Bytes]) -> list[int]:
    """Return the CRC-32 of each buffer, computed on two cores if that is faster."""
    total = sum(map(len, buffers))
    if total < max(SHARE_TOTAL, SHARE_RECORD * len(buffers)) or processors.available() < 2:
        return crc32_many(buffers)
    half = len(buffers) // 2
    try:
        theirs = _the_helper().submit(crc32_many, buffers[half:])
    except RuntimeError:  # the interpreter is shutting down and starts no more threads
        return crc32_many(buffers)
    return crc32_many(buffers[:half]) + theirs.result()


def crc32_followed_by(crc: int, following: int, length: int) -> int:
    """Return the CRC-32 of two joined pieces from the CRC-32 of each.

    `length` is the number of bytes of the second piece.
    """
    return isal_zlib.crc32_combine(crc, following, length)


def crc32_of_zeros(length: int) -> int:
    """Return the CRC-32 of `length` zero bytes, without going through them.

    The CRC of 2n zeros is two CRCs of n zeros combined, so the loop doubles n.
    """
    crc, some, size = 0, crc32(b"\0"), 1
    while length:
        if length & 1:
            crc = crc32_followed_by(crc, some, size)
        some, size, length = crc32_followed_by(some, some, size), 2 * size, length >> 1
    return crc


def crc32_joined(blocks: Sequence[int], block: int, length: int) -> int:
    """Return the CRC-32 of `length` bytes from the CRC-32 of each of their blocks.

    Every block has `block` bytes, except that the last one may be shorter.
    """
    crc = blocks[0]
    for number in range(1, len(blocks)):
        crc = crc32_followed_by(crc, blocks[number], min(block, length - number * block))
    return crc


def _the_helper() -> ThreadPoolExecutor:
    global _helper
    if _helper is None:
        # Imported here: the import takes 8 ms, and few programs need the helper.
        from concurrent.futures import ThreadPoolExecutor

        _helper = ThreadPoolExecutor(1, thread_name_prefix="ffrecord-crc")
    return _helper


def _forget_helper() -> None:
    """Forget the parent's thread in a forked child, which starts its own thread when needed."""
    global _helper
    _helper = None


os.register_at_fork(after_in_child=_forget_helper)
