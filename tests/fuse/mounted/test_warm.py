"""`mount -o warm`: the archive comes into the page cache while it is mounted."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from ffrecord_fuse.mounting.mount import unmount
from tests.fuse.mounted import mounting
from tests.fuse.mounted.mounting import wait_until
from tests.support import archives, handmade, trees


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("warm")
    files = {f"{i}": trees.content(500_000 + i) for i in range(60)}
    archives.pack(trees.plain_tree(place / "tree", files), place / "tree.ffr")
    return place / "tree.ffr"


def warmed(log: Path) -> int:
    return sum("in the page cache" in line for line in log.read_text().splitlines())


def cold(archive: Path) -> None:
    handmade.evict(archive)
    if any(handmade.cached_pages(archive)):
        pytest.skip("this file system keeps its files in memory")


@mounting.BY_FUSE
def test_all_pages_of_the_archive_are_cached_by_one_process(
    archive: Path, tmp_path: Path, backend: str
) -> None:
    cold(archive)
    log = tmp_path / "log"
    with mounting.mounted(
        archive, tmp_path / "mnt", "warm,workers=3", backend=backend, log=log
    ) as path:
        assert (path / "7").read_bytes() == trees.content(500_007)
        assert wait_until(lambda: warmed(log) > 0)
        assert all(handmade.cached_pages(archive))
        assert sorted(os.listdir(path)) == sorted(map(str, range(60)))
    assert warmed(log) == 1


def test_without_the_option_nothing_is_read(archive: Path, tmp_path: Path, backend: str) -> None:
    cold(archive)
    log = tmp_path / "log"
    with mounting.mounted(archive, tmp_path / "mnt", backend=backend, log=log):
        pass
    assert warmed(log) == 0
    assert not all(handmade.cached_pages(archive))


def test_unmounting_at_once_ends_the_daemon(archive: Path, mountpoint: Path) -> None:
    for _ in range(5):
        cold(archive)
        with mounting.mounted(archive, mountpoint, "warm,workers=1"):
            unmount(str(mountpoint))
            assert mounting.wait_until_ended(mountpoint)


def test_a_worker_that_is_killed_while_warming_is_replaced(archive: Path, tmp_path: Path) -> None:
    cold(archive)
    log = tmp_path / "log"
    with mounting.mounted(archive, tmp_path / "mnt", "warm,workers=1", log=log) as path:
        for pid in mounting.processes(path):
            parent = int(Path(f"/proc/{pid}/stat").read_text().rsplit(")")[-1].split()[1])
            if parent in mounting.processes(path):
                os.kill(pid, signal.SIGKILL)
        assert (path / "3").read_bytes() == trees.content(500_003)
        assert wait_until(lambda: warmed(log) > 0)
        assert all(handmade.cached_pages(archive))
