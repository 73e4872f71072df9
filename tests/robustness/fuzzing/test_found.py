"""Problems that fuzzing has found, as regression tests."""

from __future__ import annotations

import json
import math
import os
import re
import struct
import zlib
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ffrecord import FileReader, FileWriter, PackedFolder, PlanError, salvage_file
from ffrecord.archive import plan_file
from ffrecord.convert import convert
from ffrecord.errors import (
    DamagedSourceError,
    FFRecordError,
    HeaderChecksumError,
    IndexChecksumError,
    IndexStructureError,
    StateError,
    StructureError,
    UrlError,
)
from ffrecord.format import records as record_layout
from ffrecord.format.cachemap import DamagedMapError
from ffrecord.format.checksum import crc32_of_zeros
from ffrecord.plan import receipts
from ffrecord.records import broken_header, opening
from ffrecord.remote import uploads, urls
from ffrecord.remote.cache import listing
from ffrecord.remote.cache.folder import COPY, MAP, CacheFolder
from ffrecord.remote.trouble import Kind, Trouble
from ffrecord.view import answers, arrays, listings, pictures, values
from ffrecord_fuse.errors import MountError
from tests.robustness.fuzzing import caches, network, pages, records, table
from tests.robustness.fuzzing.target import try_one
from tests.support import handmade
from tests.view import corpus


def claiming(settled: int) -> bytes:
    """Return a journal of four entries that claims `settled` entries, with correct checksums."""
    raw = bytearray(records.journal_bytes(0, None, 1 << 20, count=4))
    struct.pack_into("<q", raw, 40, settled)
    return records.sealed_journal(bytes(raw))


@pytest.mark.parametrize("settled", [1 << 40, (1 << 63) - 1])
def test_a_journal_that_claims_any_number_of_records_costs_no_memory(
    settled: int, tmp_path: Path
) -> None:
    partial = tmp_path / ".file.partial"
    partial.write_bytes(bytes(1 << 20) + records.BODY)
    (tmp_path / ".file.partial.journal").write_bytes(claiming(settled))
    before = handmade.resident_bytes()
    report = salvage_file(partial, tmp_path / "saved.ffr")
    assert handmade.resident_bytes() - before < 64 << 20
    assert report.kept == 4
    assert 4 < report.records < 1 << 17
    with FileReader(tmp_path / "saved.ffr") as reader:
        assert handmade.as_bytes(reader) == list(records.RECORDS[:4])


