"""`ffrecord.records.writer`: what it writes, and what it leaves when writing fails."""

from __future__ import annotations

import array
import ctypes
import errno
import gc
import io
import math
import mmap
import os
import re
import resource
import shutil
import signal
import stat
import subprocess
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ffrecord import ClosedError, CountError, FileReader, FileWriter, NoRoomError
from ffrecord.atomic import file as atomic_file
from ffrecord.format import records as record_layout
from tests.support import handmade

# What a disk has to do with it, test_newfile counts.
pytestmark = pytest.mark.in_memory

OLD = handmade.record_bytes([b"what was there before"])


@pytest.fixture
def target(tmp_path: Path) -> Path:
    """A path at which a file exists already, in a folder of its own."""
    folder = tmp_path / "folder"
    folder.mkdir()
    path = folder / "target.ffr"
    path.write_bytes(OLD)
    return path


def untouched(path: Path) -> bool:
    """The file is as it was, and nothing else is in its folder."""
    return path.read_bytes() == OLD and os.listdir(path.parent) == [path.name]


def read_all(path: Path) -> list[bytes]:
    with FileReader(path) as reader:
        return handmade.as_bytes(reader.read(range(reader.n)))


def without_tmpfile(monkeypatch: pytest.MonkeyPatch, code: int = errno.EOPNOTSUPP) -> None:
    plain = os.open

    def refusing(path: Any, flags: int, *args: Any, **kwargs: Any) -> int:
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(code, os.strerror(code), path)
        return plain(path, flags, *args, **kwargs)

    monkeypatch.setattr(os, "open", refusing)


def without_insert_range(monkeypatch: pytest.MonkeyPatch) -> None:
    def refusing(*_args: int) -> None:
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

    monkeypatch.setattr(atomic_file, "insert_range", refusing)


# ---- what a record may be ------------------------------------------------------------------

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


def test_a_mapping_is_a_buffer_whatever_its_position(tmp_path: Path) -> None:
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
def test_a_buffer_with_holes_is_a_value_error(data: Any, tmp_path: Path) -> None:
    with FileWriter(tmp_path / "h.ffr", 1) as writer:
        with pytest.raises(ValueError, match="not C-contiguous"):
            writer.write_one(data)
        assert writer.count == 0
        writer.write_one(b"the writer goes on")
    assert read_all(tmp_path / "h.ffr") == [b"the writer goes on"]


@pytest.mark.parametrize(
    "data",
    ["text", np.array([None, 1]), np.zeros(2, [("a", object)]), None, 5, 2.5, [1, 2], {}, object()],
    ids=lambda data: type(data).__name__,
)
def test_what_has_no_bytes_is_a_type_error(data: Any, tmp_path: Path) -> None:
    with FileWriter(tmp_path / "t.ffr") as writer:
        with pytest.raises(TypeError):
            writer.write_one(data)
        writer.write_one(b"the writer goes on")
    assert read_all(tmp_path / "t.ffr") == [b"the writer goes on"]


@settings(max_examples=50)
@given(st.lists(st.binary(max_size=5000), max_size=30))
def test_what_is_written_is_read(tmp_path: Path, records: list[bytes]) -> None:
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


def test_the_caller_may_change_a_buffer_once_it_is_written(tmp_path: Path) -> None:
    buffer = bytearray(b"first")
    with FileWriter(tmp_path / "c.ffr", 2) as writer:
        writer.write_one(buffer)
        buffer[:] = b"other"
        writer.write_one(buffer)
    assert read_all(tmp_path / "c.ffr") == [b"first", b"other"]


# ---- streams -------------------------------------------------------------------------------


class Pattern(io.RawIOBase):
    """A stream of `size` bytes that are never all in memory."""

    BLOCK = bytes(range(256)) * 4096

    def __init__(self, size: int) -> None:
        self._left = size

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1, /) -> bytes:
        count = min(self._left, len(self.BLOCK), size if size >= 0 else self._left)
        self._left -= count
        return self.BLOCK[:count]


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


def test_a_stream_is_read_from_where_it_stands(tmp_path: Path) -> None:
    stream = io.BytesIO(b"0123456789")
    stream.seek(4)
    with FileWriter(tmp_path / "s.ffr", 1) as writer:
        writer.write_one(stream)
    assert read_all(tmp_path / "s.ffr") == [b"456789"]


