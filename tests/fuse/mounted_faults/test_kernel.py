"""The kernel serves an archive while readers are killed, the archive is changed, or its disk fails.

Wrong bytes are never served, except those that were written into the archive. Missing bytes are
EIO. The mount can always be unmounted.
"""

from __future__ import annotations

import contextlib
import errno
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
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


@pytest.fixture(params=["cached", "direct"])
def prepare(request: pytest.FixtureRequest) -> Callable[[Path], object]:
    """Return a function that lets the kernel read an archive through its page cache or past it."""
    return Path.read_bytes if request.param == "cached" else mounting.uncache


@pytest.fixture
def mounted(own: Packed, prepare: Callable[[Path], object], tmp_path: Path) -> Iterator[Path]:
    prepare(own.archive)
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


# ---- the disk fails ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Disk:
    """An archive on a disk, and functions that let the disk fail and mend it."""

    archive: Path
    fail: Callable[[], object]
    mend: Callable[[], object]


@contextlib.contextmanager
def loop_device(own: Packed, top: Path) -> Iterator[Disk]:
    """Yield a disk whose sectors from the middle of the archive on are missing: a loop device."""
    content = own.archive.read_bytes()
    (top / "files").mkdir()
    own.archive.rename(top / "files" / "own.ffr")
    image, folder = top / "image", top / "disk"
    folder.mkdir()
    with image.open("wb") as file:
        file.truncate(2 * len(content) + (8 << 20))
    make = ["mkfs.ext4", "-q", "-d", str(top / "files"), str(image)]
    try:
        made = subprocess.run(make, capture_output=True, check=False, timeout=PATIENCE)
    except FileNotFoundError:
        pytest.skip("mkfs.ext4 is not installed")
    mount = ["mount", "-o", "loop,ro", str(image), str(folder)]
    done = subprocess.run(mount, capture_output=True, check=False, timeout=PATIENCE)
    if made.returncode or done.returncode:
        pytest.skip("this machine cannot mount ext4 from a loop device")
    try:
        whole = image.read_bytes()
        middle = len(content) // 2 // 4096 * 4096
        place = whole.index(content[middle : middle + 4096])
        yield Disk(
            folder / "own.ffr", lambda: os.truncate(image, place), lambda: image.write_bytes(whole)
        )
    finally:
        mounting.output("umount", folder)


@contextlib.contextmanager
def fuse_mount(own: Packed, top: Path) -> Iterator[Disk]:
    """Yield a disk that fails in the middle of the archive: a FUSE mount with a damaged file."""
    (top / "files").mkdir()
    own.archive.rename(top / "files" / "own.ffr")
    archives.pack(top / "files", top / "outer.ffr")
    middle = (top / "files" / "own.ffr").stat().st_size // 2

    def damage() -> None:
        archives.damage(top / "outer.ffr", "own.ffr", middle)

    with mounting.mounted(top / "outer.ffr", top / "disk", "verify=always") as folder:
        yield Disk(folder / "own.ffr", damage, damage)


@pytest.mark.parametrize("kind", [loop_device, fuse_mount], ids=lambda each: each.__name__)
def test_a_failing_disk_gives_errors_and_no_wrong_bytes(
    kind: Callable[[Packed, Path], contextlib.AbstractContextManager[Disk]],
    own: Packed,
    prepare: Callable[[Path], object],
    tmp_path: Path,
) -> None:
    due = files_of(own)
    with contextlib.ExitStack() as undo:
        disk = undo.enter_context(kind(own, tmp_path))
        prepare(disk.archive)
        mounted = undo.enter_context(
            mounting.mounted(disk.archive, tmp_path / "mnt", backend="kernel")
        )
        disk.fail()
        for _ in range(2):  # a failed read must not leave pages that count as read
            handmade.evict(disk.archive)
            found = {name: read(mounted / name) for name in due}
            assert all(found[name] in (content, errno.EIO) for name, content in due.items())
            assert errno.EIO in found.values()
            assert any(found[name] == content for name, content in due.items() if content)
            assert sorted(os.listdir(mounted)) == sorted(os.listdir(own.source))
        disk.mend()
        handmade.evict(disk.archive)
        assert {name: read(mounted / name) for name in due} == due
        disk.fail()
        assert mounting.command("umount", mounted).returncode == 0
        assert not mounting.is_mounted(mounted)


def test_a_disk_that_is_gone_gives_errors_and_can_be_unmounted(own: Packed, tmp_path: Path) -> None:
    due = files_of(own)
    with (
        fuse_mount(own, tmp_path) as disk,
        mounting.mounted(disk.archive, tmp_path / "mnt", backend="kernel") as mounted,
    ):
        mounting.kill(disk.archive.parent)
        found = {name: read(mounted / name) for name in due}
        assert all(found[name] in (content, errno.EIO) for name, content in due.items())
        assert errno.EIO in found.values()
        assert mounting.command("umount", mounted).returncode == 0


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
