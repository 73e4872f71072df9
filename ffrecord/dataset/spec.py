"""The spec of a dataset: field names, their types, and `spec.json`.

Nothing here does I/O except `load`, which reads `spec.json`.

A type is `NAME` or `NAME+COMPRESSION`, or either with `[]` after it for a sequence of such values.
NAME is any key of the encoders and decoders in use. If the whole text before `[]` is such a key, a
`+` in it belongs to NAME.

    {"format": "ffrecord dataset", "version": 1, "length": 10,
     "spec": {"foo": "int", "bar": "utf8+zstd[]"},
     "checksums": {"foo": 2768625435, "bar": 1007132563}}

`length` is the number of datapoints. `checksums` are the first four bytes of each field's file, the
CRC-32 of its header. They reveal a file of another dataset, or of another version of this one.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Container, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ffrecord.dataset.compression import Compression, parse_compression
from ffrecord.disk.source import whole_file
from ffrecord.errors import DatasetError, SpecError
from ffrecord.format.records import MAX_RECORDS

SPEC_NAME = "spec.json"
FORMAT = "ffrecord dataset"
VERSION = 1
SEQUENCE = "[]"
BOUND = np.dtype("<i8")  # type of a bound, the number of the element at which a sequence begins
LONGEST_NAME = 200  # bytes; file systems allow 255 for the name and its suffix
MOST_FIELDS = 4096
LARGEST_SPEC = 4 << 20

# Classes that are passed by mistake, and the types to pass instead.
_CLASSES: dict[Any, str] = {
    int: "int", float: "float", bool: "bool", bytes: "bytes", str: "utf8", dict: "json",
    np.ndarray: "array",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class FieldType:
    """A parsed type: its text, the codec's name, the compression, and True for a sequence."""

    text: str
    name: str
    compression: Compression | None
    sequence: bool


@dataclass(frozen=True, slots=True)
class Manifest:
    """The content of `spec.json`."""

    length: int
    spec: dict[str, str]
    checksums: dict[str, int]


def parse_type(text: str, known: Container[str]) -> FieldType:
    """Parse a type. `known` has the names of all codecs.

    Raises:
        SpecError: The type has no codec, or its compression is unknown.
    """
    sequence = text.endswith(SEQUENCE)
    single = text.removesuffix(SEQUENCE)
    if single in known:
        return FieldType(text, single, None, sequence)
    name, plus, how = single.rpartition("+")
    if not plus:
        name = single
    if name.endswith(SEQUENCE):
        hint = f"; write {name.removesuffix(SEQUENCE)}+{how}{SEQUENCE} for compressed elements"
        reason = "[] must come once, at the end"
        raise SpecError(f"type {text!r}: {reason}{hint if plus else ''}")
    if name not in known and (sized := re.fullmatch(r"(.+)\[.+\]", name)) is not None:
        base = sized[1]
        raise SpecError(
            f"type {text!r}: a type has no length or shape; write {base}{SEQUENCE} for a list of "
            f"any length, or {base} for one value"
        )
    if name not in known:
        raise SpecError(
            f"type {text!r}: there is no codec for {name!r}; pass one in `encoders` or `decoders`"
        )
    return FieldType(text, name, parse_compression(how) if plus else None, sequence)


def split_type(text: str) -> tuple[str, bool]:
    """Return a type's name without its compression, and True if the type is a sequence.

    Needs no codecs: a "+" that is not followed by a compression belongs to the name.
    """
    name, plus, how = text.removesuffix(SEQUENCE).rpartition("+")
    try:
        if plus:
            parse_compression(how)
    except SpecError:
        name = ""
    return name or text.removesuffix(SEQUENCE), text.endswith(SEQUENCE)


