"""`ffrecord.atomic.file`: direct writes of large files, and records made by `append` and `seal`.

The buffers are small here, so that small files are written as large files are. Other files of a
writer are tested in tests/records/test_writer_files.py.
"""

from __future__ import annotations

import errno
import fcntl
import io
import os
import threading
import zlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ffrecord import ClosedError, CountError, FileReader, FileWriter, NoRoomError
from ffrecord.atomic import file as atomic_file
from ffrecord.disk.slabs import SlabPool
from tests.support import handmade

OLD = handmade.record_bytes([b"what was there before"])
SMALL, DIRECT, FROM = 8192, 16384, 32768


@pytest.fixture
def target(tmp_path: Path) -> Path:
    """Return the path of an existing file that is alone in its folder."""
    (tmp_path / "folder").mkdir()
    path = tmp_path / "folder" / "target.ffr"
    path.write_bytes(OLD)
    return path


@pytest.fixture
def _small_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(atomic_file, "SMALL_BUFFER", SMALL)
    monkeypatch.setattr(atomic_file, "DIRECT_BUFFER", DIRECT)
    monkeypatch.setattr(atomic_file, "DIRECT_FROM", FROM)


@pytest.fixture
def direct(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, _small_buffers: None) -> list[int]:
    """Return the offsets of direct writes, in the order in which they are made."""
    try:
        os.close(os.open(tmp_path / "try", os.O_CREAT | os.O_WRONLY | os.O_DIRECT))
    except OSError:
        pytest.skip("this file system has no O_DIRECT")
    (tmp_path / "try").unlink()
    plain, offsets = os.pwrite, []

    def writing(fd: int, data: Any, offset: int) -> int:
        if in_background():
            assert len(data) % 4096 == 0
            assert offset % 4096 == 0
            offsets.append(offset)
        return plain(fd, data, offset)

    monkeypatch.setattr(os, "pwrite", writing)
    return offsets


def in_background() -> bool:
    return threading.current_thread().name.startswith("ffrecord-write")


def untouched(path: Path) -> bool:
    return path.read_bytes() == OLD and os.listdir(path.parent) == [path.name]


def read_all(path: Path) -> list[bytes]:
    with FileReader(path) as reader:
        return handmade.as_bytes(reader.read(range(reader.n)))


# ---- direct writes -------------------------------------------------------------------------

RECORDS = {
    "one large": [300_000],
    "many small": [1000] * 300,
    "one buffer each": [DIRECT] * 12,
    "up to the first direct write": [FROM - 12 - 24, 0],
    "one byte more": [FROM - 12 - 24, 1],
    "some empty": [0, 50_000, 0, 0, 50_000, 0],
    "odd": [1, 4095, 70_001, 4097, 65_537, 3],
}


@pytest.mark.parametrize("name", RECORDS)
@pytest.mark.parametrize("known", [True, False])
def test_a_large_file_has_the_same_bytes_as_any_other(
    known: bool, name: str, target: Path, direct: list[int]
) -> None:
    records = handmade.random_records(RECORDS[name])
    with FileWriter(target, len(records) if known else None) as writer:
        writer.write(records)
    assert read_all(target) == records
    if known:
        assert target.read_bytes() == handmade.record_bytes(records)
    if sum(RECORDS[name]) > 100_000:
        assert len(direct) > 3
        assert min(direct) >= FROM
    assert os.listdir(target.parent) == [target.name]


@settings(max_examples=60)
@given(
    st.lists(st.tuples(st.integers(0, 60_000), st.booleans()), max_size=8),
    st.booleans(),
)
def test_rewound_records_leave_no_trace(
    direct: list[int], tmp_path: Path, steps: list[tuple[int, bool]], known: bool
) -> None:
    """Write a mixture of records and failing streams. The writer rewinds after a failure."""
    kept = [handmade.random_records([size])[0] for size, breaks in steps if not breaks]
    path = tmp_path / "r.ffr"
    with FileWriter(path, len(kept) if known else None) as writer:
        for size, breaks in steps:
            if breaks and writer.count < len(kept):
                with pytest.raises(ZeroDivisionError):
                    writer.write_one(Breaking(size))
            elif not breaks:
                writer.write_one(handmade.random_records([size])[0])
    assert read_all(path) == kept
    if known:
        assert path.read_bytes() == handmade.record_bytes(kept)


class Breaking(io.RawIOBase):
    """A stream that fails after `size` bytes."""

    def __init__(self, size: int) -> None:
        self._left = size

    def read(self, size: int = -1, /) -> bytes:
        if not self._left:
            raise ZeroDivisionError
        count = min(self._left, 7000)
        self._left -= count
        return b"\xee" * count


def test_a_rewound_record_is_overwritten_after_direct_writes(
    target: Path, direct: list[int]
) -> None:
    after = handmade.random_records([200_000])[0]
    with FileWriter(target, 2) as writer:
        writer.write_one(b"before")
        with pytest.raises(ZeroDivisionError):
            writer.write_one(Breaking(280_000))
        assert len(direct) > 3
        writer.write_one(after)
    assert target.read_bytes() == handmade.record_bytes([b"before", after])


