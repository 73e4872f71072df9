"""`salvage_file` and `ffrecord salvage`: every whole record is copied, and no other."""

from __future__ import annotations

import errno
import json
import os
import random
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ffrecord import (
    FFRecordError,
    FileReader,
    FileWriter,
    NotFFRecordError,
    PackedFolder,
    SalvageReport,
    SampleChecksumError,
    TruncatedError,
    UnfinishedError,
    pack_folder,
    salvage_file,
)
from ffrecord.disk import source as disk_source
from ffrecord.text import for_shell
from tests.support import archives, handmade, trees

RECORDS = handmade.random_records([300, 0, 5000, 1, 70_000, 0, 12, 900])
N = len(RECORDS)
OFFSETS = 12 + 4 * N


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    return handmade.write_records(tmp_path / "broken.ffr", RECORDS)


def change(path: Path, at: int, new: bytes) -> None:
    data = bytearray(path.read_bytes())
    assert data[at : at + len(new)] != new
    data[at : at + len(new)] = new
    path.write_bytes(data)


def spoil(path: Path, record: int) -> None:
    at = path.read_bytes().index(RECORDS[record])
    change(path, at, bytes([RECORDS[record][0] ^ 1]))


def salvaged(path: Path) -> tuple[SalvageReport, list[bytes]]:
    """Salvage a file; return the report and the new file's records.

    Also check that the damaged file is unchanged.
    """
    before = path.read_bytes()
    out = path.parent / "out.ffr"
    report = salvage_file(path, out)
    assert path.read_bytes() == before
    records = handmade.records_in(out.read_bytes())
    assert report.kept == len(records)
    assert report.bytes == sum(map(len, records))
    return report, records


def lost(report: SalvageReport) -> list[int]:
    return [each.record for each in report.lost]


def without(*numbers: int) -> list[bytes]:
    return [record for i, record in enumerate(RECORDS) if i not in numbers]


# ---- records -------------------------------------------------------------------------------


def test_a_whole_file_is_copied_completely(broken: Path) -> None:
    report, records = salvaged(broken)
    assert records == RECORDS
    assert report == SalvageReport(N, N, sum(map(len, RECORDS)), [], True, False)


def test_damaged_records_are_skipped_and_named(broken: Path) -> None:
    spoil(broken, 2)
    spoil(broken, 6)
    report, records = salvaged(broken)
    assert records == without(2, 6)
    assert lost(report) == [2, 6]
    assert "checksum" in report.lost[0].reason
    assert report.header_whole


@pytest.mark.parametrize("left", [74_000, 5500, 5312, 108])
def test_the_remaining_records_of_a_truncated_file_are_salvaged(left: int, broken: Path) -> None:
    os.truncate(broken, left)
    report, records = salvaged(broken)
    ends, end = [], 12 + 12 * N
    for record in RECORDS:
        end += len(record)
        ends.append(end)
    # An empty record is whole even after the end of the file.
    expected = [i for i in range(N) if ends[i] <= left or not RECORDS[i]]
    assert records == [RECORDS[i] for i in expected]
    assert lost(report) == [i for i in range(N) if i not in expected]


