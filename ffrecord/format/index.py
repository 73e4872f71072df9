"""Bytes of the index record of a packed folder. docs/format.md is the specification.

All numbers are little endian:

    +--------------------------------+-----------------------------+-----------------------------+
    | b"piouhjgbr" + pickle          | image                       | trailer                     |
    | (the original's; may be left   | counts and tables, below    | length u64, crc u32,        |
    | out)                           |                             | version u32, b"FFRINDEX"    |
    +--------------------------------+-----------------------------+-----------------------------+
                                      <--------- length ---------->                 end of record

`crc` is the CRC-32 of the image. The image begins with ten counts (u64 each): the rows of the eight
tables in order, then the bytes of the two texts. (`hashes` and `hashed` are one table.) The tables
and texts follow. Each begins at a multiple of 8 bytes, with zeros in front where needed. The
positions of the tables are not stored: they follow from the counts.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ffrecord.aliases import Bytes
from ffrecord.errors import IndexStructureError

Buffer: TypeAlias = "bytes | mmap.mmap"
Rows: TypeAlias = npt.NDArray[np.void]

LEGACY_MAGIC = b"piouhjgbr"
MAGIC = b"FFRINDEX"
VERSION = 1
TRAILER = struct.Struct("<QII8s")
INDEX_NAME = "index.ffr"
"""Name of the index file beside the shards of a sharded archive."""

WAY_OUT = (
    "restore the archive from a copy, or pack the folder again; `ffrecord salvage` saves the "
    "contents of its files, without names"
)
"""The advice in messages about a wrong index."""

BLOCK = 128 << 10
"""Bytes of a block. A file larger than this has a CRC-32 for every block; the last may be short."""

NO_ENTRY = 0xFFFFFFFF
LONGEST_NAME = 255
LONGEST_TARGET = 4095
LARGEST_XATTR = 1 << 16
LONGEST_XATTR = LONGEST_NAME + LARGEST_XATTR
DEEPEST = 4096
"""Most levels of folders. A path may be longer than the 4095 bytes that a system call accepts."""

INODE = np.dtype([
    ("data", "<u8"),  # file: record; folder: first entry; symlink: offset of its target in texts
    ("length", "<u8"),  # file: bytes; folder: entries; symlink: bytes of its target
    ("mtime", "<i8"),  # nanoseconds since 1970
    ("attributes", "<u4"),  # row of `attributes`
    ("entry", "<u4"),  # first entry that names the inode; NO_ENTRY for the root
])  # fmt: skip
ENTRY = np.dtype([
    ("name_end", "<u8"),  # end of its name; names lie end to end in the order of the entries
    ("inode", "<u4"),
    ("parent", "<u4"),  # inode of the folder that contains the entry
])  # fmt: skip
HASH = np.dtype("<u4")
ATTRIBUTES = np.dtype([
    ("mode", "<u4"),  # as st_mode: kind and permissions
    ("uid", "<u4"),
    ("gid", "<u4"),
    ("links", "<u4"),  # entries that name the inode; folder: 2 plus one for each folder in it
    ("xattr", "<u4"),  # first row of its extended attributes
    ("xattrs", "<u4"),  # number of its extended attributes
])  # fmt: skip
XATTR = np.dtype([
    ("text", "<u8"),  # offset of its name in texts; the value follows the name
    ("name", "<u4"),  # bytes of the name
    ("value", "<u4"),  # bytes of the value
])  # fmt: skip
LARGE = np.dtype([
    ("inode", "<u4"),
    ("zero", "<u4"),  # padding
    ("first", "<u8"),  # row of `blocks` with the checksum of the file's first block
])  # fmt: skip
CHECKSUM = np.dtype("<u4")
SHARD = np.dtype([
    ("records", "<u8"),
    ("text", "<u8"),  # offset of its file name in texts
    ("name", "<u4"),  # bytes of the file name
    ("crc", "<u4"),  # first four bytes of its file: the checksum of its header
])  # fmt: skip
TEXT = np.dtype("u1")

_COUNTS = struct.Struct("<10Q")
_SECTIONS = (  # in the order of the image: name, type of a row, position of its count
    ("inodes", INODE, 0),
    ("entries", ENTRY, 1),
    ("hashes", HASH, 2),
    ("hashed", HASH, 2),
    ("attributes", ATTRIBUTES, 3),
    ("xattrs", XATTR, 4),
    ("large", LARGE, 5),
    ("blocks", CHECKSUM, 6),
    ("shards", SHARD, 7),
    ("texts", TEXT, 8),
    ("names", TEXT, 9),
)
COUNTS_SIZE = _COUNTS.size
_PARTS = {  # the first section of each part, and the bytes of one of its rows
    "inodes": INODE.itemsize,
    "entries": ENTRY.itemsize,
    "hashes": HASH.itemsize,
    "attributes": ATTRIBUTES.itemsize,
    "xattrs": XATTR.itemsize,
    "large": LARGE.itemsize,
    "names": 1,
}
_MOST_ROWS = 0xFFFFFFFF  # for tables whose row numbers are u32
_COUNTED_BY_U32 = ("inodes", "entries", "attributes", "xattrs")


@dataclass(frozen=True, slots=True)
class Image:
    """Tables of an index, as arrays over the bytes of its image.

    `hashes` and `hashed` are the two columns of one table, sorted by the first. `hashes` has the
    CRC-32 of an entry's whole path (names joined by "/"), `hashed` has the entry's number.
    """

    inodes: Rows
    entries: Rows
    hashes: npt.NDArray[np.uint32]
    hashed: npt.NDArray[np.uint32]
    attributes: Rows
    xattrs: Rows
    large: Rows
    blocks: npt.NDArray[np.uint32]
    shards: Rows
    texts: Bytes
    names: Bytes
    padding: tuple[Bytes, ...] = ()
    """Bytes between the tables. `check` requires that they are zeros."""


@dataclass(frozen=True, slots=True)
class Trailer:
    """Length and CRC-32 of an image, from the last bytes of the index record."""

    length: int
    crc: int


def is_index(size: int, read: Callable[[int, int], bytes]) -> bool:
    """Return True if a record of `size` bytes is an index, ours or the original FFRecord's.

    `read(offset, length)` returns bytes of the record.
    """
    start, end = min(size, len(LEGACY_MAGIC)), min(size, len(MAGIC))
    return read(0, start) == LEGACY_MAGIC or read(size - end, end) == MAGIC


def parse_trailer(path: str, raw: bytes, record_size: int) -> Trailer | None:
    """Return the trailer in a record's last bytes; None if the record is not an index of ours."""
    if len(raw) != TRAILER.size or not raw.endswith(MAGIC):
        return None
    length, crc, version, _ = TRAILER.unpack(raw)
    if version != VERSION:
        raise IndexStructureError(
            f"{path}: the index has version {version}, but this library reads only version "
            f"{VERSION}; upgrade ffrecord"
        )
    if not _COUNTS.size <= length <= record_size - TRAILER.size:
        raise _damaged(
            path, f"its image claims {length} bytes, but its record has {record_size} bytes"
        )
    return Trailer(length, crc)


