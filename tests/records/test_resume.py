"""`FileWriter(resumable=True)`: resuming, crashes, damage and refused files."""

from __future__ import annotations

import errno
import os
import random
import re
import stat
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ffrecord import (
    BusyError,
    ChangedError,
    ClosedError,
    CountError,
    FFRecordError,
    FileReader,
    FileWriter,
    NoRoomError,
    ReadFailedError,
    SampleChecksumError,
    StructureError,
    TruncatedError,
    UnclosedWarning,
)
from ffrecord.atomic import file as atomic_file
from ffrecord.records import resume, writer
from tests.support import archives, handmade
from tests.support.powercut import Cut, Disk

RECORDS = handmade.random_records([5, 0, 3000, 1, 70_000, 0, 12])
COUNTS = [None, len(RECORDS)]
# The journal of b"abc" and b"", flushed one by one, with n=2 and the id 0x0123456789abcdef.
STORED_JOURNAL = bytes.fromhex(
    "4646525041525431"  # "FFRPART1"
    "0200000000000000"  # n
    "2400000000000000"  # record 0 begins at 36
    "efcdab8967452301"
    "e6157a93"
    "00000000"
    "0100000000000000"  # settled records: one, when the second was flushed
    "1f33cee5"
    "00000000"
    "0000000000000000"
    "2700000000000000" "c2412435" "878e8fa1"
    "2700000000000000" "00000000" "3e51afce"
)  # fmt: skip


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return the path of a file that is not written yet."""
    return tmp_path / "long.ffr"


def data_of(path: Path) -> Path:
    return path.with_name(f".{path.name}.partial")


def journal_of(path: Path) -> Path:
    return path.with_name(f".{path.name}.partial.journal")


def interrupted(path: Path, records: list[bytes], n: int | None = None) -> None:
    """Write and flush records, then stop like a killed process."""
    unfinished = FileWriter(path, n, resumable=True)
    unfinished.write(records)
    unfinished.flush()
    unfinished._file.abandon()


def finish(path: Path, n: int | None = None, records: list[bytes] = RECORDS) -> int:
    """Write the missing records; return how many were already written."""
    with FileWriter(path, n, resumable=True) as again:
        there = again.count
        again.write(records[there:])
    assert handmade.records_in(path.read_bytes()) == records
    assert os.listdir(path.parent) == [path.name]
    return there


# ---- resuming ------------------------------------------------------------------------------


@pytest.mark.parametrize("n", COUNTS)
@pytest.mark.parametrize("there", range(len(RECORDS) + 1))
def test_a_writer_resumes_after_the_flushed_records(there: int, n: int | None, path: Path) -> None:
    interrupted(path, RECORDS[:there], n)
    assert not path.exists()
    assert finish(path, n) == there


def test_with_a_known_count_the_file_equals_one_written_without_interruption(path: Path) -> None:
    interrupted(path, RECORDS[:4], len(RECORDS))
    finish(path, len(RECORDS))
    assert path.read_bytes() == handmade.record_bytes(RECORDS)


@settings(max_examples=40)
@given(
    st.lists(st.lists(st.binary(max_size=3000), max_size=6), max_size=6),
    st.booleans(),
    st.integers(0, 1 << 32),
)
def test_all_records_are_kept_after_any_number_of_interruptions(
    tmp_path_factory: pytest.TempPathFactory,
    groups: list[list[bytes]],
    announced: bool,
    seed: int,
) -> None:
    chance = random.Random(seed)
    path = tmp_path_factory.mktemp("often") / "often.ffr"
    records = [record for group in groups for record in group]
    n = len(records) if announced else None
    done = 0
    for group in groups:
        unfinished = FileWriter(path, n, resumable=True)
        assert unfinished.count == done
        unfinished.write(group)
        unfinished.flush()
        done += len(group)
        if chance.random() < 0.5 and done < len(records):
            unfinished.write_one(b"never flushed")
        unfinished._file.abandon()
    assert finish(path, n, records) == len(records)


def test_records_that_were_not_flushed_are_cut_off(path: Path) -> None:
    unfinished = FileWriter(path, resumable=True)
    unfinished.write(RECORDS[:3])
    unfinished.flush()
    unfinished.write(RECORDS[3:])
    unfinished._file.flush()  # in the file, but not in the journal
    unfinished._file.abandon()
    assert finish(path) == 3


def test_an_exception_keeps_the_written_records(path: Path) -> None:
    def failing() -> Iterator[bytes]:
        yield from RECORDS[:2]
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), FileWriter(path, resumable=True) as unfinished:
        unfinished.write(failing())
    assert finish(path) == 2


def test_a_suspended_writer_keeps_the_written_records(path: Path) -> None:
    unfinished = FileWriter(path, resumable=True)
    unfinished.write(RECORDS[:2])
    unfinished.suspend()
    assert finish(path) == 2


def test_a_dropped_writer_keeps_the_written_records_and_warns(path: Path) -> None:
    unfinished = FileWriter(path, resumable=True)
    unfinished.write(RECORDS[:2])
    with pytest.warns(UnclosedWarning, match=r"never closed: the records so far \(2\) are kept"):
        del unfinished
    assert finish(path) == 2


def test_a_discarded_writer_leaves_no_file(path: Path) -> None:
    interrupted(path, RECORDS)
    FileWriter(path, resumable=True).discard()
    assert os.listdir(path.parent) == []


def test_a_file_with_too_few_records_can_be_resumed(path: Path) -> None:
    n = len(RECORDS)
    with (
        pytest.raises(CountError, match="resume to write the rest"),
        FileWriter(path, n, resumable=True) as unfinished,
    ):
        unfinished.write(RECORDS[:2])
    assert finish(path, n) == 2


def test_a_writer_flushes_by_itself_after_many_bytes(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "FLUSH_BYTES", 1000)
    unfinished = FileWriter(path, resumable=True)
    unfinished.write([b"x" * 400] * 7)
    unfinished._file.abandon()
    assert finish(path, records=[b"x" * 400] * 8) == 6


def test_appended_and_sealed_records_are_flushed_like_others(path: Path) -> None:
    unfinished = FileWriter(path, resumable=True)
    unfinished.append(memoryview(b"abcdef"))
    unfinished.seal([2, 0, 4], [zlib.crc32(b"ab"), 0, zlib.crc32(b"cdef")])
    unfinished.append(memoryview(b"no record yet"))
    unfinished.flush()
    unfinished._file.abandon()
    assert finish(path, records=[b"ab", b"", b"cdef", b"more"]) == 3


def test_an_ordinary_writer_can_be_flushed_and_leaves_no_file(path: Path) -> None:
    ordinary = FileWriter(path)
    ordinary.write_one(b"x")
    ordinary.flush()
    ordinary.suspend()
    assert os.listdir(path.parent) == []


def test_an_existing_file_stays_until_the_end(path: Path) -> None:
    handmade.write_records(path, [b"old"])
    path.chmod(0o600)
    interrupted(path, RECORDS[:3])
    assert handmade.records_in(path.read_bytes()) == [b"old"]
    assert stat.S_IMODE(data_of(path).stat().st_mode) == 0o600  # as private as the old file
    assert finish(path) == 3
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_large_file_is_renamed_and_not_copied(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resume, "ROOM", 4096)
    interrupted(path, [b"x" * 30_000] * 3)
    inode = data_of(path).stat().st_ino
    finish(path, records=[b"x" * 30_000] * 4)
    assert path.stat().st_ino == inode


def test_more_records_than_the_header_has_room_for_are_copied(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resume, "ROOM", 48)
    interrupted(path, RECORDS[:5])
    assert finish(path) == 5


def test_direct_writes_can_be_flushed_and_resumed(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(atomic_file, "DIRECT_FROM", 1 << 20)
    records = handmade.random_records([700_001] * 40)
    interrupted(path, records[:25])
    assert finish(path, records=records) == 25


@pytest.mark.parametrize("length", [1, 200, 246, 250])
def test_long_names_have_separate_partial_files(length: int, tmp_path: Path) -> None:
    one, other = tmp_path / ("x" * length), tmp_path / ("x" * (length - 1) + "y")
    interrupted(one, RECORDS[:1])
    interrupted(other, RECORDS[:2])
    assert len(os.listdir(tmp_path)) == 4
    for name, there in ((one, 1), (other, 2)):
        with FileWriter(name, resumable=True) as again:
            assert again.count == there
        assert handmade.records_in(name.read_bytes()) == RECORDS[:there]


# ---- the journal's bytes -------------------------------------------------------------------


def journal_bytes(n: int, begin: int, identity: int, settled: int, records: list[bytes]) -> bytes:
    """Build a journal as docs/format.md specifies it."""
    head = struct.pack("<8sqqQ", b"FFRPART1", n, begin, identity)
    crc = zlib.crc32(head)
    count = struct.pack("<q", settled)
    out = head + struct.pack("<I4x", crc) + count + struct.pack("<I12x", zlib.crc32(count, crc))
    end = begin
    for number, record in enumerate(records):
        end += len(record)
        entry = struct.pack("<qI", end, zlib.crc32(record))
        check = zlib.crc32(struct.pack("<q", number) + entry, crc)
        out += entry + struct.pack("<I", check)
    return out


def test_a_journal_equals_stored_bytes(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    number = 0x0123456789ABCDEF.to_bytes(8, "little")
    monkeypatch.setattr(os, "urandom", lambda count: number[:count])
    unfinished = FileWriter(path, 2, resumable=True)
    for record in (b"abc", b""):
        unfinished.write_one(record)
        unfinished.flush()
    unfinished._file.abandon()
    assert journal_of(path).read_bytes() == STORED_JOURNAL
    assert journal_bytes(2, 36, 0x0123456789ABCDEF, 1, [b"abc", b""]) == STORED_JOURNAL
    assert data_of(path).read_bytes() == bytes(36) + b"abc"


def test_a_stored_partial_file_is_resumed(path: Path) -> None:
    data_of(path).write_bytes(bytes(36) + b"abc")
    journal_of(path).write_bytes(STORED_JOURNAL)
    with FileWriter(path, 2, resumable=True) as again:
        assert again.count == 2
    assert path.read_bytes() == handmade.record_bytes([b"abc", b""])


# ---- crashes -------------------------------------------------------------------------------


@pytest.mark.parametrize("cut", range(1, 33))
def test_a_torn_journal_loses_only_the_records_being_flushed(cut: int, path: Path) -> None:
    interrupted(path, RECORDS[:4])
    interrupted(path, RECORDS[4:6])  # records 0 to 3 are settled now
    os.truncate(journal_of(path), journal_of(path).stat().st_size - cut)
    assert finish(path) == (5 if cut <= 16 else 4)


def interrupt_second(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Make the second call of an `os` function raise InterruptedError."""
    plain, calls = getattr(os, name), iter(range(2))

    def interrupted(*args: object) -> Any:
        if next(calls) == 1:
            raise InterruptedError
        return plain(*args)

    monkeypatch.setattr(os, name, interrupted)


