"""Plan the reads that fetch the records of a batch: aligned, sorted, joined. No I/O.

Reads are placed one after the other in one slab of memory. Records that share a block or lie close
together share a read. A record that is requested twice is read twice, because the caller may write
into the results. Long extents are cut into several reads, so that the disk works on them in
parallel and checksums can begin before the last byte has arrived.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ffrecord.aliases import Ints

# Records closer than this share a read. An estimate: with some 5 µs per request and 4 GB/s, one
# more request costs as much as 16 to 32 KiB more data.
GAP = 16 << 10
# Longer reads are not faster; shorter reads need more requests.
LONGEST = 1 << 20
# From this mean size on, `plan_cached` saves less than 1 % of the time of a read.
LARGE = 64 << 10


@dataclass(frozen=True, slots=True)
class Plan:
    """Reads to issue, and the place of each record in the slab.

    One row per read: `file`, `offset` and `length` (aligned), `need` and `place` in the slab. Only
    the first `need` bytes of a read hold records; the rest is padding, and may lie beyond the end
    of the file.

    One row per record, in file order; `order` has the indices into the batch. (None: the rows are
    in the order of the batch, and neither offsets nor lengths are aligned.) `start` and `stop` are
    positions in the slab. `first` and `last` are the first and last read of the record.
    """

    file: Ints | None  # None: all reads are of one file
    offset: Ints
    length: Ints
    need: Ints
    place: Ints
    size: int
    order: Ints | None
    start: Ints
    stop: Ints
    first: Ints | None  # None: record k needs only read k, as with records picked at random
    last: Ints | None


def plan(
    file: Ints | None, begin: Ints, end: Ints, align: int, gap: int = GAP, longest: int = LONGEST
) -> Plan:
    """Return the plan that reads the records [begin, end) of the given files.

    `file` is None if all records are in one file. No record may be empty. Records closer than `gap`
    share a read, and reads are cut at `longest` bytes. Written for speed, because the disk idles
    while this runs.
    """
    # The order of records with the same offset does not matter, so a stable sort is not needed.
    order = begin.argsort() if file is None else np.lexsort((begin, file))
    begin, end = begin.take(order), end.take(order)
    low = begin & -align
    high = (end + (align - 1)) & -align

    opens = np.empty(len(order), bool)
    opens[0] = True
    np.greater(low[1:], high[:-1] + gap, out=opens[1:])
    if file is not None:
        file = file[order]
        opens[1:] |= file[1:] != file[:-1]
    if opens.all():
        return _cut(file, low, high, end, order, begin, end, None, longest)
    opens[1:] |= begin[1:] == begin[:-1]
    heads = opens.nonzero()[0]
    tails = np.empty_like(heads)
    tails[:-1] = heads[1:] - 1
    tails[-1] = len(order) - 1
    extent = opens.cumsum() - 1
    if file is not None:
        file = file[heads]
    return _cut(file, low[heads], high[tails], end[tails], order, begin, end, extent, longest)


def plan_cached(file: Ints | None, begin: Ints, end: Ints) -> Plan | None:
    """Return a plan without sorting, for records in the page cache that are far apart.

    Returns None if joining or cutting may pay: for neighbours, and for large records.
    """
    length = end - begin
    until = length.cumsum()
    size, n = int(until[-1]), len(begin)
    spread = int(begin.max()) - int(begin.min())
    if spread < n * GAP or size > n * LARGE or (begin[1:] == end[:-1]).any():
        return None
    if int(length.max()) > LONGEST:
        return None
    place = until - length
    return Plan(file, begin, length, length, place, size, None, place, until, None, None)


def _cut(
    file: Ints | None, low: Ints, high: Ints, data_end: Ints, order: Ints, begin: Ints, end: Ints,
    extent: Ints | None, longest: int,
) -> Plan:  # fmt: skip
    """Place the extents [low, high) in a slab, and cut long ones into several reads.

    `extent` has the number of each record's extent. None: extent k has only record k.
    """
    length = high - low
    until = length.cumsum()
    place = until - length
    need = data_end - low
    shift = place - low
    start = begin + (shift if extent is None else shift[extent])
    stop = start + (end - begin)
    size = int(until[-1])
    if int(length.max()) <= longest:
        return Plan(
            file, low, length, need, place, size, order, start, stop, extent, extent,
        )  # fmt: skip
    if extent is None:
        extent = np.arange(len(order))
    within = begin - low[extent]
    pieces = -(-length // longest)
    piece0 = pieces.cumsum() - pieces
    of = np.repeat(np.arange(len(length)), pieces)
    skip = (np.arange(len(of)) - piece0[of]) * longest
    cut = np.minimum(longest, length[of] - skip)
    return Plan(
        None if file is None else file[of],
        low[of] + skip, cut, np.minimum(cut, need[of] - skip), place[of] + skip, size,
        order, start, stop,
        piece0[extent] + within // longest,
        piece0[extent] + (within + (stop - start) - 1) // longest,
    )  # fmt: skip
