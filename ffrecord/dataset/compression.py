"""Compressed values: `TYPE+zstd`, `TYPE+gzip`, `TYPE+lz4`, with a level and options after colons.

A record then holds one whole frame of that format, which states the size of the value. A
decompressor checks that size against a limit before it allocates memory, and against the value
afterwards. Larger values are refused when they are written, so every stored value can be read.

A `Compression` is a description. `compressor` and `decompressor` turn it into functions, which may
be called from any thread.
"""

from __future__ import annotations

import re
import threading
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from isal import isal_zlib

from ffrecord.dataset import optional
from ffrecord.dataset.optional import raising
from ffrecord.errors import DecodeError, EncodeError, SpecError

Compress: TypeAlias = Callable[[bytes], bytes]
Decompress: TypeAlias = Callable[[memoryview], bytearray]

LARGEST_VALUE = 1 << 30
"""Limit for the bytes of a value, because a frame of a few bytes can claim any size."""

LEVELS = {"zstd": (-100, 22, 3), "gzip": (0, 9, 6), "lz4": (0, 16, 0)}  # least, most, default
DICTIONARY_BYTES = 64 << 10
_GZIP_FORMAT = 16 + zlib.MAX_WBITS
_FEWEST_SAMPLES = 8


@dataclass(frozen=True, slots=True)
class Compression:
    """A compression of values: `zstd`, `gzip` or `lz4`, and its level.

    With `dictionary`, the first values of the field train a dictionary.
    """

    name: str
    level: int
    dictionary: bool = False


def parse_compression(text: str) -> Compression:
    """Parse the part of a type after the plus: `zstd`, `gzip:9`, `zstd:19:dict` …"""
    match = re.fullmatch(r"([a-z0-9]+)(?::(-?[0-9]{1,4}))?(:dict)?", text)
    if match is None or match[1] not in LEVELS:
        raise SpecError(
            f"unknown compression {text!r}; write one of {', '.join(LEVELS)}, then optionally "
            ":LEVEL, and :dict for zstd"
        )
    least, most, usual = LEVELS[match[1]]
    level = usual if match[2] is None else int(match[2])
    if not least <= level <= most:
        raise SpecError(
            f"compression {text!r}: the level must be between {least} and {most}, not {level}"
        )
    if match[3] and match[1] != "zstd":
        raise SpecError(f"compression {text!r}: only zstd has dictionaries; leave :dict out")
    return Compression(match[1], level, bool(match[3]))


