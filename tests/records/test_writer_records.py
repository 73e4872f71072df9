"""`FileWriter` and its records: buffers, streams, interruptions and unknown counts."""

from __future__ import annotations

import array
import ctypes
import errno
import io
import math
import mmap
import os
import re
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ffrecord import FileWriter
from tests.support import handmade
from tests.support.writing import Pattern, read_all, without_insert_range, without_tmpfile

# In memory: tests/atomic/test_file.py covers real disks.
pytestmark = [pytest.mark.in_memory, pytest.mark.usefixtures("_no_writer_is_left_open")]


# ---- buffers -------------------------------------------------------------------------------

DTYPES = [
    "?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "g", "F", "D", "G",
    ">i2", ">i4", ">i8", ">u4", ">f2", ">f8", ">c16", "S5", "U3", ">U3", "V7", "M8[ns]", "m8[s]",
    "i4,f8", [("a", "<i2"), ("b", ">f4", (2, 3)), ("c", "S3")],
]  # fmt: skip


SHAPES: list[tuple[int, ...]] = [(), (1,), (17,), (3, 4), (2, 3, 4), (0,), (3, 0, 2)]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_arrays_of_every_type_and_shape_are_written_as_their_bytes(
    dtype: Any, tmp_path: Path
) -> None:
    kind = np.dtype(dtype)
    raws = handmade.random_records([math.prod(shape) * kind.itemsize for shape in SHAPES])
    with FileWriter(tmp_path / "a.ffr", len(SHAPES)) as writer:
        for shape, raw in zip(SHAPES, raws, strict=True):
            writer.write_one(np.ndarray(shape, kind, bytearray(raw) if raw else None))
    assert read_all(tmp_path / "a.ffr") == raws


class Point(ctypes.Structure):
    """A struct with padding."""

    _fields_ = (("x", ctypes.c_int32), ("y", ctypes.c_double))


BUFFERS: list[tuple[str, Callable[[], Any]]] = [
    ("bytes", lambda: b"some bytes"),
    ("empty bytes", lambda: b""),
    ("bytearray", lambda: bytearray(b"some bytes")),
    ("memoryview", lambda: memoryview(b"some bytes")[2:6]),
    ("memoryview of doubles", lambda: memoryview(array.array("d", [1.5, 2.5]))),
    ("memoryview of two dimensions", lambda: np.arange(12.0).reshape(3, 4).data),
    ("memoryview without dimensions", lambda: np.array(7).data),
    ("empty memoryview", lambda: np.empty((0, 3)).data),
    ("array", lambda: array.array("i", range(100))),
    ("empty array", lambda: array.array("i")),
    ("ctypes struct", lambda: Point(3, 4.5)),
    ("ctypes array", lambda: (ctypes.c_uint16 * 3)(1, 2, 3)),
    ("numpy scalar", lambda: np.float32(2.5)),
    ("read-only numpy array", lambda: np.frombuffer(b"some bytes", np.uint8)),
    ("numpy record array", lambda: np.rec.array([(1, 2.5)], dtype="i4,f8")),
]


@pytest.mark.parametrize("n", [3, None])
@pytest.mark.parametrize("make", [m for _n, m in BUFFERS], ids=[n for n, _m in BUFFERS])
def test_every_kind_of_buffer_is_written_as_its_bytes(
    make: Callable[[], Any], n: int | None, tmp_path: Path
) -> None:
    data = make()
    with FileWriter(tmp_path / "b.ffr", n) as writer:
        writer.write([b"before", data, b"after"])
    assert read_all(tmp_path / "b.ffr") == [b"before", memoryview(data).tobytes(), b"after"]


def test_a_matrix_is_written_as_its_bytes(tmp_path: Path) -> None:
    with pytest.warns(PendingDeprecationWarning):
        data = np.matrix([[1, 2], [3, 4]], np.uint8)
    with FileWriter(tmp_path / "m.ffr", 2) as writer:
        writer.write([data, b"after"])
    assert read_all(tmp_path / "m.ffr") == [bytes([1, 2, 3, 4]), b"after"]


