"""Extraction restores everything, or the requested part, for root and for ordinary users."""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ffrecord import FFRecordError, PackedFolder
from ffrecord.archive import extract, placing
from ffrecord.archive.extract import ExtractReport
from tests.support import archives, handmade, trees, users
from tests.support.extraction import ALL, FILES, is_unnamed, names

# ---- everything ----------------------------------------------------------------------------


def test_everything_is_restored(opened: PackedFolder, tree: Path, dest: Path) -> None:
    report = opened.extract(dest)
    assert trees.differences(tree, dest) == []
    sizes = {len(FILES[name]) for name in FILES}
    assert report == ExtractReport(
        files=6, folders=4, symlinks=2, hard_links=1, bytes=sum(sizes), damaged=0
    )


def test_dest_is_made_with_all_folders_above_it(
    opened: PackedFolder, tree: Path, tmp_path: Path
) -> None:
    opened.extract(tmp_path / "x/y/z")
    assert trees.differences(tree, tmp_path / "x/y/z") == []


def test_dest_may_be_relative_and_a_symlink(
    opened: PackedFolder, tree: Path, dest: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(dest.parent)
    (dest.parent / "to dest").symlink_to("dest")
    opened.extract("to dest")
    assert trees.differences(tree, dest) == []


def test_a_file_as_dest_is_an_error(opened: PackedFolder, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"precious")
    for place in (tmp_path / "file", tmp_path / "file" / "in it"):
        with pytest.raises(OSError, match="file"):
            opened.extract(place)
    assert (tmp_path / "file").read_bytes() == b"precious"


def test_a_read_only_dest_is_an_error_that_names_it(
    opened: PackedFolder, dest: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel's error about a descriptor contains no name."""

    def read_only(fd: int, mode: int) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(os, "fchmod", read_only)
    with pytest.raises(OSError, match="Read-only file system") as caught:
        opened.extract(dest)
    assert caught.value.filename == str(dest)
    assert os.listdir(dest) == []


def test_dest_gets_the_attributes_of_the_top_if_it_was_empty(
    opened: PackedFolder, tree: Path, dest: Path
) -> None:
    dest.chmod(0o700)
    opened.extract(dest)
    assert stat.S_IMODE(dest.stat().st_mode) == 0o751
    assert dest.stat().st_mtime_ns == tree.stat().st_mtime_ns


@pytest.mark.parametrize("why", ["it was not empty", "not everything is extracted"])
def test_dest_keeps_its_attributes_if_not_empty_or_if_a_part_is_extracted(
    why: str, opened: PackedFolder, tree: Path, dest: Path
) -> None:
    if why == "it was not empty":
        (dest / "mine").write_bytes(b"")
    dest.chmod(0o700)
    opened.extract(dest, None if why == "it was not empty" else ["d", "a"])
    assert stat.S_IMODE(dest.stat().st_mode) == 0o700
    assert dest.stat().st_mtime_ns != tree.stat().st_mtime_ns
    assert stat.S_IMODE((dest / "d").stat().st_mode) == 0o750


def test_progress_reports_every_file_and_byte(opened: PackedFolder, dest: Path) -> None:
    told: list[tuple[int, int]] = []
    report = extract.extract(opened.archive, dest, progress=lambda *more: told.append(more))
    assert sum(files for files, _ in told) == report.files
    assert sum(size for _, size in told) == report.bytes


def test_a_file_system_without_extended_attributes_is_one_warning(
    tmp_path: Path, dest: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = trees.plain_tree(tmp_path / "t", {"a": b"1", "b": b"2"})
    if not trees.has_xattrs(tree):
        pytest.skip("this file system has no extended attributes")
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
        os.setxattr(dest / name, "user.x", b"y")  # nothing else was missing
    assert trees.differences(tree, dest) == []


def test_short_writes_are_completed(
    opened: PackedFolder, tree: Path, dest: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = os.pwrite
    with monkeypatch.context() as slow:
        slow.setattr(os, "pwrite", lambda fd, data, at: plain(fd, data[:1000], at))
        opened.extract(dest)
    assert trees.differences(tree, dest) == []


def test_a_closed_archive_is_an_error(path: Path, dest: Path) -> None:
    with PackedFolder(path) as folder:
        pass
    with pytest.raises(FFRecordError):
        folder.extract(dest)
    assert not any((dest / name).is_file() for name in names(dest) if name != "link")


# ---- requested files and folders -----------------------------------------------------------

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
    # The same file or folder more than once.
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
def test_requested_files_are_extracted_once_and_under_their_whole_path(
    paths: list[str], due: set[str], opened: PackedFolder, tree: Path, dest: Path
) -> None:
    opened.extract(dest, paths)
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
def test_a_file_that_was_requested_twice_is_counted_once(
    paths: list[str], opened: PackedFolder, dest: Path
) -> None:
    report = opened.extract(dest, paths)
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
def test_a_missing_path_is_an_error_that_names_it(
    asked: str, error: type[OSError], opened: PackedFolder, dest: Path
) -> None:
    with pytest.raises(error, match=asked):
        opened.extract(dest, [asked])
    assert names(dest) == set()


@pytest.mark.parametrize(
    ("asked", "error"),
    [("\ud800", FileNotFoundError), (b"a", TypeError), (3, TypeError), (None, TypeError)],
)
def test_an_invalid_name_raises_the_same_error_as_in_other_methods(
    asked: Any, error: type[Exception], opened: PackedFolder, dest: Path
) -> None:
    for use in (opened.read_one, lambda name: opened.extract(dest, ["a", name])):
        with pytest.raises(error):
            use(asked)
    assert names(dest) == set()


def test_a_str_is_taken_as_one_path_or_is_a_type_error(opened: PackedFolder, dest: Path) -> None:
    """The str must not be taken as a list of letters."""
    try:
        opened.extract(dest, "empty")
    except TypeError:
        assert names(dest) == set()
    else:
        assert names(dest) == {"empty"}


def test_paths_may_come_from_an_iterator(opened: PackedFolder, dest: Path) -> None:
    opened.extract(dest, iter(["a", "h"]))  # type: ignore[arg-type]
    assert names(dest) == {"a", "h"}


def test_names_of_any_bytes_can_be_requested(tmp_path: Path, dest: Path) -> None:
    tree = trees.plain_tree(tmp_path / "t", {"\udcff/\udcfe\n": b"x", "y": b"y"})
    archives.pack(tree, tmp_path / "t.ffr")
    with PackedFolder(tmp_path / "t.ffr") as folder:
        folder.extract(dest, ["\udcff/\udcfe\n"])
    assert names(dest) == {"\udcff", "\udcff/\udcfe\n"}


# ---- hard links ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "code", [errno.EPERM, errno.EMLINK, errno.EXDEV, errno.ENOTSUP, errno.ENOSYS]
)
@pytest.mark.parametrize("overwrite", [False, True])
def test_without_hard_links_files_are_copied(
    overwrite: bool, code: int, opened: PackedFolder, dest: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if overwrite:
        trees.plain_tree(dest, {"d/b": b"old", "f/same as b": b"old"})

    def refuse(*_args: object, **_kwargs: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "link", refuse)
    report = opened.extract(dest, overwrite=overwrite)
    assert names(dest) == ALL
    for name in ("d/b", "f/same as b"):
        assert (dest / name).read_bytes() == FILES["d/b"]
        assert (dest / name).stat().st_nlink == 1
    assert report.hard_links == 0
    assert report.files == 7


def test_any_other_error_of_linking_is_raised(
    opened: PackedFolder, dest: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = os.link

    def refuse(source: Any, *args: Any, **kwargs: Any) -> None:
        if not is_unnamed(source):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        plain(source, *args, **kwargs)

    monkeypatch.setattr(os, "link", refuse)
    with pytest.raises(OSError, match="f/same as b") as caught:
        opened.extract(dest)
    assert caught.value.errno == errno.EIO


def test_a_hard_link_to_a_file_in_a_deep_folder_is_made_in_its_own_folder(
    tmp_path: Path, dest: Path
) -> None:
    """The path of the first name has more folders than are kept open."""
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
def test_hard_links_are_in_the_right_folders_when_few_folders_are_kept_open(
    kept_open: int, opened: PackedFolder, tree: Path, dest: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(placing, "MOST_OPEN", kept_open)
    opened.extract(dest)
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
def test_an_ordinary_user_owns_the_files_and_gets_no_set_id_bits_of_others(
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


def test_root_restores_owners(path: Path, dest: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root")
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
def test_an_archive_that_is_changed_during_extraction_is_an_error_of_ours(
    how: str, path: Path, dest: Path
) -> None:
    with PackedFolder(path) as folder:
        CHANGED_WHILE_EXTRACTED[how](path)
        with pytest.raises(FFRecordError):
            folder.extract(dest)
    assert not (dest / "a").exists()
