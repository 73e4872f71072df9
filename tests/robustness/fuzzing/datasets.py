"""Targets: datasets, their specs, their files and the values in their records."""

from __future__ import annotations

import gzip
import io
import json
import struct
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from ffrecord import DatasetReader, DatasetWriter
from ffrecord.dataset import compression, images, spec
from ffrecord.dataset.codecs import decoders, encoders
from ffrecord.dataset.columns import Unpacking
from ffrecord.dataset.spec import parse_type
from ffrecord.errors import FFRecordError, LegacyFileWarning
from tests.robustness.fuzzing.indexes import joined, split
from tests.robustness.fuzzing.records import sealed_with_records
from tests.robustness.fuzzing.scratch import Scratch, folder
from tests.robustness.fuzzing.target import Target

# ---- spec.json -------------------------------------------------------------------------------


def _spec(**changes: Any) -> bytes:
    content = {
        "format": "ffrecord dataset", "version": 1, "length": 3,
        "spec": {"a": "int", "b": "utf8+zstd[]"}, "checksums": {"a": 5, "b": 4294967295},
    }  # fmt: skip
    return json.dumps(content | changes).encode()


SPECS = (
    _spec(), _spec(length=1 << 40), _spec(version=2), _spec(spec={".a": "int"}),
    _spec(spec={"a": "int[]", "b": "json+gzip:9[]"}), _spec(spec={"a": "x+zstd:19:dict", "b": "b"}),
)  # fmt: skip
_JSON = (
    b"null", b"true", b"1e999", b"-1", b"NaN", b"[", b"{", b"}", b'"', b'"a":', b"\\ud800", b"1.0",
    b'"int"', b'"utf8[]"', b'"tree+lz4"', b"[" * 200, b'{"a":' * 100, b"9" * 5000, b"/", b"..",
)  # fmt: skip


def specs() -> Target:
    top = folder()
    scratch = Scratch(top / "spec.json")

    def run(data: bytes) -> str:
        scratch.fill(data)
        found = spec.load(str(top))
        content = json.loads(data)
        assert (found.spec, found.length) == (content["spec"], content["length"])
        assert found.checksums == content["checksums"]
        assert all("/" not in name and name[0] not in "." for name in found.spec)
        assert json.loads(spec.dump(found)) == {
            key: content[key] for key in ("format", "version", "length", "spec", "checksums")
        }
        types = [parse_type(each, decoders) for each in found.spec.values()]
        return "known types" if types else "none"

    return Target("spec", run, SPECS, tokens=_JSON)


# ---- the files of a dataset ------------------------------------------------------------------

NAMES = ["spec.json", "a.ffr", "b.ffr"]
ROWS = [{"a": i - 2, "b": ["x" * j for j in range(i)]} for i in range(5)]


def _dataset(path: Path, types: dict[str, str]) -> bytes:
    with DatasetWriter(path, types) as writer:
        for row in ROWS:
            writer.append(row)
    return joined({name: (path / name).read_bytes() for name in NAMES})


def _sealed(data: bytes) -> bytes:
    """Return the files with correct checksums, including the header checksums in the spec."""
    files = split(data, NAMES)
    for name in NAMES[1:]:
        files[name] = sealed_with_records(files[name])[:65535]
    try:
        content = json.loads(files["spec.json"])
        content["checksums"] = {
            field: int.from_bytes(files.get(f"{field}.ffr", b"")[:4], "little")
            for field in content["spec"]
        }
        files["spec.json"] = json.dumps(content).encode()[:65535]
    except (ValueError, TypeError, KeyError, RecursionError):
        pass
    return joined(files)


