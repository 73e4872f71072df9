"""A session without a mount: consecutive cold files, and files without block checksums."""

from __future__ import annotations

import errno
import pickle
import random
import struct
import threading
from itertools import pairwise
from pathlib import Path
from unittest import mock

import numpy as np
import numpy.typing as npt
import pytest

from ffrecord.archive.archive import Archive
from ffrecord.disk.slabs import SlabPool
from ffrecord.errors import FFRecordError
from ffrecord_fuse.serve.blocks import CheckedContent
from ffrecord_fuse.serve.coldreads import NO_SLOT, ColdReads
from ffrecord_fuse.serve.readahead import LONGEST
from tests.support import archives, handmade, kernel, trees
from tests.support.kernel import Kernel, Reply
from tests.support.session import BLOCK, ColdReading, GatedReading, content, talk

# ---- files one after the other ---------------------------------------------------------------

IN_A_ROW = 300


@pytest.fixture
def row(tmp_path: Path) -> tuple[Path, list[bytes]]:
    """Return an archive of small files, and their contents."""
    contents = [content(9_000 + 37 * number, number) for number in range(IN_A_ROW)]
    top = tmp_path / "row"
    trees.plain_tree(top, {f"{number:03d}": each for number, each in enumerate(contents)})
    archives.pack(top, tmp_path / "row.ffr")
    return tmp_path / "row.ffr", contents


