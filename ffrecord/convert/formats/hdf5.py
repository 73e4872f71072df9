"""HDF5 files with one row per sample: datasets that all have the same first dimension.

A dataset of shape (n, …) is a field of arrays. Strings of variable length are utf8 or, if they are
not declared as UTF-8, bytes. The writer stores the original type in the attribute `ffrecord_type`,
so that reading restores it. Nothing outside the file is read, even if the file refers to it.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from ffrecord.convert import field_types
from ffrecord.convert.formats.hdf5_heap import check_heaps
from ffrecord.convert.formats.hdf5_target import Target
from ffrecord.convert.shapes import LARGEST_RECORD, ConvertOptions, Row, Rows, Written
from ffrecord.dataset import optional
from ffrecord.dataset.optional import reason
from ffrecord.dataset.spec import SEQUENCE, split_type
from ffrecord.errors import ConversionError, DamagedSourceError, FFRecordError, ReadFailedError
from ffrecord.records.opening import refuse_other_kinds
from ffrecord.text import Advised

SIGNATURE = b"\x89HDF\r\n\x1a\n"
TYPE = "ffrecord_type"
BLOCK_BYTES = 4 << 20
BLOCK_ROWS = 1024
OBJECT_ROWS = 16
CHUNK_BYTES = 64 << 10
MOST_RATIO = 1100  # deflate unpacks one byte to at most 1032 bytes
MODEST = 1 << 30  # bytes that a file may claim without a comparison with its size

# errno and offset in the text of an error: h5py sets `errno` only if opening a file fails.
_ERRNO = re.compile(r"\berrno = ([0-9]{1,4})\b")
_OFFSET = re.compile(r"\boffset = ([0-9]{1,18})\b")
_SCALARS = {"int": np.dtype("<i8"), "float": np.dtype("<f8"), "bool": np.dtype(bool)}
_SEQUENCES = {"int[]": np.dtype("<i8"), "float[]": np.dtype("<f8")}


def begins(start: bytes) -> bool:
    return start.startswith(SIGNATURE)


# ---- reading -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Field:
    """A dataset of the file as a field of rows."""

    name: str
    type: str
    dataset: Any

    def value(self, stored: Any) -> Any:
        name, sequence = split_type(self.type)
        if sequence:
            return stored.tolist()
        if name in _SCALARS:
            return stored.item()
        if name == "array":
            return np.asarray(stored)
        if isinstance(stored, np.ndarray):
            return field_types.decode(name, stored.tobytes())
        return field_types.decode(name, stored)


@contextmanager
def read(path: str, options: ConvertOptions) -> Iterator[Rows]:
    with _opened(path) as file:
        fields = _fields(path, file, options.field)
        rows = len(fields[0].dataset)
        yield Rows({each.name: each.type for each in fields}, _rows(path, fields, rows), rows)


def count(path: str) -> int:
    with _opened(path) as file:
        return len(_fields(path, file, None)[0].dataset)


@contextmanager
def _opened(path: str) -> Iterator[Any]:
    refuse_other_kinds(path, "an HDF5 file")
    # If the system refuses to open the file, fail here: that is not damage.
    os.close(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
    with _damage_of(path):
        file = _file(path)
    with file:
        yield file


def _file(path: str) -> Any:
    """Open a file with h5py. Retries after EINTR, because the HDF5 library does not."""
    while True:
        try:
            return optional.load("h5py").File(path, "r")
        except OSError as error:
            if _number(_ERRNO, error) != errno.EINTR:
                raise


@contextmanager
def _damage_of(path: str, record: int | None = None) -> Iterator[None]:
    """Turn h5py's exceptions into ours.

    h5py raises almost any exception for damage, and the same ones for a disk that fails.
    """
    try:
        yield
    except FFRecordError:
        raise
    except (OSError, RuntimeError, ValueError, TypeError, LookupError, ArithmeticError) as error:
        # h5py sets no filename, so this error is not from h5py.
        if isinstance(error, OSError) and error.filename is not None:
            raise
        if code := _number(_ERRNO, error):
            raise ReadFailedError(path, code, _number(_OFFSET, error)) from error
        what = f"the HDF5 library cannot read it: {reason(error)}"
        raise DamagedSourceError(path, what, record) from error


def _number(pattern: re.Pattern[str], error: Exception) -> int:
    found = pattern.search(str(error))
    return int(found[1]) if found is not None else 0


def _fields(path: str, file: Any, only: str | None) -> list[Field]:
    found: dict[str, Field] = {}
    with _damage_of(path):
        file.visititems(lambda name, item: _visit(path, found, name, item))
        if only is not None:
            if only not in found:
                raise ConversionError(
                    f"{path}: there is no field {only!r}; the fields are {', '.join(found)}"
                )
            found = {only: found[only]}
        if not found:
            raise ConversionError(f"{path}: the file contains no HDF5 datasets")
        lengths = {name: len(each.dataset) for name, each in found.items()}
        if len(set(lengths.values())) > 1:
            message = f"{path}: its datasets have different numbers of rows: {lengths}; choose one "
            raise ConversionError(Advised(f"{message}with ", "field", "--field"))
        for each in found.values():
            _refuse_claims(path, file, each)
        if any(each.dataset.dtype.hasobject for each in found.values()):
            check_heaps(path)
    return list(found.values())


def _visit(path: str, found: dict[str, Field], name: str, item: Any) -> None:
    """Add a dataset to `found`. Links to other files are not followed."""
    if not isinstance(item, optional.load("h5py").Dataset):
        return
    if not item.shape:
        raise ConversionError(
            f"{path}: the dataset {name} has no rows: its shape is {item.shape}; remove it first"
        )
    if item.is_virtual or item.external:
        raise ConversionError(
            f"{path}: the data of {name} is in another file, and other files are never read; copy "
            "the data into this file first, for example with h5repack"
        )
    field = name.replace("/", ".")
    if field in found:
        raise ConversionError(
            f"{path}: two datasets would become the field {field!r}; rename one of them"
        )
    found[field] = Field(field, _type(path, name, item), item)


def _type(path: str, name: str, dataset: Any) -> str:
    h5py = optional.load("h5py")
    said = _said_type(dataset)
    text = h5py.check_string_dtype(dataset.dtype)
    element = h5py.check_vlen_dtype(dataset.dtype)
    each = _values_in_a_row(dataset)
    if each != 1 and dataset.dtype.hasobject:
        raise ConversionError(
            f"{path}: {name} has {each} values of variable length per row; only one per row can be "
            "read"
        )
    if text is not None and text.length is None:
        return "utf8" if text.encoding == "utf-8" else "bytes"
    if element is not None:
        if said in _SEQUENCES and element == _SEQUENCES[said]:
            return said
        if element == np.uint8 and said and said not in _SCALARS:
            return said if split_type(said) == (said, False) else "array"
        return "array"
    if dataset.dtype.hasobject:
        raise ConversionError(
            f"{path}: {name} contains references, which have no meaning outside of the file; "
            "remove this dataset first"
        )
    scalar = said in _SCALARS and dataset.ndim == 1 and dataset.dtype == _SCALARS[said]
    return said if scalar else "array"


def _said_type(dataset: Any) -> str:
    """Return the type in the attribute; "" unless that is text of fixed length, as we write it.

    Text of variable length is on a heap. If the heap is damaged, the HDF5 library may loop for
    ever.
    """
    if TYPE not in dataset.attrs:
        return ""
    attribute = dataset.attrs.get_id(TYPE)
    if attribute.dtype.kind != "S" or attribute.shape != ():
        return ""
    return bytes(dataset.attrs[TYPE]).decode("utf-8", "replace")


def _refuse_claims(path: str, file: Any, field: Field) -> None:
    """Raise an error if a dataset claims far more data than the file can hold.

    A few bytes of HDF5 can claim any shape: data that was never written reads as zeros.
    """
    dataset = field.dataset
    row = _row_bytes(dataset)
    chunk = int(np.prod(dataset.chunks, dtype=object)) if dataset.chunks else 0
    if max(row, chunk * dataset.dtype.itemsize) > LARGEST_RECORD:
        raise DamagedSourceError(
            path, f"{field.name}: a row or chunk has more than {LARGEST_RECORD} bytes, the limit"
        )
    claimed = row * len(dataset)
    if claimed > MODEST and claimed > MOST_RATIO * file.id.get_filesize():
        raise DamagedSourceError(
            path, f"{field.name}: claims {claimed} bytes, far more than the file can hold"
        )


def _row_bytes(dataset: Any) -> int:
    return _values_in_a_row(dataset) * int(dataset.dtype.itemsize)


def _values_in_a_row(dataset: Any) -> int:
    return int(np.prod(dataset.shape[1:], dtype=object))


def _rows(path: str, fields: list[Field], rows: int) -> Iterator[Row]:
    columns = (_values(path, each, rows) for each in fields)
    for values in zip(*columns, strict=True):
        yield {each.name: value for each, value in zip(fields, values, strict=True)}


def _values(path: str, field: Field, rows: int) -> Iterator[Any]:
    """Yield a field's values, reading several rows at once."""
    step = _step(field.dataset)
    for start in range(0, rows, step):
        with _damage_of(path, start):
            block = field.dataset[start : start + step]
        if block.dtype.hasobject:  # one value per row, in the shape (n,) or H5Record's (n, 1)
            block = block.reshape(-1)
        for number in range(len(block)):
            # `[number, ...]` gives an array: a numpy scalar would lose the byte order.
            row = block[number] if block.dtype.hasobject else block[number, ...]
            yield _value(path, start + number, field, row)


