"""Checks of the heaps of an HDF5 file, which hold values of variable length.

The HDF5 library (2.0.0) trusts the sizes in a heap. In some damaged heaps it loops for ever, and
Ctrl-C does not stop it. So all heaps are checked first. They are found by their signature:

    "GCOL" | version 1 | 3 zeros | size u64 | objects

    object: index u16 | references u16 | 4 zeros | size u64 | its bytes, to a multiple of 8

The object with index 0 is the free space, its header included. It is the last object.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from ffrecord.convert.files import STEP, SourceFile

SIGNATURE = b"GCOL\x01\0\0\0"
_HEADER = struct.Struct("<8sQ")
_OBJECT = struct.Struct("<HH4xQ")


def check_heaps(path: str) -> None:
    """Raise DamagedSourceError if the sizes in a heap do not fit together."""
    with SourceFile(path) as source:
        for begin in _heaps(source):
            if source.size - begin >= _HEADER.size:
                _check(source, begin)


def _heaps(source: SourceFile) -> Iterator[int]:
    """Yield the offset of each heap. Steps overlap, because a signature may lie across two."""
    overlap = len(SIGNATURE) - 1
    for start in range(0, source.size, STEP):
        source.seek(start)
        block = source.read(min(STEP + overlap, source.left))
        at = block.find(SIGNATURE)
        while at >= 0:
            yield start + at
            at = block.find(SIGNATURE, at + 1)


def _check(source: SourceFile, begin: int) -> None:
    source.seek(begin)
    _, size = _HEADER.unpack(source.read(_HEADER.size))
    source.seek(begin)
    source.require(size, what="an HDF5 heap")
    heap = source.read(size)
    at = _HEADER.size
    while size - at >= _OBJECT.size:
        index, _, length = _OBJECT.unpack_from(heap, at)
        taken = length if index == 0 else _OBJECT.size + -(-length // 8) * 8
        if taken < _OBJECT.size or taken > size - at:
            raise source.damaged(
                f"object {index} of an HDF5 heap claims {length} bytes, which do not fit",
                offset=begin + at,
            )
        at += taken
