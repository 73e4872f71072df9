"""`ffrecord.disk.singles`: single reads measure the disk, and only the disk."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from ffrecord import FileReader
from ffrecord.aliases import Bytes
from ffrecord.disk import costs, singles
from ffrecord.disk.source import Source
from tests.support import handmade

COUNT, SIZE, READS = 400, 10_000, 400


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    records = handmade.random_records([SIZE] * COUNT)
    return handmade.write_records(tmp_path_factory.mktemp("singles") / "records.ffr", records)


@dataclass
class Disk:
    """A disk whose reads take a given time, on a clock that only these reads move."""

    seconds: float
    without_core: bool = False  # the program waits for a core instead of the disk
    threads: int = 1
    now: float = 0.0

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        fill = Source.fill

        def slow_fill(source: Source, memory: Bytes, offset: int) -> None:
            fill(source, memory, offset)
            self.now += self.seconds

        monkeypatch.setattr(Source, "fill", slow_fill)
        monkeypatch.setattr(singles, "time", SimpleNamespace(perf_counter=lambda: self.now))
        waited = (lambda: self.now) if self.without_core else (lambda: 0.0)
        monkeypatch.setattr(singles, "seconds_without_core", waited)
        monkeypatch.setattr("threading.active_count", lambda: self.threads)
        monkeypatch.setattr(costs, "_meters", {})


@pytest.mark.parametrize(
    ("disk", "slow"),
    [
        (Disk(5e-3), True),
        (Disk(400e-6), True),
        (Disk(80e-6), False),
        (Disk(2e-6), False),
        (Disk(5e-3, without_core=True), False),
        (Disk(5e-3, threads=2), False),
        (Disk(50e-3, threads=2), True),
    ],
    ids=["hard disk", "cloud volume", "flash", "cached", "no core", "threads", "long waits"],
)
def test_only_a_slow_disk_makes_pieces_worth_reading(
    disk: Disk, slow: bool, stored: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk.install(monkeypatch)
    with FileReader(stored, memory="1GB") as reader:
        if not (stats := reader.stats()):
            pytest.skip("the file system has no O_DIRECT")
        for record in np.random.default_rng(3).integers(0, COUNT // 2, READS).tolist():
            reader.read_one(2 * record)
            if (stats := reader.stats())["piece"]:
                break
        pieces = reader._table.require_open().pieces
        assert pieces is not None
        assert (stats["piece"] > 0) == slow, stats
        assert pieces.meter.costs is None  # batches measure for themselves


def test_reads_in_order_do_not_measure_the_disk(
    stored: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Disk(5e-3).install(monkeypatch)
    with FileReader(stored, memory="1GB") as reader:
        for record in range(COUNT):
            reader.read_one(record)
        if stats := reader.stats():
            assert stats["piece"] == 0
            assert stats["request_seconds"] is None


def test_a_slow_disk_is_asked_for_a_piece_before_the_record_is_read(
    stored: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Disk(5e-3).install(monkeypatch)
    with FileReader(stored, memory="1GB") as reader:
        if not reader.stats():
            pytest.skip("the file system has no O_DIRECT")
        for record in range(0, 250, 5):
            reader.read_one(record)
        handmade.evict(stored)
        if any(handmade.cached_pages(stored)):
            pytest.skip("the file stays cached")
        assert reader.stats()["piece"] >= 64 << 10
        reader.read_one(300)
        first, last = reader.get_offsets(0)[300] // 4096, (reader.get_offsets(0)[301] - 1) // 4096
        cached = handmade.cached_pages(stored)
        assert all(cached[first : last + 1])
        assert sum(cached) * 4096 >= 64 << 10
        assert reader.stats()["piece_bytes"] > 0
