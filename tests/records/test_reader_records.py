"""`FileReader` and its records: indices, ways to read, results and reading ahead."""

from __future__ import annotations

import itertools
import operator
import os
import pickle
import random
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ffrecord import FileReader, SampleChecksumError
from ffrecord.records.reader import STEP_BYTES, STEP_RECORDS, table_of
from tests.support import handmade
from tests.support.modes import COPYING, MODES


class TensorLike:
    """A stand-in for a tensor, with a length and `__array__`, which numpy uses."""

    def __init__(self, *numbers: int) -> None:
        self._numbers = numbers

    def __len__(self) -> int:
        return len(self._numbers)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        return np.array(self._numbers, dtype or np.int64)


class Index:
    """An integer that is not an int."""

    def __init__(self, number: int) -> None:
        self._number = number

    def __index__(self) -> int:
        return self._number


# ---- indices -------------------------------------------------------------------------------

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
    ("integers that are not ints", [Index(7), Index(-2)], [7, 71]),
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
def test_every_kind_of_indices_selects_its_records(
    indices: Any, picked: list[int], reader: FileReader, sample_records: list[bytes]
) -> None:
    expected = [sample_records[i] for i in picked]
    got = reader.read(indices)
    assert isinstance(got, list)
    assert handmade.as_bytes(got) == expected
    assert handmade.as_bytes(reader.read_async(indices).result()) == expected


@pytest.mark.parametrize("count", [0, 1, 2, 40])
def test_iterators_select_records(
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


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda reader: reader.read_one("a"), "the index of a record must be an int, not str$"),
        (lambda reader: reader.read_one(1.0), "must be an int, not float$"),
        (lambda reader: reader.read_one([1, 2]), "not list; to read several records use read$"),
        (lambda reader: reader[1.5], "the index of a record must be an int, not float$"),
        (lambda reader: reader.record_size("a"), "the index of a record must be an int, not str$"),
        (lambda reader: reader.read_range("0", 3), "start must be an int, not str"),
        (lambda reader: reader.iterate("0"), "start must be an int, not str"),
        (lambda reader: reader.partition("0", 3), "k must be an int, not str"),
        (lambda reader: reader.tasks(max_bytes="1"), "max_bytes must be an int, not str"),
    ],
)
def test_an_argument_that_is_not_an_integer_is_named(
    ask: Callable[[FileReader], object], message: str, reader: FileReader
) -> None:
    with pytest.raises(TypeError, match=message):
        ask(reader)


def test_booleans_are_refused_as_indices(reader: FileReader) -> None:
    for indices in ([True, False], {True}, (each for each in [True])):
        with pytest.raises(TypeError, match="booleans"):
            reader.read(indices)


def test_a_reader_without_records_is_true(tmp_path: Path) -> None:
    with FileReader(handmade.write_records(tmp_path / "none.ffr", [])) as reader:
        assert bool(reader) is True
        assert len(reader) == 0


