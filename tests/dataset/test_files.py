"""Both kinds of open files, with and without their headers in memory, do the same."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ffrecord import ClosedError, FFRecordError, NotFFRecordError, StructureError, TruncatedError
from ffrecord.dataset.files import CHUNK, Files, IndexedFiles, StreamedFiles
from tests.support import handmade

KINDS = [IndexedFiles, StreamedFiles]
MODES = ["auto", "aio", "buffered", "mmap"]
RECORDS = [
    [b"a", b"", b"ccc"],
    [],
    handmade.random_records([5000, 0, 2 * CHUNK + 77, 16, 0]),
    [b"only"],
    [b"", b""],
]


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("files")
    return [
        str(handmade.write_records(folder / f"{k}.ffr", records, gap=k * 100))
        for k, records in enumerate(RECORDS)
    ]


@pytest.fixture(params=[(kind, mode) for kind in KINDS for mode in MODES], ids=str)
def files(request: pytest.FixtureRequest, paths: list[str]) -> Files:
    kind, mode = request.param
    opened: Files = kind(paths, True, mode)
    return opened


def test_counts_sizes_and_checksums_are_those_of_the_files(files: Files, paths: list[str]) -> None:
    assert files.counts == [len(records) for records in RECORDS]
    assert files.size == sum(os.path.getsize(path) for path in paths)
    heads = [int.from_bytes(Path(path).read_bytes()[:4], "little") for path in paths]
    assert [files.header_crc(file) for file in range(len(paths))] == heads


@pytest.mark.parametrize("ahead", [True, False])
def test_any_records_of_any_files_come_as_one_batch(files: Files, ahead: bool) -> None:
    everything = [(file, k) for file, records in enumerate(RECORDS) for k in range(len(records))]
    for wanted in (everything, everything[::-1], everything[2:3], everything[3:5], [(2, 3)] * 3):
        file, record = np.array(wanted).T
        found = handmade.as_bytes(files.begin(file, record, ahead=ahead)())
        assert found == [RECORDS[f][r] for f, r in wanted]


def test_a_record_streams_in_chunks(files: Files) -> None:
    for file, records in enumerate(RECORDS):
        for number, record in enumerate(records):
            chunks = handmade.as_bytes(files.stream(file, number))
            assert b"".join(chunks) == record
            assert max(map(len, chunks), default=0) <= CHUNK


def test_words_are_two_numbers_from_each_byte_on(files: Files) -> None:
    record = RECORDS[2][0]
    at = np.array([0, 4000, 8, 4984])
    expected = [np.frombuffer(record[k : k + 16], "<i8").tolist() for k in at.tolist()]
    assert files.words(2, 0, at).tolist() == expected


def test_closed_files_say_so(files: Files) -> None:
    files.close()
    with pytest.raises(ClosedError):
        files.begin(np.array([0]), np.array([0]), ahead=False)()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("content", "error"),
    [
        (b"", TruncatedError),
        (b"\x00" * 11, TruncatedError),
        (b"\xff" * 64, NotFFRecordError),
        (handmade.sealed(1 << 30, [], []), TruncatedError),
        (handmade.sealed(2, [0, 0], [36, 36])[:-1] + b"\x01", FFRecordError),
    ],
)
def test_files_of_other_kinds_are_errors(
    kind: Any, content: bytes, error: type[Exception], tmp_path: Path
) -> None:
    path = tmp_path / "x.ffr"
    path.write_bytes(content)
    with pytest.raises(error, match=r"x\.ffr"):
        kind([str(path)], True, "auto")


@pytest.mark.parametrize(
    "offsets", [[35, 37], [37, 36], [36, 1 << 40], [-1, 36], [1 << 62, 1 << 62]]
)
def test_offsets_that_make_no_sense_are_found_at_the_latest_when_used(
    offsets: list[int], tmp_path: Path
) -> None:
    """The header's checksum is right: it was made to harm."""
    path = tmp_path / "x.ffr"
    path.write_bytes(handmade.sealed(2, [0, 0], offsets) + b"12")
    with pytest.raises((StructureError, TruncatedError)):
        IndexedFiles([str(path)], True, "auto")
    files = StreamedFiles([str(path)], True, "auto")
    with pytest.raises(StructureError, match=r"x\.ffr: record [01] would reach from byte"):
        files.begin(np.array([0, 0]), np.array([0, 1]), ahead=False)()
