"""Targets: record files, salvage, and the journals of unfinished files."""

from __future__ import annotations

import contextlib
import os
import struct
import warnings
import zlib
from itertools import pairwise

from ffrecord import FileReader, FileWriter
from ffrecord.disk.source import Source
from ffrecord.errors import FFRecordError, LegacyFileWarning, SampleChecksumError
from ffrecord.format import journal
from ffrecord.records import broken_header
from ffrecord.records.opening import read_header
from ffrecord.records.salvage import _Findings
from tests.robustness.fuzzing import reference
from tests.robustness.fuzzing.scratch import Scratch, folder
from tests.robustness.fuzzing.target import Target
from tests.support import handmade

RECORDS = (b"one", b"", b"three" * 9, b"\0" * 20, b"", b"last")
FILES = (
    handmade.record_bytes(RECORDS),
    handmade.record_bytes(RECORDS, gap=40),
    handmade.record_bytes([]),
    handmade.record_bytes([b"alone"]),
    bytes(4) + handmade.record_bytes(RECORDS)[4:],
    bytes(12) + b"records that nobody finished",
)


# ---- the header ------------------------------------------------------------------------------


def sealed(data: bytes) -> bytes:
    """Return a file with a correct header checksum, if its count is possible."""
    if len(data) < 12:
        return data
    crc, n = struct.unpack_from("<Iq", data)
    size = 12 + 12 * n
    if not 0 <= n <= len(data) or size > len(data) or not crc:
        return data
    return struct.pack("<I", zlib.crc32(data[4:size])) + data[4:]


def sealed_with_records(data: bytes) -> bytes:
    """Return a file with correct checksums of the header and of all records inside the file."""
    found = reference.header(sealed(data))
    if found is None:
        return sealed(data)
    checksums, offsets = found
    changed = bytearray(data)
    for i in range(len(checksums)):
        struct.pack_into("<I", changed, 12 + 4 * i, zlib.crc32(data[offsets[i] : offsets[i + 1]]))
    return sealed(bytes(changed))


def header() -> Target:
    scratch = Scratch(folder() / "file.ffr")
    source = Source(scratch.path, direct=False)

    def run(data: bytes) -> str:
        scratch.fill(data)
        expected = reference.header(data)
        try:
            found = read_header(source, check=True)
        except FFRecordError:
            assert expected is None, "a valid header is refused"
            raise
        assert expected is not None, "an invalid header is accepted"
        assert (found.checksums.tolist(), found.offsets.tolist()) == expected
        return "legacy" if found.legacy else "whole"

    return Target("header", run, FILES, sealed)


def reading() -> Target:
    """Fuzz reading: each record is right, or an error names it."""
    scratch = Scratch(folder() / "file.ffr")
    warnings.simplefilter("ignore", LegacyFileWarning)

    def run(data: bytes) -> str:
        expected = reference.header(data)
        with FileReader(scratch.fill(data), mode="buffered") as reader:
            assert expected is not None, "an invalid file is accepted"
            checksums, offsets = expected
            due = [data[begin:end] for begin, end in pairwise(offsets)]
            damaged = [i for i, each in enumerate(due) if zlib.crc32(each) != checksums[i]]
            if not damaged:
                assert handmade.as_bytes(reader.read(range(reader.n))) == due
                return "whole"
            for i, content in enumerate(due):
                with contextlib.suppress(SampleChecksumError):
                    assert i not in damaged or reader.read_one(i).tobytes() == b"nothing"
                    assert reader.read_one(i).tobytes() == content
            return "damaged records"

    return Target("reading", run, FILES, sealed_with_records)


# ---- salvage ---------------------------------------------------------------------------------


def salvage() -> Target:
    """Fuzz salvage: saved records match their checksums, lie in the file and do not overlap."""
    scratch = Scratch(folder() / "file.ffr")
    source = Source(scratch.path, direct=False)

    def run(data: bytes) -> str:
        scratch.fill(data)
        found = _Findings(source, broken_header.of_file(source))
        found.check(lambda doing, done, total: None)
        count, end = len(found.checksums), 0
        kept = [i for i in range(count) if i not in found.lost]
        for i in kept:
            begin, until = int(found.begin[i]), int(found.end[i])
            assert end <= begin <= until
            assert until <= len(data) or begin == until
            assert zlib.crc32(data[begin:until]) == found.checksums[i]
            end = until
        expected = reference.header(data)
        if expected is not None and found.claims.crc:
            whole = [i for i in range(count) if _holds(data, *expected, i)]
            assert [i for i in kept if i in whole] == whole
        found.has_index()
        return "all kept" if len(kept) == count else "some kept" if kept else "none kept"

    return Target("salvage", run, FILES, sealed)


