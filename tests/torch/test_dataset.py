"""Datasets that read batches: all kinds of keys, both styles, readers, subsets and sums."""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import TensorDataset

from ffrecord import FileReader, PackedFolder, pack_folder
from ffrecord.errors import BadRecordWarning, CountError
from ffrecord.torch import ConcatDataset, DataLoader, Dataset, ReaderRegistry, Subset
from tests.torch.datasets import (
    STYLES,
    Both,
    Bytes,
    N,
    Processed,
    Reading,
    batches,
    number_of,
    shut_down,
    write_numbers,
)

Make = Callable[[Path], Dataset[int]]


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """Record the indices of every call of FileReader.read."""
    calls: list[list[int]] = []
    original = FileReader.read

    def read(self: FileReader, indices: Any) -> list[Bytes]:
        calls.append(list(indices))
        return original(self, indices)

    monkeypatch.setattr(FileReader, "read", read)
    return calls


# ---- keys --------------------------------------------------------------------------------


@pytest.mark.parametrize("make", STYLES)
@pytest.mark.parametrize(
    "key",
    [
        [3, 4, 1],
        [5, 5, -1, 5],
        [],
        (3, 4, 1),
        range(2, 9, 3),
        range(0),
        np.array([3, 4, -1]),
        np.array([7], np.uint8),
        torch.tensor([3, 4, 1]),
    ],
    ids=repr,
)
def test_many_indices_give_a_list_of_samples(make: Make, key: Any, numbers: Path) -> None:
    expected = [int(index) % N for index in key]
    assert make(numbers)[key] == expected


@pytest.mark.parametrize("make", STYLES)
@pytest.mark.parametrize("key", [0, 7, -1, -N, np.int64(3), np.array(3), torch.tensor(3), True])
def test_one_index_gives_one_sample(make: Make, key: Any, numbers: Path) -> None:
    assert make(numbers)[key] == int(key) % N


@pytest.mark.parametrize("make", STYLES)
@given(
    st.builds(
        slice,
        *[st.none() | st.integers(-2 * N, 2 * N)] * 2,
        st.none() | st.integers(-5, 5).filter(bool),
    )
)
def test_a_slice_works_as_for_a_list(make: Make, numbers: Path, key: slice) -> None:
    assert make(numbers)[key] == list(range(N))[key]


@pytest.mark.parametrize("make", STYLES)
@pytest.mark.parametrize("key", [N, -N - 1, [0, N], np.array([-N - 1]), 2**70])
def test_an_index_out_of_range_is_an_index_error(make: Make, key: Any, numbers: Path) -> None:
    with pytest.raises((IndexError, OverflowError)) as raised:
        make(numbers)[key]
    assert raised.type is IndexError


@pytest.mark.parametrize("key", ["3", 1.0, None, np.zeros((2, 2), int), [1.5], [True, False]])
def test_a_key_of_another_kind_is_a_type_error(key: Any, numbers: Path) -> None:
    with pytest.raises(TypeError):
        Processed(numbers)[key]


@pytest.mark.parametrize("make", STYLES)
def test_iteration_ends(make: Make, numbers: Path) -> None:
    dataset = make(numbers)
    assert list(itertools.islice(iter(dataset), N + 5)) == list(range(N))
    assert len(dataset) == N


# ---- subclasses --------------------------------------------------------------------------


class Doubled(Reading):
    def __getitem__(self, indices: Any) -> Any:
        assert isinstance(indices, list)
        return [2 * sample for sample in super().__getitem__(indices)]


class WithNeighbour(Doubled):
    def __getitem__(self, indices: Any) -> Any:
        assert isinstance(indices, list)
        one = super().__getitem__(indices[0]) if indices else None
        assert isinstance(one, (int, type(None)))
        return [(sample, one) for sample in super().__getitem__(indices)]


class Inherited(Doubled):
    pass


def test_a_subclass_gets_lists_and_may_pass_any_key_to_super(numbers: Path) -> None:
    assert Doubled(numbers)[3] == 6
    assert Inherited(numbers)[1:3] == [2, 4]
    assert WithNeighbour(numbers)[[2, 3]] == [(4, 4), (6, 4)]
    assert WithNeighbour(numbers)[3] == (6, 6)


