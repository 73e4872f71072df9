"""TFRecord: lengths and data, each with a masked CRC-32C. docs/converting.md has the bytes."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager

from ffrecord.convert.files import SourceFile, open_new
from ffrecord.convert.shapes import Buffer, ConvertOptions, Records, Written
from ffrecord.dataset import optional

LENGTH = struct.Struct("<Q")
CRC = struct.Struct("<I")
HEADER = LENGTH.size + CRC.size


def masked_crc(data: Buffer) -> int:
    """Return the CRC-32C, rotated by 15 bits, plus a constant."""
    crc: int = optional.load("crc32c").crc32c(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def begins(start: bytes) -> bool:
    """Return True if a file begins like a TFRecord: the first length matches its checksum."""
    return len(start) >= HEADER and masked_crc(start[:8]) == CRC.unpack_from(start, 8)[0]


@contextmanager
def read(path: str, options: ConvertOptions) -> Iterator[Records]:
    with SourceFile(path) as source:
        yield Records(_records(source))


def count(path: str) -> int:
    """Return the number of records, from their lengths."""
    with SourceFile(path) as source:
        number = 0
        while source.left:
            length = _length(source, number)
            source.seek(source.offset + length + CRC.size)
            number += 1
        return number


def write(path: str, records: Records, options: ConvertOptions) -> Written:
    number = 0
    with open_new(path) as file:
        for record in records.items:
            length = LENGTH.pack(memoryview(record).nbytes)
            file.write(length + CRC.pack(masked_crc(length)))
            file.write(record)
            file.write(CRC.pack(masked_crc(record)))
            number += 1
    return Written(number)


def _records(source: SourceFile) -> Iterator[bytes]:
    number = 0
    while source.left:
        begin = source.offset
        data = source.read(_length(source, number), number, "its data")
        (stored,) = CRC.unpack(source.read(CRC.size, number, "its checksum"))
        if masked_crc(data) != stored:
            raise source.damaged(
                f"its data is damaged: the checksum is {masked_crc(data):#010x}, the file says "
                f"{stored:#010x}",
                number, begin,
            )  # fmt: skip
        yield data
        number += 1


def _length(source: SourceFile, number: int) -> int:
    begin = source.offset
    header = source.read(HEADER, number, "its length")
    (length,), (stored,) = LENGTH.unpack(header[:8]), CRC.unpack(header[8:])
    if masked_crc(header[:8]) != stored:
        raise source.damaged("its length does not match the checksum", number, begin)
    source.require(length + CRC.size, number, "its data with the checksum")
    return int(length)
