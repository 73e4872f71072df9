"""The file system gives what the packed folder had: names, details, contents, and errors."""

from __future__ import annotations

import errno
import gzip
import io
import os
import stat
import subprocess
import tempfile
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec import AbstractFileSystem
from hypothesis import given
from hypothesis import strategies as st

from ffrecord import FileReader, PackedFolder, SampleChecksumError, pack_folder
from ffrecord.archive.index import Index
from ffrecord.disk.pagecache import PageCache
from ffrecord.errors import FFRecordError
from ffrecord.fsspec import PackedFolderFileSystem
from ffrecord.records.batch import Batch
from tests.support import archives, random_trees, trees
from tests.support.trees import BLOCK


def found_by_scandir(tree: Path, inside: str) -> dict[str, dict[str, Any]]:
    """Return the details that the entries of a folder should have, from the folder on disk."""
    top = tree / inside
    found = {}
    for entry in os.scandir(top):
        own = entry.stat(follow_symlinks=False)
        if stat.S_IFMT(own.st_mode) not in (stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK):
            continue  # fifos and sockets are not packed
        try:
            now = os.stat(entry.path)
            leaves = not os.path.realpath(entry.path).startswith(os.path.realpath(tree))
        except OSError:
            now, leaves = own, False
        now = own if leaves else now
        kinds = {stat.S_IFREG: "file", stat.S_IFDIR: "directory", stat.S_IFLNK: "other"}
        kind = kinds[stat.S_IFMT(now.st_mode)]
        details: dict[str, Any] = {
            "name": f"{inside}/{entry.name}" if inside else entry.name,
            "type": kind,
            "size": now.st_size if kind == "file" else 0,
            "mode": now.st_mode,
            "uid": now.st_uid,
            "gid": now.st_gid,
            "mtime": now.st_mtime_ns / 1e9,
            "islink": entry.is_symlink(),
        }
        if entry.is_symlink():
            details["destination"] = os.readlink(entry.path)
        found[details["name"]] = details
    return found


# ---- details and listings ----------------------------------------------------------------------


def test_every_folder_lists_what_is_on_disk(tree: Path, fs: PackedFolderFileSystem) -> None:
    folders = ["", *(str(path.relative_to(tree)) for path in tree.rglob("*")
                     if path.is_dir() and not path.is_symlink())]  # fmt: skip
    assert len(folders) > 40
    for folder in folders:
        due = found_by_scandir(tree, folder)
        listed = fs.ls(folder)
        assert [each["name"] for each in listed] == sorted(due, key=os.fsencode)
        assert fs.ls(folder, detail=False) == [each["name"] for each in listed]
        for details in listed:
            assert details.items() >= due[details["name"]].items()
            assert fs.info(details["name"]) == details


def test_every_form_of_archive_has_the_same_files(
    any_fs: PackedFolderFileSystem, contents: dict[str, bytes]
) -> None:
    files = [name for name, each in any_fs.find("", detail=True).items() if not each["islink"]]
    assert sorted(files) == sorted(contents)
    assert any_fs.cat(files) == contents
    for name in ("sizes/batches", "sizes/zero", "nested/a/b/c/deep"):
        assert any_fs.size(name) == len(contents[name])
        assert any_fs.cat_file(f"/{name}") == contents[name]
        with any_fs.open(f"ffr://{name}") as file:
            assert file.size == len(contents[name])
            assert file.read() == contents[name]


def test_the_root_is_a_folder_without_a_name(fs: PackedFolderFileSystem) -> None:
    for root in ("", "/", "ffr://", ".", "ffr:///"):
        assert fs.info(root)["name"] == ""
        assert fs.info(root)["type"] == "directory"
        assert fs.ls(root, detail=False) == fs.ls("", detail=False)


