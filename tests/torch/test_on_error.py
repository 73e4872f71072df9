"""Samples that cannot be read or decoded raise their error, are left out, or are replaced."""

from __future__ import annotations

import shutil
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Dataset as TorchDataset
from torch.utils.data import IterableDataset

from ffrecord import FileReader, Transform
from ffrecord.errors import BadRecordWarning, FFRecordError, SampleChecksumError
from ffrecord.torch import DataLoader, Subset
from tests.support import archives
from tests.torch.datasets import (
    Bytes,
    N,
    Processed,
    Reading,
    as_list,
    number_of,
    plain,
    shut_down,
)

SIZE = 4
DAMAGED = [5, 13]
WHOLE = [list(range(at, min(at + SIZE, N))) for at in range(0, N, SIZE)]


@pytest.fixture
def damaged(numbers: Path, tmp_path: Path) -> Path:
    """Return a file of numbers with a flipped bit in two records."""
    return spoiled(numbers, tmp_path, DAMAGED)


def spoiled(numbers: Path, folder: Path, records: list[int]) -> Path:
    path = Path(shutil.copy(numbers, folder / "damaged.ffr"))
    offsets = FileReader(numbers).get_offsets(0)
    for record in records:
        archives.flip(path, int(offsets[record]) + 3)
    return path


def without(bad: list[int]) -> list[list[int]]:
    left = [[number for number in batch if number not in bad] for batch in WHOLE]
    return [batch for batch in left if batch]


