"""The paths of many entries at once, for `lookup`: what a hash has found is compared by its bytes.

A path is what stands in front of its folder's names, which is kept here, and a name out of the
image. Each becomes a row of bytes, all of one width, and the rows of a batch are put together by
a few numpy operations: half the time of one path after the other.

Safe from any number of threads: no two folders are given the same row, and a row is complete
before it is known whose it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ffrecord.aliases import Bytes, Ints
from ffrecord.format.index import Buffer

Rows: TypeAlias = npt.NDArray[np.void]

NARROWEST = 32
WIDEST = 128  # bytes of a path
MOST_FOLDERS = 1 << 14

_UNKNOWN = 1 << 40  # longer than any path


class PathRows:
    """Paths of entries in folders that were added.

    Args:
        image: the index's bytes.
        names_at: where in them the names begin.
        inodes: how many there are.
    """

    def __init__(self, image: Buffer, names_at: int, inodes: int) -> None:
        self._image = np.frombuffer(image, np.uint8)
        self._names_at = names_at
        # Zeros take no memory until something is written over them.
        self._row_of = np.zeros(inodes, np.uint16)  # 0: no folder that was added
        self._prefixes = np.zeros((MOST_FOLDERS, WIDEST), np.uint8)
        self._lengths = np.zeros(MOST_FOLDERS, np.int64)
        self._lengths[0] = _UNKNOWN
        self._free = count(1)
        self._tables = _Tables.of(NARROWEST, self._image, self._prefixes)

    def add(self, folder: int, prefix: bytes) -> None:
        """Let a folder be known by what stands in front of its names, unless that is too long or
        there are too many."""
        fits = len(prefix) <= min(WIDEST, self._names_at)
        if fits and (row := next(self._free)) < MOST_FOLDERS:
            self._prefixes[row, : len(prefix)] = np.frombuffer(prefix, np.uint8)
            self._lengths[row] = len(prefix)
            self._row_of[folder] = row

    def paths(self, folders: Ints, begin: Ints, end: Ints) -> list[bytes] | None:
        """The paths of entries whose names are at the given places.

        None, and they must be put together in another way, if one is in a folder that is not
        known, is too long, or so near to the image's end that no row is left there.
        """
        tables = self._tables
        row = self._row_of.take(folders).astype(np.int64)
        prefix = self._lengths.take(row)
        length = end - begin
        length += prefix
        at = begin - prefix
        at += self._names_at
        # All of them touched at once: the processor waits for memory once, not for each name.
        self._image.take(at, mode="clip")
        try:
            paths = tables.image[at].view(np.uint64)
            names = tables.first.take(length).view(np.uint64)
        except IndexError:
            self._widen(int(length.max()))
            return None
        names ^= tables.first.take(prefix).view(np.uint64)
        paths &= names
        paths |= tables.prefixes[row].view(np.uint64)
        found: list[bytes] = paths.view(tables.text).tolist()
        return found

    def _widen(self, longest: int) -> None:
        """Have room for such paths from now on, if that was the problem."""
        if self._tables.text.itemsize < longest <= WIDEST:
            width = 1 << (longest - 1).bit_length()
            self._tables = _Tables.of(width, self._image, self._prefixes)


@dataclass(frozen=True, slots=True)
class _Tables:
    """The parts that rows of one width are made of."""

    image: Rows  # from each of its bytes on
    prefixes: Rows
    first: Rows  # ones in as many bytes as the row's number says, the first ones
    text: np.dtype[Any]  # a row without the zeros at its end

    @classmethod
    def of(cls, width: int, image: Bytes, prefixes: Bytes) -> _Tables:
        row = f"V{width}"
        first = 0xFF * np.tri(1 + width, width, -1, np.uint8)
        return cls(
            np.ndarray(max(0, len(image) - width + 1), row, image, strides=1),
            np.ndarray(len(prefixes), row, prefixes, strides=prefixes.strides[0]),
            first.view(row).ravel(),
            np.dtype(f"S{width}"),
        )
