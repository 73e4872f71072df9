"""Damaged archives in `PackedFolder`: errors name the damaged file, other files can be read."""

from __future__ import annotations

import errno
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ffrecord import (
    FFRecordError,
    IndexChecksumError,
    PackedFolder,
    ReadFailedError,
    SampleChecksumError,
)
from tests.support import archives, handmade, trees
from tests.support.archives import all_right
from tests.support.modes import MODES
from tests.support.trees import BLOCK


@pytest.fixture
def copy(one_file: Path, tmp_path: Path) -> Path:
    """Return a copy of an archive, for tests that damage it."""
    return Path(shutil.copy(one_file, tmp_path / "copy.ffr"))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("when", ["before it is opened", "after"])
def test_a_damaged_small_file_is_an_error_and_the_others_are_read(
    when: str, mode: str, copy: Path, files: dict[str, bytes]
) -> None:
    name = "many/049"
    if when != "after":
        archives.damage(copy, name, 20)
    with PackedFolder(copy, mode=mode) as folder:
        if when == "after":
            archives.damage(copy, name, 20)
        calls: list[Callable[[], Any]] = [
            lambda: folder.read(name),
            lambda: folder.read([name, "sizes/one", "sizes/block"]),
            lambda: folder.read_range(name, 0, 1),
            lambda: list(folder.stream(name)),
            lambda: folder.open(name).read(1),
        ]
        for call in calls:
            with pytest.raises(SampleChecksumError, match=r"copy\.ffr") as caught:
                call()
            assert f" is damaged ({name}): " in str(caught.value)
            assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
        others = [other for other in files if other != name]
        assert handmade.as_bytes(folder.read(others)) == [files[other] for other in others]


