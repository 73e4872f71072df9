"""`--subdir`: one folder of an archive as the root of a mount, with every back end."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ffrecord_fuse import mount
from tests.fuse.mounted import mounting
from tests.fuse.mounted.conftest import Packed
from tests.support import trees


@pytest.mark.parametrize(
    ("folder", "backend"),
    [
        *((folder, backend) for folder in ("nested", "hard") for backend in mounting.BACKENDS),
        ("nested/a/b", "native"), ("names", "fusepy"), ("many", "kernel"), ("empty", "native"),
        ("empty", "kernel"), ("links/to folder", "fusepy"),
    ],
    indirect=["backend"],
)  # fmt: skip
def test_a_folder_is_shown_with_everything_in_it(
    folder: str, whole: Packed, tmp_path: Path, backend: str
) -> None:
    source = whole.source / folder
    with mounting.mounted(
        whole.archive, tmp_path / "mnt", f"subdir={folder}", backend=backend
    ) as path:
        # A file with names outside of the folder has more links than names here.
        found, due = trees.snapshot(path), trees.snapshot(source)
        assert found == due
        assert os.listdir(path / "..") != []
        assert os.path.samefile(path / "..", tmp_path)
        for inner in (entry for entry in os.scandir(path) if entry.is_dir(follow_symlinks=False)):
            assert os.path.samefile(f"{inner.path}/..", path)


def test_numbers_inside_are_unique_and_the_same_in_listings(
    whole: Packed, tmp_path: Path, backend: str
) -> None:
    options = "subdir=nested"
    with mounting.mounted(whole.archive, tmp_path / "mnt", options, backend=backend) as path:
        for above, folders, files in os.walk(path):
            with os.scandir(above) as entries:
                listed = {entry.name: entry.inode() for entry in entries}
            real = {name: os.lstat(f"{above}/{name}").st_ino for name in [*folders, *files]}
            assert listed == real
        numbers = [os.lstat(each).st_ino for each in (path, *path.rglob("*"))]
        assert len(set(numbers)) == len(numbers)


@pytest.mark.parametrize("backend", ["native", "kernel"], indirect=True)
def test_the_command_has_an_option_of_its_own(
    whole: Packed, mountpoint: Path, backend: str
) -> None:
    where = whole.archive, mountpoint, "--subdir", "sizes", "--backend", backend
    assert mounting.command("mount", *where).returncode == 0
    assert sorted(os.listdir(mountpoint)) == sorted(trees.SIZES)


def test_python_can_mount_a_folder(whole: Packed, backend: str) -> None:
    with mount(whole.archive, subdir="nested/a", backend=backend) as path:
        assert sorted(os.listdir(path)) == ["b", "shallow"]


@pytest.mark.parametrize(
    ("folder", "says"),
    [
        ("sizes/none", "the archive has no folder sizes/none: No such file or directory"),
        ("sizes/one", "sizes/one is not a folder of the archive"),
        ("sizes/one/deeper", "Not a directory"),
        ("../", "the archive has no folder ../: No such file or directory"),
        ("nested/../..", "the archive has no folder nested/../..: No such file or directory"),
        ("links/leaving", "the archive has no folder links/leaving"),
    ],
)
def test_a_wrong_folder_is_one_line(
    folder: str, says: str, whole: Packed, mountpoint: Path
) -> None:
    done = mounting.command("mount", whole.archive, mountpoint, "--subdir", folder)
    assert done.returncode == 18
    assert says in done.stderr
    assert done.stderr.count("\n") == 1
    assert not mounting.is_mounted(mountpoint)
