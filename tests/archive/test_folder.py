"""`PackedFolder` against the folder that was packed: the same names, bytes, attributes, errors."""

from __future__ import annotations

import csv
import ctypes
import errno
import io
import multiprocessing
import os
import pickle
import random
import re
import shutil
import stat
import sys
import tracemalloc
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ffrecord import (
    ChangedError,
    ClosedError,
    FFRecordError,
    FileReader,
    FileWriter,
    IndexChecksumError,
    IndexStructureError,
    NotPackedFolderError,
    PackedFolder,
    ReadFailedError,
    SampleChecksumError,
    pack_folder,
)
from ffrecord.archive import fileobject
from tests.support import archives, handmade, trees
from tests.support.trees import BLOCK

MODES = ["auto", "aio", "buffered", "mmap"]
FORMS: dict[str, dict[str, Any]] = {
    "one file": {},
    "without the original's index": {"legacy_index": False},
    "shards": {"shard_size": 200_000},
}


@pytest.fixture(scope="module")
def rich(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trees.rich_tree(tmp_path_factory.mktemp("rich") / "tree")


@pytest.fixture(scope="module", params=FORMS)
def archive(request: pytest.FixtureRequest, rich: Path) -> Path:
    path = rich.with_name(f"{request.param}.ffr")
    archives.pack(rich, path, **FORMS[request.param])
    return path


@pytest.fixture(scope="module")
def folder(archive: Path) -> Iterator[PackedFolder]:
    with PackedFolder(archive) as folder:
        yield folder


@pytest.fixture(scope="module")
def one_file(rich: Path) -> Path:
    archives.pack(rich, rich.with_name("only one.ffr"))
    return rich.with_name("only one.ffr")


@pytest.fixture(scope="module")
def single(one_file: Path) -> Iterator[PackedFolder]:
    """An open archive of one file."""
    with PackedFolder(one_file) as folder:
        yield folder


@pytest.fixture(scope="module")
def found(rich: Path) -> dict[str, trees.Found]:
    """What was packed, by name."""
    everything = trees.snapshot(rich)
    return {os.fsdecode(p): each for p, each in everything.items() if each.kind in trees.KEPT}


@pytest.fixture(scope="module")
def files(found: dict[str, trees.Found]) -> dict[str, bytes]:
    return {name: each.content for name, each in found.items() if each.kind == "file"}


def outcome(call: Callable[[], Any]) -> Any:
    """What it returns, or what kind of error it is."""
    try:
        return call()
    except OSError as error:
        return type(error), error.errno


# ---- contents ------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
def test_every_file_reads_as_on_disk_in_every_mode(
    mode: str, archive: Path, files: dict[str, bytes]
) -> None:
    names = random.Random(mode).sample(sorted(files), len(files))
    with PackedFolder(archive, mode=mode) as folder:
        for name, got in zip(names, folder.read(names), strict=True):
            assert got.dtype == np.uint8
            assert got.tobytes() == files[name], name
        for name in names[:50]:
            assert folder.read_one(name).tobytes() == files[name], name


def test_a_plain_name_reads_that_file_and_a_list_reads_a_list(
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
        with pytest.raises(TypeError, match=r"by number are read by \.reader"):
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
def test_what_is_no_name_is_a_type_error(name: Any, single: PackedFolder) -> None:
    """Names of bytes may also just work, as with `open`."""
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


def test_a_number_in_the_place_of_names_is_told_what_belongs_there(single: PackedFolder) -> None:
    calls: list[Callable[[Any], Any]] = [single.read, single.records]
    for call in calls:
        with pytest.raises(TypeError, match="names must be a name or a list of names, not int"):
            call(3)


@pytest.mark.parametrize("name", [*trees.SIZES, "../hard/large", "../xattrs/large"])
def test_a_file_streams_in_pieces_that_are_all_of_it(
    name: str, folder: PackedFolder, rich: Path
) -> None:
    if name.startswith("../xattrs") and not (rich / "xattrs").exists():
        pytest.skip("no extended attributes here")
    pieces = [piece.tobytes() for piece in folder.stream(f"sizes/{name}")]
    assert b"".join(pieces) == (rich / "sizes" / name).read_bytes()
    assert all(pieces)


def test_a_record_holds_the_file_of_its_number(
    single: PackedFolder, one_file: Path, files: dict[str, bytes]
) -> None:
    with FileReader(one_file) as reader:
        for name in ("sizes/zero", "hard/second", "links/relative", "many/077"):
            real = "sizes/one" if name.startswith("links") else name
            assert reader.read_one(single.record(name)).tobytes() == files[real]
    assert single.record("hard/first") == single.record("aaa before all/fourth")


def test_files_larger_than_an_archive_is_read_at_a_time_are_whole(
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


# ---- the original's attribute ----------------------------------------------------------------


def pickled_structure(archive: Path) -> Any:
    """What the original would have: its own index, unpickled."""
    with FileReader(archive) as reader:
        return pickle.loads(reader.read_one(-1).tobytes().removeprefix(b"piouhjgbr"))


def test_structure_is_what_the_original_unpickles(
    folder: PackedFolder, single: PackedFolder, one_file: Path
) -> None:
    """Nested OrderedDicts in the same order: those compare by order too."""
    due = pickled_structure(one_file)
    assert folder.structure == due
    assert list(folder.structure) == sorted(folder.structure, key=os.fsencode)
    assert isinstance(folder.structure["sizes"], OrderedDict)
    assert folder.structure["sizes"]["one"] == single.record("sizes/one")
    assert folder.structure is folder.structure


def test_structure_has_symlinks_to_files_as_those_and_no_others(tmp_path: Path) -> None:
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
def test_ranges_at_the_edges_of_blocks_are_slices(
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
def test_any_range_is_a_slice(
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
        with pytest.raises(ValueError, match="negative"):
            folder.read_range(name, offset, length)


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
    if what == "read1":  # may give less than asked for: how much is not said
        got = file.read1(number)
        file.seek(-len(got), os.SEEK_CUR)
        return file.read(number)
    return file.tell() if what == "tell" else getattr(file, what)(number)


@pytest.mark.parametrize("name", ["sizes/blocks", "sizes/block", "sizes/one", "sizes/zero"])
@settings(max_examples=60)
@given(steps=st.lists(STEPS, max_size=12))
def test_any_seeks_and_reads_give_what_a_file_gives(
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


def test_a_file_object_does_not_keep_what_was_read(tmp_path: Path) -> None:
    """But for a few megabytes, however large the read was."""
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


def test_a_file_object_is_what_a_binary_file_is(single: PackedFolder) -> None:
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


def test_a_closed_file_object_is_closed(single: PackedFolder) -> None:
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


def test_a_file_object_and_its_folder_close_on_their_own(one_file: Path) -> None:
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
def test_text_is_read_as_open_reads_it(
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


def test_lines_longer_than_a_block_are_whole(tmp_path: Path) -> None:
    lines = [b"x" * size + b"\n" for size in (0, 5, BLOCK - 1, BLOCK, 2 * BLOCK + 3, 1)]
    tree = trees.plain_tree(tmp_path / "t", {"lines": b"".join(lines)})
    archives.pack(tree, tmp_path / "a.ffr")
    with PackedFolder(tmp_path / "a.ffr") as folder, folder.open("lines") as file:
        assert list(file) == lines


def test_errors_in_text_are_those_of_open(tmp_path: Path) -> None:
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
    """Files that other libraries read."""
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


# ---- names ---------------------------------------------------------------------------------


def listed(
    top: Path, list_file: bool = True, list_dir: bool = True, recursive: bool = False
) -> list[Any]:
    """What the original lists of a folder on disk, but for symlinks, which it would follow."""
    result: list[Any] = []
    for name in sorted(os.listdir(os.fsencode(top))):
        path = top / os.fsdecode(name)
        kind = stat.S_IFMT(path.lstat().st_mode)
        if kind in (stat.S_IFIFO, stat.S_IFSOCK):
            continue
        is_folder = os.path.isdir(path)
        if list_dir if is_folder else list_file:
            result.append(os.fsdecode(name))
        if recursive and is_folder and kind != stat.S_IFLNK:
            inner = listed(path, list_file, list_dir, recursive)
            result += [Path(os.fsdecode(name)) / each for each in inner]
    return result


@pytest.mark.parametrize("recursive", [False, True])
@pytest.mark.parametrize("list_dir", [False, True])
@pytest.mark.parametrize("list_file", [False, True])
def test_list_gives_what_the_original_gives_in_its_types_and_order(
    list_file: bool, list_dir: bool, recursive: bool, folder: PackedFolder, rich: Path
) -> None:
    for path in (None, "", "sizes", "links", "nested/a", "empty", "names", Path("modes")):
        got = folder.list(path, list_file, list_dir, recursive)
        due = listed(rich / (path or ""), list_file, list_dir, recursive)
        assert got == due
        assert list(map(type, got)) == list(map(type, due))


def test_a_listing_of_symlinked_folders_is_that_of_the_folder(
    folder: PackedFolder, rich: Path
) -> None:
    assert folder.list("links/to folder", recursive=True) == listed(
        rich / "nested/a", recursive=True
    )
    assert folder.list("links/up") == folder.list() == listed(rich)


def test_list_of_what_is_no_folder_is_an_error(folder: PackedFolder) -> None:
    with pytest.raises(NotADirectoryError, match="sizes/one"):
        folder.list("sizes/one")
    with pytest.raises(FileNotFoundError, match="nothing"):
        folder.list("nothing")


def test_exists_is_file_and_is_dir_are_those_of_os_path(
    folder: PackedFolder, found: dict[str, trees.Found], rich: Path
) -> None:
    names = [*found, "nothing", "sizes/nothing", "sizes/one/x", "links/up/sizes/one"]
    names += ["sizes/one/", "sizes/one/.", "sizes/", "links/relative/", "nothing/", "/"]
    for name in names:
        # As in the original, paths are taken as pathlib spells them: no slash at the end.
        real = rich / name.lstrip("/")
        assert folder.exists(name) == os.path.exists(real), name
        assert folder.is_file(name) == os.path.isfile(real), name
        assert folder.is_dir(name) == os.path.isdir(real), name
        assert folder.is_symlink(name) == os.path.islink(f"{rich}/{name}"), name
        assert (name in folder) == os.path.exists(real), name
        assert folder.exists(Path(name)) == os.path.exists(rich / name), name


@pytest.mark.parametrize("name", ["\ud800", "a\0b", "sizes/\0", "x" * 5000, "x/" * 3000])
def test_a_name_that_no_file_can_have_is_not_there(name: str, single: PackedFolder) -> None:
    assert not single.exists(name)
    assert not single.is_file(name)
    assert not single.is_dir(name)
    assert name not in single
    with pytest.raises((OSError, ValueError)):
        single.read(name)


def test_length_and_iteration_are_over_all_files(
    folder: PackedFolder, files: dict[str, bytes]
) -> None:
    paths = list(folder)
    assert len(folder) == folder.num_files() == len(paths) == len(files)
    assert set(paths) == set(files)
    # Each folder's files together, and before those of the folders in it.
    parents = [os.path.dirname(path) for path in paths]
    runs = [parent for k, parent in enumerate(parents) if k == 0 or parents[k - 1] != parent]
    assert len(runs) == len(set(runs))
    assert [run.count("/") for run in runs if run] == sorted(run.count("/") for run in runs if run)


def test_only_names_are_in_a_folder(folder: PackedFolder) -> None:
    things: list[Any] = [None, 5, 2.5, ["sizes"], object()]
    for thing in things:
        assert thing not in folder


def test_stat_is_that_of_os(
    folder: PackedFolder, found: dict[str, trees.Found], rich: Path
) -> None:
    for name in found:
        for follow in (True, False):
            real = outcome(lambda: os.stat(rich / name, follow_symlinks=follow))  # noqa: B023
            packed = outcome(lambda: folder.stat(name, follow_symlinks=follow))  # noqa: B023
            if isinstance(real, tuple) and not isinstance(real, os.stat_result):
                if name not in ("links/absolute", "links/leaving"):
                    assert packed == real, name
                continue
            for field in ("st_mode", "st_uid", "st_gid", "st_mtime_ns"):
                assert getattr(packed, field) == getattr(real, field), (name, field)
            assert packed.st_mtime == pytest.approx(real.st_mtime, abs=1e-6)
            if not stat.S_ISDIR(real.st_mode):
                assert packed.st_size == real.st_size
                assert packed.st_nlink == real.st_nlink
            else:
                folders = sum(
                    each.is_dir(follow_symlinks=False) for each in os.scandir(rich / name)
                )
                assert packed.st_nlink == 2 + folders


def test_files_are_the_same_if_their_inodes_are(
    folder: PackedFolder, found: dict[str, trees.Found]
) -> None:
    inodes = {name: folder.stat(name, follow_symlinks=False).st_ino for name in found}
    for name, each in found.items():
        same = {other for other in inodes if inodes[other] == inodes[name]}
        assert same == set(map(os.fsdecode, each.same_file))
    assert 0 not in inodes.values()  # which readdir takes for a deleted entry


def test_readlink_is_that_of_os(
    folder: PackedFolder, found: dict[str, trees.Found], rich: Path
) -> None:
    for name in found:
        real = outcome(lambda: os.readlink(rich / name))  # noqa: B023
        assert outcome(lambda: folder.readlink(name)) == real, name  # noqa: B023
    with pytest.raises(FileNotFoundError):
        folder.readlink("nothing")


def test_xattrs_are_those_of_os(
    folder: PackedFolder, found: dict[str, trees.Found], rich: Path
) -> None:
    if not trees.has_xattrs(rich):
        pytest.skip("no extended attributes here")
    for name, each in found.items():
        assert tuple(sorted(folder.xattrs(name, follow_symlinks=False).items())) == each.xattrs
    assert folder.xattrs("xattrs/file") == trees.XATTRS


def test_walk_is_that_of_os(folder: PackedFolder, rich: Path) -> None:
    for top in ("", "nested", "links", "empty", "nested/a/b"):
        real = {}
        for path, inner, names in os.walk(rich / top):
            kept = [n for n in names if n not in ("fifo", "socket")]
            real[os.path.relpath(path, rich)] = (sorted(inner), sorted(kept))
        packed = list(folder.walk(top))
        shown = {path or ".": (sorted(inner), sorted(names)) for path, inner, names in packed}
        assert shown == real
        assert len(packed) == len(real)
        assert packed[0][0] == top
        seen: set[str] = set()
        for path, _, _ in packed:
            assert not path or path == top or os.path.dirname(path) in seen, "top down"
            seen.add(path)


def test_a_walk_can_follow_symlinks_and_does_not_run_in_circles(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    (tree / "a" / "deep").mkdir(parents=True)
    (tree / "b").mkdir()
    (tree / "a" / "deep" / "file").write_bytes(b"1")
    (tree / "b" / "linked").symlink_to("../a/deep")
    (tree / "b" / "file").symlink_to("../a/deep/file")
    (tree / "b" / "nowhere").symlink_to("nothing")
    archives.pack(tree, tmp_path / "tree.ffr")
    model = [
        ("" if path == str(tree) else os.path.relpath(path, tree), sorted(inner), sorted(names))
        for path, inner, names in os.walk(tree, followlinks=True)
    ]
    with PackedFolder(tmp_path / "tree.ffr") as folder:
        assert sorted(folder.walk(followlinks=True)) == sorted(model)

    (tree / "a" / "deep" / "up").symlink_to("../..")  # os.walk would go round until ELOOP
    archives.pack(tree, tmp_path / "round.ffr")
    with PackedFolder(tmp_path / "round.ffr") as folder:
        paths = [path for path, _, _ in folder.walk(followlinks=True)]
    assert paths == ["", "a", "a/deep", "b", "b/linked"]


def test_folders_can_be_taken_out_of_a_walk(folder: PackedFolder, rich: Path) -> None:
    visited = []
    for path, inner, _names in folder.walk():
        visited.append(path)
        inner[:] = [name for name in inner if name in ("nested", "a")]
    assert visited == ["", "nested", "nested/a"]


def test_a_walk_of_what_is_no_folder_is_an_error(folder: PackedFolder) -> None:
    with pytest.raises(NotADirectoryError):
        list(folder.walk("sizes/one"))
    with pytest.raises(FileNotFoundError):
        list(folder.walk("nothing"))


@pytest.mark.parametrize(
    "pattern",
    [
        "*", "*/*", "*/*/*/*", "**/*", "sizes/*", "sizes/one", "sizes/nothing", "nothing/*",
        "**/inside", "**/[a-c]*", "names/?", "names/.*", "names/*\n*", "names/[*]*", "names/*\\*",
        "many/00?", "many/[!0-4]99", "links/to folder/*", "links/*/b/*", "links/up/sizes/*",
        "nested/**/deep", "nested/**/*", "**/empty", "**/b/**/empty", "folders/*/inside",
        "./sizes/*", "sizes//b*", "SIZES/*", "**/folder*/inside", "**/a/**/c/*",
    ],
)  # fmt: skip
def test_glob_finds_what_pathlib_finds(pattern: str, folder: PackedFolder, rich: Path) -> None:
    got = folder.glob(pattern)
    kept = [path for path in rich.glob(pattern) if not (path.is_fifo() or path.is_socket())]
    assert set(got) == {str(path.relative_to(rich)) for path in kept}
    assert len(got) == len(set(got))


def test_a_pattern_that_ends_in_a_slash_finds_folders(single: PackedFolder, rich: Path) -> None:
    """As with `glob`, and with pathlib from Python 3.11 on."""
    for pattern in ("*", "nested/a/*", "links/*"):
        due = {path for path in single.glob(pattern) if (rich / path).is_dir()}
        assert {path.rstrip("/") for path in single.glob(f"{pattern}/")} == due


def test_glob_of_every_level_finds_everything(
    folder: PackedFolder, found: dict[str, trees.Found]
) -> None:
    assert set(folder.glob("**")) - {""} == set(found) - {"."}


# ---- how paths may be spelled --------------------------------------------------------------

SPELLINGS = [
    "sizes/one", "./sizes/one", "sizes//one", "sizes/./one", "sizes/../sizes/one", "sizes/one/",
    "sizes/one/.", "sizes/one/..", "sizes/one/x", "sizes", "sizes/", "sizes/.", "nothing",
    "nothing/", "nothing/x", "nothing/..", "nested/a/../../sizes/one", "empty", "empty/x",
    "links/relative", "links/relative/", "links/sibling", "links/to folder", "links/to folder/",
    "links/to folder/shallow", "links/to folder/../a/shallow", "links/through", "links/slash",
    "links/slash/a/shallow", "links/file with slash", "links/up/sizes/one", "links/up",
    "links/up/links/up/sizes/one", "links/dangling", "links/dangling/x", "links/loop",
    "links/loop/x", "links/ping", "links/pong/..", "links/long", "links/not utf-8",
    "names/.hidden", "names/...", "names/..two dots", "names/-rf", "names/ ", "names/new\nline",
    "names/*star?[x]", "folders/--/inside", "hard/second", "special/fifo/x",
]  # fmt: skip


@pytest.mark.parametrize("path", SPELLINGS)
def test_a_path_reads_as_open_reads_it_or_fails_as_open_fails(
    path: str, folder: PackedFolder, rich: Path
) -> None:
    def read_real() -> bytes:
        with open(f"{rich}/{path}", "rb") as file:
            return file.read()

    due = outcome(read_real)
    if path.startswith("special/"):  # which is not packed
        due = (FileNotFoundError, errno.ENOENT)
    calls: list[Callable[[], Any]] = [
        lambda: folder.open(path).read(),
        lambda: folder.read_range(path, 0, 1 << 40).tobytes(),
        lambda: b"".join(piece.tobytes() for piece in folder.stream(path)),
    ]
    for call in calls:
        assert outcome(call) == due
    if path.endswith(("/", "/.")) and os.path.isfile(rich / path):
        due = (rich / path).read_bytes()  # the original's methods take it as pathlib does
    of_the_original: list[Callable[[], Any]] = [
        lambda: folder.read(path).tobytes(),
        lambda: folder.read_one(path).tobytes(),
        lambda: handmade.as_bytes(folder.read([path, path, path]))[2],
        lambda: handmade.as_bytes(folder.reader.read([folder.record(path)]))[0],
    ]
    for call in of_the_original:
        assert outcome(call) == due


def test_files_are_read_by_any_iterable_of_names(
    folder: PackedFolder, files: dict[str, bytes]
) -> None:
    names = sorted(files)[:40]
    for some in (iter(names), (name for name in names), dict.fromkeys(names), map(Path, names)):
        assert handmade.as_bytes(folder.read(some)) == [files[name] for name in names]
    assert folder.read({"sizes/one"})[0].tobytes() == files["sizes/one"]


def test_arguments_have_the_originals_names_and_their_former_ones(
    folder: PackedFolder, files: dict[str, bytes]
) -> None:
    due = files["sizes/one"]
    assert folder.read_one(fname="sizes/one").tobytes() == due
    assert folder.read(fnames=["sizes/one"])[0].tobytes() == due
    assert folder.read_one(name="sizes/one").tobytes() == due  # type: ignore[call-arg]
    assert folder.read(names=["sizes/one"])[0].tobytes() == due  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="name"):
        folder.read_one("sizes/one", name="sizes/one")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="fname"):
        folder.read_one()  # type: ignore[call-arg]


def test_a_folder_without_files_is_true(tmp_path: Path) -> None:
    archives.pack(trees.plain_tree(tmp_path / "tree", {}), tmp_path / "none.ffr")
    with PackedFolder(tmp_path / "none.ffr") as folder:
        assert bool(folder) is True
        assert len(folder) == 0


@pytest.mark.parametrize("path", ["nothing", "sizes", "sizes/one/x", "links/loop", "links/leaving"])
def test_an_error_has_the_name_that_was_asked_for(path: str, folder: PackedFolder) -> None:
    for call in (folder.read, folder.read_one, folder.open):
        with pytest.raises(OSError, match=re.escape(path)) as caught:
            call(path)
        assert caught.value.filename == path


@pytest.mark.parametrize("path", ["/sizes/one", "//sizes/one", "../sizes/one", "/../../sizes/one"])
def test_nothing_is_above_the_top(path: str, folder: PackedFolder, files: dict[str, bytes]) -> None:
    assert folder.read(path).tobytes() == files["sizes/one"]
    assert folder.list("..") == folder.list("/") == folder.list("") == folder.list()


@pytest.mark.parametrize("path", ["links/absolute", "links/leaving", "links/leaving/x"])
def test_a_symlink_that_leaves_the_archive_is_an_error(path: str, folder: PackedFolder) -> None:
    for call in (folder.read, folder.open, folder.stat, folder.list):
        with pytest.raises(OSError, match="out of the archive") as caught:
            call(path)
        assert caught.value.errno == errno.EXDEV
    assert not folder.exists(path)


def test_a_symlink_that_leaves_and_comes_back_is_an_error(tmp_path: Path) -> None:
    """The name of the packed folder is not in the archive."""
    tree = trees.plain_tree(tmp_path / "t", {"file": b"x", "d/e": b"y"})
    targets = {
        "back": "../t/file",
        "d/back": "../../t/file",
        "root": f"{tree}/file",
        "d/in": "../file",
    }
    for name, target in targets.items():
        (tree / name).symlink_to(target)
    archives.pack(tree, tmp_path / "a.ffr")
    with PackedFolder(tmp_path / "a.ffr") as folder:
        for name in ("back", "d/back", "root"):
            assert outcome(lambda name=name: folder.read(name)) == (OSError, errno.EXDEV)  # type: ignore[misc]
        assert folder.read("d/in").tobytes() == b"x"


def test_as_many_symlinks_are_followed_as_the_kernel_follows(tmp_path: Path) -> None:
    tree = trees.plain_tree(tmp_path / "t", {"file": b"the end", "d/in": b"y"})
    for kind, end in (("f", "file"), ("d", "d")):
        for number in range(45):
            target = end if number == 0 else f"{kind}{number - 1}"
            (tree / f"{kind}{number}").symlink_to(target)
    archives.pack(tree, tmp_path / "a.ffr")
    with PackedFolder(tmp_path / "a.ffr") as folder:
        reached = set()
        for number in range(45):
            for path in (f"f{number}", f"d{number}/in", f"d{number}/../f1"):
                real = outcome(lambda path=path: (tree / path).read_bytes())  # type: ignore[misc]
                assert outcome(lambda path=path: folder.read(path).tobytes()) == real  # type: ignore[misc]
                reached.add(isinstance(real, bytes))
    assert reached == {True, False}


class OpenHow(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


OPENAT2 = 437
RESOLVE_IN_ROOT = 0x10


def openat2(root: int, path: str) -> int:
    """Open a path as if the folder `root` were the root directory: the kernel's own answer.

    EAGAIN says that something was renamed meanwhile, anywhere on the machine.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    how = OpenHow(os.O_PATH | os.O_CLOEXEC, 0, RESOLVE_IN_ROOT)
    while True:
        fd = libc.syscall(OPENAT2, root, os.fsencode(path), ctypes.byref(how), ctypes.sizeof(how))
        if fd >= 0:
            return int(fd)
        if ctypes.get_errno() != errno.EAGAIN:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), path)


@pytest.fixture(scope="module")
def maze(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[int, PackedFolder]]:
    """A few folders and symlinks, none of which leaves: as a descriptor, and packed."""
    top = trees.plain_tree(
        tmp_path_factory.mktemp("maze") / "t", {"a/f": b"1", "a/b/f": b"22", "f": b"333", "c/": b""}
    )
    symlinks = {
        "l": "a", "a/l": "b", "a/up": "..", "a/b/l": "../../f", "c/l": "../a/b/../l/f",
        "loop": "loop", "a/o": "../c/l", "c/d": "nowhere", "c/s": "../a/", "a/b/s": "../../f/",
        "c/up": "../l/..",
    }  # fmt: skip
    for name, target in symlinks.items():
        (top / name).symlink_to(target)
    archives.pack(top, top.with_name("a.ffr"))
    root = os.open(top, os.O_RDONLY)
    try:
        os.close(openat2(root, "a"))
    except OSError:
        os.close(root)
        pytest.skip("this kernel has no openat2")
    with PackedFolder(top.with_name("a.ffr")) as folder:
        yield root, folder
    os.close(root)


PARTS = ["a", "b", "c", "d", "f", "l", "o", "s", "up", "loop", ".", "..", "", "x"]


@settings(max_examples=400)
@given(st.lists(st.sampled_from(PARTS), min_size=1, max_size=9).map("/".join).filter(bool))
def test_any_path_leads_where_the_kernel_finds_it_to_lead(
    maze: tuple[int, PackedFolder], path: str
) -> None:
    root, folder = maze

    def real() -> tuple[int, int]:
        fd = openat2(root, path)
        try:
            now = os.fstat(fd)
            return stat.S_IFMT(now.st_mode), now.st_mtime_ns
        finally:
            os.close(fd)

    def packed() -> tuple[int, int]:
        now = folder.stat(path)
        return stat.S_IFMT(now.st_mode), now.st_mtime_ns

    assert outcome(packed) == outcome(real)


# ---- life ----------------------------------------------------------------------------------


def test_a_closed_folder_says_so(archive: Path) -> None:
    with PackedFolder(archive) as folder:
        kept = folder.read("sizes/blocks")
        before = kept.tobytes()
        file = folder.open("sizes/blocks")
    folder.close()
    calls: list[Callable[[], Any]] = [
        lambda: folder.read("sizes/one"),
        lambda: folder.read_one("sizes/zero"),
        lambda: folder.read(["sizes/one", "sizes/block", "many/001"]),
        lambda: folder.read_range("sizes/blocks", 5, 5),
        lambda: folder.read_range("sizes/one", 0, 1),
        lambda: list(folder.stream("sizes/blocks")),
        lambda: folder.open("sizes/one").read(),
        lambda: file.read(1),
    ]
    for call in calls:
        with pytest.raises(ClosedError):
            call()
    assert kept.tobytes() == before


def test_a_folder_holds_no_descriptor_once_it_is_closed(archive: Path) -> None:
    for mode in MODES:
        before = handmade.open_descriptors()
        with PackedFolder(archive, mode=mode) as folder:
            folder.read(["sizes/one", "sizes/block", "many/001"])
        del folder
        assert handmade.open_descriptors() == before


def test_an_archive_that_does_not_open_leaves_no_descriptor(one_file: Path, tmp_path: Path) -> None:
    path = tmp_path / "a.ffr"
    path.write_bytes(one_file.read_bytes())
    archives.flip(path, archives.index_offsets(path)[0] + 100)
    before = handmade.open_descriptors()
    for _ in range(3):
        with pytest.raises(IndexChecksumError):
            PackedFolder(path)
    assert handmade.open_descriptors() == before


def test_a_folder_opens_from_any_kind_of_path(
    one_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(one_file.parent)
    for path in (one_file, str(one_file), one_file.name, [one_file], (str(one_file),)):
        with PackedFolder(path) as folder:
            monkeypatch.chdir("/")
            assert folder.read("sizes/one").nbytes == 1
            monkeypatch.chdir(one_file.parent)
        assert one_file.name in repr(folder)


@pytest.mark.parametrize("mode", ["", "direct", "r", "rb"])
def test_an_unknown_mode_is_a_value_error(mode: str, one_file: Path) -> None:
    with pytest.raises(ValueError, match="mode"):
        PackedFolder(one_file, mode=mode)


def all_right(folder: PackedFolder, due: dict[str, bytes], seed: int, turns: int = 15) -> bool:
    """Read random files in every way there is, and compare."""
    generator = random.Random(seed)
    names = sorted(due)
    for _ in range(turns):
        some = generator.choices(names, k=generator.choice([1, 2, 3, 40]))
        if handmade.as_bytes(folder.read(some)) != [due[name] for name in some]:
            return False
        name = some[0]
        at, count = generator.randrange(len(due[name]) + 1), generator.randrange(300_000)
        if folder.read_range(name, at, count).tobytes() != due[name][at : at + count]:
            return False
        with folder.open(name) as file:
            file.seek(at)
            if file.read(count) != due[name][at : at + count]:
                return False
        if folder.stat(name).st_size != len(due[name]) or name not in folder:
            return False
    return len(folder.list(recursive=True)) >= len(due)


@pytest.mark.parametrize("mode", MODES)
def test_eight_threads_share_a_folder(mode: str, archive: Path, files: dict[str, bytes]) -> None:
    with PackedFolder(archive, mode=mode) as folder, ThreadPoolExecutor(8) as threads:
        assert all(threads.map(lambda seed: all_right(folder, files, seed), range(8)))


@pytest.mark.parametrize("mode", MODES)
def test_a_forked_child_reads_beside_its_parent(
    mode: str, archive: Path, files: dict[str, bytes]
) -> None:
    with PackedFolder(archive, mode=mode) as folder:
        assert all_right(folder, files, 0, 2)
        children = []
        for seed in (1, 2):
            child = os.fork()
            if child == 0:
                code = 1
                try:
                    code = 0 if all_right(folder, files, seed) else 2
                finally:
                    os._exit(code)
            children.append(child)
        assert all_right(folder, files, 3)
        codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
        assert codes == [0, 0]


def test_a_folder_pickles_as_its_path_and_options(archive: Path, files: dict[str, bytes]) -> None:
    for options in ({}, {"check_data": False, "mode": "buffered"}, {"mode": "mmap"}):
        with PackedFolder(archive, **options) as folder:
            raw = pickle.dumps(folder)
        assert len(raw) < 1000
        with pickle.loads(raw) as again:
            assert all_right(again, files, 5, 5)
            assert again.reader.check_data == options.get("check_data", True)
            assert again.reader.mode == options.get("mode", "auto")


def in_spawned(folder: PackedFolder, names: list[str]) -> list[bytes]:
    return handmade.as_bytes(folder.read(names))


def test_a_folder_goes_to_a_spawned_process(single: PackedFolder, files: dict[str, bytes]) -> None:
    names = ["sizes/blocks", "names/new\nline", "hard/second"]
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        task = pool.apply_async(in_spawned, (single, names))
        assert task.get(timeout=600) == [files[name] for name in names]


def test_many_levels_are_listed_walked_and_found(tmp_path: Path) -> None:
    levels = 300
    tree = trees.chain(tmp_path / "t", levels)
    archives.pack(tree, tmp_path / "a.ffr")
    deep = "d/" * levels + "file"
    limit = sys.getrecursionlimit()
    with PackedFolder(tmp_path / "a.ffr") as folder:
        sys.setrecursionlimit(200 + len(list(_frames())))
        try:
            assert folder.read(deep).tobytes() == b"%d" % (levels - 1)
            assert Path(deep) in folder.list(recursive=True)
            assert len(list(folder.walk())) == levels + 1
            assert deep in folder.glob("**/file")
            assert list(folder)[-1] == deep
            assert folder.stat("../" * 1000 + deep).st_size == 3
        finally:
            sys.setrecursionlimit(limit)


def _frames() -> Iterator[Any]:
    frame = sys._getframe()
    while frame is not None:
        yield frame
        frame = frame.f_back  # type: ignore[assignment]


def test_every_one_of_many_names_is_found_and_no_other(tmp_path: Path) -> None:
    count = 3000
    contents = {f"{number:05d}": b"%d" % number for number in range(count)}
    trees.plain_tree(tmp_path / "t", contents)
    archives.pack(tmp_path / "t", tmp_path / "a.ffr")
    with PackedFolder(tmp_path / "a.ffr") as folder:
        assert handmade.as_bytes(folder.read(list(contents))) == list(contents.values())
        for number in (0, 1, count // 2, count - 2, count - 1):
            assert folder.read(f"./{number:05d}").tobytes() == b"%d" % number
        for name in ("", "0", "000000", "03000", "99999", "a"):
            assert not folder.is_file(name)


# ---- shards --------------------------------------------------------------------------------


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    files = {f"{k}": trees.content(1000, k) for k in range(9)}
    tree = trees.plain_tree(tmp_path / "t", files)
    archives.pack(tree, tmp_path / "shards", shard_size=3000)
    assert len(os.listdir(tmp_path / "shards")) == 4
    return tmp_path / "shards"


def test_shards_open_as_a_folder_or_as_a_list(shards: Path, tmp_path: Path) -> None:
    moved = shards.rename(tmp_path / "elsewhere")
    ways: list[Any] = [moved, str(moved), f"{moved}/", sorted(moved.iterdir())]
    for way in ways:
        with PackedFolder(way) as folder:
            for k in range(9):
                assert folder.read(f"{k}").tobytes() == trees.content(1000, k)


def test_shards_in_another_order_are_an_error(shards: Path) -> None:
    first, second, *others = sorted(shards.iterdir())
    for files in ([second, first, *others], [first, first, second, *others]):
        with pytest.raises(
            IndexStructureError, match=r"index\.ffr: its shards are not in the order"
        ):
            PackedFolder(files)


def rewrite(path: Path) -> None:
    """A valid shard with as many records that are others."""
    with FileWriter(path, 3) as writer:
        writer.write([bytes(1000)] * 3)


def keep_only(folder: Path, name: str) -> None:
    for path in folder.iterdir():
        if path.name != name:
            path.unlink()


SHARD_ERRORS: dict[str, tuple[Callable[[Path], object], str]] = {
    "first missing": (lambda at: (at / "PART_00000.ffr").unlink(), "PART_00000.ffr"),
    "last missing": (lambda at: (at / "PART_00002.ffr").unlink(), "PART_00002.ffr"),
    "all missing": (lambda at: keep_only(at, "index.ffr"), "PART_00000.ffr"),
    "renamed": (
        lambda at: (at / "PART_00001.ffr").rename(at / "PART_00009.ffr"),
        "PART_00001.ffr",
    ),
    "swapped": (
        lambda at: [
            (at / "PART_00000.ffr").rename(at / "x"),
            (at / "PART_00001.ffr").rename(at / "PART_00000.ffr"),
            (at / "x").rename(at / "PART_00001.ffr"),
        ],
        "PART_0000[01].ffr",
    ),
    "replaced": (lambda at: rewrite(at / "PART_00001.ffr"), "PART_00001.ffr"),
    "one more": (lambda at: rewrite(at / "PART_00003.ffr"), "index.ffr"),
    "one more, elsewhere": (lambda at: rewrite(at / "AAA.ffr"), "index.ffr"),
}


@pytest.mark.parametrize("what", SHARD_ERRORS)
def test_other_shards_than_those_packed_are_an_error_that_names_one(
    what: str, shards: Path
) -> None:
    change, name = SHARD_ERRORS[what]
    change(shards)
    with pytest.raises(IndexStructureError, match=name):
        PackedFolder(shards)


def test_shards_without_their_index_are_no_packed_folder(shards: Path) -> None:
    with pytest.raises(IndexStructureError, match="PART_00000"):
        PackedFolder(shards / "index.ffr")
    (shards / "index.ffr").unlink()
    with pytest.raises(NotPackedFolderError):
        PackedFolder(shards)


def test_the_index_of_another_archive_is_noticed(shards: Path, tmp_path: Path) -> None:
    (tmp_path / "t" / "4").write_bytes(trees.content(1000, 99))
    archives.pack(tmp_path / "t", tmp_path / "others", shard_size=3000)
    shutil.copy(tmp_path / "others" / "index.ffr", shards / "index.ffr")
    with pytest.raises(IndexStructureError, match="PART_00001"):
        PackedFolder(shards)


def test_a_truncated_shard_is_an_error(shards: Path) -> None:
    """One that ends in the middle of its last record has another length of it."""
    path = shards / "PART_00001.ffr"
    os.truncate(path, path.stat().st_size - 1)
    with pytest.raises(FFRecordError, match="shards"):
        PackedFolder(shards)


def test_a_stray_file_beside_shards_is_named(shards: Path, one_file: Path) -> None:
    for stray in ("AAA.ffr", "PART_00003.ffr", "zzz.ffr"):
        for make in (rewrite, lambda path: shutil.copy(one_file, path)):
            make(shards / stray)
            with pytest.raises(FFRecordError) as caught:
                PackedFolder(shards)
            said = f"{stray} lies beside it and is none of its shards: move it elsewhere"
            assert str(caught.value) == f"{shards}/index.ffr: {said}"
        (shards / stray).unlink()
    PackedFolder(shards).close()


def original_s(path: Path, files: list[bytes]) -> Path:
    """An archive as the original writes it, which names no shards."""
    names = OrderedDict((f"{number}", number) for number in range(len(files)))
    return handmade.write_records(path, [*files, b"piouhjgbr" + pickle.dumps(names)])


@pytest.mark.parametrize("others", [["a.ffr"], ["zz.ffr"], ["a.ffr", "zz.ffr"]])
@pytest.mark.parametrize("whose", ["ours", "the original's"])
def test_of_files_that_are_no_shards_the_archive_is_named_to_be_given(
    whose: str, others: list[str], one_file: Path, tmp_path: Path
) -> None:
    """The original gives other records than those of the names, if there are some before."""
    place = tmp_path / "place"
    place.mkdir()
    if whose == "ours":
        shutil.copy(one_file, place / "photos.ffr")
    else:
        original_s(place / "photos.ffr", [b"first", b"second"])
    for other in others:
        rewrite(place / other)
    ways: list[Any] = [place, [place / name for name in sorted([*others, "photos.ffr"])]]
    for way in ways:
        with pytest.raises(FFRecordError) as caught:
            PackedFolder(way)
        # What stands last decides whether there is an index that has other files beside it.
        due = NotPackedFolderError if "zz.ffr" in others else IndexStructureError
        assert type(caught.value) is due
        assert str(caught.value) == (
            f"{place}: its {1 + len(others)} record files are not the shards of one packed folder; "
            f"name a file that is a packed folder by itself: {place}/photos.ffr"
        )
        with FileReader(way) as reader:
            assert len(reader.fnames) == 1 + len(others)


def test_of_many_archives_a_few_are_named(tmp_path: Path) -> None:
    for number in range(5):
        original_s(tmp_path / f"{number}.ffr", [b"%d" % number])
    with pytest.raises(IndexStructureError, match=r"/0\.ffr, .*/1\.ffr, .*/2\.ffr and 2 more$"):
        PackedFolder(tmp_path)


def test_shards_of_the_original_s_kind_open(tmp_path: Path) -> None:
    """Made by hand: the last file names records of all."""
    handmade.write_records(tmp_path / "0.ffr", [b"first", b"second"])
    names = OrderedDict(one=0, two=1, three=2)
    handmade.write_records(tmp_path / "1.ffr", [b"third", b"piouhjgbr" + pickle.dumps(names, 2)])
    with PackedFolder(tmp_path) as folder:
        assert handmade.as_bytes(folder.read(["three", "one"])) == [b"third", b"first"]


def test_a_folder_with_one_archive_in_it_opens_as_the_original_s_does(
    one_file: Path, tmp_path: Path
) -> None:
    shutil.copy(one_file, tmp_path / "photos.ffr")
    (tmp_path / "notes.txt").write_text("about the photos\n")
    with PackedFolder(tmp_path) as folder, PackedFolder(one_file) as due:
        assert list(folder) == list(due)


# ---- damage --------------------------------------------------------------------------------


@pytest.fixture
def copy(one_file: Path, tmp_path: Path) -> Path:
    """An archive that may be spoiled."""
    return Path(shutil.copy(one_file, tmp_path / "copy.ffr"))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("when", ["before it is opened", "after"])
def test_a_damaged_small_file_is_an_error_and_the_others_are_read(
    when: str, mode: str, copy: Path, files: dict[str, bytes]
) -> None:
    name = "many/049"
    if when != "after":
        archives.damage(copy, name, 20)
    with PackedFolder(copy, mode=mode) as folder:
        if when == "after":
            archives.damage(copy, name, 20)
        calls: list[Callable[[], Any]] = [
            lambda: folder.read(name),
            lambda: folder.read([name, "sizes/one", "sizes/block"]),
            lambda: folder.read_range(name, 0, 1),
            lambda: list(folder.stream(name)),
            lambda: folder.open(name).read(1),
        ]
        for call in calls:
            with pytest.raises(SampleChecksumError, match=r"copy\.ffr") as caught:
                call()
            assert f" is damaged ({name}): " in str(caught.value)
            assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
        others = [other for other in files if other != name]
        assert handmade.as_bytes(folder.read(others)) == [files[other] for other in others]


@pytest.mark.parametrize("mode", MODES)
def test_of_a_damaged_large_file_the_other_blocks_are_read(
    mode: str, copy: Path, files: dict[str, bytes]
) -> None:
    name = "sizes/batches"
    data = files[name]
    archives.damage(copy, name, 3 * BLOCK + 777)
    with PackedFolder(copy, mode=mode) as folder:
        good = [
            (0, 3 * BLOCK), (0, 1), (3 * BLOCK - 1, 1), (4 * BLOCK, 1), (4 * BLOCK, 5 * BLOCK),
            (len(data) - 1, 100), (4 * BLOCK, len(data)), (BLOCK // 2, 2 * BLOCK),
        ]  # fmt: skip
        for offset, length in good:
            got = folder.read_range(name, offset, length).tobytes()
            assert got == data[offset : offset + length]
        bad = [
            (3 * BLOCK, 1), (3 * BLOCK + 777, 1), (3 * BLOCK - 1, 2), (4 * BLOCK - 1, 1),
            (0, len(data)), (4 * BLOCK - 1, 2),
        ]  # fmt: skip
        for offset, length in bad:
            with pytest.raises(SampleChecksumError, match=r"copy\.ffr"):
                folder.read_range(name, offset, length)
        with pytest.raises(SampleChecksumError):
            folder.read(name)
        with pytest.raises(SampleChecksumError):
            list(folder.stream(name))
        with folder.open(name) as file:
            file.seek(5 * BLOCK)
            assert file.read(1000) == data[5 * BLOCK : 5 * BLOCK + 1000]
            file.seek(3 * BLOCK + 5)
            with pytest.raises(SampleChecksumError):
                file.read(1)
            file.seek(2 * BLOCK)
            assert file.read(BLOCK) == data[2 * BLOCK : 3 * BLOCK]


def test_without_checks_damage_is_read_as_it_is(copy: Path, files: dict[str, bytes]) -> None:
    for name, byte in (("sizes/batches", 3 * BLOCK), ("many/049", 20)):
        archives.damage(copy, name, byte)
        due = bytearray(files[name])
        due[byte] ^= 1
        with PackedFolder(copy, check_data=False) as folder:
            assert folder.read(name).tobytes() == due
            assert folder.read_range(name, byte, 1).tobytes() == due[byte : byte + 1]
            assert folder.open(name).read() == due
            assert b"".join(piece.tobytes() for piece in folder.stream(name)) == due


def test_an_error_of_a_batch_names_the_file_as_it_was_asked_for(tmp_path: Path) -> None:
    """Also where records are numbered from another shard on, and for another name of a file."""
    tree = trees.plain_tree(tmp_path / "t", {f"{i}": b"content %d" % i for i in range(20)})
    os.link(tree / "7", tree / "other")
    archives.pack(tree, tmp_path / "s", shard_size=40)
    archives.damage(tmp_path / "s", "7")
    with PackedFolder(tmp_path / "s") as folder:
        for names in (["3", "7", "9"], ["19", "0", "other"], [Path("7")]):
            with pytest.raises(SampleChecksumError) as caught:
                folder.read(names)
            assert caught.value.name in ("7", "other")
            assert caught.value.name in map(str, names)


def test_an_error_of_the_disk_names_the_file(little: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise ReadFailedError(str(little), errno.EIO, 77)

    with PackedFolder(little) as folder:
        monkeypatch.setattr("ffrecord.disk.source.Source.read_into", fail)
        with pytest.raises(ReadFailedError, match=r"little\.ffr: reading d/b at byte 77") as caught:
            folder.read("d/b")
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


@pytest.fixture
def little(tmp_path: Path) -> Path:
    """An archive that is quickly spoiled and quickly made whole again."""
    files = {"a": b"first", "d/b": b"second", "d/large": trees.content(2 * BLOCK), "e/": b""}
    tree = trees.plain_tree(tmp_path / "t", files)
    (tree / "link").symlink_to("d/b")
    archives.pack(tree, tmp_path / "little.ffr")
    return tmp_path / "little.ffr"


def test_a_damaged_index_is_an_index_checksum_error(little: Path) -> None:
    begin, end = archives.index_offsets(little)
    for offset in range(begin, end, 5):
        archives.flip(little, offset)
        with pytest.raises(IndexChecksumError, match=r"little\.ffr"):
            PackedFolder(little)
        archives.flip(little, offset)
    PackedFolder(little).close()


@pytest.mark.parametrize("legacy", [True, False])
def test_a_damaged_trailer_is_one_of_our_errors(legacy: bool, little: Path) -> None:
    if not legacy:
        parts = archives.take_apart(little)
        parts.before = b""
        parts.write(little)
    PackedFolder(little).close()
    _, begin = archives.index_offsets(little)
    for byte in range(24):
        archives.flip(little, begin + byte)
        is_checksum = 8 <= byte < 12
        with pytest.raises(IndexChecksumError if is_checksum else FFRecordError):
            PackedFolder(little)
        archives.flip(little, begin + byte)
    PackedFolder(little).close()


def test_damage_in_the_originals_index_does_not_matter_to_us(
    copy: Path, files: dict[str, bytes]
) -> None:
    begin, _ = archives.index_offsets(copy)
    archives.flip(copy, begin - 50)
    with PackedFolder(copy) as folder:
        assert all_right(folder, files, 1, 3)


TRUNCATED = """
import os, sys
from ffrecord import FFRecordError, PackedFolder
path, mode, size = sys.argv[1:]
folder = PackedFolder(path, mode=mode)
file = folder.open("sizes/batches")
file.read(10)
entries = len(folder.list(recursive=True))
os.truncate(path, int(size))
calls = [
    lambda: folder.read("sizes/one"),
    lambda: folder.read(["zzz after all", "sizes/blocks", "many/123", "sizes/batches"]),
    lambda: folder.read_range("sizes/batches", 1 << 20, 10),
    lambda: list(folder.stream("sizes/batches")),
    lambda: file.read(),
]
for call in calls:
    try:
        call()
        print("read")
    except FFRecordError as error:
        print("ours")
assert len(folder.list(recursive=True)) == entries
assert folder.stat("sizes/one").st_size == 1
print("alive")
"""


@pytest.mark.parametrize("mode", ["auto", "aio", "buffered"])
@pytest.mark.parametrize("size", [0, 500_000])
def test_an_archive_that_is_truncated_while_it_is_open_is_our_error(
    size: int, mode: str, copy: Path
) -> None:
    process = handmade.python(TRUNCATED, str(copy), mode, str(size))
    out, err = process.communicate(timeout=600)
    assert process.returncode == 0, err
    assert out.split() == ["ours"] * 5 + ["alive"]


# ---- what is no packed folder --------------------------------------------------------------


def test_records_without_an_index_are_no_packed_folder(tmp_path: Path) -> None:
    for records in ([], [b""], [b"x", b"some other record"], [b"piouhjgb"], [b"FFRINDEX"]):
        path = handmade.write_records(tmp_path / "r.ffr", records)
        with pytest.raises(NotPackedFolderError, match=r"r\.ffr"):
            PackedFolder(path)
        with pytest.raises(ValueError, match=r"r\.ffr"):  # as the original
            PackedFolder(path)


def test_other_files_are_refused_as_a_reader_refuses_them(tmp_path: Path) -> None:
    (tmp_path / "text.ffr").write_bytes(b"certainly not a record file\n")
    for path in (tmp_path / "text.ffr", tmp_path / "nothing.ffr", tmp_path / "text.ffr" / "x"):
        with pytest.raises((FFRecordError, OSError)) as refused:
            FileReader(path)
        with pytest.raises(type(refused.value)):
            PackedFolder(path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError):
        PackedFolder(tmp_path / "empty")


def test_ranges_of_the_originals_large_files_are_checked(tmp_path: Path) -> None:
    """Its archives have no checksums of blocks: they are derived from the whole file."""
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


def test_symlinks_that_make_a_path_longer_and_longer_are_a_loop(tmp_path: Path) -> None:
    top = trees.plain_tree(tmp_path / "t", {"a/f": b"f"})
    (top / "once").symlink_to("a/../" * 500 + "a/f")
    (top / "again").symlink_to("a/../" * 800 + "again2")
    (top / "again2").symlink_to("a/../" * 800 + "again3")
    (top / "again3").symlink_to("a/../" * 800 + "a/f")
    archives.pack(top, tmp_path / "t.ffr")
    with PackedFolder(tmp_path / "t.ffr") as folder:
        assert folder.read_one("once").tobytes() == b"f"
        with pytest.raises(OSError, match="symbolic links") as caught:
            folder.read_one("again")
    assert caught.value.errno == errno.ELOOP
