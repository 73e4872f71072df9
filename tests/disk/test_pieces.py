"""`ffrecord.disk.pieces`: a slow disk is read in whole pieces, and the same bytes come back."""

from __future__ import annotations

import os
import pickle
import time
from pathlib import Path

import numpy as np
import pytest

from ffrecord import FileReader, FileWriter, TruncatedError
from ffrecord.disk import costs, fetch, pagecache
from ffrecord.disk.costs import CERTAIN, FIRST_READS, Meter
from ffrecord.disk.pieces import GRANULE, Pieces
from ffrecord.disk.source import Source, SourceSet
from tests.support.patience import PATIENCE

COUNT, SIZE = 3000, 5000
SLOW = 1 / 200  # seconds of a request


def content(record: int) -> bytes:
    return bytes([record % 251]) * (SIZE + record % 7)


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("pieces") / "records.ffr"
    with FileWriter(path) as writer:
        for record in range(COUNT):
            writer.write_one(content(record))
    return path


def slow_meter() -> Meter:
    """Return a meter that has seen a hard disk."""
    meter = Meter()
    meter.observe_reads(FIRST_READS, FIRST_READS * SIZE, FIRST_READS * SLOW + CERTAIN)
    return meter


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make every disk look slow."""
    meter = slow_meter()
    monkeypatch.setattr("ffrecord.disk.pieces.meter_of", lambda device, single=False: meter)


def drop(path: Path) -> None:
    """Drop a file from the page cache."""
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)


def pieces_of(reader: FileReader) -> Pieces:
    pieces = reader._table.require_files().pieces
    if pieces is None:
        pytest.skip("the file system has no O_DIRECT")
    return pieces


@pytest.mark.usefixtures("slow")
def test_an_epoch_in_random_order_gives_every_record_and_reads_the_file_once(stored: Path) -> None:
    drop(stored)
    with FileReader(stored) as reader:
        pieces = pieces_of(reader)
        for batch in np.random.default_rng(1).permutation(COUNT).reshape(-1, 100):
            got = reader.read(batch)
            assert [bytes(each) for each in got] == [content(record) for record in batch]
        stats = pieces.stats()
    assert stats["hits"] > stats["misses"]
    assert 0 < stats["piece_bytes"] <= os.path.getsize(stored) + GRANULE


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize("at_once", [1, 2])
def test_an_epoch_of_single_records_reads_the_file_once_too(at_once: int, stored: Path) -> None:
    drop(stored)
    with FileReader(stored) as reader:
        pieces = pieces_of(reader)
        for batch in np.random.default_rng(2).permutation(COUNT).reshape(-1, at_once).tolist():
            got = [reader.read_one(batch[0])] if at_once == 1 else reader.read(batch)
            assert [bytes(each) for each in got] == [content(record) for record in batch]
        stats = pieces.stats()
    assert stats["hits"] > stats["misses"]
    assert 0 < stats["piece_bytes"] <= os.path.getsize(stored) + GRANULE


@pytest.mark.usefixtures("slow")
def test_prefetched_and_asynchronous_batches_are_read_in_pieces_too(stored: Path) -> None:
    drop(stored)
    with FileReader(stored) as reader:
        pieces = pieces_of(reader)
        reader.prefetch(range(0, 2000, 20))
        waiting = reader.read_async(range(5, 2000, 20))
        assert [bytes(each) for each in reader.read(range(0, 2000, 20))] == [
            content(record) for record in range(0, 2000, 20)
        ]
        assert [bytes(each) for each in waiting.result()] == [
            content(record) for record in range(5, 2000, 20)
        ]
        assert pieces.stats()["piece_bytes"] > 0


@pytest.mark.usefixtures("slow")
def test_pieces_that_are_on_their_way_count_as_used(
    stored: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a loader that reads batches ahead gives pieces up while the first ones arrive."""
    monkeypatch.setattr("ffrecord.disk.warming.Range.announce", lambda _: None)  # none arrives
    drop(stored)
    with FileReader(stored) as reader:
        pieces = pieces_of(reader)
        batches = np.random.default_rng(3).permutation(COUNT).reshape(-1, 100)[:8]
        waiting = [reader.read_async(batch) for batch in batches]
        assert pieces.size_for(SIZE) > 0
        for batch, pending in zip(batches, waiting, strict=True):
            assert [bytes(each) for each in pending.result()] == [content(each) for each in batch]


