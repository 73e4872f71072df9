"""`PathRows`: builds the paths of many entries at once, so that `lookup` can compare them.

A path is the prefix of its folder, stored here, followed by a name from the image. Each path
becomes a row of bytes, all of one width. A few numpy operations build the rows of a whole batch, in
half the time of building one path after another.

Any number of threads may use it: no two folders get the same row, and a row is complete before a
folder refers to it.
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

NARROWEST = 32  # bytes of a row at first
WIDEST = 128  # bytes of the widest row, so of the longest path
MOST_FOLDERS = 1 << 14  # limit for the stored prefixes, which then take 2 MiB

_UNKNOWN = 1 << 40  # longer than any path


class PathRows:
    """Paths of entries in folders that were added.

    Args:
        image: the bytes of the index.
        names_at: the offset of the names in the image.
        inodes: the number of inodes.
    """

    def __init__(self, image: Buffer, names_at: int, inodes: int) -> None:
        self._image = np.frombuffer(image, np.uint8)
        self._names_at = names_at
        # Zeros take no memory until something is written.
        self._row_of = np.zeros(inodes, np.uint16)  # 0: a folder that was not added
        self._prefixes = np.zeros((MOST_FOLDERS, WIDEST), np.uint8)
        self._lengths = np.zeros(MOST_FOLDERS, np.int64)
        self._lengths[0] = _UNKNOWN
        self._free = count(1)
        self._tables = _Tables.of(NARROWEST, self._image, self._prefixes)

    def add(self, folder: int, prefix: bytes) -> None:
        """Store the prefix of a folder, unless it is too long or there are too many already."""
        fits = len(prefix) <= min(WIDEST, self._names_at)
        if fits and (row := next(self._free)) < MOST_FOLDERS:
            self._prefixes[row, : len(prefix)] = np.frombuffer(prefix, np.uint8)
            self._lengths[row] = len(prefix)
            self._row_of[folder] = row

    def paths(self, folders: Ints, begin: Ints, end: Ints) -> list[bytes] | None:
        """Return the paths of entries whose names are at the given places, or None.

        None means that the caller must build the paths in another way: a folder was not added, a
        path is too long, or a name is too close to the end of the image for a whole row.
        """
        tables = self._tables
        row = self._row_of.take(folders).astype(np.int64)
        prefix = self._lengths.take(row)
        length = end - begin
        length += prefix
        at = begin - prefix
        at += self._names_at
        # Touch all names at once, so that the processor waits for memory once, not for each name.
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
        """Widen the rows for paths of this length, if the width was the problem."""
        if self._tables.text.itemsize < longest <= WIDEST:
            width = 1 << (longest - 1).bit_length()
            self._tables = _Tables.of(width, self._image, self._prefixes)


@dataclass(frozen=True, slots=True)
class _Tables:
    """The parts that make up rows of one width."""

    image: Rows  # a row that begins at each byte of the image
    prefixes: Rows
    first: Rows  # masks: row n has ones in its first n bytes
    text: np.dtype[Any]  # type of a row whose trailing zeros are dropped

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