@pytest.mark.parametrize("dtype", ["i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8"])
def test_arrays_of_every_integer_type_select_records(
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
def test_an_index_out_of_range_is_an_error_that_names_index_and_n(
    index: int, reader: FileReader
) -> None:
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


def test_an_index_out_of_range_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    one, many = tmp_path / "one.ffr", tmp_path / "many.ffr"
    handmade.write_records(one, [b"x"])
    handmade.write_records(many, [b""] * 4782)
    cases: list[tuple[Any, str]] = [
        (one, f"{one}: record 99999 is out of range: there is 1 record, number 0"),
        (
            many,
            f"{many}: record 99999 is out of range: there are 4,782 records, numbered 0 to 4781",
        ),
        (
            [one, many],
            f"{one} and 1 more file: record 99999 is out of range: "
            "there are 4,783 records, numbered 0 to 4782",
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
        due = f"range(0, 99999) is not valid; read_range needs 0 <= start <= stop <= {reader.n}"
        assert str(raised.value) == f"{said.partition(': ')[0]}: {due}"


def test_a_reader_does_not_search_its_records(sample_file: Path) -> None:
    with FileReader(sample_file) as reader, pytest.raises(TypeError, match="compare them in a"):
        b"abc" in reader  # noqa: B015


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
def test_huge_ranges_are_out_of_range_at_once(indices: range, sample_file: Path) -> None:
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
def test_invalid_indices_are_a_type_error(indices: Any, sample_file: Path) -> None:
    with FileReader(sample_file) as reader:
        with pytest.raises(TypeError):
            reader.read(indices)
        with pytest.raises(TypeError):
            reader.read_async(indices)


@settings(max_examples=60)
@given(st.lists(st.integers(-73, 72), max_size=120), st.sampled_from(MODES))
def test_any_batch_equals_the_same_selection_from_a_list(
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
def test_one_record_is_read_by_its_index(
    index: Any, reader: FileReader, sample_records: list[bytes]
) -> None:
    expected = sample_records[operator.index(index)]
    assert reader.read_one(index).tobytes() == expected
    assert reader[index].tobytes() == expected


def test_an_invalid_index_of_one_record_is_a_type_error(reader: FileReader) -> None:
    wrongs: list[Any] = [1.5, "1", None, [1], np.array([1, 2])]
    for wrong in wrongs:
        with pytest.raises(TypeError):
            reader.read_one(wrong)


@pytest.mark.parametrize(
    "index", [slice(3, 9), slice(None), [3, 1], (4, 5), range(4), np.arange(3)]
)
def test_brackets_with_several_indices_read_a_batch(
    index: Any, reader: FileReader, sample_records: list[bytes]
) -> None:
    numbers = range(73)[index] if isinstance(index, slice) else index
    assert handmade.as_bytes(reader[index]) == [sample_records[i] for i in numbers]


def test_iteration_yields_every_record_in_order(
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


def test_iteration_over_more_than_one_step_yields_every_record(mode: str, tmp_path: Path) -> None:
    sizes = [1] * 3000 + [5 << 20] * 2 + [0] * 10 + [1 << 20] * 9
    records = handmade.random_records(sizes)
    path = handmade.write_records(tmp_path / "steps.ffr", records)
    with FileReader(path, mode=mode) as reader:
        assert all(got.tobytes() == record for got, record in zip(reader, records, strict=True))
        steps = list(reader.tasks(STEP_RECORDS, STEP_BYTES))
        assert len(steps) > 5
        assert [number for step in steps for number in step] == list(range(len(records)))


@pytest.mark.parametrize(("start", "stop"), [(0, 73), (5, 6), (9, 9), (0, 0), (73, 73), (60, 73)])
def test_read_range_returns_the_records_of_a_range(
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
def test_an_invalid_range_is_an_index_error(start: int, stop: int, reader: FileReader) -> None:
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
def test_results_are_writable_and_share_no_memory(
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


def test_results_stay_valid_after_the_reader_is_closed(
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


def test_one_result_stays_valid_after_its_batch_is_dropped(
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


def test_result_may_be_called_twice(reader: FileReader, sample_records: list[bytes]) -> None:
    pending = reader.read_async(range(73))
    assert handmade.as_bytes(pending.result()) == sample_records
    assert handmade.as_bytes(pending.result()) == sample_records


def test_a_batch_may_be_dropped_without_its_result(
    reader: FileReader, sample_records: list[bytes]
) -> None:
    for _ in range(50):
        reader.read_async(range(73))
    assert handmade.as_bytes(reader.read(range(73))) == sample_records


def test_result_may_be_called_in_a_forked_child(
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


def test_result_raises_the_error_of_a_damaged_record(sample_file: Path, mode: str) -> None:
    data = bytearray(sample_file.read_bytes())
    data[-1] ^= 1
    sample_file.write_bytes(data)
    with FileReader(sample_file, mode=mode) as reader:
        for _ in range(2):
            with pytest.raises(SampleChecksumError, match="record 72"):
                reader.read_async([0, 72, 1]).result()