@pytest.mark.parametrize("mode", MODES)
def test_the_other_blocks_of_a_damaged_large_file_are_read(
    mode: str, copy: Path, files: dict[str, bytes]
) -> None:
    name = "sizes/batches"
    data = files[name]
    archives.damage(copy, name, 3 * BLOCK + 777)
    with PackedFolder(copy, mode=mode) as folder:
        good = [
            (0, 3 * BLOCK), (0, 1), (3 * BLOCK - 1, 1), (4 * BLOCK, 1), (4 * BLOCK, 5 * BLOCK),
            (len(data) - 1, 100), (4 * BLOCK, len(data)), (BLOCK // 2, 2 * BLOCK),
        ]  # fmt: skip
        for offset, length in good:
            got = folder.read_range(name, offset, length).tobytes()
            assert got == data[offset : offset + length]
        bad = [
            (3 * BLOCK, 1), (3 * BLOCK + 777, 1), (3 * BLOCK - 1, 2), (4 * BLOCK - 1, 1),
            (0, len(data)), (4 * BLOCK - 1, 2),
        ]  # fmt: skip
        for offset, length in bad:
            with pytest.raises(SampleChecksumError, match=r"copy\.ffr"):
                folder.read_range(name, offset, length)
        with pytest.raises(SampleChecksumError):
            folder.read(name)
        with pytest.raises(SampleChecksumError):
            list(folder.stream(name))
        with folder.open(name) as file:
            file.seek(5 * BLOCK)
            assert file.read(1000) == data[5 * BLOCK : 5 * BLOCK + 1000]
            file.seek(3 * BLOCK + 5)
            with pytest.raises(SampleChecksumError):
                file.read(1)
            file.seek(2 * BLOCK)
            assert file.read(BLOCK) == data[2 * BLOCK : 3 * BLOCK]


def test_without_checks_damaged_bytes_are_returned(copy: Path, files: dict[str, bytes]) -> None:
    for name, byte in (("sizes/batches", 3 * BLOCK), ("many/049", 20)):
        archives.damage(copy, name, byte)
        due = bytearray(files[name])
        due[byte] ^= 1
        with PackedFolder(copy, check_data=False) as folder:
            assert folder.read(name).tobytes() == due
            assert folder.read_range(name, byte, 1).tobytes() == due[byte : byte + 1]
            assert folder.open(name).read() == due
            assert b"".join(piece.tobytes() for piece in folder.stream(name)) == due


def test_an_error_of_a_batch_has_the_name_that_was_requested(tmp_path: Path) -> None:
    """The file is in a later shard, and has a second name."""
    tree = trees.plain_tree(tmp_path / "t", {f"{i}": b"content %d" % i for i in range(20)})
    os.link(tree / "7", tree / "other")
    archives.pack(tree, tmp_path / "s", shard_size=40)
    archives.damage(tmp_path / "s", "7")
    with PackedFolder(tmp_path / "s") as folder:
        for names in (["3", "7", "9"], ["19", "0", "other"], [Path("7")]):
            with pytest.raises(SampleChecksumError) as caught:
                folder.read(names)
            assert caught.value.name in ("7", "other")
            assert caught.value.name in map(str, names)


def test_an_error_of_the_disk_names_the_file(little: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise ReadFailedError(str(little), errno.EIO, 77)

    with PackedFolder(little) as folder:
        monkeypatch.setattr("ffrecord.disk.source.Source.fill", fail)
        with pytest.raises(ReadFailedError, match=r"little\.ffr: reading d/b at byte 77") as caught:
            folder.read("d/b")
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


@pytest.fixture
def little(tmp_path: Path) -> Path:
    """Make a small archive that is quick to damage and to repair."""
    files = {"a": b"first", "d/b": b"second", "d/large": trees.content(2 * BLOCK), "e/": b""}
    tree = trees.plain_tree(tmp_path / "t", files)
    (tree / "link").symlink_to("d/b")
    archives.pack(tree, tmp_path / "little.ffr")
    return tmp_path / "little.ffr"


def test_a_damaged_index_is_an_index_checksum_error(little: Path) -> None:
    begin, end = archives.index_offsets(little)
    for offset in range(begin, end, 5):
        archives.flip(little, offset)
        with pytest.raises(IndexChecksumError, match=r"little\.ffr"):
            PackedFolder(little)
        archives.flip(little, offset)
    PackedFolder(little).close()


@pytest.mark.parametrize("legacy", [True, False])
def test_a_damaged_trailer_is_one_of_our_errors(legacy: bool, little: Path) -> None:
    if not legacy:
        parts = archives.take_apart(little)
        parts.before = b""
        parts.write(little)
    PackedFolder(little).close()
    _, begin = archives.index_offsets(little)
    for byte in range(24):
        archives.flip(little, begin + byte)
        is_checksum = 8 <= byte < 12
        with pytest.raises(IndexChecksumError if is_checksum else FFRecordError):
            PackedFolder(little)
        archives.flip(little, begin + byte)
    PackedFolder(little).close()


def test_damage_in_the_originals_index_does_no_harm_here(
    copy: Path, files: dict[str, bytes]
) -> None:
    begin, _ = archives.index_offsets(copy)
    archives.flip(copy, begin - 50)
    with PackedFolder(copy) as folder:
        assert all_right(folder, files, 1, 3)


TRUNCATED = """
import os, sys
from ffrecord import FFRecordError, PackedFolder
path, mode, size = sys.argv[1:]
folder = PackedFolder(path, mode=mode)
file = folder.open("sizes/batches")
file.read(10)
entries = len(folder.list(recursive=True))
os.truncate(path, int(size))
calls = [
    lambda: folder.read("sizes/one"),
    lambda: folder.read(["zzz after all", "sizes/blocks", "many/123", "sizes/batches"]),
    lambda: folder.read_range("sizes/batches", 1 << 20, 10),
    lambda: list(folder.stream("sizes/batches")),
    lambda: file.read(),
]
for call in calls:
    try:
        call()
        print("read")
    except FFRecordError as error:
        print("ours")
assert len(folder.list(recursive=True)) == entries
assert folder.stat("sizes/one").st_size == 1
print("alive")
"""


@pytest.mark.parametrize("mode", ["auto", "aio", "buffered"])
@pytest.mark.parametrize("size", [0, 500_000])
def test_truncating_an_open_archive_leads_to_an_error_of_ours(
    size: int, mode: str, copy: Path
) -> None:
    process = handmade.python(TRUNCATED, str(copy), mode, str(size))
    out, err = process.communicate(timeout=600)
    assert process.returncode == 0, err
    assert out.split() == ["ours"] * 5 + ["alive"]
