"""`FileReader(unfinished=True)`: a resumable writer's file, read while it is written."""

from __future__ import annotations

import errno
import itertools
import multiprocessing
import os
import pickle
import random
import signal
import stat
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ffrecord import (
    BadRecordWarning,
    BusyError,
    ChangedError,
    ClosedError,
    FFRecordError,
    FileReader,
    FileWriter,
    LegacyFileWarning,
    NotFFRecordError,
    ReadFailedError,
    SampleChecksumError,
    StructureError,
    TimedOutError,
    TruncatedError,
    UnfinishedError,
)
from ffrecord.atomic import file as atomic_file
from ffrecord.format.journal import journal_path, partial_path
from ffrecord.records import iteration, resume, unfinished
from ffrecord.records.resume import Journal
from tests.support import archives, handmade, kills

MODES = ["auto", "aio", "buffered", "mmap"]
RECORDS = handmade.random_records([5, 0, 3000, 1, 70_000, 0, 12, 4096, 1])
COUNTS = [None, len(RECORDS)]
# A file of which the number of records is not known is copied when it is closed, if that saves much
# room, or else renamed.
ENDS = {"renamed": 64, "copied": 1 << 20, "copied for want of room": 48}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "long.ffr"


@pytest.fixture(params=ENDS)
def end(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """How a file of an unknown number of records gets its name."""
    room = ENDS[request.param]
    if request.param == "renamed":
        room = 12 + 12 * len(RECORDS)
    monkeypatch.setattr(resume, "ROOM", room)
    return str(request.param)


def data_of(path: Path) -> Path:
    return Path(partial_path(os.fspath(path)))


def journal_of(path: Path) -> Path:
    return Path(journal_path(os.fspath(data_of(path))))


def flushed(path: Path, records: list[bytes], n: int | None = None) -> FileWriter:
    """A writer at work, that has flushed these records one by one."""
    writer = FileWriter(path, n, resumable=True)
    for record in records[writer.count :]:
        writer.write_one(record)
        writer.flush()
    return writer


def interrupted(path: Path, records: list[bytes], n: int | None = None) -> None:
    """What a killed writer leaves that had flushed these records one by one."""
    writer = flushed(path, records, n)
    writer._file.abandon()


def follow(path: Path, **options: Any) -> FileReader:
    return FileReader(path, unfinished=True, **options)


def all_of(reader: FileReader) -> list[bytes]:
    return handmade.as_bytes(reader)


# ---- what is seen ----------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("n", COUNTS)
@pytest.mark.parametrize("there", [0, 1, 2, 6, len(RECORDS)])
def test_what_was_flushed_is_read_in_every_way(
    there: int, n: int | None, mode: str, path: Path
) -> None:
    writer = flushed(path, RECORDS[:there], n)
    due = RECORDS[:there]
    with follow(path, mode=mode) as reader:
        assert (reader.n, len(reader), reader.unfinished) == (there, there, True)
        assert all_of(reader) == due
        assert handmade.as_bytes(reader[::-1]) == due[::-1]
        assert handmade.as_bytes(reader.read([-1] * 3 if due else [])) == due[-1:] * 3
        assert handmade.as_bytes(reader.read_async(range(there)).result()) == due
        assert reader.record_sizes().tolist() == [len(each) for each in due]
        assert b"".join(b"".join(handmade.as_bytes(reader.stream(i))) for i in range(there)) == (
            b"".join(due)
        )
        assert [i for task in reader.tasks(2) for i in task] == list(range(there))
        assert [i for k in range(3) for i in reader.partition(k, 3)] == list(range(there))
        assert reader.find_damaged(0, there) == []
        reader.validate()
        with pytest.raises(IndexError, match=rf"{path.name}: record {there} is out of range"):
            reader.read_one(there)
    writer._file.abandon()


def test_records_that_were_not_flushed_are_not_seen(path: Path) -> None:
    writer = flushed(path, RECORDS[:3])
    writer.write(RECORDS[3:])
    writer._file.flush()  # in the file, but not in the journal
    with follow(path) as reader:
        assert all_of(reader) == RECORDS[:3]
        assert reader.refresh() == 0
        writer.flush()
        assert reader.refresh() == len(RECORDS) - 3
        assert all_of(reader) == RECORDS
    writer.close()


@pytest.mark.parametrize("mode", MODES)
def test_refresh_counts_what_was_flushed_since(mode: str, path: Path) -> None:
    writer = FileWriter(path, resumable=True)
    reader = follow(path, mode=mode)
    fingerprints = {reader.fingerprint}
    kept = []
    for number, record in enumerate(RECORDS, 1):
        writer.write_one(record)
        assert reader.refresh() == 0
        writer.flush()
        assert (reader.refresh(), reader.refresh(), reader.n) == (1, 0, number)
        kept.append(reader[-1])
        fingerprints.add(reader.fingerprint)
    assert len(fingerprints) == len(RECORDS) + 1
    assert handmade.as_bytes(kept) == RECORDS == all_of(reader)
    writer.close()


def test_many_records_of_one_flush_and_many_flushes(path: Path) -> None:
    writer = FileWriter(path, resumable=True)
    reader = follow(path)
    before: list[bytes] = []
    chance = random.Random(3)
    for count in [1, 1023, 1, 1, 5000, 0, 3]:
        some = [chance.randbytes(5) for _ in range(count)]
        writer.write(some)
        writer.flush()
        old = reader.checksums, reader.get_offsets(0)
        copies = [each.tolist() for each in old]
        assert reader.refresh() == count
        before += some
        assert all_of(reader) == before
        assert [each.tolist() for each in old] == copies  # what was handed out stays as it was
    writer.close()


def test_a_reader_takes_no_lock_and_leaves_everything_as_it_is(path: Path) -> None:
    writer = flushed(path, RECORDS[:3])
    files = [data_of(path), journal_of(path)]
    before = [(each.read_bytes(), each.stat().st_mtime_ns) for each in files]
    readers = [follow(path) for _ in range(3)]
    assert [all_of(reader) for reader in readers] == [RECORDS[:3]] * 3
    with pytest.raises(BusyError):
        FileWriter(path, resumable=True)
    assert [(each.read_bytes(), each.stat().st_mtime_ns) for each in files] == before
    writer._file.abandon()
    with FileWriter(path, resumable=True) as again:  # not held back by readers
        again.write(RECORDS[again.count :])
    for reader in readers:
        reader.refresh()
        assert all_of(reader) == RECORDS


def test_a_symlink_leads_to_the_file_that_its_writer_writes(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    link = tmp_path / "link.ffr"
    link.symlink_to("folder/long.ffr")
    writer = flushed(link, RECORDS[:2])
    with follow(link) as reader:
        assert all_of(reader) == RECORDS[:2]
        writer.close()
        reader.refresh()
        assert (all_of(reader), reader.unfinished) == (RECORDS[:2], False)


def test_a_reader_goes_on_when_its_process_has_another_folder(
    path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    writer = flushed(path, RECORDS[:2])
    monkeypatch.chdir(tmp_path)
    reader = follow(Path(path.name))
    monkeypatch.chdir("/")
    writer.close()
    reader.refresh()
    assert (all_of(reader), reader.unfinished) == (RECORDS[:2], False)


# ---- the end ---------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("n", COUNTS)
@pytest.mark.parametrize("seen", [0, 4, len(RECORDS)])
def test_a_reader_goes_on_with_the_finished_file(
    seen: int, n: int | None, mode: str, end: str, path: Path
) -> None:
    writer = flushed(path, RECORDS[:seen], n)
    reader = follow(path, mode=mode)
    early = handmade.as_bytes(views := list(reader))
    before = data_of(path).stat().st_ino
    writer.write(RECORDS[seen:])
    writer.close()
    assert (path.stat().st_ino == before) == (n is not None or end == "renamed")
    assert reader.unfinished
    assert all_of(reader) == RECORDS[:seen]  # until it is told to look
    assert reader.refresh() == len(RECORDS) - seen
    assert not reader.unfinished
    assert all_of(reader) == RECORDS
    assert handmade.as_bytes(views) == early == RECORDS[:seen]
    assert reader.fingerprint == FileReader(path).fingerprint
    assert reader.header_crc(0) == FileReader(path).header_crc(0)
    assert reader.refresh() == 0
    reader.validate()


def test_a_finished_file_is_read_as_ever(path: Path) -> None:
    handmade.write_records(path, RECORDS)
    with follow(path) as reader:
        assert (all_of(reader), reader.unfinished, reader.refresh()) == (RECORDS, False, 0)
        assert handmade.as_bytes(reader.iterate(follow=True)) == RECORDS


def test_a_finished_file_without_a_header_checksum_is_warned_of(path: Path) -> None:
    path.write_bytes(bytes(4) + handmade.record_bytes(RECORDS)[4:])
    with pytest.warns(LegacyFileWarning, match=path.name):
        follow(path)


def test_the_file_that_will_be_replaced_is_not_taken_for_the_finished_one(path: Path) -> None:
    handmade.write_records(path, [b"old", b"older"])
    writer = FileWriter(path, resumable=True)
    with follow(path) as reader:
        assert reader.n == 0
        writer.write(RECORDS)
        writer.flush()
        assert reader.refresh() == len(RECORDS)
        writer.close()
        reader.refresh()
        assert (all_of(reader), reader.unfinished) == (RECORDS, False)


def test_records_that_were_appended_since_are_seen_too(path: Path) -> None:
    writer = flushed(path, RECORDS[:3])
    reader = follow(path)
    writer.close()
    with FileWriter(path, append=True) as more:
        more.write(RECORDS[3:])
    assert reader.refresh() == len(RECORDS) - 3
    assert (all_of(reader), reader.unfinished) == (RECORDS, False)


def test_a_file_that_was_finished_before_another_was_begun_is_the_one_that_is_read(
    path: Path,
) -> None:
    writer = flushed(path, RECORDS[:3])
    reader = follow(path)
    writer.write(RECORDS[3:])
    writer.close()
    another = flushed(path, [b"something", b"else"])
    reader.refresh()
    assert (all_of(reader), reader.unfinished) == (RECORDS, False)
    another.discard()


def test_a_partial_file_beside_its_finished_copy_is_not_waited_for(path: Path) -> None:
    """Its writer was killed before it could remove it."""
    interrupted(path, RECORDS)
    reader = follow(path)
    assert reader.unfinished
    handmade.write_records(path, RECORDS, gap=100)
    os.utime(path, ns=(data_of(path).stat().st_mtime_ns + 1,) * 2)
    assert (reader.refresh(), reader.unfinished) == (0, False)
    assert all_of(reader) == RECORDS
    assert not follow(path).unfinished


@pytest.mark.parametrize(
    "other",
    [
        handmade.record_bytes(RECORDS[:-1]),
        handmade.record_bytes([*RECORDS, b"more"]),
        handmade.record_bytes(RECORDS[::-1]),
        b"no record file",
    ],
    ids=["fewer", "more", "others", "another kind"],
)
def test_another_file_that_gets_the_name_meanwhile_is_not_the_finished_one(
    other: bytes, path: Path
) -> None:
    writer = flushed(path, RECORDS)
    reader = follow(path)
    path.write_bytes(other)
    os.utime(path, ns=(data_of(path).stat().st_mtime_ns + 1,) * 2)
    for each in (reader, follow(path)):
        assert (each.refresh(), each.unfinished) == (0, True)
        assert all_of(each) == RECORDS
    writer.close()
    reader.refresh()
    assert (all_of(reader), reader.unfinished) == (RECORDS, False)


# ---- what is not there -----------------------------------------------------------------------


def test_a_file_that_nobody_has_begun_is_not_found(path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"neither .* resumable=True begins one") as raised:
        follow(path)
    assert raised.value.filename == os.fspath(path)


def test_the_file_of_a_writer_that_is_not_resumable_is_not_found(path: Path) -> None:
    with FileWriter(path) as writer:
        writer.write_one(b"x")
        writer.flush()
        with pytest.raises(FileNotFoundError, match="resumable=True"):
            follow(path)


def test_an_unfinished_file_is_not_found_without_asking_for_it_which_the_error_says(
    path: Path,
) -> None:
    interrupted(path, RECORDS)
    with pytest.raises(FileNotFoundError, match=r"not finished: .*unfinished=True reads") as raised:
        FileReader(path)
    assert raised.value.filename == os.fspath(path)


def test_unfinished_error_without_a_journal(path: Path) -> None:
    interrupted(path, RECORDS)
    reader = follow(path)
    journal_of(path).unlink()
    for look in (lambda: follow(path), reader.refresh, reader.validate):
        with pytest.raises(UnfinishedError, match=r"\.long\.ffr\.partial: its journal.* missing"):
            look()
    assert all_of(reader) == RECORDS  # what was seen can be read


@pytest.mark.parametrize("size", [0, 1, 39])
def test_unfinished_error_for_records_whose_journal_has_no_header(size: int, path: Path) -> None:
    interrupted(path, RECORDS)
    os.truncate(journal_of(path), size)
    with pytest.raises(UnfinishedError, match=r"its journal.* damaged"):
        follow(path)


@pytest.mark.parametrize("size", [0, 1, 39])
def test_a_journal_that_is_being_begun_is_waited_for(size: int, path: Path) -> None:
    interrupted(path, [])
    os.truncate(journal_of(path), size)
    with follow(path) as reader:
        assert (reader.n, reader.unfinished, all_of(reader)) == (0, True, [])
        writer = flushed(path, RECORDS)
        assert reader.refresh() == len(RECORDS)
        assert all_of(reader) == RECORDS
    writer.close()


def test_a_list_or_a_folder_is_not_one_unfinished_file(path: Path) -> None:
    handmade.write_records(path, RECORDS)
    for several in ([path], [path, path], (path,)):
        with pytest.raises(TypeError, match=r"by one path, not by (list|tuple)"):
            FileReader(several, unfinished=True)
    with pytest.raises(NotFFRecordError, match="a folder"):
        follow(path.parent)


def test_a_fifo_is_not_waited_for(path: Path) -> None:
    os.mkfifo(data_of(path))
    with pytest.raises(NotFFRecordError, match="not a regular file"):
        follow(path)
    data_of(path).unlink()
    interrupted(path, RECORDS)
    journal_of(path).unlink()
    os.mkfifo(journal_of(path))
    with pytest.raises(NotFFRecordError, match="not a journal"):
        follow(path)


def test_a_journal_that_cannot_be_read_is_named(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupted(path, RECORDS)

    def failing(*_args: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "preadv", failing)
    with pytest.raises(ReadFailedError, match=r"partial\.journal: reading at byte 0 failed"):
        follow(path)


# ---- what changes ----------------------------------------------------------------------------


def test_changed_error_when_the_writer_begins_anew(path: Path) -> None:
    writer = flushed(path, RECORDS[:3])
    reader = follow(path)
    writer.discard()
    for records in ([], RECORDS):
        interrupted(path, records)
        for _ in range(2):
            with pytest.raises(ChangedError, match=r"long\.ffr: .*3 records that this reader"):
                reader.refresh()
    assert all_of(reader) == RECORDS[:3]
    assert all_of(follow(path)) == RECORDS


def test_changed_error_when_the_writer_gives_up_and_an_older_file_stays(path: Path) -> None:
    handmade.write_records(path, RECORDS)  # which begins with the same records
    writer = flushed(path, RECORDS[:3])
    reader = follow(path)
    writer.discard()
    with pytest.raises(ChangedError):
        reader.refresh()


@pytest.mark.parametrize("others", [RECORDS[:2], RECORDS[1:], [*RECORDS[:2], b"x", b"y"]], ids=len)
def test_changed_error_when_the_writer_gives_up_and_another_file_gets_the_name(
    others: list[bytes], path: Path
) -> None:
    writer = flushed(path, RECORDS[:3])
    reader = follow(path)
    writer.discard()
    handmade.write_records(path, others)
    with pytest.raises(ChangedError):
        reader.refresh()
    assert all_of(reader) == RECORDS[:3]


def test_changed_error_for_the_journal_of_another_writer(path: Path) -> None:
    other = path.with_name("other.ffr")
    interrupted(other, RECORDS[:1] * 5)
    writer = flushed(path, RECORDS[:1] * 3)
    writer.flush()  # now all are settled
    reader = follow(path)
    journal_of(other).replace(journal_of(path))
    with pytest.raises(ChangedError):
        reader.refresh()
    writer._file.abandon()


def test_nothing_has_changed_for_a_reader_that_has_seen_nothing(path: Path) -> None:
    handmade.write_records(path, [b"old"])
    writer = flushed(path, [])
    reader = follow(path)
    writer.discard()
    assert (reader.refresh(), reader.unfinished) == (0, True)
    writer = flushed(path, RECORDS[:2])
    assert reader.refresh() == 2
    writer.close()
    reader.refresh()
    assert (all_of(reader), reader.unfinished) == (RECORDS[:2], False)


def test_changed_error_when_records_that_were_seen_are_cut_off(path: Path) -> None:
    interrupted(path, RECORDS[:4])
    writer = FileWriter(path, resumable=True)
    writer.write(RECORDS[4:7])
    writer.flush()
    writer._file.abandon()
    reader, unaware = follow(path), follow(path)
    unaware._growing._attempt._n = 4  # type: ignore[union-attr] # has not seen the last three
    os.truncate(journal_of(path), 64 + 16 * 5)
    with pytest.raises(ChangedError, match=r"partial: .* cut off .* from record 4 on"):
        reader.refresh()
    unaware.refresh()
    assert all_of(unaware) == RECORDS[:5]
    with FileWriter(path, resumable=True) as again:
        assert again.count == 5
        again.write(RECORDS[7:])  # others, in the place of those that were seen
        again.flush()
        with pytest.raises(ChangedError, match="cut off"):
            reader.refresh()
        unaware.refresh()
        assert all_of(unaware) == RECORDS[:5] + RECORDS[7:]


def test_a_writer_that_goes_on_after_a_kill_changes_nothing_that_was_seen(path: Path) -> None:
    reader = None
    for there in range(len(RECORDS) + 1):
        interrupted(path, RECORDS[:there])
        with data_of(path).open("ab") as file:
            file.write(b"written and never flushed")
        with journal_of(path).open("ab") as file:
            file.write(b"half an entry")
        reader = reader or follow(path)
        reader.refresh()
        assert all_of(reader) == RECORDS[:there]


@pytest.mark.parametrize("older", [True, False])
def test_a_new_file_is_not_read_by_an_older_journal(
    older: bool, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if older:
        interrupted(path, RECORDS)
        data_of(path).unlink()
    readers = []
    start = Journal.start

    def look_and_start(journal: Journal, n: int | None, begin: int) -> None:
        readers.append(follow(path))  # the file is there by now, without a journal of its own
        start(journal, n, begin)

    monkeypatch.setattr(Journal, "start", look_and_start)
    writer = flushed(path, RECORDS[::-1])
    (reader,) = readers
    assert (reader.n, reader.unfinished) == (0, True)
    reader.refresh()
    assert all_of(reader) == RECORDS[::-1]
    writer.close()


# ---- damage ----------------------------------------------------------------------------------


@pytest.mark.parametrize("cut", range(1, 33))
def test_only_whole_entries_are_seen(cut: int, path: Path) -> None:
    interrupted(path, RECORDS[:4])
    writer = FileWriter(path, resumable=True)
    writer.write(RECORDS[4:6])
    writer.flush()
    writer._file.abandon()
    whole = journal_of(path).read_bytes()
    os.truncate(journal_of(path), len(whole) - cut)
    reader = follow(path)
    assert all_of(reader) == RECORDS[: 5 if cut <= 16 else 4]
    journal_of(path).write_bytes(whole)
    reader.refresh()
    assert all_of(reader) == RECORDS[:6]


def test_structure_error_for_an_entry_that_was_certain(path: Path) -> None:
    interrupted(path, RECORDS)
    archives.flip(journal_of(path), 64 + 16 * 1 + 3)
    with pytest.raises(StructureError, match=r"journal: the entry of record 1 is damaged"):
        follow(path)


def test_truncated_error_for_records_that_were_certain(path: Path) -> None:
    interrupted(path, RECORDS)
    os.truncate(data_of(path), resume.ROOM + 100)
    with pytest.raises(TruncatedError, match="record 2"):
        follow(path)


@pytest.mark.parametrize("mode", MODES)
def test_a_damaged_record_is_named_by_its_file_and_number(mode: str, path: Path) -> None:
    interrupted(path, RECORDS)
    archives.flip(data_of(path), resume.ROOM + 100)
    with follow(path, mode=mode) as reader:
        for read in (lambda: reader[2], lambda: list(reader), lambda: list(reader.stream(2))):
            with pytest.raises(SampleChecksumError) as raised:
                read()
            assert (raised.value.path, raised.value.record) == (os.fspath(data_of(path)), 2)
    with follow(path, mode=mode, on_error="skip") as reader:
        with pytest.warns(BadRecordWarning, match="record 2"):
            found = all_of(reader)
        assert found == RECORDS[:2] + RECORDS[3:]
    with follow(path, check_data=False, mode=mode) as reader:
        assert len(reader[2]) == len(RECORDS[2])


@given(st.data())
def test_any_damage_gives_an_error_of_ours_or_right_records(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("damage") / "long.ffr"
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(resume, "ROOM", 200)
        interrupted(path, RECORDS[:6])
        reader = follow(path)
        which = data.draw(st.sampled_from([data_of(path), journal_of(path)]))
        archives.spoil(which, data)
        for early in (reader, None):
            try:
                looking = follow(path) if early is None else early
                looking.refresh()
                found = all_of(looking)
            except FFRecordError:
                continue
            assert found == RECORDS[: len(found)]


# ---- following -------------------------------------------------------------------------------


class Clock:
    """Time that passes only when somebody sleeps; what happens meanwhile is `events`, in order."""

    def __init__(self, *events: Callable[[], object]) -> None:
        self.now = 0.0
        self.pauses: list[float] = []
        self._events = iter(events)

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds
        next(self._events, lambda: None)()

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def use_clock(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Clock]:
    def use(*events: Callable[[], object]) -> Clock:
        clock = Clock(*events)
        monkeypatch.setattr(time, "sleep", clock.sleep)
        monkeypatch.setattr(time, "monotonic", clock.monotonic)
        return clock

    return use


def add(writer: FileWriter, *records: bytes) -> Callable[[], None]:
    def flush() -> None:
        writer.write(records)
        writer.flush()

    return flush


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("n", COUNTS)
def test_following_gives_each_record_when_it_is_flushed_and_ends_with_the_file(
    n: int | None, mode: str, end: str, path: Path, use_clock: Callable[..., Clock]
) -> None:
    writer = flushed(path, RECORDS[:2], n)
    use_clock(
        lambda: writer.write(RECORDS[2:3]), add(writer, RECORDS[3]), lambda: None,
        add(writer, *RECORDS[4:7]), lambda: None, lambda: writer.write(RECORDS[7:]), writer.close,
    )  # fmt: skip
    reader = follow(path, mode=mode)
    seen = []
    counts = []
    for record in reader.iterate(follow=True):
        seen.append(record)
        counts.append(reader.n)
    assert handmade.as_bytes(seen) == RECORDS
    assert counts == [2] * 2 + [4] * 2 + [7] * 3 + [9] * 2
    assert not reader.unfinished


def test_following_begins_where_it_is_told_to(path: Path, use_clock: Callable[..., Clock]) -> None:
    for start, first in ((3, 3), (5, 5), (-2, 3), (0, 0)):
        writer = flushed(path, RECORDS[:5])
        use_clock(add(writer, *RECORDS[5:]), writer.close)
        with follow(path) as reader:
            assert handmade.as_bytes(reader.iterate(start)) == RECORDS[first:5]
            assert handmade.as_bytes(reader.iterate(start, follow=True)) == RECORDS[first:]
        path.unlink()


def test_a_beginning_beyond_the_records_is_an_error(path: Path) -> None:
    interrupted(path, RECORDS[:5])
    reader = follow(path)
    for start in (6, -6):
        for options in ({}, {"follow": True}):
            with pytest.raises(IndexError, match=f"record {start} is out of range: there are 5"):
                reader.iterate(start, **options)


def test_the_time_limit_is_an_error_that_says_where_to_go_on(
    path: Path, use_clock: Callable[..., Clock]
) -> None:
    writer = flushed(path, RECORDS[:2])
    reader = follow(path)
    clock = use_clock()
    following = reader.iterate(follow=True, timeout=30)
    assert handmade.as_bytes([next(following), next(following)]) == RECORDS[:2]
    with pytest.raises(TimedOutError, match=r"long\.ffr: .* within 30 s .*iterate\(2, foll") as it:
        next(following)
    assert clock.now == pytest.approx(30)
    assert isinstance(it.value, TimeoutError)
    assert str(pickle.loads(pickle.dumps(it.value))) == str(it.value)
    assert reader.unfinished
    add(writer, *RECORDS[2:])()
    writer.close()
    assert handmade.as_bytes(reader.iterate(2, follow=True)) == RECORDS[2:]


def test_the_time_limit_begins_anew_with_each_record(
    path: Path, use_clock: Callable[..., Clock]
) -> None:
    writer = flushed(path, [])
    clock = use_clock(
        *[event for record in RECORDS for event in (lambda: None, add(writer, record))],
        writer.close,
    )
    # The second pause ends at 0.003 s: with one limit for all, the third record would be too late.
    found = follow(path).iterate(follow=True, timeout=0.004)
    assert handmade.as_bytes(found) == RECORDS
    assert clock.now > 0.004


def test_a_time_limit_of_nothing_looks_once(path: Path, use_clock: Callable[..., Clock]) -> None:
    writer = flushed(path, RECORDS[:1])
    clock = use_clock()
    following = follow(path).iterate(1, follow=True, timeout=0)
    add(writer, RECORDS[1])()
    assert next(following).tobytes() == RECORDS[1]
    with pytest.raises(TimedOutError):
        next(following)
    assert clock.pauses == []
    writer.discard()


def test_waiting_is_no_busy_loop(path: Path, use_clock: Callable[..., Clock]) -> None:
    interrupted(path, [])
    clock = use_clock()
    with pytest.raises(TimedOutError):
        list(follow(path).iterate(follow=True, timeout=600))
    assert len(clock.pauses) < 600 / iteration.LONGEST_PAUSE + 20
    assert max(clock.pauses) == iteration.LONGEST_PAUSE


@pytest.mark.parametrize("options", [{"timeout": 1}, {"follow": True, "timeout": -1}])
def test_a_time_limit_that_makes_no_sense_is_refused(options: Any, path: Path) -> None:
    interrupted(path, [])
    with pytest.raises(ValueError, match="timeout"):
        follow(path).iterate(**options)


def test_closing_a_reader_ends_its_following(path: Path, use_clock: Callable[..., Clock]) -> None:
    interrupted(path, RECORDS[:1])
    reader = follow(path)
    use_clock(lambda: None, reader.close)
    following = reader.iterate(follow=True)
    assert next(following).tobytes() == RECORDS[0]
    with pytest.raises(ClosedError):
        next(following)
    with pytest.raises(ClosedError):
        reader.refresh()


def test_a_reader_that_is_closed_while_it_looks_stays_closed(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = flushed(path, RECORDS[:1])
    reader = follow(path)
    descriptors = handmade.open_descriptors()
    look = unfinished.UnfinishedFile.look

    def look_and_close(growing: unfinished.UnfinishedFile) -> None:
        look(growing)
        reader.close()

    add(writer, RECORDS[1])()
    monkeypatch.setattr(unfinished.UnfinishedFile, "look", look_and_close)
    reader.refresh()
    with pytest.raises(ClosedError):
        reader.read_one(0)
    assert handmade.open_descriptors() < descriptors
    writer.close()


def test_following_raises_when_the_writer_begins_anew(
    path: Path, use_clock: Callable[..., Clock]
) -> None:
    writer = flushed(path, RECORDS[:2])
    use_clock(writer.discard, lambda: None)
    following = follow(path).iterate(follow=True)
    assert handmade.as_bytes([next(following), next(following)]) == RECORDS[:2]
    with pytest.raises(ChangedError):
        next(following)


def test_following_leaves_damaged_records_out_if_told_to(
    path: Path, use_clock: Callable[..., Clock]
) -> None:
    writer = flushed(path, RECORDS[:3])
    archives.flip(data_of(path), resume.ROOM + 100)
    use_clock(add(writer, *RECORDS[3:]))
    found = follow(path, on_error="skip").iterate(follow=True, timeout=1)
    with pytest.warns(BadRecordWarning, match="record 2"):
        some = [next(found).tobytes() for _ in range(len(RECORDS) - 1)]
    assert some == RECORDS[:2] + RECORDS[3:]
    with pytest.raises(TimedOutError):
        next(found)
    writer.discard()


# ---- other processes -------------------------------------------------------------------------


def test_a_pickled_reader_sees_what_it_saw_and_then_more(end: str, path: Path) -> None:
    writer = flushed(path, RECORDS[:3])
    pickled = pickle.dumps(follow(path))
    for more in (add(writer), add(writer, *RECORDS[3:5]), add(writer, *RECORDS[5:]), writer.close):
        more()
        reader = pickle.loads(pickled)
        assert (all_of(reader), reader.unfinished) == (RECORDS[:3], True)
        assert reader.partition(1, 3) == pickle.loads(pickled).partition(1, 3)
        reader.refresh()
        assert all_of(reader) == RECORDS[: writer.count]
    assert not reader.unfinished
    with flushed(path, [b"another"]):
        again = pickle.loads(pickle.dumps(reader))  # the finished file is what it reads
        assert (all_of(again), again.unfinished) == (RECORDS, False)
        again = pickle.loads(pickled)  # of which it saw the beginning
        assert all_of(again) == RECORDS[:3]
        again.refresh()
        assert (all_of(again), again.unfinished) == (RECORDS, False)


def test_changed_error_for_a_pickled_reader_whose_records_are_gone(path: Path) -> None:
    writer = flushed(path, RECORDS[:3])
    pickled = pickle.dumps(follow(path))
    writer.discard()
    for others in (RECORDS[:2], RECORDS[1:]):
        with flushed(path, others) as writer:
            with pytest.raises(ChangedError, match="pickled"):
                pickle.loads(pickled)
            writer.discard()


def test_a_reader_that_was_pickled_before_there_were_unfinished_ones_opens(path: Path) -> None:
    handmade.write_records(path, RECORDS)
    state = FileReader(path).__getstate__()
    del state["unfinished"]
    reader = FileReader.__new__(FileReader)
    reader.__setstate__(state)
    assert all_of(reader) == RECORDS


def test_a_forked_child_reads_and_looks_for_itself(path: Path) -> None:
    writer = flushed(path, RECORDS[:3])
    reader = follow(path)
    add(writer, *RECORDS[3:])()
    pid = os.fork()
    if pid == 0:
        right = all_of(reader) == RECORDS[:3] and reader.refresh() == len(RECORDS) - 3
        os._exit(0 if right and all_of(reader) == RECORDS else 1)
    assert os.waitpid(pid, 0)[1] == 0
    assert reader.n == 3
    writer.close()


def test_descriptors_are_given_back(path: Path) -> None:
    before = handmade.open_descriptors()
    writer = flushed(path, RECORDS[:2])
    reader = follow(path)
    for record in RECORDS[2:]:
        add(writer, record)()
        reader.refresh()
    writer.close()
    reader.refresh()
    assert all_of(reader) == RECORDS
    reader.close()
    assert handmade.open_descriptors() == before


# ---- races -----------------------------------------------------------------------------------

CALLS = ("stat", "open", "fstat", "preadv")
Event: TypeAlias = "Callable[[FileWriter, Path], None]"


def _finish(writer: FileWriter, path: Path) -> None:
    writer.write(RECORDS[writer.count :])
    writer.close()


def _finish_and_begin_another(writer: FileWriter, path: Path) -> None:
    _finish(writer, path)
    interrupted(path, [b"another"])


def _begin_anew(writer: FileWriter, path: Path) -> None:
    writer.discard()
    interrupted(path, [b"another"])


EVENTS: dict[str, tuple[Event, list[list[bytes]]]] = {
    "flushed": (lambda writer, path: add(writer, RECORDS[4])(), [RECORDS[:4], RECORDS[:5]]),
    "finished": (_finish, [RECORDS[:4], RECORDS]),
    "finished, and another begun": (
        _finish_and_begin_another,
        [RECORDS[:4], RECORDS, [b"another"]],
    ),
    "given up": (lambda writer, path: writer.discard(), [RECORDS[:4]]),
    "begun anew": (_begin_anew, [RECORDS[:4], [b"another"]]),
}


LAST: dict[str, list[bytes]] = {
    "flushed": RECORDS[:5], "finished": RECORDS, "finished, and another begun": RECORDS,
    "given up": [], "begun anew": [],
}  # fmt: skip
"""The records that a reader sees in the end which has seen the first ones; none: they are gone."""


class Race:
    """Has something happen before one of the calls that a look makes, or counts them."""

    def __init__(self, at: int, event: Callable[[], None]) -> None:
        self._at, self._event = at, event
        self.calls = 0

    def wrap(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            self.calls += 1
            if self.calls == self._at + 1:
                self._event()
            return call(*args, **kwargs)

        return wrapped

    def run(self, look: Callable[[], FileReader]) -> FileReader:
        with pytest.MonkeyPatch.context() as patch:
            for name in CALLS:
                patch.setattr(os, name, self.wrap(getattr(os, name)))
            return look()


def test_a_journal_that_is_begun_anew_while_a_reader_opens_the_file_is_not_mixed_with_the_old_one(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file is there before its journal is begun: until then an older journal is beside it."""
    others = [b"something else", b"x" * 5000, b""]
    start = Journal.start
    finds: list[tuple[bool, list[bytes]]] = []

    def start_while_a_reader_opens(journal: Journal, n: int | None, begin: int) -> None:
        def go_on() -> None:
            start(journal, n, begin)
            data_of(path).write_bytes(bytes(begin) + b"".join(others))
            ends = itertools.accumulate(map(len, others), initial=begin)
            journal.add(list(ends)[1:], [zlib.crc32(each) for each in others])

        race = Race(at, go_on)
        reader = race.run(lambda: follow(path))
        finds.append((race.calls > at, all_of(reader)))
        reader.refresh()
        assert all_of(reader) == (others if finds[-1][0] else [])

    at = 0
    while not finds or finds[-1][0]:
        interrupted(path, RECORDS[:3])
        data_of(path).unlink()
        with monkeypatch.context() as patch:
            patch.setattr(Journal, "start", start_while_a_reader_opens)
            writer = FileWriter(path, resumable=True)
        writer.discard()
        at += 1
    assert at > 5
    assert all(found in ([], others) for _, found in finds)
    assert others in [found for _, found in finds]


@pytest.mark.parametrize("what", EVENTS)
@pytest.mark.parametrize("first", [True, False], ids=["opening", "looking again"])
def test_whatever_happens_between_two_steps_of_a_look_it_sees_one_state_or_says_so(
    first: bool, what: str, end: str, path: Path
) -> None:
    event, possible = EVENTS[what]
    at, seen = 0, set()
    while True:
        writer = flushed(path, RECORDS[:4])
        early = None if first else follow(path)

        def look(early: FileReader | None = early) -> FileReader:
            if early is None:
                return follow(path)
            early.refresh()
            return early

        found: list[bytes] = []
        race = Race(at, lambda writer=writer: event(writer, path))  # type: ignore[misc]
        try:
            reader = race.run(look)
            found = all_of(reader)
            assert found in possible
            if early is not None:
                assert found[:4] == RECORDS[:4]
            seen.add(len(found))
            if race.calls > at:  # it has happened: whoever looks once more sees it
                reader.refresh()
                assert all_of(reader) == (LAST[what] if found[:1] != [b"another"] else found)
        except (ChangedError, FileNotFoundError):
            assert what == "given up" or (not LAST[what] and (early is not None or found))
        writer.discard()
        for each in (path, data_of(path), journal_of(path)):
            each.unlink(missing_ok=True)
        if race.calls <= at:
            break
        at += 1
    assert at > 5  # else nothing was tried
    assert seen


# ---- kills -----------------------------------------------------------------------------------

SHORT, LONG = 6, 60
KILLS = [SHORT, pytest.param(LONG, marks=pytest.mark.long)]
MANY = handmade.random_records([50_000, 0, 123_456, 7, 4096] * 5, seed=2)


def write_resumably(path: Path, n: int | None, tell: Callable[[int], None]) -> None:
    with FileWriter(path, n, resumable=True) as writer:
        while writer.count < len(MANY):
            writer.write_one(MANY[writer.count])
            if writer.count % 3 == 0:
                writer.flush()
                tell(writer.count)


@pytest.mark.parametrize("n", [None, len(MANY)])
def test_a_reader_sees_a_beginning_of_the_records_after_every_call_of_the_writer(
    n: int | None, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(atomic_file, "SMALL_BUFFER", 16 << 10)
    told = 0
    readers: dict[str, FileReader] = {}

    def tell(count: int) -> None:
        nonlocal told
        told = count

    def watch() -> None:
        """In the writer's process, after each of its calls: what was flushed is seen, if a call has
        put it there that one may be more."""
        try:
            fresh = follow(path, mode="buffered")
        except FileNotFoundError:
            assert not told
            return
        for each in (fresh, readers.setdefault("first", fresh)):
            before = each.n
            added = each.refresh()
            assert each.n == before + added >= told
            assert handmade.as_bytes(each[before:]) == MANY[before : each.n]
        assert fresh.n == readers["first"].n

    def work(_tell: Callable[[int], None]) -> None:
        write_resumably(path, n, tell)

    kills.run(work, None, watch)
    assert handmade.records_in(path.read_bytes()) == MANY


@pytest.mark.parametrize("count", KILLS)
@pytest.mark.parametrize("n", [None, len(MANY)])
def test_a_reader_outlives_writers_that_are_killed_and_sees_all_in_the_end(
    n: int | None, count: int, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(atomic_file, "SMALL_BUFFER", 16 << 10)
    monkeypatch.setattr(os, "fsync", lambda _fd: None)  # a kill loses nothing that was written

    def work(tell: Callable[[int], None]) -> None:
        write_resumably(path, n, tell)

    _, calls, _ = kills.run(work, None)
    path.unlink()
    for number, point in enumerate(kills.points(calls, count)):
        reader, flushed_so_far = None, 0
        for stop in (point, kills.points(calls, count)[number // 2], None):
            told, _, _ = kills.run(work, stop)
            flushed_so_far = max(flushed_so_far, told if stop is not None else len(MANY))
            try:
                reader = reader or follow(path)
            except FileNotFoundError:
                assert not flushed_so_far
                continue
            reader.refresh()
            assert reader.n >= flushed_so_far or not reader.unfinished
            assert all_of(reader) == MANY[: reader.n]
        assert reader is not None
        assert (reader.n, reader.unfinished) == (len(MANY), False)
        path.unlink()


def _consume(path: str, mode: str, out: str) -> None:
    """A consumer: waits for the file to be begun, and writes down all that it gets."""
    while True:
        try:
            reader = FileReader(path, unfinished=True, mode=mode)
            break
        except FileNotFoundError:
            time.sleep(0.001)
    with open(out, "wb") as file:
        for record in reader.iterate(follow=True, timeout=600):
            file.write(len(record).to_bytes(8, "little") + record.tobytes())


def records_written_down(raw: bytes) -> Iterator[bytes]:
    while raw:
        size = int.from_bytes(raw[:8], "little")
        yield raw[8 : 8 + size]
        raw = raw[8 + size :]


@pytest.mark.parametrize("count", KILLS)
@pytest.mark.parametrize("n", [None, len(MANY)])
@pytest.mark.parametrize("mode", ["auto", "mmap"])
def test_a_process_follows_another_that_is_killed_at_any_moment_and_started_again(
    mode: str, n: int | None, count: int, tmp_path: Path
) -> None:
    path, out = tmp_path / "long.ffr", tmp_path / "seen"
    consumer = multiprocessing.get_context("fork").Process(
        target=_consume, args=(str(path), mode, str(out))
    )
    consumer.start()

    def work() -> None:
        write_resumably(path, n, lambda _: None)

    seed = random.randrange(1 << 32)
    print(f"seed {seed}")  # which moments they were; the next run has others
    chance = random.Random(seed)
    try:
        for _ in range(count):
            if not kills.run_for(chance.uniform(0, 0.05), work, lambda: None) and path.exists():
                break
        if not path.exists():
            work()
        consumer.join(600)
        assert consumer.exitcode == 0
    finally:
        if consumer.is_alive() and consumer.pid is not None:
            os.kill(consumer.pid, signal.SIGKILL)
            consumer.join()
    assert list(records_written_down(out.read_bytes())) == MANY


def test_who_may_not_read_the_file_may_not_read_it_unfinished(path: Path) -> None:
    handmade.write_records(path, [b"old"])
    path.chmod(0o600)
    interrupted(path, RECORDS)
    for each in (data_of(path), journal_of(path)):
        assert stat.S_IMODE(each.stat().st_mode) & 0o077 == 0
