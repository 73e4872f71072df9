"""CRC-32 (the zlib polynomial) of one buffer or of many.

ISA-L computes it at some 10 GB/s a core, five times zlib. It gives the GIL up for large buffers,
so a batch of large records can be shared with one helper thread: checked reads of mapped files
are bound by nothing else (110 kB records, 2 cores: 10 -> 15 GB/s). Where the disk or a copy is
part of the work it does not pay: waking the other core costs more than it brings.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from isal import isal_zlib

from ffrecord.aliases import Bytes

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor


crc32 = isal_zlib.crc32

SHARE_RECORD = 32 << 10  # records at least this large on average, and
SHARE_TOTAL = 2 << 20  # batches of at least this many bytes, are worth a second core

_helper: ThreadPoolExecutor | None = None


def crc32_many(buffers: Sequence[Bytes]) -> list[int]:
    """The CRC-32 of each buffer, in order."""
    return list(map(crc32, buffers))


def crc32_many_shared(buffers: Sequence[Bytes]) -> list[int]:
    """As `crc32_many`, on two cores where that is faster."""
    total = sum(map(len, buffers))
    if total < max(SHARE_TOTAL, SHARE_RECORD * len(buffers)) or len(os.sched_getaffinity(0)) < 2:
        return crc32_many(buffers)
    half = len(buffers) // 2
    try:
        theirs = _the_helper().submit(crc32_many, buffers[half:])
    except RuntimeError:  # the interpreter is shutting down and starts no more threads
        return crc32_many(buffers)
    return crc32_many(buffers[:half]) + theirs.result()


def crc32_followed_by(crc: int, following: int, length: int) -> int:
    """The CRC-32 of some bytes and `length` more after them, from those of both."""
    return isal_zlib.crc32_combine(crc, following, length)


def crc32_of_zeros(length: int) -> int:
    """Return the CRC-32 of `length` zeros without reading any: the one of 2n joins two of n."""
    crc, some, size = 0, crc32(b"\0"), 1
    while length:
        if length & 1:
            crc = crc32_followed_by(crc, some, size)
        some, size, length = crc32_followed_by(some, some, size), 2 * size, length >> 1
    return crc


def crc32_joined(blocks: Sequence[int], block: int, length: int) -> int:
    """The CRC-32 of `length` bytes from those of their blocks, all but the last of one size."""
    crc = blocks[0]
    for number in range(1, len(blocks)):
        crc = crc32_followed_by(crc, blocks[number], min(block, length - number * block))
    return crc


def _the_helper() -> ThreadPoolExecutor:
    global _helper
    if _helper is None:
        from concurrent.futures import ThreadPoolExecutor  # takes 8 ms, and few need it

        _helper = ThreadPoolExecutor(1, thread_name_prefix="ffrecord-crc")
    return _helper


def _forget_helper() -> None:
    """Threads do not survive a fork: the child starts its own when it first needs one."""
    global _helper
    _helper = None


os.register_at_fork(after_in_child=_forget_helper)
