"""`FileWriter(append=True)`: appending, refused files, and inherited attributes."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import struct
import subprocess
import sys
import threading
import time
import zlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ffrecord import (
    AppendError,
    BusyError,
    ChangedError,
    ClosedError,
    CountError,
    FileReader,
    FileWriter,
    HeaderChecksumError,
    LegacyFileWarning,
    NoRoomError,
    SampleChecksumError,
    UnfinishedError,
    pack_folder,
)
from ffrecord.atomic import clone
from ffrecord.records.append import SPARE_RECORDS
from tests.support import handmade, users

OLD = [b"abc", b"", b"\x00\xff\x10\x80"]
MORE = [b"four", b"", b"five" * 3000]

# The header after b"xy" was appended, with n=1, to the file that FileWriter(path, 3) made from OLD.
# A header of four records needs 60 bytes. The old one has 48, so all records move by one block.
STORED_HEADER = bytes.fromhex(
    "9ceeb34e"  # CRC-32 of everything from here to the end of the offsets
    "0400000000000000"
    "c2412435" "00000000" "807aa638" "9928e68f"
    "3010000000000000"  # record 0 starts at 48 + 4096
    "3310000000000000"
    "3310000000000000"
    "3710000000000000"
)  # fmt: skip


@pytest.fixture
def old(tmp_path: Path) -> Path:
    return handmade.write_records(tmp_path / "old.ffr", OLD)


def append(path: Path, records: list[bytes], n: int | None = None) -> None:
    with FileWriter(path, n, append=True) as writer:
        writer.write(records)


def read(path: Path) -> list[bytes]:
    return handmade.records_in(path.read_bytes())


def test_an_appended_file_equals_stored_bytes(old: Path) -> None:
    append(old, [b"xy"], n=1)
    data = old.read_bytes()
    assert data[: len(STORED_HEADER)] == STORED_HEADER
    assert len(data) == 48 + 4096 + 7 + 2
    assert data[48 + 4096 :] == b"abc\x00\xff\x10\x80xy"


def test_a_header_with_enough_room_does_not_move_the_records(tmp_path: Path) -> None:
    path = handmade.write_records(tmp_path / "room.ffr", OLD, gap=36)
    append(path, MORE, n=3)
    assert path.read_bytes() == handmade.record_bytes(OLD + MORE)


# Without records that look like the index of a packed folder. hypothesis would make such records,
# because it takes constants from our source.
PLAIN = st.binary(max_size=5000).filter(
    lambda record: not record.startswith(b"piouhjgbr") and not record.endswith(b"FFRINDEX")
)


@settings(max_examples=60)
@given(
    st.lists(PLAIN, max_size=8),
    st.lists(st.tuples(st.lists(PLAIN, max_size=5), st.booleans()), max_size=4),
    st.integers(0, 9000),
)
def test_appended_records_are_read_after_the_old_ones(
    tmp_path: Path, first: list[bytes], further: list[tuple[list[bytes], bool]], gap: int
) -> None:
    path = handmade.write_records(tmp_path / "grown.ffr", first, gap)
    expected = list(first)
    for records, announced in further:
        append(path, records, len(records) if announced else None)
        expected += records
        assert read(path) == expected
    with FileReader(path) as reader:
        assert handmade.as_bytes(reader) == expected
    assert os.listdir(tmp_path) == ["grown.ffr"]


@pytest.mark.parametrize("mode", ["auto", "aio", "buffered", "mmap"])
def test_every_mode_reads_an_appended_file(mode: str, old: Path) -> None:
    append(old, MORE)
    with FileReader(old, mode=mode) as reader:
        assert handmade.as_bytes(reader.read(range(6))) == OLD + MORE


def test_more_records_than_the_header_has_room_for_can_be_appended(old: Path) -> None:
    many = [b"%d" % i for i in range(SPARE_RECORDS * 3)]
    append(old, many)
    assert read(old) == OLD + many


def test_large_files_are_copied_in_chunks_of_any_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = handmade.random_records([1 << 20, 4096, 17, 3 << 20] * 2)
    for chunk in (clone.CHUNK, 100_000):
        monkeypatch.setattr(clone, "CHUNK", chunk)
        path = handmade.write_records(tmp_path / "large.ffr", records)
        append(path, MORE)
        assert read(path) == records + MORE


def test_only_whole_blocks_are_shared_and_the_rest_is_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Replace the ioctl, because the test's file system may not share blocks."""
    asked = []

    def clone(fd: int, request: int, argument: bytes) -> int:
        assert request == 0x4020940D
        source, begin, length, to = struct.unpack("qQQQ", argument)
        assert begin % 4096 == length % 4096 == to % 4096 == 0
        asked.append(length)
        return os.pwrite(fd, os.pread(source, length, begin), to)

    monkeypatch.setattr(fcntl, "ioctl", clone)
    records = handmade.random_records([50_000, 4096, 17, 100_000])
    path = handmade.write_records(tmp_path / "shared.ffr", records)
    append(path, MORE)
    assert read(path) == records + MORE
    assert asked == [147_456]  # 36 whole blocks of the 154,113 bytes from byte 60 on