class Breaking:
    """A stream that fails after some chunks of any size."""

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
def test_a_stream_that_breaks_leaves_no_trace_of_itself(
    error: BaseException, chunks: int, n: int | None, tmp_path: Path
) -> None:
    with FileWriter(tmp_path / "s.ffr", n) as writer:
        writer.write_one(b"before")
        with pytest.raises(type(error)):
            writer.write_one(Breaking(chunks, error))
        assert writer.count == 1
        writer.write([b"after", b"last"])
    assert read_all(tmp_path / "s.ffr") == [b"before", b"after", b"last"]


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
def test_text_is_a_type_error_with_the_line_to_write(text: str, line: str, tmp_path: Path) -> None:
    with FileWriter(tmp_path / "t.ffr") as writer:
        for write in (writer.write_one, writer.write):
            with pytest.raises(TypeError, match=re.escape(f"not str; encode it: {line}")):
                write(text)
        with pytest.raises(TypeError, match=re.escape(f"encode it: {line}")):
            writer.write([b"before", text])
        assert writer.count == 1
        writer.discard()
    with FileWriter(tmp_path / "t.ffr") as writer:  # as it says
        exec(line, {"writer": writer, "text": text})
    assert read_all(tmp_path / "t.ffr") == [text.encode()]


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_one_record_where_several_are_due_is_a_type_error_that_says_so(
    kind: Callable[[bytes], Any], tmp_path: Path
) -> None:
    with FileWriter(tmp_path / "t.ffr") as writer:
        for data in (b"", b"one"):
            with pytest.raises(TypeError, match=rf"not one {kind.__name__}: use write_one"):
                writer.write(kind(data))
        assert writer.count == 0


def test_a_stream_of_text_is_a_type_error(tmp_path: Path) -> None:
    with FileWriter(tmp_path / "s.ffr", 1) as writer:
        with pytest.raises(TypeError, match=r"read\(\) gave str, not bytes; open it with \"rb\""):
            writer.write_one(io.StringIO("text"))
        writer.write_one(b"bytes")
    assert read_all(tmp_path / "s.ffr") == [b"bytes"]


def test_a_stream_that_has_nothing_yet_does_not_end_its_record(tmp_path: Path) -> None:
    """A record cut short in silence would be worse than an error."""

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


# ---- interrupted ---------------------------------------------------------------------------


