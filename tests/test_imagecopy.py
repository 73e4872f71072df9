"""Copying an index beside its checks: nothing is looked at too early, and no failure is lost."""

from __future__ import annotations

import os
import threading
import zlib
from pathlib import Path

import pytest

from ffrecord import IndexChecksumError, PackedFolder, ReadFailedError, imagecopy, pack_folder
from ffrecord.imagecopy import ImageCopy
from ffrecord.reader import FileReader
from tests import handmade


@pytest.fixture(params=["in a thread", "alone"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(imagecopy, "ALONE", 0 if request.param == "in a thread" else 1 << 40)
    monkeypatch.setattr(imagecopy, "CHUNK", 4096)
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
    """By hand: the trailer says how long it is, and it ends where the trailer begins."""
    raw = archive.read_bytes()
    length = int.from_bytes(raw[-24:-16], "little")
    return raw[-24 - length : -24]


def test_the_copy_is_the_image_and_its_checksum_is_right(archive: Path, way: str) -> None:
    image = image_of(archive)

    def copy_to(fd: int, offset: int, length: int) -> None:
        os.write(fd, image[offset : offset + length])

    copy = ImageCopy(copy_to, len(image))
    assert copy.finish() == zlib.crc32(image)
    assert copy.image[:] == image


def test_a_part_is_there_once_it_was_waited_for(archive: Path, way: str) -> None:
    image = image_of(archive)
    allowed = threading.Semaphore(0 if way == "in a thread" else 1 << 20)

    def copy_to(fd: int, offset: int, length: int) -> None:
        if offset:  # the counts may be copied at once
            assert allowed.acquire(timeout=60)
        os.write(fd, image[offset : offset + length])

    copy = ImageCopy(copy_to, len(image))
    allowed.release(1 << 20)
    for name, part in copy._parts.items():
        copy.wait_for(name)
        assert copy.image[part.begin : part.end] == image[part.begin : part.end]


def test_rows_are_there_once_they_were_waited_for(archive: Path, way: str) -> None:
    image = image_of(archive)

    def copy_to(fd: int, offset: int, length: int) -> None:
        os.write(fd, image[offset : offset + length])

    copy = ImageCopy(copy_to, len(image))
    for name, part in copy._parts.items():
        for rows in range(0, (part.end - part.begin) // part.row, 97):
            copy.wait_for(name, rows)
            end = part.begin + rows * part.row
            assert copy.image[part.begin : end] == image[part.begin : end]
    assert sum(part.end - part.begin for part in copy._parts.values()) == len(image)


def test_a_folder_opened_that_way_has_all_its_files(archive: Path, way: str) -> None:
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
def test_damage_anywhere_is_a_wrong_checksum(archive: Path, way: str, where: int) -> None:
    raw = bytearray(archive.read_bytes())
    length = len(image_of(archive))
    raw[len(raw) - 24 - length + where % length] ^= 0x40
    archive.write_bytes(raw)
    with pytest.raises(IndexChecksumError, match=r"a\.ffr"):
        PackedFolder(archive)


def test_a_read_that_fails_is_raised_where_the_archive_is_opened(
    archive: Path, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = FileReader.copy_unchecked
    last = FileReader(archive).record_size(1200)

    def fails(self: FileReader, index: int, offset: int, length: int, fd: int) -> None:
        if offset > last - 20_000:
            raise ReadFailedError("the disk", 5, offset)
        real(self, index, offset, length, fd)

    monkeypatch.setattr(FileReader, "copy_unchecked", fails)
    before = handmade.open_descriptors()
    with pytest.raises(ReadFailedError, match="the disk"):
        PackedFolder(archive)
    assert handmade.open_descriptors() == before
