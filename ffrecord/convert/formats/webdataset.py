"""WebDataset's samples: files with the same key are one row, and their extensions name the fields.

The key is the path up to the first dot of the file's name. The files of a sample follow each other.
The last part of an extension decides the type, if it is in `TYPES`. A name may come before that
part: `0007.left.png` is the field `left`, of type png, of the sample `0007`. Rows become files by
the same rules.
"""

from __future__ import annotations

import json
import re
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any

from ffrecord.archive.names import to_bytes, to_text
from ffrecord.convert import field_types
from ffrecord.convert.shapes import ConvertOptions, FileEntry, NamedFiles, Row, Rows
from ffrecord.dataset.codecs import decode_msgpack
from ffrecord.dataset.compression import LARGEST_VALUE
from ffrecord.dataset.optional import reason
from ffrecord.errors import ConversionError
from ffrecord.text import Advised

KEY = "__key__"
TYPES = {
    "bin": "bytes", "txt": "utf8", "cls": "int", "float": "float", "bool": "bool", "json": "json",
    "mp": "msgpack", "npy": "array", "tree": "tree", "jpg": "jpg", "jpeg": "jpg", "png": "png",
}  # fmt: skip
_EXTENSIONS = {type_: extension for extension, type_ in reversed(TYPES.items())}
_FILE = stat.S_IFREG | 0o644
_INT = re.compile(rb"\s*[+-]?[0-9]{1,4000}\s*")


def extension_of(type_: str) -> str:
    return _EXTENSIONS.get(type_, "bin")


def split_key(path: bytes) -> tuple[bytes, bytes]:
    """Split a path at the first dot of the file's name into the sample's key and the extension."""
    folder, slash, name = path.rpartition(b"/")
    key, _, extension = name.partition(b".")
    return folder + slash + key, extension


# ---- files to rows -------------------------------------------------------------------------


@dataclass(slots=True)
class _Sample:
    key: bytes
    parts: dict[str, bytes]  # by extension


@dataclass(frozen=True, slots=True)
class _Part:
    """The field that an extension stands for."""

    name: str
    type: str


def to_rows(files: NamedFiles, options: ConvertOptions) -> Rows:
    """Return the samples as rows. All samples must have the fields of the first one."""
    samples = _samples(files, options)
    first = next(samples, None)
    if first is None:
        return Rows({KEY: "utf8"}, (), 0)
    parts = _parts(list(first.parts), options)
    spec = {KEY: "utf8", **{part.name: part.type for part in parts.values()}}
    return Rows(spec, (_row(each, parts) for each in chain([first], samples)))


def content_of(entry: FileEntry, largest: int = LARGEST_VALUE) -> bytes:
    """Return a file's content; raise ConversionError if it has more than `largest` bytes."""
    content = bytearray()
    for piece in entry.content():
        data = memoryview(piece).cast("B")  # `+=` with a numpy array would not append its bytes
        if len(content) + len(data) > largest:
            name = to_text(entry.path)
            raise ConversionError(
                f"{name!r}: the file has more than {largest} bytes, the limit for a value"
            )
        content += data
    return bytes(content)


def _samples(files: NamedFiles, options: ConvertOptions) -> Iterator[_Sample]:
    sample: _Sample | None = None
    for entry in files.items:
        if entry.is_folder:
            continue
        if not entry.is_file:
            options.skipped["symlink" if entry.is_symlink else "hard link"] += 1
            continue
        key, extension = split_key(entry.path)
        if not extension or key.endswith(b"/") or not key:
            raise ConversionError(
                f"{to_text(entry.path)!r}: not a file of a sample, because its name does not have "
                "the form KEY.EXTENSION; rename or remove it"
            )
        if sample is None or sample.key != key:
            if sample is not None:
                yield sample
            sample = _Sample(key, {})
        if to_text(extension) in sample.parts:
            raise ConversionError(
                f"{to_text(entry.path)!r}: occurs twice in the source; remove one of the two"
            )
        sample.parts[to_text(extension)] = content_of(entry)
    if sample is not None:
        yield sample


def _parts(extensions: list[str], options: ConvertOptions) -> dict[str, _Part]:
    found = {}
    for extension in extensions:
        before, dot, last = extension.rpartition(".")
        known = TYPES.get(last.lower())
        alone = not dot or known is None
        name = extension if alone else before
        if not alone and sum(_name(other) == name for other in extensions) > 1:
            name = extension  # left.png and left.txt are two fields
        found[extension] = _Part(name, options.types.get(name, known or "bytes"))
    if KEY in (part.name for part in found.values()):
        raise ConversionError(
            f"a file has the extension {KEY!r}, which is the name of the field for the key; rename "
            "the file"
        )
    return found


