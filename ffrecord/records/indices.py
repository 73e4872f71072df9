"""Which records are asked for: indices of any accepted kind to an array of record numbers. Pure."""

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
    """`indices` of any accepted kind as an array of numbers from 0 to n - 1. `where` the records
    are is what an error names."""
    if isinstance(indices, slice):
        indices = range(*indices.indices(n))
    if not isinstance(indices, range):
        records = _as_integers(indices, n, where)
    elif not indices:
        records = np.empty(0, np.int64)
    else:  # looked at before it is spelled out: it may be endless
        check_bounds(min(indices[0], indices[-1]), max(indices[0], indices[-1]), n, where)
        records = np.arange(indices.start, indices.stop, indices.step, dtype=np.int64)
    # As unsigned numbers negative ones are huge: one look finds that nothing is out of range.
    if not records.size or int(records.view(np.uint64).max()) < n:
        return records
    check_bounds(int(records.min()), int(records.max()), n, where)
    return np.where(records < 0, records + n, records)


def record_number(index: SupportsIndex, n: int, where: str = "") -> int:
    """`index` as a number from 0 to n - 1."""
    number = operator.index(index)
    check_bounds(number, number, n, where)
    return number + n if number < 0 else number


def check_bounds(lowest: int, highest: int, n: int, where: str = "") -> None:
    if lowest < -n or highest >= n:
        wrong = lowest if lowest < -n else highest
        before = f"{where}: " if where else ""
        there = f"there {'is' if n == 1 else 'are'} {counted(n, 'record')}"
        raise IndexError(f"{before}record {wrong} is out of range: {there}")


def _as_integers(indices: Any, n: int, where: str) -> Ints:
    if not isinstance(indices, (list, tuple, np.ndarray)):
        indices = _gathered(indices, n, where)
    array = np.asarray(indices)
    if array.ndim != 1:
        raise TypeError(f"indices must have one dimension, not {array.ndim}")
    if array.dtype.kind == "b":
        raise TypeError("indices must be integers, not booleans: use numpy.flatnonzero")
    if array.dtype.kind != "i":  # unsigned, or objects: tensors, numbers of any size, nothing
        numbers = [_as_integer(index) for index in indices]
        if numbers:
            check_bounds(min(numbers), max(numbers), n, where)
        array = np.array(numbers, np.int64)
    return array.astype(np.int64, copy=False)


def _gathered(indices: Any, n: int, where: str) -> Any:
    """Go through generators, sets and views of dictionaries: numpy makes no array of those."""
    is_text = isinstance(indices, (str, bytes))
    if hasattr(indices, "__array__") or (isinstance(indices, Sequence) and not is_text):
        return indices
    if not isinstance(indices, Iterable) or is_text or isinstance(indices, Mapping):
        raise TypeError(
            f"indices must be several integers, not {type(indices).__name__}; "
            "for one record use read_one"
        )
    found = []
    for index in indices:  # each is checked at once: an iterator may be endless
        number = _as_integer(index)
        check_bounds(number, number, n, where)
        found.append(index)
    return found


def _as_integer(index: Any) -> int:
    try:
        return operator.index(index)
    except TypeError:
        raise TypeError(f"indices must be integers, not {type(index).__name__}") from None
