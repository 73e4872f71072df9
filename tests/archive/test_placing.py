"""Names of extracted files, and their temporary names.

Temporary files of killed extractions are removed. Temporary files of running extractions stay.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ffrecord import PackedFolder
from ffrecord.archive import placing
from tests.support import archives, jobs, trees

FILES = {"a": b"new", "d/b": b"new too", "d/c": b"newer"}
LEFT = placing.PASSING.decode()


@pytest.fixture(params=[False, True], ids=["unnamed files", "no unnamed files"])
def _any_file_system(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param:
        jobs.without_tmpfile(monkeypatch)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[PackedFolder]:
    tree = trees.plain_tree(tmp_path / "tree", FILES)
    (tree / "d/link").symlink_to("b")
    os.link(tree / "a", tree / "d/same")
    archives.pack(tree, tmp_path / "tree.ffr")
    with PackedFolder(tmp_path / "tree.ffr") as folder:
        yield folder


@pytest.fixture
def dest(tmp_path: Path) -> Path:
    old = dict.fromkeys([*FILES, "d/link", "d/same"], b"old")
    return trees.plain_tree(tmp_path / "dest", old)


def names(top: Path) -> set[str]:
    return {str(path.relative_to(top)) for path in top.rglob("*")}


DUE = {*FILES, "d", "d/link", "d/same"}


def is_new(dest: Path) -> bool:
    whole = all((dest / name).read_bytes() == content for name, content in FILES.items())
    return (
        whole and os.path.samefile(dest / "a", dest / "d/same") and (dest / "d/link").is_symlink()
    )


@pytest.mark.usefixtures("_any_file_system")
@pytest.mark.parametrize("kind", ["file", "symlink", "second name"])
def test_leftovers_of_a_killed_extraction_are_removed_by_the_next(
    kind: str, folder: PackedFolder, dest: Path, tmp_path: Path
) -> None:
    (tmp_path / "precious").write_bytes(b"precious")
    for place in (dest, dest / "d"):
        if kind == "symlink":
            (place / LEFT).symlink_to(tmp_path / "precious")
        elif kind == "second name":
            os.link(tmp_path / "precious", place / LEFT)
        else:
            (place / LEFT).write_bytes(b"half of something")
    folder.extract(dest, overwrite=True)
    assert is_new(dest)
    assert names(dest) == DUE
    assert (tmp_path / "precious").read_bytes() == b"precious"


@pytest.mark.usefixtures("_any_file_system")
def test_the_temporary_file_of_a_running_extraction_is_left_alone(
    folder: PackedFolder, dest: Path
) -> None:
    (dest / "d" / LEFT).write_bytes(b"half of something")
    other = os.open(dest / "d", os.O_RDONLY)
    try:
        fcntl.flock(other, fcntl.LOCK_EX)
        folder.extract(dest, overwrite=True)
    finally:
        os.close(other)
    assert is_new(dest)
    assert names(dest) == {*DUE, f"d/{LEFT}"}
    assert (dest / "d" / LEFT).read_bytes() == b"half of something"


@pytest.mark.usefixtures("_any_file_system")
def test_no_lock_is_kept_and_a_folder_with_the_temporary_name_is_left_alone(
    folder: PackedFolder, dest: Path
) -> None:
    trees.plain_tree(dest / "d" / LEFT, {"mine": b"precious"})
    folder.extract(dest, overwrite=True)
    assert is_new(dest)
    assert names(dest) == {*DUE, f"d/{LEFT}", f"d/{LEFT}/mine"}
    for place in (dest, dest / "d"):
        fd = os.open(place, os.O_RDONLY)
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.close(fd)


@pytest.mark.usefixtures("_any_file_system")
def test_a_packed_file_with_the_temporary_name_is_extracted(tmp_path: Path) -> None:
    """A leftover of a killed extraction may have been packed with the other files."""
    tree = trees.plain_tree(tmp_path / "tree", {LEFT: b"half", "a": b"a", f"d/{LEFT}": b"b"})
    archives.pack(tree, tmp_path / "tree.ffr")
    with PackedFolder(tmp_path / "tree.ffr") as folder:
        for _ in range(2):
            folder.extract(tmp_path / "dest", overwrite=True)
            shutil.copystat(tree, tmp_path / "dest")  # the second time, dest is not empty
            assert trees.differences(tree, tmp_path / "dest") == []


def test_without_locks_nothing_is_removed(
    folder: PackedFolder, dest: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_args: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)
    (dest / LEFT).write_bytes(b"somebody's")
    folder.extract(dest, overwrite=True)
    assert is_new(dest)
    assert names(dest) == {*DUE, LEFT}


def test_a_replaced_temporary_file_never_gets_the_name_of_the_file(
    folder: PackedFolder, dest: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An extraction on another machine does not see the lock, and replaces the temporary file."""
    jobs.without_tmpfile(monkeypatch)
    plain = os.fchmod

    def replacing(fd: int, mode: int) -> None:
        plain(fd, mode)
        if (dest / LEFT).exists():
            (dest / LEFT).unlink()
            (dest / LEFT).write_bytes(b"half of another")

    monkeypatch.setattr(os, "fchmod", replacing)
    with pytest.raises(OSError, match="dest/a") as caught:
        folder.extract(dest, overwrite=True)
    assert caught.value.errno == errno.EBUSY
    assert (dest / "a").read_bytes() == b"old"


@pytest.mark.usefixtures("_any_file_system")
@pytest.mark.parametrize("overwrite", [False, True])
def test_without_links_a_file_that_appears_meanwhile_is_not_replaced(
    overwrite: bool, folder: PackedFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "new"

    def refuse(_source: Any, name: Any, **_kwargs: Any) -> None:
        if name == b"c":
            (place / "d/c").write_bytes(b"precious")
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "link", refuse)
    with pytest.raises(FileExistsError, match="new/d/c"):
        folder.extract(place, overwrite=overwrite)
    assert (place / "d/c").read_bytes() == b"precious"
    assert (place / "d/b").read_bytes() == FILES["d/b"]
    assert names(place) == {"a", "d", "d/b", "d/c"}


def test_a_second_extraction_at_the_same_time_succeeds(
    folder: PackedFolder, dest: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second one runs while the first one writes a file under its temporary name."""
    jobs.without_tmpfile(monkeypatch)
    plain = os.pwrite
    seen: set[str] = set()

    def writing(fd: int, data: Any, at: int) -> int:
        monkeypatch.setattr(os, "pwrite", plain)
        with PackedFolder(dest.parent / "tree.ffr") as other:
            other.extract(dest, overwrite=True)
        seen.update(names(dest))
        assert is_new(dest)
        return plain(fd, data, at)

    monkeypatch.setattr(os, "pwrite", writing)
    folder.extract(dest, overwrite=True)
    assert seen == {*DUE, LEFT}
    assert is_new(dest)
    assert names(dest) == DUE


def test_a_file_has_no_name_until_it_has_its_content_and_mode(
    folder: PackedFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[set[str]] = []
    plain = os.fchmod

    def looking(fd: int, mode: int) -> None:
        seen.append({name for name in names(tmp_path / "new") if name in FILES})
        plain(fd, mode)

    monkeypatch.setattr(os, "fchmod", looking)
    folder.extract(tmp_path / "new")
    before = [found for found in seen if found != set(FILES)]
    assert before == [set(), set(), {"a"}, {"a", "d/b"}]  # the first call is for the top folder