def test_a_masked_array_is_written_as_its_data(tmp_path: Path) -> None:
    data = np.ma.masked_array(np.arange(3), mask=[False, True, False])
    with FileWriter(tmp_path / "m.ffr", 1) as writer:
        writer.write_one(data)
    assert read_all(tmp_path / "m.ffr") == [np.arange(3).tobytes()]


def test_a_mapping_is_written_from_its_beginning_whatever_its_position(tmp_path: Path) -> None:
    with mmap.mmap(-1, 10) as data, FileWriter(tmp_path / "m.ffr", 2) as writer:
        data[:] = b"0123456789"
        data.seek(4)
        writer.write([data, data])
    assert read_all(tmp_path / "m.ffr") == [b"0123456789"] * 2


@pytest.mark.parametrize(
    "data",
    [
        np.arange(10)[::2],
        np.arange(12).reshape(3, 4).T,
        np.asfortranarray(np.arange(12.0).reshape(3, 4)),
        memoryview(b"0123456789")[::2],
        np.asfortranarray(np.arange(12.0).reshape(3, 4)).data,
        np.broadcast_to(np.uint8(1), (5,)),
    ],
    ids=["strided", "transposed", "fortran", "strided view", "fortran view", "broadcast"],
)
def test_a_buffer_that_is_not_contiguous_is_a_value_error(data: Any, tmp_path: Path) -> None:
    with FileWriter(tmp_path / "h.ffr", 1) as writer:
        with pytest.raises(ValueError, match="not C-contiguous"):
            writer.write_one(data)
        assert writer.count == 0
        writer.write_one(b"the writer still works")
    assert read_all(tmp_path / "h.ffr") == [b"the writer still works"]


@pytest.mark.parametrize(
    "data",
    ["text", np.array([None, 1]), np.zeros(2, [("a", object)]), None, 5, 2.5, [1, 2], {}, object()],
    ids=lambda data: type(data).__name__,
)
def test_an_object_without_bytes_is_a_type_error(data: Any, tmp_path: Path) -> None:
    with FileWriter(tmp_path / "t.ffr") as writer:
        with pytest.raises(TypeError):
            writer.write_one(data)
        writer.write_one(b"the writer still works")
    assert read_all(tmp_path / "t.ffr") == [b"the writer still works"]


@settings(max_examples=50)
@given(st.lists(st.binary(max_size=5000), max_size=30))
def test_written_records_are_read_back(tmp_path: Path, records: list[bytes]) -> None:
    for n in (len(records), None):
        with FileWriter(tmp_path / "p.ffr", n) as writer:
            writer.write(iter(records))
            assert writer.count == len(records)
            assert writer.n == n
        assert read_all(tmp_path / "p.ffr") == records


def test_write_takes_any_iterable(tmp_path: Path) -> None:
    with FileWriter(tmp_path / "i.ffr", 4) as writer:
        writer.write(str(i).encode() for i in range(3))
        writer.write([b"last"])
        writer.write(())
    assert read_all(tmp_path / "i.ffr") == [b"0", b"1", b"2", b"last"]


def test_the_caller_may_change_a_buffer_after_writing_it(tmp_path: Path) -> None:
    buffer = bytearray(b"first")
    with FileWriter(tmp_path / "c.ffr", 2) as writer:
        writer.write_one(buffer)
        buffer[:] = b"other"
        writer.write_one(buffer)
    assert read_all(tmp_path / "c.ffr") == [b"first", b"other"]


