"""`ffrecord.format.records` against headers packed with `struct`."""

from __future__ import annotations

import itertools
import struct
import zlib

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ffrecord.errors import (
    HeaderChecksumError,
    NotFFRecordError,
    StructureError,
    TruncatedError,
    UnfinishedError,
)
from ffrecord.format import records as record_layout
from ffrecord.text import for_shell
from tests.support import handmade

RECORDS = st.lists(st.binary(max_size=40), max_size=30)


def raw(data: bytes) -> npt.NDArray[np.uint8]:
    """Return a header as the reader has it: in memory from `header_memory`."""
    memory = record_layout.header_memory((len(data) - 12) // 12)
    memory[: len(data)] = np.frombuffer(data, np.uint8)
    return memory


def parse(data: bytes, size: int | None = None) -> record_layout.Header:
    crc = zlib.crc32(data[4:])
    return record_layout.parse("f.ffr", raw(data), len(data) if size is None else size, crc)


@given(st.integers(0, record_layout.MAX_RECORDS))
def test_header_size_is_the_size_of_the_packed_fields(n: int) -> None:
    assert record_layout.header_size(n) == struct.calcsize("<Iq") + n * struct.calcsize("<Iq")


@given(RECORDS, st.integers(0, 5000))
def test_parse_returns_the_packed_header(records: list[bytes], gap: int) -> None:
    data = handmade.record_bytes(records, gap)
    header = parse(handmade.header_bytes(records, gap), len(data))
    assert header.n == len(records)
    assert header.crc == struct.unpack("<I", data[:4])[0]
    assert header.checksums.tolist() == [zlib.crc32(record) for record in records]
    assert len(header.offsets) == len(records) + 1
    ends = header.offsets.tolist()
    assert [data[a:b] for a, b in itertools.pairwise(ends)] == records


@given(RECORDS, st.integers(0, 5000))
def test_body_and_seal_build_the_packed_header(records: list[bytes], gap: int) -> None:
    expected = handmade.header_bytes(records, gap)
    sizes = [12 + 12 * len(records) + gap, *map(len, records)]
    body = record_layout.body(
        np.array([zlib.crc32(record) for record in records], np.uint32),
        np.cumsum(sizes[:-1] if records else [], dtype=np.int64),
    )
    assert record_layout.seal(zlib.crc32(body), body) == expected


def test_body_of_big_endian_arrays_is_little_endian() -> None:
    body = record_layout.body(np.array([1], ">u4"), np.array([24], ">i8"))
    assert body == struct.pack("<qIq", 1, 1, 24)


@pytest.mark.parametrize("n", range(6))
def test_the_parsed_arrays_are_aligned_views_of_the_memory(n: int) -> None:
    memory = raw(handmade.header_bytes([b"abc"] * n))
    header = record_layout.parse("f.ffr", memory, 12 + 15 * n, None)
    for array in (header.checksums, header.offsets):
        assert array.flags.aligned
        assert not array.size or np.shares_memory(array, memory)
    assert header.offsets.tolist() == [12 + 12 * n + 3 * i for i in range(n + 1)]


def test_a_count_that_changes_between_two_reads_is_an_error() -> None:
    memory = raw(handmade.header_bytes([b"abc", b"de"]))
    memory[4:12] = np.frombuffer(struct.pack("<q", 1), np.uint8)
    with pytest.raises(StructureError, match=r"f\.ffr: the header changed"):
        record_layout.parse("f.ffr", memory, 1000, None)


@pytest.mark.parametrize("length", range(12))
def test_a_file_shorter_than_the_prefix_is_truncated(length: int) -> None:
    with pytest.raises(TruncatedError, match=rf"f\.ffr: .* has {length} bytes"):
        record_layout.parse_prefix("f.ffr", b"\x01" * length, length)


@pytest.mark.parametrize("n", [-1, -(2**63), record_layout.MAX_RECORDS + 1, 2**63 - 1])
def test_an_impossible_count_means_another_kind_of_file(n: int) -> None:
    with pytest.raises(
        NotFFRecordError, match=r"f\.ffr: not an .*, or its header is damaged"
    ) as error:
        record_layout.parse_prefix("f.ffr", struct.pack("<Iq", 1, n), 2**62)
    assert "ffrecord.salvage_file saves its records" in str(error.value)
    assert "`ffrecord salvage` saves its records" in for_shell(error.value)
    assert str(n) not in str(error.value)


@pytest.mark.parametrize("n", [1, 1000, record_layout.MAX_RECORDS])
def test_more_records_than_the_file_has_room_for_mean_truncation(n: int) -> None:
    needed = 12 + 12 * n
    prefix = struct.pack("<Iq", 1, n)
    assert record_layout.parse_prefix("f.ffr", prefix, needed) == n
    message = f"{n} records needs {needed} bytes, but the file has {needed - 1};"
    with pytest.raises(TruncatedError, match=message):
        record_layout.parse_prefix("f.ffr", prefix, needed - 1)


def test_twelve_zeros_are_an_unfinished_file() -> None:
    with pytest.raises(UnfinishedError, match=r"f\.ffr"):
        record_layout.parse_prefix("f.ffr", bytes(12), 12)


def test_a_file_without_records_has_its_own_checksum() -> None:
    assert zlib.crc32(bytes(8)) == 0x6522DF69
    header = parse(struct.pack("<Iq", 0x6522DF69, 0))
    assert header.n == 0
    assert header.offsets.tolist() == [12]


def test_a_wrong_header_checksum_names_both_checksums() -> None:
    data = handmade.record_bytes([b"abc", b"de"])
    with pytest.raises(HeaderChecksumError) as caught:
        record_layout.parse("f.ffr", raw(data[:36]), len(data), 0x1234)
    assert "0x00001234" in str(caught.value)
    assert f"{struct.unpack('<I', data[:4])[0]:#010x}" in str(caught.value)


def test_without_a_computed_checksum_only_that_check_is_skipped() -> None:
    data = bytearray(handmade.record_bytes([b"abc", b"de"]))
    data[0] ^= 1
    assert record_layout.parse("f.ffr", raw(bytes(data[:36])), len(data), None).n == 2
    data[20:28] = struct.pack("<q", 3)
    with pytest.raises(StructureError):
        record_layout.parse("f.ffr", raw(bytes(data[:36])), len(data), None)


@pytest.mark.parametrize(
    ("offsets", "error", "message"),
    [
        ([47, 50, 55], StructureError, "record 0 starts at byte 47, inside the header of 48"),
        ([-1, 50, 55], StructureError, "record 0 starts at byte -1"),
        ([48, 50, 49], StructureError, "record 2 starts at byte 49, before record 1 at byte 50"),
        ([48, -50, 60], StructureError, "record 1 starts at byte -50, before record 0"),
        ([48, 50, 101], TruncatedError, "record 2 starts at byte 101, but the file has 100 bytes"),
        ([48, 2**63 - 1, 2**63 - 1], TruncatedError, "record 2 starts at byte 9223372036854775807"),
        ([101, 101, 101], TruncatedError, "the file has 100"),
    ],
)
def test_impossible_offsets_are_refused(
    offsets: list[int], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        parse(handmade.sealed(3, [0, 0, 0], offsets), 100)


def test_offsets_at_their_limits_are_accepted() -> None:
    header = parse(handmade.sealed(3, [0, 0, 0], [48, 48, 100]), 100)
    assert header.offsets.tolist() == [48, 48, 100, 100]


@given(st.lists(st.integers(0, 200), min_size=1, max_size=6), st.integers(0, 200))
def test_offsets_are_accepted_only_in_order_and_inside_the_file(
    offsets: list[int], size: int
) -> None:
    n = len(offsets)
    data = handmade.sealed(n, [0] * n, offsets)
    fine = 12 + 12 * n <= offsets[0] and offsets == sorted(offsets) and offsets[-1] <= size
    if fine:
        assert parse(data, size).offsets.tolist() == [*offsets, size]
    else:
        with pytest.raises((StructureError, TruncatedError)):
            parse(data, size)


def test_a_header_without_checksum_is_legacy_and_stays_checked() -> None:
    good = parse(bytes(4) + handmade.sealed(1, [7], [24])[4:], 30)
    assert good.legacy
    assert good.checksums.tolist() == [7]
    assert not parse(handmade.sealed(1, [7], [24]), 30).legacy
    with pytest.raises(StructureError):
        parse(bytes(4) + handmade.sealed(1, [7], [23])[4:], 30)
