"""Turn indices of any accepted kind into an array of record numbers. No I/O."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, SupportsIndex, TypeAlias

import numpy as np
import numpy.typing as npt

from ffrecord.aliases import Ints
from ffrecord.text import counted

Indices: TypeAlias = "Iterable[SupportsIndex] | slice | npt.NDArray[np.integer[Any]] | Any"


def record_numbers(indices: Indices, n: int, where: str = "") -> Ints:
    """Return `indices` of any accepted kind as an array of numbers from 0 to n - 1.

    Args:
        indices: the indices; negative ones count from the end.
        n: number of records.
        where: the name of the file or dataset, for errors.
    """
    if isinstance(indices, slice):
        indices = range(*indices.indices(n))
    if not isinstance(indices, range):
        records = _as_integers(indices, n, where)
    elif not indices:
        records = np.empty(0, np.int64)
    else:  # check the bounds before making the array: the range may be huge
        check_bounds(min(indices[0], indices[-1]), max(indices[0], indices[-1]), n, where)
        records = np.arange(indices.start, indices.stop, indices.step, dtype=np.int64)
    # As unsigned numbers, negative ones are huge: one comparison shows that all are in range.
    if not records.size or int(records.view(np.uint64).max()) < n:
        return records
    check_bounds(int(records.min()), int(records.max()), n, where)
    return np.where(records < 0, records + n, records)


def record_number(index: SupportsIndex, n: int, where: str = "") -> int:
    """Return `index` as a number from 0 to n - 1."""
    number = as_integer(index)
    check_bounds(number, number, n, where)
    return number + n if number < 0 else number


def as_integer(index: SupportsIndex) -> int:
    """Return one index as an int; raise a TypeError with advice if it is something else."""
    try:
        return operator.index(index)
    except TypeError:
        several = isinstance(index, (Sequence, slice, np.ndarray)) and not isinstance(index, str)
        how = "; to read several records use read" if several else ""
        kind = type(index).__name__
        raise TypeError(f"the index of a record must be an int, not {kind}{how}") from None


def check_bounds(lowest: int, highest: int, n: int, where: str = "") -> None:
    """Raise IndexError unless all indices from `lowest` to `highest` exist."""
    if lowest < -n or highest >= n:
        wrong = lowest if lowest < -n else highest
        before = f"{where}: " if where else ""
        there = f"there {'is' if n == 1 else 'are'} {counted(n, 'record')}"
        numbers = "" if n == 0 else ", number 0" if n == 1 else f", numbered 0 to {n - 1}"
        raise IndexError(f"{before}record {wrong} is out of range: {there}{numbers}")


def _as_integers(indices: Any, n: int, where: str) -> Ints:
    if not isinstance(indices, (list, tuple, np.ndarray)):
        indices = _gathered(indices, n, where)
    array = np.asarray(indices)
    if array.ndim != 1:
        raise TypeError(f"indices must have one dimension, not {array.ndim}; pass a flat list")
    if array.dtype.kind == "b":
        raise TypeError("indices must be integers, not booleans; use numpy.flatnonzero(mask)")
    if array.dtype.kind != "i":  # unsigned, floats, an empty list, or objects: tensors, huge ints
        numbers = [_as_integer(index) for index in indices]
        if numbers:
            check_bounds(min(numbers), max(numbers), n, where)
        array = np.array(numbers, np.int64)
    return array.astype(np.int64, copy=False)


def _gathered(indices: Any, n: int, where: str) -> Any:
    """Collect the numbers of generators, sets and dictionary views, which numpy cannot convert."""
    is_text = isinstance(indices, (str, bytes))
    if hasattr(indices, "__array__") or (isinstance(indices, Sequence) and not is_text):
        return indices
    if not isinstance(indices, Iterable) or is_text or isinstance(indices, Mapping):
        raise TypeError(
            f"indices must be an iterable of integers, not {type(indices).__name__}; "
            "for one record use read_one"
        )
    found = []
    for index in indices:  # check each as it comes: an iterator may be endless
        number = _as_integer(index)
        check_bounds(number, number, n, where)
        found.append(index)
    return found


def _as_integer(index: Any) -> int:
    try:
        return operator.index(index)
    except TypeError:
        raise TypeError(f"indices must be integers, not {type(index).__name__}") from None
