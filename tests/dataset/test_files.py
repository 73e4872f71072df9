"""`RecordFiles` with headers in memory and without: both behave the same."""

from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path

import numpy as np
import pytest

from ffrecord import (
    ClosedError,
    FFRecordError,
    FileReader,
    HeaderChecksumError,
    LegacyFileWarning,
    NotFFRecordError,
    SampleChecksumError,
    StructureError,
    TruncatedError,
)
from ffrecord.dataset.files import CHUNK, RecordFiles
from tests.support import handmade

MODES = ["auto", "aio", "buffered", "mmap"]
RECORDS = [
    [b"a", b"", b"ccc"],
    [],
    handmade.random_records([5000, 0, 2 * CHUNK + 77, 16, 0]),
    [b"only"],
    [b"", b""],
]


def a_tar() -> bytes:
    """Return a tar whose first file has a name that looks like a plausible record count."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        tar.addfile(tarfile.TarInfo("a"))
    return made.getvalue()


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("files")
    return [
        str(handmade.write_records(folder / f"{k}.ffr", records, gap=k * 100))
        for k, records in enumerate(RECORDS)
    ]


@pytest.fixture(params=[True, False], ids=["kept", "streamed"])
def keep(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture(params=MODES)
def files(request: pytest.FixtureRequest, keep: bool, paths: list[str]) -> RecordFiles:
    return RecordFiles(paths, True, request.param, keep_headers=keep)


def test_counts_sizes_and_checksums_match_the_files(files: RecordFiles, paths: list[str]) -> None:
    assert files.counts == [len(records) for records in RECORDS]
    assert files.size == sum(os.path.getsize(path) for path in paths)
    heads = [int.from_bytes(Path(path).read_bytes()[:4], "little") for path in paths]
    assert [files.header_crc(file) for file in range(len(paths))] == heads


@pytest.mark.parametrize("ahead", [True, False])
def test_records_of_several_files_are_read_as_one_batch(files: RecordFiles, ahead: bool) -> None:
    everything = [(file, k) for file, records in enumerate(RECORDS) for k in range(len(records))]
    for wanted in (everything, everything[::-1], everything[2:3], everything[3:5], [(2, 3)] * 3):
        file, record = np.array(wanted).T
        found = handmade.as_bytes(files.begin(file, record, ahead=ahead)())
        assert found == [RECORDS[f][r] for f, r in wanted]


def test_a_record_streams_in_chunks(files: RecordFiles) -> None:
    for file, records in enumerate(RECORDS):
        for number, record in enumerate(records):
            chunks = handmade.as_bytes(files.stream(file, number))
            assert b"".join(chunks) == record
            assert max(map(len, chunks), default=0) <= CHUNK


def test_words_returns_two_numbers_from_each_offset(files: RecordFiles) -> None:
    record = RECORDS[2][0]
    at = np.array([0, 4000, 8, 4984])
    expected = [np.frombuffer(record[k : k + 16], "<i8").tolist() for k in at.tolist()]
    assert files.words(2, 0, at).tolist() == expected


def test_closed_files_raise_a_closed_error(files: RecordFiles) -> None:
    files.close()
    with pytest.raises(ClosedError):
        files.begin(np.array([0]), np.array([0]), ahead=False)()


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (b"", TruncatedError),
        (b"\x00" * 11, TruncatedError),
        (b"\xff" * 64, NotFFRecordError),
        (handmade.sealed(1 << 30, [], []), TruncatedError),
        (handmade.sealed(2, [0, 0], [36, 36])[:-1] + b"\x01", FFRecordError),
        (b"\x01\x02\x03\x04" + handmade.record_bytes([b"one"])[4:], HeaderChecksumError),
        (a_tar(), NotFFRecordError),
    ],
)
def test_files_of_other_kinds_raise_the_errors_of_file_reader(
    keep: bool, content: bytes, error: type[Exception], tmp_path: Path
) -> None:
    path = tmp_path / "x.ffr"
    path.write_bytes(content)
    with pytest.raises(error, match=r"x\.ffr") as raised:
        RecordFiles([str(path)], True, "auto", keep_headers=keep)
    with pytest.raises(error) as of_reader:
        FileReader(path)
    assert str(raised.value) == str(of_reader.value)


def test_a_mode_that_does_not_exist_is_an_error(keep: bool, paths: list[str]) -> None:
    with pytest.raises(ValueError, match="mode must be one of auto, aio, buffered, mmap"):
        RecordFiles(paths, True, "fast", keep_headers=keep)


@pytest.mark.parametrize("mode", MODES)
def test_a_file_without_a_header_checksum_is_warned_about_and_its_records_are_verified(
    keep: bool, mode: str, tmp_path: Path
) -> None:
    path, records = tmp_path / "legacy.ffr", [b"one", b"", b"three"]
    path.write_bytes(bytes(4) + handmade.record_bytes(records)[4:])
    with pytest.warns(LegacyFileWarning, match=r"legacy\.ffr") as warned:
        files = RecordFiles([str(path)], True, mode, keep_headers=keep)
    assert warned[0].filename == __file__
    assert (files.counts, files.header_crc(0)) == ([3], 0)
    everything = np.zeros(3, np.int64), np.arange(3)
    assert handmade.as_bytes(files.begin(*everything, ahead=True)()) == records
    with path.open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"?")
    with pytest.raises(SampleChecksumError, match="record 2"):
        files.begin(*everything, ahead=False)()
    with pytest.raises(SampleChecksumError, match="record 2"):
        list(files.stream(0, 2))


@pytest.mark.parametrize(
    "offsets", [[35, 37], [37, 36], [36, 1 << 40], [-1, 36], [1 << 62, 1 << 62]]
)
def test_impossible_offsets_are_an_error_when_used(offsets: list[int], tmp_path: Path) -> None:
    """The header's checksum is right, so the file is hostile and not damaged."""
    path = tmp_path / "x.ffr"
    path.write_bytes(handmade.sealed(2, [0, 0], offsets) + b"12")
    with pytest.raises((StructureError, TruncatedError)):
        RecordFiles([str(path)], True, "auto", keep_headers=True)
    files = RecordFiles([str(path)], True, "auto", keep_headers=False)
    with pytest.raises(StructureError, match=r"x\.ffr: record [01] would reach from byte"):
        files.begin(np.array([0, 0]), np.array([0, 1]), ahead=False)()
