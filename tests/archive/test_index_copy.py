"""Copying an index during its checks: nothing is read too early, and no failure is lost."""

from __future__ import annotations

import os
import struct
import threading
import time
import zlib
from pathlib import Path

import pytest

from ffrecord import (
    IndexChecksumError,
    IndexStructureError,
    PackedFolder,
    ReadFailedError,
    pack_folder,
)
from ffrecord.archive import index_copy
from ffrecord.archive.index_copy import ImageCopy
from ffrecord.records.reader import FileReader
from ffrecord.records.table import Table
from tests.support import handmade


@pytest.fixture(params=["in a thread", "without a thread"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(index_copy, "ALONE", 0 if request.param == "in a thread" else 1 << 40)
    monkeypatch.setattr(index_copy, "CHUNK", 4096)
    return str(request.param)


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    folder = tmp_path / "folder"
    for number in range(40):
        below = folder / f"{number:02}"
        below.mkdir(parents=True)
        for file in range(30):
            (below / f"file {file}").write_bytes(b"%d of %d" % (file, number))
    pack_folder(folder, tmp_path / "a.ffr")
    return tmp_path / "a.ffr"


def image_of(archive: Path) -> bytes:
    """Return the image of an index. The trailer follows the image, and has its length."""
    raw = archive.read_bytes()
    length = int.from_bytes(raw[-24:-16], "little")
    return raw[-24 - length : -24]


def test_the_copy_is_the_image_and_its_checksum_is_right(archive: Path, way: str) -> None:
    image = image_of(archive)

    def copy_to(fd: int, offset: int, length: int) -> None:
        os.write(fd, image[offset : offset + length])

    copy = ImageCopy("a.ffr", copy_to, len(image))
    assert copy.finish() == zlib.crc32(image)
    assert copy.image[:] == image


def test_a_part_is_copied_after_waiting_for_it(archive: Path, way: str) -> None:
    image = image_of(archive)
    allowed = threading.Semaphore(0 if way == "in a thread" else 1 << 20)

    def copy_to(fd: int, offset: int, length: int) -> None:
        if offset:  # the counts may be copied immediately
            assert allowed.acquire(timeout=600)
        os.write(fd, image[offset : offset + length])

    copy = ImageCopy("a.ffr", copy_to, len(image))
    allowed.release(1 << 20)
    for name, part in copy._parts.items():
        copy.wait_for(name)
        assert copy.image[part.begin : part.end] == image[part.begin : part.end]


def test_rows_are_copied_after_waiting_for_them(archive: Path, way: str) -> None:
    image = image_of(archive)

    def copy_to(fd: int, offset: int, length: int) -> None:
        os.write(fd, image[offset : offset + length])

    copy = ImageCopy("a.ffr", copy_to, len(image))
    for name, part in copy._parts.items():
        for rows in range(0, (part.end - part.begin) // part.row, 97):
            copy.wait_for(name, rows)
            end = part.begin + rows * part.row
            assert copy.image[part.begin : end] == image[part.begin : end]
    assert sum(part.end - part.begin for part in copy._parts.values()) == len(image)


def test_a_copy_that_is_left_early_stops(archive: Path, way: str) -> None:
    """The copying of a refused index stops soon, and leaves no descriptor and no thread."""
    image = image_of(archive)
    copied: list[int] = []
    made: list[ImageCopy] = []

    def copy_to(fd: int, offset: int, length: int) -> None:
        until = time.monotonic() + 600
        while way == "in a thread" and offset and time.monotonic() < until:
            if made and made[0]._stopped:  # the checks have failed
                break
            time.sleep(0.001)
        copied.append(length)
        os.write(fd, image[offset : offset + length])

    before = handmade.open_descriptors()
    with ImageCopy("a.ffr", copy_to, len(image)) as copy:
        made.append(copy)
    copy.image.close()
    assert handmade.open_descriptors() == before
    assert "ffrecord-index" not in {thread.name for thread in threading.enumerate()}
    if way == "in a thread":
        assert len(copied) <= 2


def sparse_archive(path: Path, counts: tuple[int, ...], length: int, crc: int | None) -> Path:
    """Write an archive whose image is counts and a hole, with the right checksum or with `crc`."""
    image = struct.pack("<10Q", *counts)
    right = zlib.crc32(image)
    for _ in range((length - len(image)) >> 20):
        right = zlib.crc32(bytes(1 << 20), right)
    right = zlib.crc32(bytes((length - len(image)) % (1 << 20)), right)
    trailer = struct.pack("<QII8s", length, right if crc is None else crc, 1, b"FFRINDEX")
    header = handmade.sealed(1, [0], [24])
    with path.open("wb") as file:
        file.write(header + image)
        file.seek(len(header) + length)
        file.write(trailer)
    return path


LENGTH = 80 + (56 << 20)
NONSENSE = {
    "nothing": (0,) * 10,
    "names without entries": (1, 0, 0, 1, 0, 0, 0, 0, 0, LENGTH - 80 - 32 - 24),
    "texts without users": (1, 0, 0, 1, 0, 0, 0, 0, LENGTH - 80 - 32 - 24, 0),
    "inodes without names": ((LENGTH - 80) // 32, *(0,) * 9),
    "hashes without entries": (1, 0, (LENGTH - 80 - 32 - 24) // 8, 1, *(0,) * 6),
    "attributes without inodes": (1, 0, 0, (LENGTH - 80 - 32) // 24, *(0,) * 6),
}


@pytest.mark.parametrize("what", NONSENSE)
@pytest.mark.parametrize("crc", [None, 0x12345678])
def test_impossible_counts_are_refused_before_anything_is_copied(
    what: str, crc: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hole takes no space on the disk, but a copy would take its whole length in memory."""
    real = Table.copy_unchecked
    copied: list[int] = []

    def recording(self: Table, index: int, offset: int, length: int, fd: int) -> None:
        copied.append(length)
        real(self, index, offset, length, fd)

    monkeypatch.setattr(Table, "copy_unchecked", recording)
    path = sparse_archive(tmp_path / "sparse.ffr", NONSENSE[what], LENGTH, crc)
    assert path.stat().st_blocks * 512 < 1 << 20
    error = IndexStructureError if crc is None else IndexChecksumError
    with pytest.raises(error, match=r"sparse\.ffr"):
        PackedFolder(path)
    assert copied == [80]


def test_a_hole_of_a_terabyte_is_not_read_for_its_checksum(tmp_path: Path) -> None:
    """Computing the checksum, to tell damage from an attack, must not take hours."""
    path = tmp_path / "sparse.ffr"
    header, length = handmade.sealed(1, [0], [24]), 1 << 42
    with path.open("wb") as file:
        file.truncate(len(header) + length + 24)
        file.write(header)
        file.seek(len(header) + length)
        file.write(struct.pack("<QII8s", length, 0, 1, b"FFRINDEX"))
    with pytest.raises(IndexStructureError, match=r"sparse\.ffr"):
        PackedFolder(path)


def test_a_folder_opened_with_small_pieces_has_all_its_files(archive: Path, way: str) -> None:
    with PackedFolder(archive) as folder:
        assert len(folder) == 1200
        names = list(folder)
        contents = folder.read(names)
    assert {name: bytes(content) for name, content in zip(names, contents, strict=True)} == {
        f"{number:02}/file {file}": b"%d of %d" % (file, number)
        for number in range(40)
        for file in range(30)
    }


@pytest.mark.parametrize("where", [0, 7, 80, 1000, -1, -500])
def test_damage_anywhere_is_a_checksum_error(archive: Path, way: str, where: int) -> None:
    raw = bytearray(archive.read_bytes())
    length = len(image_of(archive))
    raw[len(raw) - 24 - length + where % length] ^= 0x40
    archive.write_bytes(raw)
    with pytest.raises(IndexChecksumError, match=r"a\.ffr"):
        PackedFolder(archive)


def test_a_failed_read_is_raised_when_the_archive_is_opened(
    archive: Path, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Table.copy_unchecked
    last = FileReader(archive).record_size(1200)

    def fails(self: Table, index: int, offset: int, length: int, fd: int) -> None:
        if offset > last - 20_000:
            raise ReadFailedError("the disk", 5, offset)
        real(self, index, offset, length, fd)

    monkeypatch.setattr(Table, "copy_unchecked", fails)
    before = handmade.open_descriptors()
    with pytest.raises(ReadFailedError, match="the disk"):
        PackedFolder(archive)
    assert handmade.open_descriptors() == before
