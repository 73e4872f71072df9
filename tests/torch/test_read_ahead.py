"""Read-ahead: the next batches are read early if the dataset will use them, and only then."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import TensorDataset

from ffrecord import FileReader, pack_folder
from ffrecord.disk.tally import TALLY
from ffrecord.machine import memory
from ffrecord.records import ahead
from ffrecord.torch import (
    BlockShuffleSampler,
    ConcatDataset,
    DataLoader,
    Dataset,
    DistributedBlockShuffleSampler,
    DistributedShuffleSampler,
    PackedFolderDataset,
    ShuffleSampler,
    Subset,
    lookahead,
)
from ffrecord.torch.schedule import Steps
from tests.support import handmade
from tests.torch.datasets import (
    N,
    Noisy,
    Processed,
    Reading,
    as_list,
    batches,
    plain,
    record,
    shut_down,
)

SIZE = 4
STEPS = -(-N // SIZE)
ALONE: Any = {"num_replicas": 1, "rank": 0}


class Watch:
    """A record of prefetches, and counts of reads that were announced (hits) or not (misses)."""

    def __init__(self) -> None:
        self.begun: list[tuple[int, ...]] = []
        self.hits = 0
        self.misses = 0


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Watch:
    watch = Watch()
    read, prefetch = FileReader.read, FileReader.prefetch

    def watched_read(self: FileReader, indices: Any) -> Any:
        before = self.prefetched
        result = read(self, indices)
        if self.prefetched < before:
            watch.hits += 1
        else:
            watch.misses += 1
        return result

    def watched_prefetch(self: FileReader, indices: Any) -> None:
        watch.begun.append(tuple(int(index) for index in indices))
        prefetch(self, indices)

    monkeypatch.setattr(ahead, "CACHED_BATCHES", 1 << 30)  # the files of these tests are cached
    monkeypatch.setattr(FileReader, "read", watched_read)
    monkeypatch.setattr(FileReader, "prefetch", watched_prefetch)
    return watch


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("archive")
    for number in range(N):
        path = folder / "images" / "abc"[number % 3] / f"{number:02}.bin"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(record(number))
    pack_folder(folder / "images", folder / "images.ffr")
    return folder / "images.ffr"


def first_number(data: Any) -> int:
    return int.from_bytes(data[:8].tobytes(), "little")


def made(kind: str, numbers: Path, archive: Path) -> Dataset[Any]:
    if kind == "folder":
        return PackedFolderDataset(archive, first_number, extensions=None)
    if kind == "folder's subset":
        return Subset(made("folder", numbers, archive), range(N - 1, -1, -1))
    if kind == "subset":
        return Subset(Reading(numbers), range(0, N, 2))
    return Processed(numbers) if kind == "Processed" else Reading(numbers)


@pytest.mark.parametrize("kind", ["Processed", "Reading", "folder", "subset", "folder's subset"])
def test_every_batch_is_read_ahead(kind: str, numbers: Path, archive: Path, watch: Watch) -> None:
    dataset = made(kind, numbers, archive)
    loader = DataLoader(dataset, SIZE, collate_fn=as_list)
    for epoch in range(1, 3):
        found = batches(loader)
        assert (watch.hits, watch.misses) == (epoch * len(loader), 0)
    assert [sample for batch in found for sample in batch] == [plain(s) for s in dataset[:]]
    assert all(reader.prefetched == 0 for reader in dataset.ffreaders())


@pytest.mark.parametrize(
    "sampler",
    [
        ShuffleSampler, BlockShuffleSampler, partial(DistributedShuffleSampler, **ALONE),
        partial(DistributedBlockShuffleSampler, **ALONE),
    ],
)  # fmt: skip
def test_batches_of_our_samplers_are_read_ahead(
    sampler: Callable[[Any], Any], numbers: Path, watch: Watch
) -> None:
    dataset = Reading(numbers)
    loader = DataLoader(dataset, SIZE, sampler=sampler(dataset))
    assert sorted(n for batch in batches(loader) for n in batch) == list(range(N))
    assert (watch.hits, watch.misses) == (STEPS, 0)
    assert loader._steps.depth == lookahead.MOST_AHEAD


def test_both_parts_of_a_sum_are_read_ahead(numbers: Path, watch: Watch) -> None:
    """If a batch has samples of both parts, both reads start before the loader waits for one."""
    whole = Processed(numbers) + Reading(numbers)
    order = [index for pair in zip(range(N), range(N, 2 * N), strict=True) for index in pair]
    loader = DataLoader(whole, SIZE, sampler=order)
    assert [n for batch in batches(loader) for n in batch] == [index % N for index in order]
    assert watch.misses == 0
    assert watch.hits == 2 * len(loader)


def test_a_sum_that_includes_a_torch_dataset_reads_ahead(numbers: Path, watch: Watch) -> None:
    whole: ConcatDataset[Any] = ConcatDataset(
        [Processed(numbers), TensorDataset(torch.arange(6)), Reading(numbers)]
    )
    loader = DataLoader(whole, SIZE, collate_fn=as_list)
    assert len([sample for batch in loader for sample in batch]) == 2 * N + 6
    assert watch.misses == 0


@pytest.mark.parametrize("workers", [0, 2, 3])
@pytest.mark.parametrize("depth", [1, 3])
def test_workers_read_their_own_next_batches_ahead(
    workers: int, depth: int, numbers: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lookahead, "LATE", -1.0 if depth > 1 else 1e9)  # each batch counts as late
    monkeypatch.setattr(lookahead, "MOST_AHEAD", depth)
    monkeypatch.setattr(memory, "available", lambda: 1 << 30)
    loader = DataLoader(Telling(numbers), 1, collate_fn=as_list, **forked(workers))
    early = [batch[0][1] for batch in loader]
    count = max(workers, 1)
    # A worker's first batch is not early, and the second is the first evidence of a late disk.
    steady = early[2 * depth * count :]
    assert early[:count] == [0] * count
    assert early[count : 2 * count] == [1] * count
    assert set(steady) == {depth}


def forked(workers: int) -> dict[str, Any]:
    """Return a loader's options for workers that inherit the monkeypatches."""
    return {"num_workers": workers, "multiprocessing_context": "fork" if workers else None}


