"""TFRecord, RecordIO and bags: reading and writing the bytes of their definitions."""

from __future__ import annotations

import gzip
import os
import pickle
import struct
import tracemalloc
import warnings
import zlib
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ffrecord import (
    ConversionError,
    DamagedSourceError,
    FFRecordError,
    FileReader,
    IndexChecksumError,
    IndexStructureError,
    pack_folder,
)
from ffrecord.convert import convert
from ffrecord.convert.formats import snappy
from ffrecord.text import for_shell
from tests.convert import foreign
from tests.support import handmade

RECORDS = [b"first", b"", b"x" * 70_000, bytes(range(256)) * 3, b"", b"last"]
MANY = handmade.random_records([(k * 7919) % 3000 for k in range(1200)])  # several chunks

MAKE: dict[str, Callable[[Sequence[bytes]], bytes]] = {
    "tfrecord": foreign.tfrecord,
    **{
        f"{name} {codec}": lambda records, make=make, codec=codec: b"".join(  # type: ignore[misc]
            make(records[at : at + 100], codec) for at in range(0, len(records), 100)
        )
        for name, make in (("python", foreign.python_chunk), ("go", foreign.go_chunk))
        for codec in foreign.CODECS
    },
}
SUFFIX = {"tfrecord": ".tfrecord"}


def read_all(path: Path) -> list[bytes]:
    with FileReader(path) as reader:
        return handmade.as_bytes(reader)


def source(tmp_path: Path, kind: str, data: bytes) -> Path:
    path = tmp_path / f"source{SUFFIX.get(kind, '.recordio')}"
    path.write_bytes(data)
    return path


def test_the_tests_compute_the_published_crc32c() -> None:
    assert foreign.crc32c(b"123456789") == 0xE3069283


# ---- reading -------------------------------------------------------------------------------


@pytest.mark.parametrize("records", [RECORDS, MANY, []], ids=["few", "many", "none"])
@pytest.mark.parametrize("kind", MAKE)
def test_records_are_read_as_defined(kind: str, records: list[bytes], tmp_path: Path) -> None:
    path = source(tmp_path, kind, MAKE[kind](records))
    report = convert(path, tmp_path / "out.ffr")
    assert read_all(tmp_path / "out.ffr") == records
    assert (report.read, report.written) == (len(records), len(records))


def test_snappy_frames_may_be_plain_padded_and_have_chunks_to_skip(tmp_path: Path) -> None:
    inner = foreign.lengths_and_records(RECORDS)
    data = foreign.snappy_frames(inner, compressed=False)
    data += b"\xfe\x03\x00\x00abc" + b"\x80\x01\x00\x00x" + b"\xff\x06\x00\x00sNaPpY"
    header = struct.pack("<5I", foreign.MAGIC, zlib.crc32(data), 1, len(data), len(RECORDS))
    convert(source(tmp_path, "go", header + data), tmp_path / "out.ffr")
    assert read_all(tmp_path / "out.ffr") == RECORDS


def test_a_tfrecord_file_of_the_published_package_is_read(tmp_path: Path) -> None:
    tfrecord = pytest.importorskip("tfrecord")
    path = tmp_path / "published.tfrecord"
    writer = tfrecord.TFRecordWriter(str(path))
    for number in range(20):
        writer.write({"n": (number, "int"), "text": (b"%d" % number * 50, "byte")})
    writer.close()
    convert(path, tmp_path / "out.ffr")
    convert(tmp_path / "out.ffr", tmp_path / "again.tfrecord")
    assert (tmp_path / "again.tfrecord").read_bytes() == path.read_bytes()
    found = list(tfrecord.reader.tfrecord_loader(str(tmp_path / "again.tfrecord"), None))
    assert [(each["n"].item(), each["text"]) for each in found] == [
        (number, b"%d" % number * 50) for number in range(20)
    ]


@pytest.fixture
def granular() -> Iterator[object]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield pytest.importorskip("granular")


def test_a_bag_of_the_published_package_is_read(granular: object, tmp_path: Path) -> None:
    with granular.BagWriter(tmp_path / "b.bag") as writer:  # type: ignore[attr-defined]
        for record in RECORDS:
            writer.append(record)
    convert(tmp_path / "b.bag", tmp_path / "out.ffr")
    assert read_all(tmp_path / "out.ffr") == RECORDS


