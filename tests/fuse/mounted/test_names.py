"""Names, links, extended attributes and numbers of a mount, and its refusal of all changes."""

from __future__ import annotations

import errno
import fcntl
import json
import mmap
import os
import stat
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from ffrecord import PackedFolder
from tests.fuse.mounted.mounting import FORMS_BY_FUSE, WHOLE, Mounted, fails_with
from tests.fuse.mounted.system import get_xattr, list_xattrs
from tests.support import trees

FILE = "sizes/one"


# ---- names and paths ---------------------------------------------------------------------------


@WHOLE
@pytest.mark.parametrize("name", trees.NAMES, ids=repr)
def test_a_file_with_any_name_is_found(mounted: Mounted, name: bytes) -> None:
    number = trees.NAMES.index(name)
    inside = os.path.join(os.fsencode(mounted.path), b"names", name)
    with open(inside, "rb") as file:
        assert file.read() == trees.content(10 + number, number)
    with open(os.path.join(os.fsencode(mounted.path), b"folders", name, b"inside"), "rb") as file:
        assert file.read() == trees.content(20 + number, number)


@WHOLE
@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("nothing", errno.ENOENT),
        ("nested/nothing/at all", errno.ENOENT),
        ("sizes/One", errno.ENOENT),
        ("sizes/one ", errno.ENOENT),
        ("names/" + "x" * 254, errno.ENOENT),
        ("names/" + "x" * 256, errno.ENAMETOOLONG),
        ("names/" + "x" * 1024, errno.ENAMETOOLONG),
        ("nested/" * 700, errno.ENAMETOOLONG),  # the whole path is longer than PATH_MAX
        ("sizes/one/", errno.ENOTDIR),
        ("sizes/one/more", errno.ENOTDIR),
        ("sizes/one/..", errno.ENOTDIR),
        ("links/loop", errno.ELOOP),
        ("links/ping", errno.ELOOP),
        ("links/dangling", errno.ENOENT),
        ("links/file with slash", errno.ENOTDIR),
        ("links/not utf-8", errno.ENOENT),
    ],
    ids=lambda value: value[:30] if isinstance(value, str) else errno.errorcode[value],
)
def test_a_path_that_leads_nowhere_fails_as_on_any_file_system(
    mounted: Mounted, path: str, code: int
) -> None:
    for look in (os.stat, lambda place: os.open(place, os.O_RDONLY)):
        for _ in range(2):  # the second answer comes from the kernel's cache
            with fails_with(code):
                look(f"{mounted.path}/{path}")
    with fails_with(code):
        os.stat(f"{mounted.source}/{path}")


@WHOLE
def test_symlinks_have_the_targets_of_the_source(mounted: Mounted) -> None:
    for name in os.listdir(mounted.source / "links"):
        assert os.readlink(mounted.path / "links" / name) == os.readlink(
            mounted.source / "links" / name
        )
    assert (mounted.path / "links/relative").read_bytes() == trees.content(1, 1)
    assert (mounted.path / "links/sibling").samefile(mounted.path / "sizes/one")
    assert (mounted.path / "links/through").read_bytes() == trees.content(100)
    assert sorted(os.listdir(mounted.path / "links/up")) == sorted(os.listdir(mounted.path))


@WHOLE
def test_only_symlinks_can_be_read_as_symlinks(mounted: Mounted) -> None:
    for path in (FILE, "sizes"):
        with fails_with(errno.EINVAL):
            os.readlink(mounted.path / path)
    with fails_with(errno.ELOOP):
        os.open(mounted.path / "links/relative", os.O_RDONLY | os.O_NOFOLLOW)


@WHOLE
def test_a_file_cannot_be_opened_as_a_folder(mounted: Mounted) -> None:
    with fails_with(errno.ENOTDIR):
        os.listdir(mounted.path / FILE)
    with fails_with(errno.ENOTDIR):
        os.open(mounted.path / FILE, os.O_RDONLY | os.O_DIRECTORY)


@WHOLE
def test_dots_lead_up_and_out_of_the_mount(mounted: Mounted) -> None:
    assert os.stat(f"{mounted.path}/nested/a/..").st_ino == os.stat(mounted.path / "nested").st_ino
    assert os.stat(f"{mounted.path}/nested/../.").st_ino == os.stat(mounted.path).st_ino
    assert os.path.samefile(f"{mounted.path}/..", mounted.path.parent)


# ---- numbers of the file system ----------------------------------------------------------------


