"""Padding between the files of an aligned archive. docs/format.md is the specification.

In an aligned archive the content of every file begins at a multiple of 512 bytes. A gap after the
header aligns the first file. A record of zeros follows each file that does not end at a multiple,
and no name leads to that record. The alignment is not stored: it follows from the offsets.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

from ffrecord.format.checksum import crc32_of_zeros
from ffrecord.text import integer

ALIGNMENT = 512
"""The only alignment: the smallest block of Linux's EROFS, which can serve aligned files in place.
It is also the smallest sector of disks, so O_DIRECT reads of whole files copy nothing else."""

UNALIGNED = 1

ZEROS = bytes(ALIGNMENT)


def checked(align: int | None) -> int:
    """Return the alignment that a user asks for: 512, or 1 for None."""
    if align is None:
        return UNALIGNED
    if integer(align, "align") != ALIGNMENT:
        raise ValueError(f"align must be {ALIGNMENT}, or None for no padding, not {align}")
    return ALIGNMENT


def rounded_up(offset: int, align: int = ALIGNMENT) -> int:
    """Return the next multiple of `align`, or `offset` itself if it is one."""
    return offset + -offset % align


def with_padding(
    lengths: Iterable[int], checksums: Iterable[int], align: int
) -> tuple[list[int], list[int]]:
    """Return the lengths and checksums of files' records, each followed by its padding record.

    A file that ends at a multiple of `align` has no padding record.
    """
    padded: tuple[list[int], list[int]] = [], []
    for length, crc in zip(lengths, checksums, strict=True):
        padded[0].append(length)
        padded[1].append(crc)
        if missing := -length % align:
            padded[0].append(missing)
            padded[1].append(crc_of(missing))
    return padded


@cache
def crc_of(length: int) -> int:
    """Return the CRC-32 of a padding record."""
    return crc32_of_zeros(length)
