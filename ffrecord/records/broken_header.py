"""The claims of a damaged or unfinished file about its records, as far as they make sense.

A `Claims` is a table: where each record would begin and end, and its checksum. Whether that is so
the records' own bytes decide, later. A header whose checksum is wrong is used for what still fits
together: offsets that do not decrease; a count that its first offset confirms.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ffrecord.aliases import Ints
from ffrecord.disk.source import Source, next_data, next_hole
from ffrecord.errors import NotFFRecordError, TruncatedError, UnfinishedError
from ffrecord.format import journal
from ffrecord.format import records as record_layout
from ffrecord.format.checksum import crc32

NOWHERE = -1
SCANNED = 64 << 20
"""Bytes at the start of a file that are searched for a header whose count is lost."""

SMALL = 1 << 20  # records whose header is read whatever is in it
MOST_MISSING = 1 << 16
"""Records that a journal claims, and ends before."""

MOST_GAP = 4 << 20
MOST_GUESSES = 64
FARTHEST = 1 << 62


@dataclass(frozen=True, slots=True)
class Claims:
    """One row per record. `begin` or `end` is NOWHERE if it is not known."""

    begin: Ints
    end: Ints
    checksums: record_layout.Checksums
    whole: bool
    """Whether the header's, or every journal entry's, checksum holds: then all of it is true."""

    crc: int = 0
    """What the header says is its own checksum; 0 if nothing does."""

    lowest: int = 0
    """Where the header ends and, in most files, the first record begins."""

    def __len__(self) -> int:
        return len(self.checksums)


def of_partial(path: str, raw: bytes) -> Claims:
    """Return the claims of a resumable writer's unfinished file, from its journal."""
    content = journal.parse(raw)
    if content is None:
        raise UnfinishedError(
            f"{path}: never finished, and its journal is damaged: nothing tells its records"
        )
    # Those beyond the journal's end are lost, and told one by one, as far as that makes sense: who
    # seals a journal can claim any number.
    count = max(len(content.entries), min(content.settled, len(content.entries) + MOST_MISSING))
    begin = np.full(count, NOWHERE, np.int64)
    end = np.full(count, NOWHERE, np.int64)
    checksums = np.zeros(count, np.uint32)
    begin[:1] = content.begin
    for number, entry in enumerate(content.entries):
        if entry is not None:
            end[number], checksums[number] = entry.end, entry.crc
            begin[number + 1 : number + 2] = entry.end
    # Behind the last whole entry a crash, not damage, left what is there: no records yet.
    there = max(
        min(content.settled, count), int(np.flatnonzero(end != NOWHERE).max(initial=-1)) + 1
    )
    begin, end, checksums = begin[:there], end[:there], checksums[:there]
    return Claims(begin, end, checksums, bool((end != NOWHERE).all()))


def of_file(source: Source) -> Claims:
    """Return the claims of a record file, from its header."""
    size = os.fstat(source.fd).st_size
    if size < record_layout.PREFIX.size:
        raise TruncatedError(f"{source.path}: {size} bytes are too few to hold any record")
    prefix = source.read_bytes(0, record_layout.PREFIX.size)
    crc, n = record_layout.PREFIX.unpack(prefix)
    fits = 0 <= n <= record_layout.MAX_RECORDS and record_layout.header_size(n) <= size
    fits = fits and (n <= SMALL or _is_mostly_there(source, record_layout.header_size(n)))
    claims = _from_header(source, n, crc, size) if fits and (crc or n) else None
    if claims is not None and claims.whole:
        return claims
    if claims is not None and not _known(claims):
        claims = None
    likely = claims is not None and _sensible(claims)
    recounted = _recounted(source, crc, size, proof=likely)
    return recounted or claims or _hopeless(source.path, crc, n, size)


def _is_mostly_there(source: Source, size: int) -> bool:
    """Whether at least half of a header is no hole. A file has those for nothing, and memory would
    be taken for them; where a disk could not be read, tools leave some too."""
    at = holes = 0
    while at < size:
        data = min(next_data(source.fd, at), size)
        holes += data - at
        at = data
        if at < size:
            at = next_hole(source.fd, at)
    return 2 * holes <= size


def _known(claims: Claims) -> int:
    """How many records begin where the header may say so."""
    return int(np.count_nonzero(claims.begin != NOWHERE))