@pytest.mark.parametrize("n", [2, None])
def test_a_write_that_is_interrupted_leaves_no_trace_of_itself(
    n: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C during a large write(2): some of the bytes are in the file already."""
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
def test_an_unknown_count_gives_the_same_records(
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


def test_a_copy_that_comes_in_pieces_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy_file_range = os.copy_file_range

    def little(source: int, target: int, count: int, *where: int) -> int:
        return copy_file_range(source, target, min(count, 10_000), *where)

    without_insert_range(monkeypatch)
    monkeypatch.setattr(os, "copy_file_range", little)
    records = handmade.random_records([12_345] * 10)
    with FileWriter(tmp_path / "u.ffr") as writer:
        writer.write(records)
    assert (tmp_path / "u.ffr").read_bytes() == handmade.record_bytes(records)


# ---- counts, closing, misuse ---------------------------------------------------------------


def test_too_few_records_leave_the_target_as_it_was(target: Path) -> None:
    writer = FileWriter(target, 3)
    writer.write_one(b"only one")
    with pytest.raises(CountError, match="1 records were written, 3 were announced"):
        writer.close()
    assert untouched(target)
    writer.close()
    with pytest.raises(ClosedError):
        writer.write_one(b"late")


def test_a_record_too_many_is_refused_and_the_rest_is_kept(target: Path) -> None:
    with FileWriter(target, 1) as writer:
        writer.write_one(b"one")
        with pytest.raises(CountError):
            writer.write_one(b"two")
        assert writer.count == 1
    assert read_all(target) == [b"one"]


def test_closing_twice_is_closing_once(target: Path) -> None:
    writer = FileWriter(target, 1)
    writer.write_one(b"one")
    writer.close()
    target.write_bytes(OLD)
    writer.close()
    assert untouched(target)


def test_nothing_can_be_written_after_closing(target: Path) -> None:
    writer = FileWriter(target)
    writer.close()
    for data in (b"x", io.BytesIO(b"x")):
        with pytest.raises(ClosedError, match=str(target)):
            writer.write_one(data)
    with pytest.raises(ClosedError):
        writer.write([b"x"])


@pytest.mark.parametrize("n", [-1, record_layout.MAX_RECORDS + 1])
def test_an_impossible_count_is_refused_at_once(n: int, target: Path) -> None:
    with pytest.raises(ValueError, match=str(n)):
        FileWriter(target, n)
    assert untouched(target)


def test_what_is_no_path_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="path"):
        FileWriter(3, 1)  # type: ignore[arg-type]


def test_a_folder_in_the_way_is_noticed_before_anything_is_written(tmp_path: Path) -> None:
    (tmp_path / "w.ffr").mkdir()
    with pytest.raises(IsADirectoryError, match=r"w\.ffr"):
        FileWriter(tmp_path / "w.ffr", 1)
    assert os.listdir(tmp_path) == ["w.ffr"]


def test_the_target_may_be_relative_and_the_folder_may_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    with FileWriter("w.ffr", 1) as writer:
        os.chdir("elsewhere")
        writer.write_one(b"x")
    assert read_all(tmp_path / "w.ffr") == [b"x"]


def test_a_writer_holds_no_descriptor_once_it_is_closed(target: Path) -> None:
    before = handmade.open_descriptors()
    for n in (1, None):
        writer = FileWriter(target, n)
        writer.write_one(b"x")
        writer.close()
        assert handmade.open_descriptors() == before
        writer = FileWriter(target, n)
        writer.discard()
        assert handmade.open_descriptors() == before


# ---- the target ----------------------------------------------------------------------------


def test_the_target_appears_only_at_close(tmp_path: Path) -> None:
    writer = FileWriter(tmp_path / "w.ffr", 2)
    writer.write([b"x" * (3 << 20), b"y"])
    assert not (tmp_path / "w.ffr").exists()
    writer.close()
    assert os.listdir(tmp_path) == ["w.ffr"]


def test_a_reader_of_the_replaced_file_goes_on_reading_it(target: Path) -> None:
    with FileReader(target) as reader:
        with FileWriter(target, 1) as writer:
            writer.write_one(b"new")
        assert reader.read_one(0).tobytes() == b"what was there before"
    assert read_all(target) == [b"new"]


@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize("umask", [0o022, 0o077, 0o002])
def test_the_umask_decides_who_may_read(
    umask: int, named: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if named:
        without_tmpfile(monkeypatch)
    previous = os.umask(umask)
    try:
        FileWriter(tmp_path / "w.ffr", 0).close()
    finally:
        os.umask(previous)
    assert stat.S_IMODE((tmp_path / "w.ffr").stat().st_mode) == 0o666 & ~umask


def test_a_symlink_stays_and_what_it_points_at_is_written(target: Path) -> None:
    link = target.parent.parent / "link.ffr"
    link.symlink_to(target)
    with FileWriter(link, 1) as writer:
        writer.write_one(b"new")
    assert link.is_symlink()
    assert read_all(target) == [b"new"]
    assert os.listdir(target.parent) == [target.name]


def test_a_symlink_to_nothing_yet_is_followed(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "link.ffr").symlink_to("there/file.ffr")
    FileWriter(tmp_path / "link.ffr", 0).close()
    assert (tmp_path / "there" / "file.ffr").is_file()
    assert (tmp_path / "link.ffr").is_symlink()


@pytest.mark.parametrize("name", ["w" * 251 + ".ffr", "w w\n'\"\\.ffr", "-rf", "\udcff\udc80.ffr"])
@pytest.mark.parametrize("named", [False, True])
def test_any_legal_name_can_be_written(
    named: bool, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if named:
        without_tmpfile(monkeypatch)
    with FileWriter(tmp_path / name, 1) as writer:
        writer.write_one(b"x")
    assert read_all(tmp_path / name) == [b"x"]
    assert os.listdir(tmp_path) == [name]


def test_a_long_name_outside_ascii_can_be_written(tmp_path: Path) -> None:
    name = "é" * 120 + ".ffr"
    assert len(os.fsencode(name)) < 255
    with FileWriter(tmp_path / name, 1) as writer:
        writer.write_one(b"x")
    assert read_all(tmp_path / name) == [b"x"]


@pytest.mark.parametrize("code", [errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL])
@pytest.mark.parametrize("n", [2, None])
def test_a_file_system_without_unnamed_files_is_written_too(
    n: int | None, code: int, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_tmpfile(monkeypatch, code)
    with FileWriter(target, n) as writer:
        writer.write([b"one", b"two"])
        beside = [name for name in os.listdir(target.parent) if name != target.name]
        assert len(beside) == 1
        assert beside[0].startswith(".target.ffr.")
        assert beside[0].endswith(".tmp")
        assert target.read_bytes() == OLD
    assert read_all(target) == [b"one", b"two"]
    assert os.listdir(target.parent) == [target.name]


@pytest.mark.parametrize("n", [2, None])
def test_a_file_system_that_does_not_link_unnamed_files_is_written_too(
    n: int | None, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_args: object, **_kwargs: object) -> None:
        raise OSError(errno.ENOENT, "no /proc here")

    monkeypatch.setattr(os, "link", refuse)
    with FileWriter(target, n) as writer:
        writer.write([b"one", b"two"])
    assert read_all(target) == [b"one", b"two"]
    assert os.listdir(target.parent) == [target.name]


def test_the_file_is_synced_before_it_is_renamed_and_the_folder_after(
    target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []
    fsync, rename = os.fsync, os.rename

    def watch_fsync(fd: int) -> None:
        folder = stat.S_ISDIR(os.fstat(fd).st_mode)
        size = os.fstat(fd).st_size
        steps.append("sync folder" if folder else f"sync {size}")
        fsync(fd)

    def watch_rename(old: str, new: str) -> None:
        steps.append("rename")
        rename(old, new)

    monkeypatch.setattr(os, "fsync", watch_fsync)
    monkeypatch.setattr(os, "rename", watch_rename)
    with FileWriter(target, 1) as writer:
        writer.write_one(b"x" * 100)
    assert steps == ["sync 124", "rename", "sync folder"]


# ---- it does not end well ------------------------------------------------------------------


@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize("n", [1, 5, None])
def test_an_exception_inside_with_discards_everything(
    n: int | None, named: bool, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if named:
        without_tmpfile(monkeypatch)

    def failing() -> Iterator[bytes]:
        yield b"x" * (2 << 20)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), FileWriter(target, n) as writer:
        writer.write(failing())
    assert untouched(target)
    with pytest.raises(ClosedError):
        writer.write_one(b"late")


@pytest.mark.parametrize("step", ["fsync", "rename"])
@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize("n", [1, None])
@pytest.mark.parametrize("insert", [False, True])
def test_a_close_that_fails_leaves_the_target_as_it_was(
    insert: bool, n: int | None, named: bool, step: str, target: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    def fail(*_args: object) -> None:
        raise PermissionError(errno.EACCES, "refused")

    if named:
        without_tmpfile(monkeypatch)
    if not insert:
        without_insert_range(monkeypatch)
    before = handmade.open_descriptors()
    writer = FileWriter(target, n)
    writer.write_one(b"x")
    monkeypatch.setattr(os, step, fail)
    with pytest.raises(PermissionError):
        writer.close()
    assert untouched(target)
    assert handmade.open_descriptors() == before


def test_a_header_that_does_not_fit_after_a_copy_leaves_nothing_behind(
    target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_args: object) -> bytes:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    without_tmpfile(monkeypatch)
    without_insert_range(monkeypatch)
    writer = FileWriter(target)
    writer.write_one(b"x")
    monkeypatch.setattr(record_layout, "seal", full)
    with pytest.raises(NoRoomError):
        writer.close()
    assert untouched(target)


KILLED = """
import os, sys
from ffrecord import FileWriter
path, n, point, named = sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4]

