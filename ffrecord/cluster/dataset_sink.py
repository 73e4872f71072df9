"""The sink for datasets: each column becomes a field, and each task a shard.

| Arrow type                        | type of the field, unless `spec` says another |
| bool                              | `bool`                                         |
| integers                          | `int`                                          |
| floats                            | `float`                                        |
| strings                           | `utf8`                                         |
| binary                            | `bytes`                                        |
| tensors                           | `array`                                        |
| lists of one of the first five    | a sequence                                     |

A column of binary for another type has values that are encoded already, as `reading.dataset`
returns them: their form is checked. So is the text of a column of strings for `json`.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

import pyarrow as pa

from ffrecord.cluster.columns import column_of
from ffrecord.cluster.fields import TYPE_KEY, arrow_field
from ffrecord.cluster.sink import Sink
from ffrecord.dataset import codecs
from ffrecord.dataset.codecs import Encoder
from ffrecord.dataset.spec import SEQUENCE, load, split_type
from ffrecord.dataset.writer import DatasetWriter, encodable
from ffrecord.errors import DecodeError, EncodeError, SpecError
from ffrecord.plan.gathered import GatheredPlan
from ffrecord.plan.values import WritePlan
from ffrecord.plan.work import Receipt
from ffrecord.plan.work_folder import size_of

_TYPES: tuple[tuple[Callable[[pa.DataType], bool], str], ...] = (
    (pa.types.is_boolean, "bool"), (pa.types.is_integer, "int"), (pa.types.is_floating, "float"),
    (pa.types.is_string, "utf8"), (pa.types.is_large_string, "utf8"),
    (pa.types.is_binary, "bytes"), (pa.types.is_large_binary, "bytes"),
    (pa.types.is_fixed_size_binary, "bytes"),
)  # fmt: skip
_LISTS = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
_SIGNATURES = {"jpg": b"\xff\xd8\xff", "png": b"\x89PNG\r\n\x1a\n"}


class _Encoded(bytes):
    """A value that is encoded as its type wants it."""


@dataclass(frozen=True)
class DatasetSink(Sink):
    """Each column becomes a field of a dataset in shards."""

    KIND: ClassVar[str] = "dataset"

    spec: Mapping[str, str] | None = None
    encoders: Mapping[str, Encoder] | None = field(default=None, repr=False)

    def begin(self) -> DatasetSink:
        if self.spec is not None:
            encodable(self.spec, self.encoders or codecs.encoders)
        return super().begin()

    def _write_shard(
        self, task: int, schema: pa.Schema, batches: Iterator[pa.RecordBatch], path: str
    ) -> Receipt:
        spec = inferred(schema, self.name) if self.spec is None else dict(self.spec)
        encoders = {
            name: partial(_encode, name, encode)
            for name, encode in (self.encoders or codecs.encoders).items()
        }
        try:
            with DatasetWriter(path, spec, encoders) as writer:
                for batch in batches:
                    columns = [
                        _values(column_of(batch, name, self.name), text)
                        for name, text in spec.items()
                    ]
                    for values in zip(*columns, strict=True):
                        writer.append(dict(zip(spec, values, strict=True)))
        except EncodeError as error:  # name the target, not the attempt
            known = f"{self.name}: task {task}"
            raise EncodeError(str(error).replace(path, known)) from error
        return Receipt(task, os.path.basename(path), len(writer), size_of(path),
                       load(path).checksums, {"spec": spec})  # fmt: skip

    def _require_spec(self) -> None:
        if self.spec is None:
            raise SpecError(
                f"{self.name}: there is no row to infer the types from; an empty dataset needs a "
                "spec: pass spec"
            )

    def _finish(self, plan: WritePlan, folder: str, receipts: Mapping[int, Receipt]) -> None:
        specs = [receipt.details["spec"] for receipt in receipts.values()]
        for spec in specs:
            if spec != specs[0]:
                raise SpecError(
                    f"{self.name}: some tasks have rows of the types {specs[0]}, others of "
                    f"{spec}; pass spec, or cast the columns"
                )
        spec = specs[0] if specs else self.spec
        names = [] if receipts else [plan.shard_name(0)]  # a dataset needs a shard
        if isinstance(plan, GatheredPlan):
            names += plan.gaps  # readers warn about missing shards
        for name in names:
            with contextlib.suppress(FileExistsError):  # a commit was killed after this
                path = os.path.join(folder, name)
                DatasetWriter(path, spec, self.encoders or codecs.encoders).close()


def inferred(schema: pa.Schema, target: str) -> dict[str, str]:
    """Return the types of fields that fit Arrow columns."""
    return {column.name: _type_of(column, target) for column in schema}


def _type_of(column: pa.Field, target: str) -> str:
    given: str = (column.metadata or {}).get(TYPE_KEY, b"").decode()
    if given and arrow_field(column.name, given).type == column.type:
        return given  # the column was read from a dataset
    type_, sequence = column.type, ""
    if any(is_list(type_) for is_list in _LISTS):
        type_, sequence = type_.value_type, SEQUENCE
    if pa.types.is_dictionary(type_):
        type_ = type_.value_type
    for matches, name in _TYPES:
        if matches(type_):
            return name + sequence
    if not sequence and "tensor" in getattr(type_, "extension_name", ""):
        return "array"
    raise SpecError(
        f"{target}: the column {column.name!r} has the type {column.type}, which a dataset cannot "
        "store as it is; cast it, leave it out, or pass a spec with its type, such as json, tree "
        "or array"
    )


def _values(column: pa.Array, text: str) -> Iterable[Any]:
    """Return the values of a column for the encoder of a type."""
    name, is_sequence = split_type(text)
    type_ = column.type
    if isinstance(type_, pa.BaseExtensionType):
        return [each.to_numpy() if hasattr(each, "to_numpy") else each.as_py() for each in column]
    is_list = any(is_one(type_) for is_one in _LISTS)
    if name == "array" and is_list and not (is_sequence or pa.types.is_nested(type_.value_type)):
        return [each.values.to_numpy(zero_copy_only=False) for each in column]
    values: list[Any] = column.to_pylist()
    if name in ("bytes", "utf8"):
        return values
    if not is_sequence:
        return [_marked(name, value) for value in values]
    return [[_marked(name, value) for value in some] for some in values]


def _marked(name: str, value: Any) -> Any:
    """Return a value, marked as encoded if it is."""
    if isinstance(value, str) and name == "json":
        value = value.encode()
    return _Encoded(value) if isinstance(value, bytes) else value


def _encode(name: str, encode: Encoder, value: Any) -> Any:
    """Return a value as it is if it is encoded and valid; otherwise encode it."""
    if not isinstance(value, _Encoded):
        return encode(value)
    signature = _SIGNATURES.get(name)
    if signature is not None and not value.startswith(signature):
        raise ValueError(f"the bytes are not a {name} file")
    if signature is None and name in codecs.decoders:
        try:
            codecs.decoders[name](memoryview(bytearray(value)))
        except DecodeError as error:
            raise EncodeError(str(error)) from error
    return bytes(value)
