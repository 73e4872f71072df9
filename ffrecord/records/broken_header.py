"""Read a damaged header, or the journal of an unfinished file, and keep the plausible parts.

The result is a `Claims` table with the start, the end and the checksum of each record. `salvage`
later checks these claims against the records' bytes. If the checksum of a header is wrong, only
consistent parts are used: offsets that do not decrease, and a count that the first offset confirms.
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
from ffrecord.records.opening import refuse_other_formats

NOWHERE = -1  # an unknown offset
SCANNED = 64 << 20
"""Bytes at the start of a file that are searched for the count of records when it is damaged."""

SMALL = 1 << 20  # records; a header of at most this many is read even if it is a hole
MOST_MISSING = 1 << 16
"""Most missing records that are reported if a journal claims more records than it has entries."""

MOST_GAP = 4 << 20  # most bytes between a header and the first record
MOST_GUESSES = 64  # counts that are tried: each costs reading a header
FARTHEST = 1 << 62  # the largest offset that an intact header may state


@dataclass(frozen=True, slots=True)
class Claims:
    """Claimed positions and checksums, one row per record. Unknown positions are NOWHERE."""

    begin: Ints
    end: Ints
    checksums: record_layout.Checksums
    whole: bool
    """True if the checksum of the header, or of every journal entry, is right. Then no claim was
    changed by damage."""

    crc: int = 0
    """Checksum that the header states for itself; 0 if there is no header."""

    lowest: int = 0
    """End of the header, where the first record begins in most files."""

    def __len__(self) -> int:
        return len(self.checksums)


def of_partial(path: str, raw: bytes) -> Claims:
    """Return the claims of a resumable writer's unfinished file, from its journal."""
    content = journal.parse(raw)
    if content is None:
        raise UnfinishedError(
            f"{path}: never finished, and its journal is damaged, so no record can be found; "
            "write the file again"
        )
    # Records beyond the end of the journal are lost and reported one by one. Their number is
    # limited, because a forged journal can claim any number.
    count = max(len(content.entries), min(content.settled, len(content.entries) + MOST_MISSING))
    begin = np.full(count, NOWHERE, np.int64)
    end = np.full(count, NOWHERE, np.int64)
    checksums = np.zeros(count, np.uint32)
    begin[:1] = content.begin
    for number, entry in enumerate(content.entries):
        if entry is not None:
            end[number], checksums[number] = entry.end, entry.crc
            begin[number + 1 : number + 2] = entry.end
    # Bytes after the last whole entry were left by a crash, not by damage: they are no records.
    there = max(
        min(content.settled, count), int(np.flatnonzero(end != NOWHERE).max(initial=-1)) + 1
    )
    begin, end, checksums = begin[:there], end[:there], checksums[:there]
    return Claims(begin, end, checksums, bool((end != NOWHERE).all()))


def of_file(source: Source) -> Claims:
    """Return the claims of a record file, from its header."""
    size = os.fstat(source.fd).st_size
    if size < record_layout.PREFIX.size:
        raise TruncatedError(
            f"{source.path}: the file has {size} bytes, too few to hold any record; "
            "use another copy"
        )
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
    return recounted or claims or _hopeless(source, crc, n, size)


def _is_mostly_there(source: Source, size: int) -> bool:
    """Return True if holes are at most half of a header.

    Holes take no disk space, but would take memory here. Some are accepted, because rescue tools
    leave holes where a disk could not be read.
    """
    at = holes = 0
    while at < size:
        data = min(next_data(source.fd, at), size)
        holes += data - at
        at = data
        if at < size:
            at = next_hole(source.fd, at)
    return 2 * holes <= size


def _known(claims: Claims) -> int:
    """Return the number of records that have a known start."""
    return int(np.count_nonzero(claims.begin != NOWHERE))


def _sensible(claims: Claims) -> bool:
    return _known(claims) > len(claims) // 2


def _hopeless(source: Source, crc: int, n: int, size: int) -> Claims:
    """Raise the error that explains why no record can be found."""
    path = source.path
    refuse_other_formats(source)
    if crc == 0 and n == 0:  # the message of `parse_prefix` would recommend salvage itself
        raise UnfinishedError(
            f"{path}: never finished, or its header is lost: the header is all zeros, and no "
            "record can be found; restore a copy, or write the file again"
        )
    if 0 <= n <= record_layout.MAX_RECORDS:  # likewise for an impossible count
        record_layout.parse_prefix(path, record_layout.PREFIX.pack(crc, n), size)
    raise NotFFRecordError(
        f"{path}: not an FFRecord file, or its header is destroyed; check the name or use "
        "another copy"
    )


def _recounted(source: Source, crc: int, size: int, *, proof: bool) -> Claims | None:
    """Return the claims of the header with another count of records, or None.

    With `proof`, the header's checksum must be right with that count. Without it, plausible offsets
    are enough, because the checksums of the records are compared later.
    """
    sensible: Claims | None = None
    for n in _guessed_counts(source, size):
        guess = _from_header(source, n, crc, size)
        if guess.whole:
            return guess
        if sensible is None and _sensible(guess):
            sensible = guess
    return None if proof else sensible


def _guessed_counts(source: Source, size: int) -> Iterator[int]:
    """Yield counts of records that the first offset confirms.

    The count determines both the position of the first offset and the end of the header. First come
    counts where the first record starts right after the header, then counts with a gap in between.
    """
    words = np.frombuffer(source.read_bytes(0, min(size, SCANNED) // 4 * 4), "<u4")[3:]
    if len(words) < 2:
        return
    offsets = words[:-1].astype(np.int64) | words[1:].astype(np.int64) << 32
    gaps = (
        offsets - record_layout.header_size(0) - record_layout.PER_RECORD * np.arange(len(offsets))
    )
    fitting = (gaps >= 0) & (gaps <= MOST_GAP) & (offsets <= size)
    fitting[0] = False  # a count of 0 gives no records
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
    # Also for an intact header: if its offsets decrease, it is forged and its records overlap.
    kept = _not_decreasing(offsets, record_layout.header_size(n), FARTHEST if whole else size)
    known[kept] = offsets[kept]
    # If the file was truncated before its last record, that record is taken as empty.
    end = np.append(known[1:], max(size, int(known[-1]))) if n else known
    return Claims(known, end, checksums, whole, crc, record_layout.header_size(n))


def _not_decreasing(offsets: Ints, lowest: int, highest: int) -> list[int]:
    """Return the positions of the longest non-decreasing subsequence of the offsets in range."""
    inside = np.flatnonzero((offsets >= lowest) & (offsets <= highest))
    values = offsets[inside]
    if (values[1:] >= values[:-1]).all():
        return list(inside.tolist())
    tails: list[int] = []  # the smallest last value of a chain, by the length of the chain
    places: list[int] = []  # the positions of these values
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
    """Return where each record begins in `data`, found by its checksum; None if one is not found.

    The records must fill `data` exactly. The last record takes the rest, so its checksum shows
    whether an earlier one matched by chance.
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