def test_only_records_that_the_disk_cannot_read_are_lost(
    broken: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = os.preadv
    bad = broken.read_bytes().index(RECORDS[4]) + 4096

    def failing(fd: int, buffers: Any, offset: int, *rest: Any) -> int:
        if offset <= bad < offset + sum(map(len, buffers)):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return plain(fd, buffers, offset, *rest)

    monkeypatch.setattr(os, "preadv", failing)
    report, records = salvaged(broken)
    assert records == without(4)
    assert "Input/output error" in report.lost[0].reason


def test_a_record_that_changes_during_the_copy_is_an_error_and_no_file_is_written(
    broken: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        disk_source.Recheck, "checksum", lambda *_: 1234
    )  # so the first check passes
    broken.write_bytes(handmade.sealed(1, [1234], [24]) + b"x")
    with pytest.raises(SampleChecksumError, match="record 0"):
        salvage_file(broken, tmp_path / "out.ffr")
    assert os.listdir(tmp_path) == ["broken.ffr"]


# ---- headers -------------------------------------------------------------------------------


def test_a_wrong_header_checksum_loses_nothing(broken: Path) -> None:
    change(broken, 0, b"\1\2\3\4")
    report, records = salvaged(broken)
    assert records == RECORDS
    assert not report.header_whole


@pytest.mark.parametrize("record", range(N))
@pytest.mark.parametrize("value", [0, 109, 4000, 7_000_000, -1, 1 << 62])
def test_a_wrong_offset_is_recovered(value: int, record: int, broken: Path) -> None:
    change(broken, OFFSETS + 8 * record, struct.pack("<q", value))
    _report, records = salvaged(broken)
    assert records == RECORDS


def test_many_wrong_offsets_are_recovered(broken: Path) -> None:
    change(broken, OFFSETS + 8, bytes(8 * 5))
    assert salvaged(broken)[1] == RECORDS


def test_a_wrong_offset_next_to_a_damaged_record_is_not_guessed(broken: Path) -> None:
    change(broken, OFFSETS + 8 * 3, bytes(8))
    spoil(broken, 2)
    report, records = salvaged(broken)
    assert lost(report) == [2, 3]
    assert records == without(2, 3)


@pytest.mark.parametrize("record", [0, 2, 4, 7])
def test_a_damaged_stored_checksum_is_corrected_by_the_checksum_of_the_header(
    record: int, broken: Path
) -> None:
    change(broken, 12 + 4 * record, b"\0\0\0\0")
    report, records = salvaged(broken)
    assert (records, report.lost) == (RECORDS, [])


def test_a_damaged_stored_checksum_is_not_corrected_without_proof(broken: Path) -> None:
    change(broken, 12 + 4 * 2, b"\0\0\0\0")
    spoil(broken, 4)
    report, records = salvaged(broken)
    assert lost(report) == [2, 4]
    assert records == without(2, 4)


@pytest.mark.parametrize("count", [0, 1, N - 1, N + 1, 1000, -1, 1 << 39, 1 << 60])
@pytest.mark.parametrize("gap", [0, 100, 4096 * 3 + 8])
def test_a_wrong_count_is_recovered(count: int, gap: int, tmp_path: Path) -> None:
    path = handmade.write_records(tmp_path / "count.ffr", RECORDS, gap)
    change(path, 4, struct.pack("<q", count))
    report, records = salvaged(path)
    assert (records, report.records) == (RECORDS, N)


def test_records_of_24_bytes_do_not_hide_where_the_offsets_begin(tmp_path: Path) -> None:
    """With records of 24 bytes, every offset passes the test that identifies the first one."""
    records = handmade.random_records([24] * 50)
    path = handmade.write_records(tmp_path / "same.ffr", records)
    change(path, 4, struct.pack("<q", 17))
    assert salvaged(path)[1] == records


def test_the_first_twelve_bytes_may_be_lost(broken: Path) -> None:
    change(broken, 0, bytes(12))
    assert salvaged(broken)[1] == RECORDS


def test_a_file_without_header_checksum_is_checked_by_its_records(broken: Path) -> None:
    change(broken, 0, bytes(4))
    spoil(broken, 0)
    assert salvaged(broken)[1] == without(0)


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (b"", TruncatedError),
        (b"short", TruncatedError),
        (b"some text, long enough to be looked at\n" * 9, NotFFRecordError),
        (bytes(5000), UnfinishedError),
        (struct.pack("<Iq", 7, 1000) + bytes(100), TruncatedError),
        (struct.pack("<Iq", 7, 0), NotFFRecordError),
    ],
    ids=["nothing", "short", "text", "zeros", "cut in the header", "no records"],
)
def test_a_file_without_records_is_an_error(
    content: bytes, error: type[FFRecordError], broken: Path
) -> None:
    broken.write_bytes(content)
    with pytest.raises(error, match="broken"):
        salvage_file(broken, broken.parent / "out.ffr")
    assert os.listdir(broken.parent) == ["broken.ffr"]


def test_the_error_for_a_header_of_zeros_advises_to_restore_a_copy(broken: Path) -> None:
    broken.write_bytes(bytes(5000))
    with pytest.raises(UnfinishedError) as caught:
        salvage_file(broken, broken.parent / "out.ffr")
    for said in (str(caught.value), for_shell(caught.value)):
        message = said.removeprefix(f"{broken}: ")
        assert message.startswith("never finished, or its header is lost")
        assert message.endswith("; restore a copy, or write the file again")
        assert "salvage" not in message


def test_an_empty_file_is_salvaged_to_an_empty_file(tmp_path: Path) -> None:
    path = handmade.write_records(tmp_path / "empty.ffr", [])
    assert salvaged(path)[1] == []


