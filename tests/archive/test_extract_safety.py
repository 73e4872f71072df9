"""Extraction writes only below its target, replaces files on request, leaves no half files."""

from __future__ import annotations

import errno
import os
import shutil
import stat
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
from tests.support.extraction import ALL, FILES, is_unnamed, names
from tests.support.trees import BLOCK

# ---- nothing is written outside ------------------------------------------------------------

TARGETS = ["file", "folder", "folder/b", "not there", "."]
POSITIONS = ["a", "d", "d/b", "d/e", "d/e/large", "d/up", "link", "empty", "f/same as b"]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("position", POSITIONS)
def test_a_symlink_in_the_way_is_not_followed(
    position: str, target: str, opened: PackedFolder, dest: Path, outside: Path
) -> None:
    planted = dest / position
    planted.parent.mkdir(parents=True, exist_ok=True)
    planted.symlink_to(outside / target)
    with pytest.raises(FileExistsError, match=position):
        opened.extract(dest)
    assert os.readlink(planted) == str(outside / target)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("position", POSITIONS)
def test_with_overwrite_a_symlink_in_the_way_is_replaced_and_not_followed(
    position: str, target: str, opened: PackedFolder, tree: Path, dest: Path, outside: Path
) -> None:
    planted = dest / position
    planted.parent.mkdir(parents=True, exist_ok=True)
    planted.symlink_to(outside / target)
    opened.extract(dest, overwrite=True)
    shutil.copystat(tree, dest)  # dest was not empty, so it kept its own attributes
    assert trees.differences(tree, dest) == []


def test_an_archive_does_not_write_through_symlinks_of_another_one(
    tmp_path: Path, dest: Path, outside: Path
) -> None:
    """One archive has a symlink where the other has a folder of the same name with files."""
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


