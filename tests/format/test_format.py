"""Stored bytes of record files: every file ever written must stay readable."""

from __future__ import annotations

import struct
import warnings
import zlib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ffrecord import FileReader, FileWriter, LegacyFileWarning, StructureError, TruncatedError
from tests.support import handmade

MODES = ["auto", "aio", "buffered", "mmap"]

# Three records: b"abc", b"" and b"\x00\xff\x10\x80". Written out, not computed.
STORED = bytes.fromhex(
    "fcea1a07"  # CRC-32 of everything that follows, up to the end of the offsets
    "0300000000000000"  # N = 3
    "c2412435"  # CRC-32 of b"abc" is 0x352441c2
    "00000000"  # CRC-32 of b""
    "807aa638"
    "3000000000000000"  # record 0 starts at 48
    "3300000000000000"  # record 1 at 51
    "3300000000000000"  # record 2 at 51
    "616263"
    "00ff1080"
)
STORED_RECORDS = [b"abc", b"", b"\x00\xff\x10\x80"]
STORED_EMPTY = bytes.fromhex("69df22650000000000000000")


@pytest.mark.parametrize("mode", MODES)
def test_stored_bytes_are_read(mode: str, tmp_path: Path) -> None:
    path = tmp_path / "stored.ffr"
    path.write_bytes(STORED)
    with FileReader(path, mode=mode) as reader:
        assert reader.n == 3
        assert handmade.as_bytes(reader.read([0, 1, 2])) == STORED_RECORDS
        assert reader.get_offsets(0).tolist() == [48, 51, 51, 55]
        assert reader.get_checksums(0).tolist() == [0x352441C2, 0, 0x38A67A80]


def test_written_files_equal_stored_bytes(tmp_path: Path) -> None:
    path = tmp_path / "written.ffr"
    with FileWriter(path, 3) as writer:
        writer.write(STORED_RECORDS)
    assert path.read_bytes() == STORED


def test_the_stored_bytes_follow_the_specification() -> None:
    assert handmade.record_bytes(STORED_RECORDS) == STORED
    assert handmade.record_bytes([]) == STORED_EMPTY


@pytest.mark.parametrize("n", [0, None])
def test_a_file_without_records_is_twelve_bytes(n: int | None, tmp_path: Path) -> None:
    path = tmp_path / "empty.ffr"
    FileWriter(path, n).close()
    assert path.read_bytes() == STORED_EMPTY
    with FileReader(path) as reader:
        assert reader.n == 0
        assert list(reader) == []


@settings(max_examples=60)
@given(st.lists(st.binary(max_size=300), max_size=20))
def test_written_files_equal_bytes_made_by_hand(tmp_path: Path, records: list[bytes]) -> None:
    path = tmp_path / "written.ffr"
    with FileWriter(path, len(records)) as writer:
        writer.write(records)
    assert path.read_bytes() == handmade.record_bytes(records)


@settings(max_examples=60)
@given(st.lists(st.binary(max_size=300), max_size=20), st.integers(0, 9000))
def test_files_made_by_hand_are_read_in_every_mode(
    tmp_path: Path, records: list[bytes], gap: int
) -> None:
    path = handmade.write_records(tmp_path / "handmade.ffr", records, gap)
    for mode in MODES:
        with FileReader(path, mode=mode) as reader:
            assert handmade.as_bytes(reader.read(range(len(records)))) == records
            assert handmade.as_bytes(reader) == records


@settings(max_examples=60)
@given(st.lists(st.binary(max_size=300), max_size=20))
def test_a_file_of_unknown_count_is_valid_and_has_the_same_records(
    tmp_path: Path, records: list[bytes]
) -> None:
    """A gap may follow the header; all other bytes are specified."""
    path = tmp_path / "unknown.ffr"
    with FileWriter(path) as writer:
        writer.write(records)
    data = path.read_bytes()
    gap = len(data) - 12 - 12 * len(records) - sum(map(len, records))
    assert gap >= 0
    assert data[: 12 + 12 * len(records)] == handmade.header_bytes(records, gap)
    assert data[len(data) - sum(map(len, records)) :] == b"".join(records)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("gap", [1, 4096, 100_000])
def test_a_gap_after_the_header_is_legal(gap: int, mode: str, tmp_path: Path) -> None:
    path = handmade.write_records(tmp_path / "gap.ffr", STORED_RECORDS, gap)
    with FileReader(path, mode=mode) as reader:
        assert handmade.as_bytes(reader.read(range(3))) == STORED_RECORDS
        assert reader.get_offsets(0)[0] == 48 + gap


def test_bytes_after_the_header_of_an_empty_file_are_ignored(tmp_path: Path) -> None:
    path = tmp_path / "empty.ffr"
    path.write_bytes(STORED_EMPTY + b"room to append")
    with FileReader(path) as reader:
        assert reader.n == 0


@pytest.mark.parametrize("mode", MODES)
def test_a_file_from_before_header_checksums_warns_and_is_read(mode: str, tmp_path: Path) -> None:
    path = tmp_path / "legacy.ffr"
    path.write_bytes(bytes(4) + STORED[4:])
    with pytest.warns(LegacyFileWarning, match="legacy.ffr"):
        reader = FileReader(path, mode=mode)
    assert handmade.as_bytes(reader.read(range(3))) == STORED_RECORDS
    with pytest.warns(LegacyFileWarning, match="legacy.ffr"):
        reader.validate()
    reader.close()


def test_a_legacy_warning_points_at_the_line_that_opened_the_file(tmp_path: Path) -> None:
    path = tmp_path / "legacy.ffr"
    path.write_bytes(bytes(4) + STORED[4:])
    with pytest.warns(LegacyFileWarning) as caught:
        FileReader(path).close()
    assert caught[0].filename == __file__


def test_a_legacy_file_is_checked_in_every_other_way(tmp_path: Path) -> None:
    path = tmp_path / "legacy.ffr"
    broken = bytearray(bytes(4) + STORED[4:])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LegacyFileWarning)
        broken[32:40] = struct.pack("<q", 2)
        path.write_bytes(broken)
        with pytest.raises(StructureError, match="record 1"):
            FileReader(path)
        broken[32:40] = struct.pack("<q", 51)
        broken[40:48] = struct.pack("<q", 1000)
        path.write_bytes(broken)
        with pytest.raises(TruncatedError, match="record 2"):
            FileReader(path)


def test_the_header_checksum_covers_all_but_itself() -> None:
    assert struct.unpack("<I", STORED[:4])[0] == zlib.crc32(STORED[4:48])
