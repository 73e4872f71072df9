"""The journal of an unfinished file: its name, where each record that is on disk ends, and its
checksum.

Little endian:

    0         8         16        24        32        36      40         48        52      64
    +---------+---------+---------+---------+---------+-------+----------+---------+-------+- - -
    | magic   | n   i64 | begin   | id      | crc u32 | zeros | settled  | crc u32 | zeros | entries
    |         | or -1   | i64     | u64     |         |       | i64      |         |       |
    +---------+---------+---------+---------+---------+-------+----------+---------+-------+- - -

- An entry is `end i64 | crc u32 | check u32`, 16 bytes: record i begins where record i-1 ends, the
  first at `begin`.
- The header's crc is of its first 32 bytes. The other two kinds begin with it, so that nothing of
  another journal is taken for a part of this one: settled's is of its 8 bytes, an entry's `check`
  of its number (i64) and its first 12 bytes.
- An entry is written when its record is on disk. The first `settled` entries are on disk for
  certain: what is wrong with one of those is damage. A later one may be wrong because of a crash.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ffrecord.errors import SampleChecksumError, StructureError, TruncatedError
from ffrecord.format.checksum import crc32

MAGIC = b"FFRPART1"
_HEADER = struct.Struct("<8sqqQ")
_CRC = struct.Struct("<I4x")
_SETTLED = struct.Struct("<q")
SETTLED_AT = _HEADER.size + _CRC.size
_ENTRY = struct.Struct("<qII")
_CHECKED = struct.Struct("<qqI")
ENTRIES_AT = 64
UNKNOWN = -1
_LONGEST = 200


def partial_path(target: str) -> str:
    """Where the records of an unfinished `target` are; the same for every writer."""
    folder, name = os.path.split(target)
    raw = os.fsencode(name)
    if len(raw) > _LONGEST:  # a name may have 255 bytes
        name = f"{os.fsdecode(raw[:_LONGEST])}.{crc32(raw):08x}"
    return os.path.join(folder, f".{name}.partial")


def journal_path(partial: str) -> str:
    return f"{partial}.journal"


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """Where a record ends, and its CRC-32."""

    end: int
    crc: int


@dataclass(frozen=True, slots=True)
class ParsedJournal:
    """A parsed journal. `entries`, from number `first` on, has None for those whose check does not
    hold."""

    n: int | None
    begin: int
    crc: int
    settled: int
    entries: list[JournalEntry | None]
    first: int = 0


def header(n: int | None, begin: int, identity: int) -> tuple[bytes, int]:
    """A journal's header, and its crc, with which those of its entries begin."""
    fields = _HEADER.pack(MAGIC, UNKNOWN if n is None else n, begin, identity)
    crc = crc32(fields)
    return fields + _CRC.pack(crc), crc


def entry_at(number: int) -> int:
    """The byte of a journal that an entry begins at."""
    return ENTRIES_AT + number * _ENTRY.size


def count_in(size: int) -> int:
    """How many whole entries there are in so many bytes."""
    return size // _ENTRY.size


def parse(raw: bytes, first: int = 0) -> ParsedJournal | None:
    """Parse a journal, of which the entries in front of number `first` were left out; None if not
    even its header is whole."""
    fields = raw[: _HEADER.size]
    if len(raw) < SETTLED_AT or not fields.startswith(MAGIC):
        return None
    (crc,) = _CRC.unpack_from(raw, _HEADER.size)
    _, n, begin, _ = _HEADER.unpack(fields)
    if crc32(fields) != crc or n < UNKNOWN or begin < 0:
        return None
    count = count_in(max(0, len(raw) - ENTRIES_AT))
    entries = [_entry(raw, entry_at(at), first + at, crc) for at in range(count)]
    return ParsedJournal(
        None if n == UNKNOWN else n, begin, crc, _settled(raw, crc), entries, first
    )


def _entry(raw: bytes, at: int, number: int, seed: int) -> JournalEntry | None:
    end, crc, check = _ENTRY.unpack_from(raw, at)
    return JournalEntry(end, crc) if crc32(_CHECKED.pack(number, end, crc), seed) == check else None


def _settled(raw: bytes, seed: int) -> int:
    """0 if it cannot be trusted: then nothing is certain."""
    fields = raw[SETTLED_AT : SETTLED_AT + _SETTLED.size + _CRC.size]
    if len(fields) < _SETTLED.size + _CRC.size:
        return 0
    count, crc = _SETTLED.unpack_from(fields)[0], _CRC.unpack_from(fields, _SETTLED.size)[0]
    return int(count) if crc == crc32(fields[: _SETTLED.size], seed) else 0


def whole(
    partial: str,
    content: ParsedJournal,
    begin: int,
    size: int,
    verify: Callable[[int, int, JournalEntry], None] = lambda number, begin, entry: None,
) -> list[JournalEntry]:
    """The entries up to the first that is not whole, or whose record is not in the `size` bytes of
    the file at `partial`. The first of them begins at byte `begin`; `verify` is called with each
    one's number and begin, and raises SampleChecksumError if the record is damaged.

    If a crash cannot explain what is wrong, it is damage, and an error.
    """
    found: list[JournalEntry] = []
    there = content.first + len(content.entries)
    for number in range(content.first, max(there, content.settled)):
        entry = content.entries[number - content.first] if number < there else None
        try:
            if entry is None or entry.end < begin:
                where = journal_path(partial)
                raise StructureError(f"{where}: the entry of record {number} is damaged")
            if begin < entry.end and size < entry.end:
                raise TruncatedError(f"{partial}: truncated: record {number} ends at {entry.end}")
            verify(number, begin, entry)
        except (StructureError, TruncatedError, SampleChecksumError):
            if number < content.settled:
                raise
            break
        found.append(entry)
        begin = entry.end
    return found


def settled(count: int, seed: int) -> bytes:
    """The bytes that say that the first `count` entries are on disk for certain."""
    fields = _SETTLED.pack(count)
    return fields + _CRC.pack(crc32(fields, seed))


def entries(ends: Sequence[int], checksums: Sequence[int], first: int, seed: int) -> bytes:
    """The bytes of entries from number `first` on."""
    raw = bytearray()
    for number, (end, crc) in enumerate(zip(ends, checksums, strict=True), first):
        raw += _ENTRY.pack(end, crc, crc32(_CHECKED.pack(number, end, crc), seed))
    return bytes(raw)
