"""Make archives for tests: pack quietly, damage a chosen byte, recompute the checksums."""

from __future__ import annotations

import os
import random
import struct
import warnings
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from ffrecord import FileReader, PackedFolder, PackReport, SkippedWarning, pack_folder
from ffrecord.format import index as index_layout
from tests.support import handmade

TRAILER = struct.Struct("<QII8s")


def pack(folder: Path, out: Path, **options: Any) -> PackReport:
    """Pack a folder without warnings about skipped files."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SkippedWarning)
        return pack_folder(folder, out, **options)


def spoil(path: Path, data: st.DataObject) -> None:
    """Damage a file at a random place: flip a byte, write zeros, or cut off its end."""
    content = bytearray(path.read_bytes())
    at = data.draw(st.integers(0, len(content) - 1))
    kind = data.draw(st.sampled_from(["flip", "zeros", "cut"]))
    if kind == "flip":
        content[at] ^= data.draw(st.integers(1, 255))
    elif kind == "zeros":
        content[at : at + 300] = bytes(len(content[at : at + 300]))
    else:
        del content[at:]
    path.write_bytes(content)


def flip(path: Path, offset: int) -> None:
    """Flip one bit of the byte at `offset`; a negative offset counts from the end."""
    with open(path, "r+b") as file:
        file.seek(offset, os.SEEK_SET if offset >= 0 else os.SEEK_END)
        at = file.tell()
        (byte,) = file.read(1)
        file.seek(at)
        file.write(bytes([byte ^ 1]))


def damage(archive: Path, name: str, byte: int = 0) -> None:
    """Damage one byte of a file in an archive, which may have shards."""
    with PackedFolder(archive) as folder:
        record = folder.record(name)
        reader = folder.reader
        for number, path in enumerate(reader.fnames):
            count = len(reader.get_checksums(number))
            if record < count:
                flip(Path(path), int(reader.get_offsets(number)[record]) + byte)
                return
            record -= count
    raise AssertionError(f"no file of the archive contains {name}")


@dataclass
class Parts:
    """Parts of an archive that is one file."""

    files: list[bytes]
    before: bytes
    image: bytes
    trailer: bytes

    def write(self, path: Path) -> Path:
        """Write the archive with correct checksums for the current parts."""
        crc = zlib.crc32(self.image)
        self.trailer = TRAILER.pack(len(self.image), crc, 1, b"FFRINDEX")
        return handmade.write_records(path, [*self.files, self.before + self.image + self.trailer])


def take_apart(path: Path) -> Parts:
    with FileReader(path) as reader:
        *files, index = handmade.as_bytes(reader.read(range(reader.n)))
    trailer = index[-TRAILER.size :]
    length = TRAILER.unpack(trailer)[0]
    start = len(index) - len(trailer) - length
    return Parts(files, index[:start], index[start : -len(trailer)], trailer)


def index_offsets(path: Path) -> tuple[int, int]:
    """Return the offsets of the index's image and trailer in an archive of one file."""
    size = path.stat().st_size
    parts = take_apart(path)
    return size - TRAILER.size - len(parts.image), size - TRAILER.size


def spoil_image(path: Path, change: Callable[[bytearray], object]) -> None:
    """Change an archive's image, and correct every checksum."""
    parts = take_apart(path)
    image = bytearray(parts.image)
    change(image)
    parts.image = bytes(image)
    parts.write(path)


def table_offset(image: bytes | bytearray, name: str) -> int:
    """Return the offset of a table in an image."""
    return index_layout.section_offset(index_layout.parse("", bytes(image)), name)


def set_owners(path: Path, uid: int, gid: int) -> None:
    """Change the owner and group of everything in an archive."""

    def change(image: bytearray) -> None:
        at = table_offset(image, "attributes")
        size = index_layout.ATTRIBUTES.itemsize
        for row in range(len(index_layout.parse("", bytes(image)).attributes)):
            struct.pack_into("<II", image, at + size * row + 4, uid, gid)

    spoil_image(path, change)


def all_right(folder: PackedFolder, due: dict[str, bytes], seed: int, turns: int = 15) -> bool:
    """Read random files in every possible way; return True if all bytes are as expected."""
    generator = random.Random(seed)
    names = sorted(due)
    for _ in range(turns):
        some = generator.choices(names, k=generator.choice([1, 2, 3, 40]))
        if handmade.as_bytes(folder.read(some)) != [due[name] for name in some]:
            return False
        name = some[0]
        at, count = generator.randrange(len(due[name]) + 1), generator.randrange(300_000)
        if folder.read_range(name, at, count).tobytes() != due[name][at : at + count]:
            return False
        with folder.open(name) as file:
            file.seek(at)
            if file.read(count) != due[name][at : at + count]:
                return False
        if folder.stat(name).st_size != len(due[name]) or name not in folder:
            return False
    return len(folder.list(recursive=True)) >= len(due)
