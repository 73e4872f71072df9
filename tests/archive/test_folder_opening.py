"""Opening and closing a `PackedFolder`, sharing it among threads and processes, and shards."""

from __future__ import annotations

import copy
import multiprocessing
import os
import pickle
import re
import shutil
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from ffrecord import (
    ClosedError,
    FFRecordError,
    FileReader,
    FileWriter,
    IndexChecksumError,
    IndexStructureError,
    NotPackedFolderError,
    PackedFolder,
    write_dataset,
)
from tests.support import archives, handmade, trees
from tests.support.archives import all_right
from tests.support.modes import MODES

# ---- opening, sharing, closing -------------------------------------------------------------


def test_a_closed_folder_raises_closed_errors(archive: Path) -> None:
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


def test_a_closed_folder_holds_no_descriptor(archive: Path) -> None:
    for mode in MODES:
        before = handmade.open_descriptors()
        with PackedFolder(archive, mode=mode) as folder:
            folder.read(["sizes/one", "sizes/block", "many/001"])
        del folder
        assert handmade.open_descriptors() == before


def test_an_archive_that_fails_to_open_leaves_no_descriptor(one_file: Path, tmp_path: Path) -> None:
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


def test_a_typed_dataset_is_named_as_such(tmp_path: Path) -> None:
    write_dataset(tmp_path / "typed", [{"a": 1, "b": "x"}])
    due = f"{tmp_path / 'typed'}: this is a typed dataset, not a packed folder; read it with "
    with pytest.raises(NotPackedFolderError, match=f"^{re.escape(due)}DatasetReader$"):
        PackedFolder(tmp_path / "typed")


class Named(PackedFolder):
    """A folder with an attribute and an argument of its own."""

    def __init__(self, path: Path, name: str) -> None:
        self.name = name
        super().__init__(path)


@pytest.mark.parametrize("again", [copy.copy, lambda folder: pickle.loads(pickle.dumps(folder))])
def test_attributes_of_subclasses_survive(
    again: Callable[[Named], Named], archive: Path, files: dict[str, bytes]
) -> None:
    with Named(archive, "mine") as folder:
        assert folder.structure
        other = again(folder)
    assert isinstance(other, Named)
    assert other.name == "mine"
    assert "structure" not in vars(other)  # it may be large
    assert {name: other[name].tobytes() for name in other} == files


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


def test_a_folder_can_be_sent_to_a_spawned_process(
    single: PackedFolder, files: dict[str, bytes]
) -> None:
    names = ["sizes/blocks", "names/new\nline", "hard/second"]
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        task = pool.apply_async(in_spawned, (single, names))
        assert task.get(timeout=600) == [files[name] for name in names]


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
    """Write a valid shard with the same number of records, but other contents."""
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
    "one too many, at the end": (lambda at: rewrite(at / "PART_00003.ffr"), "index.ffr"),
    "one too many, in front": (lambda at: rewrite(at / "AAA.ffr"), "index.ffr"),
}


@pytest.mark.parametrize("what", SHARD_ERRORS)
def test_wrong_shards_are_an_error_that_names_one(what: str, shards: Path) -> None:
    change, name = SHARD_ERRORS[what]
    change(shards)
    with pytest.raises(IndexStructureError, match=name):
        PackedFolder(shards)


def test_shards_without_their_index_are_not_a_packed_folder(shards: Path) -> None:
    with pytest.raises(IndexStructureError, match=f"but not its files; pass its folder: {shards}$"):
        PackedFolder(shards / "index.ffr")
    with pytest.raises(NotPackedFolderError, match=f"one shard .*; pass its folder: {shards}$"):
        PackedFolder(shards / "PART_00000.ffr")
    (shards / "index.ffr").unlink()
    with pytest.raises(NotPackedFolderError):
        PackedFolder(shards)


def test_the_index_of_another_archive_is_refused(shards: Path, tmp_path: Path) -> None:
    (tmp_path / "t" / "4").write_bytes(trees.content(1000, 99))
    archives.pack(tmp_path / "t", tmp_path / "others", shard_size=3000)
    shutil.copy(tmp_path / "others" / "index.ffr", shards / "index.ffr")
    with pytest.raises(IndexStructureError, match="PART_00001"):
        PackedFolder(shards)


