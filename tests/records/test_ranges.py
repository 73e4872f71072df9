"""Ranges of records for workers (`partition`, `tasks`), and iteration that skips damage."""

from __future__ import annotations

import os
import pickle
import warnings
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ffrecord import BadRecordWarning, ClosedError, FileReader, SampleChecksumError
from tests.support import handmade

MODES = ["auto", "aio", "buffered", "mmap"]
FILES = st.lists(st.lists(st.sampled_from([0, 0, 1, 7, 100, 5000]), max_size=30), min_size=1,
                 max_size=4)  # fmt: skip


def write(folder: Path, files: list[list[int]]) -> list[Path]:
    """Write one file for each list of sizes, with a gap in every other file."""
    return [
        handmade.write_records(folder / f"{i}.ffr", [b"x" * size for size in sizes], i % 2 * 50)
        for i, sizes in enumerate(files)
    ]


def joined(ranges: list[range]) -> list[int]:
    return [record for each in ranges for record in each]


@settings(max_examples=100)
@given(FILES, st.integers(1, 60))
def test_parts_cover_all_records_once_and_are_about_equal(
    tmp_path: Path, files: list[list[int]], n: int
) -> None:
    sizes = [size for each in files for size in each]
    with FileReader(write(tmp_path, files)) as reader:
        parts = [reader.partition(k, n) for k in range(n)]
        assert joined(parts) == list(range(len(sizes)))
        assert all(a.stop == b.start for a, b in pairwise(parts))
        # A border is at most half a record off. A record counts one byte more than its size.
        weights = [sum(sizes[i] + 1 for i in part) for part in parts]
        share = (sum(sizes) + len(sizes)) / n
        assert max(weights) <= share + max(sizes, default=0) + 1
        assert min(weights) >= share - max(sizes, default=0) - 1


def test_parts_of_equal_records_are_equal(tmp_path: Path) -> None:
    with FileReader(write(tmp_path, [[1000] * 12])) as reader:
        assert [len(reader.partition(k, 4)) for k in range(4)] == [3, 3, 3, 3]


def test_a_large_record_has_a_part_to_itself(tmp_path: Path) -> None:
    with FileReader(write(tmp_path, [[10] * 50 + [1000] + [10] * 50])) as reader:
        assert [reader.partition(k, 3) for k in range(3)] == [
            range(0, 50), range(50, 51), range(51, 101)
        ]  # fmt: skip


def test_read_accepts_parts(tmp_path: Path) -> None:
    records = handmade.random_records([10, 2000, 0, 5, 700, 1])
    path = handmade.write_records(tmp_path / "a.ffr", records)
    with FileReader(path) as reader:
        read = [record for k in range(9) for record in reader.read(reader.partition(k, 9))]
        assert handmade.as_bytes(read) == records


@pytest.mark.parametrize(("k", "n", "error"), [
    (0, 0, ValueError), (0, -1, ValueError), (3, 3, IndexError), (-1, 3, IndexError),
    (0.5, 3, TypeError), (0, 3.0, TypeError),
])  # fmt: skip
def test_invalid_parts_are_refused(
    k: int, n: int, error: type[Exception], sample_file: Path
) -> None:
    with FileReader(sample_file) as reader, pytest.raises(error):
        reader.partition(k, n)


def test_partitions_and_tasks_read_no_records(sample_file: Path) -> None:
    with FileReader(sample_file) as reader:
        os.truncate(sample_file, 0)
        assert joined([reader.partition(k, 5) for k in range(5)]) == list(range(reader.n))
        assert joined(list(reader.tasks(7, 3000))) == list(range(reader.n))


@settings(max_examples=100)
@given(FILES, st.none() | st.integers(1, 40), st.none() | st.integers(1, 8000))
def test_tasks_cover_all_records_once_and_are_as_large_as_the_limits_allow(
    tmp_path: Path, files: list[list[int]], most: int | None, most_bytes: int | None
) -> None:
    sizes = [size for each in files for size in each]
    with FileReader(write(tmp_path, files)) as reader:
        tasks = list(reader.tasks(max_records=most, max_bytes=most_bytes))
    assert joined(tasks) == list(range(len(sizes)))
    for task in tasks:
        assert len(task) >= 1
        fits = most_bytes is None or sum(sizes[i] for i in task) <= most_bytes
        assert fits or len(task) == 1
        assert most is None or len(task) <= most
    for task, following in pairwise(tasks):
        longer = [*task, following[0]]
        over = most_bytes is not None and sum(sizes[i] for i in longer) > most_bytes
        assert over or (most is not None and len(longer) > most)


