"""Read-ahead: the next batch is read early if the dataset will use it, and only then."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import TensorDataset

from ffrecord import FileReader, pack_folder
from ffrecord.torch import ConcatDataset, DataLoader, Dataset, PackedFolderDataset, Subset
from tests.support import handmade
from tests.torch.datasets import N, Processed, Reading, as_list, batches, plain, record

SIZE = 4
STEPS = -(-N // SIZE)


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
def test_every_batch_but_the_first_is_read_ahead(
    kind: str, numbers: Path, archive: Path, watch: Watch
) -> None:
    dataset = made(kind, numbers, archive)
    loader = DataLoader(dataset, SIZE, collate_fn=as_list)
    for epoch in range(1, 3):
        found = batches(loader)
        assert (watch.hits, watch.misses) == (epoch * (len(loader) - 1), epoch)
    assert [sample for batch in found for sample in batch] == [plain(s) for s in dataset[:]]
    assert all(reader.prefetched == 0 for reader in dataset.ffreaders())


def test_both_parts_of_a_sum_are_read_ahead(numbers: Path, watch: Watch) -> None:
    """If a batch has samples of both parts, both reads start before the loader waits for one."""
    whole = Processed(numbers) + Reading(numbers)
    order = [index for pair in zip(range(N), range(N, 2 * N), strict=True) for index in pair]
    loader = DataLoader(whole, SIZE, sampler=order)
    assert [n for batch in batches(loader) for n in batch] == [index % N for index in order]
    assert watch.misses == 0  # both parts of the first batch start together too
    assert watch.hits == 2 * len(loader)


def test_a_sum_that_includes_a_torch_dataset_reads_ahead(numbers: Path, watch: Watch) -> None:
    whole: ConcatDataset[Any] = ConcatDataset(
        [Processed(numbers), TensorDataset(torch.arange(6)), Reading(numbers)]
    )
    loader = DataLoader(whole, SIZE, collate_fn=as_list)
    assert len([sample for batch in loader for sample in batch]) == 2 * N + 6
    assert watch.misses == 1


def test_workers_read_their_own_next_batch_ahead(numbers: Path, tmp_path: Path) -> None:
    dataset = Telling(numbers)
    for workers in (2, 3):
        loader = DataLoader(dataset, 2, num_workers=workers, collate_fn=as_list)
        ahead = [batch[0][1] for batch in loader]
        steps = -(-N // 2)
        assert ahead == [False] * workers + [True] * (steps - workers)


class Telling(Processed):
    """A dataset whose samples say whether their batch was read ahead."""

    def __getitem__(self, indices: Any) -> Any:
        before = self.reader.prefetched
        samples = super().__getitem__(indices)
        return [(sample, self.reader.prefetched < before) for sample in samples]


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
    assert watch.misses == before + 1
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
    assert watch.hits == N - 1
    assert CountedList.looks <= N


def test_a_reader_that_is_replaced_is_found(numbers: Path, watch: Watch) -> None:
    dataset = Reading(numbers)
    loader = DataLoader(dataset, SIZE)
    batches(loader)
    dataset.reader.close()
    dataset.reader = FileReader(numbers)
    assert batches(loader)[0] == [0, 1, 2, 3]
    assert (watch.hits, watch.misses) == (2 * (STEPS - 1), 2)


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