@pytest.mark.usefixtures("slow")
def test_misses_of_a_batch_that_seemed_cached_are_read_in_pieces_too(
    stored: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such a batch is not sorted."""
    none = np.zeros(10, bool)
    monkeypatch.setattr(pagecache.PageCache, "has_most", lambda *_: True)
    monkeypatch.setattr(pagecache.PageCache, "has_each", lambda *_: none)
    with FileReader(stored) as reader:
        pieces = pieces_of(reader)
        batch = list(range(COUNT - 100, 0, -300))
        assert len(batch) == len(none)
        assert [bytes(each) for each in reader.read(batch)] == [content(r) for r in batch]
        offsets = reader.get_offsets(0)[np.array(batch)]
        assert pieces.have(None, offsets, np.full(len(batch), SIZE)).all()


@pytest.mark.usefixtures("slow")
def test_pages_that_were_taken_back_are_read_again(stored: Path) -> None:
    drop(stored)
    with FileReader(stored) as reader:
        pieces_of(reader)
        batch = list(range(0, COUNT, 30))
        first = [bytes(each) for each in reader.read(batch)]
        drop(stored)
        assert [bytes(each) for each in reader.read(batch)] == first


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize("single", [False, True])
def test_a_file_that_was_truncated_is_an_error_of_ours(
    single: bool, stored: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "copy.ffr"
    copy.write_bytes(stored.read_bytes())
    drop(copy)
    with FileReader(copy) as reader:
        pieces_of(reader)
        if single:
            reader.read_one(0)
        os.truncate(copy, os.path.getsize(copy) // 2)
        with pytest.raises(TruncatedError):
            reader.read([COUNT - 50] if single else range(0, COUNT, 30))


@pytest.mark.usefixtures("slow")
def test_the_rest_is_read_in_the_background(stored: Path) -> None:
    drop(stored)
    with FileReader(stored) as reader:
        pieces = pieces_of(reader)
        cache, source = reader._table.require_files().cache, reader._table.require_files()[0]
        if not cache.use_cachestat:
            pytest.skip("cachestat is not available")
        for batch in np.random.default_rng(2).permutation(COUNT)[:600].reshape(-1, 30):
            reader.read(batch)
        size = os.path.getsize(stored)
        deadline = time.monotonic() + PATIENCE
        while not cache.has(source.fd, 0, size) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert cache.has(source.fd, 0, size)
        assert pieces.stats()["piece_bytes"] <= size + GRANULE


@pytest.mark.usefixtures("slow")
def test_several_files_are_read_in_their_own_pieces(stored: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.ffr"
    with FileWriter(other) as writer:
        for record in range(500):
            writer.write_one(b"other%d" % record * 900)
    drop(other)
    drop(stored)
    with FileReader([stored, other]) as reader:
        pieces_of(reader)
        batch = [*range(0, COUNT, 40), *range(COUNT, COUNT + 500, 7)]
        got = [bytes(each) for each in reader.read(batch)]
    assert got[-1] == b"other%d" % (batch[-1] - COUNT) * 900
    assert got[: COUNT // 40] == [content(record) for record in range(0, COUNT, 40)]


def test_a_slow_disk_is_noticed_within_the_first_batch(
    stored: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock runs as if every completed read had taken 5 ms."""
    monkeypatch.setattr(costs, "_meters", {})
    drop(stored)
    with FileReader(stored) as reader:
        pieces = pieces_of(reader)
        observe = pieces.meter.observe_reads
        monkeypatch.setattr(
            pieces.meter, "observe_reads",
            lambda reads, size, seconds: observe(reads, size, reads * SLOW),
        )  # fmt: skip
        monkeypatch.setattr("ffrecord.disk.fetch.SLOW_REQUEST", float("inf"))  # all count
        reader.read(range(0, COUNT, 12))
        assert pieces.stats()["piece_bytes"] > 0


def test_bytes_of_the_background_are_counted_once(
    stored: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sources = SourceSet([str(stored)], direct=True)
    pieces, size = Pieces(sources.each, limit=1 << 40), os.path.getsize(stored)
    pieces.meter = slow_meter()
    piece = pieces.size_for(SIZE)
    for begin in range(0, size - SIZE, 3 * piece):
        pieces.fill(None, np.array([begin]), np.array([SIZE]), piece)
    offset = 0
    while (step := pieces.next_step(0, offset)) is not None:
        assert offset <= step[0] < step[1] <= size
        offset = step[1]
    assert pieces.stats()["piece_bytes"] == -(-size // GRANULE) * GRANULE
    assert pieces.have(None, np.array([0, size - SIZE]), np.array([SIZE, SIZE])).all()
    assert pieces.size_for(SIZE) == piece
    assert pieces._decision.rest
    pieces.rest_ended()
    monkeypatch.setattr(pieces, "_start_rest", None)  # nothing is left for another thread
    pieces.fill(None, np.array([0]), np.array([SIZE]), piece)


def test_batches_of_any_kind_request_each_granule_of_their_pieces_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = np.array([40 * GRANULE + 5, 7 * GRANULE, 100])
    for number, size in enumerate(sizes.tolist()):
        (tmp_path / f"{number}").touch()
        os.truncate(tmp_path / f"{number}", size)
    asked: list[tuple[int, int]] = []
    monkeypatch.setattr(
        Source, "will_need",
        lambda self, begin, length: asked.extend(granules(int(self.path[-1]), begin, length)),
    )  # fmt: skip
    monkeypatch.setattr("ffrecord.disk.pagecache.cached_bytes", lambda fd, at, size: size)
    pieces = Pieces(SourceSet([f"{tmp_path}/{n}" for n in range(3)], direct=False).each)
    rng = np.random.default_rng(1)
    known: set[tuple[int, int]] = set()
    for _ in range(200):
        file = np.sort(rng.choice(3, rng.integers(1, 9), p=[0.8, 0.1, 0.1]))
        length = 1 + rng.integers(0, np.minimum(rng.choice([9, 5 * GRANULE]), sizes[file]))
        offset = rng.integers(0, sizes[file] - length + 1)
        order, piece = np.lexsort((offset, file)), GRANULE << int(rng.integers(4))
        offset, length = offset[order], length[order]
        due: set[tuple[int, int]] = set()
        whole: set[tuple[int, int]] = set()
        for number, begin, stop in zip(file, offset - offset % piece, offset + length, strict=True):
            end = min(max(stop, begin + piece), sizes[number])
            due |= set(granules(number, begin, end - begin))
            partial = end % GRANULE if end < sizes[number] else 0
            whole |= set(granules(number, begin, end - begin - partial))
        asked.clear()
        pieces.fill(file, offset, length, piece)
        assert sorted(asked) == sorted(due - known)
        known |= whole
        assert pieces.stats()["piece_bytes"] == len(known) * GRANULE
        if rng.random() < 0.1:
            pieces, known = Pieces(pieces._sources), set()


def granules(file: int, begin: int, length: int) -> list[tuple[int, int]]:
    return [(file, at) for at in range(begin // GRANULE, -(-(begin + length) // GRANULE))]


def test_pieces_that_another_process_has_read_are_not_measured(stored: Path) -> None:
    sources = SourceSet([str(stored)], direct=True)
    stored.read_bytes()
    if pagecache.cached_bytes(sources[0].fd, 0, SIZE) != SIZE:
        pytest.skip("the kernel does not tell what is cached")
    pieces = Pieces(sources.each, limit=1 << 40)
    assert pieces.fill(None, np.array([0]), np.array([SIZE]), 16 * GRANULE) == (0, 0)
    assert pieces.stats()["piece_bytes"] == 16 * GRANULE


def test_forked_processes_share_what_they_have_asked_for_and_measured(stored: Path) -> None:
    drop(stored)
    with FileReader(stored) as reader:
        pieces = pieces_of(reader)
        child = os.fork()
        if not child:
            pieces.fill_one(0, 0, SIZE, 4 * GRANULE)
            pieces.meter.observe_reads(1, SIZE, 0.5)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        known = pieces.have(None, np.array([0, 3 * GRANULE, 4 * GRANULE]), np.array([1, 1, 1]))
        assert known.tolist() == [True, True, False]
        assert pieces.stats()["piece_bytes"] == 4 * GRANULE
        assert pieces.meter.costs is not None


def test_two_processes_do_not_ask_for_the_same_bytes(
    stored: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each would get parts of the piece, with many short requests."""
    drop(stored)
    asked: list[tuple[int, int]] = []
    with FileReader(stored) as reader:
        pieces = pieces_of(reader)
        monkeypatch.setattr(
            type(reader._table.require_files()[0]), "will_need",
            lambda _, offset, length: asked.append((offset // GRANULE, length // GRANULE)),
        )  # fmt: skip
        monkeypatch.setattr("ffrecord.disk.pagecache.cached_bytes", lambda fd, at, size: size)
        for begin, count in ((2, 2), (0, 8), (0, 8)):
            pieces.fill_one(0, begin * GRANULE, SIZE, count * GRANULE)
    assert asked == [(2, 2), (0, 2), (4, 4)]


def test_pieces_that_were_requested_before_are_not_measured(stored: Path) -> None:
    pieces = Pieces(SourceSet([str(stored)], direct=True).each)
    pieces.meter = slow_meter()
    before = pieces.meter.costs
    for _ in range(20):
        pieces.arrived(0, 0, 1.0)
    pieces.arrived(12, 12 << 20, 12 * SLOW)
    assert before is not None
    assert pieces.meter.costs is not None
    assert pieces.meter.costs.byte < before.byte


class Clock:
    """A clock that only a test moves."""

    now = 1000.0

    def perf_counter(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(fetch, "time", clock)
    return clock


def test_time_between_an_announcement_and_its_read_says_nothing_about_the_disk(
    stored: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    meter = Meter()
    monkeypatch.setattr("ffrecord.disk.pieces.meter_of", lambda device, single=False: meter)
    drop(stored)
    with FileReader(stored) as reader:
        pieces_of(reader)
        for first in range(0, 600, 200):
            reader.prefetch(range(first, first + 100))
            clock.now += 5  # the program works
            assert bytes(reader.read(range(first, first + 100))[1]) == content(first + 1)
    assert meter.costs is None


@pytest.mark.usefixtures("slow")
def test_pieces_that_arrived_before_they_were_needed_are_not_measured(
    stored: Path, clock: Clock
) -> None:
    drop(stored)
    with FileReader(stored) as reader:
        pieces = pieces_of(reader)
        before = pieces.meter.costs
        reader.prefetch(range(0, COUNT, 12))
        clock.now += 5
        reader.read(range(0, COUNT, 12))
        assert pieces.stats()["piece_bytes"] > 0
        assert pieces.meter.costs == before


def test_no_pieces_are_read_where_they_are_switched_off(stored: Path) -> None:
    sources = SourceSet([str(stored)], direct=True)
    sources.use_pieces(0)
    assert sources.pieces is None


# ---- the arguments of readers ----------------------------------------------------------------


@pytest.mark.parametrize(("memory", "limit"), [(None, None), (0, 0), (5, 5), ("8GB", 8 * 10**9)])
def test_memory_is_kept_by_a_pickled_reader(
    memory: int | str | None, limit: int | None, stored: Path
) -> None:
    with FileReader(stored, memory=memory) as reader, pickle.loads(pickle.dumps(reader)) as copy:
        assert (reader.memory, copy.memory) == (limit, limit)


@pytest.mark.parametrize("memory", ["much", "-1", -1])
def test_an_impossible_memory_is_a_value_error(memory: int | str, stored: Path) -> None:
    with pytest.raises(ValueError, match="size"):
        FileReader(stored, memory=memory)


@pytest.mark.usefixtures("slow")
def test_stats_say_what_was_decided_and_why(stored: Path) -> None:
    drop(stored)
    with FileReader(stored, memory=10**12) as reader:
        pieces_of(reader)
        reader.read(range(0, COUNT, 30))
        assert reader.stats()["piece"] >= 1 << 19
        assert "takes at least as long as reading" in reader.stats()["why"]
    with FileReader(stored, memory=1 << 20) as reader:
        reader.read(range(0, COUNT, 30))
        assert reader.stats()["piece"] == 0
        assert "do not fit into 1.0 MB of memory" in reader.stats()["why"]
    others = ({"memory": 0}, {"memory": 0, "unfinished": True}, {"mode": "aio"}, {"mode": "mmap"})
    for options in others:
        with FileReader(stored, **options) as reader:
            reader.read([1, 2, 3])
            assert reader.stats() == {}
