"""`encoders` and `decoders`: the built-in types, by name.

An encoder turns a value into bytes, a decoder turns bytes into a value. Decoders marked with
`view_decoder` get a writable view of the record instead of a copy. All built-in decoders except
`bytes` have that mark. Failures are raised as `EncodeError` or `DecodeError`; the writer and the
reader add the field, the datapoint and the file. docs/datasets.md specifies the bytes of each type.

Records may be damaged or hostile. No decoder runs code from a record: nothing is unpickled. No
decoder allocates more memory than the record's length justifies, except for images and compressed
data, whose sizes have limits.
"""

from __future__ import annotations

import json
import numbers
import operator
import struct
from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar

import numpy as np

from ffrecord.dataset import optional
from ffrecord.dataset.arrays import decode_array, encode_array
from ffrecord.dataset.images import decode_jpg, decode_png, encode_jpg, encode_png
from ffrecord.dataset.optional import raising
from ffrecord.errors import DecodeError, EncodeError

Encoder: TypeAlias = Callable[[Any], Any]
Decoder: TypeAlias = Callable[[Any], Any]
AnyDecoder = TypeVar("AnyDecoder", bound=Decoder)

_FLOAT = struct.Struct("<d")

# msgpack extension types in a tree.
TREE_ARRAY = 1
TREE_INT = 2
TREE_SCALAR = 3


def view_decoder(decode: AnyDecoder) -> AnyDecoder:
    """Mark a decoder to receive a writable `memoryview` of the record.

    Decoders without the mark receive a copy, as `bytes`.
    """
    decode.takes_view = True  # type: ignore[attr-defined]
    return decode


def takes_view(decode: Decoder) -> bool:
    """Return True if `view_decoder` marked the decoder."""
    return bool(getattr(decode, "takes_view", False))


@raising(EncodeError)
def encode_bytes(value: Any) -> bytes:
    if isinstance(value, bytes):
        return value
    try:
        return memoryview(value).tobytes()
    except TypeError:
        raise TypeError(f"expected bytes or another buffer, got {type(value).__name__}") from None


@raising(EncodeError)
def encode_utf8(value: Any) -> bytes:
    if not isinstance(value, str):
        raise TypeError(f"expected a str, got {type(value).__name__}")
    return value.encode("utf-8")


@raising(DecodeError)
def decode_utf8(buffer: memoryview) -> str:
    return str(buffer, "utf-8")


@raising(EncodeError)
def encode_int(value: Any) -> bytes:
    """Return the number in two's complement, little endian, in the fewest bytes with a sign bit."""
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"expected an int, got {type(value).__name__}") from None
    return number.to_bytes(number.bit_length() // 8 + 1, "little", signed=True)


@raising(DecodeError)
def decode_int(buffer: memoryview) -> int:
    if not len(buffer):
        raise ValueError("a stored int must have at least one byte")
    return int.from_bytes(buffer, "little", signed=True)


@raising(EncodeError)
def encode_float(value: Any) -> bytes:
    if not isinstance(value, (numbers.Real, np.floating, np.integer)):
        raise TypeError(f"expected a real number, got {type(value).__name__}")
    number = float(value)
    if number != value and value == value:  # only NaN differs from itself
        raise ValueError(
            f"a 64-bit float cannot hold {value!r} exactly; pass float(value) to round"
        )
    return _FLOAT.pack(number)


@raising(DecodeError)
def decode_float(buffer: memoryview) -> float:
    (number,) = _FLOAT.unpack(buffer)
    return float(number)


@raising(EncodeError)
def encode_bool(value: Any) -> bytes:
    if not isinstance(value, (bool, np.bool_)):
        raise TypeError(f"expected True or False, got {type(value).__name__}")
    return b"\x01" if value else b"\x00"


@raising(DecodeError)
def decode_bool(buffer: memoryview) -> bool:
    start = bytes(buffer[:2])
    if start not in (b"\x00", b"\x01"):
        raise ValueError("a stored bool must be one byte, 0 or 1")
    return start == b"\x01"


@raising(EncodeError)
def encode_json(value: Any) -> bytes:
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8")
    except UnicodeEncodeError:  # a lone surrogate, which only a \u escape can express
        return json.dumps(value, separators=(",", ":")).encode("ascii")


@raising(DecodeError)
def decode_json(buffer: memoryview) -> Any:
    return json.loads(str(buffer, "utf-8"))


@raising(EncodeError)
def encode_msgpack(value: Any) -> bytes:
    packed: bytes = optional.load("msgpack").packb(value, use_bin_type=True)
    return packed


@raising(DecodeError)
def decode_msgpack(buffer: memoryview) -> Any:
    return _unpack(buffer)


@raising(EncodeError)
def encode_tree(value: Any) -> bytes:
    """Encode nested dicts and lists of arrays, numbers, text, bytes, booleans and None."""
    msgpack = optional.load("msgpack")

    def extended(item: Any) -> Any:
        # numpy scalars come first: msgpack would store a np.float64 as float and a np.str_ as str.
        if isinstance(item, dict):
            return {extended(key): extended(below) for key, below in item.items()}
        if isinstance(item, (list, tuple)):
            return [extended(below) for below in item]
        if isinstance(item, np.generic):
            return msgpack.ExtType(TREE_SCALAR, encode_array(item))
        if isinstance(item, np.ndarray):
            return msgpack.ExtType(TREE_ARRAY, encode_array(item))
        if isinstance(item, int) and not -(1 << 63) <= item < 1 << 64:
            return msgpack.ExtType(TREE_INT, encode_int(item))
        return item

    packed: bytes = msgpack.packb(extended(value), use_bin_type=True)
    return packed


@raising(DecodeError)
def decode_tree(buffer: memoryview) -> Any:
    def leaf(code: int, data: bytes) -> Any:
        if code == TREE_INT:
            return decode_int(memoryview(data))
        if code in (TREE_ARRAY, TREE_SCALAR):
            # Copy the data: msgpack's bytes are read-only, and arrays must be writable.
            array = decode_array(memoryview(bytearray(data)))
            return array if code == TREE_ARRAY else array[()]
        raise ValueError(f"the tree has a leaf of the unknown msgpack extension type {code}")

    return _unpack(buffer, ext_hook=leaf)


def _unpack(buffer: memoryview, **options: Any) -> Any:
    msgpack = optional.load("msgpack")
    # Skip through the record first, which allocates nothing. Nested lists may each claim as many
    # items as the record has bytes, and unpackb would allocate them all before it finds the end.
    counter = msgpack.Unpacker(max_buffer_size=max(1, len(buffer)))
    counter.feed(buffer)
    counter.skip()
    return msgpack.unpackb(buffer, raw=False, strict_map_key=False, **options)


encoders: dict[str, Encoder] = {
    "bytes": encode_bytes,
    "utf8": encode_utf8,
    "int": encode_int,
    "float": encode_float,
    "bool": encode_bool,
    "msgpack": encode_msgpack,
    "json": encode_json,
    "array": encode_array,
    "tree": encode_tree,
    "jpg": encode_jpg,
    "png": encode_png,
}

decoders: dict[str, Decoder] = {
    "bytes": bytes,
    "utf8": view_decoder(decode_utf8),
    "int": view_decoder(decode_int),
    "float": view_decoder(decode_float),
    "bool": view_decoder(decode_bool),
    "msgpack": view_decoder(decode_msgpack),
    "json": view_decoder(decode_json),
    "array": view_decoder(decode_array),
    "tree": view_decoder(decode_tree),
    "jpg": view_decoder(decode_jpg),
    "png": view_decoder(decode_png),
}