@settings(max_examples=100)
@given(
    st.lists(st.tuples(st.integers(0, 4000), st.booleans()), min_size=1, max_size=40),
    st.sampled_from(["written", "in the file", "in the journal"]),
    st.booleans(),
    st.integers(0, 1 << 32),
)
def test_a_power_cut_loses_no_flushed_record(
    tmp_path_factory: pytest.TempPathFactory,
    plan: list[tuple[int, bool]],
    moment: str,
    announced: bool,
    seed: int,
) -> None:
    """Cut the power at one `moment`.

    "written" is right after the last `write_one`. "in the file" is after the buffer was written to
    the file. "in the journal" is after the last journal entry was written and before its fsync.
    """
    chance = random.Random(seed)
    path = tmp_path_factory.mktemp("cut") / "long.ffr"
    records = [chance.randbytes(size) for size, _ in plan]
    n = len(records) if announced else None
    disk = Disk(path.parent)
    with disk.watching(), pytest.MonkeyPatch.context() as monkeypatch:
        unfinished = FileWriter(path, n, resumable=True)
        flushed = 0
        for record, (_, flush) in zip(records, plan, strict=True):
            unfinished.write_one(record)
            if flush:
                unfinished.flush()
                flushed = unfinished.count
        if moment == "in the file":
            unfinished._file.flush()
        if moment == "in the journal":
            interrupt_second(monkeypatch, "fsync")
            with pytest.raises(InterruptedError):
                unfinished.flush()
        cut = Cut("any", "any", chance)
        images = {each: disk.image(each, cut) for each in (data_of(path), journal_of(path))}
        unfinished._file.abandon()
    for each, image in images.items():
        assert isinstance(image, bytes)  # both names are on disk from the start
        each.write_bytes(image)
    with FileReader(path, unfinished=True) as reader:
        seen = handmade.as_bytes(reader)
    with FileWriter(path, n, resumable=True) as again:
        there = again.count
        assert flushed <= there <= len(records)
        assert seen == records[:there]  # a reader sees the same records
        again.write(records[there:])
    assert handmade.records_in(path.read_bytes()) == records
    assert os.listdir(path.parent) == [path.name]


