"""`ffrecord.records.reader`: the whole of `FileReader`, against files made by hand."""

from __future__ import annotations

import copy
import hashlib
import itertools
import operator
import os
import pickle
import random
import re
import resource
import struct
import subprocess
import sys
import warnings
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ffrecord import (
    ChangedError,
    ClosedError,
    FFRecordError,
    FileReader,
    HeaderChecksumError,
    LegacyFileWarning,
    NotFFRecordError,
    SampleChecksumError,
    TruncatedError,
)
from ffrecord.records.reader import STEP_BYTES, STEP_RECORDS, table_of
from ffrecord.records.table import Table
from tests.support import handmade

MODES = ["auto", "aio", "buffered", "mmap"]
COPYING = ["auto", "aio", "buffered"]


class TensorLike:
    """What numpy knows of a tensor: a length and `__array__`."""

    def __init__(self, *numbers: int) -> None:
        self._numbers = numbers

    def __len__(self) -> int:
        return len(self._numbers)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        return np.array(self._numbers, dtype or np.int64)


class Index:
    """An integer that is no int."""

    def __init__(self, number: int) -> None:
        self._number = number

    def __index__(self) -> int:
        return self._number


@pytest.fixture(params=MODES)
def mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def reader(sample_file: Path, mode: str) -> Iterator[FileReader]:
    with FileReader(sample_file, mode=mode) as reader:
        yield reader


@pytest.fixture
def three_files(tmp_path: Path) -> tuple[list[str], list[bytes]]:
    """Three files in a folder, the second without records, and all records in order."""
    sizes = [[100, 0, 5000, 17], [], [4096] * 5 + [1]]
    shards = [handmade.random_records(s, seed) for seed, s in enumerate(sizes)]
    folder = tmp_path / "shards"
    folder.mkdir()
    paths = [
        str(handmade.write_records(folder / f"{i}.ffr", records, gap=i))
        for i, records in enumerate(shards)
    ]
    return paths, [record for records in shards for record in records]


# ---- opening -------------------------------------------------------------------------------


class FsPath:
    def __init__(self, path: str) -> None:
        self._path = path

    def __fspath__(self) -> str:
        return self._path


@pytest.mark.parametrize("kind", [str, Path, FsPath])
def test_a_file_is_named_by_any_kind_of_path(kind: Any, sample_file: Path) -> None:
    with FileReader(kind(str(sample_file))) as reader:
        assert reader.fnames == [str(sample_file)]
        assert reader.n == len(reader) == 73
        assert reader.check_data is True
        assert reader.mode == "auto"


@pytest.mark.parametrize("kind", [list, tuple])
def test_several_files_are_read_as_one(
    kind: Any, mode: str, three_files: tuple[list[str], list[bytes]]
) -> None:
    paths, records = three_files
    with FileReader(kind([Path(paths[0]), *paths[1:]]), mode=mode) as reader:
        assert reader.fnames == paths
        assert len(reader) == len(records) == 10
        assert handmade.as_bytes(reader.read(range(10))) == records
        backwards = list(range(9, -1, -1)) * 2
        assert handmade.as_bytes(reader.read(backwards)) == [records[i] for i in backwards]
        assert [reader.read_one(i).tobytes() for i in range(10)] == records


def test_files_come_in_the_order_given(three_files: tuple[list[str], list[bytes]]) -> None:
    paths, records = three_files
    with FileReader(paths[::-1]) as reader:
        assert handmade.as_bytes(reader) == records[4:] + records[:4]


def test_one_file_may_be_given_twice(mode: str, sample_file: Path) -> None:
    with FileReader([sample_file, sample_file], mode=mode) as reader:
        assert reader.n == 146
        assert reader.read_one(5).tobytes() == reader.read_one(78).tobytes()


def test_a_folder_is_its_ffr_files_sorted(three_files: tuple[list[str], list[bytes]]) -> None:
    paths, records = three_files
    folder = Path(paths[0]).parent
    (folder / "notes.txt").write_text("not a record file")
    (folder / "old.ffr.bak").write_text("not a record file")
    (folder / ".new.ffr.0123.tmp").write_text("not a record file")
    for kind in (str, Path):
        with FileReader(kind(folder)) as reader:
            assert reader.fnames == paths
            assert handmade.as_bytes(reader) == records


def test_a_folder_without_record_files_says_so(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=str(tmp_path)):
        FileReader(tmp_path)


def test_many_files_are_read_as_one(mode: str, tmp_path: Path) -> None:
    records = handmade.random_records(range(0, 3000, 10))
    for i in range(100):
        handmade.write_records(tmp_path / f"{i:03}.ffr", records[3 * i : 3 * i + 3])
    with FileReader(tmp_path, mode=mode) as reader:
        order = random.Random(1).sample(range(300), 300)
        assert handmade.as_bytes(reader.read(order)) == [records[i] for i in order]
        assert handmade.as_bytes(reader) == records


def test_an_empty_list_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="at least one file"):
        FileReader([])


@pytest.mark.parametrize("wrong", [None, 3, b"bytes", {"a": 1}, iter(["a"])])
def test_what_is_no_path_is_a_type_error(wrong: Any) -> None:
    with pytest.raises(TypeError, match="path"):
        FileReader(wrong)