def _sensible(claims: Claims) -> bool:
    return _known(claims) > len(claims) // 2


def _hopeless(path: str, crc: int, n: int, size: int) -> Claims:
    """The error that tells why no record can be found."""
    record_layout.parse_prefix(path, record_layout.PREFIX.pack(crc, n), size)
    raise NotFFRecordError(f"{path}: not an FFRecord file, or no header is left of it")


def _recounted(source: Source, crc: int, size: int, *, proof: bool) -> Claims | None:
    """With another count than the header's, if the header's checksum holds with it. If no `proof`
    is needed, it is enough that its offsets make sense: the records' checksums decide."""
    sensible: Claims | None = None
    for n in _guessed_counts(source, size):
        guess = _from_header(source, n, crc, size)
        if guess.whole:
            return guess
        if sensible is None and _sensible(guess):
            sensible = guess
    return None if proof else sensible


def _guessed_counts(source: Source, size: int) -> Iterator[int]:
    """Counts for which the first offset, which the count gives the place of, is right behind the
    header; then those with a gap in between."""
    words = np.frombuffer(source.read_bytes(0, min(size, SCANNED) // 4 * 4), "<u4")[3:]
    if len(words) < 2:
        return
    offsets = words[:-1].astype(np.int64) | words[1:].astype(np.int64) << 32
    gaps = (
        offsets - record_layout.header_size(0) - record_layout.PER_RECORD * np.arange(len(offsets))
    )
    fitting = (gaps >= 0) & (gaps <= MOST_GAP) & (offsets <= size)
    fitting[0] = False  # no records
    exact = np.flatnonzero(fitting & (gaps == 0))[:MOST_GUESSES]
    spaced = np.flatnonzero(fitting & (gaps > 0))[:MOST_GUESSES]
    for n in (*exact.tolist(), *spaced.tolist()):
        if record_layout.header_size(n) <= size:
            yield n


def _from_header(source: Source, n: int, crc: int, size: int) -> Claims:
    rest = source.read_bytes(record_layout.PREFIX.size, record_layout.PER_RECORD * n)
    split = record_layout.CHECKSUM.itemsize * n
    checksums = np.frombuffer(rest[:split], record_layout.CHECKSUM).astype(np.uint32)
    offsets = np.frombuffer(rest[split:], record_layout.OFFSET).astype(np.int64)
    whole = crc != 0 and crc32(record_layout.body(checksums, offsets)) == crc
    known = np.full(n, NOWHERE, np.int64)
    # Also of a header that is as it was written: records that overlap were written to harm.
    kept = _not_decreasing(offsets, record_layout.header_size(n), FARTHEST if whole else size)
    known[kept] = offsets[kept]
    # Of a file that was cut off before its last record, that one can only be empty.
    end = np.append(known[1:], max(size, int(known[-1]))) if n else known
    return Claims(known, end, checksums, whole, crc, record_layout.header_size(n))


def _not_decreasing(offsets: Ints, lowest: int, highest: int) -> list[int]:
    """The most of these numbers, by their places, that are in range and do not decrease."""
    inside = np.flatnonzero((offsets >= lowest) & (offsets <= highest))
    values = offsets[inside]
    if (values[1:] >= values[:-1]).all():
        return list(inside.tolist())
    tails: list[int] = []  # the least last value of a chain of each length, and its place
    places: list[int] = []
    before = [NOWHERE] * len(values)
    for place, value in enumerate(values.tolist()):
        length = bisect_right(tails, value)
        before[place] = places[length - 1] if length else NOWHERE
        tails[length : length + 1] = [value]
        places[length : length + 1] = [place]
    chain = []
    place = places[-1]
    while place != NOWHERE:
        chain.append(int(inside[place]))
        place = before[place]
    return chain[::-1]


def split(data: bytes, checksums: Sequence[int]) -> list[int] | None:
    """Where records with these checksums, which are all of `data`, begin; None if they do not fit.

    The last one has to end where the data does, so that a chance match of another is found out.
    """
    begins, at = [], 0
    for wanted in checksums[:-1]:
        begins.append(at)
        crc = 0
        while crc != wanted:
            if at == len(data):
                return None
            crc = crc32(data[at : at + 1], crc)
            at += 1
    begins.append(at)
    return begins if crc32(data[at:]) == checksums[-1] else None
