"""Dataset folders of the package granular: `spec.json`, and a bag for each field.

Before 0.22, granular had sequences and `refs.bag`; `granular_refs` reads and writes it. Granular's
int, i64 and u64 all become our int. Its arrays and trees are msgpack, ours contain .npy. Types
without a codec in granular keep their name and our bytes: granular's reader needs a decoder for
them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import repeat
from typing import Any, TypeAlias

import numpy as np

from ffrecord.convert import field_types
from ffrecord.convert.files import open_new, read_start
from ffrecord.convert.formats import granular_refs
from ffrecord.convert.formats.bag import BagFile, BagWriter, SingleBagWriter
from ffrecord.convert.shapes import ConvertOptions, Row, Rows, Written
from ffrecord.dataset import optional
from ffrecord.dataset.codecs import decode_int, decode_msgpack, encode_int
from ffrecord.dataset.optional import reason
from ffrecord.dataset.sharded import shards_among
from ffrecord.dataset.spec import FORMAT, LARGEST_SPEC, SEQUENCE, SPEC_NAME, check_spec, split_type
from ffrecord.errors import ConversionError, DamagedSourceError, SpecError
from ffrecord.records.opening import refuse_other_kinds

LONGEST_INT = 16  # bytes; the limit of granular's decoder
_INTS = ("int", "i64", "u64")
_ARRAY_MARK = "_"

Types: TypeAlias = dict[str, tuple[str, bool]]  # field -> type, and True for a sequence


@contextmanager
def read(path: str, options: ConvertOptions) -> Iterator[Rows]:
    """Read a dataset, or all shards of a sharded one."""
    folders = _shards(path)
    specs = [load_spec(folder) for folder in folders]
    for folder, spec in zip(folders, specs, strict=True):
        if spec != specs[0]:
            raise ConversionError(
                f"{folder}: this shard has another spec than {folders[0]}; convert them one by one"
            )
    ours = {name: _our_type(type_) for name, type_ in specs[0].items()}
    total = sum(_count(folder, specs[0]) for folder in folders)
    yield Rows(ours, (row for each in folders for row in _rows(each, specs[0])), total)


def count(path: str) -> int:
    return _count(path, load_spec(path))


def write(path: str, rows: Rows, options: ConvertOptions) -> Written:
    """Write a dataset with an index beside each bag; with sequences, in the layout before 0.22."""
    types = {name: split_type(text) for name, text in rows.spec.items()}
    has_sequences = any(sequence for _, sequence in types.values())
    if has_sequences and granular_refs.NAME in types:
        raise ConversionError(
            f"field {granular_refs.NAME!r}: granular keeps the bounds of sequences in a file of "
            "that name; convert to another format, or rename the field"
        )
    spec = {name: type_ + SEQUENCE * sequence for name, (type_, sequence) in types.items()}
    os.mkdir(path)
    with open_new(os.path.join(path, SPEC_NAME)) as file:
        file.write(json.dumps(spec).encode())
    return Written((_write_with_refs if has_sequences else _write_columns)(path, rows, types))


def _write_columns(path: str, rows: Rows, types: Types) -> int:
    number = 0
    with ExitStack() as opened:
        bags = {name: opened.enter_context(BagWriter(_bag(path, name))) for name in types}
        for number, row in enumerate(rows.items, 1):
            for name, bag in bags.items():
                bag.append(_encoded(number - 1, name, types[name][0], row[name]))
    return number


def _write_with_refs(path: str, rows: Rows, types: Types) -> int:
    number = 0
    with ExitStack() as opened:
        refs = opened.enter_context(SingleBagWriter(granular_refs.path_in(path)))
        bags = {name: opened.enter_context(SingleBagWriter(_bag(path, name))) for name in types}
        for number, row in enumerate(rows.items, 1):
            begins = [bag.length for bag in bags.values()]
            for name, (type_, sequence) in types.items():
                for value in row[name] if sequence else [row[name]]:
                    bags[name].append(_encoded(number - 1, name, type_, value))
            counts = [len(row[name]) if sequence else None for name, (_, sequence) in types.items()]
            refs.append(granular_refs.encode(begins, counts))
    return number


def load_spec(path: str) -> dict[str, str]:
    """Read and check the spec of a granular dataset."""
    name = os.path.join(path, SPEC_NAME)
    refuse_other_kinds(name, "a spec")
    text = read_start(name, LARGEST_SPEC + 1)
    try:
        if len(text) > LARGEST_SPEC:
            raise ValueError(f"it has more than {LARGEST_SPEC} bytes, the limit")
        spec = check_spec(json.loads(text))
        has_refs = granular_refs.is_there(path, spec)
        for type_ in spec.values():
            name_of_type, sequence = split_type(type_)
            if name_of_type + SEQUENCE * sequence != type_:
                raise ValueError(f"granular has no compressed type such as {type_!r}")
            if sequence and not has_refs:
                raise ValueError(f"the type {type_!r} is a sequence, but refs.bag is missing")
    except (ValueError, RecursionError, SpecError) as error:
        raise DamagedSourceError(name, f"not the spec of a granular dataset: {error}") from None
    return spec


def is_spec(content: Any) -> bool:
    """Return True if the JSON of a `spec.json` is granular's: only names and types."""
    return (
        isinstance(content, dict)
        and content.get("format") != FORMAT
        and all(isinstance(type_, str) for type_ in content.values())
    )


def _shards(path: str) -> list[str]:
    if os.path.exists(os.path.join(path, SPEC_NAME)):
        return [path]
    return [os.path.join(path, name) for name in shards_among(os.listdir(path))] or [path]


def _our_type(type_: str) -> str:
    name = type_.removesuffix(SEQUENCE)
    return "int" + type_[len(name) :] if name in _INTS else type_