def test_an_unknown_mode_is_a_value_error_that_lists_them(sample_file: Path) -> None:
    with pytest.raises(ValueError, match="auto, aio, buffered, mmap, not 'fast'"):
        FileReader(sample_file, mode="fast")


def test_a_missing_file_is_the_systems_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"missing\.ffr"):
        FileReader(tmp_path / "missing.ffr")
    with pytest.raises(FileNotFoundError, match=r"missing\.ffr"):
        FileReader([tmp_path / "missing.ffr"])


def test_a_broken_symlink_is_the_systems_error(tmp_path: Path) -> None:
    (tmp_path / "link.ffr").symlink_to("nowhere")
    with pytest.raises(FileNotFoundError, match=r"link\.ffr"):
        FileReader(tmp_path / "link.ffr")


def test_a_symlink_is_followed(sample_file: Path, sample_records: list[bytes]) -> None:
    link = sample_file.with_name("link")
    link.symlink_to(sample_file)
    with FileReader(link) as reader:
        assert handmade.as_bytes(reader) == sample_records


def test_a_file_that_may_not_be_read_is_the_systems_error(sample_file: Path) -> None:
    """In a child that gives its rights up, since everything may be read by root."""
    sample_file.chmod(0)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            if os.geteuid() == 0:
                os.setresuid(65534, 65534, 65534)
            FileReader(sample_file)
        except PermissionError as error:
            code = 0 if str(sample_file) in str(error) else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.parametrize("kind", ["fifo", "folder in a list", "device", "socket"])
def test_what_is_no_regular_file_is_refused_without_waiting(
    kind: str, tmp_path: Path, mode: str
) -> None:
    path = str(tmp_path / "x")
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "folder in a list":
        os.mkdir(path)
    elif kind == "device":
        path = "/dev/null"
    else:
        import socket

        with socket.socket(socket.AF_UNIX) as listener:
            here = os.getcwd()
            os.chdir(tmp_path)  # the path of a socket may not be long
            try:
                listener.bind("x")
            finally:
                os.chdir(here)
    with pytest.raises(NotFFRecordError, match=path):
        FileReader([path], mode=mode)


def test_a_file_in_memory_is_read(mode: str, sample_records: list[bytes]) -> None:
    shm = Path("/dev/shm")
    if not os.access(shm, os.W_OK):
        pytest.skip("there is no /dev/shm")
    path = shm / f"ffrecord-test-{os.getpid()}.ffr"
    try:
        handmade.write_records(path, sample_records)
        with FileReader(path, mode=mode) as reader:
            assert handmade.as_bytes(reader.read(range(73))) == sample_records
            assert handmade.as_bytes(reader.read_async(range(73)).result()) == sample_records
    finally:
        path.unlink(missing_ok=True)


# ---- which records -------------------------------------------------------------------------

PICKS: list[tuple[str, Any, list[int]]] = [
    ("list", [3, 1, 2], [3, 1, 2]),
    ("tuple", (5, 4), [5, 4]),
    ("range", range(2, 12, 3), [2, 5, 8, 11]),
    ("range downwards", range(10, 0, -4), [10, 6, 2]),
    ("range of negatives", range(-3, 0), [70, 71, 72]),
    ("slice", slice(1, 9, 2), [1, 3, 5, 7]),
    ("slice beyond the end", slice(70, 1000), [70, 71, 72]),
    ("slice downwards", slice(None, 69, -1), [72, 71, 70]),
    ("negative numbers", [-1, -73, 0], [72, 0, 0]),
    ("numpy integers", [np.int8(3), np.uint64(4), np.int16(-1)], [3, 4, 72]),
    ("integers that are no ints", [Index(7), Index(-2)], [7, 71]),
    ("tensor", TensorLike(9, -1, 9), [9, 72, 9]),
    ("strided array", np.arange(20)[::7], [0, 7, 14]),
    ("read-only array", np.frombuffer(bytes([1, 2]), np.uint8), [1, 2]),
    ("big-endian array", np.array([1, 2], ">i4"), [1, 2]),
    ("bytearray", bytearray([4, 2]), [4, 2]),
    ("set", {44}, [44]),
    ("frozen set", frozenset([7]), [7]),
    ("keys of a dictionary", {5: "", 3: ""}.keys(), [5, 3]),
    ("values of a dictionary", {"": 5, " ": -1}.values(), [5, 72]),
    ("empty set", set(), []),
    ("one", [44], [44]),
    ("the same again", [9] * 5, [9] * 5),
    ("empty list", [], []),
    ("empty tuple", (), []),
    ("empty range", range(5, 5), []),
    ("empty slice", slice(9, 3), []),
    ("empty array", np.empty(0, np.int64), []),
    ("empty array of floats", np.empty(0), []),
    ("empty tensor", TensorLike(), []),
]


