"""Slow readers of our formats, written from docs/format.md alone: they do not use the package.

Each returns the content of a file, or None if the specification forbids the file.
"""

from __future__ import annotations

import hashlib
import json
import stat
import struct
import zlib
from dataclasses import dataclass
from typing import TypeAlias

NO_ENTRY = 0xFFFFFFFF
BLOCK = 128 << 10
Rows: TypeAlias = "list[tuple[int, ...]]"


def header(data: bytes) -> tuple[list[int], list[int]] | None:
    """Return the checksums and offsets of a record file; the last offset is the end of the file."""
    if len(data) < 12:
        return None
    crc, n = struct.unpack_from("<Iq", data)
    size = 12 + 12 * n
    if not 0 <= n <= 1 << 40 or size > len(data) or (crc == 0 and n == 0):
        return None
    if crc and zlib.crc32(data[4:size]) != crc:
        return None
    checksums = list(struct.unpack_from(f"<{n}I", data, 12))
    offsets = [*struct.unpack_from(f"<{n}q", data, 12 + 4 * n), len(data)]
    if n and (offsets[0] < size or offsets != sorted(offsets)):
        return None
    return checksums, offsets


@dataclass(frozen=True)
class Journal:
    n: int
    begin: int
    settled: int
    entries: list[tuple[int, int] | None]  # end and checksum


def journal(data: bytes) -> Journal | None:
    if len(data) < 40 or data[:8] != b"FFRPART1":
        return None
    n, begin, _, crc = struct.unpack_from("<qqQI", data, 8)
    if zlib.crc32(data[:32]) != crc or n < -1 or begin < 0:
        return None
    settled = 0
    if len(data) >= 56:
        count, check = struct.unpack_from("<qI", data, 40)
        settled = count if zlib.crc32(data[40:48], crc) == check else 0
    entries: list[tuple[int, int] | None] = []
    for at in range(64, len(data) - 15, 16):
        end, record_crc, check = struct.unpack_from("<qII", data, at)
        number = struct.pack("<q", len(entries))
        holds = zlib.crc32(number + data[at : at + 12], crc) == check
        entries.append((end, record_crc) if holds else None)
    return Journal(n, begin, settled, entries)


# ---- the map of a cached object --------------------------------------------------------------

CACHED_BLOCK = 64 << 10


@dataclass(frozen=True)
class CacheMap:
    size: int
    etag: str
    modified: float | None
    url: str
    there: dict[int, int]  # the checksum of each block that counts