def _holds(data: bytes, checksums: list[int], offsets: list[int], record: int) -> bool:
    return zlib.crc32(data[offsets[record] : offsets[record + 1]]) == checksums[record]


# ---- journals --------------------------------------------------------------------------------

BODY = b"".join(RECORDS)


def journal_bytes(settled: int, n: int | None, begin: int, count: int = len(RECORDS)) -> bytes:
    """Return a journal of RECORDS, made by hand."""
    fields = struct.pack("<8sqqQ", b"FFRPART1", -1 if n is None else n, begin, 0x1234567890)
    raw, end = bytearray(fields + bytes(32)), begin
    struct.pack_into("<q", raw, 40, settled)
    for record in RECORDS[:count]:
        end += len(record)
        raw += struct.pack("<qII", end, zlib.crc32(record), 0)
    return sealed_journal(bytes(raw))


def sealed_journal(data: bytes) -> bytes:
    if len(data) < 56:
        return data
    changed = bytearray(data)
    crc = zlib.crc32(data[:32])
    struct.pack_into("<I", changed, 32, crc)
    struct.pack_into("<I", changed, 48, zlib.crc32(data[40:48], crc))
    for number, at in enumerate(range(64, len(data) - 15, 16)):
        checked = struct.pack("<q", number) + data[at : at + 12]
        struct.pack_into("<I", changed, at + 12, zlib.crc32(checked, crc))
    return bytes(changed)


JOURNALS = (
    journal_bytes(2, None, 1 << 20),
    journal_bytes(6, None, 1 << 20),
    journal_bytes(0, 6, 84),
    journal_bytes(3, 6, 84, count=4),
    journal_bytes(0, None, 1 << 20, count=0),
    journal_bytes(5, 6, 84)[:60],
)


def journals() -> Target:
    """Fuzz journals: the parser and salvage read them as docs/format.md says."""

    def run(data: bytes) -> str:
        expected, found = reference.journal(data), journal.parse(data)
        assert (expected is None) == (found is None)
        claimed = broken_header.of_partial("file", data)
        assert expected is not None
        assert found is not None
        assert (-1 if found.n is None else found.n, found.begin) == (expected.n, expected.begin)
        entries = [None if each is None else (each.end, each.crc) for each in found.entries]
        assert entries == expected.entries
        assert found.settled == expected.settled
        for i, entry in enumerate(expected.entries[: len(claimed)]):
            due = (broken_header.NOWHERE, 0) if entry is None else entry
            assert (claimed.end[i], claimed.checksums[i]) == due
        return "whole" if claimed.whole else "damaged entries"

    return Target("journal", run, JOURNALS, sealed_journal)


def resuming() -> Target:
    """Fuzz resuming: a writer continues only with records that the journal and the file prove."""
    top = folder()
    target = str(top / "file")
    log, partial = Scratch(top / ".file.partial.journal"), top / ".file.partial"
    content = bytes(84) + BODY + bytes((1 << 20) - 84 - len(BODY)) + BODY

    def run(data: bytes) -> str:
        partial.write_bytes(content)
        log.fill(data)
        parsed = reference.journal(data)
        n = parsed.n if parsed is not None and 0 <= parsed.n <= 1 << 40 else None
        try:
            with FileWriter(target, n, resumable=True) as writer:
                count = writer.count
                writer.suspend()
        finally:
            after = os.path.getsize(partial)
        assert parsed is not None, "resumed without a journal"
        whole, begin = [], parsed.begin
        for entry in parsed.entries:
            if entry is None or not begin <= entry[0]:
                break
            inside = entry[0] <= len(content) or begin == entry[0]
            if not inside or zlib.crc32(content[begin : entry[0]]) != entry[1]:
                break
            whole.append(entry)
            begin = entry[0]
        assert count == len(whole) >= parsed.settled
        assert after == begin
        return "went on" if count else "began"

    return Target("resuming", run, JOURNALS, sealed_journal)