def _name(extension: str) -> str:
    before, dot, last = extension.rpartition(".")
    return before if dot and last.lower() in TYPES else extension


def _row(sample: _Sample, parts: dict[str, _Part]) -> Row:
    if sample.parts.keys() != parts.keys():
        raise ConversionError(
            f"the sample {to_text(sample.key)!r} has the files {', '.join(sample.parts)}, but the "
            f"first sample has {', '.join(parts)}; all samples must have the same extensions"
        )
    row: Row = {KEY: to_text(sample.key)}
    for extension, part in parts.items():
        try:
            row[part.name] = _parsed(part.type, sample.parts[extension])
        except Exception as error:
            raise ConversionError(
                Advised(
                    f"{to_text(sample.key)}.{extension} cannot be read as {part.type}: "
                    f"{reason(error)}; to keep its bytes unchanged, pass ",
                    f"types={{{part.name!r}: 'bytes'}}",
                    f"--type {part.name}=bytes",
                )
            ) from error
    return row


def _parse_int(data: bytes) -> int:
    if not _INT.fullmatch(data):
        raise ValueError("it is not a whole number in decimal digits")
    return int(data)


def _parse_bool(data: bytes) -> bool:
    if data.strip() not in (b"true", b"false"):
        raise ValueError("it is neither true nor false")
    return data.strip() == b"true"


def _checked_json(data: bytes) -> bytes:
    json.loads(data.decode("utf-8"))
    return data


def _checked_msgpack(data: bytes) -> bytes:
    decode_msgpack(memoryview(data))
    return data


# Parsers for types whose files differ from the stored bytes, or whose content is checked.
_PARSERS: dict[str, Callable[[bytes], Any]] = {
    "int": _parse_int,
    "float": float,
    "bool": _parse_bool,
    "json": _checked_json,
    "msgpack": _checked_msgpack,
}


def _parsed(type_: str, data: bytes) -> Any:
    name = field_types.single_type("", type_, "a file holds one value")
    parser = _PARSERS.get(name)
    return field_types.decode(name, bytearray(data)) if parser is None else parser(data)


# ---- rows to files -------------------------------------------------------------------------


def to_files(rows: Rows, options: ConvertOptions) -> NamedFiles:
    types = {
        field: field_types.single_type(field, text, "a file holds one value")
        for field, text in rows.spec.items()
    }
    keyed = types.get(KEY) == "utf8"
    if keyed:
        del types[KEY]
    suffixes = {field: _suffix(field, type_) for field, type_ in types.items()}
    total = None if rows.count is None else rows.count * len(types)
    return NamedFiles(_entries(rows, types, suffixes, keyed, options), total)


def _suffix(field: str, type_: str) -> bytes:
    """Return a field's name, plus the extension of its type if the name does not imply the type."""
    told = TYPES.get(field.rpartition(".")[2].lower(), "bytes")
    known = type_ if type_ in _EXTENSIONS else "bytes"  # readers take unknown types as bytes
    return to_bytes(field if told == known else f"{field}.{_EXTENSIONS[known]}")


def _entries(
    rows: Rows, types: dict[str, str], suffixes: dict[str, bytes], keyed: bool,
    options: ConvertOptions,
) -> Iterator[FileEntry]:  # fmt: skip
    before = b""
    for number, row in enumerate(rows.items):
        key = to_bytes(row[KEY]) if keyed else numbered(number, rows.count)
        if split_key(key) != (key, b"") or not key or key == before:
            raise ConversionError(
                f"row {number}: {to_text(key)[:100]!r} cannot be a key: it is empty, has a dot in "
                "its last name, or is the key of the previous row"
            )
        before = key
        for field, type_ in types.items():
            data = _rendered(type_, row[field])
            yield made_file(key + b"." + suffixes[field], data, options)


def made_file(path: bytes, data: Any, options: ConvertOptions) -> FileEntry:
    """Return a file with a record or a value as its content."""
    size = memoryview(data).nbytes
    return FileEntry(path, _FILE, mtime_ns=options.mtime_ns, size=size, content=lambda: (data,))


def numbered(number: int, total: int | None) -> bytes:
    """Return a number as text, as wide as the largest so that names sort; at least six digits."""
    width = 6 if total is None else max(6, len(str(max(0, total - 1))))
    return f"{number:0{width}}".encode()


def _rendered(type_: str, value: Any) -> bytes:
    if type_ == "bool":
        return b"true" if value else b"false"
    if type_ in ("int", "float"):
        return repr(value).encode()
    return field_types.encode(type_, value)
