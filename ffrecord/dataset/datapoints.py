"""`Datapoints`: the common part of everything that datapoints are read from.

`reader[i]`, `reader[i, mask]`, `reader.read(indices, mask)` and so on, on top of one method,
`_begin`, that turns numbers and masks into datapoints. torch's DataLoader and Grain take such an
object as it is: it has `len`, `[]` and `__getitems__`.

A mask says what to read of a datapoint. It is a dict of `field: True`, or `field: range(32, 42)`
for a part of a sequence; fields that are not in it, or `False`, are left out. Names alone, in a
list, tuple or set, stand for `True` each; None for everything.
"""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, SupportsIndex, TypeAlias

from ffrecord.aliases import Ints
from ffrecord.records.indices import Indices, record_numbers

Datapoint: TypeAlias = dict[str, Any]
Mask: TypeAlias = Any
Part: TypeAlias = "bool | range"  # True, or some elements of a sequence
Parts: TypeAlias = tuple[tuple[str, Part], ...]

STEP = 16  # datapoints that iteration reads at once


class PendingDatapoints:
    """Datapoints that are being read; `result()` waits for them. For one thread at a time."""

    def __init__(self, collect: Callable[[], list[Datapoint]]) -> None:
        self._collect = collect
        self._result: list[Datapoint] | None = None

    def result(self) -> list[Datapoint]:
        if self._result is None:
            self._result = self._collect()
        return self._result


class Datapoints(ABC):
    """Datapoints by number."""

    directory: str = ""
    """Where they are; "" if that is no folder."""

    @property
    @abstractmethod
    def spec(self) -> dict[str, str]:
        """Field -> type."""

    @abstractmethod
    def __len__(self) -> int: ...

    @property
    @abstractmethod
    def fingerprint(self) -> str:
        """The same datapoints, written in the same way, have the same fingerprint."""

    @abstractmethod
    def available(self, index: SupportsIndex) -> dict[str, Part]:
        """Return what a mask may ask of a datapoint: True, or the range of all of a sequence."""

    @abstractmethod
    def _begin(
        self, indices: Ints, masks: Sequence[Parts], ahead: bool
    ) -> Callable[[], list[Datapoint]]:
        """Begin to read; `masks` has one for all or one for each. With `ahead` everything is put
        on its way at once."""

    def read(self, indices: Indices, mask: Mask = None) -> list[Datapoint]:
        """The datapoints at `indices`, in that order, as one batch over all files.

        Args:
            indices: as for `FileReader.read`.
            mask: what to read of each; or a list of masks, one for each.
        """
        return self._begin(*self._asked(indices, mask), ahead=False)()

    def read_async(self, indices: Indices, mask: Mask = None) -> PendingDatapoints:
        """Begin to read and return at once; `.result()` gives what `read` would."""
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
        return record_numbers([operator.index(index)], len(self), self.directory)

    def _asked(self, indices: Indices, mask: Mask) -> tuple[Ints, list[Parts]]:
        numbers = record_numbers(indices, len(self), self.directory)
        if isinstance(mask, (list, tuple)) and mask and not isinstance(mask[0], str):
            if len(mask) != len(numbers):
                raise ValueError(f"{len(mask)} masks for {len(numbers)} datapoints")
            return numbers, [check_mask(each, self.spec) for each in mask]
        return numbers, [check_mask(mask, self.spec)]


def check_mask(mask: Mask, spec: Mapping[str, str]) -> Parts:
    """Return the parts that a mask asks for, in the order of the spec."""
    if mask is None:
        return tuple((name, True) for name in spec)
    if isinstance(mask, (str, bytes)):
        raise TypeError("a mask is a dict, or a list of names, not one name")
    parts = dict(mask) if isinstance(mask, Mapping) else dict.fromkeys(mask, True)
    for name, part in parts.items():
        if name not in spec:
            raise KeyError(f"there is no field {name!r}; there are {', '.join(spec)}")
        if isinstance(part, range):
            _check_range(name, part, spec[name])
        elif not isinstance(part, bool):
            raise TypeError(f"the mask of {name!r} is True or a range, not {part!r}")
    return tuple((name, parts[name]) for name in spec if parts.get(name, False) is not False)


def _check_range(name: str, part: range, type_: str) -> None:
    if not type_.endswith("[]"):
        raise TypeError(f"{name!r} is no sequence but {type_}: its mask cannot be a range")
    if part.step != 1 or part.start < 0:
        raise ValueError(f"the mask of {name!r} is a range of step 1 from 0 or more, not {part}")