# ---- damage --------------------------------------------------------------------------------


def settled(path: Path) -> None:
    """Write six records; the first four are settled."""
    interrupted(path, RECORDS[:4])
    interrupted(path, RECORDS[4:6])


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 0x10
    path.write_bytes(data)


def test_a_damaged_settled_record_is_an_error_and_nothing_is_cut_off(path: Path) -> None:
    settled(path)
    at = data_of(path).read_bytes().index(RECORDS[2])
    flip(data_of(path), at)
    before = data_of(path).read_bytes(), journal_of(path).read_bytes()
    with pytest.raises(SampleChecksumError, match="record 2"):
        FileWriter(path, resumable=True)
    assert (data_of(path).read_bytes(), journal_of(path).read_bytes()) == before
    flip(data_of(path), at)
    assert finish(path) == 6


def test_a_truncated_partial_file_is_an_error(path: Path) -> None:
    settled(path)
    os.truncate(data_of(path), resume.ROOM + 100)
    with pytest.raises(TruncatedError, match="record 2"):
        FileWriter(path, resumable=True)


def test_a_damaged_settled_entry_is_an_error(path: Path) -> None:
    settled(path)
    flip(journal_of(path), 64 + 16 * 1 + 3)
    with pytest.raises(StructureError, match="record 1"):
        FileWriter(path, resumable=True)


