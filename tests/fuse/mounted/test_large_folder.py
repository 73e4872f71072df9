"""A folder of 100,000 entries is listed completely, in order, and from any position."""

from __future__ import annotations

import os
import random
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from ffrecord.archive.index.build import Tree, build
from ffrecord.format import index as index_layout
from ffrecord.format.checksum import crc32
from ffrecord.records.writer import FileWriter
from tests.fuse.mounted import mounting
from tests.fuse.mounted.mounting import BACKENDS, require
from tests.fuse.mounted.system import opened_folder

COUNT = 100_000
MTIME = 1_700_000_000_123_456_789
DT_DIR, DT_REG, DT_LNK = 4, 8, 10


# Sorted, as in an archive. They have many lengths, and most are not UTF-8.
NAMES = sorted(
    b"%06d" % (number * 7_919 % 999_983) + b"\xff" * (number % 40) for number in range(COUNT)
)


def kind(number: int) -> int:
    return {1: DT_LNK, 2: DT_DIR}.get(number % 10, DT_REG)


def content(number: int) -> bytes:
    return b"%d" % number if number % 3 else b""


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the archive that `pack_folder` would write, without creating the files."""
    tree = Tree()
    root = tree.add_inode(stat.S_IFDIR | 0o755, 0, 0, MTIME)
    folder = tree.add_inode(stat.S_IFDIR | 0o755, 0, 0, MTIME)
    tree.add_entry(root, b"large", folder)
    records: list[bytes] = []
    for number, name in enumerate(NAMES):
        length = len(content(number)) if kind(number) == DT_REG else 0
        mode = kind(number) << 12 | (0o777 if kind(number) == DT_LNK else 0o755)
        inode = tree.add_inode(mode, number, 7, MTIME + number, length)
        tree.add_entry(folder, name, inode)
        if kind(number) == DT_REG:
            tree.record[inode] = len(records)
            records.append(content(number))
        elif kind(number) == DT_LNK:
            tree.targets[inode] = b"to %d" % number
    image = build(tree)[:]
    path = tmp_path_factory.mktemp("large") / "large.ffr"
    with FileWriter(path, len(records) + 1) as writer:
        writer.write(records)
        writer.write_one(image + index_layout.trailer(image, crc32(image)))
    return path


@pytest.fixture(scope="module", params=BACKENDS)
def large(
    request: pytest.FixtureRequest, archive: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Path]:
    require(request.param)
    place = tmp_path_factory.mktemp(f"large-{request.param}")
    with mounting.mounted(archive, place / "mnt", backend=request.param) as path:
        yield path / "large"


def test_a_listing_has_every_entry_once_in_the_order_of_the_archive(large: Path) -> None:
    assert os.listdir(os.fsencode(large)) == NAMES


def test_a_listing_has_dots_first_and_the_kind_of_every_entry(large: Path) -> None:
    with opened_folder(large) as folder:
        found = folder.rest()
    assert [entry.name for entry in found[:2]] == [b".", b".."]
    assert [entry.kind for entry in found[:2]] == [DT_DIR, DT_DIR]
    assert [entry.name for entry in found[2:]] == NAMES
    assert [entry.kind for entry in found[2:]] == [kind(number) for number in range(COUNT)]
    assert len({entry.inode for entry in found[2:]}) == COUNT


def test_a_listing_continues_from_any_position(large: Path) -> None:
    chance = random.Random(1)
    with opened_folder(large) as folder:
        places = []
        names = []
        while True:
            places.append(folder.tell())
            entry = folder.read()
            if entry is None:
                break
            names.append(entry.name)
        assert len(set(places)) == len(names) + 1
        for at in [0, 1, 2, 1023, 1024, 1025, len(names), *chance.sample(range(len(names)), 300)]:
            folder.seek(places[at])
            found = [entry.name for entry in (folder.read(), folder.read()) if entry is not None]
            assert found == names[at : at + 2]


def test_positions_stay_valid_when_the_folder_is_opened_again(large: Path) -> None:
    """NFS servers need this: they open the folder for each request."""
    with opened_folder(large) as folder:
        for _ in range(54_321):
            folder.read()
        place = folder.tell()
    with opened_folder(large) as folder:
        folder.seek(place)
        assert [entry.name for entry in folder.rest()] == NAMES[54_319:]


def test_a_listing_begins_again_when_it_is_rewound(large: Path) -> None:
    with opened_folder(large) as folder:
        first = [folder.read() for _ in range(5_000)]
        folder.rewind()
        assert [folder.read() for _ in range(5_000)] == first


def test_entries_of_a_large_folder_have_their_own_attributes(large: Path) -> None:
    for number in random.Random(2).sample(range(COUNT), 2_000):
        place = os.path.join(os.fsencode(large), NAMES[number])
        found = os.lstat(place)
        assert (found.st_uid, found.st_mtime_ns) == (number, MTIME + number)
        assert found.st_mode >> 12 == kind(number)
        if kind(number) == DT_REG:
            with open(place, "rb") as file:
                assert file.read() == content(number)
        elif kind(number) == DT_LNK:
            assert os.readlink(place) == b"to %d" % number


def test_other_names_in_a_large_folder_are_missing(large: Path) -> None:
    for number in random.Random(3).sample(range(COUNT), 500):
        place = os.path.join(os.fsencode(large), NAMES[number])
        assert not os.path.lexists(place + b" ")
        assert not os.path.lexists(place[:-1])


def test_an_empty_folder_has_only_dots(large: Path) -> None:
    with opened_folder(large / os.fsdecode(NAMES[2])) as folder:
        assert [entry.name for entry in folder.rest()] == [b".", b".."]