@pytest.mark.parametrize(
    ("path", "is_file", "is_folder", "exists", "lexists"),
    [
        ("sizes/one", True, False, True, True),
        ("/sizes//./one/", True, False, True, True),
        ("sizes", False, True, True, True),
        ("links/relative", True, False, True, True),
        ("links/to folder", False, True, True, True),
        ("links/to folder/b/c/deep", True, False, True, True),
        ("links/dangling", False, False, False, True),
        ("links/loop", False, False, False, True),
        ("links/leaving", False, False, False, True),
        ("nothing", False, False, False, False),
        ("sizes/one/inside", False, False, False, False),
    ],
)
def test_kinds_of_paths(
    path: str, is_file: bool, is_folder: bool, exists: bool, lexists: bool,
    fs: PackedFolderFileSystem,
) -> None:  # fmt: skip
    assert fs.isfile(path) is is_file
    assert fs.isdir(path) is is_folder
    assert fs.exists(path) is exists
    assert fs.lexists(path) is lexists


def test_a_file_lists_itself(fs: PackedFolderFileSystem) -> None:
    assert fs.ls("sizes/one") == [fs.info("sizes/one")]
    assert fs.find("sizes/one") == ["sizes/one"]
    assert fs.find("sizes/one", detail=True) == {"sizes/one": fs.info("sizes/one")}
    assert list(fs.walk("sizes/one")) == [("sizes/one", [], [""])]


def test_modified_is_the_time_of_the_packed_file(fs: PackedFolderFileSystem) -> None:
    due = datetime.fromtimestamp(trees.YEAR_2100 / 1e9, timezone.utc)
    assert fs.modified("times/file of 2100") == due


def test_du_adds_up_the_sizes(fs: PackedFolderFileSystem, contents: dict[str, bytes]) -> None:
    due = {name: len(data) for name, data in contents.items() if name.startswith("sizes/")}
    assert fs.du("sizes") == sum(due.values())
    assert fs.du("sizes", total=False) == due
    assert fs.du("sizes/blocks", total=False) == {"sizes/blocks": due["sizes/blocks"]}
    assert fs.du("nested", total=False, withdirs=True, maxdepth=1) == {"nested": 0, "nested/a": 0}


# ---- searches: fsspec's own code, on top of `ls`, must find the same ---------------------------

PARTS = ["*", "**", "?", "a*", "*b", "[ab]", "[!a]*", "a", "b", "a.b", "*.b", "sub", "x[", "é*"]
patterns = st.lists(st.sampled_from(PARTS), min_size=1, max_size=4).map("/".join)
plain_names = st.sampled_from([b"a", b"b", b"a.b", b"a-b", b"ab", b"sub", b"x[", "é".encode()])
plain_entries = st.builds(
    random_trees.Entry,
    kind=st.sampled_from(["file", "folder", "folder"]),
    name=plain_names,
    above=st.integers(0, 6),
    size=st.integers(0, 9),
)


@given(
    plan=st.lists(plain_entries, max_size=25), globs=st.lists(patterns, max_size=8),
    depth=st.none() | st.integers(1, 3),
)  # fmt: skip
@pytest.mark.in_memory
def test_searches_find_what_fsspecs_own_code_finds(
    tmp_path: Path, plan: list[random_trees.Entry], globs: list[str], depth: int | None
) -> None:  # fmt: skip
    place = Path(tempfile.mkdtemp(dir=tmp_path))
    pack_folder(random_trees.build(plan, place / "tree"), place / "a.ffr")
    fs = PackedFolderFileSystem(place / "a.ffr")
    base: Any = AbstractFileSystem
    for pattern in (*globs, *(f"{each}/" for each in globs)):
        for detail in (False, True):
            due = base.glob(fs, pattern, maxdepth=depth, detail=detail)
            assert fs.glob(pattern, maxdepth=depth, detail=detail) == due, pattern
    for top in ("", *base.find(fs, "", withdirs=True)):
        for detail in (False, True):
            options: dict[str, Any] = {"maxdepth": depth, "detail": detail}
            due = list(base.walk(fs, top, **options))
            assert list(fs.walk(top, **options)) == due
            due = list(base.walk(fs, top, topdown=False, **options))
            assert list(fs.walk(top, topdown=False, **options)) == due
            if fs.isdir(top):
                for withdirs in (False, True):
                    due = base.find(fs, top, withdirs=withdirs, **options)
                    assert fs.find(top, withdirs=withdirs, **options) == due