def test_a_dataset_without_process_names_the_missing_methods(numbers: Path) -> None:
    with pytest.raises(NotImplementedError, match=r"process\(indices, data\)"):
        Dataset(numbers)[0]


def _forgotten(samples: list[int]) -> None:
    """Return nothing, as a `process` without a return statement does."""


@pytest.mark.parametrize(
    "ask",
    [
        lambda dataset: dataset[3],
        lambda dataset: dataset[:4],
        lambda dataset: next(iter(DataLoader(dataset, 4))),
    ],
    ids=["one", "a slice", "our loader"],
)
def test_a_process_that_returns_none_is_named(ask: Any, numbers: Path) -> None:
    expected = r"Returning\.process returned None; return one sample for each record"
    with pytest.raises(TypeError, match=expected):
        ask(Returning(numbers, _forgotten))


class ReturningNothing(Processed):
    """A dataset whose `__getitem__` has no return statement."""

    def __getitem__(self, indices: Any) -> Any:
        super().__getitem__(indices)


def test_a_getitem_that_returns_none_is_named(numbers: Path) -> None:
    with pytest.raises(TypeError, match=r"ReturningNothing\.__getitem__ returned None; return a"):
        ReturningNothing(numbers)[3]


class Unprepared(Processed):
    """A dataset whose `__init__` does not call the one of its base class."""

    def __init__(self) -> None:
        self.transform = None


@pytest.mark.parametrize("ask", [len, lambda dataset: dataset[3], DataLoader])
def test_a_subclass_that_forgot_super_is_told_to_call_it(ask: Any) -> None:
    expected = r"Unprepared has no reader; call super\(\)\.__init__\(fnames\) in Unprepared"
    with pytest.raises(AttributeError, match=expected):
        next(iter(ask(Unprepared())))


class Returning(Processed):
    """A dataset whose `process` applies a function of the test to the samples of a batch."""

    def __init__(self, fname: Path, make: Callable[[list[int]], Any]) -> None:
        super().__init__(fname)
        self.make = make

    def process(self, indices: list[int], data: list[Bytes]) -> Any:
        return self.make(super().process(indices, data))


@pytest.mark.parametrize(
    ("make", "count"),
    [
        (lambda samples: samples[:-1], 3),
        (lambda samples: [*samples, 0], 5),
        (lambda samples: [], 0),
        (lambda samples: tuple(samples[1:]), 3),
        (lambda samples: (), 0),
        (lambda samples: [np.zeros(4)] * 3, 3),
        (lambda samples: [torch.tensor(1)] * 3, 3),
    ],
    ids=[
        "fewer",
        "more",
        "an empty list",
        "a tuple",
        "an empty tuple",
        "arrays as long as the batch",
        "0-d",
    ],
)
@pytest.mark.parametrize(
    "ask",
    [
        lambda dataset: dataset[:4],
        lambda dataset: (dataset + dataset)[:4],
        lambda dataset: next(iter(DataLoader(dataset, 4))),
        lambda dataset: next(iter(TorchDataLoader(dataset, 4))),
    ],
    ids=["itself", "a sum", "our loader", "torch's loader"],
)
def test_a_wrong_number_of_samples_is_an_error_with_both_numbers(
    ask: Any, make: Any, count: int, numbers: Path
) -> None:
    said = rf"Returning\.process returned {count} samples for 4 records"
    with pytest.raises(CountError, match=said):
        ask(Returning(numbers, make))


def test_too_few_samples_in_a_worker_are_the_same_error(numbers: Path) -> None:
    iterator = iter(DataLoader(Returning(numbers, _all_but_one), batch_size=4, num_workers=1))
    with pytest.raises(CountError, match="returned 3 samples for 4 records"):
        next(iterator)
    shut_down(iterator)


def _all_but_one(samples: list[int]) -> list[int]:
    return samples[1:]


def test_with_on_error_samples_missing_from_process_are_skipped(numbers: Path) -> None:
    even = Returning(numbers, lambda samples: [each for each in samples if each % 2 == 0])
    loader = DataLoader(even, batch_size=4, on_error="skip")
    with pytest.warns(BadRecordWarning):
        found = [number for batch in loader for number in batch.tolist()]
    assert found == list(range(0, N, 2))
    assert [index for index, _ in loader.skipped] == list(range(1, N, 2))


