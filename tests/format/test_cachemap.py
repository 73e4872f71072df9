"""Maps of the cache: stored bytes stay readable, and wrong bytes never count as entries."""

from __future__ import annotations

import hashlib
import struct
import zlib

import numpy as np
import pytest

from ffrecord.format import cachemap
from ffrecord.format.cachemap import BLOCK, DamagedMapError, MapHeader, NotAMapError

TEXT = b'{"etag": "\\"tag\\"", "modified": 1.5, "url": "s3://bucket/a.ffr"}'
PREFIX = struct.pack("<8sIIQQI", b"FFRCACHE", 1, 65536, 150_000, 7, len(TEXT))
STORED = (PREFIX + struct.pack("<I", zlib.crc32(PREFIX + TEXT)) + TEXT).ljust(4096, b"\0")
HEADER = MapHeader(150_000, '"tag"', 1.5, "s3://bucket/a.ffr", 7)


def test_stored_bytes_are_read_and_written_again() -> None:
    assert cachemap.parse(STORED) == HEADER
    assert HEADER.packed() == STORED
    assert (HEADER.blocks, HEADER.length) == (3, 4096 + 24)


def mark(seed: int, number: int, crc: int) -> int:
    return (crc * 0x9E3779B1 + number * 0x85EBCA77 + seed) % 2**32 | 1


def test_entries_have_the_marks_of_the_specification() -> None:
    chance = np.random.default_rng(0)
    crcs = chance.integers(0, 2**32, 50, dtype=np.uint32)
    seed = 2**63 - 3
    raw = cachemap.entries(seed, 9, crcs)
    due = [(crc, mark(seed, 9 + k, crc)) for k, crc in enumerate(crcs.tolist())]
    assert list(struct.iter_unpack("<II", raw)) == due
    there, found = cachemap.there([seed], 9, raw)
    assert there.all()
    assert (found == crcs).all()
    for others in (cachemap.there([seed], 10, raw), cachemap.there([seed ^ 6], 9, raw)):
        assert not others[0].any()
    assert not cachemap.there([seed], 0, bytes(800))[0].any()


def test_recent_entries_count_in_one_run_of_the_kernel_only() -> None:
    boots = ["75b1f1b0-0a9c-4d3e-9f57-0c3a1b1c9d00", "another"]
    for seed in (0, 7, 2**63 - 3):
        digest = hashlib.sha256(f"{seed} {boots[0]}".encode()).digest()
        due = (seed ^ (int.from_bytes(digest[:4], "little") | 1) * 2) % 2**32
        recent, other = (cachemap.recent_seed(seed, boot) for boot in boots)
        assert recent == due
        raw = cachemap.entries(recent, 3, np.arange(40, dtype=np.uint32))
        assert cachemap.there([seed, recent], 3, raw)[0].all()
        for wrong in ([seed], [other], [seed, other], []):
            assert not cachemap.there(wrong, 3, raw)[0].any()


def test_a_long_url_is_cut_and_a_long_version_is_refused() -> None:
    long = MapHeader(1, "tag", None, "s3://bucket/" + "é" * 9000, 1)
    parsed = cachemap.parse(long.packed())
    assert long.url.startswith(parsed.url)
    assert parsed.etag == "tag"
    with pytest.raises(ValueError, match="too long"):
        MapHeader(1, "t" * 5000, None, "", 1).packed()


@pytest.mark.parametrize("at", [8, 12, 16, 24, 32, 36, 40, 60])
def test_every_changed_field_is_found(at: int) -> None:
    wrong = bytearray(STORED)
    wrong[at] ^= 0x40
    with pytest.raises(NotAMapError if at == 8 else DamagedMapError):
        cachemap.parse(bytes(wrong))


@pytest.mark.parametrize("raw", [b"", STORED[:7], STORED[:39], STORED[:4095], bytes(5000)])
def test_a_short_or_empty_header_is_damaged(raw: bytes) -> None:
    with pytest.raises(DamagedMapError):
        cachemap.parse(raw)


def test_other_files_are_no_maps() -> None:
    with pytest.raises(NotAMapError, match="not a file of the cache"):
        cachemap.parse(b"\x89PNG\r\n\x1a\n" + bytes(5000))


def test_the_block_size_is_that_of_stored_maps() -> None:
    assert BLOCK == 65536