def drained(loader: Any) -> tuple[list[Any], list[str]]:
    """Return the batches of an epoch and the texts of its warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", BadRecordWarning)
        found = [plain(batch) for batch in loader]
    return found, [str(each.message) for each in caught if each.category is BadRecordWarning]


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.10 prints no notes")
@pytest.mark.parametrize("workers", [0, 1])
def test_the_traceback_of_a_damaged_record_says_what_to_do(workers: int, damaged: Path) -> None:
    iterator = iter(DataLoader(Processed(damaged), batch_size=SIZE, num_workers=workers))
    with pytest.raises(SampleChecksumError) as caught:
        list(iterator)
    shut_down(iterator)
    *_, error, note = "".join(traceback.format_exception(caught.value)).splitlines()
    assert error.endswith(str(caught.value))
    assert "`ffrecord salvage`" in note
    assert 'on_error="skip" leaves' in note
    assert "salvage" not in str(caught.value)


class Decoding(Processed):
    """A dataset that fails to decode numbers divisible by seven."""

    def process(self, indices: list[int], data: list[Bytes]) -> list[int]:
        samples = super().process(indices, data)
        for sample in samples:
            if sample % 7 == 0:
                raise ValueError(f"{sample} is divisible by seven")
        return samples


# ---- raise -------------------------------------------------------------------------------


class Foreign(TorchDataset[int]):
    """A dataset of torch, not of ours, that reads our files."""

    def __init__(self, fname: Path) -> None:
        self.reader = FileReader(fname)

    def __len__(self) -> int:
        return self.reader.n

    def __getitem__(self, index: int) -> int:
        return number_of(self.reader[index])


class Numbers(Iterator[int]):
    """The numbers of a file. Iteration continues after an error."""

    def __init__(self, fname: Path) -> None:
        self.reader = FileReader(fname)
        self.at = -1

    def __next__(self) -> int:
        self.at += 1
        return number_of(self.reader[self.at])


class Streaming(IterableDataset[int]):
    """A stream that opens its file when an epoch begins."""

    def __init__(self, fname: Path) -> None:
        self.fname = fname

    def __iter__(self) -> Iterator[int]:
        return Numbers(self.fname)


def transformed(fname: Path) -> Transform:
    return Transform(Foreign(fname), lambda number, _: number)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("make", [Processed, Reading, Foreign, transformed])
def test_a_damaged_record_raises_its_error_also_from_a_worker(
    make: Any, workers: int, damaged: Path
) -> None:
    iterator = iter(DataLoader(make(damaged), SIZE, num_workers=workers))
    assert plain(next(iterator)) == WHOLE[0]
    with pytest.raises(SampleChecksumError) as raised:
        next(iterator)
    assert raised.value.record == 5
    assert raised.value.path == str(damaged)
    assert plain(next(iterator)) == WHOLE[2]  # iteration continues after the error
    shut_down(iterator)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_stream_raises_its_error_also_from_a_worker(workers: int, damaged: Path) -> None:
    iterator = iter(DataLoader(Streaming(damaged), SIZE, num_workers=workers))
    assert plain(next(iterator)) == WHOLE[0]
    with pytest.raises(SampleChecksumError) as raised:
        next(iterator)
    assert raised.value.record == 5
    assert plain(next(iterator)) == [6, 7, 8, 9]  # the rest of the batch with the error is lost
    shut_down(iterator)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_stream_that_cannot_begin_raises_its_error(workers: int, tmp_path: Path) -> None:
    path = tmp_path / "cut.ffr"
    path.write_bytes(bytes(10))
    with pytest.raises(FFRecordError) as raised:
        next(iter(DataLoader(Streaming(path), SIZE, num_workers=workers)))
    assert type(raised.value) is not FFRecordError
    assert str(path) in str(raised.value)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_decoding_error_is_raised_as_in_torch(workers: int, numbers: Path) -> None:
    iterator = iter(DataLoader(Decoding(numbers), SIZE, num_workers=workers))
    with pytest.raises(ValueError, match="0 is divisible by seven"):
        next(iterator)
    shut_down(iterator)


# ---- skip --------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("make", [Processed, Reading])
def test_a_damaged_record_is_left_out_and_the_others_keep_their_order(
    make: Any, workers: int, damaged: Path
) -> None:
    loader = DataLoader(make(damaged), SIZE, num_workers=workers, on_error="skip")
    found, said = drained(loader)
    assert found == without(DAMAGED)
    assert [index for index, _ in loader.skipped] == DAMAGED
    for (index, reason), line in zip(loader.skipped, said, strict=True):
        assert "SampleChecksumError" in reason
        assert f"record {index} is damaged" in reason
        assert f"sample {index} was left out" in line
        assert reason in line


@pytest.mark.parametrize("workers", [0, 2])
def test_samples_with_decoding_errors_are_left_out_too(workers: int, numbers: Path) -> None:
    loader = DataLoader(Decoding(numbers), SIZE, num_workers=workers, on_error="skip")
    found, said = drained(loader)
    assert found == without([0, 7, 14, 21])
    assert len(said) == 4
    assert loader.skipped[1] == (7, "ValueError: 7 is divisible by seven")


def test_on_error_of_the_loader_takes_precedence_over_the_datasets(damaged: Path) -> None:
    dataset = Processed(damaged, on_error="skip")
    assert drained(DataLoader(dataset, SIZE))[0] == without(DAMAGED)
    assert drained(DataLoader(Subset(dataset, range(N)), SIZE))[0] == without(DAMAGED)
    with pytest.raises(SampleChecksumError):
        drained(DataLoader(dataset, SIZE, on_error="raise"))


def test_a_sum_leaves_out_damaged_samples_of_a_part(damaged: Path, numbers: Path) -> None:
    whole = Processed(damaged) + Processed(numbers)
    loader = DataLoader(whole, 2 * N, on_error="skip")
    assert drained(loader)[0] == [[n for n in range(N) if n not in DAMAGED] + list(range(N))]
    assert [index for index, _ in loader.skipped] == DAMAGED


def test_a_sum_has_the_on_error_of_its_parts_if_they_agree(damaged: Path) -> None:
    lenient, strict = Processed(damaged, on_error="skip"), Processed(damaged)
    assert drained(DataLoader(lenient + lenient, N))[0] == 2 * [
        [number for number in range(N) if number not in DAMAGED]
    ]
    with pytest.raises(SampleChecksumError):
        drained(DataLoader(lenient + strict, N))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("first_bad", [0, 8, 20])
def test_an_empty_batch_is_dropped_and_still_counts(
    workers: int, first_bad: int, numbers: Path, tmp_path: Path
) -> None:
    """A dropped batch counts, so that a state saved after it continues with the next batch."""
    bad = list(range(first_bad, min(first_bad + SIZE, N)))
    dataset = Processed(spoiled(numbers, tmp_path, bad), on_error="skip")
    expected = without(bad)
    for stop in range(len(expected) + 1):
        first = DataLoader(dataset, SIZE, num_workers=workers if stop == 2 else 0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", BadRecordWarning)
            iterator = iter(first)
            found = [plain(next(iterator)) for _ in range(stop)]
            second = DataLoader(dataset, SIZE)
            second.load_state_dict(first.state_dict())
            found += [plain(batch) for batch in second]
        # A state saved after the last batch that is not empty continues with the next epoch.
        assert found == expected * (2 if stop == len(expected) else 1)


# ---- a function --------------------------------------------------------------------------


def replaced(index: int, error: Exception) -> int | None:
    assert isinstance(error, SampleChecksumError)
    assert error.record == index
    return -index if index == 5 else None


@pytest.mark.parametrize("workers", [0, 2])
def test_a_function_replaces_a_sample_or_leaves_it_out(workers: int, damaged: Path) -> None:
    loader = DataLoader(Processed(damaged), SIZE, num_workers=workers, on_error=replaced)
    found, said = drained(loader)
    expected = [[-5 if n == 5 else n for n in batch if n != 13] for batch in WHOLE]
    assert found == expected
    assert [index for index, _ in loader.skipped] == [13]
    assert len(said) == 1


# ---- with torch's own loader -------------------------------------------------------------


@pytest.mark.parametrize(
    ("on_error", "expected"),
    [
        ("skip", without(DAMAGED)),
        (replaced, [[-5 if n == 5 else n for n in batch if n != 13] for batch in WHOLE]),
    ],
)
def test_on_error_of_the_dataset_applies_in_torchs_loader(
    on_error: str | Callable[[int, Exception], Any], expected: list[Any], damaged: Path
) -> None:
    loader = TorchDataLoader(Processed(damaged, on_error=on_error), SIZE)
    found, said = drained(loader)
    assert found == expected
    assert said[-1].startswith("sample 13 was left out")


def test_an_empty_batch_is_an_error_in_torchs_loader(numbers: Path, tmp_path: Path) -> None:
    dataset = Processed(spoiled(numbers, tmp_path, [4, 5, 6, 7]), on_error="skip")
    iterator = iter(TorchDataLoader(dataset, SIZE))
    assert plain(next(iterator)) == WHOLE[0]
    with pytest.warns(BadRecordWarning), pytest.raises(FFRecordError, match=r"\(4 samples\)"):
        next(iterator)


# ---- loaders without batches -------------------------------------------------------------


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("make", [Processed, Reading])
def test_a_loader_without_batches_leaves_samples_out_too(
    make: Any, workers: int, damaged: Path
) -> None:
    loader = DataLoader(make(damaged), None, num_workers=workers, on_error="skip")
    found, said = drained(loader)
    assert found == [number for number in range(N) if number not in DAMAGED]
    assert [index for index, _ in loader.skipped] == DAMAGED
    assert len(said) == 2


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_without_batches_raises_the_error_itself(workers: int, damaged: Path) -> None:
    iterator = iter(DataLoader(Processed(damaged), None, num_workers=workers))
    assert [next(iterator) for _ in range(5)] == [0, 1, 2, 3, 4]
    with pytest.raises(SampleChecksumError) as raised:
        next(iterator)
    assert raised.value.record == 5
    shut_down(iterator)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_sampler_of_lists_gives_batches_without_bad_samples(workers: int, damaged: Path) -> None:
    loader = DataLoader(
        Processed(damaged), None, sampler=WHOLE, num_workers=workers, on_error="skip",
        collate_fn=as_list,
    )  # fmt: skip
    assert drained(loader)[0] == without(DAMAGED)
