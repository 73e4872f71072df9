"""Compressed values: `TYPE+zstd`, `TYPE+gzip`, `TYPE+lz4`, with a level and options after colons.

A record then holds one frame of that format, whole, with its size in it. What a frame claims is
compared with a limit before memory is taken for it, and what it unpacks to with the claim. Values
beyond the limit are refused when they are written, so that nothing is stored that is not read.

A `Compression` is a description. `compressor` and `decompressor` make functions of it, which may
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
LEVELS = {"zstd": (-100, 22, 3), "gzip": (0, 9, 6), "lz4": (0, 16, 0)}  # least, most, default
DICTIONARY_BYTES = 64 << 10
_GZIP_FORMAT = 16 + zlib.MAX_WBITS
_FEWEST_SAMPLES = 8


@dataclass(frozen=True, slots=True)
class Compression:
    """How values are compressed: `zstd`, `gzip` or `lz4`, the level, and whether a dictionary is
    made of the first values."""

    name: str
    level: int
    dictionary: bool = False


def parse_compression(text: str) -> Compression:
    """`zstd`, `gzip:9`, `zstd:19:dict` …"""
    match = re.fullmatch(r"([a-z0-9]+)(?::(-?[0-9]{1,4}))?(:dict)?", text)
    if match is None or match[1] not in LEVELS:
        raise SpecError(
            f"{text!r} is no compression: it is one of {', '.join(LEVELS)}, and after it, if "
            "wanted, :LEVEL and for zstd :dict"
        )
    least, most, usual = LEVELS[match[1]]
    level = usual if match[2] is None else int(match[2])
    if not least <= level <= most:
        raise SpecError(f"{text!r}: the level is between {least} and {most}")
    if match[3] and match[1] != "zstd":
        raise SpecError(f"{text!r}: only zstd has dictionaries")
    return Compression(match[1], level, bool(match[3]))


def train(samples: Sequence[bytes]) -> bytes:
    """A zstd dictionary of these values; empty if there is too little to learn from."""
    zstandard = optional.load("zstandard")
    total = sum(map(len, samples))
    if len(samples) < _FEWEST_SAMPLES:
        return b""
    # The trainer wants a multiple of the dictionary's size to learn from.
    size = min(DICTIONARY_BYTES, total // 8)
    try:
        trained: bytes = zstandard.train_dictionary(size, list(samples)).as_bytes()
    except zstandard.ZstdError:  # too few, too small, or nothing in common
        return b""
    return trained


@raising(EncodeError)
def refuse_large(value: bytes) -> None:
    if len(value) > LARGEST_VALUE:
        most = f"the most that a compressed value may have is {LARGEST_VALUE}"
        raise ValueError(f"it has {len(value)} bytes; {most}")


def compressor(how: Compression, dictionary: bytes = b"") -> Compress:
    """A function from a value's bytes to a record's."""
    pack = _PACKERS[how.name](how.level, dictionary)

    @raising(EncodeError)
    def compress(value: bytes) -> bytes:
        refuse_large(value)
        return pack(value)

    return compress


def decompressor(how: Compression, dictionary: bytes = b"") -> Decompress:
    """A function from a record's bytes to a value's: writable, as what comes out of a file is."""
    unpack, claim = _UNPACKERS[how.name](dictionary)

    @raising(DecodeError)
    def decompress(record: memoryview) -> bytearray:
        size = claim(record)
        if size > LARGEST_VALUE:
            raise ValueError(f"it claims to unpack to {size} bytes; the most is {LARGEST_VALUE}")
        value = unpack(record, size)
        if len(value) != size:
            raise ValueError(f"it unpacks to {len(value)} bytes where it claims {size}")
        return value

    return decompress


class _PerThread(threading.local):
    """An object that each thread makes its own of: zstd's contexts are not safe to share."""

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
            raise ValueError("its frame does not say how much it unpacks to")
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
            raise ValueError("it is not one whole gzip member of the size that it claims")
        return value

    # The last four bytes are the size, modulo 4 GiB, which is more than the limit.
    return unpack, lambda record: int.from_bytes(record[-4:], "little")


def _lz4_packer(level: int, dictionary: bytes) -> Compress:
    frame = optional.load("lz4.frame")
    # No checksum of its own: the record has one, and this took half of the time to unpack.
    return lambda value: bytes(frame.compress(value, level))


def _lz4_unpacker(dictionary: bytes) -> Unpacker:
    frame = optional.load("lz4.frame")
    contexts = _PerThread(frame.create_decompression_context)

    def unpack(record: memoryview, size: int) -> bytearray:
        frame.reset_decompression_context(contexts.own)  # whatever the last one came to
        value: bytearray
        value, used, ended = frame.decompress_chunk(
            contexts.own, record, max_length=size + 1, return_bytearray=True
        )
        if not ended or used != len(record):
            raise ValueError("it is not one whole lz4 frame of the size that it claims")
        return value

    return unpack, lambda record: int(frame.get_frame_info(record)["content_size"])


Unpacker: TypeAlias = tuple[Callable[[memoryview, int], bytearray], Callable[[memoryview], int]]

_PACKERS: dict[str, Callable[[int, bytes], Compress]] = {
    "zstd": _zstd_packer, "gzip": _gzip_packer, "lz4": _lz4_packer,
}  # fmt: skip
_UNPACKERS: dict[str, Callable[[bytes], Unpacker]] = {
    "zstd": _zstd_unpacker, "gzip": _gzip_unpacker, "lz4": _lz4_unpacker,
}  # fmt: skip
