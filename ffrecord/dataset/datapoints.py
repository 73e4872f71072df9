"""`Datapoints`: the common base class of all readers of datapoints.

It provides `reader[i]`, `reader[i, mask]`, `reader.read(indices, mask)` and so on. Subclasses
implement `_begin`, which turns numbers and masks into datapoints. torch's DataLoader and Grain
accept such an object as a dataset: it has `len`, `[]` and `__getitems__`.

A mask selects the parts of a datapoint to read. It is a dict: `field: True` for a field, or
`field: range(32, 42)` or `field: slice(32, 42)` for a part of a sequence. Fields that are missing
or `False` are not read. A list, tuple or set of names selects those fields, and None selects all
fields.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, SupportsIndex, TypeAlias

from ffrecord.aliases import Ints
from ffrecord.records.indices import Indices, record_numbers
from ffrecord.text import integer

Datapoint: TypeAlias = dict[str, Any]
Mask: TypeAlias = Any
Part: TypeAlias = "bool | range"  # True, or some elements of a sequence
Parts: TypeAlias = tuple[tuple[str, Part], ...]

STEP = 16  # datapoints that iteration reads at once


class PendingDatapoints:
    """Datapoints that are being read; `result()` waits for them.

    Use it in one thread at a time.
    """

    def __init__(self, collect: Callable[[], list[Datapoint]]) -> None:
        self._collect = collect
        self._result: list[Datapoint] | None = None

    def result(self) -> list[Datapoint]:
        """Wait for the datapoints and return them. Later calls return the same list."""
        if self._result is None:
            self._result = self._collect()
        return self._result


class Datapoints(ABC):
    """Base class of readers: datapoints by number."""

    directory: str = ""
    """The dataset's folder, or "" if it has no folder."""

    @property
    @abstractmethod
    def spec(self) -> dict[str, str]:
        """The types of the fields, by name."""

    @abstractmethod
    def __len__(self) -> int: ...

    @property
    @abstractmethod
    def fingerprint(self) -> str:
        """Hash of the data. Equal datapoints, written in the same way, have equal hashes."""

    @abstractmethod
    def available(self, index: SupportsIndex) -> dict[str, Part]:
        """Return a datapoint's largest mask: a range for each sequence, True for other fields."""

    @abstractmethod
    def _begin(
        self, indices: Ints, masks: Sequence[Parts], ahead: bool
    ) -> Callable[[], list[Datapoint]]:
        """Start to read some datapoints, and return a function that waits for them.

        `masks` has one mask for all datapoints, or one for each. With `ahead`, all reads are put in
        flight now.
        """

    def read(self, indices: Indices, mask: Mask = None) -> list[Datapoint]:
        """Return the datapoints at `indices`, in that order, as one batch over all files.

        Args:
            indices: The numbers of the datapoints, as for `FileReader.read`.
            mask: The parts of each datapoint to read; or a list of masks, one per datapoint.
        """
        return self._begin(*self._asked(indices, mask), ahead=False)()

    def read_async(self, indices: Indices, mask: Mask = None) -> PendingDatapoints:
        """Start to read and return at once; `.result()` returns the same as `read`."""
        return PendingDatapoints(self._begin(*self._asked(indices, mask), ahead=True))

    def __getitem__(self, key: Any) -> Any:
        index, mask = key if isinstance(key, tuple) and len(key) == 2 else (key, None)
        if isinstance(index, (slice, Sequence)) or getattr(index, "ndim", 0) > 0:
            return self.read(index, mask)
        return self.read(self._number(index), mask)[0]

    def __getitems__(self, indices: Sequence[SupportsIndex]) -> list[Datapoint]:
        return self.read(indices)

    def __iter__(self) -> Iterator[Datapoint]:
        for start in range(0, len(self), STEP):
            yield from self.read(range(start, min(start + STEP, len(self))))

    def _number(self, index: SupportsIndex) -> Ints:
        return record_numbers(
            [integer(index, "the index of a datapoint")], len(self), self.directory
        )

    def _asked(self, indices: Indices, mask: Mask) -> tuple[Ints, list[Parts]]:
        numbers = record_numbers(indices, len(self), self.directory)
        if isinstance(mask, (list, tuple)) and mask and not isinstance(mask[0], str):
            if len(mask) != len(numbers):
                raise ValueError(
                    f"there are {len(mask)} masks for {len(numbers)} datapoints; pass one mask for "
                    "all datapoints, or one for each"
                )
            return numbers, [check_mask(each, self.spec) for each in mask]
        return numbers, [check_mask(mask, self.spec)]


def check_mask(mask: Mask, spec: Mapping[str, str]) -> Parts:
    """Check a mask, and return the parts that it selects, in the order of the spec."""
    if mask is None:
        return tuple((name, True) for name in spec)
    if isinstance(mask, (str, bytes)):
        raise TypeError(f"the mask is one name, {mask!r}; pass a list of names or a dict")
    parts: dict[str, Any]
    parts = dict(mask) if isinstance(mask, Mapping) else dict.fromkeys(mask, True)
    for name, given in parts.items():
        if name not in spec:
            raise KeyError(f"there is no field {name!r}; the fields are {', '.join(spec)}")
        part = parts[name] = _range_of(name, given) if isinstance(given, slice) else given
        if isinstance(part, range):
            _check_range(name, part, spec[name])
        elif not isinstance(part, bool):
            raise TypeError(f"the mask of {name!r} is {part!r}; pass True, False or a range")
    return tuple((name, parts[name]) for name in spec if parts.get(name, False) is not False)


def _range_of(name: str, part: slice) -> range:
    """Return a slice as a range. Older versions of Granular take both."""
    if part.stop is None:
        raise ValueError(f"the mask of {name!r} is {part}; give the slice an end")
    start, step = 0 if part.start is None else part.start, 1 if part.step is None else part.step
    return range(integer(start, "start"), integer(part.stop, "stop"), integer(step, "step"))


def _check_range(name: str, part: range, type_: str) -> None:
    if not type_.endswith("[]"):
        raise TypeError(
            f"the mask of {name!r} is a range, but its type {type_} is not a sequence; pass True"
        )
    if part.step != 1 or part.start < 0:
        raise ValueError(
            f"the mask of {name!r} is {part}; a range must have step 1 and start at 0 or more"
        )
