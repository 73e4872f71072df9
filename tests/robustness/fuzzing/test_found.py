"""Problems that fuzzing has found, as regression tests."""

from __future__ import annotations

import math
import os
import struct
import zlib
from pathlib import Path
from typing import Any

import pytest

from ffrecord import FileReader, FileWriter, PackedFolder, salvage_file
from ffrecord.convert import convert
from ffrecord.errors import (
    DamagedSourceError,
    FFRecordError,
    HeaderChecksumError,
    IndexChecksumError,
    IndexStructureError,
    StateError,
    StructureError,
)
from ffrecord.format import records as record_layout
from ffrecord.format.checksum import crc32_of_zeros
from ffrecord.records import broken_header, opening
from tests.robustness.fuzzing import records
from tests.support import handmade


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
