"""Our readers and datasets as sources of Grain: loaders, worker processes, saved states."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ffrecord import FileReader
from tests.torch.datasets import N, Processed, number_of
from tests.torch.frameworks import package

grain = package("grain")

SIZE = 4


def as_number(sample: Any) -> int:
    return sample if isinstance(sample, int) else number_of(sample)


class Decode(grain.transforms.Map):  # type: ignore[name-defined,misc]
    def map(self, element: Any) -> int:
        return as_number(element)


def loader(source: Any, workers: int) -> Any:
    sampler = grain.samplers.IndexSampler(N, shuffle=True, num_epochs=2, seed=3)
    operations = [Decode(), grain.transforms.Batch(SIZE)]
    return grain.DataLoader(
        data_source=source, sampler=sampler, operations=operations, worker_count=workers
    )


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.long)])
@pytest.mark.parametrize("kind", [FileReader, Processed])
def test_a_grain_loader_gives_every_sample_and_resumes(
    kind: Any, workers: int, numbers: Path
) -> None:
    iterator = iter(loader(kind(numbers), workers))
    begun = [next(iterator).tolist() for _ in range(5)]
    state = iterator.get_state()
    rest = [batch.tolist() for batch in iterator]
    assert sorted(n for batch in begun + rest for n in batch) == sorted(2 * list(range(N)))
    again = iter(loader(kind(numbers), workers))
    again.set_state(state)
    assert [batch.tolist() for batch in again] == rest


def test_a_state_of_other_data_is_refused(numbers: Path, tmp_path: Path) -> None:
    state = iter(loader(Processed(numbers), 0)).get_state()
    other = tmp_path / "other.ffr"
    other.write_bytes(numbers.read_bytes())
    iter(loader(Processed(other), 0)).set_state(state)  # a copy at another path is the same data
    short = Processed([numbers, other])
    with pytest.raises(ValueError, match="data source"):
        iter(loader(short, 0)).set_state(state)


@pytest.mark.long
@pytest.mark.parametrize("kind", [FileReader, Processed])
def test_a_map_dataset_shuffles_batches_and_prefetches(kind: Any, numbers: Path) -> None:
    dataset = grain.MapDataset.source(kind(numbers)).shuffle(seed=1).map(as_number).batch(SIZE)
    in_threads = [batch.tolist() for batch in dataset]
    assert sorted(n for batch in in_threads for n in batch) == list(range(N))
    options = grain.multiprocessing.MultiprocessingOptions(num_workers=2)
    in_processes = dataset.to_iter_dataset().mp_prefetch(options)
    assert [batch.tolist() for batch in in_processes] == in_threads