@pytest.mark.parametrize("version", [1, 2])
def test_a_bag_of_one_file_is_read(version: int, tmp_path: Path) -> None:
    full = [each for each in MANY if each]  # version 2 cannot express an empty first record
    (tmp_path / "s.bag").write_bytes(foreign.single_bag(full, version))
    convert(tmp_path / "s.bag", tmp_path / "out.ffr")
    assert read_all(tmp_path / "out.ffr") == full


# ---- writing -------------------------------------------------------------------------------


@pytest.fixture
def ours(tmp_path: Path) -> Path:
    return handmade.write_records(tmp_path / "ours.ffr", RECORDS)


def test_a_tfrecord_file_is_written_as_defined(ours: Path, tmp_path: Path) -> None:
    convert(ours, tmp_path / "out.tfrecord")
    assert (tmp_path / "out.tfrecord").read_bytes() == foreign.tfrecord(RECORDS)


@pytest.mark.parametrize("records", [RECORDS, MANY, []], ids=["few", "many", "none"])
@pytest.mark.parametrize("codec", foreign.CODECS)
@pytest.mark.parametrize("dialect", ["python", "go"])
def test_recordio_is_written_as_defined(
    dialect: str, codec: str, records: list[bytes], tmp_path: Path
) -> None:
    ours = handmade.write_records(tmp_path / "ours.ffr", records)
    name = {"python": "recordio", "go": "recordio-go"}[dialect]
    convert(ours, tmp_path / "out", target_format=name, codec=codec)
    assert foreign.read_recordio((tmp_path / "out").read_bytes(), dialect) == records
    convert(tmp_path / "out", tmp_path / "back.ffr", source_format=name)
    assert read_all(tmp_path / "back.ffr") == records


def test_a_bag_is_written_as_defined_and_its_package_reads_it(
    granular: object, ours: Path, tmp_path: Path
) -> None:
    convert(ours, tmp_path / "out.bag")
    assert (tmp_path / "out.bag").read_bytes() == b"".join(RECORDS)
    assert (tmp_path / "out.idx").read_bytes() == foreign.limits(RECORDS)
    reader = granular.BagReader(tmp_path / "out.bag")  # type: ignore[attr-defined]
    assert [reader[k] for k in range(len(reader))] == RECORDS
    reader.close()


def test_a_bag_of_one_file_is_written_as_defined_and_its_package_reads_it(
    granular: object, ours: Path, tmp_path: Path
) -> None:
    convert(ours, tmp_path / "out.bag", target_format="bag-single")
    assert (tmp_path / "out.bag").read_bytes() == foreign.single_bag(RECORDS, 1)
    assert not (tmp_path / "out.idx").exists()
    reader = granular.BagReader(tmp_path / "out.bag", single_file=True)  # type: ignore[attr-defined]
    assert [reader[k] for k in range(len(reader))] == RECORDS
    reader.close()


@settings(max_examples=25)
@given(st.lists(st.binary(max_size=300), max_size=20), st.data())
def test_any_records_round_trip(
    tmp_path_factory: pytest.TempPathFactory, records: list[bytes], data: st.DataObject
) -> None:
    tmp_path = tmp_path_factory.mktemp("any")
    name = data.draw(st.sampled_from(
        ["tfrecord", "recordio", "recordio-go", "bag", "bag-single", "hdf5", "dataset", "folder"]
    ))  # fmt: skip
    ours = handmade.write_records(tmp_path / "ours.ffr", records)
    convert(ours, tmp_path / "there", target_format=name)
    convert(tmp_path / "there", tmp_path / "back.ffr", source_format=name, drop_names=True,
            target_format="records")  # fmt: skip
    assert read_all(tmp_path / "back.ffr") == records


# ---- records that resemble an index --------------------------------------------------------


LEGACY_MAGIC = b"piouhjgbr"  # the first bytes of an index of the original FFRecord
TRAILER_MAGIC = b"FFRINDEX"  # the last bytes of our index


