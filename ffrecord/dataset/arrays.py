"""Arrays as records. Each record is a .npy file, which libraries in many languages can read.

    magic "\\x93NUMPY" | version u8 u8 | header length u16 (version 1) or u32 (2, 3) | header | data

The header is a Python literal, `{'descr': …, 'fortran_order': False, 'shape': (…), }`. Spaces and a
newline pad it so that the data begins at a multiple of 64 bytes. `ast.literal_eval` parses headers
of at most `LONGEST_HEADER` bytes. Nothing is ever unpickled: encoder and decoder refuse dtypes that
hold Python objects.
"""

from __future__ import annotations

import ast
import math
import struct
from functools import lru_cache
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from ffrecord.dataset.optional import raising
from ffrecord.errors import DecodeError, EncodeError

Array: TypeAlias = npt.NDArray[Any]
Described: TypeAlias = "tuple[tuple[int, ...], np.dtype[Any], Literal['C', 'F'], int]"

MAGIC = b"\x93NUMPY"
DATA_ALIGN = 64
# numpy's limit for untrusted files: much longer literals may exhaust the parser.
LONGEST_HEADER = 10_000
MOST_ITEMS = (1 << 63) - 1
_KEYS = {"descr", "fortran_order", "shape"}
# Text encoding of the header, by format version.
_ENCODINGS = {b"\x01\x00": "latin-1", b"\x02\x00": "latin-1", b"\x03\x00": "utf-8"}


@raising(EncodeError)
def encode_array(value: Any) -> bytes:
    """Return a value as a .npy file.

    The value may be anything that `np.asarray` accepts, except Python objects.
    """
    if isinstance(value, np.ma.MaskedArray):
        raise TypeError("a masked array would lose its mask; store data and mask as two fields")
    array = np.asarray(value)
    return npy_header(array.dtype, array.shape) + array.tobytes()


@raising(DecodeError)
def decode_array(buffer: memoryview) -> Array:
    """Return the array: a view of the buffer if its data is aligned there, otherwise a copy."""
    begin = _data_begins(bytes(buffer[:12]))
    if begin > len(buffer):
        raise ValueError(
            f"the .npy header ends at byte {begin}, but the value has {len(buffer)} bytes"
        )
    shape, dtype, order, due = parse_header(bytes(buffer[:begin]))
    if len(buffer) - begin != due:
        raise ValueError(
            f"shape and dtype need {due} bytes of data, but {len(buffer) - begin} are stored"
        )
    if not due:
        return np.empty(shape, dtype, order)
    array: Array = np.ndarray(shape, dtype, buffer, begin, None, order)
    return array if array.flags.aligned else array.copy()


@lru_cache(1024)
def npy_header(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    """Return the part of a .npy file before the data, for a C-ordered array."""
    if dtype.hasobject:
        raise TypeError(
            f"arrays of dtype {dtype} hold Python objects, which cannot be stored; "
            "convert the array to a numeric or string dtype"
        )
    descr = _description(dtype)
    text = f"{{'descr': {descr!r}, 'fortran_order': False, 'shape': {shape!r}, }}"
    try:
        encoded, version, size = text.encode("latin-1"), 1, "<H"
    except UnicodeEncodeError:  # the dtype has field names outside Latin-1
        encoded, version, size = text.encode("utf-8"), 3, "<I"
    before = len(MAGIC) + 2 + struct.calcsize(size)
    encoded += b" " * (-(before + len(encoded) + 1) % DATA_ALIGN) + b"\n"
    if len(encoded) > LONGEST_HEADER:
        raise ValueError(
            f"the description of the dtype has {len(encoded)} bytes; the limit is {LONGEST_HEADER}"
        )
    return MAGIC + bytes([version, 0]) + struct.pack(size, len(encoded)) + encoded


def _description(dtype: np.dtype[Any]) -> Any:
    """Return the header's description of a dtype; raise TypeError if it would not round-trip.

    Names, gaps and nesting of structured dtypes round-trip. Overlapping fields and dtypes of other
    packages do not.
    """
    dtype = _without_metadata(dtype)
    descr: Any = dtype.descr if dtype.names is not None else dtype.str
    if np.lib.format.descr_to_dtype(descr) != dtype:
        raise TypeError(f"dtype {dtype!r} cannot be described in a .npy header")
    return descr


def _without_metadata(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype without metadata. h5py, for one, adds metadata to the fields of tables."""
    if dtype.subdtype is not None:
        base, shape = dtype.subdtype
        bare = _without_metadata(base)
        return dtype if bare is base else np.dtype((bare, shape))
    if dtype.names is None:
        return np.dtype(dtype.str) if dtype.metadata else dtype
    fields = [dtype.fields[name] for name in dtype.names] if dtype.fields is not None else []
    plain = [_without_metadata(field[0]) for field in fields]
    if all(one is field[0] for one, field in zip(plain, fields, strict=True)):
        return dtype
    return np.dtype(
        {
            "names": list(dtype.names),
            "formats": plain,
            "offsets": [field[1] for field in fields],
            "titles": [field[2] if len(field) > 2 else None for field in fields],
            "itemsize": dtype.itemsize,
        }
    )


@lru_cache(1024)
def _data_begins(prefix: bytes) -> int:
    """Return the offset of the data in a file that begins with these bytes."""
    if prefix[:6] != MAGIC or len(prefix) < 12:
        raise ValueError("it does not begin like a .npy file")
    if prefix[6:8] not in _ENCODINGS:
        raise ValueError(
            f".npy version {prefix[6]}.{prefix[7]} is unknown; 1.0, 2.0 and 3.0 are read"
        )
    begin = 10 if prefix[6] == 1 else 12
    length = int.from_bytes(prefix[8:begin], "little")
    if length > LONGEST_HEADER:
        raise ValueError(f"the .npy header has {length} bytes; the limit is {LONGEST_HEADER}")
    return begin + length


@lru_cache(1024)
def parse_header(whole: bytes) -> Described:
    """Return the shape, dtype and order in a header, and the number of bytes of data they need.

    Results are cached, because most arrays of a field have the same header.
    """
    text = whole[10 if whole[6] == 1 else 12 :].decode(_ENCODINGS[whole[6:8]])
    try:
        found = ast.literal_eval(text.strip())
    except (MemoryError, RecursionError):  # the parser's stack overflowed; memory did not run out
        raise ValueError("the .npy header is nested too deeply") from None
    if not isinstance(found, dict) or found.keys() != _KEYS:
        raise ValueError(
            f"the .npy header does not have exactly the keys {', '.join(sorted(_KEYS))}"
        )
    shape, fortran = found["shape"], found["fortran_order"]
    if not isinstance(shape, tuple) or not all(type(n) is int and n >= 0 for n in shape):
        raise ValueError(f"the .npy header has the invalid shape {str(shape)[:50]}")
    if not isinstance(fortran, bool):
        raise ValueError("fortran_order in the .npy header is neither True nor False")
    dtype = np.lib.format.descr_to_dtype(found["descr"])
    if dtype.hasobject:
        raise ValueError("the array holds Python objects, which are never read")
    items = math.prod(shape)
    if items > MOST_ITEMS:  # items of 0 bytes need no data, so the size check would not fail
        raise ValueError(f"the .npy header claims {items} items; the limit is {MOST_ITEMS}")
    return shape, dtype, "F" if fortran else "C", items * dtype.itemsize
