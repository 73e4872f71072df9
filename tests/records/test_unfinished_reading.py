"""`FileReader(unfinished=True)`: read the file of a resumable writer while it is written."""

from __future__ import annotations

import errno
import os
import random
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ffrecord import (
    BadRecordWarning,
    BusyError,
    ChangedError,
    FFRecordError,
    FileReader,
    FileWriter,
    LegacyFileWarning,
    NotFFRecordError,
    ReadFailedError,
    SampleChecksumError,
    StructureError,
    TruncatedError,
    UnfinishedError,
)
from ffrecord.records import resume
from ffrecord.records.resume import Journal
from tests.support import archives, handmade
from tests.support.modes import MODES
from tests.support.unfinished import (
    COUNTS,
    RECORDS,
    all_of,
    data_of,
    flushed,
    follow,
    interrupted,
    journal_of,
)

# ---- visible records -------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("n", COUNTS)
@pytest.mark.parametrize("there", [0, 1, 2, 6, len(RECORDS)])
def test_all_ways_to_read_see_the_flushed_records(
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


def test_unflushed_records_are_not_visible(path: Path) -> None:
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
def test_refresh_counts_the_records_flushed_since(mode: str, path: Path) -> None:
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


def test_flushes_of_many_records_are_all_seen(path: Path) -> None:
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
        assert [each.tolist() for each in old] == copies  # arrays returned before are unchanged
    writer.close()


def test_a_reader_takes_no_lock_and_changes_nothing(path: Path) -> None:
    writer = flushed(path, RECORDS[:3])
    files = [data_of(path), journal_of(path)]
    before = [(each.read_bytes(), each.stat().st_mtime_ns) for each in files]
    readers = [follow(path) for _ in range(3)]
    assert [all_of(reader) for reader in readers] == [RECORDS[:3]] * 3
    with pytest.raises(BusyError):
        FileWriter(path, resumable=True)
    assert [(each.read_bytes(), each.stat().st_mtime_ns) for each in files] == before
    writer._file.abandon()
    with FileWriter(path, resumable=True) as again:  # readers do not block a writer
        again.write(RECORDS[again.count :])
    for reader in readers:
        reader.refresh()
        assert all_of(reader) == RECORDS


def test_a_symlink_to_an_unfinished_file_is_followed(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    link = tmp_path / "link.ffr"
    link.symlink_to("folder/long.ffr")
    writer = flushed(link, RECORDS[:2])
    with follow(link) as reader:
        assert all_of(reader) == RECORDS[:2]
        writer.close()
        reader.refresh()
        assert (all_of(reader), reader.unfinished) == (RECORDS[:2], False)


def test_a_reader_survives_a_change_of_the_working_directory(
    path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    writer = flushed(path, RECORDS[:2])
    monkeypatch.chdir(tmp_path)
    reader = follow(Path(path.name))
    monkeypatch.chdir("/")
    writer.close()
    reader.refresh()
    assert (all_of(reader), reader.unfinished) == (RECORDS[:2], False)


# ---- the finished file -----------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("n", COUNTS)
@pytest.mark.parametrize("seen", [0, 4, len(RECORDS)])
def test_a_reader_continues_with_the_finished_file(
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
    assert all_of(reader) == RECORDS[:seen]  # until the next refresh
    assert reader.refresh() == len(RECORDS) - seen
    assert not reader.unfinished
    assert all_of(reader) == RECORDS
    assert handmade.as_bytes(views) == early == RECORDS[:seen]
    assert reader.fingerprint == FileReader(path).fingerprint
    assert reader.header_crc(0) == FileReader(path).header_crc(0)
    assert reader.refresh() == 0
    reader.validate()


def test_a_finished_file_is_read_as_usual(path: Path) -> None:
    handmade.write_records(path, RECORDS)
    with follow(path) as reader:
        assert (all_of(reader), reader.unfinished, reader.refresh()) == (RECORDS, False, 0)
        assert handmade.as_bytes(reader.iterate(follow=True)) == RECORDS


def test_a_finished_file_without_a_header_checksum_causes_a_warning(path: Path) -> None:
    path.write_bytes(bytes(4) + handmade.record_bytes(RECORDS)[4:])
    with pytest.warns(LegacyFileWarning, match=path.name):
        follow(path)


def test_the_old_file_at_the_target_is_not_mistaken_for_the_finished_one(path: Path) -> None:
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


def test_records_appended_to_the_finished_file_are_seen_too(path: Path) -> None:
    writer = flushed(path, RECORDS[:3])
    reader = follow(path)
    writer.close()
    with FileWriter(path, append=True) as more:
        more.write(RECORDS[3:])
    assert reader.refresh() == len(RECORDS) - 3
    assert (all_of(reader), reader.unfinished) == (RECORDS, False)


def test_a_reader_keeps_its_finished_file_when_another_one_is_started(
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


def test_a_partial_file_beside_its_finished_copy_counts_as_finished(path: Path) -> None:
    """The writer was killed before it could remove the partial file."""
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
def test_an_unrelated_file_at_the_target_is_not_mistaken_for_the_finished_one(
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


# ---- missing files ---------------------------------------------------------------------------


def test_a_file_without_a_writer_is_not_found(path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"neither .* resumable=True creates one") as raised:
        follow(path)
    assert raised.value.filename == os.fspath(path)


def test_the_file_of_a_writer_that_is_not_resumable_is_not_found(path: Path) -> None:
    with FileWriter(path) as writer:
        writer.write_one(b"x")
        writer.flush()
        with pytest.raises(FileNotFoundError, match="resumable=True"):
            follow(path)


def test_opening_an_unfinished_file_normally_is_an_error_that_names_the_option(
    path: Path,
) -> None:
    interrupted(path, RECORDS)
    with pytest.raises(
        FileNotFoundError, match=r"not finished: .*pass unfinished=True to read"
    ) as raised:
        FileReader(path)
    assert raised.value.filename == os.fspath(path)


def test_unfinished_error_if_the_journal_is_missing(path: Path) -> None:
    interrupted(path, RECORDS)
    reader = follow(path)
    journal_of(path).unlink()
    for look in (lambda: follow(path), reader.refresh, reader.validate):
        with pytest.raises(UnfinishedError, match=r"\.long\.ffr\.partial: its journal.* missing"):
            look()
    assert all_of(reader) == RECORDS  # seen records can still be read


@pytest.mark.parametrize("size", [0, 1, 39])
def test_unfinished_error_for_records_whose_journal_has_no_header(size: int, path: Path) -> None:
    interrupted(path, RECORDS)
    os.truncate(journal_of(path), size)
    with pytest.raises(UnfinishedError, match=r"its journal.* damaged"):
        follow(path)


@pytest.mark.parametrize("size", [0, 1, 39])
def test_a_journal_without_a_whole_header_means_no_records_yet(size: int, path: Path) -> None:
    interrupted(path, [])
    os.truncate(journal_of(path), size)
    with follow(path) as reader:
        assert (reader.n, reader.unfinished, all_of(reader)) == (0, True, [])
        writer = flushed(path, RECORDS)
        assert reader.refresh() == len(RECORDS)
        assert all_of(reader) == RECORDS
    writer.close()


def test_a_list_or_a_folder_is_refused_as_an_unfinished_file(path: Path) -> None:
    handmade.write_records(path, RECORDS)
    for several in ([path], [path, path], (path,)):
        with pytest.raises(TypeError, match=r"must be one path, not (list|tuple)"):
            FileReader(several, unfinished=True)
    with pytest.raises(NotFFRecordError, match="a folder"):
        follow(path.parent)


def test_a_fifo_is_refused_without_waiting(path: Path) -> None:
    os.mkfifo(data_of(path))
    with pytest.raises(NotFFRecordError, match="not a regular file"):
        follow(path)
    data_of(path).unlink()
    interrupted(path, RECORDS)
    journal_of(path).unlink()
    os.mkfifo(journal_of(path))
    with pytest.raises(NotFFRecordError, match="not a journal"):
        follow(path)


def test_the_error_for_an_unreadable_journal_names_it(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupted(path, RECORDS)

    def failing(*_args: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "preadv", failing)
    with pytest.raises(ReadFailedError, match=r"partial\.journal: reading at byte 0 failed"):
        follow(path)


def test_an_unfinished_file_is_as_private_as_the_file_it_replaces(path: Path) -> None:
    handmade.write_records(path, [b"old"])
    path.chmod(0o600)
    interrupted(path, RECORDS)
    for each in (data_of(path), journal_of(path)):
        assert stat.S_IMODE(each.stat().st_mode) & 0o077 == 0


# ---- changed files ---------------------------------------------------------------------------


def test_changed_error_when_the_writer_starts_again(path: Path) -> None:
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
    handmade.write_records(path, RECORDS)  # begins with the same records
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


def test_no_changed_error_for_a_reader_that_has_seen_no_record(path: Path) -> None:
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


def test_changed_error_when_seen_records_are_cut_off(path: Path) -> None:
    interrupted(path, RECORDS[:4])
    writer = FileWriter(path, resumable=True)
    writer.write(RECORDS[4:7])
    writer.flush()
    writer._file.abandon()
    reader, unaware = follow(path), follow(path)
    unaware._growing._attempt._n = 4  # type: ignore[union-attr] # as if it had not seen the last three
    os.truncate(journal_of(path), 64 + 16 * 5)
    with pytest.raises(ChangedError, match=r"partial: .* cut off .* from record 4 on"):
        reader.refresh()
    unaware.refresh()
    assert all_of(unaware) == RECORDS[:5]
    with FileWriter(path, resumable=True) as again:
        assert again.count == 5
        again.write(RECORDS[7:])  # other records in place of those that `reader` has seen
        again.flush()
        with pytest.raises(ChangedError, match="cut off"):
            reader.refresh()
        unaware.refresh()
        assert all_of(unaware) == RECORDS[:5] + RECORDS[7:]


def test_a_writer_that_resumes_after_a_kill_keeps_all_seen_records(path: Path) -> None:
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
def test_a_new_file_is_not_read_with_an_older_journal(
    older: bool, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if older:
        interrupted(path, RECORDS)
        data_of(path).unlink()
    readers = []
    start = Journal.start

    def look_and_start(journal: Journal, n: int | None, begin: int) -> None:
        readers.append(follow(path))  # the file exists, but its journal is not started yet
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
def test_only_records_with_whole_entries_are_visible(cut: int, path: Path) -> None:
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


def test_structure_error_for_a_damaged_settled_entry(path: Path) -> None:
    interrupted(path, RECORDS)
    archives.flip(journal_of(path), 64 + 16 * 1 + 3)
    with pytest.raises(StructureError, match=r"journal: the entry of record 1 is damaged"):
        follow(path)


def test_truncated_error_for_missing_settled_records(path: Path) -> None:
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
def test_any_damage_causes_an_ffrecord_error_or_right_records(
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
