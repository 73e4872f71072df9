"""The kernel serves an archive while readers are killed, and while the archive is changed.

Wrong bytes are never served, except those that were written into the archive. Missing bytes are
EIO. The mount can always be unmounted.
"""

from __future__ import annotations

import errno
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fuse.mounted import mounting
from tests.fuse.mounted_faults.conftest import Packed
from tests.support import archives, handmade
from tests.support.patience import PATIENCE

ALIGNED = {"extents": None, "chunks": 512}


@pytest.fixture(params=ALIGNED)
def own(request: pytest.FixtureRequest, packed: Packed, tmp_path: Path) -> Packed:
    """Return an archive that the test may damage, in both layouts."""
    mounting.require("kernel")
    archives.pack(packed.source, tmp_path / "own.ffr", align=ALIGNED[request.param])
    return Packed(packed.source, tmp_path / "own.ffr")


@pytest.fixture
def mounted(own: Packed, tmp_path: Path) -> Iterator[Path]:
    with mounting.mounted(own.archive, tmp_path / "mnt", backend="kernel") as path:
        yield path


def files_of(packed: Packed) -> dict[str, bytes]:
    return {
        str(path.relative_to(packed.source)): path.read_bytes()
        for path in sorted(packed.source.rglob("*"))
        if path.is_file()
    }


def drop_caches(mounted: Path) -> None:
    """Drop the pages of all files of a mount, so that they are read again."""
    for path in mounted.rglob("*"):
        if path.is_file():
            fd = os.open(path, os.O_RDONLY)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(fd)


def read(path: Path) -> bytes | int:
    """Return the content of a file, or the errno of the failure."""
    try:
        return path.read_bytes()
    except OSError as error:
        return error.errno or 0


# ---- the archive changes -----------------------------------------------------------------------


def test_a_truncated_archive_gives_errors_and_no_wrong_bytes(own: Packed, mounted: Path) -> None:
    due = files_of(own)
    os.truncate(own.archive, own.archive.stat().st_size // 2)
    found = {name: read(mounted / name) for name in due}
    assert all(found[name] in (content, errno.EIO) for name, content in due.items())
    assert errno.EIO in found.values()
    assert any(found[name] == content for name, content in due.items() if content)
    assert mounting.command("umount", mounted).returncode == 0


def test_an_emptied_archive_gives_errors(own: Packed, mounted: Path) -> None:
    due = files_of(own)
    os.truncate(own.archive, 0)
    for name, content in due.items():
        assert read(mounted / name) == (errno.EIO if content else b"")
    assert sorted(os.listdir(mounted)) == sorted(os.listdir(own.source))
    assert mounting.command("umount", mounted).returncode == 0


@pytest.mark.parametrize("how", ["replaced", "deleted"])
def test_another_file_of_the_same_name_changes_nothing(
    how: str, own: Packed, mounted: Path, tmp_path: Path
) -> None:
    if how == "replaced":
        (tmp_path / "new").write_bytes(os.urandom(1 << 20))
        os.replace(tmp_path / "new", own.archive)
    else:
        own.archive.unlink()
    for name, content in files_of(own).items():
        assert read(mounted / name) == content


def test_damage_is_served_and_only_damage(own: Packed, mounted: Path) -> None:
    """The kernel verifies nothing: `verify=before` finds damage, if it was there before."""
    due = files_of(own)
    name = max(due, key=lambda each: len(due[each]))
    archives.damage(own.archive, name, 1000)
    drop_caches(mounted)
    wrong = bytearray(due[name])
    wrong[1000] ^= 1
    assert read(mounted / name) == bytes(wrong)
    for other in due.keys() - {name}:
        assert read(mounted / other) == due[other]


# ---- readers are killed ------------------------------------------------------------------------

READER = """
import os, random, sys
top, seed = sys.argv[1:]
chance = random.Random(seed)
names = [os.path.join(above, name) for above, _, files in os.walk(top) for name in files]
while True:
    with open(chance.choice(names), "rb", buffering=0) as file:
        while file.read(chance.choice([1000, 70_000, 1 << 20])):
            pass
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
"""


@pytest.mark.parametrize("kills", [20, pytest.param(500, marks=pytest.mark.long)])
def test_killed_readers_leave_no_wrong_pages(kills: int, own: Packed, mounted: Path) -> None:
    """A page that a killed reader leaves unfinished must not count as read."""
    due = files_of(own)
    chance = random.Random(kills)
    readers: list[subprocess.Popen[bytes]] = []
    deadline = time.monotonic() + PATIENCE * (1 + kills / 20)
    try:
        for number in range(kills):
            assert time.monotonic() < deadline
            command = [sys.executable, "-S", "-c", READER, str(mounted), str(number)]
            readers.append(subprocess.Popen(command))
            if len(readers) > 4:
                victim = readers.pop(chance.randrange(len(readers)))
                victim.send_signal(signal.SIGKILL)
                victim.wait(PATIENCE)
            if number % 5 == 0:
                handmade.evict(own.archive)
            name = chance.choice(sorted(due))
            assert read(mounted / name) == due[name]
    finally:
        for reader in readers:
            reader.kill()
            reader.wait(PATIENCE)
    for name, content in due.items():
        assert read(mounted / name) == content
