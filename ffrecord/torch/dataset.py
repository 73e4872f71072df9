"""Datasets that are asked for a batch of samples at a time, and read it as one.

`dataset[[3, 4, 1]]` is a list of samples, `dataset[3]` one sample, `dataset[2:5]` a list. torch's
own DataLoader finds `__getitems__` and asks for batches too.
"""

from __future__ import annotations

import functools
import operator
import warnings
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from typing import Any, TypeAlias, TypeVar
from weakref import WeakSet

import numpy as np
import numpy.typing as npt
from torch import Tensor
from torch.utils.data import Dataset as TorchDataset

from ffrecord.aliases import Path
from ffrecord.errors import BadRecordWarning, CountError, FFRecordError
from ffrecord.records.fingerprints import (
    Fingerprinting,
    combined,
    fingerprint_of,
    former_fingerprint_of,
    of_indices,
)
from ffrecord.records.indices import record_numbers
from ffrecord.records.reader import FileReader
from ffrecord.torch.assembler import (
    BatchRequest,
    OnError,
    Promise,
    Skipped,
    check_on_error,
    samples_of,
)
from ffrecord.torch.registry import ReaderRegistry

T_co = TypeVar("T_co", covariant=True)
# So many batches are put on their way before it is seen that a reader is not read like that.
MOST_UNREAD = 3
_read_otherwise: WeakSet[FileReader] = WeakSet()
"""Readers that were never read with the indices that were announced to them."""

GetItem: TypeAlias = Callable[[Any, Any], Any]


def _takes_any_key(getitem: GetItem) -> GetItem:
    """Let a `__getitem__` that is written for lists of indices take an index or a slice too."""

    @functools.wraps(getitem)
    def wrapper(self: Any, key: Any) -> Any:
        if isinstance(key, BatchRequest):  # of a loader of ours that makes no batches
            return Promise(self, key)
        if isinstance(key, list):
            return getitem(self, key)
        if isinstance(key, slice):
            return getitem(self, list(range(*key.indices(len(self)))))
        if isinstance(key, (tuple, range)):
            return getitem(self, list(key))
        if getattr(key, "ndim", 0) == 1:  # an array or a tensor
            return getitem(self, key.tolist())
        return getitem(self, [operator.index(key)])[0]

    return wrapper


class Dataset(TorchDataset[T_co], ReaderRegistry):
    """A dataset that reads a batch of records at a time. There are two ways to write one.

    Either give the files to this class and define `process`, which makes samples of records:

        class Pictures(Dataset):
            def process(self, indices, data):
                return [decode(record) for record in data]

        pictures = Pictures("train.ffr")

    or read with `FileReader`s of your own, and define `__len__` and `__getitem__`, which is given
    a list of indices and returns a list of samples:

        class Pictures(Dataset):
            def __init__(self, fname):
                self.reader = FileReader(fname)

            def __len__(self):
                return self.reader.n

            def __getitem__(self, indices):
                return [decode(record) for record in self.reader.read(indices)]

    Args:
        fnames: a file, a list of files or a folder, as `FileReader` takes it.
        check_data: verify the checksum of every record.
        on_error: what a loader does with a sample that cannot be read or decoded: "raise", "skip"
            it with a warning, or a function that is given the index and the error and returns
            a sample for its place, or None to skip it.
    """

    on_error: OnError = "raise"

    def __init__(
        self, fnames: Path | Sequence[Path], check_data: bool = True, *, on_error: OnError = "raise"
    ) -> None:
        self.fnames = fnames
        self.reader = FileReader(fnames, check_data)
        self.on_error = check_on_error(on_error)

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "__getitem__" in vars(cls):
            cls.__getitem__ = _takes_any_key(vars(cls)["__getitem__"])  # type: ignore[method-assign]

    def __len__(self) -> int:
        return self.reader.n

    @_takes_any_key
    def __getitem__(self, indices: list[int]) -> Any:
        samples = self.process(indices, self.reader.read(indices))
        if not _is_one_each(samples, len(indices)):
            raise CountError(
                f"{type(self).__name__}.process returned {len(samples)} samples for "
                f"{len(indices)} records: one for each is due; on_error leaves bad ones out"
            )
        return samples

    def process(self, indices: list[int], data: list[npt.NDArray[np.uint8]]) -> Sequence[T_co]:
        """The samples that the records of a batch are, one each; to be defined by the user."""
        raise NotImplementedError(
            f"{type(self).__name__} must define process(indices, data), or __getitem__ and __len__"
        )

    def __getitems__(self, indices: list[int]) -> Any:
        """Return a batch, for torch's loaders. Bad samples are treated as `on_error` says."""
        if isinstance(indices, BatchRequest):
            return Promise(self, indices)
        samples, skipped = samples_of(self, list(indices), self.on_error)
        warn_of_skipped(skipped, stacklevel=3)
        if skipped and not samples:
            raise FFRecordError(f"every sample of a batch was skipped; the first: {skipped[0][1]}")
        return samples

    def prefetch(self, indices: list[int]) -> None:
        """Begin to read what `self[indices]` will read.

        Readers with a record for every sample are taken to be read with the same indices, or the
        first of each where a sampler gives tuples; one where that never came true is left alone.
        Override it where a dataset knows better.
        """
        length = len(self)
        indices = [index[0] if isinstance(index, tuple) and index else index for index in indices]
        for reader in self.ffreaders():
            if reader.n < length or reader in _read_otherwise:
                continue
            if reader.prefetched >= MOST_UNREAD and not reader.prefetch_hits:
                reader.drop_prefetched()
                _read_otherwise.add(reader)
            else:
                reader.prefetch(indices)

    def drop_prefetched(self) -> None:
        """Let go of what was begun for batches that nobody will ask for."""
        for reader in self.ffreaders():
            reader.drop_prefetched()

    @functools.cached_property
    def fingerprint(self) -> str:
        """The same data in the same order has the same fingerprint.

        It is made of the length, of the readers' fingerprints, and of those that other attributes
        have: `DatasetReader`s, for example, or datasets of torch's around them.
        """
        return self.fingerprint_by(fingerprint_of)

    def fingerprint_by(self, of: Fingerprinting) -> str:
        """Return the fingerprint, with those of datasets inside as a function gives them."""
        read = [reader.fingerprint for reader in self.ffreaders()]
        others = [] if of is former_fingerprint_of else map(of, self.ffdatasets())
        return combined(str(len(self)), *read, *others)

    def __repr__(self) -> str:
        """Name the data, the same in every process: Grain compares it when a state is loaded."""
        try:
            return f"<{type(self).__name__}: {len(self)} samples, {fingerprint_of(self)[:16]}>"
        except Exception:  # of a dataset that is not ready, or closed
            return super().__repr__()

    def __add__(self, other: TorchDataset[Any]) -> ConcatDataset[Any]:  # type: ignore[override]
        return ConcatDataset([self, other])