def test_symlinks_to_folders_are_entered_only_by_name(fs: PackedFolderFileSystem) -> None:
    below = fs.find("links", withdirs=True)
    assert "links/to folder" in below
    assert not any(path.startswith("links/to folder/") for path in below)
    assert fs.find("links/to folder") == [
        f"links/to folder/{path}" for path in ("b/c/deep", "b/empty too", "shallow")
    ]
    assert fs.glob("links/to folder/s*") == ["links/to folder/shallow"]
    assert fs.glob("l*/to f*/s*") == ["links/to folder/shallow"]
    assert fs.glob("links/**/shallow") == []
    walked = {path: folders for path, folders, _ in fs.walk("links")}
    assert "to folder" in walked["links"]
    assert list(walked) == ["links"]


def test_folders_that_are_removed_are_not_walked(fs: PackedFolderFileSystem) -> None:
    seen = []
    for path, folders, _ in fs.walk("nested"):
        seen.append(path)
        if path == "nested/a":
            folders.clear()
    assert seen == ["nested", "nested/a"]


def test_a_missing_folder_is_walked_as_on_error_says(fs: PackedFolderFileSystem) -> None:
    assert list(fs.walk("nothing")) == []
    assert fs.find("nothing") == []
    assert fs.glob("nothing/*") == []
    with pytest.raises(FileNotFoundError):
        list(fs.walk("nothing", on_error="raise"))
    errors: list[OSError] = []
    assert list(fs.walk("nothing", on_error=errors.append)) == []
    assert len(errors) == 1


@pytest.mark.parametrize("search", ["walk", "find", "glob", "du"])
def test_a_depth_below_one_is_refused(search: str, fs: PackedFolderFileSystem) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        list(getattr(fs, search)("", maxdepth=0))


def test_a_deep_tree_is_listed_without_recursion(tmp_path: Path) -> None:
    pack_folder(trees.chain(tmp_path / "deep", 1500), tmp_path / "deep.ffr")
    subprocess.run(["rm", "-rf", tmp_path / "deep"], check=True)  # too deep for Python's rmtree
    fs = PackedFolderFileSystem(tmp_path / "deep.ffr")
    assert len(fs.find("")) == 3
    assert sum(len(files) for _, _, files in fs.walk("")) == 3
    assert len(fs.glob("**/file")) == 3


