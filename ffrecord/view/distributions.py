"""Distributions of a dataset's fields, and the datapoints that a click on a bar selects.

Numbers, labels, lengths of sequences and sizes are columns of numbers or labels. A column is
computed once and kept. It covers every datapoint of a dataset of up to `MOST` datapoints, and an
even sample of a larger one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock
from typing import Any

import numpy as np
import numpy.typing as npt

from ffrecord.aliases import Ints, Mask
from ffrecord.dataset import measures
from ffrecord.dataset.datapoints import Datapoint
from ffrecord.dataset.reader import DatasetReader
from ffrecord.dataset.sharded import ShardedDatasetReader
from ffrecord.dataset.spec import split_type
from ffrecord.errors import FFRecordError
from ffrecord.view.arrays import histogram
from ffrecord.view.values import Large, decoded, limited

MOST = 1_000_000  # datapoints of a column: 8 MB
STEP = 4096  # values that are read at once
BINS = 24
MOST_LABELS = 30  # bars of labels; a whole number with no more values than this is a label, too
LONGEST_LABEL = 64  # mean stored bytes: longer texts are no labels, and their sizes are counted
LARGEST_LABEL = 4096  # bytes; the label of a longer text is `LARGE`
LARGEST_NUMBER = 128  # bytes of an integer; of larger ones, some are too large for a float
LARGE = "…"
NUMBERS = ("int", "float", "bool")


@dataclass(frozen=True, slots=True)
class Column:
    """Values of some datapoints. `what` says what the values are, for the page."""

    what: str
    numbers: Ints  # the datapoints
    values: npt.NDArray[Any]
    unread: int = 0  # damaged values, which `values` has as NaN or as an empty label


@dataclass(frozen=True, slots=True)
class Filter:
    """Datapoints whose value of a field is a label, or lies from `low` up to `high`."""

    field: str
    label: str | None = None
    low: float = 0.0
    high: float = 0.0
    closed: bool = False  # `high` belongs to the range, too: the last bar


class Distributions:
    """Columns of a dataset. Any number of threads may use it.

    Args:
        reader: the reader, whose decoders all return bytes.
    """

    def __init__(self, reader: DatasetReader | ShardedDatasetReader) -> None:
        self._reader = reader
        self._columns: dict[str, Column] = {}
        self._lock = Lock()

    @property
    def numbers(self) -> Ints:
        """Return the datapoints that columns cover."""
        n = len(self._reader)
        return np.arange(n) if n <= MOST else np.linspace(0, n - 1, MOST).astype(np.int64)

    def describe(self, field: str, go_on: Callable[[], bool]) -> dict[str, Any]:
        """Return the bars of a field, ready for JSON."""
        column = self.column(field, go_on)
        facts = {
            "field": field, "what": column.what, "covered": len(column.numbers),
            "total": len(self._reader), "unread": column.unread,
        }  # fmt: skip
        return {**facts, **_bars(column.values)}

    def matching(self, filters: tuple[Filter, ...], go_on: Callable[[], bool]) -> Ints:
        """Return the datapoints that match all filters."""
        found = self.numbers
        chosen: Mask = np.ones(len(found), bool)
        for each in filters:
            chosen &= _matches(self.column(each.field, go_on).values, each)
        return found[chosen]

    def column(self, field: str, go_on: Callable[[], bool]) -> Column:
        """Return the column of a field. Raise `InterruptedError` if `go_on` returns False."""
        with self._lock:  # one at a time: each reads a whole field
            if field not in self._columns:
                self._columns[field] = self._compute(field, go_on)
            return self._columns[field]

    def _compute(self, field: str, go_on: Callable[[], bool]) -> Column:
        spec, numbers = self._reader.spec, self.numbers
        if field not in spec:
            raise LookupError(f"there is no field {field!r}; the fields are {', '.join(spec)}")
        type_ = spec[field]
        if type_.endswith("[]"):
            return Column("length", numbers, measures.lengths(self._reader, field, numbers))
        sizes = measures.stored_sizes(self._reader, field, numbers)
        name = split_type(type_)[0]
        is_label = name == "utf8" and (not len(sizes) or sizes.mean() <= LONGEST_LABEL)
        if name not in NUMBERS and not is_label:
            return Column("stored bytes", numbers, sizes)
        most = LARGEST_LABEL if is_label else LARGEST_NUMBER
        values: list[Any] = [LARGE if is_label else np.nan] * len(numbers)
        unread = 0
        for start in range(0, len(numbers), STEP):
            if not go_on():
                raise InterruptedError
            rows = start + np.flatnonzero(sizes[start : start + STEP] <= most)
            with limited(most):
                some, damaged = self._read(field, name, numbers[rows])
            for row, value in zip(rows.tolist(), some, strict=True):
                values[row] = value
            unread += damaged
        if is_label:
            return Column("label", numbers, np.array(values, object), unread)
        return Column("value", numbers, np.array(values, np.float64), unread)

    def _read(self, field: str, type_: str, numbers: Ints) -> tuple[list[Any], int]:
        """Return decoded values, and how many could not be read."""
        is_text = type_ == "utf8"

        def value(row: Datapoint) -> Any:
            if isinstance(row[field], Large):
                return LARGE if is_text else np.nan
            return decoded(type_, row[field])

        try:
            return list(map(value, self._reader.read(numbers, [field]))), 0
        except FFRecordError:
            found, unread = [], 0
            for number in numbers.tolist():
                try:
                    found.append(value(self._reader.read([number], [field])[0]))
                except FFRecordError:
                    found.append("" if is_text else np.nan)
                    unread += 1
            return found, unread


def _bars(values: npt.NDArray[Any]) -> dict[str, Any]:
    if values.dtype == object:  # texts; an array of str would have the longest one's size for each
        found = Counter(values.tolist())
        texts = sorted(found)
        return _labels(texts, np.array([found[text] for text in texts], np.int64))
    numbers = values.astype(np.float64)
    finite = numbers[np.isfinite(numbers)]
    if not len(finite):
        return {"bars": [], "not_finite": len(numbers)}
    facts: dict[str, Any] = {
        "not_finite": int(len(numbers) - len(finite)), "minimum": float(finite.min()),
        "maximum": float(finite.max()),
    }  # fmt: skip
    distinct, counts = np.unique(finite, return_counts=True)
    if len(distinct) <= MOST_LABELS and (distinct == np.round(distinct)).all():
        names = [f"{value:.0f}" for value in distinct.tolist()]
        return {**facts, **_labels(names, counts, by_count=False)}
    bins = histogram(finite, BINS)
    bars = [
        {"low": low, "high": high, "count": count, "closed": row == len(bins) - 1}
        for row, (low, high, count) in enumerate(bins)
    ]
    return {**facts, "bars": bars}


def _labels(names: list[str], counts: Ints, *, by_count: bool = True) -> dict[str, Any]:
    order = np.argsort(-counts, kind="stable") if by_count else np.arange(len(counts))
    shown = order[:MOST_LABELS]
    bars = [{"label": names[row], "count": int(counts[row])} for row in shown.tolist()]
    return {"bars": bars, "distinct": len(names), "others": int(counts[order[MOST_LABELS:]].sum())}


def _matches(values: npt.NDArray[Any], wanted: Filter) -> Mask:
    if values.dtype == object:
        return np.asarray(values == (wanted.label or ""), bool)
    numbers = values.astype(np.float64)
    if wanted.label is not None:
        try:
            return np.asarray(numbers == float(wanted.label))
        except ValueError:
            raise LookupError(f"{wanted.label!r} is not a number") from None
    below = numbers <= wanted.high if wanted.closed else numbers < wanted.high
    return np.asarray((numbers >= wanted.low) & below)