def stop(here):
    if here == point:
        print("here", flush=True)
        sys.stdin.read()

def stop_before(name):
    call = getattr(os, name)
    def stopped(*args, **kwargs):
        stop("before " + name)
        result = call(*args, **kwargs)
        stop("after " + name)
        return result
    setattr(os, name, stopped)

if named == "named":
    plain = os.open
    def refusing(path, flags, *args, **kwargs):
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(95, "not supported")
        return plain(path, flags, *args, **kwargs)
    os.open = refusing
for name in ("fsync", "link", "rename"):
    stop_before(name)
writer = FileWriter(path, None if n == "None" else int(n))
stop("opened")
writer.write_one(b"x" * (2 << 20))
stop("half")
writer.write_one(b"new")
stop("written")
writer.close()
print("not stopped", flush=True)
"""


def kill_at(point: str, path: Path, n: str, named: str) -> None:
    process = handmade.python(KILLED, str(path), n, point, named)
    assert process.stdout is not None
    line = process.stdout.readline()
    process.send_signal(signal.SIGKILL)
    _out, err = process.communicate()
    assert line == "here\n", err


@pytest.mark.parametrize("n", ["2", "None"])
@pytest.mark.parametrize("point", ["opened", "half", "written", "before fsync", "before link"])
def test_a_killed_writer_leaves_nothing_behind(point: str, n: str, target: Path) -> None:
    kill_at(point, target, n, "unnamed")
    assert untouched(target)


@pytest.mark.parametrize(
    ("point", "named"),
    [
        ("before rename", "unnamed"),
        ("half", "named"),
        ("written", "named"),
        ("before fsync", "named"),
        ("before rename", "named"),
    ],
)
def test_a_killed_writer_leaves_at_worst_a_file_that_nothing_reads(
    point: str, named: str, target: Path
) -> None:
    kill_at(point, target, "2", named)
    assert target.read_bytes() == OLD
    for name in os.listdir(target.parent):
        assert name == target.name or (name.startswith(".target.ffr.") and name.endswith(".tmp"))
    with FileReader(target.parent) as reader:
        assert reader.fnames == [str(target)]


def test_a_writer_killed_after_its_rename_leaves_the_whole_new_file(target: Path) -> None:
    kill_at("after rename", target, "2", "unnamed")
    assert read_all(target) == [b"x" * (2 << 20), b"new"]
    assert os.listdir(target.parent) == [target.name]


# ---- a full disk ---------------------------------------------------------------------------

NO_ROOM = """
import os, resource, sys
from ffrecord import FileWriter, NoRoomError
folder, n, limit = sys.argv[1], sys.argv[2], int(sys.argv[3])
if limit:
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
path = os.path.join(folder, "target.ffr")
before = open(path, "rb").read()
try:
    with FileWriter(path, None if n == "None" else int(n)) as writer:
        for number in range(40):
            writer.write_one(bytes([number]) * 100_000)
