"""Compressed values: sizes, dictionaries, and frames that are damaged or claim too much."""

from __future__ import annotations

import gzip
import struct
import threading
import tracemalloc
import zlib
from pathlib import Path

import lz4.frame
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from ffrecord import DatasetReader, DatasetWriter, DecodeError, EncodeError, FileReader, SpecError
from ffrecord.dataset import compression
from ffrecord.dataset.compression import Compression, compressor, decompressor, parse_compression

KINDS = ["zstd", "zstd:1", "zstd:-7", "zstd:19", "gzip", "gzip:0", "gzip:9", "lz4", "lz4:9"]


def back(text: str, record: bytes, dictionary: bytes = b"") -> bytes:
    return bytes(decompressor(parse_compression(text), dictionary)(memoryview(record)))


@given(st.binary(max_size=300) | st.binary(max_size=9).map(lambda part: part * 5000))
@pytest.mark.parametrize("text", KINDS)
def test_values_round_trip(text: str, value: bytes) -> None:
    assert back(text, compressor(parse_compression(text))(value)) == value


def test_other_programs_unpack_the_frames() -> None:
    value = b"some text, " * 1000
    packed = {name: compressor(Compression(name, 3))(value) for name in ("zstd", "gzip", "lz4")}
    assert gzip.decompress(packed["gzip"]) == value
    assert zstandard.ZstdDecompressor().decompress(packed["zstd"]) == value
    assert lz4.frame.decompress(packed["lz4"]) == value
    assert all(len(record) < 500 for record in packed.values())


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("zstd", Compression("zstd", 3)),
        ("zstd:dict", Compression("zstd", 3, True)),
        ("zstd:19:dict", Compression("zstd", 19, True)),
        ("gzip", Compression("gzip", 6)),
        ("lz4:16", Compression("lz4", 16)),
    ],
)
def test_a_compression_is_parsed(text: str, parsed: Compression) -> None:
    assert parse_compression(text) == parsed


@pytest.mark.parametrize(
    "text",
    ["", "brotli", "zstd:", "zstd:23", "zstd:x", "gzip:10", "gzip:dict", "lz4:6:dict",
     "zstd:dict:3", "zstd:99999999999999999999", "ZSTD", "zstd:３"],
)  # fmt: skip
def test_an_unknown_compression_is_an_error(text: str) -> None:
    with pytest.raises(SpecError):
        parse_compression(text)


VALUE = bytes(range(256)) * 40


def frames(text: str) -> dict[str, bytes]:
    """Return damaged copies of a frame."""
    whole = compressor(parse_compression(text))(VALUE)
    return {
        "empty": b"",
        "its first bytes": whole[:5],
        "cut in half": whole[: len(whole) // 2],
        "without its last byte": whole[:-1],
        "with one byte more": whole + b"\x00",
        "twice": whole + whole,
        "of zeros": b"\x00" * 40,
    }


@pytest.mark.parametrize("how", list(frames("zstd")))
@pytest.mark.parametrize("text", ["zstd", "gzip", "lz4"])
def test_a_damaged_frame_is_an_error(text: str, how: str) -> None:
    with pytest.raises(DecodeError):
        back(text, frames(text)[how])


@pytest.mark.parametrize("text", ["zstd", "gzip", "lz4"])
def test_a_damaged_frame_does_not_affect_the_next_one(text: str) -> None:
    decompress = decompressor(parse_compression(text))
    whole = compressor(parse_compression(text))(VALUE)
    for damaged in frames(text).values():
        with pytest.raises(DecodeError):
            decompress(memoryview(damaged))
        assert decompress(memoryview(whole)) == VALUE


def test_a_checksum_in_an_lz4_frame_is_verified() -> None:
    frame = lz4.frame.compress(VALUE, content_checksum=True)
    assert back("lz4", frame) == VALUE
    with pytest.raises(DecodeError, match="contentChecksum"):
        back("lz4", frame[:-1] + bytes([frame[-1] ^ 1]))


ONE_TIB = 1 << 40


def zstd_bomb() -> bytes:
    """Return a frame that claims 1 TiB, with a block that repeats a byte."""
    return struct.pack("<IBQ", 0xFD2FB528, 0xE0, ONE_TIB) + b"\x03\x00\x10" + b"a"


def gzip_bomb(claim: int) -> bytes:
    """Return a gzip member that unpacks to 64 MiB but claims another size."""
    packed = gzip.compress(bytes(64 << 20), 9)
    return packed[:-4] + struct.pack("<I", claim)


def lz4_bomb() -> bytes:
    return bytes(lz4.frame.LZ4FrameCompressor().begin(source_size=ONE_TIB)) + b"\x00" * 4


def lz4_understatement() -> bytes:
    """Return a frame that claims 100 bytes and has blocks of 64 MiB."""
    stream = lz4.frame.LZ4FrameCompressor()
    begin = bytes(stream.begin(source_size=100))
    return begin + bytes(stream.compress(bytes(64 << 20))) + b"\x00" * 4


UNCLAIMED = zstandard.ZstdCompressor(write_content_size=False)

BOMBS = {
    "zstd that claims a TiB": ("zstd", zstd_bomb()),
    "gzip that claims 4 GiB": ("gzip", gzip_bomb(0xFFFFFFFF)),
    "gzip that claims little": ("gzip", gzip_bomb(100)),
    "lz4 that claims a TiB": ("lz4", lz4_bomb()),
    "lz4 that claims little": ("lz4", lz4_understatement()),
    "zstd without a claim": ("zstd", UNCLAIMED.compress(VALUE)),
    "lz4 without a claim": ("lz4", lz4.frame.compress(bytes(64 << 20), store_size=False)),
}  # fmt: skip


@pytest.mark.parametrize("what", BOMBS)
def test_a_bomb_is_an_error_and_allocates_no_memory(what: str) -> None:
    text, record = BOMBS[what]
    back("gzip", compressor(Compression("gzip", 1))(b"x"))
    tracemalloc.start()
    try:
        with pytest.raises(DecodeError):
            back(text, record)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 8 << 20


def test_a_value_beyond_the_limit_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compression, "LARGEST_VALUE", 1000)
    spec = {"plain": "bytes+zstd", "trained": "bytes+zstd:dict"}
    with DatasetWriter(tmp_path / "new", spec) as writer:
        writer.append({"plain": bytes(1000), "trained": bytes(1000)})
        for name in spec:
            with pytest.raises(EncodeError, match="1001 bytes"):
                writer.append({"plain": b"", "trained": b"", name: bytes(1001)})
    assert len(DatasetReader(tmp_path / "new")) == 1
    monkeypatch.setattr(compression, "LARGEST_VALUE", 999)
    with pytest.raises(DecodeError, match=r"plain\.ffr: record 0 .*claims to unpack to 1000"):
        DatasetReader(tmp_path / "new")[0]


