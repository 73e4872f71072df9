"""Extraction: everything comes back, and whatever happens nothing is written outside of DEST."""

from __future__ import annotations

import errno
import json
import os
import shutil
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ffrecord import (
    FFRecordError,
    IndexStructureError,
    NoRoomError,
    PackedFolder,
    SampleChecksumError,
)
from ffrecord.archive import extract, placing
from ffrecord.archive.extract import ExtractReport
from tests.robustness.attacks import builders
from tests.support import archives, handmade, jobs, trees, users
from tests.support.trees import BLOCK

FILES = {
    "a": b"the first",
    "d/b": b"in a folder",
    "d/e/c": b"in a folder in a folder",
    "d/e/large": trees.content(3 * BLOCK + 7),
    "f/g": b"in another folder",
    "h": b"the last",
    "empty/": b"",
}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    top = trees.plain_tree(tmp_path / "tree", FILES)
    (top / "link").symlink_to("d")
    (top / "d/up").symlink_to("../a")
    os.link(top / "d/b", top / "f/same as b")
    (top / "d").chmod(0o750)
    top.chmod(0o751)
    return top


@pytest.fixture
def path(tree: Path, tmp_path: Path) -> Path:
    archives.pack(tree, tmp_path / "a.ffr")
    return tmp_path / "a.ffr"


@pytest.fixture
def folder(path: Path) -> Iterator[PackedFolder]:
    with PackedFolder(path) as folder:
        yield folder


@pytest.fixture
def outside(tmp_path: Path) -> Iterator[Path]:
    """A place that no test may change: files that could be replaced, a folder that could be
    filled."""
    top = trees.plain_tree(tmp_path / "outside", {"file": b"precious", "folder/b": b"precious too"})
    top.chmod(0o711)
    (top / "folder").chmod(0o711)
    before = trees.snapshot(top)
    yield top
    assert trees.snapshot(top) == before, "something was written outside"


@pytest.fixture
def dest(tmp_path: Path) -> Path:
    (tmp_path / "dest").mkdir()
    return tmp_path / "dest"


def names(top: Path) -> set[str]:
    return {os.fsdecode(path) for path in trees.paths(top)} - {"."}


ALL = {
    "a", "d", "d/b", "d/e", "d/e/c", "d/e/large", "d/up", "f", "f/g", "f/same as b", "h", "empty",
    "link",
}  # fmt: skip


# ---- everything ----------------------------------------------------------------------------


def test_everything_comes_back(folder: PackedFolder, tree: Path, dest: Path) -> None:
    report = folder.extract(dest)
    assert trees.differences(tree, dest) == []
    sizes = {len(FILES[name]) for name in FILES}
    assert report == ExtractReport(
        files=6, folders=4, symlinks=2, hard_links=1, bytes=sum(sizes), damaged=0
    )


def test_dest_is_made_with_all_folders_above_it(
    folder: PackedFolder, tree: Path, tmp_path: Path
) -> None:
    folder.extract(tmp_path / "x/y/z")
    assert trees.differences(tree, tmp_path / "x/y/z") == []


