"""`with mount(…) as path`: mounts made from Python."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from ffrecord_fuse import MountError, mount
from ffrecord_fuse.mounting.mount import unmount
from tests.fuse.mounted import mounting
from tests.support import archives, handmade, trees

FILES = {"file": b"content", "folder/inside": b"more", "empty/": b""}


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    archives.pack(trees.plain_tree(tmp_path / "tree", FILES), tmp_path / "tree.ffr")
    return tmp_path / "tree.ffr"


def test_a_mount_lasts_as_long_as_the_block(archive: Path, backend: str) -> None:
    with mount(archive, backend=backend) as path:
        assert Path(path, "folder/inside").read_bytes() == b"more"
        assert sorted(os.listdir(path)) == ["empty", "file", "folder"]
        assert mounting.processes(path) != []
    assert not os.path.lexists(path)  # the temporary folder
    assert mounting.wait_until_ended(Path(path))


def test_a_mount_ends_also_when_the_block_fails(archive: Path, mountpoint: Path) -> None:
    with pytest.raises(ZeroDivisionError), mount(archive, mountpoint):
        assert 1 / (not mounting.is_mounted(mountpoint))
    assert not mounting.is_mounted(mountpoint)
    assert os.listdir(mountpoint) == []
    assert mounting.wait_until_ended(mountpoint)


def test_an_unmount_inside_the_block_is_no_error_at_its_end(
    archive: Path, mountpoint: Path
) -> None:
    with mount(archive, mountpoint):
        unmount(str(mountpoint))
    assert not mounting.is_mounted(mountpoint)


def test_a_given_mountpoint_is_not_removed(archive: Path, mountpoint: Path) -> None:
    with mount(
        str(archive), mountpoint=str(mountpoint), workers=2, options="verify=always"
    ) as path:
        assert path == str(mountpoint)
        assert (mountpoint / "file").read_bytes() == b"content"
    assert mountpoint.is_dir()
    assert os.listdir(mountpoint) == []


def test_relative_paths_start_at_the_callers_folder(
    archive: Path, mountpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(archive.parent)
    with mount("tree.ffr", "mnt", log="the log") as path:
        assert path == str(mountpoint)
        assert os.getxattr(path, "user.ffrecord.archive") == os.fsencode(archive)
    assert "mounted" in (archive.parent / "the log").read_text()


@pytest.mark.parametrize("name", ["a, b\\c.ffr", os.fsdecode(b"new\nline \xff"), "-o"])
def test_an_archive_and_a_mount_point_may_have_any_name(
    archive: Path, tmp_path: Path, name: str
) -> None:
    place = tmp_path / "place"
    (place / name).mkdir(parents=True)
    archive.rename(place / name / name)
    point = place / f"{name} mnt"
    point.mkdir()
    with mounting.released(point), mount(place / name / name, point, log=place / f"{name} log"):
        assert (point / "file").read_bytes() == b"content"
        named = os.getxattr(point, "user.ffrecord.archive")
        assert named == os.fsencode(place / name / name)
    assert (place / f"{name} log").exists()


def test_an_archive_can_be_mounted_twice(archive: Path, backend: str) -> None:
    with mount(archive, backend=backend) as one, mount(archive, backend=backend) as other:
        for top in (one, other):
            assert Path(top, "file").read_bytes() == b"content"
        assert os.stat(one).st_dev != os.stat(other).st_dev
    for path in (one, other):
        assert mounting.wait_until_ended(Path(path))


@pytest.mark.skipif(os.geteuid() != 0, reason="fusermount3 cannot look into a user's mount")
def test_an_archive_can_be_mounted_in_an_empty_folder_of_another(
    archive: Path, backend: str
) -> None:
    with mount(archive, backend=backend) as outer:
        inner = Path(outer, "empty")
        with mount(archive, inner, backend=backend):
            for top in (outer, inner):
                assert Path(top, "file").read_bytes() == b"content"
            assert os.stat(inner).st_dev != os.stat(outer).st_dev
        assert os.listdir(inner) == []
    for path in (outer, str(inner)):
        assert mounting.wait_until_ended(Path(path))


def test_a_file_that_is_still_open_can_be_read_after_the_block(archive: Path, backend: str) -> None:
    """The mountpoint is free at once, and the daemon ends when the last file is closed."""
    with mount(archive, backend=backend) as path:
        file = open(f"{path}/file", "rb", buffering=0)  # noqa: SIM115
    with file:
        assert not os.path.lexists(path)
        assert file.read() == b"content"
    assert mounting.wait_until_ended(Path(path))


def test_threads_can_mount_at_the_same_time(archive: Path) -> None:
    found = []

    def look() -> None:
        with mount(archive) as path:
            found.append(Path(path, "file").read_bytes())

    threads = [threading.Thread(target=look) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [b"content"] * 3


# ---- mounts that fail --------------------------------------------------------------------------


def test_a_mount_point_in_use_is_a_mount_error(
    archive: Path, mountpoint: Path, backend: str
) -> None:
    with mount(archive, mountpoint, backend=backend):
        with pytest.raises(MountError) as caught, mount(archive, mountpoint, backend=backend):
            pass
        check_message(caught.value, mountpoint, "is already mounted here")
        assert (mountpoint / "file").read_bytes() == b"content"


def check_message(error: MountError, mountpoint: Path, why: str) -> None:
    assert why in str(error)
    assert str(error).startswith(f"{mountpoint}: ")
    assert str(error).count(str(mountpoint)) <= 2
    assert "\n" not in str(error)
    assert "Traceback" not in str(error)
    assert error.exit_code == 18


def test_an_error_names_the_archive_and_not_the_temporary_folder(archive: Path) -> None:
    for options, why in (("no_such_word", "unknown option"), ("log=/no/such/log", "/no/such")):
        with pytest.raises(MountError, match=why) as caught, mount(archive, options=options):
            pass
        assert str(caught.value).startswith(f"{archive}: ")
        assert "ffrecord-" not in str(caught.value).removeprefix(str(archive))
    archive.unlink()
    with pytest.raises(MountError) as caught, mount(archive):
        pass
    assert str(caught.value) == f"{archive}: No such file or directory"


@pytest.mark.parametrize(
    ("make", "options", "why"),
    [
        (lambda path: path.unlink(), "", "No such file"),
        (lambda path: handmade.write_records(path, [b"a", b"b"]), "", "not a packed folder"),
        (lambda path: None, "verify=maybe", "verify=maybe"),
        (lambda path: None, "log=/no/such/folder/log", "/no/such/folder/log"),
    ],
    ids=["missing", "records only", "bad value", "bad log"],
)
def test_every_other_failure_is_a_mount_error_in_one_line(
    archive: Path, mountpoint: Path, make: Callable[[Path], object], options: str, why: str
) -> None:
    make(archive)
    with pytest.raises(MountError) as caught, mount(archive, mountpoint, options=options):
        pass
    check_message(caught.value, mountpoint, why)
    assert not mounting.is_mounted(mountpoint)
    assert mounting.processes(mountpoint) == []


def test_a_failed_mount_leaves_no_temporary_folder(
    archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    archive.unlink()
    with pytest.raises(MountError), mount(archive):
        pass
    assert os.listdir(tmp_path) == ["tree"]