except NoRoomError:
    print("no room")
assert open(path, "rb").read() == before
assert os.listdir(folder) == ["target.ffr"], os.listdir(folder)
if not limit:
    with FileWriter(path, 1) as writer:
        writer.write_one(b"there is room for this")
print("fine")
"""


@pytest.mark.parametrize("n", ["40", "None"])
@pytest.mark.parametrize("limit", [1_000, 1_000_000, 3_999_999])
def test_a_file_larger_than_allowed_is_no_room(limit: int, n: str, target: Path) -> None:
    out, err = handmade.python(NO_ROOM, str(target.parent), n, str(limit)).communicate()
    assert out == "no room\nfine\n", err
    assert untouched(target)


@pytest.mark.parametrize(
    ("size", "n"), [("1m", "40"), ("3m", "40"), ("1m", "None"), ("5m", "None")]
)
def test_a_full_disk_is_no_room(size: str, n: str, tmp_path: Path) -> None:
    """On a small tmpfs, in a mount namespace that ends with its process.

    5 MiB have room for the records, but not for a copy of them behind a header.
    """
    if shutil.which("unshare") is None:
        pytest.skip("unshare is not installed")
    unshare = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "-r", "--mount"]
    mount = f"mount -t tmpfs -o size={size} none {tmp_path}"
    attempt = subprocess.run([*unshare, "sh", "-c", mount], capture_output=True, check=False)
    if attempt.returncode != 0:
        pytest.skip("this user cannot mount")
    (tmp_path / "target.ffr").write_bytes(OLD)
    script = f'{mount} && printf old > "$3/target.ffr" && exec "$1" -c "$2" "$3" "$4" 0'
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(
        [*unshare, "sh", "-c", script, "sh", sys.executable, NO_ROOM, str(tmp_path), n],
        capture_output=True, text=True, env=environment, check=False,
    )  # fmt: skip
    assert done.stdout == "no room\nfine\n", done.stderr
    assert (tmp_path / "target.ffr").read_bytes() == OLD  # the mount never was in this namespace


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_no_room_for_another_file_is_no_room(
    code: int, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: str, *_args: object) -> int:
        raise OSError(code, os.strerror(code), path)

    with monkeypatch.context() as disk:
        disk.setattr(os, "open", full)
        with pytest.raises(NoRoomError, match="target"):
            FileWriter(target, 1)
    assert untouched(target)


def test_a_full_disk_while_a_stream_is_copied_is_no_room(target: Path) -> None:
    """In a child, since the limit cannot be taken back."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (2 << 20, 2 << 20))
            writer = FileWriter(target, 1)
            try:
                writer.write_one(Pattern(8 << 20))
            except NoRoomError:
                code = 0 if untouched(target) else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