def test_a_missing_file_is_created(tmp_path: Path) -> None:
    with FileWriter(tmp_path / "new.ffr", 3, append=True) as writer:
        assert writer.count == 0
        writer.write(OLD)
    assert (tmp_path / "new.ffr").read_bytes() == handmade.record_bytes(OLD)


def test_an_empty_file_takes_records(tmp_path: Path) -> None:
    path = handmade.write_records(tmp_path / "empty.ffr", [])
    append(path, OLD)
    assert read(path) == OLD


def test_count_includes_the_old_records_and_n_does_not(old: Path) -> None:
    with FileWriter(old, 2, append=True) as writer:
        assert writer.count == 3
        writer.write([b"1", b"2"])
        assert writer.count == 5
        with pytest.raises(CountError, match="5 records"):
            writer.write_one(b"3")


def test_fewer_records_than_announced_leave_the_file_unchanged(old: Path) -> None:
    before = old.read_bytes()
    with pytest.raises(CountError, match="1 record written, but 2 announced"):
        append(old, [b"1"], n=2)
    assert old.read_bytes() == before
    assert os.listdir(old.parent) == [old.name]


def test_an_error_during_the_append_leaves_the_file_unchanged(old: Path) -> None:
    before = old.read_bytes()
    with pytest.raises(TypeError), FileWriter(old, append=True) as writer:
        writer.write([b"1", "not bytes"])
    assert old.read_bytes() == before
    append(old, MORE)  # the lock was released
    assert read(old) == OLD + MORE


def test_a_full_disk_leaves_the_file_unchanged(old: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_args: object) -> int:
        raise OSError(errno.ENOSPC, "full")

    before = old.read_bytes()
    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", full)
        with pytest.raises(NoRoomError):
            append(old, MORE)
    assert old.read_bytes() == before
    append(old, MORE)
    assert read(old) == OLD + MORE


def test_a_reader_of_the_old_file_still_reads_it(old: Path) -> None:
    with FileReader(old) as reader:
        append(old, MORE)
        assert handmade.as_bytes(reader.read([0, 1, 2])) == OLD


# ---- refused files -------------------------------------------------------------------------


@pytest.mark.parametrize("legacy_index", [True, False])
def test_a_packed_folder_is_refused(legacy_index: bool, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "file").write_text("content")
    path = tmp_path / "packed.ffr"
    pack_folder(tmp_path / "folder", path, legacy_index=legacy_index)
    before = path.read_bytes()
    with pytest.raises(AppendError, match=r"packed\.ffr: cannot append to a packed folder"):
        FileWriter(path, append=True)
    assert path.read_bytes() == before


def test_a_shard_of_a_packed_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    for name in "abc":
        (tmp_path / "folder" / name).write_bytes(bytes(3000))
    pack_folder(tmp_path / "folder", tmp_path / "shards", shard_size=4000)
    with pytest.raises(AppendError, match="to a shard of a packed folder"):
        FileWriter(tmp_path / "shards" / "PART_00000.ffr", append=True)