# ---- streams -------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [2, None])
def test_a_large_stream_is_written_without_holding_it_in_memory(
    n: int | None, tmp_path: Path
) -> None:
    size = 64 << 20
    tracemalloc.start()
    try:
        with FileWriter(tmp_path / "s.ffr", n) as writer:
            writer.write_one(Pattern(size))
            writer.write_one(b"after")
        _now, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 8 << 20
    large, small = read_all(tmp_path / "s.ffr")
    assert large == Pattern.BLOCK * (size // len(Pattern.BLOCK))
    assert small == b"after"


def test_streams_of_every_kind_are_read_to_their_end(tmp_path: Path) -> None:
    content = handmade.random_records([100_000])[0]
    (tmp_path / "plain").write_bytes(content)
    reading, writing = os.pipe()
    os.write(writing, content[:50_000])
    os.close(writing)
    with (
        (tmp_path / "plain").open("rb") as buffered,
        (tmp_path / "plain").open("rb", buffering=0) as raw,
        os.fdopen(reading, "rb", buffering=0) as pipe,
        FileWriter(tmp_path / "s.ffr", 5) as writer,
    ):
        writer.write([buffered, raw, pipe, io.BytesIO(content), io.BytesIO()])
    assert read_all(tmp_path / "s.ffr") == [content, content, content[:50_000], content, b""]


def test_a_stream_is_read_from_its_current_position(tmp_path: Path) -> None:
    stream = io.BytesIO(b"0123456789")
    stream.seek(4)
    with FileWriter(tmp_path / "s.ffr", 1) as writer:
        writer.write_one(stream)
    assert read_all(tmp_path / "s.ffr") == [b"456789"]


class Breaking:
    """A stream that fails after some chunks."""

    def __init__(self, chunks: int, error: BaseException) -> None:
        self._chunks, self._error = chunks, error

    def read(self, size: int) -> bytes:
        self._chunks -= 1
        if self._chunks < 0:
            raise self._error
        return b"x" * size


@pytest.mark.parametrize("n", [3, None])
@pytest.mark.parametrize("chunks", [0, 1, 3])
@pytest.mark.parametrize(
    "error", [ValueError("no more"), OSError(errno.EIO, "?"), KeyboardInterrupt()]
)
def test_a_failing_stream_leaves_no_bytes_in_the_file(
    error: BaseException, chunks: int, n: int | None, tmp_path: Path
) -> None:
    with FileWriter(tmp_path / "s.ffr", n) as writer:
        writer.write_one(b"before")
        with pytest.raises(type(error)):
            writer.write_one(Breaking(chunks, error))
        assert writer.count == 1
        writer.write([b"after", b"last"])
    assert read_all(tmp_path / "s.ffr") == [b"before", b"after", b"last"]


class Tensor:
    """An object like a torch tensor, which has no buffer."""

    def numpy(self) -> np.ndarray[Any, Any]:
        return np.arange(3)


@pytest.mark.parametrize(
    ("value", "kind", "advice"),
    [
        (3, "int", "serialise it, for example with pickle.dumps"),
        (None, "None", "serialise it, for example with pickle.dumps"),
        ({"a": 1}, "dict", "serialise it, for example with pickle.dumps"),
        ([b"a", b"b"], "list", "or write a list of records with write"),
        (Tensor(), "Tensor", "convert it with .numpy()"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_an_object_without_bytes_is_a_type_error_with_advice(
    value: Any, kind: str, advice: str, tmp_path: Path
) -> None:
    expected = f"a record is bytes, a numpy array or another buffer, not {kind}; "
    with FileWriter(tmp_path / "t.ffr") as writer:
        for write in (writer.write_one, lambda value: writer.write([value])):
            with pytest.raises(TypeError, match=rf"{expected}.*{re.escape(advice)}$"):
                write(value)
        writer.discard()


def test_a_count_that_is_not_an_integer_is_named(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="n must be an int, not str"):
        FileWriter(tmp_path / "t.ffr", n="3")  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("text", "writer.write_one('text'.encode())"),
        ("it's", 'writer.write_one("it\'s".encode())'),
        ("größer\n", r"writer.write_one('größer\n'.encode())"),
        ("long" * 100, "writer.write_one(text.encode())"),
        ("", "writer.write_one(''.encode())"),
    ],
)
def test_text_is_a_type_error_that_shows_the_right_call(
    text: str, line: str, tmp_path: Path
) -> None:
    with FileWriter(tmp_path / "t.ffr") as writer:
        for write in (writer.write_one, writer.write):
            with pytest.raises(TypeError, match=re.escape(f"not str; encode it: {line}")):
                write(text)
        with pytest.raises(TypeError, match=re.escape(f"encode it: {line}")):
            writer.write([b"before", text])
        assert writer.count == 1
        writer.discard()
    with FileWriter(tmp_path / "t.ffr") as writer:  # the line in the error works
        exec(line, {"writer": writer, "text": text})
    assert read_all(tmp_path / "t.ffr") == [text.encode()]


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_one_record_passed_to_write_is_a_type_error_that_names_write_one(
    kind: Callable[[bytes], Any], tmp_path: Path
) -> None:
    with FileWriter(tmp_path / "t.ffr") as writer:
        for data in (b"", b"one"):
            with pytest.raises(TypeError, match=rf"not one {kind.__name__}; use write_one"):
                writer.write(kind(data))
        assert writer.count == 0


def test_a_stream_of_text_is_a_type_error(tmp_path: Path) -> None:
    with FileWriter(tmp_path / "s.ffr", 1) as writer:
        with pytest.raises(TypeError, match=r"read\(\) returned str, not bytes; open .* \"rb\""):
            writer.write_one(io.StringIO("text"))
        writer.write_one(b"bytes")
    assert read_all(tmp_path / "s.ffr") == [b"bytes"]


def test_a_non_blocking_stream_does_not_cut_its_record_short(tmp_path: Path) -> None:
    """An error is better than a record that is silently cut short."""

    class NonBlocking:
        def __init__(self) -> None:
            self._answers = [b"first half,", None, b" second half", b""]

        def read(self, _size: int) -> bytes | None:
            return self._answers.pop(0)

    with FileWriter(tmp_path / "s.ffr") as writer:
        try:
            writer.write_one(NonBlocking())
        except (OSError, TypeError, ValueError):
            writer.write_one(b"first half, second half")
    assert read_all(tmp_path / "s.ffr") == [b"first half, second half"]


# ---- interruptions -------------------------------------------------------------------------


@pytest.mark.parametrize("n", [2, None])
def test_an_interrupted_write_leaves_no_bytes_in_the_file(
    n: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Interrupt a write after half of the bytes are in the file, as Ctrl-C may."""
    with FileWriter(tmp_path / "k.ffr", n) as writer:
        writer.write_one(b"before")
        file = writer._file

        class Interrupted:
            def write(self, data: Any) -> int:
                file.write(data[: len(data) // 2])
                raise KeyboardInterrupt

            def __getattr__(self, name: str) -> Any:
                return getattr(file, name)

        with monkeypatch.context() as ctrl_c:
            ctrl_c.setattr(writer, "_file", Interrupted())
            with pytest.raises(KeyboardInterrupt):
                writer.write_one(b"x" * 1000)
        writer.write_one(b"after")
    assert read_all(tmp_path / "k.ffr") == [b"before", b"after"]


# ---- an unknown count ----------------------------------------------------------------------

SIZES = [[], [0], [0, 0, 0], [1], [5000] * 3, [100] * 5000, [3 << 20, 0, 17], [4096] * 4]


@pytest.mark.parametrize("sizes", SIZES, ids=lambda sizes: f"{len(sizes)} records")
@pytest.mark.parametrize("way", ["insert", "copy", "copy by hand", "named copy"])
def test_without_n_the_same_records_are_written(
    way: str, sizes: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = handmade.random_records(sizes)
    if way != "insert":
        without_insert_range(monkeypatch)
    if way == "copy by hand":

        def refuse(*_args: object) -> int:
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))

        monkeypatch.setattr(os, "copy_file_range", refuse)
    if way == "named copy":
        without_tmpfile(monkeypatch)
    with FileWriter(tmp_path / "u.ffr") as writer:
        writer.write(records)
        assert writer.n is None
        assert writer.count == len(records)
    assert os.listdir(tmp_path) == ["u.ffr"]
    assert read_all(tmp_path / "u.ffr") == records
    if way != "insert":
        assert (tmp_path / "u.ffr").read_bytes() == handmade.record_bytes(records)


def test_a_copy_in_pieces_is_complete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copy_file_range = os.copy_file_range

    def little(source: int, target: int, count: int, *where: int) -> int:
        return copy_file_range(source, target, min(count, 10_000), *where)

    without_insert_range(monkeypatch)
    monkeypatch.setattr(os, "copy_file_range", little)
    records = handmade.random_records([12_345] * 10)
    with FileWriter(tmp_path / "u.ffr") as writer:
        writer.write(records)
    assert (tmp_path / "u.ffr").read_bytes() == handmade.record_bytes(records)