def _step(dataset: Any) -> int:
    """Return the number of rows to read at once: whole chunks, because a part costs the same."""
    if dataset.dtype.hasobject:  # each value may have any size
        return OBJECT_ROWS
    row = max(1, _row_bytes(dataset))
    if dataset.chunks and dataset.chunks[0] * row <= 16 * BLOCK_BYTES:
        return max(1, int(min(dataset.chunks[0], BLOCK_ROWS)))
    return max(1, min(BLOCK_ROWS, BLOCK_BYTES // row))


def _value(path: str, number: int, field: Field, stored: Any) -> Any:
    try:
        return field.value(stored)
    except Exception as error:
        what = f"{field.name} cannot be decoded as {field.type}: {reason(error)}"
        raise DamagedSourceError(path, what, number) from error


# ---- writing -------------------------------------------------------------------------------


def write(path: str, rows: Rows, options: ConvertOptions) -> Written:
    number = 0
    h5py = optional.load("h5py")
    with (
        Target(path) as target,
        _told_by_hdf5(path),
        h5py.File(target, "w", track_order=True) as file,
    ):
        columns = [_Column(file, name, text) for name, text in rows.spec.items()]
        for row in rows.items:
            for column in columns:
                column.add(row[column.name])
                target.raise_error()
            number += 1
        for column in columns:
            column.finish()
            target.raise_error()
    return Written(number)


@contextmanager
def _told_by_hdf5(path: str) -> Iterator[None]:
    """Turn h5py's RuntimeError, raised if a file cannot be finished, into a ConversionError."""
    try:
        yield
    except FFRecordError:
        raise
    except RuntimeError as error:
        raise ConversionError(f"{path}: the HDF5 library cannot write it: {error}") from error


class _Column:
    """Writer of an HDF5 dataset, in blocks of rows. The first row decides its shape and dtype."""

    def __init__(self, file: Any, name: str, text: str) -> None:
        self.name = name
        self._file = file
        self._type, sequence = split_type(text)
        if sequence:
            self._type += SEQUENCE
            if self._type not in _SEQUENCES:
                known = ", ".join(_SEQUENCES)
                raise ConversionError(
                    f"field {name!r}: sequences of type {text} cannot be written to HDF5, only "
                    f"{known}; convert another field, or to another format"
                )
        self._dataset: Any = None
        self._dtype: Any = None
        self._shape: tuple[int, ...] = ()
        self._waiting: list[Any] = []
        self._bytes = 0
        self._length = 0

    def add(self, value: Any) -> None:
        try:
            stored = self._stored(value)
            if self._dataset is None:
                self._make(stored)
        except (TypeError, ValueError, OverflowError) as error:
            raise self._cannot(error) from error
        if self._type == "array":
            self._require_same(stored)
        self._waiting.append(stored)
        self._bytes += len(stored) if isinstance(stored, str) else stored.nbytes
        if self._bytes >= BLOCK_BYTES or len(self._waiting) >= BLOCK_ROWS:
            self._write_out()

    def finish(self) -> None:
        if self._dataset is None:
            self._make(np.zeros(0))
        self._write_out()

    def _stored(self, value: Any) -> Any:
        if self._type in _SEQUENCES:
            return np.array(value, _SEQUENCES[self._type])
        if self._type in _SCALARS:
            return _SCALARS[self._type].type(value)
        if self._type == "array":
            return np.asarray(value)
        if self._type == "utf8":
            if "\0" in value:
                raise ValueError("the text contains a NUL, which ends a text in HDF5")
            return value
        return np.frombuffer(field_types.encode(self._type, value), np.uint8)

    def _make(self, first: Any) -> None:
        h5py = optional.load("h5py")
        if self._type == "array":
            self._dtype, self._shape = first.dtype, first.shape
        elif self._type == "utf8":
            self._dtype = h5py.string_dtype("utf-8")
        elif self._type in _SCALARS:
            self._dtype = _SCALARS[self._type]
        else:
            self._dtype = h5py.vlen_dtype(_SEQUENCES.get(self._type, np.dtype(np.uint8)))
        row = max(1, int(np.prod(self._shape)) * np.dtype(self._dtype).itemsize)
        rows = max(1, min(BLOCK_ROWS, CHUNK_BYTES // row))
        self._dataset = self._file.create_dataset(
            self.name, (0, *self._shape), dtype=self._dtype,
            # A chunk's side must be at least 1 and at most the maximum. So a side of 0 has no
            # maximum.
            maxshape=(None, *(side or None for side in self._shape)),
            chunks=(rows, *(max(1, side) for side in self._shape)),
        )  # fmt: skip
        self._dataset.attrs[TYPE] = np.bytes_(self._type.encode())

    def _require_same(self, array: Any) -> None:
        if (array.dtype, array.shape) != (self._dtype, self._shape):
            raise self._cannot(
                f"the array is {array.dtype} of shape {array.shape}, but the first row's is "
                f"{self._dtype} of shape {self._shape}, and all rows must be alike"
            )

    def _write_out(self) -> None:
        waiting, self._waiting, self._bytes = self._waiting, [], 0
        if not waiting:
            return
        begin, end = self._length, self._length + len(waiting)
        self._dataset.resize(end, axis=0)
        if np.dtype(self._dtype).hasobject:
            self._write_objects(begin, waiting)
        else:
            self._dataset[begin:end] = np.array(waiting, self._dtype)
        self._length = end

    def _write_objects(self, begin: int, waiting: list[Any]) -> None:
        """Write values of variable length.

        Uses h5py's low-level interface: the high-level one and numpy turn values that happen to
        have the same length into a matrix.
        """
        h5py = optional.load("h5py")
        block = np.empty(len(waiting), object)
        for row, stored in enumerate(waiting):
            block[row] = stored
        here = h5py.h5s.create_simple((len(waiting),))
        there = self._dataset.id.get_space()
        there.select_hyperslab((begin,), (len(waiting),))
        self._dataset.id.write(here, there, block, h5py.h5t.py_create(self._dtype))

    def _cannot(self, why: object) -> ConversionError:
        row = self._length + len(self._waiting)
        return ConversionError(f"row {row}, field {self.name!r}: HDF5 cannot hold the value: {why}")