@pytest.mark.parametrize(("indices", "picked"), [p[1:] for p in PICKS], ids=[p[0] for p in PICKS])
def test_every_kind_of_indices_picks_its_records(
    indices: Any, picked: list[int], reader: FileReader, sample_records: list[bytes]
) -> None:
    expected = [sample_records[i] for i in picked]
    got = reader.read(indices)
    assert isinstance(got, list)
    assert handmade.as_bytes(got) == expected
    assert handmade.as_bytes(reader.read_async(indices).result()) == expected


@pytest.mark.parametrize("count", [0, 1, 2, 40])
def test_iterators_pick_records(
    count: int, reader: FileReader, sample_records: list[bytes]
) -> None:
    picked = [-(7 * i % 73) for i in range(count)]
    expected = [sample_records[i] for i in picked]
    assert handmade.as_bytes(reader.read(i for i in picked)) == expected
    assert handmade.as_bytes(reader.read(iter(picked))) == expected
    assert handmade.as_bytes(reader.read(map(np.int16, picked))) == expected
    assert handmade.as_bytes(reader.read_async(i for i in picked).result()) == expected


def test_an_endless_iterator_is_out_of_range(reader: FileReader) -> None:
    with pytest.raises(IndexError, match="record 73 is out of range"):
        reader.read(itertools.count())


def test_truth_values_are_no_indices_wherever_they_come_from(reader: FileReader) -> None:
    for indices in ([True, False], {True}, (each for each in [True])):
        with pytest.raises(TypeError, match="booleans"):
            reader.read(indices)


def test_a_reader_without_records_is_true(tmp_path: Path) -> None:
    with FileReader(handmade.write_records(tmp_path / "none.ffr", [])) as reader:
        assert bool(reader) is True
        assert len(reader) == 0


@pytest.mark.parametrize("dtype", ["i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8"])
def test_arrays_of_every_integer_type_pick_records(
    dtype: str, reader: FileReader, sample_records: list[bytes]
) -> None:
    indices = np.array([9, 0, 72, 9], dtype)
    assert handmade.as_bytes(reader.read(indices)) == [sample_records[i] for i in (9, 0, 72, 9)]


def test_indices_are_not_changed(reader: FileReader) -> None:
    indices = np.array([-1, -2, 3])
    reader.read(indices)
    reader.read_async(indices).result()
    assert indices.tolist() == [-1, -2, 3]


@pytest.mark.parametrize("index", [73, -74, 1000, 2**31, 2**62, -(2**62)])
def test_out_of_range_is_an_index_error_naming_index_and_n(index: int, reader: FileReader) -> None:
    wrongs: list[Any] = [
        [index], [0, index, 1], [1, 2, 3, index], np.array([index]), (index,),
        range(index, index + 1),
    ]  # fmt: skip
    for indices in wrongs:
        with pytest.raises(IndexError, match=rf"{index}\b.*\b73\b"):
            reader.read(indices)
        with pytest.raises(IndexError, match=rf"{index}\b.*\b73\b"):
            reader.read_async(indices)
    with pytest.raises(IndexError, match=rf"{index}\b.*\b73\b"):
        reader.read_one(index)
    with pytest.raises(IndexError, match=rf"{index}\b.*\b73\b"):
        _ = reader[index]


def test_what_is_out_of_range_is_said_of_which_file(tmp_path: Path) -> None:
    one, many = tmp_path / "one.ffr", tmp_path / "many.ffr"
    handmade.write_records(one, [b"x"])
    handmade.write_records(many, [b""] * 4782)
    cases: list[tuple[Any, str]] = [
        (one, f"{one}: record 99999 is out of range: there is 1 record"),
        (many, f"{many}: record 99999 is out of range: there are 4,782 records"),
        (
            [one, many],
            f"{one} and 1 more file: record 99999 is out of range: there are 4,783 records",
        ),
    ]
    for files, said in cases:
        with FileReader(files) as opened:
            reader = pickle.loads(pickle.dumps(opened))
        ways: list[Callable[[FileReader], object]] = [
            lambda reader: reader.read([0, 99999]),
            lambda reader: reader.read(range(99999, 100000)),
            lambda reader: reader.read(np.array([99999], np.uint64)),
            lambda reader: reader.read_async([99999]),
            lambda reader: reader.prefetch([99999]),
            lambda reader: reader.read_one(99999),
            lambda reader: reader.record_size(99999),
            lambda reader: reader.record_sizes([99999]),
            lambda reader: table_of(reader).locate(99999),
        ]
        for way in ways:
            with pytest.raises(IndexError) as raised:
                way(reader)
            assert str(raised.value) == said
        with pytest.raises(IndexError) as raised:
            reader.read_range(0, 99999)
        due = f"range [0, 99999) is not within [0, {reader.n:,})"
        assert str(raised.value) == f"{said.partition(': ')[0]}: {due}"


@pytest.mark.parametrize(
    "indices",
    [
        [2**63], [2**64 - 1], [2**64], [-(2**63) - 1], [2**70], [1, 2, -(2**70)],
        np.array([2**63], np.uint64), np.array([1, 2**64 - 1], np.uint64),
    ],
    ids=str,
)  # fmt: skip
def test_indices_beyond_64_bits_are_out_of_range_like_any_other(
    indices: Any, sample_file: Path
) -> None:
    with FileReader(sample_file) as reader:
        worst = max(map(int, indices), key=abs)
        with pytest.raises(IndexError, match=rf"{worst}\b.*\b73\b"):
            reader.read(indices)


