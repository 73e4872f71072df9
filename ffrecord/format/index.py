"""The index record's bytes. Little endian:

    +--------------------------------+-----------------------------+-----------------------------+
    | b"piouhjgbr" + pickle          | image                       | trailer                     |
    | (the original's; may be left   | counts and tables, below    | length u64, crc u32,        |
    | out)                           |                             | version u32, b"FFRINDEX"    |
    +--------------------------------+-----------------------------+-----------------------------+
                                      <--------- length ---------->                 end of record

`crc` is the CRC-32 of the image. The image is ten counts (u64 each: the rows of the eight tables
in their order, then the bytes of the two texts), then the tables and texts, each from a multiple
of 8 bytes on, with zeros in between. Nothing says where a table begins: the counts decide.
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
"""Of the index's own file beside the shards of an archive that has several."""

BLOCK = 128 << 10
"""A file larger than this has a CRC-32 for every block of this size, the last one shorter."""

NO_ENTRY = 0xFFFFFFFF
LONGEST_NAME = 255
LONGEST_TARGET = 4095
LARGEST_XATTR = 1 << 16
LONGEST_XATTR = LONGEST_NAME + LARGEST_XATTR
DEEPEST = 4096
"""Levels of folders. A path may have more bytes than Linux takes at once."""

INODE = np.dtype([
    ("data", "<u8"),  # a file's record, a folder's first entry, where a symlink's target begins
    ("length", "<u8"),  # a file's bytes, a folder's entries, a target's bytes
    ("mtime", "<i8"),  # nanoseconds since 1970
    ("attributes", "<u4"),  # row
    ("entry", "<u4"),  # the first entry that names it; NO_ENTRY for the root
])  # fmt: skip
ENTRY = np.dtype([
    ("name_end", "<u8"),  # names lie end to end, in the order of the entries
    ("inode", "<u4"),
    ("parent", "<u4"),  # the inode of the folder that it is in
])  # fmt: skip
HASH = np.dtype("<u4")
ATTRIBUTES = np.dtype([
    ("mode", "<u4"),  # as st_mode: kind and permissions
    ("uid", "<u4"),
    ("gid", "<u4"),
    ("links", "<u4"),  # entries that name it; for a folder 2 and one for each folder in it
    ("xattr", "<u4"),  # first row of its extended attributes
    ("xattrs", "<u4"),  # how many
])  # fmt: skip
XATTR = np.dtype([
    ("text", "<u8"),  # where its name begins, and after it the value
    ("name", "<u4"),
    ("value", "<u4"),
])  # fmt: skip
LARGE = np.dtype([
    ("inode", "<u4"),
    ("zero", "<u4"),
    ("first", "<u8"),  # its first block's checksum
])  # fmt: skip
CHECKSUM = np.dtype("<u4")
SHARD = np.dtype([
    ("records", "<u8"),
    ("text", "<u8"),  # where its file's name begins
    ("name", "<u4"),
    ("crc", "<u4"),  # the first four bytes of its file: the checksum of its header
])  # fmt: skip
TEXT = np.dtype("u1")

