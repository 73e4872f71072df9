"""Pieces on slow disks: what a worker finds out about its disk, and reads through a session."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path

import pytest

from ffrecord.archive.archive import Archive
from ffrecord.disk.costs import CERTAIN, Meter
from ffrecord.disk.source import SourceSet
from ffrecord.records.reader import table_of
from ffrecord_fuse.serve import piecereads
from ffrecord_fuse.serve.piecereads import LEAST_REQUEST, READS, Facts, PieceReads
from tests.support import archives, handmade, kernel, trees
from tests.support.kernel import Reply
from tests.support.session import content, talk

FILES, SIZE = 400, 9_000
HARD_DISK = 1 / 200  # seconds of a request


@pytest.fixture
def packed(tmp_path: Path) -> tuple[Path, list[bytes]]:
    """Return an archive of small files that is not in the page cache, and their contents."""
    contents = [content(SIZE + 37 * number, number) for number in range(FILES)]
    trees.plain_tree(tmp_path / "top", {f"{n:03d}": each for n, each in enumerate(contents)})
    archive = tmp_path / "a.ffr"
    archives.pack(tmp_path / "top", archive)
    handmade.evict(archive)
    return archive, contents


@pytest.fixture(autouse=True)
def new_disk(monkeypatch: pytest.MonkeyPatch) -> Meter:
    """Return the meter of a disk about which nothing is known, for every file."""
    meter = Meter()
    monkeypatch.setattr("ffrecord.disk.pieces.meter_of", lambda device, single=False: meter)
    return meter


def sources_of(archive: Archive) -> SourceSet:
    sources = table_of(archive.reader).require_files()
    if sources.pieces is None:
        pytest.skip("the file system has no O_DIRECT")
    return sources


@pytest.mark.parametrize(
    ("wait", "without_core", "memory", "why"),
    [
        (HARD_DISK, 0.0, None, "takes at least as long as reading"),
        (HARD_DISK, 0.0, 1000, "do not fit into"),
        (HARD_DISK, 0.99 * HARD_DISK, None, "takes only"),  # other processes had the cores
        (LEAST_REQUEST / 2, 0.0, None, "takes only"),
    ],
    ids=["hard disk", "little memory", "busy cores", "fast disk"],
)
def test_the_time_spent_waiting_decides(
    packed: tuple[Path, list[bytes]], monkeypatch: pytest.MonkeyPatch,
    wait: float, without_core: float, memory: int | None, why: str,
) -> None:  # fmt: skip
    lost = 0.0
    monkeypatch.setattr(piecereads, "seconds_without_core", lambda: lost)
    told: list[Facts] = []
    with Archive.open(packed[0], memory=memory) as archive:
        reads = PieceReads(sources_of(archive), told.append)
        for _ in range(10 * READS):
            lost += without_core
            reads.waited(wait)
            reads.landed(SIZE)
    assert why in told[-1]["why"]
    assert reads.is_slow == (reads.piece_for(SIZE) > 0) == (told[-1]["piece"] > 0)
    assert reads.is_slow == (why == "takes at least as long as reading")
    assert reads.piece_for(told[-1]["piece"]) == 0  # pieces are for several files each


def test_without_pieces_the_disk_is_never_judged(packed: tuple[Path, list[bytes]]) -> None:
    told: list[Facts] = []
    with Archive.open(packed[0], memory=0) as archive:
        reads = PieceReads(table_of(archive.reader).require_files(), told.append)
        for _ in range(2 * READS):
            reads.waited(HARD_DISK)
            reads.landed(SIZE)
    assert not told
    assert not reads.is_slow


def test_files_in_random_order_are_read_once_from_a_slow_disk(
    packed: tuple[Path, list[bytes]], new_disk: Meter
) -> None:
    archive, contents = packed
    # As if the first reads had been slow.
    new_disk.observe_reads(READS, READS * SIZE, READS * HARD_DISK + CERTAIN)
    with Archive.open(archive) as opened:
        sources_of(opened)
    with talk(archive) as talking:
        order = random.Random(1).sample(range(FILES), FILES)
        for number in order:
            reply = talking.ask(kernel.read(number + 2, 0, 1 << 16))
            assert reply == Reply(2, 0, contents[number])
        stats = json.loads(talking.ask(kernel.getxattr(1, b"user.ffrecord.stats", 4096)).payload)
        assert talking.log == []
    assert stats["cached_reads"] > stats["disk_reads"] > 0
    assert stats["disk"]["piece"] > 2 * SIZE
    assert stats["disk"]["piece_bytes"] <= os.path.getsize(archive) + (16 << 10)
