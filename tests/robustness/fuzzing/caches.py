"""Targets: what the cache folder keeps for later processes: maps of objects, records of uploads."""

from __future__ import annotations

import json
import socket
import struct
import zlib
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np

from ffrecord.format import cachemap
from ffrecord.format.cachemap import BLOCK, DamagedMapError, MapHeader, NotAMapError
from ffrecord.machine.boot import boot_id
from ffrecord.remote import uploads
from ffrecord.remote.cache import listing
from ffrecord.remote.cache.folder import COPY, MAP, CacheFolder
from tests.robustness.fuzzing import reference
from tests.robustness.fuzzing.mounts import JSON
from tests.robustness.fuzzing.scratch import Scratch, folder
from tests.robustness.fuzzing.target import Target
from tests.support import trees

# ---- the map of a cached object --------------------------------------------------------------

SIZE = 2 * BLOCK + 19_000
CONTENT = trees.content(SIZE, 1)
_CRCS = np.array([zlib.crc32(CONTENT[at : at + BLOCK]) for at in range(0, SIZE, BLOCK)], np.uint32)


def _map(size: int, there: int, seed: int = 7, **facts: Any) -> bytes:
    """Return a map with entries for the first blocks, of which the first is a recent one."""
    boot = boot_id() or ""
    recent = cachemap.entries(cachemap.recent_seed(seed, boot), 0, _CRCS[:1])
    entries = recent + cachemap.entries(seed, 1, _CRCS[1:])
    content = {"etag": '"tag"', "modified": 1.5, "url": "s3://bucket/a.ffr"} | facts
    text = json.dumps(content).encode()
    prefix = struct.pack("<8sIIQQII", b"FFRCACHE", 1, BLOCK, size, seed, len(text), 0)
    blocks = MapHeader(size, "", None, "", 0).blocks
    whole = (prefix + text).ljust(4096, b"\0") + entries[: 8 * there].ljust(8 * blocks, b"\0")
    return _sealed_map(whole)


def _sealed_map(data: bytes) -> bytes:
    if len(data) < 4096:
        return data
    (length,) = struct.unpack_from("<I", data, 32)
    crc = zlib.crc32(data[:36] + data[40 : 40 + min(length, 4056)])
    return data[:36] + struct.pack("<I", crc) + data[40:]


def maps() -> Target:
    """Fuzz the map of a cached object: list the cache, and check the blocks of the object."""
    cache = CacheFolder(str(folder()), 1 << 30)
    name = f"{0:032x}-{0:016x}"
    scratch = Scratch(Path(cache.file(name, MAP)))
    Path(cache.file(name, COPY)).write_bytes(CONTENT)
    boot = boot_id() or ""

    def run(data: bytes) -> str:
        scratch.fill(data)
        expected = reference.cache_map(data, boot)
        copies = listing.listed(cache)
        try:
            found = cachemap.parse(data[: cachemap.ENTRIES_AT])
        except (NotAMapError, DamagedMapError):
            assert expected is None, "a valid map is refused"
            assert not copies
            raise
        assert expected is not None, "an invalid map is accepted"
        facts = found.size, found.etag, repr(found.modified), found.url
        assert facts == (expected.size, expected.etag, repr(expected.modified), expected.url)
        if len(data) != found.length:
            assert not copies, "a map of the wrong length is listed"
            return "another length"
        blocks = {number: CONTENT[number * BLOCK :][:BLOCK] for number in expected.there}
        assert [each.there for each in copies] == [
            sum(min(BLOCK, found.size - number * BLOCK) for number in blocks)
        ]
        checked = listing.check(cache, name)
        damaged = [
            number for number, crc in expected.there.items()
            if zlib.crc32(blocks[number][: max(0, found.size - number * BLOCK)]) != crc
        ]  # fmt: skip
        assert (checked.blocks, checked.damaged) == (len(blocks), len(damaged))
        return "damaged blocks" if damaged else "whole"

    seeds = (
        _map(SIZE, 3), _map(SIZE, 1), _map(SIZE, 0, modified=None), _map(BLOCK, 1, 1 << 62),
        _map(1, 1), _map(SIZE, 3, etag=7), _map(SIZE, 3, url="s3://é/" * 200),
    )  # fmt: skip
    errors = (NotAMapError, DamagedMapError)
    tokens = (*JSON, b'"etag"', b'"modified"', b'"url"')
    return Target("map", run, seeds, _sealed_map, tokens, errors, in_place=True)


# ---- records of unfinished uploads -----------------------------------------------------------

LINES: tuple[Mapping[str, Any], ...] = (
    {"version": 1, "name": "s3://b/out", "url": "s3://b/out", "options": {"region": "x"},
     "staging": "?", "host": socket.gethostname(), "began": 1.5e9},
    {"names": ["a", "b/c"], "last": "b/c"}, {"object": "a", "known": ["1", "2"]},
    {"version": 2}, {"url": None}, {"began": -1}, {"names": [1]}, {"last": "missing"},
)  # fmt: skip


def leftovers() -> Target:
    """Fuzz the record of an unfinished upload: list it, and remove what it names."""
    top = folder()
    path, staging = top / "uploads/a.upload", top / f"{uploads.STAGING}1"
    path.parent.mkdir()
    staging.mkdir()
    undone: list[Any] = []
    removed: list[str] = []
    stubs: dict[str, Any] = {
        "Access": lambda options: SimpleNamespace(link=None, place=undone.append),
        "placed": lambda target, names: dict.fromkeys(names),
        "undo": lambda _, places, last, before: undone.append((places, last, before)),
        "shutil": SimpleNamespace(rmtree=lambda path, ignore_errors: removed.append(path)),
    }

    def run(data: bytes) -> str:
        undone.clear()
        removed.clear()
        path.write_bytes(data)
        (left,) = uploads.leftovers(str(top))
        assert isinstance(left.name, str)
        assert 0 <= round(left.began) < 1 << 63
        with mock.patch.multiple(uploads, **stubs):
            uploads.abort(left)
        assert not path.exists()
        assert all(staging.samefile(each) for each in removed)
        if not undone:
            return "local files" if removed else "nothing"
        url, (places, last, before) = undone
        assert isinstance(url, str)
        assert places.keys() >= before.keys()
        assert last is None or last in places
        assert all(isinstance(each, str) for ids in before.values() for each in (*ids, *places))
        return "objects"

    where = json.dumps(str(staging)).encode()[1:-1]
    lines = [json.dumps(each).encode().replace(b"?", where) + b"\n" for each in LINES]
    seeds = (
        b"".join(lines[:3]),
        lines[0],
        *(lines[0] + b"".join(lines[1:3]) + each for each in lines[3:]),
    )
    tokens = (*JSON, *lines[1:], b"\n", b'"known"', b'"before"', b"ffrecord-upload-", b"}\n{")
    return Target("leftover", run, seeds, tokens=tokens)