@pytest.mark.parametrize("crc", [0, 1])
def test_a_header_in_a_hole_takes_no_memory(
    crc: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "holes.ffr"
    path.write_bytes(struct.pack("<Iq", crc, 1 << 28))
    os.truncate(path, 12 + (12 << 28))
    asked: list[int] = []
    monkeypatch.setattr(record_layout, "header_memory", asked.append)
    monkeypatch.setattr(broken_header, "_from_header", lambda *_: asked.append(1))
    with pytest.raises(StructureError, match="record 0 starts at byte 0, inside the header"):
        FileReader(path)
    with pytest.raises(FFRecordError):
        salvage_file(path, tmp_path / "saved.ffr")
    assert asked == []


@pytest.mark.parametrize("place", [0, 4, 5, 8, 11])
def test_a_large_header_is_checked_in_pieces_with_the_same_result(
    place: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opening, "AT_ONCE", 4)
    contents = [bytes([i]) * i for i in range(12)]
    path = handmade.write_records(tmp_path / "a.ffr", contents)
    with FileReader(path) as reader:
        assert handmade.as_bytes(reader) == contents
    raw = bytearray(path.read_bytes())
    struct.pack_into("<q", raw, 12 + 4 * 12 + 8 * place, 1)
    path.write_bytes(raw)
    with pytest.raises(HeaderChecksumError):
        FileReader(path)
    path.write_bytes(records.sealed(bytes(raw)))
    with pytest.raises(StructureError, match=f"record {place} starts at byte 1, "):
        FileReader(path)


def test_an_index_in_a_hole_takes_no_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The counts of the index agree with each other, so every table could be in use."""
    entries = 1 << 21
    counts = struct.pack("<10Q", entries, entries, entries, entries, 0, 0, 0, 0, 0, entries)
    length = 80 + entries * (32 + 16 + 4 + 4 + 24 + 1)
    front = handmade.sealed(1, [0], [24]) + counts
    path = tmp_path / "holes.ffr"
    with path.open("wb") as file:
        file.write(front)
        file.truncate(24 + length)
        file.seek(24 + length)
        file.write(struct.pack("<QII8s", length, 0, 1, b"FFRINDEX"))
    memory: list[int] = []
    create = os.memfd_create

    def kept(name: str) -> int:
        fd = create(name)
        memory.append(os.dup(fd))
        return fd

    monkeypatch.setattr(os, "memfd_create", kept)
    with pytest.raises(IndexChecksumError):
        PackedFolder(path)
    with pytest.raises(IndexStructureError, match="a mode belongs to no file"):
        PackedFolder(path, check_data=False)
    taken = [512 * os.fstat(fd).st_blocks for fd in memory]
    for fd in memory:
        os.close(fd)
    assert len(taken) == 2
    assert max(taken) < 16 << 20  # the whole index has 170 MB


@pytest.mark.parametrize("length", [0, 1, 7, 4096, 100_001])
def test_the_checksum_of_zeros_equals_a_computed_one(length: int) -> None:
    assert crc32_of_zeros(length) == zlib.crc32(bytes(length))


def test_a_journal_with_an_impossible_begin_is_refused_and_left_alone(tmp_path: Path) -> None:
    partial, log = tmp_path / ".file.partial", tmp_path / ".file.partial.journal"
    partial.write_bytes(b"records")
    log.write_bytes(records.journal_bytes(0, None, 1 << 62, count=0))
    with pytest.raises(StructureError, match="first record at byte 4611686018427387904"):
        FileWriter(tmp_path / "file", resumable=True)
    assert partial.read_bytes() == b"records"


def states() -> list[dict[str, Any]]:
    torch = pytest.importorskip("torch")
    return [
        {"version": torch.zeros(2)},
        {"rng": torch.zeros(5)},
        {"rng": torch.zeros(5056, dtype=torch.uint8)},
        {"generator": torch.empty(0)},
        {"step": 1 << 64},
    ]


@pytest.mark.parametrize("change", range(5))
@pytest.mark.parametrize("begun", [False, True])
def test_a_state_with_an_odd_value_is_a_state_error_and_changes_nothing(
    begun: bool, change: int, tmp_path: Path
) -> None:
    from tests.robustness.fuzzing import states as fuzzed

    handmade.write_records(tmp_path / "numbers.ffr", [bytes([i]) for i in range(fuzzed.COUNT)])
    loader = fuzzed._drawn(fuzzed.Numbers(tmp_path / "numbers.ffr"))
    state = fuzzed._saved(fuzzed._drawn(loader.dataset))[begun]  # type: ignore[arg-type]
    before = loader.state_dict()
    with pytest.raises(StateError):
        loader.load_state_dict(dict(state) | states()[change])
    assert repr(loader.state_dict()) == repr(before)


def test_a_sampler_state_with_infinity_or_tensors_is_a_state_error() -> None:
    torch = pytest.importorskip("torch")
    from ffrecord.torch import ShuffleSampler

    sampler = ShuffleSampler(10)
    for odd in (math.inf, torch.zeros(3)):
        with pytest.raises(StateError, match="not the state of a ShuffleSampler"):
            sampler.load_state_dict(sampler.state_dict() | {"position": odd})
        with pytest.raises(StateError):
            sampler.load_state_dict(sampler.state_dict() | {"shuffle": torch.zeros(3)})


def test_a_tar_that_ends_in_the_header_of_a_sparse_file_is_damaged(tmp_path: Path) -> None:
    header = bytearray(512)
    header[0:1], header[100:108], header[156:157] = b"a", b"0000644\0", b"S"
    header[257:263], header[482] = b"ustar\0", 1  # this header continues in the next block
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    (tmp_path / "cut.tar").write_bytes(header)
    with pytest.raises(DamagedSourceError, match=r"cut\.tar"):
        convert(tmp_path / "cut.tar", tmp_path / "out.ffr")
    assert os.listdir(tmp_path) == ["cut.tar"]


# ---- what servers and killed processes leave -------------------------------------------------

DEEP = b"[" * 100_000


def map_file(folder: Path, number: int, content: bytes) -> str:
    """Write a map and an empty copy into a cache; return their name."""
    name = f"{number:032x}-{number:016x}"
    (folder / f"{name}{MAP}").write_bytes(content)
    (folder / f"{name}{COPY}").write_bytes(b"")
    return name


@pytest.mark.parametrize(
    "content",
    [
        caches._map(caches.SIZE, 3, etag=7), caches._map(caches.SIZE, 3, url=None),
        caches._map(caches.SIZE, 3, modified="now"), caches._map(0, 0),
        caches._map(caches.SIZE, 3)[:-8],
    ],
    ids=["etag", "url", "modified", "size", "short"],
)  # fmt: skip
def test_a_map_with_wrong_values_is_damaged_and_does_not_hide_others(
    content: bytes, tmp_path: Path
) -> None:
    cache = CacheFolder(str(tmp_path), 1 << 30)
    wrong = map_file(tmp_path, 1, content)
    map_file(tmp_path, 2, caches._map(caches.SIZE, 3))
    with pytest.raises(DamagedMapError):
        cache.read(wrong)
    assert [copy.url for copy in listing.listed(cache)] == ["s3://bucket/a.ffr"]


def test_a_map_that_a_power_cut_has_shortened_takes_no_room_for_ever(tmp_path: Path) -> None:
    cache = CacheFolder(str(tmp_path), 1 << 30)
    map_file(tmp_path, 1, caches._map(caches.SIZE, 3)[:4096])
    newer = map_file(tmp_path, 2, b"FFRCACHE\2" + bytes(5000))
    with cache.locked():
        cache._recount()
    assert {name.partition(".")[0] for name in os.listdir(tmp_path)} == {newer, "lock"}


@pytest.mark.parametrize(
    "line",
    [
        DEEP, b"7", b'"known"', b"[1]", b'{"known": [], "object": []}', b'{"known": 7}',
        b'{"began": NaN}', b'{"began": "x"}', b'{"staging": "/a\\u0000", "host": "?"}',
        b'{"staging": "/\\ud800", "host": "?"}', b'{"names": 7, "url": 7}',
    ],
)  # fmt: skip
def test_a_record_of_an_upload_with_wrong_values_is_listed_and_removed(
    line: bytes, tmp_path: Path
) -> None:
    folder = tmp_path / uploads.FOLDER
    folder.mkdir()
    line = line.replace(b"?", os.uname().nodename.encode())
    (folder / f"a{uploads.SUFFIX}").write_bytes(b'{"version": 1, "name": "x"}\n' + line + b"\n")
    (left,) = uploads.leftovers(str(tmp_path))
    assert (left.name, round(left.began) > 0) == ("x", True)
    uploads.abort(left)
    assert os.listdir(folder) == []


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (network.LIST[:-9], Kind.BUSY), (b"<html><p>not XML</html>", Kind.OTHER),
        (b'<?xml version="1.0" encoding="none"?><a/>', Kind.OTHER),
        (b"!HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n9\r\n<", Kind.CONNECT),
        (b"!no HTTP\r\n\r\n", Kind.CONNECT),
    ],
)  # fmt: skip
def test_an_answer_that_is_no_list_of_uploads_is_a_failed_request(
    answer: bytes, kind: Kind
) -> None:
    with pytest.raises(Trouble) as caught:
        table.make("multipart").run(answer)
    assert caught.value.kind is kind


def test_a_url_that_is_not_utf8_has_a_place_in_the_cache() -> None:
    assert urls.unsigned("http://h/a?b=\udcff&sig=1") == "http://h/a?b=%ED%B3%BF"


@pytest.mark.parametrize("url", ["s3://[bucket/a.ffr", "http://user:secret@[x/a.ffr?secret=1"])
def test_a_url_with_an_invalid_host_is_a_url_error_without_secrets(url: str) -> None:
    with pytest.raises(UrlError, match="host") as caught:
        FileReader(url)
    assert "secret" not in str(caught.value)


# ---- plans -----------------------------------------------------------------------------------


WRONG: tuple[tuple[str, dict[str, Any]], ...] = (
    ("plan", {"target": "/a\0b"}), ("plan", {"target": "/\ud800"}), ("plan", {"folder": "/a\0"}),
    ("plan", {"align": "512"}), ("plan", {"align": 7}),
    ("plan", {"parts": {"first": [0], "count": [1 << 200], "records": [0], "bytes": [0]}}),
    ("receipt", {"files": {"": [1]}}), ("receipt", {"checksums": {"a": None}}),
    ("receipt", {"checksums": {"PART_00000.ffr": 1 << 32}}),
    ("receipt", {"details": 7}), ("receipt", {"details": {}}), ("receipt", {"xattrs": [[7, []]]}),
    ("receipt", {"xattrs": [[-1, []]]}), ("receipt", {"blocks": [[0, "AAA"]]}),
)  # fmt: skip


@pytest.mark.parametrize(("name", "change"), WRONG, ids=str)
def test_a_wrong_value_in_a_plan_or_a_receipt_is_a_plan_error(
    name: str, change: dict[str, Any]
) -> None:
    target = table.make(name)
    facts = json.loads(target.seeds[0])
    changed = facts["details"] if change.keys() <= {"xattrs", "blocks"} else facts
    changed |= change
    assert try_one(target, json.dumps(facts).encode()).word == "PlanError"


def test_a_receipt_that_is_nested_deeply_is_damaged() -> None:
    with pytest.raises(PlanError, match="damaged"):
        receipts.parsed(DEEP, "receipt")


# ---- the page, and mounts --------------------------------------------------------------------


@pytest.mark.parametrize(
    "asked",
    [b"POST / HTTP/1.1\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\n",
     b"GET /%b/api/about\r\nHost: localhost\r\n\r\n" % pages.TOKEN.encode()],
    ids=["a length of thousands of digits", "HTTP/0.9, whose answers have no headers"],
)  # fmt: skip
def test_a_request_that_no_browser_sends_is_refused(asked: bytes) -> None:
    assert table.make("page").run(b"\0" + asked) == "403"


@pytest.mark.parametrize("kind", ["BMP", "TIFF"])
def test_a_small_damaged_picture_says_why_it_cannot_be_shown(kind: str) -> None:
    """Small pictures are decoded late, when they are written as another format."""
    content = corpus.image_bytes(kind, corpus.photo(1, 100, 80))[:-9000]
    with pytest.raises(ValueError, match="the picture cannot be decoded"):
        pictures.converted(content)
    with pytest.raises(ValueError, match="the picture cannot be decoded"):
        pictures.thumbnail(content, 99)


@pytest.mark.parametrize("some", [[1e18 + 3e4] * 50, [1.7e308, -1.7e308] * 9, [1e16, 1e16 + 2]])
def test_an_array_of_large_numbers_has_statistics(some: list[float]) -> None:
    facts = arrays.describe(arrays.load_npy(corpus.npy(np.array(some))))
    answers.of_json(facts)
    assert facts["statistics"]["mean"] == pytest.approx(math.fsum(v / len(some) for v in some))
    assert sum(bar["count"] for bar in facts["histogram"]) == len(some)


def test_a_header_of_an_array_that_no_parser_reads_is_refused() -> None:
    content = corpus.npy(np.zeros(3)).replace(b"False,", b"(((((,")
    with pytest.raises(ValueError, match=r"not a valid \.npy"):
        arrays.load_npy(content)


def test_an_array_of_text_with_letters_that_do_not_exist_is_shown() -> None:
    content = corpus.npy(np.array(["a", "d"])).replace(b"a\0\0\0", b"\0\0\x11\0")
    assert arrays.describe(arrays.load_npy(content))["values"] == ["00001100", "64000000"]
    assert "00001100" in values.short("array", np.frombuffer(content, np.uint8))["text"]


def test_a_plan_without_a_record_for_its_task_is_a_plan_error(tmp_path: Path) -> None:
    path = handmade.write_records(tmp_path / "files", [])
    with pytest.raises(PlanError, match="other tasks"):
        plan_file.read_task(str(path), 0, 1, "/", False, {})


@pytest.mark.parametrize("letters", ["a--b", "a&&b", "a||b", "a~~b"])
def test_a_search_for_letters_in_brackets_gives_no_warning(letters: str) -> None:
    """Python warns that they may get another meaning."""
    with suppress(re.error):
        re.compile(listings.expression(f"[{letters}]*"))


def test_a_mount_whose_source_is_not_utf8_does_not_hide_others() -> None:
    """Every user may mount with any source, and all mounts are listed together."""
    assert table.make("mounttable").run(b"\3a\0ffrecord+overlay:/a:/\xff") == "an archive"


def test_facts_about_changes_that_are_nested_deeply_are_refused() -> None:
    with pytest.raises(MountError, match=r"about\.json cannot be used"):
        table.make("changes").run(DEEP)
