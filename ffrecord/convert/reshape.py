"""Conversions from one shape to another. docs/converting.md has the table of all pairs."""

from __future__ import annotations

from collections.abc import Iterator

from ffrecord.convert import field_types
from ffrecord.convert.formats import webdataset
from ffrecord.convert.shapes import (
    LARGEST_RECORD,
    ConvertOptions,
    FileEntry,
    NamedFiles,
    Records,
    Row,
    Rows,
    Shape,
)
from ffrecord.dataset.optional import reason
from ffrecord.errors import ConversionError
from ffrecord.text import Advised

FIELD = "data"
"""The name of the field if records become rows and the user names no field."""


def reshape(source: Shape, wanted: type[Shape], options: ConvertOptions) -> Shape:
    """Return the source in another shape, or the source itself if it has that shape."""
    if wanted is Records:
        return to_records(source, options)
    if wanted is NamedFiles:
        return to_files(source, options)
    return to_rows(source, options)


def to_records(source: Shape, options: ConvertOptions) -> Records:
    if isinstance(source, Records):
        return source
    if isinstance(source, NamedFiles) and options.field is None:
        return _contents(source, options)
    return _values(to_rows(source, options), options)


def to_files(source: Shape, options: ConvertOptions) -> NamedFiles:
    if isinstance(source, NamedFiles):
        return source
    if isinstance(source, Rows):
        return webdataset.to_files(source, options)
    return NamedFiles(_numbered_files(source, options), source.count)


def to_rows(source: Shape, options: ConvertOptions) -> Rows:
    if isinstance(source, Rows):
        if options.types:
            message = " is for files or records that become rows; the source has types already"
            raise ConversionError(Advised("", "types", "--type", f"{message}: leave it out"))
        return source if options.field is None else _one_field(source, options.field)
    if isinstance(source, NamedFiles):
        rows = webdataset.to_rows(source, options)
    else:
        field = options.field or FIELD
        text = options.types.get(field, "bytes")
        type_ = field_types.single_type(field, text, "a record holds one value")
        rows = Rows({field: text}, _rows(source, field, type_), source.count)
    for field in options.types:
        _require_field(rows, field)
    if isinstance(source, NamedFiles) and options.field is not None:
        return _one_field(rows, options.field)
    return rows


def _contents(files: NamedFiles, options: ConvertOptions) -> Records:
    if not options.drop_names:
        before = "the source has named files, and records have no names; pass "
        after = " to keep only the contents of the files, in the order of their paths"
        raise ConversionError(Advised(before, "drop_names=True", "--drop-names", after))
    return Records(_without_names(files, options))


def _without_names(files: NamedFiles, options: ConvertOptions) -> Iterator[bytes]:
    for entry in files.items:
        if entry.is_file:
            yield webdataset.content_of(entry, LARGEST_RECORD)
        elif not entry.is_folder:
            options.skipped["symlink" if entry.is_symlink else "hard link"] += 1


def _values(rows: Rows, options: ConvertOptions) -> Records:
    """Return one field of rows, as the bytes that a dataset stores."""
    named = [name for name in rows.spec if name != webdataset.KEY]
    if options.field is None and len(named) != 1:
        before = f"the source has {len(named)} fields, and a record holds one; choose one with "
        known = f": {', '.join(rows.spec)}"
        raise ConversionError(Advised(before, "field", "--field", known))
    field = options.field or named[0]
    _require_field(rows, field)
    type_ = field_types.single_type(field, rows.spec[field], "a record holds one value")
    return Records((field_types.encode(type_, row[field]) for row in rows.items), rows.count)


def _one_field(rows: Rows, field: str) -> Rows:
    _require_field(rows, field)
    return Rows({field: rows.spec[field]}, ({field: row[field]} for row in rows.items), rows.count)


def _require_field(rows: Rows, field: str) -> None:
    if field not in rows.spec:
        raise ConversionError(f"there is no field {field!r}; the fields are {', '.join(rows.spec)}")


def _rows(records: Records, field: str, type_: str) -> Iterator[Row]:
    for number, record in enumerate(records.items):
        try:
            value = field_types.decode(type_, record)
        except Exception as error:
            what = f"record {number} cannot be decoded as {type_}: {reason(error)}"
            raise ConversionError(what) from error
        yield {field: value}


def _numbered_files(records: Records, options: ConvertOptions) -> Iterator[FileEntry]:
    type_ = options.types.get(options.field or FIELD, "bytes")
    extension = f".{webdataset.extension_of(type_)}".encode()
    for number, record in enumerate(records.items):
        name = webdataset.numbered(number, records.count) + extension
        yield webdataset.made_file(name, record, options)
