"""RecordIO in its two dialects: chunks of records, each with a checksum, compressed or not.

Chunks of both dialects begin with the same magic number. Everything else differs: the order of the
header's fields, the polynomial of the checksum, the numbers of the codecs, and the variant of
snappy. docs/converting.md specifies the bytes. The first chunk reveals the dialect: its checksum
matches only in the right one.
"""

from __future__ import annotations

import gzip
import io
import struct
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from ffrecord.convert.files import STEP, PieceReader, SourceFile, open_new
from ffrecord.convert.formats import snappy
from ffrecord.convert.shapes import LARGEST_RECORD, Buffer, ConvertOptions, Records, Written
from ffrecord.dataset import optional
from ffrecord.errors import ConversionError
from ffrecord.format.checksum import crc32

MAGIC = 0x01020304
HEADER = struct.Struct("<5I")
LENGTH = struct.Struct("<I")
CHUNK_BYTES = 1 << 20
"""Bytes of records per chunk. Readers hold one chunk in memory."""
CODECS = ("none", "snappy", "gzip")


@dataclass(frozen=True, slots=True)
class Chunk:
    """The header of a chunk."""

    crc: int
    codec: int  # the codec's number in the dialect
    length: int  # bytes of the chunk's data, compressed
    records: int


@dataclass(frozen=True, slots=True)
class Dialect:
    """The layout and the algorithms of one dialect."""

    name: str
    fields: tuple[str, ...]  # the order of the header's fields after the magic number
    first_codec: int  # the number of "none"; "snappy" and "gzip" follow
    checksum: Callable[[Buffer, int], int]  # continues a checksum over some bytes
    pack_snappy: Callable[[bytes], bytes]
    unpack_snappy: Callable[[bytes], Iterator[bytes]]

    def parse(self, header: bytes) -> Chunk:
        return Chunk(**dict(zip(self.fields, HEADER.unpack(header)[1:], strict=True)))

    def header(self, chunk: Chunk) -> bytes:
        return HEADER.pack(MAGIC, *(getattr(chunk, name) for name in self.fields))

    def codec_name(self, chunk: Chunk) -> str | None:
        number = chunk.codec - self.first_codec
        return CODECS[number] if 0 <= number < len(CODECS) else None


def _crc32c(data: Buffer, crc: int = 0) -> int:
    value: int = optional.load("crc32c").crc32c(data, crc)
    return value


def _unpack_one_block(data: bytes) -> Iterator[bytes]:
    yield snappy.unpack_block(data)


PYTHON = Dialect(
    "recordio", ("records", "crc", "codec", "length"), 1,
    _crc32c, snappy.pack_block, _unpack_one_block,
)  # fmt: skip
GO = Dialect(
    "recordio-go", ("crc", "codec", "length", "records"), 0,
    crc32, snappy.pack_frames, snappy.unpack_frames,
)  # fmt: skip


def begins(start: bytes) -> bool:
    return start[:4] == LENGTH.pack(MAGIC)


@contextmanager
def read(path: str, options: ConvertOptions) -> Iterator[Records]:
    with SourceFile(path) as source:
        yield Records(_records(source))


def count(path: str) -> int:
    """Return the number of records, from the headers of the chunks."""
    with SourceFile(path) as source:
        total = 0
        dialect = find_dialect(source)
        while source.left:
            chunk = _header(source, dialect, total)
            source.seek(source.offset + chunk.length)
            total += chunk.records
        return total


def write(
    path: str, records: Records, options: ConvertOptions, *, dialect: Dialect = PYTHON
) -> Written:
    """Write chunks of at most `CHUNK_BYTES`, or of one larger record."""
    codec = options.codec or "snappy"
    if codec not in CODECS:
        raise ConversionError(f"RecordIO has no codec {codec!r}; choose one of {', '.join(CODECS)}")
    number, size = 0, 0
    waiting: list[bytes] = []
    with open_new(path) as file:
        for number, record in enumerate(records.items, 1):
            length = memoryview(record).nbytes
            if length > LARGEST_RECORD - (1 << 20):
                raise ConversionError(
                    f"record {number - 1} has {length} bytes; a RecordIO chunk holds at most "
                    f"{LARGEST_RECORD - (1 << 20)}"
                )
            if waiting and size + length > CHUNK_BYTES:
                file.write(_chunk(dialect, codec, waiting))
                waiting, size = [], 0
            waiting.append(bytes(record))
            size += length
        if waiting:
            file.write(_chunk(dialect, codec, waiting))
    return Written(number)


