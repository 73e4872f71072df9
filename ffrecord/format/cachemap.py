"""Bytes of the map of a cached object. docs/format.md is the specification.

The cache keeps two files for each version of a remote object: a sparse copy, which has the bytes of
the object and nothing else, and a map, which says which blocks of the copy are there. All numbers
are little endian:

    0        8          12           16         24       32         36       40      4096
    +--------+----------+------------+----------+--------+----------+--------+-------+- - -
    | magic  | version  | block size | object   | seed   | length   | crc    | JSON, | entries
    |        | u32      | u32        | size u64 | u64    | of JSON  | u32    | zeros |
    +--------+----------+------------+----------+--------+----------+--------+-------+- - -

- The JSON object has `etag`, `modified` (seconds, or null) and `url`, which is for people only.
- The crc covers the first 36 bytes and the JSON text.
- An entry is `crc u32 | mark u32`, one for each block. The crc is that of the block; the last block
  may be shorter. The mark is made of the crc, the number of the block and the seed. A block is
  there if its entry has the right mark. So zeros, and entries of another map, never count.
- An entry is written when its block is on disk, and cleared on disk before its block is.
- Before that, a recent entry may be written. Its mark is made with the recent seed of the map and
  the present run of the kernel. It says that the block is in the page cache, which all processes
  share. After a power cut the machine is in another run, so the entry does not count.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ffrecord.aliases import Ints, Mask
from ffrecord.format.checksum import crc32

MAGIC = b"FFRCACHE"
VERSION = 1
BLOCK = 64 << 10
"""Bytes of a block. A request for 64 KiB takes little longer than one for 10 kB, and an epoch in
random order needs one request for each block."""

ENTRY = np.dtype([("crc", "<u4"), ("mark", "<u4")])
ENTRIES_AT = 4096
_PREFIX = struct.Struct("<8sIIQQI")
_CRC = struct.Struct("<I")
_TEXT_AT = _PREFIX.size + _CRC.size
MOST_TEXT = ENTRIES_AT - _TEXT_AT
LARGEST = (1 << 63) - 1  # bytes of an object; file systems have the same limit

# Odd numbers spread the bits of crc and number over the mark. The lowest bit is always set, so that
# no mark is 0.
_SPREAD_CRC, _SPREAD_NUMBER = np.uint32(0x9E3779B1), np.uint32(0x85EBCA77)


class NotAMapError(ValueError):
    """The file does not begin like a map of the cache, or is a map of an unknown version."""


class DamagedMapError(ValueError):
    """The file is a map of the cache, but its header is damaged."""


@dataclass(frozen=True, slots=True)
class MapHeader:
    """Header of a map: the object and its version."""

    size: int
    etag: str
    modified: float | None
    url: str
    seed: int

    @property
    def blocks(self) -> int:
        """Number of blocks of the object."""
        return -(-self.size // BLOCK)

    @property
    def length(self) -> int:
        """Bytes of the whole map."""
        return ENTRIES_AT + ENTRY.itemsize * self.blocks

    def packed(self) -> bytes:
        """Return the bytes of the header. Raise ValueError if the version is too long."""
        url = self.url
        while True:
            facts = {"etag": self.etag, "modified": self.modified, "url": url}
            text = json.dumps(facts).encode()
            if len(text) <= MOST_TEXT:
                break
            if not url:
                raise ValueError("the version of the object is too long for the cache")
            url = url[: len(url) // 2]
        prefix = _PREFIX.pack(MAGIC, VERSION, BLOCK, self.size, self.seed, len(text))
        whole = prefix + _CRC.pack(crc32(prefix + text)) + text
        return whole.ljust(ENTRIES_AT, b"\0")


def parse(raw: bytes) -> MapHeader:
    """Return the header in the first bytes of a map.

    Raises:
        NotAMapError: it is another file, or a map that a newer version of this package made.
        DamagedMapError: it is a map, but damaged or too short.
    """
    if not any(raw[: len(MAGIC)]) or (MAGIC.startswith(raw[:8]) and len(raw) < ENTRIES_AT):
        raise DamagedMapError("the header is empty or too short")  # as a power cut may leave it
    if raw[: len(MAGIC)] != MAGIC:
        raise NotAMapError("it is not a file of the cache")
    _, version, block, size, seed, length = _PREFIX.unpack_from(raw)
    if version != VERSION:
        raise NotAMapError(f"its format has version {version}; only {VERSION} is known here")
    text = raw[_TEXT_AT : _TEXT_AT + min(length, MOST_TEXT)]
    (stored,) = _CRC.unpack_from(raw, _PREFIX.size)
    if crc32(raw[: _PREFIX.size] + text) != stored or block != BLOCK or length > MOST_TEXT:
        raise DamagedMapError("the header is damaged")
    try:
        facts = json.loads(text)
        found = MapHeader(size, facts["etag"], facts["modified"], facts["url"], seed)
    except (ValueError, TypeError, KeyError, RecursionError):
        raise DamagedMapError("the header has no JSON object with its facts") from None
    is_sound = isinstance(found.etag, str) and isinstance(found.url, str)
    if not (is_sound and isinstance(found.modified, (int, float, type(None)))):
        raise DamagedMapError("a fact in the header has the wrong type")
    if not 0 < size <= LARGEST:
        raise DamagedMapError(f"no object in the cache can have {size} bytes")
    return found


def marks(seed: int, numbers: Ints, crcs: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
    """Return the mark of each block's entry."""
    spread = crcs * _SPREAD_CRC + numbers.astype(np.uint32) * _SPREAD_NUMBER
    found: npt.NDArray[np.uint32] = (spread + np.uint32(seed & 0xFFFFFFFF)) | np.uint32(1)
    return found


def entries(seed: int, first: int, crcs: npt.NDArray[np.uint32]) -> bytes:
    """Return the bytes of the entries of consecutive blocks."""
    rows = np.empty(len(crcs), ENTRY)
    rows["crc"] = crcs
    rows["mark"] = marks(seed, np.arange(first, first + len(crcs)), crcs)
    return rows.tobytes()


def recent_seed(seed: int, boot: str) -> int:
    """Return the seed of recent entries, for a map's seed and the id of a run of the kernel."""
    digest = hashlib.sha256(f"{seed} {boot}".encode()).digest()
    # The lowest bit of a seed is lost in the mark. No entry is both recent and durable.
    return (seed ^ ((int.from_bytes(digest[:4], "little") | 1) << 1)) & 0xFFFFFFFF


def there(seeds: Collection[int], first: int, raw: bytes) -> tuple[Mask, npt.NDArray[np.uint32]]:
    """Return which of consecutive blocks are there, and the crc in each entry.

    `seeds`: the map's seed, and its recent seed if recent entries count.
    """
    rows = np.frombuffer(raw, ENTRY, len(raw) // ENTRY.itemsize)
    crcs = rows["crc"].astype(np.uint32)
    numbers = np.arange(first, first + len(rows))
    mask: Mask = np.zeros(len(rows), bool)
    for seed in seeds:
        mask |= rows["mark"] == marks(seed, numbers, crcs)
    return mask, crcs


def entry_at(number: int) -> int:
    """Return the offset of a block's entry in the map."""
    return ENTRIES_AT + ENTRY.itemsize * number
