"""Write files with holes: blocks of zeros that take no space on disk."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ffrecord.aliases import Bytes
from ffrecord.atomic.direct import write_all

HOLE = 4096
"""Bytes of the smallest hole: the block size of nearly every file system."""


def write_with_holes(fd: int, data: Bytes, offset: int) -> None:
    """Write data, without its blocks of zeros, into a part of a file that is still a hole.

    If the data ends with zeros, the file is too short afterwards: the caller sets its length.
    """
    for begin, end in data_runs(data):
        write_all(fd, data[begin:end].data, offset + begin)


def data_runs(data: Bytes) -> Iterator[tuple[int, int]]:
    """Yield the begin and end of each run of blocks that are not all zeros."""
    whole = len(data) // HOLE * HOLE
    filled = np.append(_or(data[:whole].reshape(-1, HOLE)), _or(data[whole:])) != 0
    edges = np.flatnonzero(np.diff(filled, prepend=False, append=False)) * HOLE
    ends = np.minimum(edges, len(data)).tolist()
    yield from zip(ends[::2], ends[1::2], strict=True)


def _or(data: Bytes) -> Bytes:
    """Combine all bytes of each row by OR: the result is 0 for a row of zeros.

    This is among the fastest ways to find zeros.
    """
    bits: Bytes = np.bitwise_or.reduce(data, axis=-1)
    return bits