@pytest.mark.parametrize(
    "indices",
    [range(10**15), range(-(10**15), 0), range(2**70, 2**70 + 2), range(-(2**63) - 5, 0)],
    ids=str,
)
def test_endless_ranges_are_out_of_range_at_once(indices: range, sample_file: Path) -> None:
    with FileReader(sample_file) as reader, pytest.raises(IndexError, match="73"):
        reader.read(indices)


def test_a_range_longer_than_any_list_is_out_of_range(sample_file: Path) -> None:
    with FileReader(sample_file) as reader, pytest.raises(IndexError, match="73"):
        reader.read(range(10**30))


@pytest.mark.parametrize(
    "indices",
    [
        5, np.int64(5), np.array(5), "12", b"12", None, 1.5, [1.5], ["a"], [None], np.array([1.0]),
        np.array([[1, 2]]), [[1], [2]], np.zeros(73, bool), {1.5}, {"a"}, {1: 2},
        object(),
    ],
    ids=handmade.label,
)  # fmt: skip
def test_what_are_no_indices_is_a_type_error(indices: Any, sample_file: Path) -> None:
    with FileReader(sample_file) as reader:
        with pytest.raises(TypeError):
            reader.read(indices)
        with pytest.raises(TypeError):
            reader.read_async(indices)


@settings(max_examples=60)
@given(st.lists(st.integers(-73, 72), max_size=120), st.sampled_from(MODES))
def test_any_batch_is_what_a_list_of_the_records_gives(
    sample_file: Path, sample_records: list[bytes], indices: list[int], mode: str
) -> None:
    with FileReader(sample_file, mode=mode) as reader:
        expected = [sample_records[i] for i in indices]
        assert handmade.as_bytes(reader.read(indices)) == expected
        assert handmade.as_bytes(reader.read(np.array(indices, np.int64))) == expected


def test_a_batch_has_no_upper_limit(mode: str, tmp_path: Path) -> None:
    records = handmade.random_records([i % 300 for i in range(10_000)])
    path = handmade.write_records(tmp_path / "many.ffr", records)
    shuffled = random.Random(2).choices(range(10_000), k=20_000)
    with FileReader(path, mode=mode) as reader:
        assert handmade.as_bytes(reader.read(range(10_000))) == records
        assert handmade.as_bytes(reader.read(shuffled)) == [records[i] for i in shuffled]
        pending = reader.read_async(shuffled)
        assert handmade.as_bytes(pending.result()) == [records[i] for i in shuffled]


# ---- the ways to read ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "index", [0, 5, 72, -1, -73, np.int32(9), np.uint64(9), np.array(9), Index(9), True]
)
def test_one_record_is_read_by_its_number(
    index: Any, reader: FileReader, sample_records: list[bytes]
) -> None:
    expected = sample_records[operator.index(index)]
    assert reader.read_one(index).tobytes() == expected
    assert reader[index].tobytes() == expected


def test_a_record_by_what_is_no_number_is_a_type_error(reader: FileReader) -> None:
    wrongs: list[Any] = [1.5, "1", None, [1], np.array([1, 2])]
    for wrong in wrongs:
        with pytest.raises(TypeError):
            reader.read_one(wrong)


@pytest.mark.parametrize(
    "index", [slice(3, 9), slice(None), [3, 1], (4, 5), range(4), np.arange(3)]
)
def test_brackets_with_several_are_a_batch(
    index: Any, reader: FileReader, sample_records: list[bytes]
) -> None:
    numbers = range(73)[index] if isinstance(index, slice) else index
    assert handmade.as_bytes(reader[index]) == [sample_records[i] for i in numbers]


def test_iteration_gives_every_record_in_order(
    reader: FileReader, sample_records: list[bytes]
) -> None:
    assert handmade.as_bytes(reader) == sample_records
    assert handmade.as_bytes(iter(reader)) == sample_records


def test_two_iterations_do_not_disturb_each_other(
    reader: FileReader, sample_records: list[bytes]
) -> None:
    pairs = zip(reader, reader, strict=True)
    assert all(
        a.tobytes() == b.tobytes() == r for (a, b), r in zip(pairs, sample_records, strict=True)
    )


def test_iteration_over_more_than_one_step_gives_every_record(mode: str, tmp_path: Path) -> None:
    sizes = [1] * 3000 + [5 << 20] * 2 + [0] * 10 + [1 << 20] * 9
    records = handmade.random_records(sizes)
    path = handmade.write_records(tmp_path / "steps.ffr", records)
    with FileReader(path, mode=mode) as reader:
        assert all(got.tobytes() == record for got, record in zip(reader, records, strict=True))
        steps = list(reader.tasks(STEP_RECORDS, STEP_BYTES))
        assert len(steps) > 5
        assert [number for step in steps for number in step] == list(range(len(records)))


