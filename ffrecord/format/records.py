"""The record file's bytes. Little endian, no padding:

    +-----------+----------+----------------+-----------------+ - - - +--------- - - ---------+
    | crc   u32 | N    i64 | crc_i  u32 x N | offset_i i64 x N |  gap  | sample 0 … sample N-1 |
    +-----------+----------+----------------+-----------------+ - - - +--------- - - ---------+
    0           4          12               12 + 4N           12 + 12N                  end of file

- `crc` is the CRC-32 (the zlib polynomial) of everything from N up to 12 + 12N: the *body*.
- Sample i starts at offset i and ends at offset i+1, the last one at the end of the file.
- A gap after the header is legal. The original FFRecord reads such files too.
- crc 0 with N > 0 marks a file from before header checksums. crc 0 with N = 0 is what a writer
  that never finished leaves behind (an empty file's crc is 0x6522df69).

Pure functions: bytes in, arrays or one of our errors out. Nothing here reads a file, and nothing
is allocated that the file's own size does not back.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from ffrecord.errors import (
    HeaderChecksumError,
    NotFFRecordError,
    StructureError,
    TruncatedError,
    UnfinishedError,
)
from ffrecord.text import Advised

Checksums: TypeAlias = npt.NDArray[np.uint32]
Offsets: TypeAlias = npt.NDArray[np.int64]

PART_NAME = re.compile(r"PART_\d+\.ffr")  # one of several files
CHECKSUM = np.dtype("<u4")
OFFSET = np.dtype("<i8")
PREFIX = struct.Struct("<Iq")
CRC_SIZE = 4
PER_RECORD = CHECKSUM.itemsize + OFFSET.itemsize

# A count beyond this is no count: the header alone would be 12 TiB. It tells a truncated record
# file from a file of another kind, whose bytes 4 to 12 read as some huge or negative number.
MAX_RECORDS = 1 << 40

# Of Linux, Windows and macOS: common files whose bytes 4 to 12 do read as a likely count.
PROGRAMS = (b"\x7fELF", b"MZ", b"\xcf\xfa\xed\xfe", b"\xce\xfa\xed\xfe")


@dataclass(frozen=True, slots=True)
class Header:
    """A validated header. `offsets` has one entry more than there are records: the file's end."""

    crc: int
    checksums: Checksums
    offsets: Offsets

    @property
    def n(self) -> int:
        return len(self.checksums)

    @property
    def legacy(self) -> bool:
        """Whether it is from before header checksums, so that it could not be verified."""
        return self.crc == 0


def header_size(n: int) -> int:
    """Bytes from the start of the file to the end of the offsets of `n` records."""
    return PREFIX.size + PER_RECORD * n


def parse_prefix(path: str, prefix: bytes, size: int) -> int:
    """The number of records that the file's first 12 bytes claim, if its `size` can hold them."""
    if len(prefix) < PREFIX.size:
        raise TruncatedError(
            f"{path}: {size} bytes are too few for a record file, whose header has at least 12"
        )
    crc, n = PREFIX.unpack(prefix)
    if not 0 <= n <= MAX_RECORDS:
        raise NotFFRecordError(f"{path}: not an FFRecord file (it would hold {n} records)")
    if crc == 0 and n == 0:
        what = f"{path}: never finished: its writer was not closed; run it again, "
        how = "go on with resumable=True if it was written so", "which goes on if it can"
        raise UnfinishedError(
            Advised(what, *how, ", or save what is there with `ffrecord salvage`")
        )
    if header_size(n) > size:
        if prefix.startswith(PROGRAMS):
            raise NotFFRecordError(f"{path}: not an FFRecord file, but a program or library")
        other = "" if path.endswith(".ffr") else ", or of another kind"
        raise TruncatedError(
            f"{path}: truncated{other}: the header of {n} records needs {header_size(n)} bytes, "
            f"the file has {size}"
        )
    return int(n)


def part_name(number: int) -> str:
    return f"PART_{number:05d}.ffr"


def header_memory(n: int) -> npt.NDArray[np.uint8]:
    """Memory to read a header of `n` records into, in which `parse` need copy nothing.

    The offsets are aligned there, and the file's end has its place after them.
    """
    size = header_size(n)
    memory = np.empty(2 * OFFSET.itemsize + size, np.uint8)
    skip = -(memory.ctypes.data + size) % OFFSET.itemsize
    return memory[skip : skip + size + OFFSET.itemsize]


def parse(path: str, raw: npt.NDArray[np.uint8], size: int, computed_crc: int | None) -> Header:
    """The header in `raw`, memory of `header_memory` filled with the file's first bytes up to
    `header_size(n)`, checked in every way. The result is views of it.

    `computed_crc` is the CRC-32 of the body, computed by the caller; None skips that one check.
    """
    n = parse_prefix(path, raw[: PREFIX.size].tobytes(), size)
    if len(raw) != header_size(n) + OFFSET.itemsize:
        raise StructureError(f"{path}: its header changed while it was read")
    crc = int.from_bytes(raw[:CRC_SIZE].tobytes(), "little")
    if computed_crc is not None:
        compare_checksum(path, crc, computed_crc)
    checksums_end = PREFIX.size + CHECKSUM.itemsize * n
    checksums = raw[PREFIX.size : checksums_end].view(CHECKSUM)
    offsets = raw[checksums_end:].view(OFFSET)
    offsets[n] = size
    _check_offsets(path, offsets, header_size(n))
    return Header(crc, checksums, offsets)


def compare_checksum(path: str, stored: int, computed: int) -> None:
    """Compare the checksum of a header's body; files from before header checksums have none."""
    if stored not in (0, computed):
        raise HeaderChecksumError(
            f"{path}: the header is damaged: its checksum is {computed:#010x}, "
            f"the file says {stored:#010x}"
        )


def check_order(path: str, offsets: Offsets, first: int, lowest: int) -> None:
    """Some offsets, from record `first` on: none is inside the header, or before the last one."""
    if not first and offsets[0] < lowest:
        raise StructureError(
            f"{path}: record 0 starts at byte {offsets[0]}, inside the header of {lowest} bytes"
        )
    backwards = np.flatnonzero(offsets[1:] < offsets[:-1])
    if backwards.size:
        i = int(backwards[0])
        raise StructureError(
            f"{path}: record {first + i + 1} starts at byte {offsets[i + 1]}, before record "
            f"{first + i} at byte {offsets[i]}"
        )


def body(checksums: Checksums, offsets: Offsets) -> bytes:
    """The bytes that a header's crc covers: N, checksums, and offsets (but the file's end)."""
    count = struct.pack("<q", len(checksums))
    return count + checksums.astype(CHECKSUM).tobytes() + offsets.astype(OFFSET).tobytes()


def seal(crc: int, header_body: bytes) -> bytes:
    """The whole header, from the body and the body's CRC-32."""
    return struct.pack("<I", crc) + header_body


def _check_offsets(path: str, offsets: Offsets, lowest: int) -> None:
    n = len(offsets) - 1
    if n == 0:
        return
    size = int(offsets[n])
    check_order(path, offsets[:n], 0, lowest)
    if offsets[n - 1] > size:
        raise TruncatedError(
            f"{path}: truncated: record {n - 1} starts at byte {offsets[n - 1]}, "
            f"the file has {size}"
        )