def cache_map(data: bytes, boot: str) -> CacheMap | None:
    """Return the content of a map in a run of the kernel with the id `boot`."""
    if len(data) < 4096 or data[:8] != b"FFRCACHE":
        return None
    version, block, size, seed, length, crc = struct.unpack_from("<IIQQII", data, 8)
    text = data[40 : 40 + length]
    if (version, block) != (1, CACHED_BLOCK) or length > 4056 or not 0 < size < 1 << 63:
        return None
    if zlib.crc32(data[:36] + text) != crc:
        return None
    try:
        facts = json.loads(text)
        etag, modified, url = (facts[name] for name in ("etag", "modified", "url"))
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    if not (isinstance(etag, str) and isinstance(url, str)):
        return None
    if not (modified is None or isinstance(modified, (int, float))):
        return None
    digest = hashlib.sha256(b"%d %b" % (seed, boot.encode())).digest()
    seeds = seed, seed ^ (int.from_bytes(digest[:4], "little") | 1) * 2
    there = {}
    for number in range(min(len(data) - 4096, 8 * -(-size // CACHED_BLOCK)) // 8):
        crc, mark = struct.unpack_from("<II", data, 4096 + 8 * number)
        if mark in [(crc * 0x9E3779B1 + number * 0x85EBCA77 + each) % 2**32 | 1 for each in seeds]:
            there[number] = crc
    return CacheMap(size, etag, modified, url, there)


# ---- the index -------------------------------------------------------------------------------

_TABLES = (
    ("inodes", "<QQqII", 0), ("entries", "<QII", 1), ("hashes", "<I", 2), ("hashed", "<I", 2),
    ("attributes", "<6I", 3), ("xattrs", "<QII", 4), ("large", "<IIQ", 5), ("blocks", "<I", 6),
    ("shards", "<QQII", 7),
)  # fmt: skip


@dataclass(frozen=True)
class Index:
    """Tables of an image, and the names of its entries."""

    inodes: Rows
    entries: Rows
    hashes: Rows
    hashed: Rows
    attributes: Rows
    xattrs: Rows
    large: Rows
    blocks: Rows
    shards: Rows
    texts: bytes
    names: list[bytes]

    def kind(self, inode: int) -> int:
        return stat.S_IFMT(self.attributes[self.inodes[inode][3]][0])


class _WrongError(Exception):
    """The specification forbids this."""


def index(image: bytes, sizes: list[int]) -> Index | None:
    """Return an index whose records have these sizes, or None if it breaks a rule.

    Only the rules that a reader must check before a lookup count. Names of attributes and NULs in
    targets are checked later.
    """
    try:
        found = _tables(image)
        _check_attributes(found)
        folders = _check_inodes(found, sizes)
        _check_entries(found, folders)
        _check_large(found)
    except (_WrongError, struct.error):
        return None
    return found


def _require(right: bool) -> None:
    if not right:
        raise _WrongError


def _tables(image: bytes) -> Index:
    counts = struct.unpack_from("<10Q", image)
    inodes, entries, hashes, attributes, xattrs, large, _, shards, texts, names = counts
    _require(sum(counts) <= len(image))  # a row has at least one byte
    _require(inodes <= entries + 1 and hashes <= entries and attributes <= inodes)
    _require(large <= inodes and names <= 255 * entries)
    _require(texts <= 4095 * inodes + (255 + 65536) * xattrs + 255 * shards)
    at, tables = 80, {}
    for name, row, which in _TABLES:
        end = at + struct.calcsize(row) * counts[which]
        _require(end <= len(image))
        tables[name] = list(struct.iter_unpack(row, image[at:end]))
        at = _aligned(image, end)
    begin, at = at, _aligned(image, at + texts)
    text = image[begin : begin + texts]
    blob, end = image[at : at + names], _aligned(image, at + names)
    _require(end == len(image))
    ends = [row[0] for row in tables["entries"]]
    _require(ends == sorted(ends) and (ends[-1] if ends else 0) == names)
    spelled = [blob[b:e] for b, e in zip([0, *ends], ends, strict=False)]
    return Index(**tables, texts=text, names=spelled)


def _aligned(image: bytes, end: int) -> int:
    """Return the next multiple of 8, and require zeros up to it."""
    after = -(-end // 8) * 8
    _require(after <= len(image) and not any(image[end:after]))
    return after


def _check_attributes(found: Index) -> None:
    for text, name, value in found.xattrs:
        _require(
            name + value > 0
            and name <= 255
            and value <= 65536
            and text + name + value <= len(found.texts)
        )
    for mode, _, _, _, first, count in found.attributes:
        _require(mode >> 12 in (0o04, 0o10, 0o12) and first + count <= len(found.xattrs))
        taken = sum(name + value for _, name, value in found.xattrs[first : first + count])
        _require(taken <= 16 << 20)


def _check_inodes(found: Index, sizes: list[int]) -> list[int]:
    """Check the inodes, and return the folders, whose entries must cover the whole table."""
    _require(bool(found.inodes))
    folders, used = [], 0
    for number, (data, length, _, row, entry) in enumerate(found.inodes):
        _require(row < len(found.attributes) and found.attributes[row][3] > 0)
        kind = found.kind(number)
        if kind == stat.S_IFREG:
            _require(data < len(sizes) and sizes[data] == length)
        elif kind == stat.S_IFLNK:
            _require(0 < length <= 4095 and data + length <= len(found.texts))
        else:
            _require(data == used)
            folders.append(number)
            used += length
            _require(used <= len(found.entries))
        if number:
            _require(entry < len(found.entries) and found.entries[entry][1] == number)
    _require(folders[:1] == [0] and used == len(found.entries))
    _require(found.inodes[0][4] == NO_ENTRY)
    return folders


def _check_entries(found: Index, folders: list[int]) -> None:
    inner, depths = [], {0: 0}
    named = [0] * len(found.inodes)
    folders_in = dict.fromkeys(folders, 0)
    for folder in folders:
        first, count = found.inodes[folder][:2]
        names = found.names[first : first + count]
        _require(names == sorted(set(names)))
        for name, (_, inode, parent) in zip(names, found.entries[first:], strict=False):
            _require(0 < len(name) <= 255 and name not in (b".", b".."))
            _require(b"/" not in name and b"\0" not in name and parent == folder)
            _require(inode < len(found.inodes))
            named[inode] += 1
            if inode in folders_in:
                _require(inode > folder and folder in depths)
                inner.append(inode)
                depths[inode] = depths[folder] + 1
                folders_in[folder] += 1
    _require(inner == folders[1:] and max(depths.values()) <= 4096)
    for number, times in enumerate(named):
        links = found.attributes[found.inodes[number][3]][3]
        _require(links == (2 + folders_in[number] if number in folders_in else times))
    _require(len(found.hashed) == len(found.entries))
    _require(all(entry < len(found.entries) for (entry,) in found.hashed))


def _check_large(found: Index) -> None:
    if not found.large and not found.blocks:
        return
    due = []
    first = 0
    for number, (_, length, *_) in enumerate(found.inodes):
        if found.kind(number) == stat.S_IFREG and length > BLOCK:
            due.append((number, 0, first))
            first += -(-length // BLOCK)
    _require(found.large == due and first == len(found.blocks))