@pytest.fixture
def disk_reads(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Return a list that collects the begin and length of each read from the disk."""
    found: list[tuple[int, int]] = []
    add = ColdReads.add

    def noted(
        self: ColdReads, token: object, file: int, begin: int, length: int, *, kept: bool = False
    ) -> None:
        found.append((begin, length))
        add(self, token, file, begin, length, kept=kept)

    monkeypatch.setattr(ColdReads, "add", noted)
    return found


def read_row(talking: Kernel, number: int) -> Reply:
    return talking.ask(kernel.read(number + 2, 0, 1 << 16))


def test_consecutive_cold_files_take_few_reads(
    row: tuple[Path, list[bytes]], disk_reads: list[tuple[int, int]]
) -> None:
    archive, contents = row
    with talk(archive, reading=ColdReading) as talking:
        for number, whole in enumerate(contents):
            assert read_row(talking, number) == Reply(2, 0, whole)
        assert talking.log == []
    assert len(disk_reads) < IN_A_ROW / 10
    assert sum(length for _, length in disk_reads) < 1.1 * sum(map(len, contents))


def test_consecutive_cold_files_requested_together_are_all_answered(
    row: tuple[Path, list[bytes]],
) -> None:
    archive, contents = row
    with talk(archive, reading=GatedReading) as talking:
        for begin in range(0, IN_A_ROW, 20):
            numbers = range(begin, begin + 20)
            GatedReading.gate.clear()
            for number in numbers:
                talking.send(kernel.read(number + 2, 0, 1 << 16, 1000 + number))
            GatedReading.gate.set()
            found = {reply.unique: reply for reply in (talking.receive() for _ in numbers)}
            for number in numbers:
                unique = 1000 + number
                assert found[unique] == Reply(unique, 0, contents[number])


@pytest.mark.parametrize("verify", ["first", "off"])
def test_the_memory_of_a_window_does_not_change(tmp_path: Path, verify: str) -> None:
    """Small windows also keep their bytes while other reads from the disk take memory."""
    sizes = ([3000] * 8 + [1_300_000]) * 10
    contents = [content(size, number) for number, size in enumerate(sizes)]
    top = tmp_path / "rows"
    trees.plain_tree(top, {f"{number:03d}": each for number, each in enumerate(contents)})
    archives.pack(top, tmp_path / "rows.ffr")
    small = [number for number, size in enumerate(sizes) if size == 3000]
    rows = [small[first : first + 8] for first in range(0, len(small), 8)]
    with talk(tmp_path / "rows.ffr", verify, reading=ColdReading) as talking:
        for _ in range(2):  # the second time, all blocks are verified already
            for row in rows:
                for number in row[:3]:
                    assert read_row(talking, number) == Reply(2, 0, contents[number])
            for number in random.Random(7).sample(small, 40):
                assert read_row(talking, number) == Reply(2, 0, contents[number])
            for row in rows:
                for number in row[3:]:
                    assert read_row(talking, number) == Reply(2, 0, contents[number])


def test_windows_end_where_records_do_in_each_shard(tmp_path: Path) -> None:
    contents = [content(9_000 + 37 * number, number) for number in range(60)]
    trees.plain_tree(tmp_path / "row", {f"{n:03d}": each for n, each in enumerate(contents)})
    archives.pack(tmp_path / "row", tmp_path / "shards", shard_size=200_000)
    with Archive.open(tmp_path / "shards") as opened:
        reader = opened.reader
        assert len(reader.fnames) > 2
        for file in range(len(reader.fnames)):
            starts = reader.get_offsets(file).tolist()
            for start, end in pairwise(starts):
                assert opened.blocks.last_start(file, start) == start
                assert opened.blocks.last_start(file, end - 1) == start
            assert opened.blocks.last_start(file, starts[-1]) == starts[-1]
            assert opened.blocks.last_start(file, starts[-1] + LONGEST) == starts[-1]


def test_only_the_damaged_file_of_a_run_is_not_served(
    row: tuple[Path, list[bytes]], disk_reads: list[tuple[int, int]]
) -> None:
    archive, contents = row
    archives.damage(archive, "150", 3)
    with talk(archive, reading=ColdReading) as talking:
        for number, whole in enumerate(contents):
            due = Reply(2, errno.EIO) if number == 150 else Reply(2, 0, whole)
            assert read_row(talking, number) == due
        assert [line.split(" (")[0] for line in talking.log] == ["damaged: /150"]
    assert len(disk_reads) < IN_A_ROW / 10


def test_files_of_an_unreadable_window_are_read_one_by_one(
    row: tuple[Path, list[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bad sector spoils the window, but the files beside it can still be read."""
    archive, contents = row
    add = ColdReads.add
    failed = []

    def add_if_short(
        self: ColdReads, token: object, file: int, begin: int, length: int, *, kept: bool = False
    ) -> None:
        if length > 1 << 16:
            failed.append(length)
            self._done.append((token, FFRecordError("a bad sector"), NO_SLOT))
        else:
            add(self, token, file, begin, length, kept=kept)

    monkeypatch.setattr(ColdReads, "add", add_if_short)
    with talk(archive, reading=ColdReading) as talking:
        for number, whole in enumerate(contents):
            assert read_row(talking, number) == Reply(2, 0, whole)
        assert talking.log == []
    assert failed


@pytest.mark.parametrize("which", range(1, 5))
def test_without_memory_for_a_window_every_request_is_answered(
    row: tuple[Path, list[bytes]], monkeypatch: pytest.MonkeyPatch, which: int
) -> None:
    archive, contents = row
    take, turns = SlabPool.take, iter(range(1, 1 << 30))

    def take_or_fail(self: SlabPool, size: int) -> npt.NDArray[np.uint8]:
        if 1 << 16 < size < 3 << 19 and next(turns) == which:  # the memory of a window
            raise OSError(errno.ENOMEM, "Cannot allocate memory")
        return take(self, size)

    with talk(archive, reading=ColdReading) as talking:
        monkeypatch.setattr(SlabPool, "take", take_or_fail)
        for number, whole in enumerate(contents):
            assert read_row(talking, number) == Reply(2, 0, whole)
        assert talking.log == []
    assert next(turns) > which


def test_a_block_verified_later_is_checked_again_in_an_older_window(
    tmp_path: Path,
) -> None:
    """The archive is repaired in place while an older window is still in memory."""
    sizes = [3000] * 4 + [2 * BLOCK + 5000] + [3000] * 20
    contents = [content(size, number) for number, size in enumerate(sizes)]
    trees.plain_tree(tmp_path / "row", {f"{n:03d}": each for n, each in enumerate(contents)})
    archive = tmp_path / "row.ffr"
    archives.pack(tmp_path / "row", archive)
    archives.damage(archive, "004", BLOCK + 17)
    large, whole = 4 + 2, contents[4]
    second = kernel.read(large, BLOCK, BLOCK)
    with talk(archive, reading=ColdReading) as talking:
        for number in range(4):
            assert read_row(talking, number) == Reply(2, 0, contents[number])
        assert talking.ask(kernel.read(large, 0, BLOCK)).error == 0
        assert talking.ask(second) == Reply(2, errno.EIO)
        archives.damage(archive, "004", BLOCK + 17)  # flipped twice: the file is right again
        for _ in range(2):  # before and after a longer read has verified it
            assert talking.ask(second) == Reply(2, 0, whole[BLOCK : 2 * BLOCK])
            assert talking.ask(kernel.read(large, 0, 3 * BLOCK)) == Reply(2, 0, whole)


def test_an_error_fails_only_one_of_the_requests_that_wait_for_a_window(
    row: tuple[Path, list[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    archive, contents = row
    add, turns = ColdReads.add, iter(range(1 << 30))

    def fail(
        self: ColdReads, token: object, file: int, begin: int, length: int, *, kept: bool = False
    ) -> None:
        if kept:
            self._done.append((token, FFRecordError("a bad sector"), NO_SLOT))
        elif next(turns) == 5:  # this file is in the window: only two reads precede the window
            raise OSError(errno.ENOMEM, "Cannot allocate memory")
        else:
            add(self, token, file, begin, length)

    monkeypatch.setattr(ColdReads, "add", fail)
    with talk(archive, reading=GatedReading) as talking:
        GatedReading.gate.clear()
        for number in range(12):
            talking.send(kernel.read(number + 2, 0, 1 << 16, 1000 + number))
        GatedReading.gate.set()
        found = {reply.unique: reply for reply in (talking.receive() for _ in range(12))}
        wrong = [n for n in range(12) if found[1000 + n] != Reply(1000 + n, 0, contents[n])]
        assert len(wrong) == 1
        assert found[1000 + wrong[0]].error == errno.EIO
        assert read_row(talking, 20) == Reply(2, 0, contents[20])


# ---- archives of the original FFRecord, without block checksums ------------------------------


@pytest.fixture
def original(tmp_path: Path) -> tuple[Path, bytes]:
    """Return an archive with a file of several blocks, and the contents of that file."""
    whole = content(3 * BLOCK + 99, 6)
    index = b"piouhjgbr" + pickle.dumps({"large": 0, "small": 1})
    path = handmade.write_records(tmp_path / "original.ffr", [whole, b"small", index])
    return path, whole


def node_of(talking: Kernel, name: bytes) -> int:
    found = talking.ask(kernel.lookup(1, name)).payload
    return int(struct.unpack_from("=Q", found)[0])


def test_a_large_file_of_the_original_is_read_in_a_thread(
    original: tuple[Path, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    archive, whole = original
    gate, learn = threading.Event(), CheckedContent.learn

    def slowly(self: CheckedContent, inode: int) -> None:
        assert gate.wait(kernel.LIMIT)
        learn(self, inode)

    monkeypatch.setattr(CheckedContent, "learn", slowly)
    with talk(archive) as talking:
        large, small = node_of(talking, b"large"), node_of(talking, b"small")
        talking.send(kernel.read(large, BLOCK - 5, 10, 101))
        talking.send(kernel.read(large, 0, 10, 102))
        assert talking.ask(kernel.read(small, 0, 10)).payload == b"small"  # other reads do not wait
        assert talking.until_fence() == []
        gate.set()
        found = {reply.unique: reply for reply in (talking.receive(), talking.receive())}
        assert found == {
            101: Reply(101, 0, whole[BLOCK - 5 : BLOCK + 5]),
            102: Reply(102, 0, whole[:10]),
        }
        assert talking.ask(kernel.read(large, 3 * BLOCK, 999)).payload == whole[3 * BLOCK :]


def test_without_a_thread_no_request_for_a_file_of_the_original_waits(
    original: tuple[Path, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    archive, whole = original
    with talk(archive) as talking:
        large = node_of(talking, b"large")
        with monkeypatch.context() as patched:
            patched.setattr(
                threading.Thread, "start", mock.Mock(side_effect=RuntimeError("no thread"))
            )
            assert talking.ask(kernel.read(large, 0, 10)) == Reply(2, errno.EIO)
        assert talking.ask(kernel.read(large, 0, 10)) == Reply(2, 0, whole[:10])


def test_a_damaged_file_of_the_original_is_an_error_each_time(
    original: tuple[Path, bytes],
) -> None:
    archive, whole = original
    raw = bytearray(archive.read_bytes())
    raw[raw.index(whole[:100]) + 2 * BLOCK] ^= 1
    archive.write_bytes(raw)
    with talk(archive) as talking:
        large, small = node_of(talking, b"large"), node_of(talking, b"small")
        for _ in range(2):
            assert talking.ask(kernel.read(large, 0, 10)) == Reply(2, errno.EIO)
        assert talking.ask(kernel.read(small, 0, 10)).payload == b"small"
        assert [line.split(" (record ")[0] for line in talking.log] == ["damaged: /large"]
