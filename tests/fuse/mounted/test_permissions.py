"""Permissions of readers: the kernel checks the permissions that the archive stores."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fuse.mounted import mounting
from tests.support import archives, trees, users

FILES = {
    "private": 0o600,
    "public": 0o644,
    "group's": 0o640,
    "other's": 0o600,
    "closed/inside": 0o644,
    "unlisted/inside": 0o644,
}
# For each path, the result of reading it: the content, the names in it, or an errno.
LOOK = """
top, *paths = sys.argv[1:]
found = {}
for path in paths:
    place = os.path.join(top, path)
    try:
        found[path] = os.listdir(place) if os.path.isdir(place) else open(place).read()
    except OSError as error:
        found[path] = errno.errorcode[error.errno]
print(json.dumps(found))
"""


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """Yield a folder that an ordinary user can reach, with an archive that root owns."""
    if os.geteuid() != 0:
        pytest.skip("only root can create files of several users")
    source = trees.plain_tree(tmp_path / "tree", {name: name.encode() for name in FILES})
    for name, mode in FILES.items():
        (source / name).chmod(mode)
    (source / "closed").chmod(0o700)
    (source / "unlisted").chmod(0o711)
    source.chmod(0o755)
    os.chown(source / "group's", 0, users.NOBODY)
    os.chown(source / "other's", users.NOBODY, 0)
    archives.pack(source, tmp_path / "tree.ffr")
    with users.reachable(tmp_path):
        yield tmp_path


@contextlib.contextmanager
def mounted(place: Path, backend: str, options: str) -> Iterator[Path]:
    archive, mountpoint = place / "tree.ffr", place / "mnt"
    with mounting.mounted(
        archive, mountpoint, options, backend=backend, open_to_all=False
    ) as path:  # fmt: skip
        yield path


def seen_by_nobody(top: Path) -> dict[str, object]:
    found: dict[str, object] = json.loads(users.run(LOOK, top, "", *FILES, "closed", "unlisted"))
    return found


def test_with_allow_other_the_permissions_of_the_files_decide(place: Path, backend: str) -> None:
    with mounted(place, backend, "allow_other") as path:
        found = seen_by_nobody(path)
        top = found.pop("")
        assert isinstance(top, list)
        assert set(top) == {name.split("/")[0] for name in FILES}
        assert found == {
            "private": "EACCES",
            "public": "public",
            "group's": "group's",
            "other's": "other's",
            "closed/inside": "EACCES",
            "unlisted/inside": "unlisted/inside",
            "closed": "EACCES",
            "unlisted": "EACCES",
        }
        assert (path / "private").read_text() == "private"


def test_without_allow_other_the_mount_is_closed_to_others(place: Path, backend: str) -> None:
    with mounted(place, backend, "") as path:
        assert (path / "public").read_text() == "public"
        assert set(seen_by_nobody(path).values()) == {"EACCES"}


def test_with_allow_root_users_who_did_not_mount_are_kept_out(place: Path, backend: str) -> None:
    with mounted(place, backend, "allow_root") as path:
        assert (path / "public").read_text() == "public"
        assert set(seen_by_nobody(path).values()) == {"EACCES"}


def test_owner_and_permissions_can_be_set_for_all(place: Path, backend: str) -> None:
    options = f"allow_other,uid=12345,gid={users.NOBODY},umask=027"
    with mounted(place, backend, options) as path:
        for name in ("", *FILES, "closed", "unlisted"):
            found = os.lstat(path / name)
            assert (found.st_uid, found.st_gid) == (12345, users.NOBODY)
            assert stat.S_IMODE(found.st_mode) == 0o750
        with os.scandir(path) as entries:  # a listing also carries the attributes
            assert {entry.stat().st_uid for entry in entries} == {12345}
        found_by_nobody = seen_by_nobody(path)
        assert found_by_nobody["private"] == "private"
        assert found_by_nobody["closed"] == ["inside"]


def test_set_user_id_bits_are_shown_but_do_nothing(place: Path, backend: str) -> None:
    """The mount is nosuid, and with noexec no program in it runs at all."""
    source = place / "tree"
    (source / "program").write_text("#!/bin/sh\necho ran\n")
    (source / "program").chmod(0o4755)
    archives.pack(source, place / "tree.ffr")
    with mounted(place, backend, "noexec") as path:
        assert stat.S_IMODE(os.stat(path / "program").st_mode) == 0o4755
        assert os.statvfs(path).f_flag & (os.ST_NOSUID | os.ST_NOEXEC)
        with mounting.fails_with(errno.EACCES):
            os.execv(path / "program", ["program"])
