"""Files of other formats, written and read byte by byte from their definitions.

Nothing here may use ffrecord, or the packages that ffrecord uses for these formats: tests compare
both results.
"""

from __future__ import annotations

import gzip
import json
import struct
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

MAGIC = 0x01020304
CODECS = ("none", "snappy", "gzip")


def _table() -> list[int]:
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
        table.append(byte)
    return table


_TABLE = _table()


def crc32c(data: bytes) -> int:
    """Return the CRC-32C, with the polynomial of RFC 3720, computed one byte at a time."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ _TABLE[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


def masked(data: bytes) -> int:
    crc = crc32c(data)
    return ((crc >> 15) | (crc << 17 & 0xFFFFFFFF)) + 0xA282EAD8 & 0xFFFFFFFF


# ---- TFRecord ------------------------------------------------------------------------------


def tfrecord(records: Sequence[bytes]) -> bytes:
    return b"".join(
        tf_header(len(each)) + each + struct.pack("<I", masked(each)) for each in records
    )


def tf_header(length: int) -> bytes:
    packed = struct.pack("<Q", length)
    return packed + struct.pack("<I", masked(packed))


# ---- snappy --------------------------------------------------------------------------------


def varint(number: int) -> bytes:
    out = b""
    while number >= 128:
        out += bytes([number & 127 | 128])
        number >>= 7
    return out + bytes([number])


def snappy_block(data: bytes) -> bytes:
    """Return a snappy block of literals only, of at most 60 bytes each, without length bytes."""
    out = varint(len(data))
    for at in range(0, len(data), 60):
        part = data[at : at + 60]
        out += bytes([(len(part) - 1) << 2]) + part
    return out


def unsnap_block(data: bytes) -> bytes:
    """Unpack a snappy block: a varint, then literals and copies."""
    due = at = shift = 0
    while True:
        due |= (data[at] & 127) << shift
        at, shift = at + 1, shift + 7
        if data[at - 1] < 128:
            break
    out = bytearray()
    while at < len(data):
        tag, at = data[at], at + 1
        kind, upper = tag & 3, tag >> 2
        if kind == 0:
            length = upper + 1
            if upper >= 60:
                width = upper - 59
                length = int.from_bytes(data[at : at + width], "little") + 1
                at += width
            out += data[at : at + length]
            at += length
            continue
        if kind == 1:
            length, offset = (upper & 7) + 4, upper >> 3 << 8 | data[at]
            at += 1
        else:
            width = 2 if kind == 2 else 4
            length, offset = upper + 1, int.from_bytes(data[at : at + width], "little")
            at += width
        for _ in range(length):
            out.append(out[-offset])
    assert len(out) == due
    return bytes(out)


def snappy_frames(data: bytes, *, compressed: bool = True) -> bytes:
    out = b"\xff\x06\x00\x00sNaPpY"
    for at in range(0, len(data), 65536):
        plain = data[at : at + 65536]
        body = snappy_block(plain) if compressed else plain
        out += bytes([not compressed]) + (len(body) + 4).to_bytes(3, "little")
        out += struct.pack("<I", masked(plain)) + body
    return out


def unsnap_frames(data: bytes) -> bytes:
    assert data[:10] == b"\xff\x06\x00\x00sNaPpY"
    out, at = b"", 10
    while at < len(data):
        kind, length = data[at], int.from_bytes(data[at + 1 : at + 4], "little")
        crc = struct.unpack("<I", data[at + 4 : at + 8])[0]
        body = data[at + 8 : at + 4 + length]
        plain = unsnap_block(body) if kind == 0 else body
        assert kind in (0, 1)
        assert masked(plain) == crc
        out, at = out + plain, at + 4 + length
    return out


# ---- RecordIO ------------------------------------------------------------------------------


def lengths_and_records(records: Sequence[bytes]) -> bytes:
    return b"".join(struct.pack("<I", len(each)) + each for each in records)


def python_chunk(records: Sequence[bytes], codec: str = "none", count: int | None = None) -> bytes:
    """Return a chunk: magic, number of records, CRC-32C, codec from 1 on, size; snappy blocks."""
    pack: dict[str, Callable[[bytes], bytes]] = {
        "none": bytes, "snappy": snappy_block, "gzip": gzip.compress
    }  # fmt: skip
    data = pack[codec](lengths_and_records(records))
    count = len(records) if count is None else count
    number = 1 + CODECS.index(codec)
    return struct.pack("<5I", MAGIC, count, crc32c(data), number, len(data)) + data


def go_chunk(records: Sequence[bytes], codec: str = "none", count: int | None = None) -> bytes:
    """Return a chunk: magic, CRC-32, codec from 0 on, size, number of records; snappy frames."""
    pack: dict[str, Callable[[bytes], bytes]] = {
        "none": bytes, "snappy": snappy_frames, "gzip": gzip.compress
    }  # fmt: skip
    data = pack[codec](lengths_and_records(records))
    count = len(records) if count is None else count
    number = CODECS.index(codec)
    return struct.pack("<5I", MAGIC, zlib.crc32(data), number, len(data), count) + data


def read_recordio(data: bytes, dialect: str) -> list[bytes]:
    """Return all records of a file, and check everything in it."""
    found, at = [], 0
    while at < len(data):
        magic, *fields = struct.unpack_from("<5I", data, at)
        assert magic == MAGIC
        if dialect == "python":
            count, crc, codec, length = fields
            codec -= 1
        else:
            crc, codec, length, count = fields
        body = data[at + 20 : at + 20 + length]
        assert crc == (crc32c(body) if dialect == "python" else zlib.crc32(body))
        if CODECS[codec] == "gzip":
            body = gzip.decompress(body)
        elif CODECS[codec] == "snappy":
            body = unsnap_block(body) if dialect == "python" else unsnap_frames(body)
        inside = 0
        for _ in range(count):
            (size,) = struct.unpack_from("<I", body, inside)
            found.append(body[inside + 4 : inside + 4 + size])
            inside += 4 + size
        assert inside == len(body)
        at += 20 + length
    return found


# ---- bags ----------------------------------------------------------------------------------


def limits(records: Sequence[bytes]) -> bytes:
    ends = [sum(map(len, records[: k + 1])) for k in range(len(records))]
    return struct.pack(f"<{len(ends)}Q", *ends)


def single_bag(records: Sequence[bytes], version: int) -> bytes:
    return b"".join(records) + (bytes(8) if version == 1 else b"") + limits(records)


def read_single_bag(data: bytes) -> list[bytes]:
    """Return the records of a bag of either version. The last limit is the index's offset."""
    (start,) = struct.unpack("<Q", data[-8:]) if data else (0,)
    ends = list(struct.unpack(f"<{(len(data) - start) // 8}Q", data[start:]))
    if ends[:1] == [0]:
        del ends[0]
    return [data[begin:end] for begin, end in zip([0, *ends], ends, strict=False)]


