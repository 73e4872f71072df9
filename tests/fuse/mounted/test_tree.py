"""A mount compared with the packed folder: every attribute, every byte, and results of tools."""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.fuse.mounted import mounting
from tests.fuse.mounted.conftest import Packed
from tests.fuse.mounted.mounting import WHOLE, Mounted, output
from tests.fuse.mounted.system import handle_of, open_handle
from tests.support import trees


def needs(program: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(shutil.which(program) is None, reason=f"{program} is not installed")


def test_every_attribute_and_every_byte_equals_the_source(mounted: Mounted) -> None:
    assert trees.differences(mounted.source, mounted.path) == []


def test_folders_have_a_link_for_each_folder_in_them(mounted: Mounted) -> None:
    for path in trees.paths(mounted.source):
        place = os.path.join(os.fsencode(mounted.source), path)
        if stat.S_ISDIR(os.lstat(place).st_mode):
            inner = sum(entry.is_dir(follow_symlinks=False) for entry in os.scandir(place))
            found = os.stat(os.path.join(os.fsencode(mounted.path), path))
            assert found.st_nlink == 2 + inner, path


def test_listings_have_the_kind_and_the_inode_number_of_every_entry(mounted: Mounted) -> None:
    for path in trees.paths(mounted.path):
        place = os.path.join(os.fsencode(mounted.path), path)
        if not stat.S_ISDIR(os.lstat(place).st_mode):
            continue
        with os.scandir(place) as entries:
            for entry in entries:  # its methods use d_type and d_ino, not stat
                found = os.lstat(entry.path)
                assert entry.inode() == found.st_ino
                assert entry.is_dir(follow_symlinks=False) == stat.S_ISDIR(found.st_mode)
                assert entry.is_file(follow_symlinks=False) == stat.S_ISREG(found.st_mode)
                assert entry.is_symlink() == stat.S_ISLNK(found.st_mode)


def test_files_take_as_many_blocks_of_512_bytes_as_their_size_needs(mounted: Mounted) -> None:
    for name in os.listdir(mounted.path / "sizes"):
        found = os.stat(mounted.path / "sizes" / name)
        # The kernel's extents are in blocks of 4 KiB.
        unit = 8 if mounted.backend == "kernel" and mounted.form != "aligned" else 1
        assert found.st_blocks == -(-found.st_size // (512 * unit)) * unit
        assert found.st_blksize >= (512 if mounted.form == "aligned" else 4096)
        assert found.st_dev == os.stat(mounted.path).st_dev


def test_a_second_mount_has_the_same_inode_numbers(mounted: Mounted, tmp_path: Path) -> None:
    with mounting.mounted(mounted.archive, tmp_path / "mnt", backend=mounted.backend) as again:
        assert inode_numbers(again) == inode_numbers(mounted.path)


def inode_numbers(top: Path) -> dict[bytes, int]:
    return {
        path: os.lstat(os.path.join(os.fsencode(top), path)).st_ino for path in trees.paths(top)
    }


def test_the_root_has_always_the_same_inode_number(mounted: Mounted) -> None:
    assert os.stat(mounted.path).st_ino == (2 if mounted.backend == "kernel" else 1)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can open files by handle")
def test_file_handles_stay_valid_across_mounts_for_nfs_servers(
    whole: Packed, tmp_path: Path
) -> None:
    names = ["sizes/blocks", "nested/a/b/c/deep", "hard/other folder/third", "sizes/zero"]
    with mounting.mounted(whole.archive, tmp_path / "mnt") as path:
        handles = [handle_of(path / name) for name in names]
        folder = handle_of(path / "nested/a/b")
    with mounting.mounted(whole.archive, tmp_path / "mnt") as path:
        for name, handle in zip(names, handles, strict=True):
            with open(open_handle(path, handle), "rb") as file:
                assert file.read() == (whole.source / name).read_bytes()
        fd = open_handle(path, folder)
        try:
            assert sorted(os.listdir(fd)) == sorted(os.listdir(whole.source / "nested/a/b"))
            assert os.stat("../shallow", dir_fd=fd).st_size == 100  # ".." works
        finally:
            os.close(fd)


# ---- tools: one form of archive, because the test above compares every form byte by byte ---------


@WHOLE
@pytest.mark.skipif(not trees.rsync_is_there(), reason="rsync is not installed")
def test_rsync_finds_nothing_to_change(mounted: Mounted) -> None:
    assert trees.rsync_differences(mounted.source, mounted.path) == []
    assert trees.rsync_differences(mounted.path, mounted.source) == []


@WHOLE
@needs("diff")
def test_diff_finds_no_difference(mounted: Mounted) -> None:
    assert output("diff", "-r", "--no-dereference", mounted.source, mounted.path) == b""


@WHOLE
@pytest.mark.parametrize(
    "arguments",
    [
        # The size of a folder depends on the file system.
        ["!", "-type", "d", "-printf", r"%P %y %m %n %U %G %s %T@ %l\0"],
        ["-type", "d", "-printf", r"%P %m %n %U %G %T@\0"],
        ["-type", "f", "-size", "+100k", "-newermt", "1980-01-01", "-print0"],
        ["-type", "l", "!", "-name", "loop", "!", "-name", "p[io]ng", "-xtype", "l", "-print0"],
        ["-perm", "/6000", "-print0"],
        ["-empty", "-print0"],
        ["-links", "+1", "-type", "f", "-print0"],
    ],
    ids=lambda arguments: " ".join(arguments[:3]),
)
def test_find_gives_the_same_results(mounted: Mounted, arguments: Sequence[str]) -> None:
    here = found_by_find(mounted.path, arguments)
    assert here == found_by_find(mounted.source, arguments)


def found_by_find(top: Path, arguments: Sequence[str]) -> list[bytes]:
    return sorted(output("find", ".", *arguments, cwd=top).split(b"\0"))


@WHOLE
@needs("tar")
def test_tar_makes_the_same_archive(mounted: Mounted) -> None:
    """The tar files are equal byte for byte: names, owners, modes, times, links, contents.

    Extended attributes are left out, because their order depends on the file system.
    """
    assert digest_of_tar(mounted.path) == digest_of_tar(mounted.source)


def digest_of_tar(top: Path) -> str:
    packed = output(
        "tar", "--create", "--sort=name", "--format=pax", "--numeric-owner",
        "--pax-option=exthdr.name=%d/%f,delete=atime,delete=ctime", ".",
        cwd=top,
    )  # fmt: skip
    assert len(packed) > sum(path.stat().st_size for path in (top / "sizes").iterdir())
    return hashlib.sha256(packed).hexdigest()


@WHOLE
@needs("cp")
def test_cp_copies_everything_out(mounted: Mounted, tmp_path: Path) -> None:
    output("cp", "-a", f"{mounted.path}/.", tmp_path / "copy")
    assert trees.differences(mounted.source, tmp_path / "copy") == []


@WHOLE
@needs("md5sum")
def test_md5sum_gives_the_same_sums(mounted: Mounted) -> None:
    assert sums(mounted.path) == sums(mounted.source)


def sums(top: Path) -> list[bytes]:
    found = output("find", ".", "-type", "f", "-exec", "md5sum", "--zero", "{}", "+", cwd=top)
    return sorted(found.split(b"\0"))


@WHOLE
@needs("grep")
def test_grep_finds_the_same_lines(mounted: Mounted) -> None:
    assert matches(mounted.path) == matches(mounted.source) != [b""]


def matches(top: Path) -> list[bytes]:
    # -r does not follow symlinks below the top; -a takes random bytes for text.
    return sorted(output("grep", "-r", "-a", "-b", "-o", "-Z", "abc", ".", cwd=top).split(b"\n"))