def test_dest_may_be_relative_and_a_symlink(
    folder: PackedFolder, tree: Path, dest: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(dest.parent)
    (dest.parent / "to dest").symlink_to("dest")
    folder.extract("to dest")
    assert trees.differences(tree, dest) == []


def test_a_file_in_the_place_of_dest_is_an_error(folder: PackedFolder, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"precious")
    for place in (tmp_path / "file", tmp_path / "file" / "in it"):
        with pytest.raises(OSError, match="file"):
            folder.extract(place)
    assert (tmp_path / "file").read_bytes() == b"precious"


def test_a_read_only_dest_is_an_error_that_names_it(
    folder: PackedFolder, dest: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the kernel says of a descriptor has no name in it."""

    def read_only(fd: int, mode: int) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(os, "fchmod", read_only)
    with pytest.raises(OSError, match="Read-only file system") as caught:
        folder.extract(dest)
    assert caught.value.filename == str(dest)
    assert os.listdir(dest) == []


def test_dest_gets_the_attributes_of_the_top_if_it_was_empty(
    folder: PackedFolder, tree: Path, dest: Path
) -> None:
    dest.chmod(0o700)
    folder.extract(dest)
    assert stat.S_IMODE(dest.stat().st_mode) == 0o751
    assert dest.stat().st_mtime_ns == tree.stat().st_mtime_ns


@pytest.mark.parametrize("why", ["something was there", "not everything is extracted"])
def test_dest_keeps_its_attributes_otherwise(
    why: str, folder: PackedFolder, tree: Path, dest: Path
) -> None:
    if why == "something was there":
        (dest / "mine").write_bytes(b"")
    dest.chmod(0o700)
    folder.extract(dest, None if why == "something was there" else ["d", "a"])
    assert stat.S_IMODE(dest.stat().st_mode) == 0o700
    assert dest.stat().st_mtime_ns != tree.stat().st_mtime_ns
    assert stat.S_IMODE((dest / "d").stat().st_mode) == 0o750


def test_progress_tells_of_every_file_and_byte(folder: PackedFolder, dest: Path) -> None:
    told: list[tuple[int, int]] = []
    report = extract.extract(folder.archive, dest, progress=lambda *more: told.append(more))
    assert sum(files for files, _ in told) == report.files
    assert sum(size for _, size in told) == report.bytes


def test_a_file_system_without_extended_attributes_is_one_warning(
    tmp_path: Path, dest: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = trees.plain_tree(tmp_path / "t", {"a": b"1", "b": b"2"})
    if not trees.has_xattrs(tree):
        pytest.skip("no extended attributes here")
    for name in ("a", "b"):
        os.setxattr(tree / name, "user.x", b"y")
    archives.pack(tree, tmp_path / "x.ffr")

    def refuse(*_args: object) -> None:
        raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP))

    with monkeypatch.context() as without, PackedFolder(tmp_path / "x.ffr") as folder:
        without.setattr(os, "setxattr", refuse)
        with pytest.warns(UserWarning, match="extended attributes") as caught:
            folder.extract(dest)
    assert len(caught) == 1
    for name in ("a", "b"):
        os.setxattr(dest / name, "user.x", b"y")  # which is all that was missing
    assert trees.differences(tree, dest) == []


def test_writes_that_come_in_pieces_are_whole(
    folder: PackedFolder, tree: Path, dest: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = os.pwrite
    with monkeypatch.context() as slow:
        slow.setattr(os, "pwrite", lambda fd, data, at: plain(fd, data[:1000], at))
        folder.extract(dest)
    assert trees.differences(tree, dest) == []


def test_a_closed_archive_is_an_error(path: Path, dest: Path) -> None:
    with PackedFolder(path) as folder:
        pass
    with pytest.raises(FFRecordError):
        folder.extract(dest)
    assert not any((dest / name).is_file() for name in names(dest) if name != "link")


# ---- never outside -------------------------------------------------------------------------

TARGETS = ["file", "folder", "folder/b", "not there", "."]
POSITIONS = ["a", "d", "d/b", "d/e", "d/e/large", "d/up", "link", "empty", "f/same as b"]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("position", POSITIONS)
def test_a_symlink_in_the_way_is_not_followed(
    position: str, target: str, folder: PackedFolder, dest: Path, outside: Path
) -> None:
    planted = dest / position
    planted.parent.mkdir(parents=True, exist_ok=True)
    planted.symlink_to(outside / target)
    with pytest.raises(FileExistsError, match=position):
        folder.extract(dest)
    assert os.readlink(planted) == str(outside / target)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("position", POSITIONS)
def test_a_symlink_in_the_way_is_replaced_if_told_so_and_never_written_through(
    position: str, target: str, folder: PackedFolder, tree: Path, dest: Path, outside: Path
) -> None:
    planted = dest / position
    planted.parent.mkdir(parents=True, exist_ok=True)
    planted.symlink_to(outside / target)
    folder.extract(dest, overwrite=True)
    shutil.copystat(tree, dest)  # which was not empty
    assert trees.differences(tree, dest) == []


def test_an_archive_does_not_write_through_symlinks_of_another_one(
    tmp_path: Path, dest: Path, outside: Path
) -> None:
    """One has a symlink where the other has a folder of that name with files in it."""
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "x").symlink_to(outside / "folder")
    (tmp_path / "one" / "y").symlink_to("x")
    two = trees.plain_tree(tmp_path / "two", {"x/b": b"evil", "y/b": b"evil", "y/new": b"evil"})
    for name in ("one", "two"):
        archives.pack(tmp_path / name, tmp_path / f"{name}.ffr")
    with PackedFolder(tmp_path / "one.ffr") as folder:
        folder.extract(dest)
    with PackedFolder(tmp_path / "two.ffr") as folder:
        with pytest.raises(FileExistsError):
            folder.extract(dest)
        with pytest.raises(FileExistsError):
            folder.extract(dest, ["y/b"])
        assert os.readlink(dest / "x") == str(outside / "folder")
        folder.extract(dest, overwrite=True)
    shutil.copystat(two, dest)
    assert trees.differences(two, dest) == []


def is_unnamed(source: str | bytes) -> bool:
    """Whether a new file gets its first name, and not one that is there a second one."""
    return os.fsdecode(source).startswith("/proc/self/fd/")


def swap(dest: Path, name: str, target: Path) -> None:
    """What an attacker does at the worst moment."""
    place = dest / name
    if place.is_symlink():
        return
    if place.exists():
        place.rename(dest / f"moved {name.replace('/', ' ')}")
    place.symlink_to(target)


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("name", ["d", "d/e"])
def test_a_folder_that_becomes_a_symlink_once_it_is_made_is_not_followed(
    name: str, overwrite: bool, folder: PackedFolder, dest: Path, outside: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    plain = os.mkdir

    def making(made: Any, *args: Any, **kwargs: Any) -> None:
        plain(made, *args, **kwargs)
        if os.fsdecode(made) == os.path.basename(name):
            swap(dest, name, outside / "folder")

    monkeypatch.setattr(os, "mkdir", making)
    with pytest.raises(OSError, match=f"dest/{name}"):
        folder.extract(dest, overwrite=overwrite)


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("kept_open", [2, 128])
@pytest.mark.parametrize("name", ["d", "d/e"])
def test_a_folder_that_becomes_a_symlink_while_it_is_filled_is_not_followed(
    name: str, kept_open: int, overwrite: bool, folder: PackedFolder, dest: Path, outside: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Neither for the rest of its files nor for its own mode and time, which come last."""
    monkeypatch.setattr(placing, "MOST_OPEN", kept_open)
    plain = os.link
    trigger = {"d": b"b", "d/e": b"c"}[name]

    def linking(source: Any, made: Any, **kwargs: Any) -> None:
        plain(source, made, **kwargs)
        if made == trigger:
            swap(dest, name, outside / "folder")

    monkeypatch.setattr(os, "link", linking)
    try:
        folder.extract(dest, overwrite=overwrite)
    except OSError as error:
        refused = str(error.filename)
        assert refused.startswith(f"{dest}/{name}")
    assert os.readlink(dest / name) == str(outside / "folder")


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize("target", ["file", "not there"])
def test_a_symlink_that_appears_where_a_file_is_about_to_be_made_is_not_followed(
    target: str, named: bool, overwrite: bool, folder: PackedFolder, dest: Path, outside: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    if named:
        jobs.without_tmpfile(monkeypatch)
    plain = os.link

    def linking(source: Any, made: Any, **kwargs: Any) -> None:
        if made == b"b":
            os.symlink(outside / target, made, dir_fd=kwargs["dst_dir_fd"])
        plain(source, made, **kwargs)

    monkeypatch.setattr(os, "link", linking)
    with pytest.raises(FileExistsError, match="dest/d/b"):
        folder.extract(dest, overwrite=overwrite)
    assert os.readlink(dest / "d/b") == str(outside / target)


def test_a_hard_link_is_not_made_to_what_a_swapped_symlink_points_at(
    folder: PackedFolder, dest: Path, outside: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = os.link

    def linking(source: Any, *args: Any, **kwargs: Any) -> None:
        if not is_unnamed(source):
            swap(dest, f"d/{os.fsdecode(source)}", outside / "file")
        plain(source, *args, **kwargs)

    monkeypatch.setattr(os, "link", linking)
    folder.extract(dest)
    assert (outside / "file").stat().st_nlink == 1
    assert not os.path.samefile(outside / "file", os.path.join(dest, "f/g"))


@pytest.mark.parametrize("asked", ["../a", "/a", "d/../../../a", "/../d/b", "link/../a"])
def test_no_path_that_is_asked_for_leads_outside(
    asked: str, folder: PackedFolder, dest: Path
) -> None:
    before = set(os.listdir(dest.parent))
    folder.extract(dest, [asked])
    assert names(dest) == ({"d", "d/b"} if asked.endswith("b") else {"a"})
    assert set(os.listdir(dest.parent)) == before


# ---- what is there already -----------------------------------------------------------------


@pytest.mark.parametrize("name", ["a", "d/b", "d/e/large", "f/same as b", "d/up", "link"])
def test_a_file_that_is_there_is_not_replaced(name: str, folder: PackedFolder, dest: Path) -> None:
    trees.plain_tree(dest, {name: b"precious"})
    before = (dest / name).stat()
    with pytest.raises(FileExistsError, match=name) as caught:
        folder.extract(dest)
    assert caught.value.filename == f"{dest}/{name}"
    after = (dest / name).stat()
    assert (dest / name).read_bytes() == b"precious"
    assert (after.st_ino, after.st_mode, after.st_mtime_ns) == (
        before.st_ino, before.st_mode, before.st_mtime_ns,
    )  # fmt: skip


@pytest.mark.parametrize("name", ["a", "d/b", "d/e/large", "f/same as b", "d/up", "link", "empty"])
def test_a_file_that_is_there_is_replaced_if_told_so(
    name: str, folder: PackedFolder, tree: Path, dest: Path
) -> None:
    trees.plain_tree(dest, {name: b"old"})
    folder.extract(dest, overwrite=True)
    shutil.copystat(tree, dest)
    assert trees.differences(tree, dest) == []


def test_replacing_a_file_leaves_its_other_names_and_readers_alone(
    folder: PackedFolder, dest: Path, tmp_path: Path
) -> None:
    (dest / "a").write_bytes(b"old")
    os.link(dest / "a", tmp_path / "another name")
    with open(dest / "a", "rb") as reading:
        folder.extract(dest, overwrite=True)
        assert reading.read() == b"old"
    assert (tmp_path / "another name").read_bytes() == b"old"
    assert (dest / "a").read_bytes() == FILES["a"]


def test_a_file_is_replaced_in_one_step(
    folder: PackedFolder, dest: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At every moment of writing there is the old file or the new one under the name."""
    (dest / "a").write_bytes(b"old")
    seen = set()
    plain = os.pwrite

    def writing(fd: int, data: Any, at: int) -> int:
        seen.add((dest / "a").read_bytes())
        return plain(fd, data, at)

    monkeypatch.setattr(os, "pwrite", writing)
    folder.extract(dest, overwrite=True)
    assert seen == {b"old", FILES["a"]}


def test_extracting_again_over_everything_gives_the_same(
    folder: PackedFolder, tree: Path, dest: Path
) -> None:
    folder.extract(dest)
    for _ in range(2):
        report = folder.extract(dest, overwrite=True)
        shutil.copystat(tree, dest)
        assert trees.differences(tree, dest) == []
    assert report.hard_links == 1


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("name", ["a", "d/b", "link"])
def test_a_folder_is_never_replaced_by_a_file(
    name: str, overwrite: bool, folder: PackedFolder, dest: Path
) -> None:
    trees.plain_tree(dest / name, {"mine": b"precious"})
    with pytest.raises(IsADirectoryError, match=name):
        folder.extract(dest, overwrite=overwrite)
    assert (dest / name / "mine").read_bytes() == b"precious"


def test_a_file_is_not_replaced_by_a_folder_unless_told_so(
    folder: PackedFolder, tree: Path, dest: Path
) -> None:
    (dest / "d").write_bytes(b"precious")
    with pytest.raises(FileExistsError, match="d"):
        folder.extract(dest)
    assert (dest / "d").read_bytes() == b"precious"
    folder.extract(dest, overwrite=True)
    assert names(dest) == ALL


def test_folders_that_are_there_are_added_to(folder: PackedFolder, dest: Path) -> None:
    trees.plain_tree(dest, {"d/mine": b"precious", "empty/mine too": b"precious"})
    folder.extract(dest)
    assert names(dest) == ALL | {"d/mine", "empty/mine too"}
    assert (dest / "d/mine").read_bytes() == b"precious"
    assert stat.S_IMODE((dest / "d").stat().st_mode) == 0o750


def attributes(path: Path) -> tuple[object, ...]:
    now = path.stat()
    return now.st_mode, now.st_uid, now.st_gid, now.st_mtime_ns, trees.xattrs(path)


@pytest.fixture
def private(tree: Path, tmp_path: Path, dest: Path) -> Path:
    """An archive whose folders have attributes, and a DEST with the same folders without them."""
    if trees.has_xattrs(tree):
        for name in ("d", "d/e"):
            os.setxattr(tree / name, "user.x", b"from the archive")
    archives.pack(tree, tmp_path / "private.ffr")
    (dest / "d/e").mkdir(parents=True)
    for name in ("d/e", "d"):
        (dest / name).chmod(0o711)
    return tmp_path / "private.ffr"


def test_folders_on_the_way_to_a_file_stay_as_they_are(
    private: Path, tree: Path, dest: Path
) -> None:
    before = attributes(dest / "d")
    inner = os.stat(dest / "d/e")
    with PackedFolder(private) as folder:
        report = folder.extract(dest, "d/e/c")
        assert report == ExtractReport(files=1, bytes=len(FILES["d/e/c"]))
        assert attributes(dest / "d") == before
        after = os.stat(dest / "d/e")  # a file came into it, which changes its time
        assert (after.st_mode, trees.xattrs(dest / "d/e")) == (inner.st_mode, ())
        report = folder.extract(dest, "f/g")
        assert report == ExtractReport(files=1, folders=1, bytes=len(FILES["f/g"]))
    assert attributes(dest / "f") == attributes(tree / "f")


@pytest.mark.parametrize(
    "paths", [["d"], ["d/"], ["d/."], ["d/e/.."], ["d/e/c", "d"], ["d", "d/e/c"]], ids="+".join
)
def test_a_folder_that_was_asked_for_gets_its_attributes(
    paths: list[str], private: Path, tree: Path, dest: Path
) -> None:
    with PackedFolder(private) as folder:
        folder.extract(dest, paths)
    for name in ("d", "d/e"):
        assert attributes(dest / name) == attributes(tree / name)


CLOSED = """
path, dest = sys.argv[1:]
os.makedirs(os.path.join(dest, "closed/in"))
ffrecord.archive.placing.MOST_OPEN = 0  # all are opened again for their attributes
with PackedFolder(path) as folder:
    folder.extract(dest, ["closed/in/file", "closed"])
for name in ("closed", "closed/in"):
    print(oct(os.stat(os.path.join(dest, name)).st_mode))
    os.chmod(os.path.join(dest, "closed"), 0o700)
"""


def test_folders_that_close_behind_themselves_are_closed_last(tmp_path: Path) -> None:
    """Also where one was only on the way to something before it was asked for itself."""
    if os.geteuid() != 0:
        pytest.skip("such a folder could not be packed")
    tree = trees.plain_tree(tmp_path / "t", {"closed/in/file": b"x"})
    place = tmp_path / "ordinary"
    place.mkdir()
    (tree / "closed/in").chmod(0o500)
    (tree / "closed").chmod(0o600)
    archives.pack(tree, place / "t.ffr")
    with users.reachable(place):
        out = users.run(CLOSED, place / "t.ffr", place / "dest")
    assert out == "0o40600\n0o40500\n"


# ---- a part of it --------------------------------------------------------------------------

D = {"d", "d/b", "d/e", "d/e/c", "d/e/large", "d/up"}


SELECTIONS: list[tuple[list[str], set[str]]] = [
    ([], set()),
    (["a"], {"a"}),
    (["d/b"], {"d", "d/b"}),
    (["d"], D),
    (["d/"], D),
    (["/d"], D),
    (["./d//e/"], {"d", "d/e", "d/e/c", "d/e/large"}),
    (["d/e/.."], D),
    (["d/."], D),
    (["."], ALL),
    ([""], ALL),
    (["/"], ALL),
    (["link"], {"link"}),
    (["link/b"], {"d", "d/b"}),
    (["link/e"], {"d", "d/e", "d/e/c", "d/e/large"}),
    (["d/up"], {"d", "d/up"}),
    (["f/same as b"], {"f", "f/same as b"}),
    (["empty"], {"empty"}),
    (["h", "a"], {"a", "h"}),
    # The same more than once.
    (["a", "a"], {"a"}),
    (["a", "/a", "./a", "d/../a"], {"a"}),
    (["d", "d/b"], D),
    (["d/b", "d"], D),
    (["d", "d"], D),
    (["d", "link/b"], D),
    (["d/e/c", "d/e", "d"], D),
    (["d", "d/e", "d/e/c"], D),
    (["d/.", "d"], D),
    (["d", "d/."], D),
    (["d/e/.", "d/."], D),
    ([".", "d/b"], ALL),
    (["d/b", "."], ALL),
    ([".", "."], ALL),
    ([".", "d/."], ALL),
    (["d/b", "f/same as b"], {"d", "d/b", "f", "f/same as b"}),
]


@pytest.mark.parametrize(
    ("paths", "due"), SELECTIONS, ids=["+".join(paths) or "nothing" for paths, _ in SELECTIONS]
)
def test_what_is_asked_for_is_extracted_once_and_under_its_whole_path(
    paths: list[str], due: set[str], folder: PackedFolder, tree: Path, dest: Path
) -> None:
    folder.extract(dest, paths)
    assert names(dest) == due
    real = {os.fsdecode(path): each for path, each in trees.snapshot(tree).items()}
    made = {os.fsdecode(path): each for path, each in trees.snapshot(dest).items()}
    for name in due:
        for field in ("kind", "mode", "mtime_ns", "content", "target", "size"):
            assert getattr(made[name], field) == getattr(real[name], field), (name, field)


@pytest.mark.parametrize(
    "paths",
    [["d"], ["d/b", "d"], ["d", "d/e/c"], ["d/e/c", "d/b"], [".", "d/b"], ["d/b", "f"]],
    ids="+".join,
)
def test_the_report_counts_once_what_was_asked_for_twice(
    paths: list[str], folder: PackedFolder, dest: Path
) -> None:
    report = folder.extract(dest, paths)
    made = [each for path, each in trees.snapshot(dest).items() if path != b"."]
    kinds = [each.kind for each in made]
    files = {each.same_file for each in made if each.kind == "file"}
    assert report.files == len(files)
    assert report.symlinks == kinds.count("symlink")
    assert report.hard_links == kinds.count("file") - len(files)
    assert report.folders == kinds.count("folder")


@pytest.mark.parametrize(
    ("asked", "error"),
    [
        ("nothing", FileNotFoundError),
        ("d/nothing", FileNotFoundError),
        ("nothing/x", FileNotFoundError),
        ("a/x", NotADirectoryError),
        ("d/up/x", NotADirectoryError),
    ],
)
def test_a_path_that_is_not_there_is_an_error_that_names_it(
    asked: str, error: type[OSError], folder: PackedFolder, dest: Path
) -> None:
    with pytest.raises(error, match=asked):
        folder.extract(dest, [asked])
    assert names(dest) == set()


@pytest.mark.parametrize(
    ("asked", "error"),
    [("\ud800", FileNotFoundError), (b"a", TypeError), (3, TypeError), (None, TypeError)],
)
def test_what_is_no_name_is_the_error_that_other_methods_raise(
    asked: Any, error: type[Exception], folder: PackedFolder, dest: Path
) -> None:
    for use in (folder.read_one, lambda name: folder.extract(dest, ["a", name])):
        with pytest.raises(error):
            use(asked)
    assert names(dest) == set()


def test_one_str_is_that_path_or_a_type_error(folder: PackedFolder, dest: Path) -> None:
    """Above all not every letter of it."""
    try:
        folder.extract(dest, "empty")
    except TypeError:
        assert names(dest) == set()
    else:
        assert names(dest) == {"empty"}


def test_paths_may_come_from_anywhere(folder: PackedFolder, dest: Path) -> None:
    folder.extract(dest, iter(["a", "h"]))  # type: ignore[arg-type]
    assert names(dest) == {"a", "h"}


def test_names_of_any_bytes_can_be_asked_for(tmp_path: Path, dest: Path) -> None:
    tree = trees.plain_tree(tmp_path / "t", {"\udcff/\udcfe\n": b"x", "y": b"y"})
    archives.pack(tree, tmp_path / "t.ffr")
    with PackedFolder(tmp_path / "t.ffr") as folder:
        folder.extract(dest, ["\udcff/\udcfe\n"])
    assert names(dest) == {"\udcff", "\udcff/\udcfe\n"}


# ---- damage --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "byte"),
    [("a", 0), ("d/b", 3), ("d/e/large", 0), ("d/e/large", 3 * BLOCK + 2), ("h", 7)],
)
@pytest.mark.parametrize("batch", [8 << 20, 10])
def test_a_damaged_file_is_left_out_and_told_of(
    batch: int, name: str, byte: int, path: Path, dest: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files larger than a batch are checked piece by piece, while they are written."""
    monkeypatch.setattr(extract, "BATCH_BYTES", batch)
    archives.damage(path, name, byte)
    told: list[tuple[str, FFRecordError]] = []
    with PackedFolder(path) as folder:
        report = extract.extract(folder.archive, dest, on_damage=lambda *what: told.append(what))
    lost = {"d/b", "f/same as b"} if name == "d/b" else {name}
    assert {os.path.relpath(where, dest) for where, _ in told} == lost
    assert all(isinstance(error, SampleChecksumError) for _, error in told)
    assert report.damaged == len(lost)
    assert names(dest) == ALL - lost
    for left in names(dest):
        if (dest / left).is_file() and not (dest / left).is_symlink():
            assert (dest / left).read_bytes() == FILES.get(left, FILES["d/b"])


@pytest.mark.parametrize("batch", [8 << 20, 10])
def test_a_damaged_file_is_an_error_unless_told_otherwise(
    batch: int, path: Path, dest: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(extract, "BATCH_BYTES", batch)
    archives.damage(path, "d/e/large", 3 * BLOCK + 2)
    descriptors = handmade.open_descriptors()
    with PackedFolder(path) as folder, pytest.raises(SampleChecksumError):
        folder.extract(dest)
    assert "d/e/large" not in names(dest)
    assert names(dest) <= ALL
    del folder
    assert handmade.open_descriptors() == descriptors


@pytest.mark.parametrize("batch", [8 << 20, 10])
def test_a_damaged_file_does_not_replace_a_good_one(
    batch: int, path: Path, dest: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(extract, "BATCH_BYTES", batch)
    trees.plain_tree(dest, {"d/e/large": b"the last good copy"})
    archives.damage(path, "d/e/large", 3 * BLOCK + 2)
    with PackedFolder(path) as folder:
        report = extract.extract(
            folder.archive, dest, overwrite=True, on_damage=lambda *_what: None
        )
    assert report.damaged == 1
    assert (dest / "d/e/large").read_bytes() == b"the last good copy"
    assert names(dest) == ALL


SPOILED: builders.Tree = {
    b"a": b"before it",
    b"bad": builders.Symlink(b"x\0y"),
    b"d": {b"e": {b"deep": b"far down"}},
    b"z": {b"later": b"after it"},
}


def spoil_xattrs(draft: builders.Draft, path: bytes) -> None:
    draft.set_xattrs(draft.find(path), [(b"security.capability", b"x")])


@pytest.fixture
def spoiled(tmp_path: Path) -> Path:
    """An archive with a symlink that cannot be made, and a file and a folder whose attributes
    cannot be set."""
    draft = builders.plant(SPOILED)
    spoil_xattrs(draft, b"d")
    spoil_xattrs(draft, b"d/e/deep")
    (tmp_path / "spoiled.ffr").write_bytes(draft.archive())
    return tmp_path / "spoiled.ffr"


def test_one_bad_symlink_file_or_folder_does_not_stop_the_others(spoiled: Path, dest: Path) -> None:
    told: dict[str, FFRecordError] = {}
    with PackedFolder(spoiled) as folder:
        report = extract.extract(folder.archive, dest, on_damage=told.__setitem__)
    bad = {"bad", "d", "d/e/deep"}
    assert {os.path.relpath(path, dest) for path in told} == bad
    assert all(isinstance(error, IndexStructureError) for error in told.values())
    assert report == ExtractReport(files=2, folders=3, bytes=17, damaged=3)
    assert names(dest) == {"a", "d", "d/e", "z", "z/later"}
    assert (dest / "a").read_bytes() == b"before it"
    for name in (".", "d", "d/e", "z"):
        assert stat.S_IMODE((dest / name).stat().st_mode) == 0o755, name
        assert (dest / name).stat().st_mtime < 1_700_000_000, name


def test_without_anyone_to_tell_what_stands_before_a_bad_symlink_is_there(
    spoiled: Path, dest: Path
) -> None:
    with PackedFolder(spoiled) as folder, pytest.raises(IndexStructureError, match="NUL"):
        folder.extract(dest)
    assert names(dest) == {"a"}
    assert stat.S_IMODE(dest.stat().st_mode) == 0o755


def test_without_anyone_to_tell_folders_are_finished_beside_a_bad_one(
    tmp_path: Path, dest: Path
) -> None:
    draft = builders.plant({b"a": {}, b"bad": {b"in": {}}, b"c": {}})
    spoil_xattrs(draft, b"bad")
    (tmp_path / "x.ffr").write_bytes(draft.archive())
    with PackedFolder(tmp_path / "x.ffr") as folder, pytest.raises(IndexStructureError):
        folder.extract(dest)
    for name in (".", "a", "bad", "bad/in", "c"):
        assert stat.S_IMODE((dest / name).stat().st_mode) == 0o755, name


@pytest.mark.parametrize("error", [FileExistsError, KeyboardInterrupt])
def test_folders_are_finished_whatever_ends_the_extraction(
    error: type[BaseException], folder: PackedFolder, tree: Path, dest: Path
) -> None:
    if error is FileExistsError:
        trees.plain_tree(dest, {"f/g": b"in the way"})

    def interrupt(_files: int, size: int) -> None:
        if error is KeyboardInterrupt and size > BLOCK:
            raise KeyboardInterrupt

    with pytest.raises(error):
        extract.extract(folder.archive, dest, progress=interrupt)
    for name in ("d", "d/e", "empty"):
        assert (dest / name).stat().st_mode == (tree / name).stat().st_mode, name
    assert (dest / "d").stat().st_mtime_ns == (tree / "d").stat().st_mtime_ns


@pytest.mark.parametrize("code", sorted(NoRoomError.ERRNOS))
@pytest.mark.parametrize("call", ["pwrite", "mkdir", "symlink", "link", "open"])
def test_no_room_is_no_damage(
    call: str, code: int, folder: PackedFolder, dest: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = getattr(os, call)

    def refuse(*args: Any, **options: Any) -> Any:
        if call == "open" and args[1] & os.O_TMPFILE != os.O_TMPFILE:
            return plain(*args, **options)
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, call, refuse)
    told: list[object] = []
    with pytest.raises(NoRoomError, match=str(dest)) as caught:
        extract.extract(folder.archive, dest, on_damage=lambda *what: told.append(what))
    assert (caught.value.errno, told) == (code, [])


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_full_disk_leaves_no_half_file(
    overwrite: bool, folder: PackedFolder, dest: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if overwrite:
        trees.plain_tree(dest, {"d/e/large": b"the last good copy"})
    plain = os.pwrite

    def writing(fd: int, data: Any, at: int) -> int:
        if len(data) > BLOCK:
            plain(fd, data[:1000], at)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return plain(fd, data, at)

    monkeypatch.setattr(os, "pwrite", writing)
    with pytest.raises(OSError, match="dest/d/e/large") as caught:
        folder.extract(dest, overwrite=overwrite)
    assert caught.value.errno == errno.ENOSPC
    assert names(dest) <= ALL
    if overwrite:
        assert (dest / "d/e/large").read_bytes() == b"the last good copy"
    else:
        assert "d/e/large" not in names(dest)


@pytest.mark.parametrize("after", [1, 3, 5])
def test_an_interrupted_extraction_leaves_whole_files_only(
    after: int, folder: PackedFolder, dest: Path
) -> None:
    told = 0

    def interrupt(_files: int, _size: int) -> None:
        nonlocal told
        told += 1
        if told == after:
            raise KeyboardInterrupt

    descriptors = handmade.open_descriptors()
    with pytest.raises(KeyboardInterrupt):
        extract.extract(folder.archive, dest, progress=interrupt)
    assert handmade.open_descriptors() == descriptors
    whole = [name for name in names(dest) if (dest / name).is_file()]
    assert len([name for name in whole if not (dest / name).is_symlink()]) >= after
    for name in whole:
        if not (dest / name).is_symlink():
            assert (dest / name).read_bytes() == FILES.get(name, FILES["d/b"])


# ---- hard links ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "code", [errno.EPERM, errno.EMLINK, errno.EXDEV, errno.ENOTSUP, errno.ENOSYS]
)
@pytest.mark.parametrize("overwrite", [False, True])
def test_where_there_are_no_hard_links_there_are_copies(
    overwrite: bool, code: int, folder: PackedFolder, dest: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if overwrite:
        trees.plain_tree(dest, {"d/b": b"old", "f/same as b": b"old"})

    def refuse(*_args: object, **_kwargs: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "link", refuse)
    report = folder.extract(dest, overwrite=overwrite)
    assert names(dest) == ALL
    for name in ("d/b", "f/same as b"):
        assert (dest / name).read_bytes() == FILES["d/b"]
        assert (dest / name).stat().st_nlink == 1
    assert report.hard_links == 0
    assert report.files == 7


def test_another_error_of_linking_is_an_error(
    folder: PackedFolder, dest: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = os.link

    def refuse(source: Any, *args: Any, **kwargs: Any) -> None:
        if not is_unnamed(source):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        plain(source, *args, **kwargs)

    monkeypatch.setattr(os, "link", refuse)
    with pytest.raises(OSError, match="f/same as b") as caught:
        folder.extract(dest)
    assert caught.value.errno == errno.EIO


def test_a_hard_link_goes_into_its_folder_although_the_first_name_is_far_down(
    tmp_path: Path, dest: Path
) -> None:
    """The way to the first name is longer than the number of folders that are kept open."""
    far = "/".join(["d"] * (placing.MOST_OPEN + 7))
    many = [f"many/{number}/file" for number in range(placing.MOST_OPEN + 7)]
    tree = trees.plain_tree(
        tmp_path / "t", {f"{far}/x": b"shared", "other/z": b"z", **dict.fromkeys(many, b"")}
    )
    os.link(tree / far / "x", tree / "other/y")
    archives.pack(tree, tmp_path / "t.ffr")
    with PackedFolder(tmp_path / "t.ffr") as folder:
        folder.extract(dest, [f"{far}/x", *many, "other"])
    os.utime(dest, ns=(0, tree.stat().st_mtime_ns))
    dest.chmod(stat.S_IMODE(tree.stat().st_mode))
    assert trees.differences(tree, dest) == []


@pytest.mark.parametrize("kept_open", [1, 2, 3])
def test_hard_links_are_in_the_right_folders_however_few_are_kept_open(
    kept_open: int, folder: PackedFolder, tree: Path, dest: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(placing, "MOST_OPEN", kept_open)
    folder.extract(dest)
    assert trees.differences(tree, dest) == []


# ---- many folders, other users -------------------------------------------------------------

FEW_DESCRIPTORS = """
import os, resource, sys
from ffrecord import PackedFolder
path, dest = sys.argv[1:]
resource.setrlimit(resource.RLIMIT_NOFILE, (192, 192))
with PackedFolder(path) as folder:
    before = len(os.listdir("/proc/self/fd"))
    report = folder.extract(dest)
    print(report.folders, report.files, len(os.listdir("/proc/self/fd")) - before)
"""


def test_thousands_of_folders_need_few_descriptors(tmp_path: Path, dest: Path) -> None:
    tree = tmp_path / "t"
    for outer in range(40):
        for inner in range(50):
            place = tree / f"{outer}" / f"{inner}"
            place.mkdir(parents=True)
            if inner % 10 == 0:
                (place / "file").write_bytes(b"%d" % outer)
    archives.pack(tree, tmp_path / "t.ffr")
    process = handmade.python(FEW_DESCRIPTORS, str(tmp_path / "t.ffr"), str(dest))
    out, err = process.communicate(timeout=600)
    assert out == "2040 200 0\n", err
    assert trees.differences(tree, dest) == []


EXTRACT = """
path, dest = sys.argv[1:]
with PackedFolder(path) as folder:
    folder.extract(dest)
found = {}
for top, folders, files in os.walk(dest):
    for name in folders + files:
        now = os.lstat(os.path.join(top, name))
        mine = (now.st_uid, now.st_gid) == (os.geteuid(), os.getegid())
        found[os.path.relpath(os.path.join(top, name), dest)] = (stat.S_IMODE(now.st_mode), mine)
print(json.dumps(found))
"""


@pytest.mark.parametrize("whose", ["somebody else's", "their own"])
def test_an_ordinary_user_gets_files_of_their_own_and_no_borrowed_powers(
    whose: str, tmp_path: Path
) -> None:
    modes = {
        "setuid": 0o4755, "setgid": 0o2755, "both": 0o6711, "plain": 0o640, "locked": 0o000,
        "folder": 0o2770, "closed": 0o555, "closed/inside": 0o444, "link": 0o777,
    }  # fmt: skip
    files = dict.fromkeys(("setuid", "setgid", "both", "plain", "locked", "closed/inside"), b"x")
    tree = trees.plain_tree(tmp_path / "t", {**files, "folder/": b""})
    (tree / "link").symlink_to("plain")
    for name, mode in modes.items():
        if name != "link":
            (tree / name).chmod(mode)
    if os.geteuid() != 0:
        (tree / "locked").chmod(0o400)
        modes["locked"] = 0o400
    place = tmp_path / "ordinary"
    place.mkdir()
    archives.pack(tree, place / "t.ffr")
    user = users.NOBODY if os.geteuid() == 0 else os.geteuid()
    group = users.NOBODY if os.geteuid() == 0 else os.getegid()
    owner = (user, group) if whose == "their own" else (user + 1, group + 1)
    archives.set_owners(place / "t.ffr", *owner)
    with users.reachable(place):
        out = users.run(EXTRACT, place / "t.ffr", place / "dest")
    keep = 0o7777 if whose == "their own" else 0o1777
    due = {name: (mode & keep, True) for name, mode in modes.items()}
    assert {name: tuple(value) for name, value in json.loads(out).items()} == due


def test_root_gives_files_to_their_owners(path: Path, dest: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root gives files away")
    archives.set_owners(path, 4321, 1234)
    with PackedFolder(path) as folder:
        folder.extract(dest)
    for name in [*ALL, "."]:
        now = os.lstat(dest / name)
        assert (now.st_uid, now.st_gid) == (4321, 1234), name


CHANGED_WHILE_EXTRACTED: dict[str, Callable[[Path], object]] = {
    "truncated": lambda path: os.truncate(path, 100),
    "overwritten": lambda path: path.write_bytes(bytes(path.stat().st_size)),
}


@pytest.mark.parametrize("how", CHANGED_WHILE_EXTRACTED)
def test_an_archive_that_is_spoiled_meanwhile_is_our_error(
    how: str, path: Path, dest: Path
) -> None:
    with PackedFolder(path) as folder:
        CHANGED_WHILE_EXTRACTED[how](path)
        with pytest.raises(FFRecordError):
            folder.extract(dest)
    assert not (dest / "a").exists()