def test_a_journal_without_its_settled_entries_is_an_error(path: Path) -> None:
    settled(path)
    os.truncate(journal_of(path), 64 + 16 * 2)
    with pytest.raises(StructureError, match="record 2"):
        FileWriter(path, resumable=True)


def test_records_without_a_journal_are_an_error_and_are_kept(path: Path) -> None:
    settled(path)
    before = data_of(path).read_bytes()
    journal_of(path).unlink()
    with pytest.raises(StructureError, match="journal is missing or damaged"):
        FileWriter(path, resumable=True)
    assert data_of(path).read_bytes() == before


@settings(max_examples=150)
@given(st.data())
def test_any_damage_causes_an_error_or_right_records(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("damage") / "long.ffr"
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(resume, "ROOM", 200)
        settled(path)
        which = data.draw(st.sampled_from([data_of(path), journal_of(path)]))
        archives.spoil(which, data)
        try:
            with FileWriter(path, resumable=True) as again:
                there = again.count
                again.write(RECORDS[there:])
        except FFRecordError:
            return
        assert handmade.records_in(path.read_bytes()) == RECORDS


# ---- refused files and finished files ------------------------------------------------------


def test_another_count_is_refused(path: Path) -> None:
    interrupted(path, RECORDS[:2], 7)
    for n in (6, None):
        with pytest.raises(CountError, match="started with n=7, not n="):
            FileWriter(path, n, resumable=True)
    assert finish(path, 7) == 2


def test_two_writers_cannot_share_one_partial_file(path: Path) -> None:
    first = FileWriter(path, resumable=True)
    first.write(RECORDS[:2])
    with pytest.raises(BusyError, match=f"^{re.escape(str(path))}: another writer"):
        FileWriter(path, resumable=True)
    first.write(RECORDS[2:])
    first.close()
    assert handmade.records_in(path.read_bytes()) == RECORDS


def test_a_forked_child_leaves_its_parents_file_and_lock_alone(path: Path) -> None:
    first = FileWriter(path, resumable=True)
    first.write(RECORDS[:2])
    pid = os.fork()
    if pid == 0:
        del first
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    with pytest.raises(BusyError):
        FileWriter(path, resumable=True)
    first.write(RECORDS[2:])
    first.close()
    assert handmade.records_in(path.read_bytes()) == RECORDS


def test_nothing_can_be_flushed_after_closing(path: Path) -> None:
    first = FileWriter(path, resumable=True)
    first.close()
    with pytest.raises(ClosedError):
        first.flush()
    assert handmade.records_in(path.read_bytes()) == []


def test_a_full_disk_keeps_the_flushed_records(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unfinished = FileWriter(path, resumable=True)
    unfinished.write(RECORDS[:3])
    unfinished.flush()

    def full(*_args: object) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", full)
        unfinished.write(RECORDS[3:])
        with pytest.raises(NoRoomError):
            unfinished.close()
    assert finish(path) == 3


def test_no_room_for_the_finished_file_keeps_all_records(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unfinished = FileWriter(path, resumable=True)
    unfinished.write(RECORDS)

    def full(*_args: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(resume, "take_over", full)
        with pytest.raises(NoRoomError):
            unfinished.close()
    assert finish(path) == len(RECORDS)


def test_a_journal_left_over_from_a_finished_file_is_ignored(path: Path) -> None:
    """A writer killed between its last two steps leaves such a journal."""
    interrupted(path, RECORDS[:3])
    data_of(path).unlink()
    assert finish(path) == 0


def state_of(path: Path) -> tuple[bytes, int, int, int]:
    status = path.stat()
    return path.read_bytes(), status.st_ino, status.st_mtime_ns, status.st_mode


@pytest.mark.parametrize("records", [RECORDS, [b""], []], ids=len)
@pytest.mark.parametrize("written", ["resumably", "plainly", "by hand"])
def test_a_finished_file_of_n_records_is_not_touched(
    written: str, records: list[bytes], path: Path
) -> None:
    n = len(records)
    if written == "by hand":
        handmade.write_records(path, records)
    else:
        with FileWriter(path, n, resumable=written == "resumably") as first:
            first.write(records)
    path.chmod(0o640)
    before = state_of(path)
    assert finish(path, n, records) == n
    for end in ("close", "flush", "suspend", "discard"):
        again = FileWriter(path, n, resumable=True)
        assert (again.count, again.n) == (n, n)
        getattr(again, end)()
        del again
    assert state_of(path) == before
    assert os.listdir(path.parent) == [path.name]


def test_a_finished_file_takes_no_more_records(path: Path) -> None:
    finish(path, len(RECORDS))
    before = state_of(path)
    again = FileWriter(path, len(RECORDS), resumable=True)
    with pytest.raises(
        CountError, match="already has all of its 7 records; pass a larger n or leave it out"
    ):
        again.write_one(b"more")
    with pytest.raises(
        CountError, match="already has all of its 7 records; pass a larger n to write it again"
    ):
        again.append(memoryview(b"more"))
    again.close()
    with pytest.raises(ClosedError):
        again.flush()
    assert state_of(path) == before


@pytest.mark.parametrize("end", ["close", "suspend", "discard"])
def test_a_closed_writer_of_a_finished_file_keeps_no_descriptor(end: str, path: Path) -> None:
    finish(path, len(RECORDS))
    before = len(os.listdir("/proc/self/fd"))
    again = FileWriter(path, len(RECORDS), resumable=True)
    getattr(again, end)()
    assert len(os.listdir("/proc/self/fd")) == before


def test_several_writers_may_open_a_finished_file_at_once(path: Path) -> None:
    finish(path, len(RECORDS))
    writers = [FileWriter(path, len(RECORDS), resumable=True) for _ in range(2)]
    assert [each.count for each in writers] == [len(RECORDS)] * 2
    for each in writers:
        each.close()


def test_the_journal_of_a_writer_killed_after_renaming_its_file_is_removed(
    path: Path,
) -> None:
    interrupted(path, RECORDS, len(RECORDS))
    handmade.write_records(path, RECORDS)
    data_of(path).unlink()
    before = state_of(path)
    assert finish(path, len(RECORDS)) == len(RECORDS)
    assert state_of(path) == before
    assert not journal_of(path).exists()


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


@pytest.mark.parametrize(
    "make",
    [
        lambda path: handmade.write_records(path, RECORDS[:-1]),
        lambda path: truncate(handmade.write_records(path, RECORDS)),
        lambda path: archives.flip(handmade.write_records(path, RECORDS), 20),
        lambda path: path.write_bytes(b"no record file"),
        lambda path: path.write_bytes(b""),
    ],
    ids=["fewer", "truncated", "damaged header", "another kind", "empty"],
)
def test_any_other_file_at_the_target_is_replaced(make: Any, path: Path) -> None:
    make(path)
    assert finish(path, len(RECORDS)) == 0
    assert path.read_bytes() == handmade.record_bytes(RECORDS)


def test_a_finished_file_with_more_records_is_replaced_with_a_warning(path: Path) -> None:
    handmade.write_records(path, [*RECORDS, b"more"])
    with pytest.warns(
        UserWarning, match=f"{path.name}: .* {len(RECORDS) + 1} records, .*replace it"
    ):
        assert finish(path, len(RECORDS)) == 0
    assert path.read_bytes() == handmade.record_bytes(RECORDS)


def test_an_unreadable_file_at_the_target_is_not_replaced(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    finish(path, len(RECORDS))
    before = state_of(path)

    def failing(*_args: object) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patched:
        patched.setattr(os, "preadv", failing)
        with pytest.raises(ReadFailedError, match=path.name):
            FileWriter(path, len(RECORDS), resumable=True)
    assert state_of(path) == before


def test_without_n_a_finished_file_is_written_again(path: Path) -> None:
    finish(path, records=RECORDS[:2])
    assert finish(path, records=RECORDS[2:]) == 0


def test_a_reader_of_the_folder_does_not_see_the_partial_file(path: Path) -> None:
    finish(path)
    interrupted(path.with_name("another.ffr"), RECORDS[:2])
    with FileReader(path.parent) as reader:
        assert reader.fnames == [os.fspath(path)]


def test_interrupted_records_do_not_replace_a_file_finished_since(
    tmp_path: Path,
) -> None:
    path = tmp_path / "file.ffr"
    left = FileWriter(path, resumable=True)
    left.write_one(b"old")
    left.suspend()
    with FileWriter(path) as plain:
        plain.write_one(b"plain")
    os.utime(path, ns=(left_at := (tmp_path / ".file.ffr.partial").stat().st_mtime_ns + 1,) * 2)
    with pytest.raises(
        ChangedError, match=r"another writer finished .* after .*partial was interrupted"
    ):
        FileWriter(path, resumable=True)
    assert handmade.records_in(path.read_bytes()) == [b"plain"]
    os.utime(path, ns=(left_at - 2,) * 2)  # an older file may be replaced, as always
    with FileWriter(path, resumable=True) as again:
        assert again.count == 1
    assert handmade.records_in(path.read_bytes()) == [b"old"]