class Telling(Processed):
    """A dataset whose samples say how many batches before their own they were announced."""

    def __init__(self, fname: Path) -> None:
        super().__init__(fname)
        self.turn = 0
        self.told: dict[int, int] = {}

    def prefetch(self, indices: list[int]) -> None:
        assert not self.told.keys() & set(indices), "announced twice"
        self.told |= dict.fromkeys(indices, self.turn)
        super().prefetch(indices)

    def __getitem__(self, indices: Any) -> Any:
        samples = super().__getitem__(indices)
        early = self.turn - self.told[indices[0]]
        self.turn += 1
        return [(sample, early) for sample in samples]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_deep_read_ahead_loses_and_repeats_nothing(
    workers: int, numbers: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Batches that were drawn and read early belong to the loader that continues."""
    monkeypatch.setattr(lookahead, "LATE", -1.0)

    def made() -> DataLoader[Any]:
        generator = torch.Generator().manual_seed(5)
        return DataLoader(Noisy(numbers), 2, shuffle=True, generator=generator, **forked(workers))

    whole = batches(made())
    for step in (0, 1, 5, len(whole) - 1):
        loader, resumed = made(), made()
        iterator = iter(loader)
        before = [plain(next(iterator)) for _ in range(step)]
        resumed.load_state_dict(loader.state_dict())
        shut_down(iterator)
        assert before + batches(resumed) == whole


# ---- no read-ahead -----------------------------------------------------------------------


class Backwards(Reading):
    """A dataset that reads other record numbers than its indices."""

    def __getitem__(self, indices: Any) -> Any:
        return super().__getitem__([N - 1 - index for index in indices])


def test_read_ahead_stops_for_a_dataset_that_reads_other_indices(
    numbers: Path, watch: Watch
) -> None:
    dataset = Backwards(numbers)
    loader = DataLoader(dataset, SIZE)
    for _ in range(3):
        assert [n for batch in batches(loader) for n in batch] == list(range(N - 1, -1, -1))
    assert watch.hits == 0
    assert len(watch.begun) <= 3
    assert dataset.reader.prefetched == 0


def test_read_ahead_starts_again_for_a_new_reader(numbers: Path, watch: Watch) -> None:
    dataset = Backwards(numbers)
    loader = DataLoader(dataset, SIZE)
    batches(loader)
    tried = len(watch.begun)
    dataset.reader = FileReader(numbers)
    batches(loader)
    assert len(watch.begun) == 2 * tried > 0
    assert watch.hits == 0


class Fewer(Dataset[int]):
    """A dataset with fewer records than samples. An index of a sample is not a record number."""

    def __init__(self, fname: Path) -> None:
        self.table = FileReader(fname)

    def __len__(self) -> int:
        return 2 * N

    def __getitem__(self, indices: Any) -> Any:
        return [len(data) for data in self.table.read([index // 2 for index in indices])]


def test_a_reader_with_fewer_records_than_samples_is_not_read_ahead(
    numbers: Path, watch: Watch
) -> None:
    assert len(batches(DataLoader(Fewer(numbers), SIZE))) == -(-2 * N // SIZE)
    assert watch.begun == []


@pytest.mark.parametrize("kind", ["Processed", "Reading", "folder"])
def test_read_ahead_false_reads_nothing_early(
    kind: str, numbers: Path, archive: Path, watch: Watch
) -> None:
    batches(DataLoader(made(kind, numbers, archive), SIZE, read_ahead=False))
    assert watch.begun == []


def test_read_ahead_continues_after_an_epoch_that_was_left_early(
    numbers: Path, watch: Watch
) -> None:
    """The next epoch drops the reads that were started for the abandoned one."""
    dataset = Reading(numbers)
    loader = DataLoader(dataset, SIZE)
    for _ in range(4):
        iterator = iter(loader)
        next(iterator), next(iterator)
    before = watch.misses
    assert len(batches(loader)) == STEPS
    assert watch.misses == before
    assert dataset.reader.prefetched == 0


class CountedList(list[Any]):
    """A list that counts how many of its items are read."""

    looks = 0

    def __iter__(self) -> Iterator[Any]:
        for item in super().__iter__():
            type(self).looks += 1
            yield item


def test_a_long_list_among_a_datasets_attributes_is_not_searched_for_every_batch(
    numbers: Path, watch: Watch
) -> None:
    """A dataset may have a list of a million names, and searching it would be slow."""
    dataset = Reading(numbers)
    dataset.names = CountedList(map(str, range(5000)))  # type: ignore[attr-defined]
    CountedList.looks = 0
    batches(DataLoader(dataset, 1))
    assert watch.hits == N
    assert CountedList.looks <= N


def test_a_reader_that_is_replaced_is_found(numbers: Path, watch: Watch) -> None:
    dataset = Reading(numbers)
    loader = DataLoader(dataset, SIZE)
    batches(loader)
    dataset.reader.close()
    dataset.reader = FileReader(numbers)
    assert batches(loader)[0] == [0, 1, 2, 3]
    assert (watch.hits, watch.misses) == (2 * STEPS, 0)


def test_cached_batches_are_not_read_ahead_until_one_is_missing(
    numbers: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = Reading(numbers)
    dataset[:]  # the first batch that is in the page cache
    order = list(range(N)) * 4
    loader = DataLoader(dataset, SIZE, sampler=order, collate_fn=as_list)
    assert [number for batch in batches(loader) for number in batch] == order
    assert dataset.reader.prefetch_hits == ahead.CACHED_BATCHES - 1
    read = type(dataset.reader._table).read

    def missing(self: Any, records: Any) -> Any:
        TALLY.missed += len(records)
        return read(self, records)

    with monkeypatch.context() as patched:
        patched.setattr(type(dataset.reader._table), "read", missing)
        next(iter(loader))
    assert [number for batch in batches(loader) for number in batch] == order
    assert dataset.reader.prefetch_hits > ahead.CACHED_BATCHES


# ---- how many batches ----------------------------------------------------------------------

PAGE = 4096


class Disk:
    """A dataset that counts what is announced. Each batch needs `reads` reads of a page."""

    def __init__(self, reads: int) -> None:
        self.reads = reads
        self.announced: list[Any] = []
        self.dropped = 0

    def prefetch(self, indices: list[int]) -> None:
        self.announced.append(indices)
        TALLY.missed += self.reads
        TALLY.memory += self.reads * PAGE

    def drop_prefetched(self) -> None:
        self.dropped += 1


def announced_after(disk: Disk, waits: list[float]) -> list[int]:
    """Return how many batches had been announced at each turn, less the turns so far."""
    ahead = lookahead.Lookahead()
    found = []
    for turn, wait in enumerate(waits):
        ahead.turn_to(disk, [turn], [] if turn else [[number] for number in range(1, 30)])
        found.append(len(disk.announced) - turn - 1)
        TALLY.waited += wait
    assert disk.announced == [[number] for number in range(len(disk.announced))], "in order"
    return found


@pytest.mark.parametrize(
    ("reads", "available", "waits", "depths"),
    [
        (16, 1 << 30, [0.01] * 12, [1, 1, 2, 3, 4, 5, 6, 7, 8, 8, 8, 8]),  # up to MOST_AHEAD
        (16, 1 << 30, [0.01] * 3 + [0.0] * 4, [1, 1, 2, 3, 3, 3, 3]),  # only while it is late
        (16, 1 << 30, [0.01] + [0.0001] * 4, [1, 1, 1, 1, 1]),  # the first one is always late
        (100, 1 << 30, [0.01] * 6, [1, 1, 2, 3, 3, 3]),  # 300 reads are enough for any disk
        (256, 1 << 30, [0.01] * 4, [1, 1, 1, 1]),
        (16, 8 * 4 * 16 * PAGE, [0.01] * 7, [1, 1, 2, 3, 4, 4, 4]),  # an eighth of the memory
        (16, 0, [0.01] * 4, [1, 1, 1, 1]),
        (2048, 1 << 30, [0.01] * 4, [0, 1, 1, 1]),  # the first one has 8 MiB, and comes alone
        (2047, 1 << 30, [0.01] * 4, [1, 1, 1, 1]),
    ],
)
def test_more_batches_are_read_ahead_while_the_disk_is_late(
    reads: int, available: int, waits: list[float], depths: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(memory, "available", lambda: available)
    assert announced_after(Disk(reads), waits) == depths


def test_batches_of_an_epoch_that_was_left_are_dropped() -> None:
    disk, ahead = Disk(1), lookahead.Lookahead()
    ahead.turn_to(disk, [0], [[1], [2]])
    ahead.turn_to(disk, [5], [[6]])
    assert (disk.announced, disk.dropped) == ([[0], [1], [5], [6]], 1)
    ahead.turn_to(disk, [6], [])
    ahead.turn_to(disk, [7], None)
    assert (disk.announced, disk.dropped) == ([[0], [1], [5], [6]], 1)


def test_a_large_batch_after_an_epoch_that_was_left_comes_alone() -> None:
    disk, ahead = Disk(4096), lookahead.Lookahead()
    for turn, following in ((0, [[1], [2]]), (1, [[3]]), (7, [[8], [9]]), (8, [])):
        ahead.turn_to(disk, [turn], following)
    assert disk.announced == [[0], [1], [2], [7], [8], [9]]


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("depth", [1, 2, 8])
@pytest.mark.parametrize("count", [0, 1, 2, 5, 40])
def test_each_batch_is_announced_once_to_its_own_worker(
    workers: int, depth: int, count: int
) -> None:
    steps = Steps(range(count), batched=True, promises=True, ours=True, kept=1)
    steps.source = [[number] for number in range(count)]
    steps.ahead, steps.depth = workers, depth
    requests = list(steps)
    assert [list(request) for request in requests] == [[number] for number in range(count)]
    for worker in range(workers):
        mine = requests[worker::workers]
        told = [number for request in mine for (number,) in request.following]
        assert told == [number for request in mine[1:] for number in request]
        for turn in range(len(mine)):
            known = 1 + sum(len(each.following) for each in mine[: turn + 1])
            assert known == min(turn + 1 + min(depth, turn + 1), len(mine)), "two more each time"


# ---- with reads in flight ----------------------------------------------------------------


def test_a_reader_may_be_closed_during_read_ahead(numbers: Path) -> None:
    handmade.evict(numbers)
    dataset = Reading(numbers)
    iterator = iter(DataLoader(dataset, SIZE))
    assert plain(next(iterator)) == [0, 1, 2, 3]
    assert dataset.reader.prefetched == 1
    dataset.reader.close()
    assert dataset.reader.prefetched == 0


@pytest.mark.parametrize("kind", ["Reading", "folder"])
def test_workers_may_be_forked_during_read_ahead(kind: str, numbers: Path, archive: Path) -> None:
    """The workers inherit an unfinished read that never completes in them, so they read again."""
    dataset = made(kind, numbers, archive)
    samples = [plain(sample) for sample in dataset[:]]
    dataset.ffreaders()[0].close()
    handmade.evict(numbers)
    handmade.evict(archive)
    dataset = made(kind, numbers, archive)
    iterator = iter(DataLoader(dataset, SIZE, collate_fn=as_list))
    assert plain(next(iterator)) == samples[:SIZE]
    for _ in range(2):
        loader = DataLoader(
            dataset, SIZE, num_workers=2, collate_fn=as_list, multiprocessing_context="fork"
        )
        assert [sample for batch in batches(loader) for sample in batch] == samples
    assert plain(next(iterator)) == samples[SIZE : 2 * SIZE]


def test_a_wrong_index_is_an_error_when_its_batch_is_read(numbers: Path) -> None:
    loader = DataLoader(Processed(numbers), batch_sampler=[[0, 1], [N, 2], [3]])
    iterator = iter(loader)
    assert plain(next(iterator)) == [0, 1]
    with pytest.raises(IndexError):
        next(iterator)
    assert plain(next(iterator)) == [3]