def test_records_that_overlap_are_not_multiplied(tmp_path: Path) -> None:
    """The header is forged: its offsets go back and forth, so many records are the same bytes."""
    path = tmp_path / "bomb.ffr"
    content = random.Random(1).randbytes(1000)
    offsets = [12 + 12 * 40, 12 + 12 * 40 + 1000] * 20
    path.write_bytes(
        handmade.sealed(40, [__import__("zlib").crc32(content)] * 40, offsets) + content
    )
    _report, records = salvaged(path)
    assert sum(map(len, records)) <= 1000


@settings(max_examples=200)
@given(
    st.lists(st.integers(0, 700), min_size=1, max_size=12),
    st.integers(0, 300),
    st.lists(
        st.tuples(st.sampled_from(["flip", "zeros", "cut"]), st.floats(0, 1), st.integers(1, 40)),
        min_size=1, max_size=3,
    ),
    st.booleans(),
    st.integers(0, 1 << 32),
)  # fmt: skip
def test_any_damage_loses_only_the_damaged_records(
    tmp_path_factory: pytest.TempPathFactory,
    sizes: list[int],
    gap: int,
    damage: list[tuple[str, float, int]],
    header_too: bool,
    seed: int,
) -> None:
    """Salvaged records are right and in order.

    With an undamaged header, no record is lost whose bytes are unchanged.
    """
    path = tmp_path_factory.mktemp("damage") / "broken.ffr"
    records = handmade.random_records(sizes, seed)
    whole = handmade.record_bytes(records, gap)
    lowest = 0 if header_too else 12 + 12 * len(records) + gap
    data = bytearray(whole)
    for kind, where, length in damage:
        at = lowest + int(where * (len(whole) - lowest))
        if kind == "cut":
            del data[at:]
        elif at < len(data):
            part = data[at : at + length]
            data[at : at + length] = bytes(b ^ length if kind == "flip" else 0 for b in part)
    path.write_bytes(data)
    try:
        report, found = salvaged(path)
    except (TruncatedError, UnfinishedError, NotFFRecordError):
        assert header_too
        return
    assert report.records == len(records) or header_too
    if report.records != len(records):  # the count is lost, but no record may be invented
        assert all(record in records for record in found)
        return
    kept = [i for i in range(len(records)) if i not in lost(report)]
    assert found == [records[i] for i in kept]
    if not header_too:
        end = len(whole) - sum(sizes)
        for i, record in enumerate(records):
            end += len(record)
            same = bytes(data[end - len(record) : end]) == record
            assert same == (i in kept)


# ---- unfinished files ----------------------------------------------------------------------


def unfinished(path: Path, n: int | None = None) -> Path:
    writer = FileWriter(path, n, resumable=True)
    writer.write(RECORDS[:3])
    writer.flush()
    writer.write(RECORDS[3:5])
    writer.suspend()
    return path.with_name(f".{path.name}.partial")


@pytest.mark.parametrize("n", [None, N])
@pytest.mark.parametrize("name", ["data", "journal"])
def test_the_flushed_records_of_an_unfinished_file_are_salvaged(
    name: str, n: int | None, tmp_path: Path
) -> None:
    path = unfinished(tmp_path / "long.ffr", n)
    given = path if name == "data" else path.with_name(path.name + ".journal")
    report, records = salvaged(given)
    assert (records, report.lost) == (RECORDS[:5], [])


def test_a_damaged_journal_entry_loses_its_record_and_the_next(tmp_path: Path) -> None:
    path = unfinished(tmp_path / "long.ffr")
    change(path.with_name(path.name + ".journal"), 64 + 16 * 2, b"\xff\xff")
    report, records = salvaged(path)
    assert lost(report) == [2, 3]
    assert records == [RECORDS[0], RECORDS[1], RECORDS[4]]


def test_a_damaged_journal_entry_of_an_empty_record_loses_nothing(tmp_path: Path) -> None:
    """The bytes between the two known borders are exactly the next record."""
    path = unfinished(tmp_path / "long.ffr")
    change(path.with_name(path.name + ".journal"), 64 + 16, b"\xff\xff")
    assert salvaged(path)[1] == RECORDS[:5]


def test_the_whole_records_of_a_damaged_unfinished_file_are_salvaged(tmp_path: Path) -> None:
    path = unfinished(tmp_path / "long.ffr")
    spoil(path, 2)
    report, records = salvaged(path)
    assert lost(report) == [2]
    assert records == [RECORDS[i] for i in (0, 1, 3, 4)]


