"""Files with holes: blocks of zeros that take no room on the disk."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ffrecord.aliases import Bytes
from ffrecord.atomic.direct import write_all

HOLE = 4096
"""The smallest hole: a block of nearly every file system."""


def write_with_holes(fd: int, data: Bytes, offset: int) -> None:
    """Write data, except for its blocks of zeros, into a part of a file that is a hole so far.

    The file may end up too short: one that ends with a hole has to be made as long as it is.
    """
    for begin, end in data_runs(data):
        write_all(fd, data[begin:end].data, offset + begin)


def data_runs(data: Bytes) -> Iterator[tuple[int, int]]:
    """Where data begins and ends that is not blocks of zeros, counted from its beginning on."""
    whole = len(data) // HOLE * HOLE
    filled = np.append(_or(data[:whole].reshape(-1, HOLE)), _or(data[whole:])) != 0
    edges = np.flatnonzero(np.diff(filled, prepend=False, append=False)) * HOLE
    ends = np.minimum(edges, len(data)).tolist()
    yield from zip(ends[::2], ends[1::2], strict=True)


def _or(data: Bytes) -> Bytes:
    """The bits that any byte of a row has. Of all ways to find zeros this is among the fastest."""
    bits: Bytes = np.bitwise_or.reduce(data, axis=-1)
    return bits
