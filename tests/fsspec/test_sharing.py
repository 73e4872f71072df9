"""File systems share open archives, notice replaced ones, and work in other processes."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import threading
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import fsspec
import pytest

from ffrecord import ChangedError, FileReader, PackedFolder, pack_folder
from ffrecord.fsspec import PackedFolderFileSystem, opening
from tests.support import handmade, trees
from tests.support.patience import PATIENCE


def packed(place: Path, files: dict[str, bytes], name: str = "a.ffr") -> Path:
    tree = trees.plain_tree(place / f"tree {len(os.listdir(place))}", files)
    pack_folder(tree, place / "new.ffr")
    os.replace(place / "new.ffr", place / name)
    return place / name


# ---- URLs --------------------------------------------------------------------------------------


def test_urls_name_a_file_and_its_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = packed(tmp_path, {"one": b"1", "two": b"22"})
    monkeypatch.chdir(tmp_path)
    for target in (path, f"file://{path}", f"local://{path}", "a.ffr", "./a.ffr"):
        with fsspec.open(f"ffr://two::{target}") as file:
            assert file.read() == b"22"
    files = fsspec.open_files(f"ffr://*::{path}")
    assert [each.path for each in files] == ["one", "two"]
    with files as opened:
        assert [each.read() for each in opened] == [b"1", b"22"]
    fs, inner = fsspec.url_to_fs(f"ffr://two::{path}", mode="rb", ffr={"check_data": False})
    assert (inner, fs.folder.reader.check_data) == ("two", False)


@pytest.mark.parametrize("cache", ["simplecache", "filecache"])
def test_an_archive_behind_a_cache_is_read_from_the_copy(cache: str, tmp_path: Path) -> None:
    path = packed(tmp_path, {"one": b"1"})
    memory = fsspec.filesystem("memory")
    memory.pipe("/ffrecord-test/a.ffr", path.read_bytes())
    try:
        place = {cache: {"cache_storage": str(tmp_path / "cache")}}
        with fsspec.open(f"ffr://one::{cache}::memory://ffrecord-test/a.ffr", **place) as file:
            assert file.read() == b"1"
        assert os.listdir(tmp_path / "cache")
    finally:
        memory.rm("/ffrecord-test", recursive=True)


def test_other_protocols_and_their_options_go_to_the_archives_reader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, asked = packed(tmp_path, {"one": b"1"}), []

    def remote(target: Any, **options: Any) -> PackedFolder:
        asked.append((target, options))
        return PackedFolder(path)

    monkeypatch.setattr(opening, "PackedFolder", remote)
    usual = {"check_data": True, "mode": "auto", "memory": None}
    with fsspec.open("ffr://one::memory://bucket/a.ffr") as file:
        assert file.read() == b"1"
    assert asked.pop() == ("memory:///bucket/a.ffr", usual)
    fsspec.filesystem("ffr", fo="memory://bucket/a.ffr", target_options={"key": "k"})
    assert asked.pop() == ("memory://bucket/a.ffr", {**usual, "storage_options": {"key": "k"}})
    fsspec.url_to_fs("ffr://one::dir://a.ffr::memory://bucket")
    target, options = asked.pop()
    assert target == "a.ffr"
    assert isinstance(options.pop("fs"), fsspec.get_filesystem_class("dir"))
    assert options == usual


# ---- sharing -----------------------------------------------------------------------------------


def test_an_archive_stays_open_for_the_next_file_system(tmp_path: Path) -> None:
    path = packed(tmp_path, {"one": b"1"})
    folder = PackedFolderFileSystem(path).folder
    assert PackedFolderFileSystem(str(path)).folder is folder
    assert PackedFolderFileSystem(path, mode="buffered").folder is not folder
    with ThreadPoolExecutor() as threads:
        assert threads.submit(PackedFolderFileSystem, path).result().folder is folder
    PackedFolderFileSystem.clear_instance_cache()
    assert PackedFolderFileSystem(path).folder is not folder


@pytest.mark.parametrize("options", [{}, {"shard_size": 100_000}])
def test_a_replaced_archive_is_opened_again(options: dict[str, Any], tmp_path: Path) -> None:
    for number in range(2):
        tree = trees.plain_tree(tmp_path / f"{number}", {"one": b"%d" % number})
        pack_folder(tree, tmp_path / f"{number}.ffr", **options)
    os.rename(tmp_path / "0.ffr", tmp_path / "a.ffr")
    old = PackedFolderFileSystem(tmp_path / "a.ffr")
    os.rename(tmp_path / "a.ffr", tmp_path / "old.ffr")
    os.rename(tmp_path / "1.ffr", tmp_path / "a.ffr")
    assert PackedFolderFileSystem(tmp_path / "a.ffr").cat("one") == b"1"
    assert old.cat("one") == b"0"
    with pytest.raises(FileNotFoundError):
        PackedFolderFileSystem(tmp_path / "nothing.ffr")


def test_other_files_beside_the_shards_do_not_matter(tmp_path: Path) -> None:
    tree = trees.plain_tree(tmp_path / "tree", {"one": b"1"})
    pack_folder(tree, tmp_path / "a", shard_size="1MB")
    (tmp_path / "a" / "notes.txt").symlink_to("moved")
    fs = PackedFolderFileSystem(tmp_path / "a")
    assert fs.cat("one") == b"1"
    (tmp_path / "a" / "README").write_bytes(b"")
    assert PackedFolderFileSystem(tmp_path / "a").folder is fs.folder


def test_a_remote_archive_is_opened_again_after_a_read_has_found_that_it_was_replaced(
    tmp_path: Path,
) -> None:
    memory = fsspec.filesystem("memory")
    try:
        for content in (b"first", b"other"):
            files = {"one": content, "two": bytes(400_000)}  # opening does not read the first one
            memory.pipe("/replaced/a.ffr", packed(tmp_path, files).read_bytes())
            url = "ffr://one::memory://replaced/a.ffr"
            if content == b"other":
                with pytest.raises(ChangedError), fsspec.open(url) as file:
                    file.read()
            with fsspec.open(url) as file:
                assert file.read() == content
    finally:
        memory.rm("/replaced", recursive=True)


def test_only_a_few_archives_stay_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "KEPT_OPEN", 2)
    paths = [packed(tmp_path, {"one": b"1"}, f"{number}.ffr") for number in range(6)]
    before = handmade.open_descriptors()
    used = PackedFolderFileSystem(paths[0])
    each = handmade.open_descriptors() - before
    assert each > 0
    for path in paths[1:]:
        PackedFolderFileSystem(path)
    assert handmade.open_descriptors() == before + 3 * each
    assert used.cat("one") == b"1"


# ---- other processes ---------------------------------------------------------------------------


def read_there(fs: PackedFolderFileSystem, path: str) -> Any:
    return fs.cat(path)


def test_a_pickled_file_system_finds_its_archive_from_any_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed(tmp_path, {"one": b"1"})
    monkeypatch.chdir(tmp_path)
    fs = fsspec.filesystem("ffr", fo="a.ffr", mode="buffered")
    raw = pickle.dumps(fs)
    monkeypatch.chdir("/")
    other = pickle.loads(raw)
    assert other.cat("one") == b"1"
    assert other.folder.reader.mode == fs.folder.reader.mode
    with fs.open("one") as file:
        assert pickle.loads(pickle.dumps(file)).read() == b"1"


def test_an_opened_file_pickles_with_its_position(tmp_path: Path) -> None:
    path = packed(tmp_path, {"one": b"0123456789"})
    with fsspec.filesystem("ffr", fo=path).open("one") as file:
        file.seek(4)
        with pickle.loads(pickle.dumps(file)) as other:
            assert other.read(3) == file.read(3) == b"456"
            assert other.path == "one"


def test_a_pickle_of_a_replaced_archive_is_refused(tmp_path: Path) -> None:
    raw = pickle.dumps(PackedFolderFileSystem(packed(tmp_path, {"one": b"1"})))
    packed(tmp_path, {"one": b"other"})
    with pytest.raises(ChangedError, match=r"a\.ffr"):
        pickle.loads(raw)


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_other_processes_read_too(method: str, tmp_path: Path) -> None:
    files = {f"{number}": b"%d" % number * 1000 for number in range(40)}
    fs = PackedFolderFileSystem(packed(tmp_path, files))
    fs.cat(list(files))
    context = multiprocessing.get_context(method)
    with ProcessPoolExecutor(2, context) as pool:
        found = list(pool.map(read_there, [fs] * 6, [list(files)] * 6, timeout=PATIENCE))
    assert found == [files] * 6


def test_a_fork_while_another_thread_opens_an_archive_does_not_hang(tmp_path: Path) -> None:
    path = packed(tmp_path, {"one": b"1"})
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with opening._lock:
            held.set()
            done.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    try:
        child = multiprocessing.get_context("fork").Process(target=opens, args=(path,))
        child.start()
        child.join(PATIENCE)
        assert child.exitcode == 0
    finally:
        done.set()
        thread.join()


def opens(path: Path) -> None:
    assert PackedFolderFileSystem(path).cat("one") == b"1"


def test_threads_share_a_file_system(tmp_path: Path) -> None:
    files = {f"{number}": b"%d" % number * 500 for number in range(100)}
    fs = PackedFolderFileSystem(packed(tmp_path, files))
    with ThreadPoolExecutor(8) as threads:
        for found in threads.map(fs.cat, [list(files)] * 30):
            assert found == files
        listings = list(threads.map(fs.find, [""] * 30))
    assert listings == [sorted(files)] * 30


def test_closing_a_folder_elsewhere_does_not_matter(tmp_path: Path) -> None:
    path = packed(tmp_path, {"one": b"1"})
    fs = PackedFolderFileSystem(path)
    with PackedFolder(path) as folder, FileReader(path) as reader:
        assert (folder.num_files(), reader.n) == (1, 2)
    assert fs.cat("one") == b"1"
