"""Arrays as records: each is a .npy file, which every numpy and many other languages read.

    magic "\\x93NUMPY" | version u8 u8 | header length u16 (version 1) or u32 (2, 3) | header | data

The header is a Python literal, `{'descr': …, 'fortran_order': False, 'shape': (…), }`, padded with
blanks and ended by a newline so that the data begins at a multiple of 64. It is read here by
`ast.literal_eval` under a limit on its length, and nothing is ever unpickled: dtypes that hold
Python objects are refused on both sides.
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
# numpy's own limit for files that it does not trust: literals much longer may exhaust the parser.
LONGEST_HEADER = 10_000
MOST_ITEMS = (1 << 63) - 1
_KEYS = {"descr", "fortran_order", "shape"}
# of the header, by version
_ENCODINGS = {b"\x01\x00": "latin-1", b"\x02\x00": "latin-1", b"\x03\x00": "utf-8"}


@raising(EncodeError)
def encode_array(value: Any) -> bytes:
    """Anything that numpy makes an array of, but Python objects."""
    if isinstance(value, np.ma.MaskedArray):
        raise TypeError("a masked array would lose its mask; store data and mask as two fields")
    array = np.asarray(value)
    return npy_header(array.dtype, array.shape) + array.tobytes()


@raising(DecodeError)
def decode_array(buffer: memoryview) -> Array:
    """The array: a view of the buffer where its data is aligned there, else a copy."""
    begin = _data_begins(bytes(buffer[:12]))
    if begin > len(buffer):
        raise ValueError(f"its header would end at byte {begin} of {len(buffer)}")
    shape, dtype, order, due = parse_header(bytes(buffer[:begin]))
    if len(buffer) - begin != due:
        raise ValueError(
            f"it has {len(buffer) - begin} bytes of data where shape and dtype need {due}"
        )
    if not due:
        return np.empty(shape, dtype, order)
    array: Array = np.ndarray(shape, dtype, buffer, begin, None, order)
    return array if array.flags.aligned else array.copy()


@lru_cache(1024)
def npy_header(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    """Everything in front of the data of a C-ordered array."""
    if dtype.hasobject:
        raise TypeError(f"arrays of dtype {dtype} hold Python objects, which are not stored")
    descr = _description(dtype)
    text = f"{{'descr': {descr!r}, 'fortran_order': False, 'shape': {shape!r}, }}"
    try:
        encoded, version, size = text.encode("latin-1"), 1, "<H"
    except UnicodeEncodeError:  # names of fields
        encoded, version, size = text.encode("utf-8"), 3, "<I"
    before = len(MAGIC) + 2 + struct.calcsize(size)
    encoded += b" " * (-(before + len(encoded) + 1) % DATA_ALIGN) + b"\n"
    if len(encoded) > LONGEST_HEADER:
        raise ValueError(f"a dtype described in {len(encoded)} bytes is too long")
    return MAGIC + bytes([version, 0]) + struct.pack(size, len(encoded)) + encoded


def _description(dtype: np.dtype[Any]) -> Any:
    """Return the header's words for a dtype, if a reader makes the same dtype of it."""
    # Names, gaps and nesting of structured dtypes are kept. Overlapping fields, and dtypes of other
    # packages, have no description.
    dtype = _without_metadata(dtype)
    descr: Any = dtype.descr if dtype.names is not None else dtype.str
    if np.lib.format.descr_to_dtype(descr) != dtype:
        raise TypeError(f"dtype {dtype!r} cannot be written into a .npy header")
    return descr


def _without_metadata(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The same dtype without what packages note in it: h5py does, in the fields of its tables."""
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
    """Where the data begins in a file with these first bytes."""
    if prefix[:6] != MAGIC or len(prefix) < 12:
        raise ValueError("it does not begin as a .npy file")
    if prefix[6:8] not in _ENCODINGS:
        raise ValueError(f"version {prefix[6]}.{prefix[7]} of the .npy format is not known")
    begin = 10 if prefix[6] == 1 else 12
    length = int.from_bytes(prefix[8:begin], "little")
    if length > LONGEST_HEADER:
        raise ValueError(f"a header of {length} bytes is too long")
    return begin + length


@lru_cache(1024)
def parse_header(whole: bytes) -> Described:
    """Parse the header of an array: shape, dtype, order, and the bytes that the data must have.

    Kept: the arrays of a field mostly have one header, and the same few checks.
    """
    text = whole[10 if whole[6] == 1 else 12 :].decode(_ENCODINGS[whole[6:8]])
    try:
        found = ast.literal_eval(text.strip())
    except (MemoryError, RecursionError):  # the parser's stack, not the machine's memory
        raise ValueError("its header is nested too deeply") from None
    if not isinstance(found, dict) or found.keys() != _KEYS:
        raise ValueError("its header is not that of an array")
    shape, fortran = found["shape"], found["fortran_order"]
    if not isinstance(shape, tuple) or not all(type(n) is int and n >= 0 for n in shape):
        raise ValueError(f"{str(shape)[:50]} is not a shape")
    if not isinstance(fortran, bool):
        raise ValueError("fortran_order is neither True nor False")
    dtype = np.lib.format.descr_to_dtype(found["descr"])
    if dtype.hasobject:
        raise ValueError("it holds Python objects, which are not read")
    items = math.prod(shape)
    if items > MOST_ITEMS:  # an item may have no bytes, so that none are due
        raise ValueError(f"no array has {items} items")
    return shape, dtype, "F" if fortran else "C", items * dtype.itemsize
