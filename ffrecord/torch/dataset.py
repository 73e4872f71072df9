"""Datasets that read all records of a batch with one call.

`dataset[[3, 4, 1]]` and `dataset[2:5]` return a list of samples, `dataset[3]` returns one sample.
torch's own DataLoader finds `__getitems__` and asks for whole batches too.

Each process uses its own copy of a dataset. Errors of reading are subclasses of `FFRecordError`.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar
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
from ffrecord.text import counted, integer
from ffrecord.torch.assembler import (
    BatchRequest,
    OnError,
    Promise,
    Skipped,
    check_on_error,
    samples_of,
)
from ffrecord.torch.registry import ReaderRegistry

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ffrecord.remote.options import RemoteOptions

T_co = TypeVar("T_co", covariant=True)
# Stop reading ahead for a reader after this many announced batches if none of them was read.
MOST_UNREAD = 3
_read_otherwise: WeakSet[FileReader] = WeakSet()
"""Readers whose datasets read other records than the announced ones. They get no read-ahead."""

GetItem: TypeAlias = Callable[[Any, Any], Any]


def _takes_any_key(getitem: GetItem) -> GetItem:
    """Wrap a `__getitem__` for lists of indices so that it also takes an index or a slice."""

    @functools.wraps(getitem)
    def wrapper(self: Any, key: Any) -> Any:
        if isinstance(key, BatchRequest):  # from our loader with batch_size=None
            return Promise(self, key)
        if isinstance(key, list):
            return getitem(self, key)
        if isinstance(key, slice):
            return getitem(self, list(range(*key.indices(len(self)))))
        if isinstance(key, (tuple, range)):
            return getitem(self, list(key))
        if getattr(key, "ndim", 0) == 1:  # an array or a tensor
            return getitem(self, key.tolist())
        samples = getitem(self, [integer(key, "the index of a sample")])
        if samples is None:
            raise TypeError(
                f"{type(self).__name__}.__getitem__ returned None; return a list with one sample "
                "for each index"
            )
        return samples[0]

    return wrapper


class Dataset(TorchDataset[T_co], ReaderRegistry):
    """Base class of datasets that read a batch of records at a time.

    There are two ways to write one. Either pass the files to this class and define `process`,
    which turns records into samples:

        class Pictures(Dataset):
            def process(self, indices, data):
                return [decode(record) for record in data]

        pictures = Pictures("train.ffr")

    Or open `FileReader`s yourself and define `__len__` and `__getitem__`. `__getitem__` takes a
    list of indices and returns a list of samples:

        class Pictures(Dataset):
            def __init__(self, fname):
                self.reader = FileReader(fname)

            def __len__(self):
                return self.reader.n

            def __getitem__(self, indices):
                return [decode(record) for record in self.reader.read(indices)]

    Args:
        fnames: a file, a list of files, a folder or URLs, as for `FileReader`.
        check_data: verify the checksum of every record.
        on_error: how a loader treats a sample that cannot be read or decoded. `"raise"` raises the
            error. `"skip"` leaves the sample out with a warning. A function is called with the
            index and the error, and returns a sample to use instead, or None to skip.
        remote: options for URLs, as for `FileReader`.
    """

    on_error: OnError = "raise"

    def __init__(
        self,
        fnames: Path | Sequence[Path],
        check_data: bool = True,
        *,
        on_error: OnError = "raise",
        **remote: Unpack[RemoteOptions],
    ) -> None:
        self.fnames = fnames
        self.reader = FileReader(fnames, check_data, **remote)
        self.on_error = check_on_error(on_error)

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "__getitem__" in vars(cls):
            cls.__getitem__ = _takes_any_key(vars(cls)["__getitem__"])  # type: ignore[method-assign]

    def __len__(self) -> int:
        return self._own_reader().n

    def _own_reader(self) -> FileReader:
        """Return `self.reader`, or raise an error if a subclass did not call our `__init__`."""
        try:
            return self.reader
        except AttributeError:
            if hasattr(type(self), "reader"):  # a property of the subclass failed
                raise
        name = type(self).__name__
        raise AttributeError(
            f"{name} has no reader; call super().__init__(fnames) in {name}.__init__, or define "
            "__len__ and __getitem__"
        )

    @_takes_any_key
    def __getitem__(self, indices: list[int]) -> Any:
        samples = self.process(indices, self._own_reader().read(indices))
        if samples is None:
            raise TypeError(
                f"{type(self).__name__}.process returned None; return one sample for each record"
            )
        if not _is_one_each(samples, len(indices)):
            raise CountError(
                f"{type(self).__name__}.process returned {len(samples)} samples for "
                f"{len(indices)} records; return one sample for each record, and pass "
                'on_error="skip" to leave out bad ones'
            )
        return samples

    def process(self, indices: list[int], data: list[npt.NDArray[np.uint8]]) -> Sequence[T_co]:
        """Return one sample for each record of a batch. Subclasses define it.

        Args:
            indices: the indices of the samples.
            data: their records, in the same order.
        """
        raise NotImplementedError(
            f"{type(self).__name__} does not say how records become samples; define "
            "process(indices, data), or __getitem__ and __len__"
        )

    def __getitems__(self, indices: list[int]) -> Any:
        """Return the samples of a batch. torch's loaders call this; `on_error` applies."""
        if isinstance(indices, BatchRequest):
            return Promise(self, indices)
        samples, skipped = samples_of(self, list(indices), self.on_error)
        warn_of_skipped(skipped, stacklevel=3)
        if skipped and not samples:
            raise FFRecordError(
                f"every sample of a batch was skipped ({counted(len(skipped), 'sample')}); the "
                f"error of sample {skipped[0][0]} is {skipped[0][1]}; check the files with "
                "`ffrecord verify`, or use ffrecord.torch.DataLoader, which drops such batches"
            )
        return samples

    def prefetch(self, indices: list[int]) -> None:
        """Start to read the records that `self[indices]` will read.

        This assumes that `self[indices]` reads the records `indices` from each reader that has at
        least as many records as there are samples. If a sampler gives tuples, the first item of
        each tuple is the index. Read-ahead stops for a reader if its first three announced batches
        are not read. Override this method if the dataset reads other records.
        """
        length = len(self)
        if indices and isinstance(indices[0], tuple):
            indices = [index[0] for index in indices]
        for reader in self.ffreaders():
            if reader.n < length or reader in _read_otherwise:
                continue
            if reader.prefetched >= MOST_UNREAD and not reader.prefetch_hits:
                reader.drop_prefetched()
                _read_otherwise.add(reader)
            else:
                reader.prefetch(indices)

    def drop_prefetched(self) -> None:
        """Cancel all reads that `prefetch` started."""
        for reader in self.ffreaders():
            reader.drop_prefetched()

    @functools.cached_property
    def fingerprint(self) -> str:
        """The dataset's fingerprint: equal for the same data in the same order.

        It is computed from the length, the fingerprints of the readers, and the fingerprints of
        other attributes, such as a `DatasetReader` or a torch dataset that contains one.
        """
        return self.fingerprint_by(fingerprint_of)

    def fingerprint_by(self, of: Fingerprinting) -> str:
        """Return the fingerprint, using `of` for the datasets inside."""
        read = [reader.fingerprint for reader in self.ffreaders()]
        others = [] if of is former_fingerprint_of else map(of, self.ffdatasets())
        return combined(str(len(self)), *read, *others)

    def __repr__(self) -> str:
        """Return text with the length and the fingerprint.

        The text is the same in every process: Grain compares it when it loads a state.
        """
        try:
            return f"<{type(self).__name__}: {len(self)} samples, {fingerprint_of(self)[:16]}>"
        except Exception:  # the dataset is closed, or its __init__ has not finished
            return super().__repr__()

    def __add__(self, other: TorchDataset[Any]) -> ConcatDataset[Any]:  # type: ignore[override]
        return ConcatDataset([self, other])