def test_a_truncated_shard_is_an_error(shards: Path) -> None:
    """The shard ends in the middle of its last record, so the length of that record is wrong."""
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
            said = f"{stray} in the same folder is not one of its shards; move it elsewhere"
            assert str(caught.value) == f"{shards}/index.ffr: {said}"
        (shards / stray).unlink()
    PackedFolder(shards).close()


def original_s(path: Path, files: list[bytes]) -> Path:
    """Write an archive like the original FFRecord, whose index names no shards."""
    names = OrderedDict((f"{number}", number) for number in range(len(files)))
    return handmade.write_records(path, [*files, b"piouhjgbr" + pickle.dumps(names)])


@pytest.mark.parametrize("others", [["a.ffr"], ["zz.ffr"], ["a.ffr", "zz.ffr"]])
@pytest.mark.parametrize("whose", ["ours", "the original's"])
def test_an_error_names_the_archive_among_unrelated_record_files(
    whose: str, others: list[str], one_file: Path, tmp_path: Path
) -> None:
    """If other files come first, the original reads the wrong records."""
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
        # The last file decides: if it has no index, the files are not a packed folder.
        due = NotPackedFolderError if "zz.ffr" in others else IndexStructureError
        assert type(caught.value) is due
        assert str(caught.value) == (
            f"{place}: its {1 + len(others)} record files are not the shards of one packed folder; "
            f"pass a file that is a packed folder by itself: {place}/photos.ffr"
        )
        with FileReader(way) as reader:
            assert len(reader.fnames) == 1 + len(others)


def test_a_message_names_only_a_few_of_many_archives(tmp_path: Path) -> None:
    for number in range(5):
        original_s(tmp_path / f"{number}.ffr", [b"%d" % number])
    with pytest.raises(IndexStructureError, match=r"/0\.ffr, .*/1\.ffr, .*/2\.ffr and 2 more$"):
        PackedFolder(tmp_path)


def test_shards_with_an_index_of_the_original_open(tmp_path: Path) -> None:
    """The shards are made by hand: the index in the last file names the records of all files."""
    handmade.write_records(tmp_path / "0.ffr", [b"first", b"second"])
    names = OrderedDict(one=0, two=1, three=2)
    handmade.write_records(tmp_path / "1.ffr", [b"third", b"piouhjgbr" + pickle.dumps(names, 2)])
    with PackedFolder(tmp_path) as folder:
        assert handmade.as_bytes(folder.read(["three", "one"])) == [b"third", b"first"]


def test_a_folder_that_contains_one_archive_opens_as_in_the_original(
    one_file: Path, tmp_path: Path
) -> None:
    shutil.copy(one_file, tmp_path / "photos.ffr")
    (tmp_path / "notes.txt").write_text("about the photos\n")
    with PackedFolder(tmp_path) as folder, PackedFolder(one_file) as due:
        assert list(folder) == list(due)


# ---- files that are not a packed folder ----------------------------------------------------


def test_records_without_an_index_are_not_a_packed_folder(tmp_path: Path) -> None:
    for records in ([], [b""], [b"x", b"some other record"], [b"piouhjgb"], [b"FFRINDEX"]):
        path = handmade.write_records(tmp_path / "r.ffr", records)
        with pytest.raises(NotPackedFolderError, match=r"r\.ffr"):
            PackedFolder(path)
        with pytest.raises(ValueError, match=r"r\.ffr"):  # the original raises ValueError
            PackedFolder(path)


def test_other_files_raise_the_same_error_as_in_a_reader(tmp_path: Path) -> None:
    (tmp_path / "text.ffr").write_bytes(b"certainly not a record file\n")
    for path in (tmp_path / "text.ffr", tmp_path / "nothing.ffr", tmp_path / "text.ffr" / "x"):
        with pytest.raises((FFRecordError, OSError)) as refused:
            FileReader(path)
        with pytest.raises(type(refused.value)):
            PackedFolder(path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError):
        PackedFolder(tmp_path / "empty")