_COUNTS = struct.Struct("<10Q")
_SECTIONS = (  # in the order of the image: the type of a row, and which count says how many
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
_PARTS = {  # named after the first section of each: bytes of a row
    "inodes": INODE.itemsize,
    "entries": ENTRY.itemsize,
    "hashes": HASH.itemsize,
    "attributes": ATTRIBUTES.itemsize,
    "xattrs": XATTR.itemsize,
    "large": LARGE.itemsize,
    "names": 1,
}
_MOST_ROWS = 0xFFFFFFFF  # of tables whose rows are named by u32
_COUNTED_BY_U32 = ("inodes", "entries", "attributes", "xattrs")


@dataclass(frozen=True, slots=True)
class Image:
    """The tables as arrays over the image's bytes.

    `hashes` and `hashed` are one table of two columns, sorted by the first: the CRC-32 of an
    entry's whole path (names joined by "/"), and the entry.
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
    """What lies between the tables, for `check`: zeros."""


@dataclass(frozen=True, slots=True)
class Trailer:
    length: int
    crc: int


def is_index(size: int, read: Callable[[int, int], bytes]) -> bool:
    """Whether a record of `size` bytes is a packed folder's index, here or in the original
    FFRecord; `read` gives bytes of the record, from an offset on and so many."""
    start, end = min(size, len(LEGACY_MAGIC)), min(size, len(MAGIC))
    return read(0, start) == LEGACY_MAGIC or read(size - end, end) == MAGIC


def parse_trailer(path: str, raw: bytes, record_size: int) -> Trailer | None:
    """The trailer in a record's last bytes; None if this is not an index of ours."""
    if len(raw) != TRAILER.size or not raw.endswith(MAGIC):
        return None
    length, crc, version, _ = TRAILER.unpack(raw)
    if version != VERSION:
        raise IndexStructureError(
            f"{path}: its index has version {version}; this library reads version {VERSION}"
        )
    if not _COUNTS.size <= length <= record_size - TRAILER.size:
        raise IndexStructureError(
            f"{path}: its index claims {length} bytes of a record of {record_size}"
        )
    return Trailer(length, crc)


def trailer(image: Buffer, crc: int) -> bytes:
    return TRAILER.pack(len(image), crc, VERSION, MAGIC)


def parse(path: str, image: Buffer) -> Image:
    """The tables in an image, if the counts fit its length; the rest is for `check`."""
    if len(image) < _COUNTS.size:
        raise IndexStructureError(f"{path}: an index of {len(image)} bytes is none")
    places = _places(path, image[: _COUNTS.size], len(image))
    arrays: dict[str, Any] = {
        name: np.frombuffer(image, dtype, *places[name]) for name, dtype, _ in _SECTIONS
    }
    ends = [places[name][1] + rows.nbytes for name, rows in arrays.items()]
    padding = tuple(np.frombuffer(image, TEXT, _aligned(end) - end, end) for end in ends if end % 8)
    return Image(**arrays, padding=padding)


def _places(path: str, raw: bytes, length: int) -> dict[str, tuple[int, int]]:
    """Return the rows and the offset of each section, which must fill `length` bytes together.

    An image's length costs nothing to claim, where a file has holes: so no section may have more
    rows than those of the others could use.
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
            raise IndexStructureError(
                f"{path}: its index claims {count} rows of {name}, up to byte {end} of {length}"
            )
        if count > most.get(name, count):
            raise IndexStructureError(
                f"{path}: its index claims {count} rows of {name} where at most {most[name]} "
                "can be in use"
            )
        places[name] = (count, at)
        at = _aligned(end)
    if at != length:
        raise IndexStructureError(f"{path}: its index has {length} bytes where {at} are due")
    return places


def blank(rows: Mapping[str, int]) -> tuple[mmap.mmap, Image]:
    """An image with so many rows of each section, all zeros, and its tables to be filled in.

    `hashes` says how many there are of `hashed` as well.
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
    """Where a section begins in the image's bytes."""
    at = _COUNTS.size
    for section, dtype, _ in _SECTIONS:
        if section == name:
            return at
        at = _aligned(at + dtype.itemsize * len(getattr(image, section)))
    raise KeyError(name)


@dataclass(frozen=True, slots=True)
class Part:
    """Some neighbouring sections of an image, which are copied and waited for together."""

    begin: int
    end: int
    row: int  # bytes of a row of the first section

    def until(self, rows: int) -> int:
        """Where so many rows end."""
        return min(self.begin + self.row * rows, self.end)


def parts(path: str, counts: bytes, length: int) -> dict[str, Part]:
    """An image's parts by name, in the order of the image, if its counts make sense."""
    places = _places(path, counts, length)
    first = {"counts": (0, 1)} | {name: (places[name][1], row) for name, row in _PARTS.items()}
    ends = [*(begin for begin, _ in first.values()), length][1:]
    return {
        name: Part(begin, end, row)
        for (name, (begin, row)), end in zip(first.items(), ends, strict=True)
    }


def _aligned(position: int) -> int:
    return -(-position // 8) * 8