def trailer(image: Buffer, crc: int) -> bytes:
    return TRAILER.pack(len(image), crc, VERSION, MAGIC)


def parse(path: str, image: Buffer) -> Image:
    """Return the tables of an image whose counts fit its length. `check` checks the rest."""
    if len(image) < _COUNTS.size:
        raise _damaged(
            path, f"it is {len(image)} bytes long; the shortest possible one has {_COUNTS.size}"
        )
    places = _places(path, image[: _COUNTS.size], len(image))
    arrays: dict[str, Any] = {
        name: np.frombuffer(image, dtype, *places[name]) for name, dtype, _ in _SECTIONS
    }
    ends = [places[name][1] + rows.nbytes for name, rows in arrays.items()]
    padding = tuple(np.frombuffer(image, TEXT, _aligned(end) - end, end) for end in ends if end % 8)
    return Image(**arrays, padding=padding)


def _places(path: str, raw: bytes, length: int) -> dict[str, tuple[int, int]]:
    """Return the number of rows and the offset of each section.

    Together the sections must fill `length` bytes. A file with holes can claim any length at no
    cost, so no section may have more rows than the other sections can use.
    """
    counts = _COUNTS.unpack(raw)
    inodes, entries, _, _, xattrs, _, _, shards, *_ = counts
    most = {
        "inodes": entries + 1,
        "hashes": entries,
        "attributes": inodes,
        "large": inodes,
        "texts": LONGEST_TARGET * inodes + LONGEST_XATTR * xattrs + LONGEST_NAME * shards,
        "names": LONGEST_NAME * entries,
    }
    at = _COUNTS.size
    places = {}
    for name, dtype, which in _SECTIONS:
        count = counts[which]
        end = at + dtype.itemsize * count
        if end > length or (count > _MOST_ROWS and name in _COUNTED_BY_U32):
            raise _damaged(
                path, f"its table {name} claims {count} rows, up to byte {end} of {length}"
            )
        if count > most.get(name, count):
            raise _damaged(
                path,
                f"its table {name} claims {count} rows, but at most {most[name]} can be in use",
            )
        places[name] = (count, at)
        at = _aligned(end)
    if at != length:
        raise _damaged(path, f"its tables need {at} bytes, but it is {length} bytes long")
    return places


def _damaged(path: str, what: str) -> IndexStructureError:
    """Return the error for an index whose lengths or counts are wrong."""
    return IndexStructureError(f"{path}: the index is damaged: {what}; {WAY_OUT}")


def blank(rows: Mapping[str, int]) -> tuple[mmap.mmap, Image]:
    """Return a new image, all zeros, and its tables, which the caller fills in.

    Args:
        rows: number of rows of each section; `hashes` also counts the rows of `hashed`.
    """
    counts = [0] * 10
    at = _COUNTS.size
    for name, dtype, which in _SECTIONS:
        counts[which] = rows.get(name, counts[which])
        at = _aligned(at + dtype.itemsize * counts[which])
    image = mmap.mmap(-1, at, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    image[: _COUNTS.size] = _COUNTS.pack(*counts)
    return image, parse("a new index", image)


def section_offset(image: Image, name: str) -> int:
    """Return the offset of a section in the image."""
    at = _COUNTS.size
    for section, dtype, _ in _SECTIONS:
        if section == name:
            return at
        at = _aligned(at + dtype.itemsize * len(getattr(image, section)))
    raise KeyError(name)


@dataclass(frozen=True, slots=True)
class Part:
    """Neighbouring sections of an image: a unit in which a reader copies and checks the image."""

    begin: int
    end: int
    row: int  # bytes of a row of the first section

    def until(self, rows: int) -> int:
        """Return the offset where the first `rows` rows end."""
        return min(self.begin + self.row * rows, self.end)


def parts(path: str, counts: bytes, length: int) -> dict[str, Part]:
    """Return the parts of an image by name, in the order of the image.

    Raises `IndexStructureError` if the counts do not fit `length`.
    """
    places = _places(path, counts, length)
    first = {"counts": (0, 1)} | {name: (places[name][1], row) for name, row in _PARTS.items()}
    ends = [*(begin for begin, _ in first.values()), length][1:]
    return {
        name: Part(begin, end, row)
        for (name, (begin, row)), end in zip(first.items(), ends, strict=True)
    }


def _aligned(position: int) -> int:
    return -(-position // 8) * 8