def test_statfs_describes_the_archive(mounted: Mounted) -> None:
    found = os.statvfs(mounted.path)
    if mounted.archive.is_dir():
        sizes = [path.stat().st_size for path in mounted.archive.iterdir()]
    else:
        sizes = [mounted.archive.stat().st_size]
    inodes = {os.lstat(place).st_ino for place in places(mounted.path)}
    assert (found.f_bfree, found.f_bavail) == (0, 0)
    if mounted.backend == "kernel":  # counts the image too, and has an unlimited number of inodes
        assert found.f_blocks * found.f_frsize >= sum(sizes)
        assert found.f_files - found.f_ffree == len(inodes)
    else:
        assert 0 <= found.f_blocks * found.f_frsize - sum(sizes) < len(sizes) * found.f_frsize
        assert found.f_files == len(inodes)
        assert (found.f_ffree, found.f_favail) == (0, 0)
    assert found.f_namemax == 255
    assert found.f_flag & os.ST_RDONLY
    assert found.f_flag & os.ST_NOSUID
    assert found.f_flag & os.ST_NODEV
    assert os.statvfs(mounted.path / "sizes").f_files == found.f_files


def places(top: Path) -> list[bytes]:
    return [os.path.join(os.fsencode(top), path) for path in trees.paths(top)]


# ---- extended attributes -----------------------------------------------------------------------


@WHOLE
def test_extended_attributes_equal_the_source(mounted: Mounted) -> None:
    if not (mounted.source / "xattrs").exists():
        pytest.skip("the file system of the tests has no extended attributes")
    for path in ("xattrs", "xattrs/file", "xattrs/folder", "xattrs/same"):
        assert sorted(os.listxattr(mounted.path / path)) == sorted(trees.XATTRS)
        for name, value in trees.XATTRS.items():
            assert os.getxattr(mounted.path / path, name) == value
    assert os.listxattr(mounted.path / "xattrs/none") == []
    assert os.listxattr(mounted.path) == []


@WHOLE
def test_a_missing_attribute_is_enodata(mounted: Mounted) -> None:
    for path in ("", FILE, "sizes"):
        for name in (
            "user.nothing",
            "user.ffrecord.nothing",
            "trusted.thing",
            "security.capability",
        ):
            with fails_with(errno.ENODATA):
                os.getxattr(mounted.path / path, name)
    for path, name in ((FILE, "stats"), (FILE, "archive"), ("sizes", "crc32"), ("", "record")):
        with fails_with(errno.ENODATA):
            os.getxattr(mounted.path / path, f"user.ffrecord.{name}")


@WHOLE
def test_a_buffer_too_short_for_an_attribute_is_erange(mounted: Mounted) -> None:
    if not (mounted.source / "xattrs").exists():
        pytest.skip("the file system of the tests has no extended attributes")
    path = mounted.path / "xattrs/file"
    listed = sum(len(name) + 1 for name in trees.XATTRS)
    assert get_xattr(path, "user.binary", 0) == 256
    assert get_xattr(path, "user.binary", 256) == trees.XATTRS["user.binary"]
    assert get_xattr(path, "user.binary", 300) == trees.XATTRS["user.binary"]
    assert get_xattr(path, "user.empty", 0) == 0
    assert get_xattr(path, "user.empty", 1) == b""
    assert list_xattrs(path, 0) == listed
    names = list_xattrs(path, listed)
    assert isinstance(names, bytes)
    assert sorted(names.split(b"\0")) == [b"", *sorted(map(str.encode, trees.XATTRS))]
    assert list_xattrs(mounted.path / "xattrs/none", 0) == 0
    for size in (1, 255):
        with fails_with(errno.ERANGE):
            get_xattr(path, "user.binary", size)
    for size in (1, listed - 1):
        with fails_with(errno.ERANGE):
            list_xattrs(path, size)
    if mounted.backend != "kernel":
        with fails_with(errno.ERANGE):
            get_xattr(mounted.path, "user.ffrecord.stats", 3)


@FORMS_BY_FUSE
def test_the_root_shows_its_archive_and_counters(mounted: Mounted) -> None:
    named = os.getxattr(mounted.path, "user.ffrecord.archive")
    assert named == os.fsencode(mounted.archive)
    (mounted.path / FILE).stat()
    found = json.loads(os.getxattr(mounted.path, "user.ffrecord.stats"))
    assert found.keys() >= {"lookups", "reads", "bytes_read", "verified_blocks", "damaged_reads"}
    disk = found.pop("disk", {"piece": 0})  # only the native back end has it, after some reads
    assert disk["piece"] >= 0
    assert all(isinstance(value, int) and value >= 0 for value in found.values())
    assert found["damaged_reads"] == 0