# ---- dictionaries ----------------------------------------------------------------------------


def notes(count: int) -> list[str]:
    return [f'{{"user": {i}, "name": "somebody", "value": {i * i}}}' for i in range(count)]


def write(folder: Path, type_: str, values: list[str]) -> DatasetReader:
    with DatasetWriter(folder, {"x": type_}) as writer:
        for value in values:
            writer.append({"x": value})
    return DatasetReader(folder)


def test_a_dictionary_makes_small_values_smaller_and_is_stored_with_them(tmp_path: Path) -> None:
    values = notes(3000)
    alone = write(tmp_path / "alone", "utf8+zstd", values)
    trained = write(tmp_path / "trained", "utf8+zstd:dict", values)
    assert [point["x"] for point in trained] == values
    assert trained.size < 0.75 * alone.size
    with FileReader(tmp_path / "trained" / "x.ffr") as records:
        dictionary = zstandard.ZstdCompressionDict(records[-1].tobytes())
        assert dictionary.dict_id()
        unpack = zstandard.ZstdDecompressor(dict_data=dictionary).decompress
        assert [unpack(record.tobytes()).decode() for record in records.read(range(3000))] == values


def test_later_values_use_the_dictionary_of_the_first_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ffrecord.dataset.writer.SAMPLE_VALUES", 500)
    values = notes(2000)
    with write(tmp_path / "new", "utf8+zstd:5:dict", values) as reader:
        assert [point["x"] for point in reader.read([1999, 0, 499, 500])] == [
            values[k] for k in (1999, 0, 499, 500)
        ]
    with FileReader(tmp_path / "new" / "x.ffr") as records:
        ids = {
            zstandard.get_frame_parameters(r.tobytes()).dict_id for r in records.read(range(2000))
        }
    assert len(ids) == 1
    assert 0 not in ids


@pytest.mark.parametrize("values", [[], ["one"], [""] * 50, ["a"] * 50])
def test_too_few_values_give_no_dictionary(values: list[str], tmp_path: Path) -> None:
    reader = write(tmp_path / "new", "utf8+zstd:dict", values)
    assert [point["x"] for point in reader] == values
    with FileReader(tmp_path / "new" / "x.ffr") as records:
        assert records.n == len(values) + 1
        assert records[-1].tobytes() == b""


def test_compressed_values_are_read_by_many_threads(tmp_path: Path) -> None:
    values = notes(400)
    reader = write(tmp_path / "new", "utf8+zstd:dict", values)
    wrong: list[int] = []

    def read(seed: int) -> None:
        for k in range(seed, 400, 7):
            if reader[k]["x"] != values[k]:
                wrong.append(k)

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_gzip_is_the_same_bytes_every_time() -> None:
    pack = compressor(Compression("gzip", 6))
    assert pack(VALUE) == pack(VALUE)
    assert zlib.decompress(pack(VALUE), 31) == VALUE