def train(samples: Sequence[bytes]) -> bytes:
    """Return a zstd dictionary trained on these values, or b"" if they are too few or too small."""
    zstandard = optional.load("zstandard")
    total = sum(map(len, samples))
    if len(samples) < _FEWEST_SAMPLES:
        return b""
    # The trainer needs samples several times as large as the dictionary.
    size = min(DICTIONARY_BYTES, total // 8)
    try:
        trained: bytes = zstandard.train_dictionary(size, list(samples)).as_bytes()
    except zstandard.ZstdError:  # too few, too small, or nothing in common
        return b""
    return trained


@raising(EncodeError)
def refuse_large(value: bytes) -> None:
    if len(value) > LARGEST_VALUE:
        raise ValueError(
            f"the value has {len(value)} bytes; a compressed value may have at most {LARGEST_VALUE}"
        )


def compressor(how: Compression, dictionary: bytes = b"") -> Compress:
    """Return a function that turns a value's bytes into a record's bytes."""
    pack = _PACKERS[how.name](how.level, dictionary)

    @raising(EncodeError)
    def compress(value: bytes) -> bytes:
        refuse_large(value)
        return pack(value)

    return compress


def decompressor(how: Compression, dictionary: bytes = b"") -> Decompress:
    """Return a function that turns a record's bytes into the writable bytes of a value."""
    unpack, claim = _UNPACKERS[how.name](dictionary)

    @raising(DecodeError)
    def decompress(record: memoryview) -> bytearray:
        size = _limited(claim(record))
        value = unpack(record, size)
        if len(value) != size:
            raise ValueError(f"it unpacks to {len(value)} bytes, but claims {size}")
        return value

    return decompress


def stated_size(how: Compression) -> Callable[[memoryview], int]:
    """Return a function that tells the size of a value from its record, before it is unpacked."""
    _, claim = _UNPACKERS[how.name](b"")

    @raising(DecodeError)
    def size_of(record: memoryview) -> int:
        return _limited(claim(record))

    return size_of


def _limited(size: int) -> int:
    if size > LARGEST_VALUE:
        raise ValueError(f"it claims to unpack to {size} bytes; the limit is {LARGEST_VALUE}")
    return size


class _PerThread(threading.local):
    """One object per thread: zstd and lz4 contexts must not be shared between threads."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self.own = make()


def _zstd_packer(level: int, dictionary: bytes) -> Compress:
    zstandard = optional.load("zstandard")
    trained = zstandard.ZstdCompressionDict(dictionary) if dictionary else None
    contexts = _PerThread(lambda: zstandard.ZstdCompressor(level=level, dict_data=trained))
    return lambda value: bytes(contexts.own.compress(value))


def _zstd_unpacker(dictionary: bytes) -> Unpacker:
    zstandard = optional.load("zstandard")
    trained = zstandard.ZstdCompressionDict(dictionary) if dictionary else None
    contexts = _PerThread(lambda: zstandard.ZstdDecompressor(dict_data=trained))

    def claim(record: memoryview) -> int:
        size: int = zstandard.get_frame_parameters(record).content_size
        if size == zstandard.CONTENTSIZE_UNKNOWN:
            raise ValueError("its zstd frame does not state the unpacked size")
        return size

    def unpack(record: memoryview, size: int) -> bytearray:
        return bytearray(contexts.own.decompress(record, size, allow_extra_data=False))

    return unpack, claim


def _gzip_packer(level: int, dictionary: bytes) -> Compress:
    def pack(value: bytes) -> bytes:
        stream = zlib.compressobj(level, zlib.DEFLATED, _GZIP_FORMAT)
        return stream.compress(value) + stream.flush()

    return pack


def _gzip_unpacker(dictionary: bytes) -> Unpacker:
    def unpack(record: memoryview, size: int) -> bytearray:
        stream = isal_zlib.decompressobj(_GZIP_FORMAT)
        value = bytearray(stream.decompress(record, size + 1))
        if not stream.eof or stream.unused_data:
            raise ValueError("it is not one whole gzip member of the size that it states")
        return value

    # The last four bytes are the size modulo 4 GiB. The limit is lower, so this is unambiguous.
    return unpack, lambda record: int.from_bytes(record[-4:], "little")


def _lz4_packer(level: int, dictionary: bytes) -> Compress:
    frame = optional.load("lz4.frame")
    # No checksum in the frame: the record has one, and the frame's took half of the unpacking time.
    return lambda value: bytes(frame.compress(value, level))


def _lz4_unpacker(dictionary: bytes) -> Unpacker:
    frame = optional.load("lz4.frame")
    contexts = _PerThread(frame.create_decompression_context)

    def unpack(record: memoryview, size: int) -> bytearray:
        frame.reset_decompression_context(contexts.own)  # the previous frame may have failed
        value: bytearray
        value, used, ended = frame.decompress_chunk(
            contexts.own, record, max_length=size + 1, return_bytearray=True
        )
        if not ended or used != len(record):
            raise ValueError("it is not one whole lz4 frame of the size that it states")
        return value

    return unpack, lambda record: int(frame.get_frame_info(record)["content_size"])


Unpacker: TypeAlias = tuple[Callable[[memoryview, int], bytearray], Callable[[memoryview], int]]

_PACKERS: dict[str, Callable[[int, bytes], Compress]] = {
    "zstd": _zstd_packer, "gzip": _gzip_packer, "lz4": _lz4_packer,
}  # fmt: skip
_UNPACKERS: dict[str, Callable[[bytes], Unpacker]] = {
    "zstd": _zstd_unpacker, "gzip": _gzip_unpacker, "lz4": _lz4_unpacker,
}  # fmt: skip