@pytest.mark.parametrize(("start", "stop"), [(0, 73), (5, 6), (9, 9), (0, 0), (73, 73), (60, 73)])
def test_a_range_is_read_as_a_whole(
    start: int, stop: int, reader: FileReader, sample_records: list[bytes]
) -> None:
    assert handmade.as_bytes(reader.read_range(start, stop)) == sample_records[start:stop]


def test_an_index_from_the_end_means_the_same_record_everywhere(
    three_files: tuple[list[str], list[bytes]], mode: str
) -> None:
    paths, records = three_files
    with FileReader(paths, mode=mode) as reader:
        for index, record in enumerate(records, start=-len(records)):
            assert reader.read_one(index).tobytes() == record
            assert reader.record_size(index) == reader.record_sizes([index])[0] == len(record)
            assert reader.checksum(index) == zlib.crc32(record)
            assert b"".join(handmade.as_bytes(reader.stream(index, 1000))) == record


@pytest.mark.parametrize(("start", "stop"), [(-1, 5), (0, 74), (9, 3), (74, 74)])
def test_a_range_outside_is_an_index_error(start: int, stop: int, reader: FileReader) -> None:
    with pytest.raises(IndexError, match=rf"{start}, {stop}\b.*73"):
        reader.read_range(start, stop)


def test_large_records_are_read_in_pieces(mode: str, tmp_path: Path) -> None:
    sizes = [1 << 20, (1 << 20) + 1, 5, 3 << 20, 0, (7 << 20) + 12_345]
    records = handmade.random_records(sizes)
    path = handmade.write_records(tmp_path / "large.ffr", records)
    handmade.evict(path)
    with FileReader(path, mode=mode) as reader:
        for indices in (range(6), [5, 3, 5, 1], [5], [3, 3]):
            got = handmade.as_bytes(reader.read(indices))
            assert got == [records[i] for i in indices]
            handmade.evict(path)


def test_empty_records_are_empty_arrays(mode: str, tmp_path: Path) -> None:
    path = handmade.write_records(tmp_path / "empty.ffr", [b""] * 5)
    with FileReader(path, mode=mode) as reader:
        for got in (reader.read(range(5)), list(reader), reader.read_async([1, 2]).result()):
            assert all(record.shape == (0,) and record.dtype == np.uint8 for record in got)
        assert reader.read_one(3).tobytes() == b""


@settings(max_examples=40)
@given(st.integers(0, 10_000), st.lists(st.integers(0, 9000), min_size=1, max_size=10))
def test_records_may_begin_and_end_anywhere(tmp_path: Path, gap: int, sizes: list[int]) -> None:
    records = handmade.random_records(sizes, seed=gap)
    path = handmade.write_records(tmp_path / "any.ffr", records, gap)
    handmade.evict(path)
    for mode in MODES:
        with FileReader(path, mode=mode) as reader:
            assert handmade.as_bytes(reader.read(range(len(records)))) == records


# ---- results -------------------------------------------------------------------------------


def test_results_are_flat_arrays_of_bytes(reader: FileReader) -> None:
    for record in [
        *reader.read(range(73)),
        reader.read_one(9),
        *reader.read_async([1, 9]).result(),
    ]:
        assert type(record) is np.ndarray
        assert record.dtype == np.uint8
        assert record.ndim == 1
        assert record.flags.c_contiguous


@pytest.mark.parametrize("mode", COPYING, indirect=True)
def test_results_may_be_written_to_and_are_nobody_elses(
    reader: FileReader, sample_records: list[bytes]
) -> None:
    indices = [9, 10, 9, 5, 9, 10, 3]
    got = reader.read(indices)
    for number, record in enumerate(got):
        record[:] = number
    for number, record in enumerate(got):
        assert set(record.tolist()) <= {number}
    one = reader.read_one(9)
    one[:] = 0
    assert handmade.as_bytes(reader.read(indices)) == [sample_records[i] for i in indices]
    assert reader.read_one(9).tobytes() == sample_records[9]


def test_mapped_results_are_read_only(sample_file: Path, sample_records: list[bytes]) -> None:
    with FileReader(sample_file, mode="mmap") as reader:
        for record in (reader.read_one(9), *reader.read([9, 10, 11]), next(iter(reader))):
            assert not record.flags.writeable
            with pytest.raises(ValueError, match="read-only"):
                record[...] = 0
    assert sample_file.read_bytes() == handmade.record_bytes(sample_records)


def test_results_stay_valid_when_the_reader_is_gone(
    sample_file: Path, sample_records: list[bytes], mode: str
) -> None:
    reader = FileReader(sample_file, mode=mode)
    batch, pending = reader.read(range(73)), reader.read_async(range(73))
    one = reader.read_one(9)
    reader.close()
    del reader
    sample_file.unlink()
    assert handmade.as_bytes(batch) == sample_records
    assert handmade.as_bytes(pending.result()) == sample_records
    assert one.tobytes() == sample_records[9]


def test_one_result_stays_valid_when_its_batch_is_gone(
    reader: FileReader, sample_records: list[bytes]
) -> None:
    kept = [reader.read(range(73))[10] for _ in range(5)]
    for _ in range(20):
        reader.read(range(73))
    assert handmade.as_bytes(kept) == [sample_records[10]] * 5


