"""Bytes and name of the journal of an unfinished file. docs/format.md is the specification.

The journal has the end and the checksum of each record that is on disk. All numbers are little
endian:

    0         8         16        24        32        36      40         48        52      64
    +---------+---------+---------+---------+---------+-------+----------+---------+-------+- - -
    | magic   | n   i64 | begin   | id      | crc u32 | zeros | settled  | crc u32 | zeros | entries
    |         | or -1   | i64     | u64     |         |       | i64      |         |       |
    +---------+---------+---------+---------+---------+-------+----------+---------+-------+- - -

- An entry is `end i64 | crc u32 | check u32`, 16 bytes. Record i begins where record i-1 ends,
  the first record at `begin`.
- The crc at byte 32 covers the first 32 bytes. It is the start value of all other checksums, so
  that bytes of another journal are not taken for a part of this one. The crc at byte 48 covers the
  8 bytes of `settled`. An entry's `check` covers its number (i64) and its first 12 bytes.
- An entry is written when its record is on disk. The first `settled` entries are certain to be on
  disk, so an error in one of those is damage. A later entry may be wrong because of a crash.
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
    """Return the path of the file that holds the records of an unfinished `target`."""
    folder, name = os.path.split(target)
    raw = os.fsencode(name)
    if len(raw) > _LONGEST:  # a file system allows 255 bytes, and the endings need some
        name = f"{os.fsdecode(raw[:_LONGEST])}.{crc32(raw):08x}"
    return os.path.join(folder, f".{name}.partial")


def journal_path(partial: str) -> str:
    return f"{partial}.journal"


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """End of a record in its file, and the record's CRC-32."""

    end: int
    crc: int


@dataclass(frozen=True, slots=True)
class ParsedJournal:
    """A parsed journal. `entries` begins with entry `first`; None is an entry with a bad check."""

    n: int | None
    begin: int
    crc: int
    settled: int
    entries: list[JournalEntry | None]
    first: int = 0


def header(n: int | None, begin: int, identity: int) -> tuple[bytes, int]:
    """Return a journal's header, and its crc, which is the seed of all other checksums."""
    fields = _HEADER.pack(MAGIC, UNKNOWN if n is None else n, begin, identity)
    crc = crc32(fields)
    return fields + _CRC.pack(crc), crc


def entry_at(number: int) -> int:
    """Return the offset of an entry in its journal."""
    return ENTRIES_AT + number * _ENTRY.size


def count_in(size: int) -> int:
    """Return the number of whole entries in `size` bytes."""
    return size // _ENTRY.size


def parse(raw: bytes, first: int = 0) -> ParsedJournal | None:
    """Parse a journal; return None if its header is incomplete or damaged.

    Args:
        raw: the header, directly followed by the entries from number `first` on.
        first: number of the first entry in `raw`.
    """
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
    """Return `settled`; 0 (no entry is certain) if it is missing or its checksum is wrong."""
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
    """Return the entries up to the first one that is damaged or whose record is not whole.

    A problem that a crash cannot explain (in one of the first `settled` entries) raises an error.

    Args:
        partial: path of the file with the records, for messages.
        content: the journal.
        begin: offset of record `content.first` in that file.
        size: bytes of that file.
        verify: called with each record's number, begin and entry; raises `SampleChecksumError` if
            the record is damaged.
    """
    found: list[JournalEntry] = []
    there = content.first + len(content.entries)
    for number in range(content.first, max(there, content.settled)):
        entry = content.entries[number - content.first] if number < there else None
        try:
            if entry is None or entry.end < begin:
                where = journal_path(partial)
                raise StructureError(
                    f"{where}: the entry of record {number} is damaged; save the whole records "
                    f"with `ffrecord salvage {partial} OUT`"
                )
            if begin < entry.end and size < entry.end:
                raise TruncatedError(
                    f"{partial}: truncated: record {number} ends at byte {entry.end}, but the file "
                    f"has {size} bytes; save the whole records with `ffrecord salvage`"
                )
            verify(number, begin, entry)
        except (StructureError, TruncatedError, SampleChecksumError):
            if number < content.settled:
                raise
            break
        found.append(entry)
        begin = entry.end
    return found


def settled(count: int, seed: int) -> bytes:
    """Return the bytes of `settled`: the first `count` entries are certain to be on disk."""
    fields = _SETTLED.pack(count)
    return fields + _CRC.pack(crc32(fields, seed))


def entries(ends: Sequence[int], checksums: Sequence[int], first: int, seed: int) -> bytes:
    """Return the bytes of entries, which are numbered from `first` on."""
    raw = bytearray()
    for number, (end, crc) in enumerate(zip(ends, checksums, strict=True), first):
        raw += _ENTRY.pack(end, crc, crc32(_CHECKED.pack(number, end, crc), seed))
    return bytes(raw)
