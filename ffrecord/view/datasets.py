"""`Dataset`: a typed dataset on the page: a table of datapoints, a column for each field."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ffrecord.aliases import Bytes, Ints
from ffrecord.dataset import measures
from ffrecord.dataset.codecs import decoders
from ffrecord.dataset.reader import DatasetReader
from ffrecord.dataset.sharded import ShardedDatasetReader
from ffrecord.dataset.spec import split_type
from ffrecord.errors import FFRecordError
from ffrecord.view import arrays, texts, values
from ffrecord.view.contents import Found, Item, read_all
from ffrecord.view.distributions import Distributions, Filter

SHOWN_ELEMENTS = 3  # elements of a sequence in a cell
MOST_ELEMENTS = 200  # elements of an expanded sequence
LARGEST_CELL = 1 << 20  # bytes of a value whose beginning the table shows; of others, the size
KEPT = 4  # filtered lists of datapoints in memory


class Dataset:
    """A typed dataset. An item's key is `ROW.FIELD`, or `ROW.FIELD.ELEMENT` in a sequence.

    Args:
        reader: the reader, whose decoders are all `values.stored`, so that a value that cannot be
            decoded does not hide its neighbours. The caller closes it.
    """

    kind = "dataset"

    def __init__(self, reader: DatasetReader | ShardedDatasetReader) -> None:
        self.reader = reader
        self.distributions = Distributions(reader)
        self._types = {name: _name(text) for name, text in reader.spec.items()}
        self._chosen: OrderedDict[object, Ints] = OrderedDict()
        self._kept: tuple[str, Bytes] | None = None

    def about(self) -> dict[str, Any]:
        fields = [
            {"name": name, "type": text, "sequence": text.endswith("[]"),
             "image": self._types[name] in values.IMAGES}
            for name, text in self.reader.spec.items()
        ]  # fmt: skip
        return {"entries": len(self.reader), "fields": fields}

    # ---- rows ----------------------------------------------------------------------------

    def rows(
        self, filters: tuple[Filter, ...], sample: tuple[int, int] | None, offset: int, limit: int,
        go_on: Callable[[], bool],
    ) -> dict[str, Any]:  # fmt: skip
        """Return datapoints from `offset` on. `sample` is a seed and a count."""
        numbers = self._numbers(filters, sample, go_on)
        some = np.asarray(numbers[offset : offset + limit], np.int64)
        covered = len(self.distributions.numbers)
        return {
            "total": len(numbers), "offset": offset, "rows": self._rows(some),
            "covered": covered if filters and covered < len(self.reader) else None,
        }  # fmt: skip

    def position(
        self, number: int, filters: tuple[Filter, ...], sample: tuple[int, int] | None,
        go_on: Callable[[], bool],
    ) -> int | None:  # fmt: skip
        """Return the row of a datapoint in a list."""
        rows = np.flatnonzero(np.asarray(self._numbers(filters, sample, go_on)) == number)
        return int(rows[0]) if len(rows) else None

    def _numbers(
        self, filters: tuple[Filter, ...], sample: tuple[int, int] | None, go_on: Callable[[], bool]
    ) -> Ints | range:
        if not filters and sample is None:
            return range(len(self.reader))
        key = filters, sample
        found = self._chosen.get(key)
        if found is None:
            found = self.distributions.matching(filters, go_on) if filters else None
            if sample is not None:
                seed, count = sample
                pool: Any = len(self.reader) if found is None else found
                most = min(count, len(self.reader) if found is None else len(found))
                found = np.random.default_rng(seed).choice(pool, most, replace=False)
            assert found is not None
            self._chosen[key] = found
            while len(self._chosen) > KEPT:
                self._chosen.popitem(last=False)
        return found

    def _rows(self, numbers: Ints) -> list[dict[str, Any]]:
        shown: list[dict[str, Any]] = [{"id": number, "cells": {}} for number in numbers.tolist()]
        for name, text in self.reader.spec.items():
            cells = self._sequences if text.endswith("[]") else self._cells
            for row, cell in zip(shown, cells(name, numbers), strict=True):
                row["cells"][name] = cell
        return shown

    def _cells(self, field: str, numbers: Ints) -> list[dict[str, Any]]:
        type_ = self._types[field]
        sizes = measures.stored_sizes(self.reader, field, numbers)
        is_small = sizes <= LARGEST_CELL
        with values.limited(LARGEST_CELL):
            small = iter(read_all(lambda some: self._read(field, some), numbers[is_small].tolist()))
        return [
            values.short(type_, values.Large(size) if size > LARGEST_CELL else next(small))
            for size in sizes.tolist()
        ]

    def _sequences(self, field: str, numbers: Ints) -> list[dict[str, Any]]:
        lengths = measures.lengths(self.reader, field, numbers).tolist()
        sizes = measures.stored_sizes(self.reader, field, numbers, SHOWN_ELEMENTS)
        counts = np.where(sizes > LARGEST_CELL, 0, np.minimum(lengths, SHOWN_ELEMENTS)).tolist()
        masks = [{field: range(count)} for count in counts]
        try:
            with values.limited(LARGEST_CELL):
                rows = self.reader.read(numbers, masks) if masks else []
        except FFRecordError:  # find the damaged ones
            some = zip(numbers.tolist(), counts, strict=True)
            return [self.sequence(number, field, 0, count) for number, count in some]
        return [
            self._sequence(field, length, 0, list(map(_array, row[field])))
            for length, row in zip(lengths, rows, strict=True)
        ]

    def sequence(self, number: int, field: str, start: int, count: int) -> dict[str, Any]:
        """Return some elements of a sequence for the table."""
        try:
            length = len(self._available(number, field))
            stop = min(start + min(count, MOST_ELEMENTS), length)
            with values.limited(LARGEST_CELL):
                found = read_all(
                    lambda some: self._elements(number, field, some), list(range(start, stop))
                )
        except FFRecordError as error:
            return values.short("", error)
        return self._sequence(field, length, start, found)

    def _sequence(
        self, field: str, length: int, start: int, found: Sequence[Found]
    ) -> dict[str, Any]:  # fmt: skip
        type_ = self._types[field]
        return {"length": length, "start": start,
                "elements": [values.short(type_, each) for each in found]}  # fmt: skip

    # ---- contents ------------------------------------------------------------------------

    def item(self, key: str) -> Item:
        number, field, element = self._place(key)
        name = f"{number}-{field}" + ("" if element is None else f"-{element}")
        type_ = self._types[field]
        ending = f".{type_}" if type_ in (*values.IMAGES, "json") else ""
        is_stored_as_it_is = self.reader.spec[field].removesuffix("[]") == type_
        if is_stored_as_it_is and element is None:
            size = int(measures.stored_sizes(self.reader, field, np.array([number]))[0])
        else:
            size = len(self._whole(key))
        return Item(name + ending, size)

    def part(self, key: str, offset: int, length: int) -> Bytes:
        return self._whole(key)[offset : offset + length]

    def _whole(self, key: str) -> Bytes:
        """Return a value. The last one is kept, because it is often asked for part by part."""
        kept = self._kept
        if kept is None or kept[0] != key:
            kept = self._kept = key, self._value(key)
        return kept[1]

    def whole(self, keys: Sequence[str]) -> list[Found]:
        places = [self._place(key) for key in keys]
        fields = {field for _, field, _ in places}
        if len(fields) == 1 and all(element is None for _, _, element in places):
            (field,) = fields
            return read_all(lambda some: self._read(field, some), [row for row, _, _ in places])
        return read_all(lambda some: [self._value(key) for key in some], list(keys))

    def preview(self, key: str) -> dict[str, Any] | None:
        """Return a preview of a typed value; None if its bytes are shown like a file's.

        A large value is not decoded, unless it is an array: its objects may take many times its
        size.
        """
        field = self._place(key)[1]
        type_ = self._types[field]
        if type_ in values.IMAGES or type_ == "bytes" or type_ not in decoders:
            return None
        found = read_all(lambda some: [self._value(each) for each in some], [key])[0]
        size = 0 if isinstance(found, FFRecordError) else len(found)
        if size > texts.JSON_BYTES and type_ != "array":
            return None
        return {"key": key, "name": key, "size": size, "kind": type_, "type": None,
                **values.full(type_, found)}  # fmt: skip

    def slice_png(self, key: str, at: list[int]) -> bytes:
        """Return a slice of an array field as a PNG."""
        array = values.decoded("array", self._value(key))
        return arrays.slice_png(arrays.Loaded(array, array.shape), at)

    def is_array(self, key: str) -> bool:
        return self._types[self._place(key)[1]] == "array"

    def _place(self, key: str) -> tuple[int, str, int | None]:
        row, _, rest = key.partition(".")
        field, element = rest, None
        if field not in self._types:
            field, _, last = rest.rpartition(".")
            element = int(last) if last.isdecimal() else None
        number = int(row) if row.isdecimal() else -1
        if field not in self._types or not 0 <= number < len(self.reader):
            raise LookupError(f"there is no value {key!r}; the last row is {len(self.reader) - 1}")
        if (element is not None) != self.reader.spec[field].endswith("[]"):
            raise LookupError(f"there is no value {key!r}")
        return number, field, element

    def _value(self, key: str) -> Bytes:
        number, field, element = self._place(key)
        if element is None:
            return self._read(field, [number])[0]
        if element not in self._available(number, field):
            raise LookupError(f"there is no value {key!r}: the sequence is shorter")
        return self._elements(number, field, [element])[0]

    def _available(self, number: int, field: str) -> range:
        found = self.reader.available(number)[field]
        assert isinstance(found, range)
        return found

    def _read(self, field: str, numbers: Sequence[int]) -> list[Bytes]:
        rows = self.reader.read(list(numbers), [field])
        return [_array(row[field]) for row in rows]

    def _elements(self, number: int, field: str, elements: Sequence[int]) -> list[Bytes]:
        if not elements:
            return []
        mask = {field: range(elements[0], elements[-1] + 1)}
        (row,) = self.reader.read([number], mask)
        return list(map(_array, row[field]))


def _array(value: Any) -> Any:
    return value if isinstance(value, values.Large) else np.frombuffer(value, np.uint8)


def _name(text: str) -> str:
    """Return the name of a type: `jpg` for `jpg[]`."""
    return split_type(text)[0]