def test_without_limits_there_is_one_task(sample_file: Path) -> None:
    with FileReader(sample_file) as reader:
        assert list(reader.tasks()) == [range(0, reader.n)]


@pytest.mark.parametrize("limits", [{"max_records": 0}, {"max_bytes": 0}, {"max_bytes": -5}])
def test_limits_below_one_are_refused_at_once(limits: dict[str, int], sample_file: Path) -> None:
    with FileReader(sample_file) as reader, pytest.raises(ValueError, match="1 or more"):
        reader.tasks(**limits)


# ---- iteration over damaged files ----------------------------------------------------------


def damaged(folder: Path, records: list[bytes], numbers: list[int]) -> Path:
    data = bytearray(handmade.record_bytes(records))
    at = 12 + 12 * len(records)
    for number, record in enumerate(records):
        if number in numbers:
            data[at] ^= 1
        at += len(record)
    path = folder / "damaged.ffr"
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("mode", MODES)
def test_iteration_can_skip_damaged_records_and_names_them(mode: str, tmp_path: Path) -> None:
    records = handmade.random_records([100] * 1500 + [3 << 20, 5, 3 << 20, 0, 7])
    numbers = [0, 700, 1499, 1502]
    path = damaged(tmp_path, records, numbers)
    with FileReader(path, mode=mode, on_error="skip") as reader:
        with pytest.warns(BadRecordWarning) as caught:
            found = handmade.as_bytes(reader)
        assert found == [r for i, r in enumerate(records) if i not in numbers]
        messages = [str(each.message) for each in caught]
        assert len(messages) == len(numbers)
        for number, message in zip(numbers, messages, strict=True):
            assert f"damaged.ffr: record {number} is damaged" in message
        assert {each.filename for each in caught} == {handmade.__file__}  # the file with the loop
        with pytest.raises(SampleChecksumError):
            reader.read([0])
        with pytest.raises(SampleChecksumError):
            reader.read_one(0)


def test_an_empty_record_with_a_wrong_checksum_is_skipped(tmp_path: Path) -> None:
    path = tmp_path / "empty.ffr"
    path.write_bytes(handmade.sealed(2, [0, 5], [36, 36]))
    with FileReader(path, on_error="skip") as reader, pytest.warns(BadRecordWarning):
        assert handmade.as_bytes(reader) == [b""]
    with FileReader(path) as reader, pytest.raises(SampleChecksumError):
        list(reader)


def test_iteration_raises_unless_told_otherwise(tmp_path: Path) -> None:
    path = damaged(tmp_path, [b"one", b"two"], [1])
    with FileReader(path) as reader, pytest.raises(SampleChecksumError):
        list(reader)


def test_iterating_over_a_whole_file_does_not_warn(sample_file: Path) -> None:
    with FileReader(sample_file, on_error="skip") as reader, warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(list(reader)) == reader.n


def test_a_closed_reader_raises_even_if_damage_is_skipped(sample_file: Path) -> None:
    reader = FileReader(sample_file, on_error="skip")
    reader.close()
    with pytest.raises(ClosedError):
        list(reader)


def test_on_error_survives_pickling(tmp_path: Path) -> None:
    path = damaged(tmp_path, [b"one", b"two"], [0])
    with FileReader(path, on_error="skip") as reader, pickle.loads(pickle.dumps(reader)) as again:
        assert again.on_error == "skip"
        with pytest.warns(BadRecordWarning):
            assert handmade.as_bytes(again) == [b"two"]


def test_an_unknown_on_error_is_refused(sample_file: Path) -> None:
    with pytest.raises(ValueError, match="on_error must be one of raise, skip"):
        FileReader(sample_file, on_error="ignore")


def test_partition_accepts_numpy_integers(sample_file: Path) -> None:
    with FileReader(sample_file) as reader:
        assert reader.partition(np.int64(1), np.int32(3)) == reader.partition(1, 3)