def test_the_work_of_a_listing_does_not_grow_with_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Calls of the index for single entries are counted, for ten files and for a thousand."""
    counts = []
    for files in (10, 1000):
        tree = {f"{number % 3}/{number:04}.txt": b"x" for number in range(files)}
        trees.plain_tree(tmp_path / f"{files}", tree)
        pack_folder(tmp_path / f"{files}", tmp_path / f"{files}.ffr")
        fs = PackedFolderFileSystem(tmp_path / f"{files}.ffr")
        calls: list[str] = []
        with monkeypatch.context() as patch:
            for name in ("name", "mode", "status", "child", "children", "inode_path", "record"):
                patch.setattr(Index, name, counted(getattr(Index, name), calls))
            assert len(fs.ls("1")) >= files // 3
            assert len(fs.find("", detail=True)) == files
            assert len(fs.glob("**/*.txt")) == len(fs.glob("*/*.txt")) == files
            assert len(list(fs.walk(""))) == 4
            assert fs.du("") == files
            assert len(fs.cat("", recursive=True)) == files
        counts.append(len(calls))
    assert counts[0] == counts[1]


def counted(method: Callable[..., Any], calls: list[str]) -> Callable[..., Any]:
    def counting(*args: Any, **options: Any) -> Any:
        calls.append(method.__name__)
        return method(*args, **options)

    return counting


# ---- contents ----------------------------------------------------------------------------------


@given(st.data())
def test_ranges_are_slices_of_the_files(
    any_fs: PackedFolderFileSystem, contents: dict[str, bytes], data: st.DataObject
) -> None:
    sizes = [name for name in contents if name.startswith("sizes/")]
    ends = st.none() | st.integers(-6 * BLOCK, 6 * BLOCK) | st.sampled_from([0, 1, -1, BLOCK])
    wanted = data.draw(st.lists(st.tuples(st.sampled_from(sizes), ends, ends), max_size=12))
    due = [contents[name][start:end] for name, start, end in wanted]
    names, starts, stops = ([each[part] for each in wanted] for part in range(3))
    assert any_fs.cat_ranges(names, starts, stops) == due
    assert [any_fs.cat_file(*each) for each in wanted] == due
    unchecked = PackedFolderFileSystem(any_fs._arguments["fo"], check_data=False)
    assert unchecked.cat_ranges(names, starts, stops) == due


def test_one_start_and_end_serve_for_all_paths(
    fs: PackedFolderFileSystem, contents: dict[str, bytes]
) -> None:
    names = ["sizes/one", "sizes/blocks"]
    assert fs.cat_ranges(names, 0, 5) == [contents[name][:5] for name in names]
    with pytest.raises(ValueError, match="2 paths, 1 starts and 2 ends"):
        fs.cat_ranges(names, [0], [1, 2])
    with pytest.raises(TypeError, match="list"):
        fs.cat_ranges("sizes/one", 0, 5)


@pytest.mark.parametrize("way", ["cat", "cat_ranges"])
def test_several_files_are_one_batch(
    way: str, fs: PackedFolderFileSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [*(f"many/{number:03}" for number in range(1, 200)), "sizes/blocks", "sizes/batches"]
    begun: list[str] = []
    monkeypatch.setattr(PageCache, "has_most", lambda *_: False)
    monkeypatch.setattr(Batch, "begin_read", counted(Batch.begin_read, begun))
    monkeypatch.setattr(FileReader, "read_one", counted(FileReader.read_one, begun))
    if way == "cat":
        assert len(fs.cat(names)) == len(names)
    else:
        assert len(fs.cat_ranges(names, 0, 300_000)) == len(names)
    assert begun == ["begin_read"]


def test_a_large_cat_is_cut_into_batches_that_fit_memory(
    fs: PackedFolderFileSystem, contents: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ffrecord.fsspec.contents.BATCH_BYTES", 1000)
    begun: list[str] = []
    monkeypatch.setattr(FileReader, "read", counted(FileReader.read, begun))
    found = fs.cat("", recursive=True)
    links = fs.find("", detail=True)
    assert {name: data for name, data in found.items() if not links[name]["islink"]} == contents
    assert len(begun) > 10


def test_cat_takes_what_fsspec_takes(
    fs: PackedFolderFileSystem, contents: dict[str, bytes]
) -> None:
    one = contents["sizes/one"]
    assert fs.cat("sizes/one") == fs.cat("ffr://sizes/one") == one
    assert fs.cat(["sizes/one"]) == {"sizes/one": one}
    assert fs.cat(["/sizes/one", "sizes//one"]) == {"sizes/one": one}
    assert fs.cat("sizes/on?") == {"sizes/one": one}
    assert fs.cat(["sizes/z*", "sizes/one"]) == {"sizes/zero": b"", "sizes/one": one}
    assert fs.cat("sizes/blocks", start=-7) == contents["sizes/blocks"][-7:]
    assert fs.cat(["names/*star?[[]x]"]) == {"names/*star?[x]": contents["names/*star?[x]"]}
    assert fs.cat("names/*star?[x]") == contents["names/*star?[x]"]
    below = {name: data for name, data in contents.items() if name.startswith("nested/")}
    assert fs.cat("nested", recursive=True) == below
    assert fs.cat([]) == {}


def test_a_recursive_cat_reads_files_and_links_to_files(
    fs: PackedFolderFileSystem, contents: dict[str, bytes]
) -> None:
    """Links that lead to no file would make reading a whole folder impossible."""
    found = fs.cat("links", recursive=True)
    assert found["links/relative"] == contents["sizes/one"]
    assert "links/dangling" not in found
    assert "links/to folder" not in found


@pytest.mark.parametrize("shard_size", [None, "500kB"])
@pytest.mark.parametrize("options", [{}, {"check_data": False}])
@pytest.mark.parametrize("cached", [True, False])
def test_files_in_the_page_cache_are_copied_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shard_size: str | None,
    options: dict[str, Any], cached: bool,
) -> None:  # fmt: skip
    files = {f"{k:02}": trees.content(9_000 * k) for k in range(20)}
    pack_folder(trees.plain_tree(tmp_path / "t", files), tmp_path / "a", shard_size=shard_size)
    monkeypatch.setattr(PageCache, "has_most", lambda *_: cached)
    fs = PackedFolderFileSystem(tmp_path / "a", **options)
    begun: list[str] = []
    monkeypatch.setattr(FileReader, "read", counted(FileReader.read, begun))
    some = list(files)[::-1]
    assert fs.cat(some) == files
    assert begun == ([] if cached else ["read"])
    one = PackedFolderFileSystem(tmp_path / "a", mode="buffered")
    assert one.cat(some) == files
    assert len(begun) == (1 if cached else 2)


@pytest.mark.parametrize("harm", ["wrong bytes", "cut short"])
def test_damage_to_files_in_the_page_cache_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, harm: str
) -> None:
    files = {f"{k:02}": trees.content(90_000) for k in range(5)}
    pack_folder(trees.plain_tree(tmp_path / "t", files), tmp_path / "a.ffr")
    monkeypatch.setattr(PageCache, "has_most", lambda *_: True)
    fs = PackedFolderFileSystem(tmp_path / "a.ffr")
    if harm == "wrong bytes":
        archives.damage(tmp_path / "a.ffr", "03")
    else:
        os.truncate(tmp_path / "a.ffr", 300_000)
    found = fs.cat(list(files), on_error="return")
    wrong = {name for name, data in found.items() if data != files[name]}
    assert wrong == ({"03"} if harm == "wrong bytes" else {"03", "04"})
    assert all(isinstance(found[name], FFRecordError) for name in wrong)
    with pytest.raises(FFRecordError, match=r"\(03\)" if harm == "wrong bytes" else "truncated"):
        fs.cat(list(files))


MISSING = ["sizes/one", "nothing", "sizes", "links/dangling", "sizes/one/x"]


def test_files_that_cannot_be_read_are_as_on_error_says(
    fs: PackedFolderFileSystem, contents: dict[str, bytes]
) -> None:
    one = contents["sizes/one"]
    with pytest.raises(OSError, match="dangling"):
        fs.cat(MISSING)
    assert fs.cat(MISSING, on_error="omit") == {"sizes/one": one}
    found = fs.cat(MISSING, on_error="return")
    kinds = [FileNotFoundError, IsADirectoryError, FileNotFoundError, NotADirectoryError]
    assert [type(found[name]) for name in MISSING] == [bytes, *kinds]
    ranges = fs.cat_ranges(MISSING, 0, None)
    assert [type(each) for each in ranges] == [bytes, *kinds]
    assert ranges[0] == one
    with pytest.raises(FileNotFoundError):
        fs.cat_ranges(MISSING, 0, None, on_error="raise")


def test_damage_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    large = trees.content(3 * BLOCK)
    tree = trees.plain_tree(tmp_path / "t", {"a": b"first", "b/c": b"second", "large": large})
    pack_folder(tree, tmp_path / "t.ffr")
    archives.damage(tmp_path / "t.ffr", "b/c")
    archives.damage(tmp_path / "t.ffr", "large", 2 * BLOCK)
    fs = PackedFolderFileSystem(tmp_path / "t.ffr")
    with pytest.raises(SampleChecksumError, match=r"\(b/c\)"):
        fs.cat(["a", "b/c"])
    found = fs.cat(["a", "b/c"], on_error="return")
    assert found["a"] == b"first"
    assert isinstance(found["b/c"], SampleChecksumError)
    start, end = fs.cat_ranges(["large", "large"], [0, 2 * BLOCK], [9, None])
    assert start == large[:9]
    assert isinstance(end, SampleChecksumError)
    assert end.name == "large"
    assert end.part == (2 * BLOCK, 3 * BLOCK)
    with fs.open("large") as file:
        assert file.read(BLOCK) == large[:BLOCK]
        with pytest.raises(SampleChecksumError):
            file.read()


def test_opened_files_read_text_lines_and_compressed_data(tmp_path: Path) -> None:
    lines = "first\nsecond äöü\n"
    files = {"t.txt": lines.encode(), "t.txt.gz": gzip.compress(lines.encode())}
    pack_folder(trees.plain_tree(tmp_path / "t", files), tmp_path / "t.ffr")
    fs = PackedFolderFileSystem(tmp_path / "t.ffr")
    with fs.open("t.txt", "rt", encoding="utf-8") as file:
        assert list(file) == lines.splitlines(keepends=True)
    with fs.open("t.txt.gz", compression="infer") as file:
        assert file.read() == lines.encode()
    with fs.open("t.txt", block_size=4) as file:
        assert (file.readline(), file.tell()) == (b"first\n", 6)
        assert file.info()["size"] == file.seek(0, os.SEEK_END)
    assert fs.read_text("t.txt", encoding="utf-8") == lines
    assert (fs.head("t.txt", 5), fs.tail("t.txt", 2)) == (b"first", b"\xbc\n")
    mapper = fs.get_mapper("")
    assert sorted(mapper) == ["t.txt", "t.txt.gz"]
    assert mapper.getitems(["t.txt", "no"], on_error="omit") == {"t.txt": lines.encode()}
    with pytest.raises(KeyError):
        mapper["no"]


# ---- read-only ---------------------------------------------------------------------------------

WRITES: dict[str, Callable[[Any, str], Any]] = {
    "open wb": lambda fs, local: fs.open("new", "wb"),
    "open w": lambda fs, local: fs.open("new", "w"),
    "open ab": lambda fs, local: fs.open("sizes/one", "ab"),
    "open xb": lambda fs, local: fs.open("new", "xb"),
    "open r+b": lambda fs, local: fs.open("sizes/one", "r+b"),
    "pipe": lambda fs, local: fs.pipe("new", b"x"),
    "pipe_file": lambda fs, local: fs.pipe_file("new", b"x"),
    "write_text": lambda fs, local: fs.write_text("new", "x"),
    "touch": lambda fs, local: fs.touch("new"),
    "mkdir": lambda fs, local: fs.mkdir("new"),
    "makedirs": lambda fs, local: fs.makedirs("new/folder"),
    "rmdir": lambda fs, local: fs.rmdir("empty"),
    "rm": lambda fs, local: fs.rm("sizes", recursive=True),
    "rm_file": lambda fs, local: fs.rm_file("sizes/one"),
    "delete": lambda fs, local: fs.delete("sizes/one"),
    "cp": lambda fs, local: fs.cp("sizes/one", "new"),
    "mv": lambda fs, local: fs.mv("sizes/one", "new"),
    "rename": lambda fs, local: fs.rename("sizes/one", "new"),
    "put": lambda fs, local: fs.put(local, "new"),
    "upload": lambda fs, local: fs.upload(local, "new"),
}


@pytest.mark.parametrize("write", WRITES)
def test_writing_is_refused(write: str, fs: PackedFolderFileSystem, tmp_path: Path) -> None:
    (tmp_path / "local").write_bytes(b"x")
    with pytest.raises(OSError, match="read-only") as caught:
        WRITES[write](fs, str(tmp_path / "local"))
    assert caught.value.errno == errno.EROFS


def test_a_folder_that_exists_may_be_made_again(fs: PackedFolderFileSystem) -> None:
    """Programs that copy call this before they find out that they cannot write."""
    fs.makedirs("sizes", exist_ok=True)


# ---- arguments ---------------------------------------------------------------------------------


def test_an_archive_is_needed() -> None:
    with pytest.raises(ValueError, match=r"ffr://inner/path::archive\.ffr"):
        fsspec.filesystem("ffr")
    with pytest.raises(TypeError, match="not BytesIO"):
        fsspec.filesystem("ffr", fo=io.BytesIO())
    with pytest.raises(ValueError, match="shards are on 2 file systems; pass a list of shards"):
        fsspec.filesystem("ffr", fo=["/a.ffr", "memory://b.ffr"])


def test_a_list_of_shards_is_an_archive(forms: dict[str, Path], contents: dict[str, bytes]) -> None:
    shards = sorted(forms["shards"].iterdir(), key=lambda path: (path.name == "index.ffr", path))
    with PackedFolder(shards) as folder:
        assert folder.num_files() == len(contents)
    fs = PackedFolderFileSystem(list(shards))
    assert fs.cat("sizes/blocks") == contents["sizes/blocks"]
