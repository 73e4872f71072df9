"""Check that descriptors, AIO contexts and memory do not grow, however long a reader is used.

AIO contexts are counted in /proc/self/maps, not in fs.aio-nr, which the whole machine shares.
"""

from __future__ import annotations

import gc
import os
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from ffrecord import FFRecordError, FileReader, FileWriter, PackedFolder, pack_folder
from ffrecord.archive import index_copy
from tests.support import handmade

MODES = ["auto", "aio", "buffered", "mmap"]
N = 500
MIB = 1 << 20

Batch = Callable[[FileReader, list[int]], object]


@dataclass(frozen=True)
class Use:
    """Resources that this process uses."""

    descriptors: int
    contexts: int
    memory: int

    @staticmethod
    def now() -> Use:
        gc.collect()
        return Use(handmade.open_descriptors(), handmade.aio_contexts(), handmade.resident_bytes())

    def expect_flat_since(self, before: Use, slack: int) -> None:
        assert self.descriptors == before.descriptors
        assert self.contexts <= before.contexts + 2  # the tests have at most two batches in flight
        assert self.memory - before.memory < slack


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a file that all tests share."""
    records = handmade.random_records([3000 + 7 * i for i in range(N)])
    return handmade.write_records(tmp_path_factory.mktemp("leaks") / "leaks.ffr", records)


def read_now(reader: FileReader, indices: list[int]) -> object:
    return reader.read(indices)


def read_ahead(reader: FileReader, indices: list[int]) -> object:
    first, second = reader.read_async(indices), reader.read_async(indices[::-1])
    return second.result(), first.result()


def drop(reader: FileReader, indices: list[int]) -> object:
    return reader.read_async(indices) is None


def keep_one(reader: FileReader, indices: list[int]) -> object:
    return reader.read(indices)[0]


def fail(reader: FileReader, indices: list[int]) -> object:
    with pytest.raises(FFRecordError):
        reader.read([*indices, N - 1])
    with pytest.raises(FFRecordError):
        reader.read_async([*indices, N - 1]).result()
    return None


def use(reader: FileReader, batch: Batch, batches: int) -> None:
    generator = random.Random(1)
    for _ in range(batches):
        batch(reader, generator.choices(range(N - 1), k=32))


def expect_flat(path: Path, mode: str, batch: Batch, batches: int) -> None:
    with FileReader(path, mode=mode) as reader:
        use(reader, batch, 200)
        before = Use.now()
        use(reader, batch, batches)
        Use.now().expect_flat_since(before, 8 * MIB)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("batch", [read_now, read_ahead, drop, keep_one])
def test_many_batches_leave_nothing_behind(batch: Batch, mode: str, path: Path) -> None:
    expect_flat(path, mode, batch, 500 if batch is read_now else 200)


@pytest.mark.long
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("batch", [read_now, read_ahead])
def test_a_hundred_thousand_batches_leave_nothing_behind(
    batch: Batch, mode: str, path: Path
) -> None:
    expect_flat(path, mode, batch, 100_000)


@pytest.mark.parametrize("mode", MODES)
def test_batches_of_cold_data_leave_nothing_behind(mode: str, path: Path) -> None:
    def cold(reader: FileReader, indices: list[int]) -> object:
        handmade.evict(path)
        return reader.read(indices)

    expect_flat(path, mode, cold, 100)


@pytest.mark.parametrize("mode", MODES)
def test_failing_batches_leave_nothing_behind(mode: str, tmp_path: Path, path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    damaged = tmp_path / "damaged.ffr"
    damaged.write_bytes(data)
    expect_flat(damaged, mode, fail, 300)


@pytest.mark.parametrize("mode", MODES)
def test_batches_larger_than_a_context_leave_nothing_behind(mode: str, path: Path) -> None:
    def large(reader: FileReader, indices: list[int]) -> object:
        return reader.read(indices * 64), reader.read_async(indices * 64)

    with FileReader(path, mode=mode) as reader:
        use(reader, large, 5)
        before = Use.now()
        use(reader, large, 20)
        Use.now().expect_flat_since(before, 16 * MIB)


@pytest.mark.parametrize("mode", MODES)
def test_five_hundred_readers_leave_nothing_behind(mode: str, path: Path) -> None:
    def open_and_close(count: int) -> None:
        for turn in range(count):
            reader = FileReader(path, mode=mode)
            reader.read([turn % N, 1, 2])
            pending = reader.read_async([turn % N, 3])
            if turn % 2:
                reader.close()
            pending.result()
            del reader

    open_and_close(20)
    before = Use.now()
    open_and_close(500)
    Use.now().expect_flat_since(before, 8 * MIB)


def test_five_hundred_writers_leave_nothing_behind(tmp_path: Path) -> None:
    def write(count: int) -> None:
        for turn in range(count):
            writer = FileWriter(tmp_path / "w.ffr", 1 if turn % 2 else None)
            writer.write_one(b"x" * 1000)
            if turn % 3:
                writer.close()
            else:
                writer.discard()

    write(20)
    before = Use.now()
    write(500)
    Use.now().expect_flat_since(before, 8 * MIB)
    assert [p.name for p in tmp_path.iterdir()] == ["w.ffr"]


@pytest.mark.parametrize("close", [True, False])
@pytest.mark.parametrize("alone", [True, False])
def test_fifty_packed_folders_leave_no_descriptors_without_the_garbage_collector(
    alone: bool, close: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Training loops turn the collector off, so unreferenced folders must close at once."""
    monkeypatch.setattr(index_copy, "ALONE", 1 << 40 if alone else 0)
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder/file").write_bytes(b"a file")
    pack_folder(tmp_path / "folder", tmp_path / "a.ffr")
    gc.collect()
    gc.disable()
    try:
        before = os.listdir("/proc/self/fd")
        for _ in range(50):
            folder = PackedFolder(tmp_path / "a.ffr")
            if close:
                folder.close()
            del folder
        assert len(os.listdir("/proc/self/fd")) == len(before)
    finally:
        gc.enable()