def check_spec(spec: Any) -> dict[str, str]:
    """Check the names and types of a spec, and return a copy of it.

    Raises:
        SpecError: A name or a type is not allowed.
    """
    if not isinstance(spec, Mapping):
        raise SpecError(
            f"the spec has type {type(spec).__name__}; it must be a dict of field names and types"
        )
    if not 0 < len(spec) <= MOST_FIELDS:
        raise SpecError(f"the spec has {len(spec)} fields; it must have 1 to {MOST_FIELDS}")
    for name, type_ in spec.items():
        _check_name(name)
        if isinstance(type_, type) and type_ in _CLASSES:
            raise SpecError(
                f"the type of field {name!r} is the class {type_.__name__}; pass the text "
                f"{_CLASSES[type_]!r}"
            )
        if not isinstance(type_, str) or not type_.isprintable():
            raise SpecError(f"the type of field {name!r} is {type_!r}; it must be a printable str")
    return dict(spec)


def file_name(field: str) -> str:
    return f"{field}.ffr"


def _check_name(name: Any) -> None:
    """Raise SpecError unless a field's name can name a visible file on any system."""
    if not isinstance(name, str):
        raise SpecError(f"the field name {name!r} is not a str")
    reason = ""
    if not 0 < len(name.encode("utf-8", "replace")) <= LONGEST_NAME:
        reason = f"must have 1 to {LONGEST_NAME} bytes"
    elif name.startswith("."):
        reason = "must not begin with a dot"
    elif "/" in name or not name.isprintable():
        reason = "must not contain a slash or a control character"
    if reason:
        raise SpecError(f"the field name {name[:50]!r} {reason}")


def dump(manifest: Manifest) -> bytes:
    """Return the bytes of `spec.json`."""
    content = {
        "format": FORMAT, "version": VERSION, "length": manifest.length,
        "spec": manifest.spec, "checksums": manifest.checksums,
    }  # fmt: skip
    return json.dumps(content, indent=2, ensure_ascii=False).encode() + b"\n"


def load(directory: str) -> Manifest:
    """Read and check a dataset's `spec.json`.

    Raises:
        DatasetError: The folder is not a dataset, or `spec.json` is damaged.
        SpecError: A name or a type in it is not allowed.
    """
    path = os.path.join(directory, SPEC_NAME)
    if not stat.S_ISDIR(os.stat(directory).st_mode):
        raise DatasetError(
            f"{directory}: not a dataset: it is not a folder; pass a dataset's folder"
        )
    try:
        found = os.stat(path)
    except FileNotFoundError:
        raise DatasetError(
            f"{directory}: not a dataset: it has no {SPEC_NAME}; pass a folder that DatasetWriter "
            "wrote, or read a folder of shards with ShardedDatasetReader"
        ) from None
    if not stat.S_ISREG(found.st_mode) or found.st_size > LARGEST_SPEC:
        raise DatasetError(
            f"{path}: not the spec of a dataset, which is a regular file of at most {LARGEST_SPEC} "
            "bytes"
        )
    return parse_spec(path, whole_file(path))


def parse_spec(path: str, text: bytes) -> Manifest:
    """Check the content of a dataset's `spec.json`. `path` names it in errors."""
    try:
        return _parse(json.loads(text))
    except SpecError as error:
        raise SpecError(f"{path}: {error}") from None
    except (ValueError, RecursionError) as error:
        raise DatasetError(f"{path}: not the spec of a dataset: {error}") from None


def _parse(content: Any) -> Manifest:
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise ValueError(f"its key 'format' is not {FORMAT!r}")
    if content.get("version") != VERSION:
        raise ValueError(
            f"it has version {content.get('version')!r}, and this library reads version {VERSION}; "
            "install a newer ffrecord"
        )
    spec, length = check_spec(content.get("spec")), content.get("length")
    if type(length) is not int or not 0 <= length <= MAX_RECORDS:
        raise ValueError(f"its length is {length!r}; it must be a number from 0 to {MAX_RECORDS}")
    checksums = content.get("checksums")
    if not isinstance(checksums, dict) or checksums.keys() != spec.keys():
        raise ValueError("it does not have exactly one checksum for each field")
    for name, crc in checksums.items():
        if type(crc) is not int or not 0 <= crc < 1 << 32:
            raise ValueError(
                f"the checksum of field {name!r} is {crc!r}; it must be a 32-bit number"
            )
    return Manifest(length, spec, checksums)