# ---- forks and drops -----------------------------------------------------------------------


def in_child(work: Callable[[], None]) -> int:
    child = os.fork()
    if child == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize("end", ["close", "discard", "exit with"])
def test_a_forked_child_neither_finishes_nor_discards_its_parents_file(
    end: str, named: bool, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if named:
        without_tmpfile(monkeypatch)
    large = b"x" * (2 << 20)
    writer = FileWriter(target, 2)
    writer.write_one(large)
    writer._file.flush()
    ends: dict[str, Callable[[], None]] = {
        "close": writer.close,
        "discard": writer.discard,
        "exit with": lambda: writer.__exit__(None, None, None),
    }
    assert in_child(ends[end]) == 0
    assert target.read_bytes() == OLD
    writer.write_one(b"two")
    writer.close()
    assert read_all(target) == [large, b"two"]
    assert os.listdir(target.parent) == [target.name]


@pytest.mark.parametrize("n", [2, None])
@pytest.mark.parametrize("end", ["close", "discard", "drop"])
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_forked_child_does_not_write_what_its_parent_has_buffered(
    end: str, n: int | None, target: Path
) -> None:
    writer = FileWriter(target, n)
    writer.write_one(b"small enough to be buffered")

    def work() -> None:
        nonlocal writer
        if end != "drop":
            getattr(writer, end)()
        del writer
        gc.collect()

    assert in_child(work) == 0
    writer.write_one(b"two")
    writer.close()
    assert read_all(target) == [b"small enough to be buffered", b"two"]


def test_a_forked_child_cannot_write_to_its_parents_file(target: Path) -> None:
    def work() -> None:
        with pytest.raises(ClosedError):
            writer.write_one(b"from the child" * (1 << 17))

    writer = FileWriter(target, 1)
    code = in_child(work)
    writer.write_one(b"from the parent")
    writer.close()
    assert code == 0
    assert read_all(target) == [b"from the parent"]


def test_a_dropped_writer_that_has_all_records_finishes(target: Path) -> None:
    writer = FileWriter(target, 1)
    writer.write_one(b"all there")
    del writer
    assert read_all(target) == [b"all there"]


def test_a_dropped_writer_whose_folder_is_gone_says_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As that of a shard, when packing is interrupted: the folder of all shards is removed."""
    monkeypatch.setattr(sys, "unraisablehook", sys.__unraisablehook__)  # not pytest's
    (tmp_path / "folder").mkdir()
    writer = FileWriter(tmp_path / "folder" / "target.ffr", 1)
    writer.write_one(b"all there")
    shutil.rmtree(tmp_path / "folder")
    del writer
    gc.collect()
    assert capsys.readouterr().err == ""
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("n", [2, None])
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_dropped_writer_that_may_lack_records_discards(n: int | None, target: Path) -> None:
    writer = FileWriter(target, n)
    writer.write_one(b"one")
    del writer
    gc.collect()
    assert untouched(target)


def test_a_dropped_writer_that_discards_says_so(target: Path) -> None:
    writer = FileWriter(target, 2)
    with pytest.warns(ResourceWarning, match=r"target\.ffr: .*without close"):
        del writer


@pytest.fixture(autouse=True)
def _no_writer_is_left_open() -> Iterator[None]:
    yield
    gc.collect()