def test_an_unfinished_file_without_a_journal_is_an_error(tmp_path: Path) -> None:
    path = unfinished(tmp_path / "long.ffr")
    path.with_name(path.name + ".journal").unlink()
    with pytest.raises(UnfinishedError):
        salvage_file(path, tmp_path / "out.ffr")


# ---- packed folders ------------------------------------------------------------------------


@pytest.fixture
def packed(tmp_path: Path) -> Path:
    folder = tmp_path / "folder"
    folder.mkdir()
    for number in range(5):
        (folder / f"{number}.txt").write_bytes(b"%d" % number * 2000)
    pack_folder(folder, tmp_path / "packed.ffr")
    return tmp_path / "packed.ffr"


def test_a_packed_folder_with_a_damaged_header_is_restored(packed: Path, tmp_path: Path) -> None:
    change(packed, 0, b"\1\2\3\4")
    report = salvage_file(packed, tmp_path / "out.ffr")
    assert (report.kept, report.lost, report.names_kept) == (6, [], True)
    with PackedFolder(tmp_path / "out.ffr") as folder:
        assert folder.read_one("3.txt").tobytes() == b"3" * 2000


def test_lost_files_of_a_packed_folder_do_not_renumber_the_others(
    packed: Path, tmp_path: Path
) -> None:
    change(packed, packed.read_bytes().index(b"1" * 2000), b"x")
    change(packed, 0, b"\1\2\3\4")
    report = salvage_file(packed, tmp_path / "out.ffr")
    assert (report.kept, lost(report), report.in_place) == (5, [1], True)
    with PackedFolder(tmp_path / "out.ffr") as folder:
        for number in (0, 2, 3, 4):
            assert folder.read_one(f"{number}.txt").tobytes() == b"%d" % number * 2000
        with pytest.raises(SampleChecksumError):
            folder.read_one("1.txt")


@pytest.mark.parametrize("cut", [False, True])
def test_a_packed_folder_without_its_index_becomes_plain_records(
    cut: bool, packed: Path, tmp_path: Path
) -> None:
    with FileReader(packed) as reader:
        index = int(reader.get_offsets(0)[5])
    if cut:
        os.truncate(packed, packed.stat().st_size - 10)
    else:
        change(packed, index + 100, b"xyz")
    result = run(packed, tmp_path / "out.ffr")
    assert result.returncode == 1
    assert (
        "packed folder: its names are lost; its files are now records without names"
        in result.stdout
    )
    with FileReader(tmp_path / "out.ffr") as reader:
        found = [bytes(record) for record in reader.read(range(reader.n))]
    assert found == [b"%d" % number * 2000 for number in range(5)]
    assert salvage_file(packed, tmp_path / "out.ffr").names_kept is False


def test_the_command_says_that_names_are_kept(packed: Path, tmp_path: Path) -> None:
    said = "packed folder: all names are kept"
    assert run(packed, tmp_path / "1.ffr").stdout.splitlines()[0] == said
    change(packed, packed.read_bytes().index(b"1" * 2000), b"x")
    told = run(packed, tmp_path / "2.ffr").stdout
    why = "but reading a lost file still fails; `ffrecord verify` lists the lost files"
    assert f"{said}, {why}\n" in told
    records = handmade.write_records(tmp_path / "r.ffr", [b"one"])
    assert "names" not in run(records, tmp_path / "3.ffr").stdout
    assert salvage_file(records, tmp_path / "4.ffr").names_kept is None


def test_the_command_reports_that_a_truncated_file_may_have_lost_its_names(
    packed: Path, tmp_path: Path
) -> None:
    packed.write_bytes(packed.read_bytes()[:5000])
    *_, names, _ = run(packed, tmp_path / "out.ffr").stdout.splitlines()
    assert names == (
        "the last record is lost; if this was a packed folder, its names were in that record"
    )


# ---- aligned archives ----------------------------------------------------------------------

ALIGNED = [b"a" * 700, b"b" * 512, b"", b"c" * 5000, b"d"]
"""Records 0, 2, 3, 4 and 6 of an aligned archive. Records 1, 5 and 7 are padding."""


@pytest.fixture
def aligned(tmp_path: Path) -> Path:
    folder = tmp_path / "folder"
    folder.mkdir()
    for number, content in enumerate(ALIGNED):
        (folder / f"{number}").write_bytes(content)
    pack_folder(folder, tmp_path / "aligned.ffr", align=512)
    return tmp_path / "aligned.ffr"