class Subset(Dataset[T_co]):
    """The samples of a dataset at given indices."""

    def __init__(self, dataset: Dataset[T_co], indices: Sequence[int]) -> None:
        self.dataset = dataset
        self.indices = indices
        self.on_error = getattr(dataset, "on_error", "raise")

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, indices: Any) -> Any:  # a list here, for callers any key
        return fetch(self.dataset, self._inner(indices))

    def prefetch(self, indices: list[int]) -> None:
        prefetch(self.dataset, self._inner(indices))

    def _inner(self, indices: list[int]) -> list[int]:
        return [int(self.indices[index]) for index in indices]

    def fingerprint_by(self, of: Fingerprinting) -> str:
        return combined(of(self.dataset), of_indices(self.indices))


class ConcatDataset(Dataset[T_co]):
    """Several datasets, one after the other; `a + b` makes one too.

    Its `on_error` is that of its parts if they agree, else "raise".
    """

    def __init__(self, datasets: Iterable[TorchDataset[T_co]]) -> None:
        self.datasets = list(datasets)
        if not self.datasets:
            raise ValueError("datasets should not be an empty iterable")
        choices = [getattr(dataset, "on_error", "raise") for dataset in self.datasets]
        self.on_error = choices[0] if choices.count(choices[0]) == len(choices) else "raise"
        self.cumulative_sizes = self.cumsum(self.datasets)

    @staticmethod
    def cumsum(sequence: Iterable[Any]) -> list[int]:
        """How many samples each dataset and those before it have together."""
        return list(accumulate(map(len, sequence)))

    def __len__(self) -> int:
        return self.cumulative_sizes[-1]

    def __getitem__(self, indices: Any) -> Any:  # a list here, for callers any key
        parts = self._parts(indices)
        if len(parts) > 1:  # all of them on their way before the first is waited for
            for dataset, inner, _ in parts:
                prefetch(dataset, inner)
        samples: list[Any] = [None] * len(indices)
        for dataset, inner, places in parts:
            found = fetch(dataset, inner)
            for place, sample in zip(places, found, strict=True):
                samples[place] = sample
        return samples

    def prefetch(self, indices: list[int]) -> None:
        for dataset, inner, _ in self._parts(indices):
            prefetch(dataset, inner)

    def _parts(self, indices: list[int]) -> list[tuple[TorchDataset[T_co], list[int], list[int]]]:
        """For each dataset concerned: its own indices, and their places among `indices`."""
        whole = record_numbers(indices, len(self))
        ends = np.array(self.cumulative_sizes)
        which = ends.searchsorted(whole, side="right")
        parts = []
        for number in np.unique(which).tolist():
            places = (which == number).nonzero()[0]
            first = self.cumulative_sizes[number - 1] if number else 0
            inner = (whole[places] - first).tolist()
            parts.append((self.datasets[number], inner, places.tolist()))
        return parts

    def fingerprint_by(self, of: Fingerprinting) -> str:
        return combined(*map(of, self.datasets))


def _is_one_each(samples: Any, count: int) -> bool:
    """Whether there is a sample for every record, as far as can be told: it may be a batch that
    was collated already. That is a dictionary, a tensor, a tuple of parts, a list of tensors."""
    if not isinstance(samples, (list, tuple)) or len(samples) == count:
        return True
    if isinstance(samples, list) and not all(isinstance(part, Tensor) for part in samples):
        return False
    return bool(samples) and all(_length(part) == count for part in samples)


def _length(part: Any) -> int | None:
    try:
        return len(part)
    except TypeError:  # a number, or a tensor without dimensions
        return None


def fetch(dataset: TorchDataset[Any], indices: list[int]) -> Any:
    """A batch of samples of any map-style dataset."""
    if isinstance(dataset, Dataset):
        return dataset[indices]
    if hasattr(dataset, "__getitems__"):
        return dataset.__getitems__(indices)
    return [dataset[index] for index in indices]


def prefetch(dataset: TorchDataset[Any], indices: list[int]) -> None:
    """Put a batch on its way, where a dataset can."""
    if isinstance(dataset, Dataset):
        dataset.prefetch(indices)


def warn_of_skipped(skipped: Skipped, stacklevel: int) -> None:
    for index, what in skipped:
        message = f"sample {index} was left out: {what}"
        warnings.warn(message, BadRecordWarning, stacklevel=stacklevel + 1)