def _chunk(dialect: Dialect, codec: str, records: list[bytes]) -> bytes:
    data = b"".join(part for each in records for part in (LENGTH.pack(len(each)), each))
    if codec == "gzip":
        data = gzip.compress(data, 6, mtime=0)
    elif codec == "snappy":
        data = dialect.pack_snappy(data)
    number = dialect.first_codec + CODECS.index(codec)
    chunk = Chunk(dialect.checksum(data, 0), number, len(data), len(records))
    return dialect.header(chunk) + data


# ---- reading -------------------------------------------------------------------------------


def find_dialect(source: SourceFile) -> Dialect:
    """Return the dialect in which the first chunk's checksum matches."""
    if not source.left:
        return PYTHON
    header = _raw_header(source, 0)
    possible = [
        each
        for each in (PYTHON, GO)
        if each.codec_name(each.parse(header)) and each.parse(header).length <= source.left
    ]
    for dialect in possible:
        chunk = dialect.parse(header)
        if _checksum(source, dialect, chunk) == chunk.crc:
            source.seek(0)
            return dialect
    short = not possible and any(each.codec_name(each.parse(header)) for each in (PYTHON, GO))
    what = "is cut off" if short else "does not match its checksum in either dialect"
    raise source.damaged(f"the first chunk of this RecordIO file {what}", 0, 0)


def _checksum(source: SourceFile, dialect: Dialect, chunk: Chunk) -> int:
    """Return the first chunk's checksum.

    Reads in parts, because in the wrong dialect the length may be any number.
    """
    source.seek(HEADER.size)
    crc, left = 0, chunk.length
    while left:
        part = source.read(min(left, STEP), 0)
        crc, left = dialect.checksum(part, crc), left - len(part)
    return crc


def _records(source: SourceFile) -> Iterator[bytes]:
    dialect = find_dialect(source)
    number = 0
    while source.left:
        begin = source.offset
        chunk = _header(source, dialect, number)
        data = source.read(chunk.length, number, "its chunk")
        computed = dialect.checksum(data, 0)
        if computed != chunk.crc:
            raise source.damaged(
                f"its chunk is damaged: the checksum is {computed:#010x}, the file says "
                f"{chunk.crc:#010x}",
                number, begin,
            )  # fmt: skip
        try:
            for record in _split(_unpacked(dialect, chunk, data), chunk.records):
                yield record
                number += 1
        except _BAD_DATA as error:
            raise source.damaged(
                f"its chunk is not valid {dialect.name}: {error}", number, begin
            ) from None


# Exceptions of unpacking if the data is invalid.
_BAD_DATA = (ValueError, EOFError, zlib.error, gzip.BadGzipFile)


def _raw_header(source: SourceFile, number: int) -> bytes:
    begin = source.offset
    header = source.read(HEADER.size, number, "the header of its chunk")
    if not begins(header):
        raise source.damaged("a RecordIO chunk should begin here, but does not", number, begin)
    return header


def _header(source: SourceFile, dialect: Dialect, number: int) -> Chunk:
    begin = source.offset
    chunk = dialect.parse(_raw_header(source, number))
    if dialect.codec_name(chunk) is None:
        raise source.damaged(f"its chunk has the unknown codec {chunk.codec}", number, begin)
    source.require(chunk.length, number, "its chunk")
    return chunk


def _unpacked(dialect: Dialect, chunk: Chunk, data: bytes) -> PieceReader:
    """Return a chunk's data, which is unpacked while it is read."""
    codec = dialect.codec_name(chunk)
    if codec == "snappy":
        return PieceReader(dialect.unpack_snappy(data))
    if codec == "gzip":
        stream = gzip.GzipFile(fileobj=io.BytesIO(data))
        return PieceReader(iter(lambda: stream.read(STEP), b""))
    return PieceReader([data])


def _split(data: PieceReader, records: int) -> Iterator[bytes]:
    for _ in range(records):
        start = data.read(LENGTH.size)
        if len(start) < LENGTH.size:
            raise ValueError(f"it has fewer records than the {records} that its header says")
        (length,) = LENGTH.unpack(start)
        if length > LARGEST_RECORD:
            raise ValueError(f"a record claims {length} bytes; the limit is {LARGEST_RECORD}")
        record = data.read(length)
        if len(record) < length:
            raise ValueError(f"a record of {length} bytes is cut off after {len(record)}")
        yield record
    if data.read(1):
        raise ValueError(f"it has more data than its {records} records")
