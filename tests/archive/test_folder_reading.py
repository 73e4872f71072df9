"""`PackedFolder` reads the same bytes as on disk: whole files, ranges, and file objects."""

from __future__ import annotations

import csv
import io
import os
import pickle
import random
import re
import shutil
import stat
import tracemalloc
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ffrecord import (
    ChangedError,
    ClosedError,
    FileReader,
    PackedFolder,
    SampleChecksumError,
    pack_folder,
)
from ffrecord.archive import fileobject
from tests.support import archives, handmade, trees
from tests.support.modes import MODES
from tests.support.trees import BLOCK

# ---- contents ------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
def test_every_file_reads_the_same_as_on_disk_in_every_mode(
    mode: str, archive: Path, files: dict[str, bytes]
) -> None:
    names = random.Random(mode).sample(sorted(files), len(files))
    with PackedFolder(archive, mode=mode) as folder:
        for name, got in zip(names, folder.read(names), strict=True):
            assert got.dtype == np.uint8
            assert got.tobytes() == files[name], name
        for name in names[:50]:
            assert folder.read_one(name).tobytes() == files[name], name


def test_one_name_returns_an_array_and_a_list_returns_a_list(
    folder: PackedFolder, files: dict[str, bytes]
) -> None:
    name = "sizes/blocks"
    for one in (name, Path(name)):
        got = folder.read(one)
        assert isinstance(got, np.ndarray)
        assert got.tobytes() == files[name]
        assert folder.read_one(one).tobytes() == files[name]
    several: list[Any] = [[name], (name,), [Path(name)], (Path(name), name, Path(name))]
    for names in several:
        arrays = folder.read(names)
        assert isinstance(arrays, list)
        assert handmade.as_bytes(arrays) == [files[name]] * len(names)
    assert folder.read([]) == []


def test_brackets_read_one_file_by_name_or_several(single: PackedFolder) -> None:
    names = list(single)
    one, both = names[0], [names[1], names[0]]
    content = single.read_one(one).tobytes()
    for name in (one, Path(one), os.fsencode(one)):
        assert single[name].tobytes() == content
    assert [data.tobytes() for data in single[both]] == [d.tobytes() for d in single.read(both)]
    assert [d.tobytes() for d in single.__getitems__(both)] == [d.tobytes() for d in single[both]]
    assert single[[]] == []
    with pytest.raises(FileNotFoundError, match="nowhere"):
        single["nowhere"]
    for key in (3, slice(2)):
        with pytest.raises(TypeError, match=r"to read records by number, use \.reader"):
            single[key]  # type: ignore[call-overload]