class Subset(Dataset[T_co]):
    """The samples of a dataset at given indices, read in batches."""

    def __init__(self, dataset: Dataset[T_co], indices: Sequence[int]) -> None:
        self.dataset = dataset
        self.indices = indices
        self.on_error = getattr(dataset, "on_error", "raise")

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, indices: Any) -> Any:  # always a list: `_takes_any_key` wraps this
        return fetch(self.dataset, self._inner(indices))

    def prefetch(self, indices: list[int]) -> None:
        prefetch(self.dataset, self._inner(indices))

    def _inner(self, indices: list[int]) -> list[int]:
        return [int(self.indices[index]) for index in indices]

    def fingerprint_by(self, of: Fingerprinting) -> str:
        return combined(of(self.dataset), of_indices(self.indices))


class ConcatDataset(Dataset[T_co]):
    """Several datasets one after the other, read in batches. `a + b` makes one too.

    If all datasets have the same `on_error`, this dataset has it too. Otherwise its `on_error` is
    `"raise"`.
    """

    def __init__(self, datasets: Iterable[TorchDataset[T_co]]) -> None:
        self.datasets = list(datasets)
        if not self.datasets:
            raise ValueError("ConcatDataset got an empty list of datasets; pass at least one")
        choices = [getattr(dataset, "on_error", "raise") for dataset in self.datasets]
        self.on_error = choices[0] if choices.count(choices[0]) == len(choices) else "raise"
        self.cumulative_sizes = self.cumsum(self.datasets)

    @staticmethod
    def cumsum(sequence: Iterable[Any]) -> list[int]:
        """Return the running totals of the datasets' lengths."""
        return list(accumulate(map(len, sequence)))

    def __len__(self) -> int:
        return self.cumulative_sizes[-1]

    def __getitem__(self, indices: Any) -> Any:  # always a list: `_takes_any_key` wraps this
        parts = self._parts(indices)
        if len(parts) > 1:  # start all reads before waiting for the first
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
        """Return each dataset that is needed, its own indices, and their places in `indices`."""
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
    """Return False if `samples` cannot be one sample for each of `count` records.

    `process` may also return a collated batch: a dictionary, a tensor, a tuple of parts or a list
    of tensors.
    """
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
    """Return the samples at `indices` of any map-style dataset."""
    if isinstance(dataset, Dataset):
        return dataset[indices]
    getitems = getattr(dataset, "__getitems__", None)
    if getitems is not None:  # torch's fetcher skips None too
        return getitems(indices)
    return [dataset[index] for index in indices]


def prefetch(dataset: TorchDataset[Any], indices: list[int]) -> None:
    """Start to read a batch if the dataset is one of ours."""
    if isinstance(dataset, Dataset):
        dataset.prefetch(indices)


def warn_of_skipped(skipped: Skipped, stacklevel: int) -> None:
    """Warn once for each sample that was left out."""
    for index, reason in skipped:
        message = f"sample {index} was left out: {reason}"
        warnings.warn(message, BadRecordWarning, stacklevel=stacklevel + 1)