def swap(dest: Path, name: str, target: Path) -> None:
    """Replace a file or folder by a symlink, as an attacker would."""
    place = dest / name
    if place.is_symlink():
        return
    if place.exists():
        place.rename(dest / f"moved {name.replace('/', ' ')}")
    place.symlink_to(target)


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("name", ["d", "d/e"])
def test_a_new_folder_that_is_replaced_by_a_symlink_is_not_followed(
    name: str, overwrite: bool, opened: PackedFolder, dest: Path, outside: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    plain = os.mkdir

    def making(made: Any, *args: Any, **kwargs: Any) -> None:
        plain(made, *args, **kwargs)
        if os.fsdecode(made) == os.path.basename(name):
            swap(dest, name, outside / "folder")

    monkeypatch.setattr(os, "mkdir", making)
    with pytest.raises(OSError, match=f"dest/{name}"):
        opened.extract(dest, overwrite=overwrite)


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("kept_open", [2, 128])
@pytest.mark.parametrize("name", ["d", "d/e"])
def test_a_folder_that_is_replaced_by_a_symlink_while_it_is_filled_is_not_followed(
    name: str, kept_open: int, overwrite: bool, opened: PackedFolder, dest: Path, outside: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """The symlink is followed neither for further files nor for the folder's mode and time."""
    monkeypatch.setattr(placing, "MOST_OPEN", kept_open)
    plain = os.link
    trigger = {"d": b"b", "d/e": b"c"}[name]

    def linking(source: Any, made: Any, **kwargs: Any) -> None:
        plain(source, made, **kwargs)
        if made == trigger:
            swap(dest, name, outside / "folder")

    monkeypatch.setattr(os, "link", linking)
    try:
        opened.extract(dest, overwrite=overwrite)
    except OSError as error:
        refused = str(error.filename)
        assert refused.startswith(f"{dest}/{name}")
    assert os.readlink(dest / name) == str(outside / "folder")


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize("target", ["file", "not there"])
def test_a_symlink_that_appears_just_before_a_file_is_made_is_not_followed(
    target: str, named: bool, overwrite: bool, opened: PackedFolder, dest: Path, outside: Path,
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
        opened.extract(dest, overwrite=overwrite)
    assert os.readlink(dest / "d/b") == str(outside / target)


def test_a_hard_link_is_not_made_to_the_target_of_a_planted_symlink(
    opened: PackedFolder, dest: Path, outside: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = os.link

    def linking(source: Any, *args: Any, **kwargs: Any) -> None:
        if not is_unnamed(source):
            swap(dest, f"d/{os.fsdecode(source)}", outside / "file")
        plain(source, *args, **kwargs)

    monkeypatch.setattr(os, "link", linking)
    opened.extract(dest)
    assert (outside / "file").stat().st_nlink == 1
    assert not os.path.samefile(outside / "file", os.path.join(dest, "f/g"))


@pytest.mark.parametrize("asked", ["../a", "/a", "d/../../../a", "/../d/b", "link/../a"])
def test_no_requested_path_leads_outside(asked: str, opened: PackedFolder, dest: Path) -> None:
    before = set(os.listdir(dest.parent))
    opened.extract(dest, [asked])
    assert names(dest) == ({"d", "d/b"} if asked.endswith("b") else {"a"})
    assert set(os.listdir(dest.parent)) == before


# ---- existing files and folders ------------------------------------------------------------


@pytest.mark.parametrize("name", ["a", "d/b", "d/e/large", "f/same as b", "d/up", "link"])
def test_an_existing_file_is_not_replaced(name: str, opened: PackedFolder, dest: Path) -> None:
    trees.plain_tree(dest, {name: b"precious"})
    before = (dest / name).stat()
    with pytest.raises(FileExistsError, match=name) as caught:
        opened.extract(dest)
    assert caught.value.filename == f"{dest}/{name}"
    after = (dest / name).stat()
    assert (dest / name).read_bytes() == b"precious"
    assert (after.st_ino, after.st_mode, after.st_mtime_ns) == (
        before.st_ino, before.st_mode, before.st_mtime_ns,
    )  # fmt: skip


@pytest.mark.parametrize("name", ["a", "d/b", "d/e/large", "f/same as b", "d/up", "link", "empty"])
def test_with_overwrite_an_existing_file_is_replaced(
    name: str, opened: PackedFolder, tree: Path, dest: Path
) -> None:
    trees.plain_tree(dest, {name: b"old"})
    opened.extract(dest, overwrite=True)
    shutil.copystat(tree, dest)
    assert trees.differences(tree, dest) == []


def test_replacing_a_file_leaves_its_other_names_and_readers_alone(
    opened: PackedFolder, dest: Path, tmp_path: Path
) -> None:
    (dest / "a").write_bytes(b"old")
    os.link(dest / "a", tmp_path / "another name")
    with open(dest / "a", "rb") as reading:
        opened.extract(dest, overwrite=True)
        assert reading.read() == b"old"
    assert (tmp_path / "another name").read_bytes() == b"old"
    assert (dest / "a").read_bytes() == FILES["a"]


def test_a_file_is_replaced_in_one_step(
    opened: PackedFolder, dest: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At every moment the name belongs to the old file or to the complete new one."""
    (dest / "a").write_bytes(b"old")
    seen = set()
    plain = os.pwrite

    def writing(fd: int, data: Any, at: int) -> int:
        seen.add((dest / "a").read_bytes())
        return plain(fd, data, at)

    monkeypatch.setattr(os, "pwrite", writing)
    opened.extract(dest, overwrite=True)
    assert seen == {b"old", FILES["a"]}


def test_extracting_again_over_everything_gives_the_same(
    opened: PackedFolder, tree: Path, dest: Path
) -> None:
    opened.extract(dest)
    for _ in range(2):
        report = opened.extract(dest, overwrite=True)
        shutil.copystat(tree, dest)
        assert trees.differences(tree, dest) == []
    assert report.hard_links == 1


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("name", ["a", "d/b", "link"])
def test_a_folder_is_never_replaced_by_a_file(
    name: str, overwrite: bool, opened: PackedFolder, dest: Path
) -> None:
    trees.plain_tree(dest / name, {"mine": b"precious"})
    with pytest.raises(IsADirectoryError, match=name):
        opened.extract(dest, overwrite=overwrite)
    assert (dest / name / "mine").read_bytes() == b"precious"


def test_a_file_is_replaced_by_a_folder_only_with_overwrite(
    opened: PackedFolder, tree: Path, dest: Path
) -> None:
    (dest / "d").write_bytes(b"precious")
    with pytest.raises(FileExistsError, match="d"):
        opened.extract(dest)
    assert (dest / "d").read_bytes() == b"precious"
    opened.extract(dest, overwrite=True)
    assert names(dest) == ALL


def test_files_are_added_to_existing_folders(opened: PackedFolder, dest: Path) -> None:
    trees.plain_tree(dest, {"d/mine": b"precious", "empty/mine too": b"precious"})
    opened.extract(dest)
    assert names(dest) == ALL | {"d/mine", "empty/mine too"}
    assert (dest / "d/mine").read_bytes() == b"precious"
    assert stat.S_IMODE((dest / "d").stat().st_mode) == 0o750


def attributes(path: Path) -> tuple[object, ...]:
    now = path.stat()
    return now.st_mode, now.st_uid, now.st_gid, now.st_mtime_ns, trees.xattrs(path)


@pytest.fixture
def private(tree: Path, tmp_path: Path, dest: Path) -> Path:
    """Make an archive of folders with attributes, and the same folders without them in `dest`."""
    if trees.has_xattrs(tree):
        for name in ("d", "d/e"):
            os.setxattr(tree / name, "user.x", b"from the archive")
    archives.pack(tree, tmp_path / "private.ffr")
    (dest / "d/e").mkdir(parents=True)
    for name in ("d/e", "d"):
        (dest / name).chmod(0o711)
    return tmp_path / "private.ffr"


def test_folders_on_the_way_to_a_requested_file_keep_their_attributes(
    private: Path, tree: Path, dest: Path
) -> None:
    before = attributes(dest / "d")
    inner = os.stat(dest / "d/e")
    with PackedFolder(private) as folder:
        report = folder.extract(dest, "d/e/c")
        assert report == ExtractReport(files=1, bytes=len(FILES["d/e/c"]))
        assert attributes(dest / "d") == before
        after = os.stat(dest / "d/e")  # its time has changed, because it has a new file
        assert (after.st_mode, trees.xattrs(dest / "d/e")) == (inner.st_mode, ())
        report = folder.extract(dest, "f/g")
        assert report == ExtractReport(files=1, folders=1, bytes=len(FILES["f/g"]))
    assert attributes(dest / "f") == attributes(tree / "f")


@pytest.mark.parametrize(
    "paths", [["d"], ["d/"], ["d/."], ["d/e/.."], ["d/e/c", "d"], ["d", "d/e/c"]], ids="+".join
)
def test_a_requested_folder_gets_its_attributes(
    paths: list[str], private: Path, tree: Path, dest: Path
) -> None:
    with PackedFolder(private) as folder:
        folder.extract(dest, paths)
    for name in ("d", "d/e"):
        assert attributes(dest / name) == attributes(tree / name)


CLOSED = """
path, dest = sys.argv[1:]
os.makedirs(os.path.join(dest, "closed/in"))
ffrecord.archive.placing.MOST_OPEN = 0  # each folder is opened again to set its attributes
with PackedFolder(path) as folder:
    folder.extract(dest, ["closed/in/file", "closed"])
for name in ("closed", "closed/in"):
    print(oct(os.stat(os.path.join(dest, name)).st_mode))
    os.chmod(os.path.join(dest, "closed"), 0o700)
"""


def test_folders_without_permissions_get_their_modes_after_their_contents(tmp_path: Path) -> None:
    """One folder is first on the way to a requested file, and then requested itself."""
    if os.geteuid() != 0:
        pytest.skip("needs root to pack such a folder")
    tree = trees.plain_tree(tmp_path / "t", {"closed/in/file": b"x"})
    place = tmp_path / "ordinary"
    place.mkdir()
    (tree / "closed/in").chmod(0o500)
    (tree / "closed").chmod(0o600)
    archives.pack(tree, place / "t.ffr")
    with users.reachable(place):
        out = users.run(CLOSED, place / "t.ffr", place / "dest")
    assert out == "0o40600\n0o40500\n"


# ---- damage --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "byte"),
    [("a", 0), ("d/b", 3), ("d/e/large", 0), ("d/e/large", 3 * BLOCK + 2), ("h", 7)],
)
@pytest.mark.parametrize("batch", [8 << 20, 10])
def test_a_damaged_file_is_left_out_and_reported(
    batch: int, name: str, byte: int, path: Path, dest: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files larger than a batch are verified piece by piece while they are written."""
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
def test_without_on_damage_a_damaged_file_is_an_error(
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
    """Make an archive with a symlink that cannot be made, and attributes that cannot be set."""
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


def test_without_on_damage_files_before_a_bad_symlink_are_extracted(
    spoiled: Path, dest: Path
) -> None:
    with PackedFolder(spoiled) as folder, pytest.raises(IndexStructureError, match="NUL"):
        folder.extract(dest)
    assert names(dest) == {"a"}
    assert stat.S_IMODE(dest.stat().st_mode) == 0o755


def test_without_on_damage_folders_beside_a_bad_one_get_their_attributes(
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
def test_folders_get_their_attributes_after_any_error(
    error: type[BaseException], opened: PackedFolder, tree: Path, dest: Path
) -> None:
    if error is FileExistsError:
        trees.plain_tree(dest, {"f/g": b"in the way"})

    def interrupt(_files: int, size: int) -> None:
        if error is KeyboardInterrupt and size > BLOCK:
            raise KeyboardInterrupt

    with pytest.raises(error):
        extract.extract(opened.archive, dest, progress=interrupt)
    for name in ("d", "d/e", "empty"):
        assert (dest / name).stat().st_mode == (tree / name).stat().st_mode, name
    assert (dest / "d").stat().st_mtime_ns == (tree / "d").stat().st_mtime_ns


@pytest.mark.parametrize("code", sorted(NoRoomError.ERRNOS))
@pytest.mark.parametrize("call", ["pwrite", "mkdir", "symlink", "link", "open"])
def test_a_full_disk_is_not_reported_as_damage(
    call: str, code: int, opened: PackedFolder, dest: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = getattr(os, call)

    def refuse(*args: Any, **options: Any) -> Any:
        if call == "open" and args[1] & os.O_TMPFILE != os.O_TMPFILE:
            return plain(*args, **options)
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, call, refuse)
    told: list[object] = []
    with pytest.raises(NoRoomError, match=str(dest)) as caught:
        extract.extract(opened.archive, dest, on_damage=lambda *what: told.append(what))
    assert (caught.value.errno, told) == (code, [])


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_full_disk_leaves_no_half_file(
    overwrite: bool, opened: PackedFolder, dest: Path, monkeypatch: pytest.MonkeyPatch
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
        opened.extract(dest, overwrite=overwrite)
    assert caught.value.errno == errno.ENOSPC
    assert names(dest) <= ALL
    if overwrite:
        assert (dest / "d/e/large").read_bytes() == b"the last good copy"
    else:
        assert "d/e/large" not in names(dest)


@pytest.mark.parametrize("after", [1, 3, 5])
def test_an_interrupted_extraction_leaves_whole_files_only(
    after: int, opened: PackedFolder, dest: Path
) -> None:
    told = 0

    def interrupt(_files: int, _size: int) -> None:
        nonlocal told
        told += 1
        if told == after:
            raise KeyboardInterrupt

    descriptors = handmade.open_descriptors()
    with pytest.raises(KeyboardInterrupt):
        extract.extract(opened.archive, dest, progress=interrupt)
    assert handmade.open_descriptors() == descriptors
    whole = [name for name in names(dest) if (dest / name).is_file()]
    assert len([name for name in whole if not (dest / name).is_symlink()]) >= after
    for name in whole:
        if not (dest / name).is_symlink():
            assert (dest / name).read_bytes() == FILES.get(name, FILES["d/b"])