def offset_of(path: Path, record: int) -> int:
    with FileReader(path) as reader:
        return int(reader.get_offsets(0)[record])


# The first byte of the damage, and the damage: in the header's checksum, its count, the first
# offset, a later offset, and in padding.
DAMAGE_WITHOUT_LOSS = {
    "crc": (0, b"\1\2\3\4"),
    "count": (4, b"\xff"),
    "first offset": (12 + 4 * 9, b"\1\1\1"),
    "later offset": (12 + 4 * 9 + 8 * 4, b"\xff\xff\xff"),
    "padding": (-1, b"x"),
}


@pytest.mark.parametrize("damage", DAMAGE_WITHOUT_LOSS)
def test_an_aligned_archive_is_restored_byte_for_byte(
    damage: str, aligned: Path, tmp_path: Path
) -> None:
    before = aligned.read_bytes()
    at, new = DAMAGE_WITHOUT_LOSS[damage]
    change(aligned, at if at >= 0 else offset_of(aligned, 5) + 3, new)
    report = salvage_file(aligned, tmp_path / "out.ffr")
    assert (report.kept, report.lost, report.names_kept, report.padding) == (9, [], True, 0)
    assert (tmp_path / "out.ffr").read_bytes() == before


def test_a_shard_of_an_aligned_archive_is_restored_for_its_index(
    aligned: Path, tmp_path: Path
) -> None:
    pack_folder(tmp_path / "folder", tmp_path / "shards", shard_size=2048, align=512)
    shard = tmp_path / "shards" / "PART_00000.ffr"
    before = shard.read_bytes()
    change(shard, 0, b"\1\2\3\4")
    salvage_file(shard, tmp_path / "out.ffr")
    assert (tmp_path / "out.ffr").read_bytes() == before


def test_an_aligned_archive_with_a_lost_file_stays_aligned(aligned: Path, tmp_path: Path) -> None:
    change(aligned, offset_of(aligned, 4), b"x")
    report = salvage_file(aligned, tmp_path / "out.ffr")
    assert (lost(report), report.in_place, report.padding) == ([4], True, 0)
    with PackedFolder(tmp_path / "out.ffr") as folder:
        assert folder.archive.alignment == 512
        assert folder.read_one("4").tobytes() == b"d"


@pytest.mark.parametrize("cut", [0, 10, 100_000])
def test_padding_is_left_out_if_the_names_are_lost(cut: int, aligned: Path, tmp_path: Path) -> None:
    index = offset_of(aligned, 8)
    if cut:
        os.truncate(aligned, max(aligned.stat().st_size - cut, index))
    else:
        change(aligned, index + 100, b"xyz")
    result = run(aligned, tmp_path / "out.ffr")
    assert result.returncode == 1
    assert result.stdout.splitlines()[-1].endswith(
        "5 of 9 records, 6.2 kB, 1 lost, 3 of padding left out"
    )
    assert handmade.records_in((tmp_path / "out.ffr").read_bytes()) == ALIGNED


# Files that are not aligned archives: the gap after the header that aligns the second record, and
# the records. The last record is lost.
NOT_ALIGNED = {
    "another record begins elsewhere": [b"a" * 512, b"b" * 100, bytes(412), b"c", b"d", b"lost"],
    "the first record is zeros": [bytes(12), b"b" * 100, bytes(412), b"lost"],
    "zeros do not end at a multiple": [b"a" * 512, b"b" * 100, bytes(411), b"lost"],
    "not all are zeros": [b"a" * 512, b"b" * 100, bytes(411) + b"x", b"lost"],
}


@pytest.mark.parametrize("case", NOT_ALIGNED)
def test_records_of_zeros_are_kept_in_other_files(case: str, tmp_path: Path) -> None:
    records = NOT_ALIGNED[case]
    gap = handmade.aligning_gap(len(records)) + 512 - len(records[0]) % 512
    path = handmade.write_records(tmp_path / "r.ffr", records, gap)
    change(path, path.stat().st_size - 1, b"x")
    assert salvaged(path)[1] == records[:-1]


