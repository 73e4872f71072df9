"""Snappy: single blocks and the framing format. The sizes that they claim are not trusted.

A block begins with its unpacked length. The framing format is a sequence of chunks of at most
64 KiB each, with a masked CRC-32C. The package cramjam compresses and decompresses.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ffrecord.convert.formats.tfrecord import masked_crc
from ffrecord.convert.shapes import Buffer
from ffrecord.dataset import optional

MOST_RATIO = 32
"""Limit of the compression ratio. The best possible ratio is below 22: 3 bytes that copy 64."""
CHUNK = 1 << 16
STREAM_BEGIN = b"\xff\x06\x00\x00sNaPpY"
_COMPRESSED, _PLAIN = 0x00, 0x01
_FIRST_SKIPPABLE = 0x80


def _snappy() -> Any:
    return optional.load("cramjam").snappy


def pack_block(data: Buffer) -> bytes:
    return bytes(_snappy().compress_raw(data))


def unpack_block(data: Buffer) -> bytes:
    """Unpack a block; raise ValueError if it is invalid."""
    cramjam = optional.load("cramjam")
    try:
        length = cramjam.snappy.decompress_raw_len(data)
        if length > MOST_RATIO * len(data):
            raise ValueError(f"a block of {len(data)} bytes claims to unpack to {length} bytes")
        unpacked = bytes(cramjam.snappy.decompress_raw(data))
    except cramjam.DecompressionError as error:
        raise ValueError(f"not a snappy block: {error}") from None
    if len(unpacked) != length:
        raise ValueError(f"the snappy block unpacks to {len(unpacked)} bytes, but claims {length}")
    return unpacked


def pack_frames(data: bytes) -> bytes:
    """Return a whole stream in the framing format."""
    parts = [STREAM_BEGIN]
    for at in range(0, len(data), CHUNK):
        plain = data[at : at + CHUNK]
        packed = pack_block(plain)
        kind, content = (_COMPRESSED, packed) if len(packed) < len(plain) else (_PLAIN, plain)
        parts += [
            bytes([kind]), (len(content) + 4).to_bytes(3, "little"),
            masked_crc(plain).to_bytes(4, "little"), content,
        ]  # fmt: skip
    return b"".join(parts)


def unpack_frames(data: bytes) -> Iterator[bytes]:
    """Yield the pieces of a stream in the framing format; raise ValueError if it is invalid."""
    if data and data[: len(STREAM_BEGIN)] != STREAM_BEGIN:
        raise ValueError("its data does not begin like a snappy stream")
    at = 0
    while at < len(data):
        kind = data[at]
        length = int.from_bytes(data[at + 1 : at + 4], "little")
        begin, at = at + 4, at + 4 + length
        if at > len(data):
            raise ValueError(f"its snappy stream ends {at - len(data)} bytes too early")
        if kind in (_COMPRESSED, _PLAIN):
            yield _chunk(kind, data[begin:at])
        elif kind < _FIRST_SKIPPABLE:
            raise ValueError(f"its snappy stream has a chunk of the unknown type {kind:#x}")


def _chunk(kind: int, content: bytes) -> bytes:
    if len(content) < 4:
        raise ValueError("its snappy stream has a chunk without a checksum")
    stored, packed = int.from_bytes(content[:4], "little"), content[4:]
    plain = unpack_block(packed) if kind == _COMPRESSED else packed
    if len(plain) > CHUNK:
        raise ValueError(
            f"its snappy stream has a chunk of {len(plain)} bytes; the limit is {CHUNK}"
        )
    if masked_crc(plain) != stored:
        raise ValueError("a chunk of its snappy stream does not match its checksum")
    return plain
