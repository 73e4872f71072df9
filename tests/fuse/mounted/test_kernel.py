"""Mounts that the kernel serves: their choice, their limits, and what they leave behind."""

from __future__ import annotations

import os
import pty
import stat
import struct
import subprocess
import sys
from array import array
from collections.abc import Iterator
from pathlib import Path

import pytest

from ffrecord.archive.index.build import Tree, build
from ffrecord.format import index as index_layout
from ffrecord.format.checksum import crc32
from ffrecord_fuse.kernel import tuning
from ffrecord_fuse.mounting.mounttable import find
from tests.fuse.mounted import mounting
from tests.fuse.mounted.conftest import Packed
from tests.robustness.attacks.builders import plant
from tests.support import archives, handmade, trees


@pytest.fixture(autouse=True)
def _kernel_is_able() -> None:
    mounting.require("kernel")


def source_of(path: Path) -> str:
    entry = find(str(path))
    assert entry is not None
    return entry.source


# ---- choice ------------------------------------------------------------------------------------


@pytest.mark.parametrize("cached", [True, False], ids=["cached", "cold"])
@pytest.mark.parametrize("form", ["whole", "shards", "aligned"])
def test_the_archive_decides_about_the_layout_and_the_page_cache(
    form: str, cached: bool, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    packed: Packed = request.getfixturevalue(form)
    for file in packed.archive.iterdir() if packed.archive.is_dir() else [packed.archive]:
        file.read_bytes()
        if not cached:
            mounting.uncache(file)
    log = tmp_path / "log"
    with mounting.mounted(packed.archive, tmp_path / "mnt", backend="auto", log=log) as path:
        assert source_of(path) == f"ffrecord:{packed.archive}"
        assert mounting.processes(path) == []
        for file in filter(Path.is_file, packed.source.rglob("*")):
            assert (path / file.relative_to(packed.source)).read_bytes() == file.read_bytes()
    layout = "chunks" if form == "aligned" else "extents"
    (line,) = log.read_text().splitlines()
    # Other programs may evict pages, so a cached archive need not be read through the page cache.
    ways = [", through the page cache, ", ", "] if cached else [", "]
    assert any(f"by the kernel ({layout}){way}not verified" in line for way in ways)


@pytest.mark.parametrize("options", ["verify=first", "verify=always", "warm"])
def test_auto_uses_fuse_and_logs_the_reason(options: str, whole: Packed, tmp_path: Path) -> None:
    log = tmp_path / "log"
    with mounting.mounted(
        whole.archive, tmp_path / "mnt", options, backend="auto", log=log
    ) as path:
        entry = find(str(path))
        assert entry is not None
        assert entry.is_fuse
        assert (path / "sizes/one").read_bytes() == (whole.source / "sizes/one").read_bytes()
    lines = log.read_text().splitlines()
    assert "the kernel back end is not used: only a FUSE back end" in lines[0]
    assert sum("not used" in line for line in lines) == 1


@pytest.mark.parametrize("options", ["verify=first", "verify=always", "warm"])
def test_kernel_refuses_in_one_line(options: str, whole: Packed, mountpoint: Path) -> None:
    where = whole.archive, mountpoint, "--backend", "kernel", "-o", options
    done = mounting.command("mount", *where)
    assert done.returncode == 18
    assert done.stderr.count("\n") == 1
    assert "the kernel cannot serve this archive: only a FUSE back end" in done.stderr
    assert not mounting.is_mounted(mountpoint)


def test_the_mount_is_tuned(whole: Packed, tmp_path: Path) -> None:
    before = set(os.listdir(tuning.FOLDER))
    with mounting.mounted(whole.archive, tmp_path / "mnt", backend="kernel"):
        new = set(os.listdir(tuning.FOLDER)) - before
        if len(new) != 1:
            pytest.skip("another process mounts at the same time")
        for path, value in tuning.SETTINGS.items():
            assert Path(path.format(*new)).read_text().strip() == value


# ---- verification ------------------------------------------------------------------------------


def test_an_archive_that_was_verified_before_says_so(whole: Packed, mountpoint: Path) -> None:
    where = whole.archive, mountpoint, "--backend", "kernel", "-o", "verify=before"
    done = mounting.command("mount", *where, "--log", mountpoint.with_name("log"))
    assert (done.returncode, done.stderr) == (0, "")
    assert source_of(mountpoint) == f"ffrecord+verified:{whole.archive}"
    assert listed_on_a_terminal(mountpoint).endswith("verified before mounting)")
    assert mounting.command("umount", "--list").stdout.splitlines().count(str(mountpoint)) == 1


def listed_on_a_terminal(mountpoint: Path) -> str:
    """Return the line of `umount --list` about a mount, as people see it."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "ffrecord", "umount", "--list"]
    environment = {**mounting.environment(), "COLUMNS": "1000"}
    subprocess.run(command, stdout=theirs, env=environment, check=True, timeout=mounting.PATIENCE)
    os.close(theirs)
    said = b""
    try:
        while more := os.read(ours, 1 << 16):
            said += more
    except OSError:  # EIO: the end
        pass
    os.close(ours)
    (line,) = [each for each in said.decode().splitlines() if str(mountpoint) in each]
    return line


@pytest.mark.parametrize("backend", mounting.BACKENDS, indirect=True)
def test_a_damaged_archive_is_not_mounted_if_it_is_verified_before(
    backend: str, whole: Packed, tmp_path: Path, mountpoint: Path
) -> None:
    archive = tmp_path / "damaged.ffr"
    archive.write_bytes(whole.archive.read_bytes())
    archives.damage(archive, "sizes/batches", 100_000)
    where = archive, mountpoint, "--backend", backend, "-o", "verify=before"
    done = mounting.command("mount", *where)
    assert done.returncode == 7
    assert done.stderr.count("\n") == 1
    assert "damaged.ffr" in done.stderr
    assert not mounting.is_mounted(mountpoint)


# ---- limits ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def huge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Make an archive with a file of more than 4 GiB, which is a hole but for a few places."""
    path = tmp_path_factory.mktemp("huge") / "huge.ffr"
    size = (1 << 32) + 123_457
    tree = Tree()
    tree.add_inode(stat.S_IFDIR | 0o755, 0, 0, 0)
    tree.add_entry(0, b"huge", tree.add_inode(stat.S_IFREG | 0o644, 0, 0, 0, size, 0))
    tree.blocks[1] = array("I", bytes(4 * -(-size // trees.BLOCK)))
    image = build(tree)[:]
    index = image + index_layout.trailer(image, crc32(image))
    header = handmade.sealed(2, [0, crc32(index)], [36, 36 + size])
    with path.open("wb") as file:
        file.write(header)
        for place in PLACES:
            os.pwrite(file.fileno(), struct.pack("<Q", place), 36 + place)
        os.pwrite(file.fileno(), index, 36 + size)
    yield path
    path.unlink()


PLACES = (0, 4096 * 3 + 5, (1 << 31) - 3, (1 << 32) - 4, (1 << 32) + 1000, (1 << 32) + 123_449)


def test_a_file_of_more_than_4_gib_is_read_at_any_place(huge: Path, tmp_path: Path) -> None:
    with mounting.mounted(huge, tmp_path / "mnt", backend="kernel") as path:
        assert (path / "huge").stat().st_size == (1 << 32) + 123_457
        with open(path / "huge", "rb", buffering=0) as file:
            for place in PLACES:
                assert os.pread(file.fileno(), 8, place) == struct.pack("<Q", place)
            assert os.pread(file.fileno(), 100, (1 << 32) + 123_457) == b""
            assert os.pread(file.fileno(), 5000, 1 << 30) == bytes(5000)


def test_large_attributes_are_served_and_larger_ones_are_left_out_with_a_warning(
    tmp_path: Path, mountpoint: Path
) -> None:
    draft = plant({b"file": b"x"})
    pairs = [(b"user.largest", b"y" * 65_535), (b"user.larger", b"z" * 65_536), (b"user.a", b"1")]
    draft.set_xattrs(draft.find(b"file"), pairs)
    (tmp_path / "a.ffr").write_bytes(draft.archive())
    log = tmp_path / "log"
    archive = tmp_path / "a.ffr"
    done = mounting.command("mount", archive, mountpoint, "--backend", "kernel", "--log", log)
    assert done.returncode == 0
    warning = "extended attributes that are too large for the kernel are left out: user.larger"
    assert warning in done.stderr
    assert warning in log.read_text()
    assert sorted(os.listxattr(mountpoint / "file")) == ["user.a", "user.largest"]
    assert os.getxattr(mountpoint / "file", "user.largest") == b"y" * 65_535
    assert os.getxattr(mountpoint / "file", "user.a") == b"1"


def test_many_attributes_are_all_served(tmp_path: Path) -> None:
    draft = plant({b"file": b"x", b"other": b"y"})
    pairs = [(b"user.%d" % number, b"%d" % number * (number % 9)) for number in range(400)]
    draft.set_xattrs(draft.find(b"file"), pairs)
    (tmp_path / "a.ffr").write_bytes(draft.archive())
    with mounting.mounted(tmp_path / "a.ffr", tmp_path / "mnt", backend="kernel") as path:
        found = {name.encode(): os.getxattr(path / "file", name) for name in
                 os.listxattr(path / "file")}  # fmt: skip
        assert found == dict(pairs)
        assert os.listxattr(path / "other") == []


def test_many_shards_are_as_many_devices(tmp_path: Path) -> None:
    """mount(2) has room for about 150 of them."""
    files = {f"{number:03d}": trees.content(5000, number) for number in range(300)}
    archives.pack(trees.plain_tree(tmp_path / "tree", files), tmp_path / "packed", shard_size=6000)
    assert len(list((tmp_path / "packed").iterdir())) > 300
    with mounting.mounted(tmp_path / "packed", tmp_path / "mnt", backend="kernel") as path:
        for name, content in files.items():
            assert (path / name).read_bytes() == content


def test_an_empty_archive_is_an_empty_folder(tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    archives.pack(tmp_path / "tree", tmp_path / "a.ffr")
    with mounting.mounted(tmp_path / "a.ffr", tmp_path / "mnt", backend="kernel") as path:
        assert os.listdir(path) == []


def test_a_small_archive_cannot_fill_the_disk_with_its_image(
    tmp_path: Path, mountpoint: Path
) -> None:
    """Thousands of symlinks share the bytes of one long target, which an image cannot."""
    tree = Tree()
    tree.add_inode(stat.S_IFDIR | 0o755, 0, 0, 0)
    for number in range(3000):
        inode = tree.add_inode(stat.S_IFLNK | 0o777, 0, 0, 0)
        tree.add_entry(0, b"%04d" % number, inode)
        tree.targets[inode] = b"x" * 4095
    image = bytearray(build(tree))
    tables = index_layout.parse("", bytes(image))
    inodes = tables.inodes.copy()
    inodes["data"][1:] = inodes["data"][1]
    at = index_layout.section_offset(tables, "inodes")
    image[at : at + inodes.nbytes] = inodes.tobytes()
    counts = list(struct.unpack_from("<10Q", image))
    counts[8] = 4096  # bytes of the texts: one target, and a multiple of 8
    texts = index_layout.section_offset(tables, "texts")
    names = index_layout.section_offset(tables, "names")
    small = struct.pack("<10Q", *counts) + image[80 : texts + 4096] + image[names:]
    index = small + index_layout.trailer(small, crc32(small))
    handmade.write_records(tmp_path / "a.ffr", [index])
    assert (tmp_path / "a.ffr").stat().st_size < 300_000
    done = mounting.command("mount", tmp_path / "a.ffr", mountpoint, "--backend", "kernel")
    assert done.returncode == 18
    assert "its image would have" in done.stderr
    with mounting.mounted(tmp_path / "a.ffr", mountpoint, backend="auto") as path:
        assert os.readlink(path / "2999") == "x" * 4095


# ---- leftovers ---------------------------------------------------------------------------------


def test_mounting_leaves_no_file_folder_or_process(
    whole: Packed, mountpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "temporary").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    done = mounting.command("mount", whole.archive, mountpoint, "--backend", "kernel")
    assert done.returncode == 0
    assert list((tmp_path / "temporary").iterdir()) == []
    assert mounting.processes(mountpoint) == []
    assert mounting.command("umount", mountpoint).returncode == 0
    assert not mounting.is_mounted(mountpoint)


def test_a_second_mount_by_mount8_of_the_same_archive_is_no_error(
    whole: Packed, mountpoint: Path
) -> None:
    """`mount -a` runs ffrecord-fuse again, because the mount table has another source."""
    arguments = whole.archive, mountpoint, "-o", "backend=kernel"
    assert mounting.python("ffrecord_fuse", *arguments).returncode == 0
    again = mounting.python("ffrecord_fuse", *arguments)
    assert again.returncode == 0
    assert "already mounted here, with its former options" in again.stderr
    for others in (
        "backend=native",
        "backend=kernel,noexec",
        f"backend=kernel,overlay={mountpoint}2",
    ):
        done = mounting.python("ffrecord_fuse", *arguments[:2], "-o", others)
        assert done.returncode == 18, others
    assert mounting.command("mount", *arguments).returncode == 18
    assert mounting.command("umount", mountpoint).returncode == 0
    assert not mounting.is_mounted(mountpoint)