def test_results_can_be_unpickled_and_parsed_in_place(tmp_path: Path, mode: str) -> None:
    value = {"a": list(range(1000)), "b": "text"}
    numbers = np.arange(500, dtype="<f8")
    path = handmade.write_records(
        tmp_path / "p.ffr", [pickle.dumps(value), numbers.tobytes(), b"x"]
    )
    with FileReader(path, mode=mode) as reader:
        pickled, raw, _x = reader.read([0, 1, 2])
        assert pickle.loads(pickled.data) == value
        assert np.array_equal(np.frombuffer(raw, "<f8"), numbers)


# ---- reading ahead -------------------------------------------------------------------------


def test_several_batches_may_be_in_flight(reader: FileReader, sample_records: list[bytes]) -> None:
    batches = [random.Random(i).choices(range(73), k=50) for i in range(20)]
    pending = [reader.read_async(batch) for batch in batches]
    order = random.Random(9).sample(range(20), 20)
    for i in order:
        expected = [sample_records[k] for k in batches[i]]
        assert handmade.as_bytes(pending[i].result()) == expected


def test_a_result_may_be_asked_for_twice(reader: FileReader, sample_records: list[bytes]) -> None:
    pending = reader.read_async(range(73))
    assert handmade.as_bytes(pending.result()) == sample_records
    assert handmade.as_bytes(pending.result()) == sample_records


def test_a_batch_may_be_dropped_without_its_result(
    reader: FileReader, sample_records: list[bytes]
) -> None:
    for _ in range(50):
        reader.read_async(range(73))
    assert handmade.as_bytes(reader.read(range(73))) == sample_records


def test_a_result_may_be_asked_for_in_a_forked_child(
    sample_file: Path, sample_records: list[bytes], mode: str
) -> None:
    handmade.evict(sample_file)
    with FileReader(sample_file, mode=mode) as reader:
        pending = reader.read_async(range(73))
        child = os.fork()
        if child == 0:
            code = 1
            try:
                right = handmade.as_bytes(pending.result()) == sample_records
                again = handmade.as_bytes(pending.result()) == sample_records
                code = 0 if right and again else 2
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert handmade.as_bytes(pending.result()) == sample_records


def test_a_damaged_record_is_reported_by_the_result(sample_file: Path, mode: str) -> None:
    data = bytearray(sample_file.read_bytes())
    data[-1] ^= 1
    sample_file.write_bytes(data)
    with FileReader(sample_file, mode=mode) as reader:
        for _ in range(2):
            with pytest.raises(SampleChecksumError, match="record 72"):
                reader.read_async([0, 72, 1]).result()


# ---- what is known without reading ---------------------------------------------------------


def test_offsets_and_checksums_are_those_of_the_header(
    three_files: tuple[list[str], list[bytes]], mode: str
) -> None:
    paths, _records = three_files
    with FileReader(paths, mode=mode) as reader:
        for number, path in enumerate(paths):
            data = Path(path).read_bytes()
            (n,) = struct.unpack_from("<q", data, 4)
            checksums = struct.unpack_from(f"<{n}I", data, 12)
            offsets = struct.unpack_from(f"<{n}q", data, 12 + 4 * n)
            for index in (number, number - len(paths)):
                assert reader.get_checksums(index).tolist() == list(checksums)
                assert reader.get_offsets(index).tolist() == [*offsets, len(data)]
        for index in (3, -4):
            with pytest.raises(IndexError):
                reader.get_offsets(index)
            with pytest.raises(IndexError):
                reader.get_checksums(index)


def test_what_the_caller_does_to_offsets_and_checksums_does_not_reach_the_reader(
    sample_file: Path, sample_records: list[bytes]
) -> None:
    with FileReader(sample_file) as reader:
        for array in (reader.get_offsets(0), reader.get_checksums(0)):
            try:
                array[:] = 0
            except ValueError:
                assert not array.flags.writeable
        assert handmade.as_bytes(reader.read(range(73))) == sample_records


def test_the_fingerprint_is_the_sha256_of_the_headers(
    three_files: tuple[list[str], list[bytes]], mode: str
) -> None:
    paths, _records = three_files
    digest = hashlib.sha256()
    for path, n in zip(paths, (4, 0, 6), strict=True):
        digest.update(Path(path).read_bytes()[: 12 + 12 * n])
    with FileReader(paths, mode=mode) as reader:
        assert reader.fingerprint == digest.hexdigest()
    assert reader.fingerprint == digest.hexdigest()
    with FileReader(paths[::-1]) as other:
        assert other.fingerprint != digest.hexdigest()


def test_the_fingerprint_of_a_legacy_file_is_of_its_bytes_too(sample_file: Path) -> None:
    data = bytes(4) + sample_file.read_bytes()[4:]
    sample_file.write_bytes(data)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LegacyFileWarning)
        reader = FileReader(sample_file)
    assert reader.fingerprint == hashlib.sha256(data[: 12 + 12 * 73]).hexdigest()
    reader.close()


# ---- checking ------------------------------------------------------------------------------


