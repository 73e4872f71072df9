"""Damage in an archive: an error for the damaged bytes, one log line, right data otherwise."""

from __future__ import annotations

import contextlib
import errno
import os
import pickle
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from ffrecord import PackedFolder
from tests.fuse.mounted import mounting
from tests.fuse.mounted.mounting import fails_with, stats
from tests.support import archives, handmade, trees
from tests.support.trees import BLOCK

SIZES = {
    "small": 5_000,
    "small too": 5_000,
    "a block": BLOCK,
    "large": 5 * BLOCK + 100,
    "large too": 5 * BLOCK + 100,
    "last block": 2 * BLOCK + 1,
    "folder/fine": 7_000,
}
CONTENTS = {name: trees.content(size, number) for number, (name, size) in enumerate(SIZES.items())}
# The offset of the flipped byte in each file.
DAMAGE = {"small": 77, "a block": BLOCK - 1, "large": 2 * BLOCK + 3, "last block": 2 * BLOCK}


def damaged_archive(tmp_path: Path, **options: int) -> Path:
    archive = tmp_path / "tree.ffr"
    archives.pack(trees.plain_tree(tmp_path / "tree", CONTENTS), archive, **options)
    for name, byte in DAMAGE.items():
        archives.damage(archive, name, byte)
    return archive


def flipped(name: str) -> bytes:
    content = bytearray(CONTENTS[name])
    content[DAMAGE[name]] ^= 1
    return bytes(content)


@contextlib.contextmanager
def opened(path: Path) -> Iterator[int]:
    """Open a file without the page cache, so that every read reaches the daemon."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
    try:
        yield fd
    finally:
        os.close(fd)


def damage_lines(log: Path) -> list[str]:
    return [line for line in log.read_text().splitlines() if " damaged: " in line]


@mounting.BY_FUSE
@pytest.mark.parametrize(
    ("verify", "form"),
    [("first", {}), ("first", {"shard_size": 300_000}), ("always", {})],
    ids=["first", "first, shards", "always"],
)
def test_only_reads_of_damaged_blocks_fail(
    tmp_path: Path, verify: str, form: dict[str, int], backend: str
) -> None:
    damaged, log = damaged_archive(tmp_path, **form), tmp_path / "log"
    with mounting.mounted(
        damaged, tmp_path / "mnt", f"verify={verify}", backend=backend, log=log
    ) as path:
        for name in DAMAGE:
            for _ in range(2):
                with fails_with(errno.EIO):
                    (path / name).read_bytes()
        check_blocks(path)
        for name in CONTENTS.keys() - DAMAGE.keys():
            assert (path / name).read_bytes() == CONTENTS[name]
        assert stats(path)["damaged_reads"] >= 2 * len(DAMAGE)
        assert stats(path)["errors"] == 0
        check_log(log, damaged)


def check_blocks(path: Path) -> None:
    """Read every block separately, through the page cache and without it."""
    for name, at in DAMAGE.items():
        content = CONTENTS[name]
        with open(path / name, "rb", buffering=0) as cached, opened(path / name) as direct:
            for offset in range(0, len(content), BLOCK):
                for fd in (cached.fileno(), direct):
                    if offset <= at < offset + BLOCK:
                        with fails_with(errno.EIO):
                            os.pread(fd, 100, offset)
                    else:
                        found = os.pread(fd, BLOCK, offset)
                        assert found == content[offset : offset + BLOCK]


def check_log(log: Path, archive: Path) -> None:
    """Check that the log has one line for each damaged file, however often it was read."""
    with PackedFolder(archive) as packed:
        due = {name: packed.record(name) for name in DAMAGE}
    lines = damage_lines(log)
    assert len(lines) == len(DAMAGE), lines
    for name, record in due.items():
        assert any(re.search(rf"/{name}\b.*record {record}\b", line) for line in lines), lines


def test_without_verification_the_bytes_are_served_unchanged(tmp_path: Path, backend: str) -> None:
    log = tmp_path / "log"
    with mounting.mounted(
        damaged_archive(tmp_path), tmp_path / "mnt", "verify=off", backend=backend, log=log
    ) as path:
        for name, content in CONTENTS.items():
            due = flipped(name) if name in DAMAGE else content
            assert (path / name).read_bytes() == due
        if backend != "kernel":
            assert stats(path)["verified_blocks"] == stats(path)["damaged_reads"] == 0
    assert damage_lines(log) == []


@mounting.BY_FUSE
@pytest.mark.parametrize(("verify", "times"), [("first", 1), ("always", 3)])
def test_a_block_is_verified_at_the_first_read_or_at_every_read(
    tmp_path: Path, verify: str, times: int, backend: str
) -> None:
    archives.pack(trees.plain_tree(tmp_path / "tree", CONTENTS), tmp_path / "tree.ffr")
    with mounting.mounted(
        tmp_path / "tree.ffr", tmp_path / "mnt", f"verify={verify},workers=1", backend=backend
    ) as path:
        for _ in range(3):
            for name in ("small", "large"):
                with opened(path / name) as fd:
                    for offset in range(0, SIZES[name], BLOCK):
                        found = os.pread(fd, BLOCK, offset)
                        assert found == CONTENTS[name][offset : offset + BLOCK]
        assert stats(path)["verified_blocks"] == times * (1 + 6)


@mounting.BY_FUSE
def test_damage_to_a_large_file_of_the_original_is_an_error_and_a_line_in_the_log(
    tmp_path: Path, backend: str
) -> None:
    """The file has no block checksums, so the mount cannot know which block is damaged."""
    archive, log = tmp_path / "original.ffr", tmp_path / "log"
    source = trees.plain_tree(tmp_path / "tree", {"fine": CONTENTS["large too"]})
    (source / "large").write_bytes(CONTENTS["large"])
    write_original(archive, {path.name: path.read_bytes() for path in source.iterdir()})
    archives.damage(archive, "large", 2 * BLOCK + 3)
    with mounting.mounted(archive, tmp_path / "mnt", backend=backend, log=log) as path:
        for _ in range(3):
            with fails_with(errno.EIO):
                (path / "large").read_bytes()
        assert (path / "fine").read_bytes() == CONTENTS["large too"]
        assert stats(path)["damaged_reads"] >= 3
        (line,) = damage_lines(log)
        record = int(os.getxattr(path / "large", "user.ffrecord.record"))
        assert re.search(rf"/large\b.*record {record}\b", line)


def write_original(path: Path, files: dict[str, bytes]) -> None:
    structure = {name: number for number, name in enumerate(files)}
    handmade.write_records(path, [*files.values(), b"piouhjgbr" + pickle.dumps(structure)])


def test_a_damaged_index_is_not_mounted(tmp_path: Path) -> None:
    archives.pack(trees.plain_tree(tmp_path / "tree", CONTENTS), tmp_path / "tree.ffr")
    image_at, _ = archives.index_offsets(tmp_path / "tree.ffr")
    archives.flip(tmp_path / "tree.ffr", image_at + 500)
    (tmp_path / "mnt").mkdir()
    with mounting.released(tmp_path / "mnt"):
        done = mounting.command("mount", tmp_path / "tree.ffr", tmp_path / "mnt")
        assert done.returncode in (15, 16)
        assert done.stderr.count("\n") == 1
        assert not mounting.is_mounted(tmp_path / "mnt")