def folders() -> Target:
    """Fuzz the files of a dataset: open the dataset and read every datapoint."""
    top = folder()
    warnings.simplefilter("ignore", LegacyFileWarning)
    seeds = tuple(
        _dataset(top / f"seed{number}", types)
        for number, types in enumerate(
            ({"a": "int", "b": "utf8[]"}, {"a": "json+zstd", "b": "msgpack+gzip[]"})
        )
    )
    used = top / "dataset"
    used.mkdir()
    scratches = {name: Scratch(used / name) for name in NAMES}

    def run(data: bytes) -> str:
        for name, content in split(data, NAMES).items():
            scratches[name].fill(content)
        reader = DatasetReader(used, mode="buffered")
        try:
            found = reader.read(list(range(len(reader)))) if len(reader) < 1000 else []
            for number, row in enumerate(found):
                assert row.keys() == reader.spec.keys()
                for field, part in reader.available(number).items():
                    assert not isinstance(part, range) or len(row[field]) == len(part)
        finally:
            reader.close()
        return "read"

    tokens = (b"int", b"[]", b"json", b'"length": 4')
    errors = (FFRecordError, FileNotFoundError)  # a spec may name a field without a file
    return Target("dataset", run, seeds, _sealed, tokens, errors, in_place=True)


# ---- values ----------------------------------------------------------------------------------

TYPES = [*decoders, *(f"bytes+{how}" for how in ("zstd", "gzip", "lz4"))]
_SMALL = 1 << 20


def _npy(data: bytes) -> Any:
    return np.lib.format.read_array(io.BytesIO(data), allow_pickle=False)


_REFERENCES: dict[str, Callable[[bytes], Any]] = {
    "bytes": bytes,
    "utf8": lambda data: data.decode(),
    "int": lambda data: int.from_bytes(data, "little", signed=True),
    "float": lambda data: struct.unpack("<d", data)[0],
    "bool": lambda data: {b"\0": False, b"\1": True}[data],
    "json": json.loads,
    "array": _npy,
    "bytes+gzip": gzip.decompress,
}
_VALUES: dict[str, list[Any]] = {
    "bytes": [b"abc"], "utf8": ["é", ""], "int": [0, -1, 1 << 70], "float": [1.5], "bool": [True],
    "msgpack": [{"a": [1, 2.5, None, b"x"]}, [[1]] * 3], "json": [{"a": [1, "x", None]}],
    "array": [np.arange(6, dtype="<i2").reshape(2, 3), np.zeros(2, [("x", "<f4"), ("y", "u1")])],
    "tree": [{"a": np.arange(3.0), "b": [1 << 70, np.float32(2)]}],
    "jpg": [np.zeros((4, 5), np.uint8)], "png": [np.zeros((4, 5, 4), np.uint8)],
}  # fmt: skip


def _seeds() -> tuple[bytes, ...]:
    found = []
    for number, type_ in enumerate(TYPES):
        name, _, how = type_.partition("+")
        for value in _VALUES[name]:
            raw = bytes(encoders[name](value))
            if how:
                raw = compression.compressor(compression.parse_compression(how))(raw * 50)
            found.append(bytes([number]) + raw)
    return tuple(found)


@contextmanager
def lower_limits(*others: tuple[Any, str]) -> Iterator[None]:
    """Lower the limits of unpacked values and pictures, because gigabytes take long.

    Other tests of the same process need the usual limits.
    """
    with ExitStack() as lower:
        for module, name in ((images, "MOST_PIXELS"), (compression, "LARGEST_VALUE"), *others):
            lower.enter_context(mock.patch.object(module, name, _SMALL))
        yield


def values() -> Target:
    """Fuzz encoded values. The first byte chooses the type."""
    decode: dict[str, Callable[[Any], Any]] = dict(decoders)
    for type_ in TYPES[len(decoders) :]:
        how = compression.parse_compression(type_.partition("+")[2])
        decode[type_] = Unpacking(how, b"", bytes)

    def run(data: bytes) -> str:
        type_ = TYPES[data[0] % len(TYPES)] if data else "bytes"
        with lower_limits():
            value = decode[type_](memoryview(bytearray(data[1:])))
        read = _REFERENCES.get(type_)
        try:
            expected = value if read is None else read(data[1:])
        except ValueError:  # numpy refuses more, such as control characters in headers
            return f"{type_} that others refuse"
        assert np.array_equal(value, expected) or repr(value) == repr(expected)
        return type_

    tokens = (b"descr", b"'<f8'", b"'|O'", b"(1 << 60,)", b"\x93NUMPY", b"\xdd\xff\xff\xff\xff")
    return Target("values", run, _seeds(), tokens=tokens, memory=64 << 20)