@FORMS_BY_FUSE
def test_files_show_their_record_and_its_checksum(mounted: Mounted) -> None:
    with PackedFolder(mounted.archive) as packed:
        for name in sorted(os.listdir(mounted.source / "sizes")):
            path = mounted.path / "sizes" / name
            record = int(os.getxattr(path, "user.ffrecord.record"))
            assert record == packed.record(f"sizes/{name}")
            crc = int(os.getxattr(path, "user.ffrecord.crc32"), 16)
            assert crc == zlib.crc32((mounted.source / "sizes" / name).read_bytes())


def test_attributes_of_the_mount_are_not_listed(mounted: Mounted) -> None:
    for path in ("", "sizes", "sizes/zero"):
        assert os.listxattr(mounted.path / path) == []


# ---- nothing can be changed --------------------------------------------------------------------


def change(what: Callable[[Path], object], name: str) -> object:
    return pytest.param(what, id=name)


CHANGES = [
    change(lambda top: os.open(top / FILE, os.O_WRONLY), "open for writing"),
    change(lambda top: os.open(top / FILE, os.O_RDWR), "open for both"),
    change(lambda top: os.open(top / FILE, os.O_WRONLY | os.O_APPEND), "open for appending"),
    change(lambda top: os.open(top / FILE, os.O_RDONLY | os.O_TRUNC), "open and truncate"),
    change(lambda top: os.open(top / "new", os.O_WRONLY | os.O_CREAT), "create"),
    change(lambda top: os.open(top, os.O_RDWR | os.O_TMPFILE), "create without a name"),
    change(lambda top: os.mknod(top / "new", stat.S_IFIFO | 0o600), "mknod"),
    change(lambda top: os.mkdir(top / "new"), "mkdir"),
    change(lambda top: os.rmdir(top / "empty"), "rmdir"),
    change(lambda top: os.unlink(top / FILE), "unlink"),
    change(lambda top: os.rename(top / FILE, top / "new"), "rename"),
    change(lambda top: os.rename(top / FILE, top / "sizes/zero"), "rename over another"),
    change(lambda top: os.link(top / FILE, top / "new"), "link"),
    change(lambda top: os.symlink("somewhere", top / "new"), "symlink"),
    change(lambda top: os.chmod(top / FILE, 0o777), "chmod"),
    change(lambda top: os.chown(top / FILE, 1, 1), "chown"),
    change(lambda top: os.chown(top / "links/loop", 1, 1, follow_symlinks=False), "lchown"),
    change(lambda top: os.utime(top / FILE), "utime"),
    change(lambda top: os.utime(top / "sizes", ns=(1, 2)), "utime of a folder"),
    change(lambda top: os.truncate(top / FILE, 0), "truncate"),
    change(lambda top: os.setxattr(top / FILE, "user.new", b""), "setxattr"),
    change(lambda top: os.setxattr(top, "user.ffrecord.stats", b"{}"), "setxattr of the counters"),
    change(lambda top: os.removexattr(top / FILE, "user.ffrecord.crc32"), "removexattr"),
]


@WHOLE
@pytest.mark.parametrize("what", CHANGES)
def test_every_change_is_refused_as_on_a_read_only_file_system(
    mounted: Mounted, what: Callable[[Path], object]
) -> None:
    with fails_with(errno.EROFS):
        what(mounted.path)


@WHOLE
def test_access_for_writing_is_denied_and_for_reading_is_not(mounted: Mounted) -> None:
    assert os.access(mounted.path / FILE, os.R_OK)
    assert not os.access(mounted.path / FILE, os.W_OK)
    assert not os.access(mounted.path / "sizes", os.W_OK)
    assert os.access(mounted.path / "modes/file 0755", os.X_OK)
    assert not os.access(mounted.path / "modes/file 0644", os.X_OK)


@WHOLE
def test_a_mapping_cannot_be_shared_for_writing(mounted: Mounted) -> None:
    with open(mounted.path / "sizes/block", "rb") as file:
        with fails_with(errno.EACCES):
            mmap.mmap(file.fileno(), 0, flags=mmap.MAP_SHARED, prot=mmap.PROT_WRITE)
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY) as private:
            private[0:3] = b"abc"
        assert file.read() == trees.content(trees.SIZES["block"], list(trees.SIZES).index("block"))


@WHOLE
def test_files_are_locked_as_on_any_file_system(mounted: Mounted) -> None:
    """The kernel handles locks by itself: the mount never asks for lock requests."""
    with open(mounted.path / FILE, "rb") as one, open(mounted.path / FILE, "rb") as other:
        fcntl.flock(one, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with fails_with(errno.EAGAIN):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        fcntl.lockf(one, fcntl.LOCK_SH | fcntl.LOCK_NB)