def test_a_shard_of_plain_records_takes_more(tmp_path: Path) -> None:
    for name in ("PART_00000.ffr", "index.ffr"):
        handmade.write_records(tmp_path / name, OLD)
    append(tmp_path / "PART_00000.ffr", MORE)
    assert read(tmp_path / "PART_00000.ffr") == OLD + MORE


def test_a_folder_packed_by_the_original_is_refused(tmp_path: Path) -> None:
    path = handmade.write_records(tmp_path / "packed.ffr", [b"file", b"piouhjgbr\x80\x04}."])
    with pytest.raises(AppendError):
        FileWriter(path, append=True)


def test_a_damaged_header_is_refused(old: Path) -> None:
    data = bytearray(old.read_bytes())
    data[20] ^= 1
    old.write_bytes(data)
    with pytest.raises(HeaderChecksumError):
        FileWriter(old, append=True)


def test_a_truncated_file_is_refused(old: Path) -> None:
    os.truncate(old, old.stat().st_size - 1)
    with pytest.raises(SampleChecksumError, match="record 2"):
        FileWriter(old, append=True)


def test_an_unfinished_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "unfinished.ffr"
    path.write_bytes(bytes(100))
    with pytest.raises(UnfinishedError):
        FileWriter(path, append=True)


def test_a_file_without_header_checksum_gets_one_if_all_records_are_whole(tmp_path: Path) -> None:
    path = tmp_path / "legacy.ffr"
    data = handmade.record_bytes(OLD)
    path.write_bytes(bytes(4) + data[4:])
    with pytest.warns(LegacyFileWarning):
        append(path, MORE)
    assert read(path) == OLD + MORE
    path.write_bytes(bytes(4) + data[4:48] + b"aBc" + data[51:])
    with pytest.warns(LegacyFileWarning), pytest.raises(SampleChecksumError, match="record 0"):
        append(path, MORE)


def test_append_and_resumable_cannot_be_combined(old: Path) -> None:
    with pytest.raises(ValueError, match="cannot be combined"):
        FileWriter(old, append=True, resumable=True)


# ---- several writers of one file -----------------------------------------------------------


def test_two_writers_cannot_append_at_the_same_time(old: Path) -> None:
    with FileWriter(old, append=True) as writer:
        writer.write_one(b"first")
        with pytest.raises(BusyError, match=r"old\.ffr: another writer"):
            FileWriter(old, append=True)
    append(old, [b"second"])
    assert read(old) == [*OLD, b"first", b"second"]