def _bag(folder: str, name: str) -> str:
    return os.path.join(folder, f"{name}.bag")


def _count(folder: str, spec: dict[str, str]) -> int:
    """Return the number of datapoints; raise an error if the fields have different lengths."""
    lengths = {}
    if granular_refs.is_there(folder, spec):
        lengths[granular_refs.NAME] = granular_refs.count(folder)
    for name, type_ in spec.items():
        if not type_.endswith(SEQUENCE):
            with BagFile(_bag(folder, name)) as bag:
                lengths[name] = len(bag)
    if len(set(lengths.values())) > 1:
        raise DamagedSourceError(folder, f"its fields have different numbers of records: {lengths}")
    return next(iter(lengths.values()))


def _rows(folder: str, spec: dict[str, str]) -> Iterator[Row]:
    with ExitStack() as opened:
        fields = [
            _FieldReader(_bag(folder, name), name, type_, opened) for name, type_ in spec.items()
        ]
        for counts in _counts(folder, spec):
            yield {field.name: field.take(n) for field, n in zip(fields, counts, strict=True)}
        for field in fields:
            field.end()


def _counts(folder: str, spec: dict[str, str]) -> Iterable[list[int]]:
    """Return the number of records of each field, for each datapoint."""
    if granular_refs.is_there(folder, spec):
        return granular_refs.counts(folder, spec)
    return repeat([1] * len(spec), _count(folder, spec))


class _FieldReader:
    """Reader of one field's values, from the first on."""

    def __init__(self, path: str, name: str, type_: str, opened: ExitStack) -> None:
        self.name = name
        self._path = path
        self._type = type_.removesuffix(SEQUENCE)
        self._sequence = type_.endswith(SEQUENCE)
        self._number = 0
        self._records = opened.enter_context(BagFile(path)).records()

    def take(self, count: int) -> Any:
        """Return the next value, or the next `count` elements of a sequence."""
        values = [self._next() for _ in range(count)]
        return values if self._sequence else values[0]

    def end(self) -> None:
        """Raise an error if records are left."""
        if next(self._records, None) is not None:
            raise DamagedSourceError(
                self._path, f"the bag has more than the {self._number} records of the dataset"
            )

    def _next(self) -> Any:
        record = next(self._records, None)
        if record is None:
            raise DamagedSourceError(
                self._path, f"the bag has only {self._number} records, fewer than the dataset"
            )
        value = _decoded(self._path, self._number, self._type, record)
        self._number += 1
        return value


def _decoded(path: str, number: int, type_: str, record: bytes) -> Any:
    try:
        decode = _DECODERS.get(type_)
        return field_types.decode(type_, record) if decode is None else decode(record)
    except Exception as error:
        what = f"cannot be decoded as {type_}: {reason(error)}"
        raise DamagedSourceError(path, what, number) from error


def _encoded(number: int, name: str, type_: str, value: Any) -> bytes:
    try:
        encode = _ENCODERS.get(type_)
        return field_types.encode(type_, value) if encode is None else encode(value)
    except Exception as error:
        what = f"granular's type {type_} cannot hold the value: {reason(error)}"
        raise ConversionError(f"row {number}, field {name!r}: {what}") from error


def _decode_u64(record: bytes) -> int:
    if len(record) != 8:
        raise ValueError(f"a u64 has 8 bytes, not {len(record)}")
    return int.from_bytes(record, "little")


def _array(dtype: str, shape: list[int], data: bytes) -> Any:
    """Return the described array as a writable copy."""
    described = np.dtype(dtype)
    if described.hasobject:
        raise ValueError("the array holds Python objects, which are never read")
    return np.frombuffer(bytearray(data), described).reshape(shape)


def _decode_tree(record: bytes) -> Any:
    def made(item: Any) -> Any:
        if isinstance(item, list):
            if len(item) == 4 and item[0] == _ARRAY_MARK:
                return _array(*item[1:])
            return [made(below) for below in item]
        if isinstance(item, dict):
            return {key: made(below) for key, below in item.items()}
        return item

    return made(decode_msgpack(memoryview(record)))


def _encode_int(value: int) -> bytes:
    encoded = encode_int(value)
    if len(encoded) > LONGEST_INT:
        raise ValueError(f"{value} needs more than {8 * LONGEST_INT} bits")
    return encoded


def _described(array: Any) -> tuple[str, tuple[int, ...], bytes]:
    if array.dtype.names is not None or array.dtype.hasobject:
        raise TypeError(f"granular cannot store arrays of dtype {array.dtype}")
    return array.dtype.str, array.shape, array.tobytes()


def _encode_array(value: Any) -> bytes:
    packed: bytes = optional.load("msgpack").packb(_described(np.asarray(value)))
    return packed


def _encode_tree(value: Any) -> bytes:
    def made(item: Any) -> Any:
        if isinstance(item, (list, tuple)):
            return [made(below) for below in item]
        if isinstance(item, dict):
            return {key: made(below) for key, below in item.items()}
        if isinstance(item, (np.ndarray, np.generic)):
            return (_ARRAY_MARK, *_described(np.asarray(item)))
        return item

    packed: bytes = optional.load("msgpack").packb(made(value))
    return packed


_DECODERS: dict[str, Callable[[bytes], Any]] = {
    "int": lambda record: decode_int(memoryview(record)),
    "i64": lambda record: decode_int(memoryview(record)),
    "u64": _decode_u64,
    "array": lambda record: _array(*decode_msgpack(memoryview(record))),
    "tree": _decode_tree,
}
_ENCODERS: dict[str, Callable[[Any], bytes]] = {
    "int": _encode_int,
    "array": _encode_array,
    "tree": _encode_tree,
}