@pytest.mark.parametrize(
    "last",
    [
        LEGACY_MAGIC,
        LEGACY_MAGIC + b" is how the index begins",
        LEGACY_MAGIC + b"\x80\x04N.",  # a pickle of None
        TRAILER_MAGIC,
    ],
    ids=["magic alone", "magic and text", "magic and another pickle", "magic of the trailer"],
)
@pytest.mark.parametrize("name", ["plain.ffr", "plain"])
def test_a_last_record_that_only_resembles_an_index_is_converted_as_a_record(
    last: bytes, name: str, tmp_path: Path
) -> None:
    path = handmade.write_records(tmp_path / name, [b"first", last])
    report = convert(path, tmp_path / "out.tfrecord")
    assert report.source_format == "records"
    assert (tmp_path / "out.tfrecord").read_bytes() == foreign.tfrecord([b"first", last])


@pytest.mark.parametrize(
    "last",
    [
        LEGACY_MAGIC + pickle.dumps({"file": 7}),  # there is no record 7
        b"\xff" * 16 + TRAILER_MAGIC,
        struct.pack("<QII", 80, 0, 1).rjust(96, b"x") + TRAILER_MAGIC,
    ],
    ids=["record out of range", "unknown version", "wrong checksum"],
)
def test_a_last_record_that_may_be_an_index_is_refused_until_the_user_names_the_format(
    last: bytes, tmp_path: Path
) -> None:
    path = handmade.write_records(tmp_path / "plain.ffr", [b"first", last])
    with pytest.raises((IndexStructureError, IndexChecksumError)) as caught:
        convert(path, tmp_path / "out.tfrecord")
    assert str(caught.value).startswith(f"{path}: ")
    assert 'source_format="records"' in str(caught.value)
    assert "--from records" in for_shell(caught.value)
    convert(path, tmp_path / "out.tfrecord", source_format="records")
    assert (tmp_path / "out.tfrecord").read_bytes() == foreign.tfrecord([b"first", last])


def test_a_damaged_packed_folder_is_never_converted_as_records(tmp_path: Path) -> None:
    legacy = LEGACY_MAGIC + pickle.dumps(OrderedDict(file=0, folder=OrderedDict(file=1)))
    packed = packed_index(tmp_path)
    image_and_trailer = struct.unpack("<Q", packed[-24:-16])[0] + 24
    for index, used in ((legacy, len(legacy)), (packed, image_and_trailer)):
        whole = handmade.record_bytes([b"one", b"two", index])
        path = tmp_path / "damaged.ffr"
        for at in range(len(whole) - used, len(whole)):
            damaged = bytearray(whole)
            damaged[at] ^= 1
            path.write_bytes(damaged)
            with pytest.raises(FFRecordError) as caught:
                convert(path, tmp_path / "out.tfrecord")
            assert str(path) in str(caught.value)
            assert not (tmp_path / "out.tfrecord").exists()


def packed_index(tmp_path: Path) -> bytes:
    """Return the index of a packed folder with two files, of 3 bytes each."""
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "1").write_bytes(b"one")
    (folder / "2").write_bytes(b"two")
    pack_folder(folder, tmp_path / "folder.ffr")
    *files, index = handmade.records_in((tmp_path / "folder.ffr").read_bytes())
    assert files == [b"one", b"two"]
    return index


# ---- damage --------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", MAKE)
def test_a_file_cut_off_at_any_length_is_an_error(kind: str, tmp_path: Path) -> None:
    """A cut between two records of a TFRecord is left out: such a file looks complete."""
    records = [b"one", b"", b"three" * 20]
    whole = MAKE[kind](records)
    ends = {len(MAKE[kind](records[:count])) for count in range(len(records))}
    for length in range(1, len(whole)):
        if kind == "tfrecord" and length in ends:
            continue
        path = source(tmp_path, kind, whole[:length])
        with pytest.raises(DamagedSourceError, match=str(path)):
            convert(path, tmp_path / "out.ffr")
    assert sorted(os.listdir(tmp_path)) == [path.name]