@pytest.mark.parametrize(
    "collated",
    [
        torch.tensor,
        lambda samples: {"numbers": torch.tensor(samples)},
        lambda samples: (torch.tensor(samples), np.array(samples), samples),
        lambda samples: [torch.tensor(samples)] * 2,  # the result of default_collate for pairs
    ],
    ids=["a tensor", "a dictionary", "a tuple", "a list of tensors"],
)
@pytest.mark.parametrize("loader", [DataLoader, TorchDataLoader])
def test_process_may_return_a_collated_batch(loader: Any, collated: Any, numbers: Path) -> None:
    dataset = Returning(numbers, collated)
    found = [dict_of(batch) for batch in loader(dataset, 4, collate_fn=lambda batch: batch)]
    sizes = [4] * (N // 4) + [N % 4]
    starts = range(0, N, 4)
    assert found == [
        dict_of(collated(list(range(start, start + size))))
        for start, size in zip(starts, sizes, strict=True)
    ]


def dict_of(batch: Any) -> dict[Any, Any]:
    """Return a collated batch as a dictionary of lists, by name or number."""
    parts = batch if isinstance(batch, dict) else dict(enumerate(batch))
    return {key: part if isinstance(part, list) else part.tolist() for key, part in parts.items()}


def test_a_dataset_takes_several_files_without_checks(tmp_path: Path) -> None:
    first = write_numbers(tmp_path / "0.ffr", range(4))
    second = write_numbers(tmp_path / "1.ffr", range(4, 9))
    for files in (tmp_path, [first, second], (str(first), str(second))):
        dataset = Processed(files, False)
        assert dataset[:] == list(range(9))
        assert not dataset.reader.check_data


def test_an_unknown_on_error_is_refused(numbers: Path) -> None:
    with pytest.raises(ValueError, match="ignore"):
        Processed(numbers, on_error="ignore")


# ---- with torch's own loader, and in other processes -------------------------------------


@pytest.mark.parametrize("make", STYLES)
def test_the_plain_torch_loader_reads_a_batch_with_one_call(
    make: Make, numbers: Path, reads: list[list[int]]
) -> None:
    loader = TorchDataLoader(make(numbers), batch_size=10)
    assert batches(loader) == [list(range(10)), list(range(10, 20)), [20, 21, 22]]
    assert reads == [list(range(10)), list(range(10, 20)), [20, 21, 22]]


@pytest.mark.parametrize("make", [*STYLES, Both])
def test_a_dataset_pickles(make: Make, numbers: Path) -> None:
    dataset = make(numbers)
    copied = pickle.loads(pickle.dumps(dataset))
    assert copied[:] == dataset[:]
    assert copied.fingerprint == dataset.fingerprint


def test_types_are_known_to_a_checker(numbers: Path) -> None:
    """mypy is the test here: it fails if the types are wrong."""
    dataset: Dataset[int] = Processed(numbers)
    loader: TorchDataLoader[int] = TorchDataLoader(dataset)
    whole: ConcatDataset[int] = ConcatDataset([dataset, Subset(dataset, [1])])
    samples: list[int] = Processed(numbers).process([0], [dataset.reader.read_one(0)])
    assert samples == [0]
    assert [whole[3], *whole[-1:], *whole[[1, 2]]] == [3, 1, 1, 2]
    assert len(whole) == N + 1
    assert len(loader) == N


# ---- fingerprints ------------------------------------------------------------------------


def test_a_fingerprint_depends_on_the_data_and_its_order(tmp_path: Path, numbers: Path) -> None:
    other = write_numbers(tmp_path / "other.ffr", [*range(N - 1), N])
    dataset = Processed(numbers)
    assert dataset.fingerprint == Processed(numbers).fingerprint
    different = [
        dataset,
        Processed(other),
        Subset(dataset, [1, 2]),
        Subset(dataset, [2, 1]),
        dataset + dataset,
        dataset + Processed(other),
        Processed(other) + dataset,
    ]
    assert len({each.fingerprint for each in different}) == len(different)
    assert Subset(dataset, range(3)).fingerprint == Subset(dataset, torch.arange(3)).fingerprint  # type: ignore[arg-type]


# ---- readers -----------------------------------------------------------------------------


class Holder(ReaderRegistry):
    def __init__(self, **attributes: Any) -> None:
        self.__dict__.update(attributes)


def test_readers_are_found_in_attributes_lists_and_dictionaries(
    tmp_path: Path, numbers: Path
) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "file").write_bytes(b"content")
    pack_folder(tmp_path / "folder", tmp_path / "folder.ffr")
    readers = [FileReader(numbers) for _ in range(6)]
    folder = PackedFolder(tmp_path / "folder.ffr")
    inner = Holder(deep=readers[4], number=3)
    outer = Holder(
        one=readers[0],
        many=[readers[1], "something", None],
        pair=(readers[2], readers[0]),
        named={"train": readers[3]},
        nested=[inner],
        folder=folder,
        other=Processed(numbers),
    )
    inner.above = outer  # type: ignore[attr-defined]
    found = outer.ffreaders()
    assert found == [*readers[:4], folder.reader, readers[4], outer.other.reader]  # type: ignore[attr-defined]
    assert set(map(id, inner.ffreaders())) == set(map(id, found))