Encoded = dict[str, "bytes | list[bytes]"]
"""A row, with its values as they are stored."""

Ref = int | tuple[int, int] | None
"""Number of a record, or first record and count of a sequence; None for an empty sequence."""


def refs_record(refs: Sequence[Ref]) -> bytes:
    """Return a record of `refs.bag` (granular before 0.22): MessagePack of at most 15 fields."""
    out = bytes([0x90 | len(refs)])
    for ref in refs:
        if ref is None:
            out += b"\x90"
        elif isinstance(ref, tuple):
            out += b"\x92" + _msgpack_int(ref[0]) + _msgpack_int(ref[1])
        else:
            out += _msgpack_int(ref)
    return out


def _msgpack_int(number: int) -> bytes:
    return bytes([number]) if number < 128 else b"\xcd" + struct.pack(">H", number)


def read_refs_record(data: bytes) -> list[Ref]:
    found, end = _msgpack_item(data, 0)
    assert end == len(data)
    return [(tuple(each) or None) if isinstance(each, list) else each for each in found]


def _msgpack_item(data: bytes, at: int) -> tuple[Any, int]:
    """Return a list or a number of at most 64 bits, and the offset of the next item."""
    head = data[at]
    if head & 0xF0 == 0x90:
        items, at = [], at + 1
        for _ in range(head & 15):
            item, at = _msgpack_item(data, at)
            items.append(item)
        return items, at
    if head < 128:
        return head, at + 1
    size = {0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8}[head]
    return int.from_bytes(data[at + 1 : at + 1 + size], "big"), at + 1 + size


def granular_with_refs(
    spec: Mapping[str, str], rows: Sequence[Encoded], version: int = 2
) -> dict[str, bytes]:
    """Return the files of a dataset of granular before 0.22, by name. Values are encoded."""
    records: dict[str, list[bytes]] = {name: [] for name in spec}
    refs = []
    for row in rows:
        ref: list[Ref] = []
        for name, values in records.items():
            value = row[name]
            if isinstance(value, bytes):
                ref.append(len(values))
                values.append(value)
            else:
                ref.append((len(values), len(value)) if value else None)
                values += value
        refs.append(refs_record(ref))
    bags = {f"{name}.bag": values for name, values in {**records, "refs": refs}.items()}
    files = {name: single_bag(values, version) for name, values in bags.items()}
    return {**files, "spec.json": json.dumps(dict(spec)).encode()}


def read_granular_with_refs(files: Mapping[str, bytes]) -> list[Encoded]:
    """Return the rows, with encoded values."""
    spec = json.loads(files["spec.json"])
    bags = {name: read_single_bag(files[f"{name}.bag"]) for name in spec}
    rows = []
    for record in read_single_bag(files["refs.bag"]):
        row: Encoded = {}
        for (name, type_), ref in zip(spec.items(), read_refs_record(record), strict=True):
            if type_.endswith("[]"):
                assert not isinstance(ref, int)
                begin, count = ref or (0, 0)
                row[name] = bags[name][begin : begin + count]
            else:
                assert isinstance(ref, int)
                row[name] = bags[name][ref]
        rows.append(row)
    return rows