@settings(max_examples=60)
@given(
    sizes=st.lists(st.sampled_from([0, 1, 100, 511, 512, 513, 3000]), min_size=1, max_size=8),
    data=st.data(),
)
def test_any_damage_to_an_aligned_archive_loses_only_damaged_files(
    sizes: list[int], data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    place = tmp_path_factory.mktemp("damage")
    files = dict(enumerate(handmade.random_records(sizes)))
    tree = trees.plain_tree(place / "tree", {f"{k}": files[k] for k in files})
    pack_folder(tree, place / "a.ffr", align=512)
    before = (place / "a.ffr").read_bytes()
    with PackedFolder(place / "a.ffr") as folder:
        numbers = {folder.record(f"{k}"): k for k in files}
    archives.spoil(place / "a.ffr", data)
    try:
        report = salvage_file(place / "a.ffr", place / "out.ffr")
    except FFRecordError:  # a part of the header is missing
        return
    if not report.names_kept:
        found = handmade.records_in((place / "out.ffr").read_bytes())
        left = iter(handmade.records_in(before))
        assert all(record in left for record in found), "not records in their order"
        if report.header_whole:
            kept = sorted(numbers.keys() - lost(report))
            assert found == [files[numbers[record]] for record in kept], "not only files"
        return
    if not report.lost:
        assert (place / "out.ffr").read_bytes() == before
        return
    with PackedFolder(place / "out.ffr") as folder:
        assert folder.archive.alignment == 512
        for record, k in numbers.items():
            if record not in lost(report):
                assert folder.read_one(f"{k}").tobytes() == files[k]
    assert numbers.keys() >= {*lost(report)}, "padding is never lost"


# ---- the command ---------------------------------------------------------------------------


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "ffrecord", "salvage", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)


def test_the_command_exits_0_if_nothing_was_lost(broken: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.ffr"
    result = run(broken, out)
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout == f"{out}: 8 of 8 records, 76.2 kB\n"
    assert handmade.records_in(out.read_bytes()) == RECORDS


def test_the_command_exits_1_and_names_the_lost_records(broken: Path, tmp_path: Path) -> None:
    spoil(broken, 2)
    result = run(broken, tmp_path / "out.ffr")
    assert (result.returncode, result.stderr) == (1, "")
    first, last = result.stdout.splitlines()
    assert first.startswith("LOST: record 2: its checksum is 0x")
    assert last.endswith("7 of 8 records, 71.2 kB, 1 lost")


def test_the_json_output_has_the_whole_report(broken: Path, tmp_path: Path) -> None:
    spoil(broken, 4)
    result = run(broken, tmp_path / "out.ffr", "--json")
    facts = json.loads(result.stdout)
    assert result.returncode == 1
    assert (facts["records"], facts["kept"], facts["bytes"]) == (8, 7, 6213)
    assert [each["record"] for each in facts["lost"]] == [4]
    assert facts["header_whole"] is True


def test_the_command_does_not_overwrite_its_input(broken: Path) -> None:
    before = broken.read_bytes()
    result = run(broken, broken)
    assert result.returncode == 2
    assert result.stderr.count("\n") == 1
    assert broken.read_bytes() == before


def test_a_file_that_appears_meanwhile_is_not_replaced_without_overwrite(broken: Path) -> None:
    out = broken.parent / "out.ffr"

    def progress(*_: object) -> None:
        out.write_bytes(b"precious")

    with pytest.raises(FileExistsError, match="another program created it meanwhile"):
        salvage_file(broken, out, overwrite=False, progress=progress)
    assert out.read_bytes() == b"precious"
    assert {path.name for path in out.parent.iterdir()} == {"out.ffr", broken.name}


@pytest.mark.parametrize(("content", "code"), [(b"", 4), (b"text " * 10, 3), (bytes(12), 8)])
def test_the_command_reports_a_file_without_records_in_one_line_with_its_exit_code(
    content: bytes, code: int, broken: Path
) -> None:
    broken.write_bytes(content)
    result = run(broken, broken.parent / "out.ffr")
    assert (result.returncode, result.stdout) == (code, "")
    assert result.stderr.startswith("ffrecord: ")
    assert result.stderr.count("\n") == 1


def test_the_command_reports_a_missing_file_in_one_line(tmp_path: Path) -> None:
    result = run(tmp_path / "nope.ffr", tmp_path / "out.ffr")
    assert result.returncode == 13
    assert result.stderr == f"ffrecord: {tmp_path}/nope.ffr: No such file or directory\n"


def test_the_command_replaces_a_file_only_with_force(broken: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.ffr"
    out.write_bytes(b"the last good copy")
    result = run(broken, out)
    assert (result.returncode, result.stderr.count("\n")) == (13, 1)
    assert "--force" in result.stderr
    assert out.read_bytes() == b"the last good copy"
    assert run(broken, out, "--force").returncode == 0
    assert handmade.records_in(out.read_bytes()) == RECORDS