def test_a_folder_whose_archive_was_replaced_is_not_pickled(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a").write_bytes(b"old")
    archive = tmp_path / "a.ffr"
    pack_folder(tmp_path / "in", archive)
    with PackedFolder(archive) as folder:
        dumped = pickle.dumps(folder)
        (tmp_path / "in" / "a").write_bytes(b"newer")
        pack_folder(tmp_path / "in", tmp_path / "b.ffr")
        os.replace(tmp_path / "b.ffr", archive)
        assert folder["a"].tobytes() == b"old"
        for attempt in (lambda: pickle.dumps(folder), lambda: pickle.loads(dumped)):
            with pytest.raises(ChangedError, match=f"{re.escape(str(archive))}: replaced"):
                attempt()


def test_names_may_be_mixed_repeated_and_spelled_in_any_way(
    folder: PackedFolder, files: dict[str, bytes]
) -> None:
    names: list[Any] = [
        "sizes/one", "/sizes//one", Path("sizes/one"), "links/relative", "sizes/block+1",
        "nested/../sizes/./zero", "links/through", "sizes/one",
        "names/not utf-8 \udcff\udcfe\udce9",
    ]  # fmt: skip
    due = [
        "sizes/one", "sizes/one", "sizes/one", "sizes/one", "sizes/block+1", "sizes/zero",
        "nested/a/b/c/deep", "sizes/one", "names/not utf-8 \udcff\udcfe\udce9",
    ]  # fmt: skip
    assert handmade.as_bytes(folder.read(names)) == [files[name] for name in due]


def test_one_missing_name_of_many_is_an_error_that_names_it(folder: PackedFolder) -> None:
    with pytest.raises(FileNotFoundError, match="sizes/two"):
        folder.read(["sizes/one", "sizes/two", "sizes/zero"])
    with pytest.raises(IsADirectoryError, match="sizes"):
        folder.read(["sizes/one", Path("sizes")])


@pytest.mark.parametrize("name", [b"sizes/one", 5, None, 2.5])
def test_an_invalid_name_is_a_type_error(name: Any, single: PackedFolder) -> None:
    """Names as bytes may also work, as they do with `open`."""
    calls: list[Callable[[], Any]] = [
        lambda: single.read_one(name),
        lambda: single.read([name])[0],
        lambda: single.read_range(name, 0, 1),
        lambda: single.open(name),
    ]
    for call in calls:
        if name == b"sizes/one":
            try:
                got = call()
            except TypeError:
                continue
            assert bytes(memoryview(got.read() if hasattr(got, "read") else got)) == bytes(
                single.read_one("sizes/one")
            )
            continue
        with pytest.raises(TypeError):
            call()


def test_a_number_instead_of_names_is_a_type_error_with_advice(single: PackedFolder) -> None:
    calls: list[Callable[[Any], Any]] = [single.read, single.records]
    for call in calls:
        with pytest.raises(TypeError, match="names must be a name or a list of names, not int"):
            call(3)


@pytest.mark.parametrize("name", [*trees.SIZES, "../hard/large", "../xattrs/large"])
def test_the_pieces_of_a_stream_make_up_the_file(
    name: str, folder: PackedFolder, rich: Path
) -> None:
    if name.startswith("../xattrs") and not (rich / "xattrs").exists():
        pytest.skip("this file system has no extended attributes")
    pieces = [piece.tobytes() for piece in folder.stream(f"sizes/{name}")]
    assert b"".join(pieces) == (rich / "sizes" / name).read_bytes()
    assert all(pieces)


def test_a_record_number_leads_to_the_file(
    single: PackedFolder, one_file: Path, files: dict[str, bytes]
) -> None:
    with FileReader(one_file) as reader:
        for name in ("sizes/zero", "hard/second", "links/relative", "many/077"):
            real = "sizes/one" if name.startswith("links") else name
            assert reader.read_one(single.record(name)).tobytes() == files[real]
    assert single.record("hard/first") == single.record("aaa before all/fourth")


def test_files_larger_than_one_read_are_complete(
    tmp_path: Path,
) -> None:
    data = trees.content(9 << 20)
    tree = trees.plain_tree(tmp_path / "t", {"large": data, "x": b"x"})
    archives.pack(tree, tmp_path / "a.ffr")
    with PackedFolder(tmp_path / "a.ffr") as folder:
        assert folder.read("large").tobytes() == data
        assert b"".join(piece.tobytes() for piece in folder.stream("large")) == data
        assert folder.open("large").read() == data
        assert folder.read_range("large", 1, len(data)).tobytes() == data[1:]


# ---- the attribute `structure` of the original -----------------------------------------------


def pickled_structure(archive: Path) -> Any:
    """Return the unpickled index for the original FFRecord."""
    with FileReader(archive) as reader:
        return pickle.loads(reader.read_one(-1).tobytes().removeprefix(b"piouhjgbr"))


def test_structure_equals_the_originals_unpickled_index(
    folder: PackedFolder, archive: Path, one_file: Path
) -> None:
    """OrderedDicts compare their order, too. The archive without a pickle has the same numbers."""
    due = pickled_structure(archive if folder.archive.legacy_size else one_file)
    assert folder.structure == due
    assert list(folder.structure) == sorted(folder.structure, key=os.fsencode)
    assert isinstance(folder.structure["sizes"], OrderedDict)
    assert folder.structure["sizes"]["one"] == folder.record("sizes/one")
    assert folder.structure is folder.structure


def test_structure_shows_symlinks_to_files_as_files_and_no_others(tmp_path: Path) -> None:
    tree = trees.plain_tree(tmp_path / "t", {"d/file": b"x", "e/": b"", "z": b"z"})
    for name, target in {
        "d/up": "../z", "to file": "d/up", "to folder": "d", "dangling": "no", "out": "../x",
    }.items():  # fmt: skip
        (tree / name).symlink_to(target)
    archives.pack(tree, tmp_path / "t.ffr")
    with PackedFolder(tmp_path / "t.ffr") as folder:
        file, z = folder.record("d/file"), folder.record("z")
        due = [("d", OrderedDict(file=file, up=z)), ("e", OrderedDict()), ("to file", z), ("z", z)]
        assert folder.structure == OrderedDict(due)
        assert pickle.loads(pickle.dumps(folder)).structure == OrderedDict(due)
    assert pickled_structure(tmp_path / "t.ffr") == OrderedDict(due)


# ---- ranges --------------------------------------------------------------------------------

EDGES = [0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK, 5 * BLOCK, 5 * BLOCK + 6, 5 * BLOCK + 7]


@pytest.mark.parametrize("name", [n for n in trees.SIZES if n != "batch"])
def test_ranges_at_the_edges_of_blocks_equal_slices(
    name: str, folder: PackedFolder, files: dict[str, bytes]
) -> None:
    data = files[f"sizes/{name}"]
    for offset in [*EDGES, len(data) - 1, len(data), len(data) + 1]:
        for length in (0, 1, 2, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK, len(data), 1 << 62):
            if offset >= 0:
                got = folder.read_range(f"sizes/{name}", offset, length).tobytes()
                assert got == data[offset : offset + length], (offset, length)


@settings(max_examples=150)
@given(st.data())
def test_any_range_equals_a_slice(
    folder: PackedFolder, files: dict[str, bytes], data: st.DataObject
) -> None:
    name = data.draw(st.sampled_from([f"sizes/{name}" for name in trees.SIZES]))
    size = len(files[name])
    offset = data.draw(st.integers(0, size + 10))
    length = data.draw(st.integers(0, size + 10))
    got = folder.read_range(name, offset, length).tobytes()
    assert got == files[name][offset : offset + length]


@pytest.mark.parametrize(("offset", "length"), [(-1, 5), (0, -1), (-5, -5), (-(1 << 62), 1)])
def test_a_negative_range_is_a_value_error(offset: int, length: int, folder: PackedFolder) -> None:
    for name in ("sizes/blocks", "sizes/one", "sizes/zero"):
        with pytest.raises(ValueError, match="at least 0"):
            folder.read_range(name, offset, length)


def test_ranges_of_large_files_of_the_original_are_verified(tmp_path: Path) -> None:
    """Archives of the original have no block checksums: they are computed from the whole file."""
    data = trees.content(3 * BLOCK + 5)
    structure = OrderedDict(a=0, d=OrderedDict(large=1))
    index = b"piouhjgbr" + pickle.dumps(structure)
    path = handmade.write_records(tmp_path / "o.ffr", [b"small", data, index])
    with PackedFolder(path) as folder:
        assert folder.read_range("d/large", BLOCK - 5, 10).tobytes() == data[BLOCK - 5 : BLOCK + 5]
        assert folder.open("d/large").read() == data
        assert folder.list(recursive=True) == ["a", "d", Path("d/large")]
        assert stat.S_IMODE(folder.stat("a").st_mode) == 0o444
        assert stat.S_IMODE(folder.stat("d").st_mode) == 0o555
        assert folder.stat("a").st_mtime_ns == path.stat().st_mtime_ns
    archives.damage(path, "d/large", 2 * BLOCK)
    with PackedFolder(path) as folder:
        assert folder.read("a").tobytes() == b"small"
        with pytest.raises(SampleChecksumError):
            folder.read_range("d/large", 0, 10)


# ---- file objects --------------------------------------------------------------------------

STEPS = st.one_of(
    st.tuples(st.just("seek"), st.integers(0, 700_000)),
    st.tuples(st.just("seek end"), st.integers(-600_000, 1000)),
    st.tuples(st.just("skip"), st.integers(-200_000, 200_000)),
    st.tuples(st.just("read"), st.integers(0, 300_000) | st.just(-1)),
    st.tuples(st.just("read1"), st.integers(1, 300_000)),
    st.tuples(st.just("readinto"), st.integers(0, 300_000)),
    st.tuples(st.just("readline"), st.integers(-1, 500)),
    st.tuples(st.just("tell"), st.just(0)),
)


def step(file: Any, what: str, number: int) -> Any:
    if what == "seek":
        return file.seek(number)
    if what == "seek end":
        size = file.seek(0, os.SEEK_END)
        return file.seek(max(number, -size), os.SEEK_END)
    if what == "skip":
        return file.seek(max(number, -file.tell()), os.SEEK_CUR)
    if what == "readinto":
        memory = bytearray(number)
        return file.readinto(memory), memory
    if what == "read1":  # may return any smaller number of bytes
        got = file.read1(number)
        file.seek(-len(got), os.SEEK_CUR)
        return file.read(number)
    return file.tell() if what == "tell" else getattr(file, what)(number)


@pytest.mark.parametrize("name", ["sizes/blocks", "sizes/block", "sizes/one", "sizes/zero"])
@settings(max_examples=60)
@given(steps=st.lists(STEPS, max_size=12))
def test_any_seeks_and_reads_return_the_same_as_on_a_file(
    name: str, single: PackedFolder, rich: Path, steps: list[tuple[str, int]]
) -> None:
    with single.open(name) as packed, open(rich / name, "rb") as real:
        for what, number in steps:
            assert step(packed, what, number) == step(real, what, number), (what, number)
            assert packed.tell() == real.tell()


@pytest.mark.parametrize("mode", MODES)
def test_a_file_object_reads_in_every_mode(
    mode: str, one_file: Path, files: dict[str, bytes]
) -> None:
    with PackedFolder(one_file, mode=mode) as folder:
        for name in ("sizes/batches", "sizes/block", "sizes/one", "sizes/zero"):
            with folder.open(name) as file:
                assert file.read() == files[name]
                file.seek(len(files[name]) // 2)
                assert file.read() == files[name][len(files[name]) // 2 :]


def test_a_file_object_keeps_little_of_a_large_read(tmp_path: Path) -> None:
    """A file object keeps a few megabytes, however large the read was."""
    size = 10 * fileobject.STEP
    data = trees.content(size)
    archives.pack(trees.plain_tree(tmp_path / "t", {"x": data}), tmp_path / "t.ffr")
    with PackedFolder(tmp_path / "t.ffr") as folder, folder.open("x") as file:
        tracemalloc.start()
        try:
            file.seek(5)
            assert file.read(size - 10) == data[5:-5]
            memory = bytearray(size)
            file.seek(0)
            assert file.readinto(memory) == size
            assert memory == data
            del memory
            assert tracemalloc.get_traced_memory()[0] < 2 * fileobject.STEP
        finally:
            tracemalloc.stop()


def test_a_file_object_has_the_properties_of_a_binary_file(single: PackedFolder) -> None:
    with single.open(Path("sizes/blocks")) as file:
        assert isinstance(file, io.BufferedReader)
        assert file.readable()
        assert file.seekable()
        assert not file.writable()
        assert not file.isatty()
        assert not file.closed
        assert file.name == "sizes/blocks"
        assert file.mode == "rb"
        for refused in (file.fileno, lambda: file.write(b"x"), lambda: file.truncate(0)):
            with pytest.raises(io.UnsupportedOperation):
                refused()
        with pytest.raises((OSError, ValueError)):
            file.seek(-1)
        with pytest.raises((OSError, ValueError)):
            file.seek(0, 9)
        assert file.tell() == 0


def test_a_closed_file_object_raises_errors(single: PackedFolder) -> None:
    file = single.open("sizes/blocks")
    file.close()
    file.close()
    assert file.closed
    for call in (file.read, file.tell, lambda: file.seek(0), file.readable, file.seekable):
        with pytest.raises(ValueError, match="closed"):
            call()
    raw = single.open("sizes/blocks").detach()
    raw.close()
    for call in (raw.read, raw.tell, lambda: raw.seek(0), raw.readable, lambda: raw.read(5)):
        with pytest.raises(ValueError, match="closed"):
            call()


def test_a_file_object_and_its_folder_close_independently(one_file: Path) -> None:
    folder = PackedFolder(one_file)
    with folder.open("sizes/one"):
        pass
    assert folder.read("sizes/one").nbytes == 1
    file = folder.open("sizes/blocks")
    folder.close()
    with pytest.raises(ClosedError):
        file.read()


TEXT = "first line\nsecond: é ü\r\nthird\rno end"


@pytest.mark.parametrize("mode", ["r", "rt"])
@pytest.mark.parametrize("encoding", ["utf-8", "latin-1", "utf-16"])
@pytest.mark.parametrize("newline", [None, "", "\n", "\r\n"])
def test_text_is_read_as_with_open(
    mode: str, encoding: str, newline: str | None, tmp_path: Path
) -> None:
    tree = trees.plain_tree(tmp_path / "t", {"text": TEXT.encode(encoding)})
    archives.pack(tree, tmp_path / "a.ffr")
    options: dict[str, Any] = {"encoding": encoding, "newline": newline}
    with (
        PackedFolder(tmp_path / "a.ffr") as folder,
        folder.open("text", mode, **options) as packed,
        open(tree / "text", mode, **options) as real,
    ):
        lines = list(real)
        assert list(packed) == lines
        packed.seek(0)
        assert packed.read() == "".join(lines)


def test_lines_longer_than_a_block_are_complete(tmp_path: Path) -> None:
    lines = [b"x" * size + b"\n" for size in (0, 5, BLOCK - 1, BLOCK, 2 * BLOCK + 3, 1)]
    tree = trees.plain_tree(tmp_path / "t", {"lines": b"".join(lines)})
    archives.pack(tree, tmp_path / "a.ffr")
    with PackedFolder(tmp_path / "a.ffr") as folder, folder.open("lines") as file:
        assert list(file) == lines


def test_errors_in_text_are_the_same_as_with_open(tmp_path: Path) -> None:
    tree = trees.plain_tree(tmp_path / "t", {"text": b"a\xff"})
    archives.pack(tree, tmp_path / "a.ffr")
    with PackedFolder(tmp_path / "a.ffr") as folder:
        with folder.open("text", "r", encoding="utf-8") as file, pytest.raises(UnicodeDecodeError):
            file.read()
        with folder.open("text", "r", encoding="utf-8", errors="replace") as file:
            assert file.read() == "a\ufffd"


@pytest.mark.parametrize("mode", ["w", "wb", "a", "r+", "rb+", "x", "U", "b", "", "rbt"])
def test_any_other_mode_is_a_value_error(mode: str, single: PackedFolder) -> None:
    with pytest.raises(ValueError, match="mode"):
        single.open("sizes/one", mode)


@pytest.fixture(scope="module")
def formats(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PackedFolder]:
    """Pack files that other libraries can read."""
    top = tmp_path_factory.mktemp("formats") / "tree"
    top.mkdir()
    with zipfile.ZipFile(top / "z.zip", "w") as archive:
        archive.writestr("small.txt", "in a zip")
        archive.writestr("large.bin", trees.content(400_000))
    np.save(top / "a.npy", np.arange(100_000, dtype=">f4").reshape(100, 1000))
    np.savez_compressed(top / "b.npz", x=np.arange(5), y=np.ones((300, 300)))
    (top / "c.pickle").write_bytes(pickle.dumps({"numbers": list(range(60_000))}))
    with (top / "d.csv").open("w", newline="") as file:
        csv.writer(file).writerows([[k, f"name, {k}"] for k in range(20_000)])
    archives.pack(top, top.with_name("a.ffr"))
    with PackedFolder(top.with_name("a.ffr")) as folder:
        yield folder


def test_zipfile_reads_from_an_archive(formats: PackedFolder) -> None:
    with formats.open("z.zip") as file, zipfile.ZipFile(file) as archive:
        assert archive.testzip() is None
        assert archive.read("large.bin") == trees.content(400_000)


def test_numpy_loads_from_an_archive(formats: PackedFolder) -> None:
    with formats.open("a.npy") as file:
        array = np.load(file)
    np.testing.assert_array_equal(array, np.arange(100_000, dtype=">f4").reshape(100, 1000))
    with formats.open("b.npz") as file, np.load(file) as arrays:
        assert arrays["y"].sum() == 90_000


def test_pickle_loads_from_an_archive(formats: PackedFolder) -> None:
    with formats.open("c.pickle") as file:
        assert pickle.load(file) == {"numbers": list(range(60_000))}


def test_csv_reads_from_an_archive(formats: PackedFolder) -> None:
    with formats.open("d.csv", "r", newline="") as file:
        rows = list(csv.reader(file))
    assert rows == [[str(k), f"name, {k}"] for k in range(20_000)]


def test_shutil_copies_from_an_archive(formats: PackedFolder, tmp_path: Path) -> None:
    with formats.open("z.zip") as source, open(tmp_path / "copy", "wb") as target:
        shutil.copyfileobj(source, target)
    assert (tmp_path / "copy").read_bytes() == formats.read("z.zip").tobytes()


def test_pillow_opens_from_an_archive(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    (tmp_path / "t").mkdir()
    pixels = np.random.default_rng(0).integers(0, 256, (300, 200, 3), np.uint8)
    image.fromarray(pixels).save(tmp_path / "t" / "p.png")
    archives.pack(tmp_path / "t", tmp_path / "a.ffr")
    with PackedFolder(tmp_path / "a.ffr") as folder, folder.open("p.png") as file:
        np.testing.assert_array_equal(np.asarray(image.open(file)), pixels)


def test_pandas_reads_from_an_archive(formats: PackedFolder) -> None:
    pandas = pytest.importorskip("pandas")
    with formats.open("d.csv") as file:
        assert len(pandas.read_csv(file, header=None)) == 20_000