def test_a_file_that_is_rewound_after_direct_writes_has_the_right_end(
    target: Path, direct: list[int]
) -> None:
    with FileWriter(target, 1) as writer:
        with pytest.raises(ZeroDivisionError):
            writer.write_one(Breaking(280_000))
        assert direct
        writer.write_one(b"short")
    assert target.read_bytes() == handmade.record_bytes([b"short"])


@pytest.mark.parametrize("code", [errno.EINVAL, errno.ENOENT, errno.EOPNOTSUPP])
@pytest.mark.usefixtures("_small_buffers")
def test_a_file_system_without_direct_writes_gets_buffered_ones(
    code: int, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, refused = os.open, []

    def refusing(path: Any, flags: int, *args: Any, **kwargs: Any) -> int:
        if flags & os.O_DIRECT:
            refused.append(path)
            raise OSError(code, os.strerror(code), path)
        return plain(path, flags, *args, **kwargs)

    monkeypatch.setattr(os, "open", refusing)
    records = handmade.random_records([100_000, 3, 100_000])
    with FileWriter(target, 3) as writer:
        writer.write(records)
    assert len(refused) == 1, "O_DIRECT was tried again after it was refused"
    monkeypatch.undo()
    assert target.read_bytes() == handmade.record_bytes(records)


def test_direct_writes_that_fail_go_through_the_page_cache(
    direct: list[int], target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, refused = os.pwrite, []

    def refusing(fd: int, data: Any, offset: int) -> int:
        if fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_DIRECT:
            refused.append(offset)
            raise OSError(errno.EINVAL, "not supported")
        return plain(fd, data, offset)

    monkeypatch.setattr(os, "pwrite", refusing)
    records = handmade.random_records([100_000, 3, 100_000])
    with FileWriter(target, 3) as writer:
        writer.write(records)
    assert refused
    assert direct, "no direct write was tried"
    assert target.read_bytes() == handmade.record_bytes(records)


def test_a_short_write_is_continued(
    target: Path, direct: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = os.pwrite
    monkeypatch.setattr(
        os, "pwrite", lambda fd, data, offset: plain(fd, memoryview(data)[:4096], offset)
    )
    records = handmade.random_records([150_000, 20_000])
    with FileWriter(target, 2) as writer:
        writer.write(records)
    assert target.read_bytes() == handmade.record_bytes(records)


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
@pytest.mark.parametrize("which", [0, 1, 5])
def test_a_write_that_fails_in_the_background_is_an_error_and_the_target_stays(
    which: int, code: int, target: Path, direct: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last direct write of this file is its sixth: only closing can report its error."""
    plain, count = os.pwrite, 0

    def failing(fd: int, data: Any, offset: int) -> int:
        nonlocal count
        if in_background():
            count += 1
            if count > which:
                raise OSError(code, os.strerror(code))
        return plain(fd, data, offset)

    monkeypatch.setattr(os, "pwrite", failing)
    descriptors = handmade.open_descriptors()
    size = FROM + 6 * DIRECT + 100
    writer = FileWriter(target, 3)

    def write_all() -> None:
        writer.write_one(bytes(size // 2))
        writer.write_one(bytes(size // 2))
        writer.write_one(b"")
        writer.close()

    with pytest.raises(OSError, match=os.strerror(code)) as caught:
        write_all()
    assert caught.value.errno == code
    assert isinstance(caught.value, NoRoomError) == (code == errno.ENOSPC)
    assert count == which + 1
    writer.discard()
    monkeypatch.undo()
    assert untouched(target)
    assert handmade.open_descriptors() == descriptors


def test_nothing_is_written_after_a_write_has_failed(
    target: Path, direct: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = os.pwrite

    def failing(fd: int, data: Any, offset: int) -> int:
        if in_background():
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return plain(fd, data, offset)

    monkeypatch.setattr(os, "pwrite", failing)
    with FileWriter(target) as writer:
        with pytest.raises(OSError, match="error"):
            writer.write_one(bytes(300_000))
        with pytest.raises(ClosedError):
            writer.write_one(b"late")
    monkeypatch.undo()
    assert untouched(target)


def test_an_abandoned_large_file_leaves_no_thread_and_no_descriptor(
    target: Path, direct: list[int]
) -> None:
    descriptors = handmade.open_descriptors()
    writer = FileWriter(target)
    writer.write_one(bytes(300_000))
    assert direct
    writer.discard()
    assert untouched(target)
    assert handmade.open_descriptors() == descriptors
    assert not [t for t in threading.enumerate() if t.name.startswith("ffrecord-write")]


def test_a_forked_child_leaves_its_parents_large_file_alone(
    target: Path, direct: list[int]
) -> None:
    records = handmade.random_records([150_000, 150_000])
    writer = FileWriter(target, 2)
    writer.write_one(records[0])
    child = os.fork()
    if child == 0:
        try:
            writer.close()
            writer.discard()
            del writer
        finally:
            os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    writer.write_one(records[1])
    writer.close()
    assert target.read_bytes() == handmade.record_bytes(records)


# ---- append and seal -----------------------------------------------------------------------


def test_an_abandoned_file_frees_its_memory_before_its_exception_ends(
    target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slabs = SlabPool()
    monkeypatch.setattr(atomic_file, "_slabs", slabs)
    writer = FileWriter(target, 1)
    assert slabs.idle_bytes == 0
    with pytest.raises(CountError) as kept, writer:
        pass  # one record was announced, none is written
    assert kept.value.__traceback__ is not None
    assert slabs.idle_bytes == atomic_file.SMALL_BUFFER


def crcs(*records: bytes) -> list[int]:
    return [zlib.crc32(record) for record in records]


@pytest.mark.parametrize("known", [True, False])
@settings(max_examples=40)
@given(
    groups=st.lists(st.lists(st.binary(max_size=9000), max_size=5), max_size=5),
    cut=st.integers(1, 20_000),
)
@pytest.mark.usefixtures("_small_buffers")
def test_appended_and_sealed_records_equal_written_ones(
    tmp_path: Path, known: bool, groups: list[list[bytes]], cut: int
) -> None:
    records = [record for group in groups for record in group]
    with FileWriter(tmp_path / "a.ffr", len(records) if known else None) as writer:
        for group in groups:
            whole = b"".join(group)
            for at in range(0, len(whole), cut):
                writer.append(memoryview(whole)[at : at + cut])
            writer.seal(map(len, group), crcs(*group))
    assert read_all(tmp_path / "a.ffr") == records
    if known:
        assert (tmp_path / "a.ffr").read_bytes() == handmade.record_bytes(records)


def test_both_ways_of_writing_may_be_mixed(target: Path) -> None:
    with FileWriter(target, 4) as writer:
        writer.write_one(b"one")
        writer.append(memoryview(b"twothree"))
        writer.seal([3, 5], crcs(b"two", b"three"))
        writer.write_one(b"four")
        assert writer.count == 4
    assert target.read_bytes() == handmade.record_bytes([b"one", b"two", b"three", b"four"])


@pytest.mark.parametrize(
    ("lengths", "checksums"),
    [
        ([], []),
        ([9], [1]),
        ([11], [1]),
        ([5, 6], [1, 2]),
        ([10], []),
        ([10], [1, 2]),
        ([5, 5], [1]),
        ([12, -2], [1, 2]),
        ([-5, 15], [1, 2]),
    ],
    ids=str,
)
def test_lengths_that_do_not_match_the_appended_bytes_are_refused(
    lengths: list[int], checksums: list[int], target: Path
) -> None:
    with FileWriter(target, 2) as writer:
        writer.append(memoryview(b"0123456789"))
        with pytest.raises(CountError):
            writer.seal(lengths, checksums)
        assert writer.count == 0
        writer.seal([4, 6], crcs(b"0123", b"456789"))
    assert read_all(target) == [b"0123", b"456789"]


def test_more_records_than_announced_are_refused(target: Path) -> None:
    with FileWriter(target, 2) as writer:
        writer.write_one(b"x")
        writer.append(memoryview(b"ab"))
        with pytest.raises(CountError, match="2 records"):
            writer.seal([1, 1], crcs(b"a", b"b"))
        writer.seal([2], crcs(b"ab"))
    assert read_all(target) == [b"x", b"ab"]


def test_a_record_between_append_and_seal_is_refused(target: Path) -> None:
    with FileWriter(target, 2) as writer:
        writer.append(memoryview(b"ab"))
        with pytest.raises(CountError, match="no record yet"):
            writer.write_one(b"x")
        writer.seal([2], crcs(b"ab"))
        writer.write_one(b"x")
    assert read_all(target) == [b"ab", b"x"]


@pytest.mark.parametrize("n", [1, None])
def test_closing_between_append_and_seal_is_an_error_and_the_target_stays(
    n: int | None, target: Path
) -> None:
    writer = FileWriter(target, n)
    writer.append(memoryview(b"ab"))
    with pytest.raises(CountError):
        writer.close()
    assert untouched(target)


def test_an_invalid_checksum_is_refused(target: Path) -> None:
    with FileWriter(target) as writer:
        writer.append(memoryview(b"ab"))
        for wrong in (-1, 1 << 32):
            with pytest.raises(OverflowError):
                writer.seal([2], [wrong])
        writer.seal([2], crcs(b"ab"))
    assert read_all(target) == [b"ab"]


def test_nothing_is_appended_after_closing(target: Path) -> None:
    writer = FileWriter(target, 0)
    writer.close()
    with pytest.raises(ClosedError):
        writer.append(memoryview(b"ab"))
    with pytest.raises(ClosedError):
        writer.seal([], [])


def test_a_full_disk_while_appending_is_a_no_room_error(
    target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_args: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    writer = FileWriter(target, 1)
    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(NoRoomError, match="target"):
        writer.append(memoryview(bytes(2 << 20)))
    with pytest.raises(ClosedError):
        writer.append(memoryview(b"late"))
    monkeypatch.undo()
    assert untouched(target)