def test_many_readers_in_one_list_are_found(numbers: Path) -> None:
    readers = [FileReader(numbers)] * 2000 + [FileReader(numbers)]
    assert Holder(many=readers, none=[]).ffreaders() == [readers[0], readers[-1]]
    assert Holder(named=dict(enumerate(readers))).ffreaders() == [readers[0], readers[-1]]


def test_readers_of_sums_and_subsets_are_found(numbers: Path) -> None:
    first, second = Processed(numbers), Reading(numbers)
    found = (Subset(first, [1]) + second).ffreaders()  # second is nearer, so it comes first
    assert found == [second.reader, first.reader]
    assert (first + first).ffreaders() == [first.reader]


# ---- subsets and sums --------------------------------------------------------------------


INDICES = st.lists(st.integers(-4, 3), max_size=8)


@given(st.lists(st.integers(-N, N - 1), min_size=4, max_size=4), INDICES)
def test_a_subset_equals_a_subset_of_a_list(
    numbers: Path, chosen: list[int], indices: list[int]
) -> None:
    model = [list(range(N))[index] for index in chosen]
    for kind in (chosen, tuple(chosen), np.array(chosen), torch.tensor(chosen)):
        subset = Subset(Processed(numbers), kind)  # type: ignore[arg-type]
        assert subset[indices] == [model[index] for index in indices]
        assert subset[:] == model
        assert list(subset) == model  # type: ignore[call-overload]


@given(st.data())
def test_a_sum_equals_a_sum_of_lists(numbers: Path, data: st.DataObject) -> None:
    """Parts may be empty, repeated, subsets, sums, or torch datasets."""
    dataset = Reading(numbers)
    tensors = TensorDataset(torch.arange(100, 105))
    pieces = [
        (dataset, list(range(N))),
        (Subset(dataset, [5, 2, 2]), [5, 2, 2]),
        (Subset(dataset, []), []),
        (Subset(dataset, [9]) + dataset, [9, *range(N)]),
        (tensors, [(torch.tensor(i),) for i in range(100, 105)]),
    ]
    chosen = data.draw(st.lists(st.sampled_from(pieces), min_size=1, max_size=4))
    model: list[Any] = [sample for _, samples in chosen for sample in samples]
    whole: ConcatDataset[Any] = ConcatDataset([part for part, _ in chosen])
    assert len(whole) == len(model)
    if model:
        places = st.integers(-len(model), len(model) - 1)
        indices = data.draw(st.lists(places, max_size=10))
        assert whole[indices] == [model[index] for index in indices]
        one = data.draw(places)
        assert whole[one] == model[one]
    with pytest.raises(IndexError):
        whole[len(model)]


def test_a_sum_reads_each_part_once_per_batch(numbers: Path, reads: list[list[int]]) -> None:
    whole = Processed(numbers) + Reading(numbers)
    assert whole[[1, N, 2, N + 3, -1]] == [1, 0, 2, 3, N - 1]
    assert sorted(reads) == [[0, 3, N - 1], [1, 2]]


def test_a_sum_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="empty"):
        ConcatDataset([])


def test_plus_makes_a_sum(numbers: Path) -> None:
    dataset = Processed(numbers)
    assert (dataset + dataset + dataset)[::N] == [0, 0, 0]
    assert (dataset + TensorDataset(torch.arange(3)))[-1] == (torch.tensor(2),)


def test_records_are_read_as_written(numbers: Path) -> None:
    assert number_of(FileReader(numbers).read_one(5)) == 5