def refuses_flipped(kind: str, step: int, tmp_path: Path) -> None:
    """Check that each flipped bit is an error.

    RecordIO's number of records has no checksum, but is compared with the data.
    """
    whole = MAKE[kind]([b"one", b"", b"three" * 4])
    for bit in range(0, 8 * len(whole), step):
        flipped = bytearray(whole)
        flipped[bit // 8] ^= 1 << bit % 8
        path = source(tmp_path, kind, bytes(flipped))
        with pytest.raises(FFRecordError) as caught:
            convert(path, tmp_path / "out.ffr")
        assert str(path) in str(caught.value)
    assert sorted(os.listdir(tmp_path)) == [path.name]


@pytest.mark.parametrize("kind", MAKE)
def test_a_flipped_bit_in_any_byte_is_an_error(kind: str, tmp_path: Path) -> None:
    refuses_flipped(kind, 7, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("kind", MAKE)
def test_every_flipped_bit_is_an_error(kind: str, tmp_path: Path) -> None:
    refuses_flipped(kind, 1, tmp_path)


def test_a_damage_error_names_file_record_and_offset(tmp_path: Path) -> None:
    data = bytearray(foreign.tfrecord([b"12345", b"67890", b"abcde"]))
    data[2 * (12 + 5 + 4) + 12] ^= 1  # the first byte of record 2
    path = source(tmp_path, "tfrecord", bytes(data))
    with pytest.raises(DamagedSourceError) as caught:
        convert(path, tmp_path / "out.ffr")
    error = caught.value
    assert (error.path, error.record, error.offset) == (str(path), 2, 42)
    assert str(error).startswith(f"{path}: record 2 at byte 42: ")


def test_damage_in_a_later_chunk_is_reported_with_its_first_record(tmp_path: Path) -> None:
    first = foreign.go_chunk([b"a", b"b", b"c"], "gzip")
    second = bytearray(foreign.go_chunk([b"d", b"e"], "gzip"))
    second[-1] ^= 1
    path = source(tmp_path, "go", first + bytes(second))
    with pytest.raises(DamagedSourceError) as caught:
        convert(path, tmp_path / "out.ffr")
    assert (caught.value.record, caught.value.offset) == (3, len(first))


HOSTILE = {
    "a record of 2^60 bytes": ("tfrecord", foreign.tf_header(1 << 60) + b"x" * 100),
    "a record of 2^64-1 bytes": ("tfrecord", foreign.tf_header((1 << 64) - 1) + b"x" * 100),
    "a chunk of 4 GB": ("go", struct.pack("<5I", foreign.MAGIC, 0, 0, 0xFFFFFFFF, 1)),
    "4 billion records in a python chunk": (
        "python",
        foreign.python_chunk([b"x"], count=0xFFFFFFFF),
    ),
    "4 billion records in a go chunk": ("go", foreign.go_chunk([b"x"], count=0xFFFFFFFF)),
    "fewer records than data": ("go", foreign.go_chunk([b"x", b"y"], count=1)),
    "no records but data": ("python", foreign.python_chunk([b"x"], count=0)),
}


def chunk_of(dialect: str, codec: str, data: bytes, count: int = 1) -> bytes:
    """Return a chunk with the right checksum for any data."""
    if dialect == "python":
        fields = (count, foreign.crc32c(data), 1 + foreign.CODECS.index(codec), len(data))
    else:
        fields = (zlib.crc32(data), foreign.CODECS.index(codec), len(data), count)
    return struct.pack("<5I", foreign.MAGIC, *fields) + data


long_length = struct.pack("<I", 0xFFFFFFF0)
HOSTILE |= {
    "a record of 4 GB in a chunk": ("python", chunk_of("python", "none", long_length + b"x" * 50)),
    "a record of 4 GB in gzip": ("go", chunk_of("go", "gzip", gzip.compress(long_length * 9))),
    "a record of 1 GB in gzip": (
        "go", chunk_of("go", "gzip", gzip.compress(struct.pack("<I", 1 << 30) + b"x")),
    ),
    "a snappy block of 4 GB": (
        "python", chunk_of("python", "snappy", foreign.varint(0xFFFFFFFF) + b"\0x"),
    ),
    "a snappy block that ends in a copy": (
        "python", chunk_of("python", "snappy", foreign.varint(8) + b"\x0c"),
    ),
    "frames without their beginning": ("go", chunk_of("go", "snappy", b"\0\x05\0\0abcde")),
    "a frame of an unknown type": (
        "go", chunk_of("go", "snappy", b"\xff\x06\0\0sNaPpY\x02\x01\0\0x"),
    ),
    "a frame beyond the end": (
        "go", chunk_of("go", "snappy", b"\xff\x06\0\0sNaPpY\x00\xff\xff\xffx"),
    ),
    "a frame with a wrong checksum": (
        "go", chunk_of("go", "snappy", b"\xff\x06\0\0sNaPpY\x01\x05\0\0\0\0\0\0x"),
    ),
    "a frame without a checksum": (
        "go", chunk_of("go", "snappy", b"\xff\x06\0\0sNaPpY\x01\x02\0\0xx"),
    ),
    "data that is not gzip": ("python", chunk_of("python", "gzip", b"this is not gzip")),
    "truncated gzip": ("go", chunk_of("go", "gzip", gzip.compress(b"x" * 1000)[:-9])),
}  # fmt: skip


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_file_is_an_error_and_allocates_no_memory(case: str, tmp_path: Path) -> None:
    kind, data = HOSTILE[case]
    path = source(tmp_path, kind, data)
    convert(source(tmp_path, kind, MAKE["tfrecord" if kind == "tfrecord" else "go none"]([b""])),
            tmp_path / "warm.ffr")  # fmt: skip
    path.write_bytes(data)
    tracemalloc.start()
    try:
        with pytest.raises(DamagedSourceError, match=str(path)):
            convert(path, tmp_path / "out.ffr")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 12 << 20
    assert not (tmp_path / "out.ffr").exists()


def test_a_snappy_block_that_claims_too_much_is_not_unpacked() -> None:
    with pytest.raises(ValueError, match="7 bytes claims to unpack to 4294967295"):
        snappy.unpack_block(foreign.varint(0xFFFFFFFF) + b"\0x")


def test_a_file_with_holes_cannot_claim_a_record_of_any_size(tmp_path: Path) -> None:
    path = tmp_path / "holes.tfrecord"
    path.write_bytes(foreign.tf_header(1 << 40))
    os.truncate(path, 1 << 41)
    with pytest.raises(DamagedSourceError, match="the limit is 2147483647"):
        convert(path, tmp_path / "out.ffr")


BAGS = {
    "an index of 9 bytes": (b"abc", foreign.limits([b"abc"]) + b"x"),
    "limits beyond the data": (b"abc", struct.pack("<2Q", 2, 1 << 60)),
    "limits that decrease": (b"abc", struct.pack("<2Q", 3, 2)),
    "limits of 2^64-1": (b"abc", struct.pack("<Q", (1 << 64) - 1)),
    "data beyond the last limit": (b"abcdef", foreign.limits([b"abc"])),
}
SINGLE_BAGS = {
    "too short": b"abc",
    "an index beyond the end": b"abc" + struct.pack("<Q", 1 << 60),
    "an index that begins between two limits": b"abcdefg" + struct.pack("<2Q", 3, 3),
    "limits that decrease": b"abc" + struct.pack("<3Q", 2, 1, 3),
    "limits beyond the data": b"abc" + struct.pack("<3Q", 0, 1 << 60, 3),
}


@pytest.mark.parametrize("case", BAGS)
def test_an_impossible_bag_is_an_error(case: str, tmp_path: Path) -> None:
    (tmp_path / "b.bag").write_bytes(BAGS[case][0])
    (tmp_path / "b.idx").write_bytes(BAGS[case][1])
    with pytest.raises(DamagedSourceError, match=rf"{tmp_path}/b\."):
        convert(tmp_path / "b.bag", tmp_path / "out.ffr")
    assert sorted(os.listdir(tmp_path)) == ["b.bag", "b.idx"]


@pytest.mark.parametrize("case", SINGLE_BAGS)
def test_an_impossible_bag_of_one_file_is_an_error(case: str, tmp_path: Path) -> None:
    (tmp_path / "b.bag").write_bytes(SINGLE_BAGS[case])
    with pytest.raises(DamagedSourceError, match=rf"{tmp_path}/b\.bag"):
        convert(tmp_path / "b.bag", tmp_path / "out.ffr")
    assert sorted(os.listdir(tmp_path)) == ["b.bag"]


def test_an_unknown_or_misplaced_codec_is_an_error(ours: Path, tmp_path: Path) -> None:
    with pytest.raises(ConversionError, match="lzma"):
        convert(ours, tmp_path / "out.recordio", codec="lzma")
    with pytest.raises(ConversionError, match="RecordIO only"):
        convert(ours, tmp_path / "out.tfrecord", codec="gzip")
    assert os.listdir(tmp_path) == ["ours.ffr"]