def test_appends_from_many_threads_are_all_kept(old: Path) -> None:
    """Each thread retries while another one is writing. No appended record is lost."""

    def insist(number: int) -> None:
        while True:
            try:
                return append(old, [b"%d" % number])
            except BusyError:
                time.sleep(0.001)

    threads = [threading.Thread(target=insist, args=(number,)) for number in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(read(old)[3:]) == sorted(b"%d" % number for number in range(12))


def test_a_file_replaced_during_the_append_is_not_overwritten(old: Path) -> None:
    writer = FileWriter(old, append=True)
    writer.write_one(b"late")
    with FileWriter(old, 1) as other:
        other.write_one(b"another file")
    with pytest.raises(ChangedError, match="was replaced"):
        writer.close()
    assert read(old) == [b"another file"]
    with pytest.raises(ClosedError):
        writer.write_one(b"more")


@pytest.mark.parametrize("n", [1, None])
def test_two_writers_that_create_the_same_file_do_not_overwrite_each_other(
    n: int | None, tmp_path: Path
) -> None:
    path = tmp_path / "new.ffr"
    late = FileWriter(path, n, append=True)
    late.write_one(b"late")
    append(path, [b"early"])
    with pytest.raises(ChangedError, match="another writer created this file"):
        late.close()
    assert read(path) == [b"early"]
    assert os.listdir(tmp_path) == ["new.ffr"]


# ---- inherited attributes ------------------------------------------------------------------


@pytest.mark.parametrize("mode", [0o600, 0o644, 0o664, 0o444])
def test_an_append_keeps_the_mode_of_the_file(mode: int, old: Path) -> None:
    old.chmod(mode)
    append(old, MORE)
    assert stat.S_IMODE(old.stat().st_mode) == mode


def test_an_append_keeps_owner_and_attributes(old: Path) -> None:
    if os.geteuid() == 0:
        os.chown(old, users.NOBODY, users.NOBODY)
    attributes = True
    try:
        os.setxattr(old, "user.origin", b"camera 3")
    except OSError:
        attributes = False
    owner = (old.stat().st_uid, old.stat().st_gid)
    append(old, MORE)
    assert (old.stat().st_uid, old.stat().st_gid) == owner
    if attributes:
        assert os.getxattr(old, "user.origin") == b"camera 3"


def test_a_file_of_another_user_keeps_its_owner(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can make files of two users")
    with users.reachable(tmp_path) as folder:
        path = handmade.write_records(folder / "roots.ffr", OLD)
        path.chmod(0o644)
        script = """
try:
    ffrecord.FileWriter(sys.argv[1], append=True)
except PermissionError as error:
    print(error.filename, error.strerror)
"""
        out = users.run(script, path, imports="import ffrecord.records.writer\n")
    assert out.startswith(f"{path} appending replaces the file")
    assert read(path) == OLD
    assert os.listdir(tmp_path) == ["roots.ffr"]


# ---- file systems that share blocks --------------------------------------------------------

SHARED = """
import os, sys, zlib
from ffrecord import FileReader, FileWriter
path = sys.argv[1] + "/big.ffr"
block = os.urandom(1 << 20)
with FileWriter(path, 64) as writer:
    writer.write([block] * 64)
def used():
    os.sync()
    status = os.statvfs(sys.argv[1])
    return (status.f_blocks - status.f_bfree) * status.f_frsize
with FileReader(path) as reader:  # keeps the blocks of the old file in use
    before = used()
    with FileWriter(path, append=True) as writer:
        writer.write_one(b"more")
    print((used() - before) >> 20)
with FileReader(path) as reader:
    print(len(reader), all(r.tobytes() == block for r in reader.read(range(64))))
"""


@pytest.mark.parametrize("kind", ["xfs", "btrfs"])
def test_blocks_are_shared_where_the_file_system_can(kind: str, tmp_path: Path) -> None:
    """Mount a file system image, in a mount namespace that ends with its process."""
    image, folder = tmp_path / "image", tmp_path / "mounted"
    folder.mkdir()
    with image.open("wb") as file:
        file.truncate(400 << 20)
    mount = f"mount -o loop {image} {folder}"
    try:
        made = subprocess.run([f"mkfs.{kind}", "-q", str(image)], capture_output=True, check=False)
    except FileNotFoundError:
        pytest.skip(f"mkfs.{kind} is not installed")
    unshare = ["unshare", "--mount", "sh", "-c"]
    attempt = subprocess.run([*unshare, mount], capture_output=True, check=False)
    if made.returncode or attempt.returncode:
        pytest.skip(f"this user cannot mount {kind}")
    environment: dict[str, Any] = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    script = f'{mount} && exec "$1" -c "$2" "$3"'
    done = subprocess.run(
        [*unshare, script, "sh", sys.executable, SHARED, str(folder)],
        capture_output=True, text=True, env=environment, check=False,
    )  # fmt: skip
    grown, *rest = done.stdout.split("\n", 1)
    assert rest == ["65 True\n"], done.stderr
    assert int(grown) < 16  # MiB; a copy takes 64


def test_the_stored_header_follows_the_format() -> None:
    assert struct.unpack("<I", STORED_HEADER[:4])[0] == zlib.crc32(STORED_HEADER[4:])
    assert handmade.header_bytes([*OLD, b"xy"], gap=4096 + 48 - 60) == STORED_HEADER