def test_validate_is_silent_about_a_good_file(reader: FileReader) -> None:
    reader.validate()


def test_validate_sees_what_has_become_of_the_header(sample_file: Path, mode: str) -> None:
    for check_data in (True, False):
        with FileReader(sample_file, check_data=check_data, mode=mode) as reader:
            with sample_file.open("r+b") as file:
                file.seek(20)
                byte = file.read(1)[0]
                file.seek(20)
                file.write(bytes([byte ^ 1]))
                file.flush()
                with pytest.raises(HeaderChecksumError, match="sample"):
                    reader.validate()
                file.seek(20)
                file.write(bytes([byte]))
                file.flush()
            reader.validate()


@pytest.mark.parametrize("mode", COPYING, indirect=True)
def test_a_file_cut_off_while_open_is_an_error(
    sample_file: Path, sample_records: list[bytes], mode: str
) -> None:
    size = sample_file.stat().st_size
    data = sample_file.read_bytes()
    for cut in (1, 5000, size // 2, size - 1000):
        sample_file.write_bytes(data)
        with FileReader(sample_file, mode=mode) as reader:
            os.truncate(sample_file, size - cut)
            for read in (
                lambda r: r.read(range(73)),
                lambda r: r.read_one(72),
                lambda r: r.read_async(range(73)).result(),
                list,
            ):
                with pytest.raises((TruncatedError, SampleChecksumError), match="sample"):
                    read(reader)
            ends = reader.get_offsets(0)[1:].tolist()
            intact = [i for i, end in enumerate(ends) if end <= size - cut]
            got = handmade.as_bytes(reader.read(intact))
            assert got == [sample_records[i] for i in intact]


def test_a_file_cut_off_while_open_is_an_error_without_checksums_too(sample_file: Path) -> None:
    for mode in COPYING:
        with FileReader(sample_file, check_data=False, mode=mode) as reader:
            size = sample_file.stat().st_size
            os.truncate(sample_file, size - 1)
            with pytest.raises(TruncatedError, match="sample"):
                reader.read(range(73))
            os.truncate(sample_file, size)


def test_unchecked_reading_gives_the_bytes_that_are_there(sample_file: Path, mode: str) -> None:
    data = bytearray(sample_file.read_bytes())
    data[-1] ^= 0xFF
    sample_file.write_bytes(data)
    with FileReader(sample_file, check_data=False, mode=mode) as reader:
        assert reader.check_data is False
        expected = bytes(data[reader.get_offsets(0)[72] :])
        assert reader.read_one(72).tobytes() == expected
        assert reader.read([1, 72, 2])[1].tobytes() == expected


def test_damaged_records_are_found_one_by_one(sample_file: Path, mode: str) -> None:
    data = bytearray(sample_file.read_bytes())
    with FileReader(sample_file) as reader:
        offsets = reader.get_offsets(0).tolist()
    for damaged in (3, 9, 72):
        data[offsets[damaged]] ^= 0x10
    sample_file.write_bytes(data)
    with FileReader(sample_file, mode=mode) as reader:
        found = reader.find_damaged(0, 73)
        assert [number for number, _error in found] == [3, 9, 72]
        assert all(isinstance(error, SampleChecksumError) for _number, error in found)
        assert reader.find_damaged(10, 72) == []


# ---- life ----------------------------------------------------------------------------------


def test_a_closed_reader_says_so(sample_file: Path, mode: str) -> None:
    reader = FileReader(sample_file, mode=mode)
    reader.close()
    reader.close()
    uses: list[Callable[[FileReader], object]] = [
        lambda r: r.read([0]),
        lambda r: r.read(range(73)),
        lambda r: r.read([]),
        lambda r: r.read_one(0),
        lambda r: r[0],
        lambda r: r[0:3],
        lambda r: r.read_range(0, 3),
        lambda r: r.read_async([0]),
        lambda r: next(iter(r)),
        lambda r: r.validate(),
        lambda r: r.find_damaged(0, 3),
    ]
    for use in uses:
        with pytest.raises(ClosedError, match=str(sample_file)):
            use(reader)
    assert len(reader) == 73
    assert "closed" in repr(reader)


def test_leaving_a_with_block_closes(sample_file: Path, mode: str) -> None:
    before = handmade.open_descriptors()
    with FileReader(sample_file, mode=mode) as reader:
        assert handmade.open_descriptors() > before
        assert "73 records" in repr(reader)
    with pytest.raises(ClosedError):
        reader.read([0])
    assert handmade.open_descriptors() == before


def test_a_dropped_reader_closes(sample_file: Path, mode: str) -> None:
    before = handmade.open_descriptors()
    reader = FileReader(sample_file, mode=mode)
    reader.read(range(73))
    del reader
    assert handmade.open_descriptors() == before


@pytest.mark.parametrize("when", ["before the batch", "after the batch"])
def test_a_reader_closed_by_another_thread_is_right_or_says_that_it_is_closed(
    when: str, sample_file: Path, sample_records: list[bytes], mode: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """As if the other thread had come just before or after the batch was made."""
    batch = Table.batch
    opened: list[FileReader] = []

    def closed_meanwhile(self: Table, records: Any) -> Any:
        if when == "before the batch":
            opened[-1].close()
        made = batch(self, records)
        opened[-1].close()
        return made

    monkeypatch.setattr(Table, "batch", closed_meanwhile)
    reads: list[Callable[[FileReader], Any]] = [
        lambda r: r.read(range(73)),
        lambda r: r.read_async(range(73)).result(),
    ]
    for read in reads:
        opened.append(FileReader(sample_file, mode=mode))
        try:
            got = handmade.as_bytes(read(opened[-1]))
        except ClosedError:
            continue
        assert got == sample_records


def test_a_reader_whose_file_was_replaced_is_not_pickled(tmp_path: Path) -> None:
    """Another process would open the new file, and read other records than this one."""
    path = handmade.write_records(tmp_path / "a.ffr", [b"one", b"two"])
    dumped = pickle.dumps(FileReader(path))
    with FileReader([path, path]) as reader:
        other = handmade.write_records(tmp_path / "b.ffr", [b"one", b"other"])
        os.replace(other, path)
        assert reader.read_one(1).tobytes() == b"two"
        with pytest.raises(ChangedError, match=rf"{re.escape(str(path))}: replaced since"):
            pickle.dumps(reader)
        with pytest.raises(ChangedError, match=re.escape(str(path))):
            pickle.loads(dumped)
        # A copy of the old file has the same records.
        os.replace(handmade.write_records(tmp_path / "c.ffr", [b"one", b"two"]), path)
        assert pickle.loads(pickle.dumps(reader))[1].tobytes() == b"two"
        path.unlink()
        with pytest.raises(ChangedError, match=re.escape(str(path))):
            pickle.dumps(reader)


def test_a_loader_asks_for_a_batch_of_records_at_once(tmp_path: Path) -> None:
    """torch's loaders call `__getitems__` where there is one."""
    with FileReader(handmade.write_records(tmp_path / "a.ffr", [b"0", b"11", b"2"])) as reader:
        assert [r.tobytes() for r in reader.__getitems__([2, 0, 1, -1])] == [
            b"2",
            b"0",
            b"11",
            b"2",
        ]


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_a_pickled_reader_opens_the_same_files_the_same_way(
    protocol: int, three_files: tuple[list[str], list[bytes]], mode: str
) -> None:
    paths, records = three_files
    with FileReader(paths, check_data=False, mode=mode) as reader:
        dumped = pickle.dumps(reader, protocol)
    assert len(dumped) < 1000
    with pickle.loads(dumped) as again:
        assert again.fnames == paths
        assert again.check_data is False
        assert again.mode == mode
        assert handmade.as_bytes(again) == records


@pytest.mark.parametrize("make", [pickle.dumps, copy.deepcopy])
def test_what_is_being_read_cannot_be_pickled_or_copied(
    sample_file: Path, sample_records: list[bytes], make: Callable[[object], object], mode: str
) -> None:
    """A copy had the same descriptors, and closed them when it went: the reader was done with."""
    with FileReader(sample_file, mode=mode) as reader:
        pending = reader.read_async([1, 2, 3, 4])
        with pytest.raises((TypeError, ValueError), match="pickled"):  # ctypes' own if in flight
            make(pending)
        with pytest.raises(TypeError, match=r"sample\.ffr: an open file is not pickled or copied"):
            make(table_of(reader).require_open().each)
        assert handmade.as_bytes(pending.result()) == sample_records[1:5]
        assert handmade.as_bytes(reader.read([5, 6, 7])) == sample_records[5:8]


def test_a_pickled_reader_of_a_missing_file_says_so(sample_file: Path) -> None:
    with FileReader(sample_file) as reader:
        dumped = pickle.dumps(reader)
    sample_file.unlink()
    with pytest.raises(FileNotFoundError):
        pickle.loads(dumped)


def test_a_failed_opening_leaves_nothing_to_complain_about(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    complaints: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", complaints.append)
    (tmp_path / "bad.ffr").write_bytes(b"\x01" * 30)
    for wrong in (tmp_path / "bad.ffr", tmp_path / "missing.ffr", tmp_path / "missing" / "x"):
        with pytest.raises((FFRecordError, OSError)):
            FileReader(wrong)
    assert complaints == []


def test_more_shards_than_the_usual_limit_of_open_files(tmp_path: Path) -> None:
    """In a process of its own: it starts with a soft limit of 1024."""
    for i in range(600):
        (tmp_path / f"{i:03d}.ffr").write_bytes(handmade.record_bytes([b"%d" % i]))
    script = (
        "import resource, sys\n"
        "hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (1024, hard))\n"
        "from ffrecord import FileReader\n"
        "for mode in ('auto', 'mmap', 'buffered'):\n"
        "    records = FileReader(sys.argv[1], mode=mode).read(range(600))\n"
        "    assert [bytes(r) for r in records] == [b'%d' % i for i in range(600)]\n"
    )
    if resource.getrlimit(resource.RLIMIT_NOFILE)[1] < 1500:
        pytest.skip("the hard limit of open files is too low")
    subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=True, timeout=600)
