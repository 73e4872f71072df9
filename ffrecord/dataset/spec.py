"""The description in a dataset's folder: field names, their types, and `spec.json`. Pure, but
for `load`, which reads that file.

A type is `NAME`, `NAME+COMPRESSION`, or either with `[]` after it for a sequence of such values.
NAME is any key of the encoders and decoders in use; one that has a `+` in it is found there first.

    {"format": "ffrecord dataset", "version": 1, "length": 10,
     "spec": {"foo": "int", "bar": "utf8+zstd[]"},
     "checksums": {"foo": 2768625435, "bar": 1007132563}}

`length` is the number of datapoints, `checksums` the first four bytes of each field's file, the
CRC-32 of its header: files of other datasets, or of another version of this one, are found out.
"""

from __future__ import annotations

import json
import os
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
BOUND = np.dtype("<i8")  # where sequences begin among the elements
LONGEST_NAME = 200
MOST_FIELDS = 4096
LARGEST_SPEC = 4 << 20


@dataclass(frozen=True, slots=True)
class FieldType:
    """A parsed type: which codec, which compression, and whether of a sequence's elements."""

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
    """A type, given the names that there are codecs for."""
    sequence = text.endswith(SEQUENCE)
    single = text.removesuffix(SEQUENCE)
    if single in known:
        return FieldType(text, single, None, sequence)
    name, plus, how = single.rpartition("+")
    if not plus:
        name = single
    if name.endswith(SEQUENCE):
        hint = f"; {name.removesuffix(SEQUENCE)}+{how}{SEQUENCE} is a sequence of compressed values"
        reason = "[] comes once, at the end"
        raise SpecError(f"type {text!r}: {reason}{hint if plus else ''}")
    if name not in known:
        raise SpecError(f"type {text!r}: there is no codec for {name!r}")
    return FieldType(text, name, parse_compression(how) if plus else None, sequence)


def split_type(text: str) -> tuple[str, bool]:
    """Return a type's name without its compression, and whether it is of a sequence.

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
    """A spec as a dict of its own, if its names and types can be those of fields."""
    if not isinstance(spec, Mapping):
        raise SpecError(f"a spec is a dict of names and types, not {type(spec).__name__}")
    if not 0 < len(spec) <= MOST_FIELDS:
        raise SpecError(f"a spec has 1 to {MOST_FIELDS} fields, not {len(spec)}")
    for name, type_ in spec.items():
        _check_name(name)
        if not isinstance(type_, str) or not type_.isprintable():
            raise SpecError(f"the type of {name!r} is a printable str, not {type_!r}")
    return dict(spec)


def file_name(field: str) -> str:
    return f"{field}.ffr"


def _check_name(name: Any) -> None:
    """A name must be one of a file, visible, and the same everywhere."""
    if not isinstance(name, str):
        raise SpecError(f"the name of a field is a str, not {name!r}")
    reason = ""
    if not 0 < len(name.encode("utf-8", "replace")) <= LONGEST_NAME:
        reason = f"must have 1 to {LONGEST_NAME} bytes"
    elif name.startswith("."):
        reason = "must not begin with a dot"
    elif "/" in name or not name.isprintable():
        reason = "must not have a slash or a control character in it"
    if reason:
        raise SpecError(f"{name[:50]!r} names no field: it {reason}")


def dump(manifest: Manifest) -> bytes:
    """The bytes of `spec.json`."""
    content = {
        "format": FORMAT, "version": VERSION, "length": manifest.length,
        "spec": manifest.spec, "checksums": manifest.checksums,
    }  # fmt: skip
    return json.dumps(content, indent=2, ensure_ascii=False).encode() + b"\n"


def load(directory: str) -> Manifest:
    """Read and check a dataset's `spec.json`."""
    path = os.path.join(directory, SPEC_NAME)
    if not stat.S_ISDIR(os.stat(directory).st_mode):
        raise DatasetError(f"{directory}: not a dataset: it is not a folder")
    try:
        found = os.stat(path)
    except FileNotFoundError:
        raise DatasetError(f"{directory}: not a dataset: it has no {SPEC_NAME}") from None
    if not stat.S_ISREG(found.st_mode) or found.st_size > LARGEST_SPEC:
        raise DatasetError(f"{path}: not a regular file of at most {LARGEST_SPEC} bytes")
    text = whole_file(path)
    try:
        return _parse(json.loads(text))
    except SpecError as error:
        raise SpecError(f"{path}: {error}") from None
    except (ValueError, RecursionError) as error:
        raise DatasetError(f"{path}: not the spec of a dataset: {error}") from None


def _parse(content: Any) -> Manifest:
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise ValueError(f"its format is not {FORMAT!r}")
    if content.get("version") != VERSION:
        raise ValueError(f"it has version {content.get('version')!r}; this reads {VERSION}")
    spec, length = check_spec(content.get("spec")), content.get("length")
    if type(length) is not int or not 0 <= length <= MAX_RECORDS:
        raise ValueError(f"its length is {length!r}")
    checksums = content.get("checksums")
    if not isinstance(checksums, dict) or checksums.keys() != spec.keys():
        raise ValueError("its checksums are not those of its fields")
    for name, crc in checksums.items():
        if type(crc) is not int or not 0 <= crc < 1 << 32:
            raise ValueError(f"the checksum of {name!r} is {crc!r}")
    return Manifest(length, spec, checksums)
