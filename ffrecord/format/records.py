"""Bytes of a record file. docs/format.md is the specification.

All numbers are little endian. There is no padding:

    +-----------+----------+----------------+------------------+ - - - +--------- - - ---------+
    | crc   u32 | N    i64 | crc_i  u32 x N | offset_i i64 x N |  gap  | record 0 … record N-1 |
    +-----------+----------+----------------+------------------+ - - - +--------- - - ---------+
    0           4          12               12 + 4N            12 + 12N             end of file

- `crc` is the CRC-32 (the zlib polynomial) of the *body*: bytes 4 up to 12 + 12N.
- Record i begins at offset i and ends at offset i+1. The last record ends at the end of the file.
- A gap after the header is legal. The original FFRecord reads such files too.
- crc 0 with N > 0 marks a file from before header checksums. crc 0 with N = 0 is left by a writer
  that never finished (the crc of a finished file without records is 0x6522df69).

The functions are pure: they take bytes, and return arrays or raise one of our errors. They read no
file, and allocate no more memory than the size of the file justifies.
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

PART_NAME = re.compile(r"PART_\d+\.ffr")  # name of a shard
CHECKSUM = np.dtype("<u4")
OFFSET = np.dtype("<i8")
PREFIX = struct.Struct("<Iq")
CRC_SIZE = 4
PER_RECORD = CHECKSUM.itemsize + OFFSET.itemsize

# The header of more records than this would need over 12 TiB. The limit tells a truncated record
# file from a file of another kind, where bytes 4 to 12 usually read as a huge or negative number.
MAX_RECORDS = 1 << 40

_COPY_OR_SALVAGE = "copy the file again, or save its whole records with `ffrecord salvage`"


@dataclass(frozen=True, slots=True)
class Header:
    """A validated header. `offsets` has one more item than there are records: the file's end."""

    crc: int
    checksums: Checksums
    offsets: Offsets

    @property
    def n(self) -> int:
        return len(self.checksums)

    @property
    def legacy(self) -> bool:
        """True if the file is from before header checksums: the header could not be verified."""
        return self.crc == 0


def header_size(n: int) -> int:
    """Return the bytes of the header of a file with `n` records."""
    return PREFIX.size + PER_RECORD * n


def parse_prefix(path: str, prefix: bytes, size: int) -> int:
    """Return the number of records in the first 12 bytes of a file of `size` bytes.

    Raise an error if a file of that size cannot have so many records.
    """
    if len(prefix) < PREFIX.size:
        raise TruncatedError(
            f"{path}: truncated, or not an FFRecord file: it has {size} bytes, but the shortest "
            f"header has {PREFIX.size}; copy it again, or pass another file"
        )
    crc, n = PREFIX.unpack(prefix)
    if not 0 <= n <= MAX_RECORDS:
        what = f"{path}: not an FFRecord file, or its header is damaged: its number of records is "
        how = "ffrecord.salvage_file", "`ffrecord salvage`"
        raise NotFFRecordError(
            Advised(
                f"{what}impossible; if FFRecord wrote it, ", *how,
                " saves its records; if another program wrote it, try `ffrecord convert`",
            )
        )  # fmt: skip
    if crc == 0 and n == 0:
        what = f"{path}: never finished: its writer was not closed; run the writer again"
        how = " (with resumable=True if it had that before)", " (it continues if it can)"
        raise UnfinishedError(
            Advised(what, *how, ", or save the written records with `ffrecord salvage`")
        )
    if header_size(n) > size:
        ours = path.endswith(".ffr")
        raise TruncatedError(
            f"{path}: truncated{'' if ours else ', or not an FFRecord file'}: the header of {n} "
            f"records needs {header_size(n)} bytes, but the file has {size}; copy it again"
            f"{'' if ours else ', or pass another file'}"
        )
    return int(n)


def part_name(number: int) -> str:
    return f"PART_{number:05d}.ffr"


def header_memory(n: int) -> npt.NDArray[np.uint8]:
    """Return memory for a header of `n` records, laid out so that `parse` need not copy it.

    In this memory the offsets are aligned, and followed by room for the end of the file.
    """
    size = header_size(n)
    memory = np.empty(2 * OFFSET.itemsize + size, np.uint8)
    skip = -(memory.ctypes.data + size) % OFFSET.itemsize
    return memory[skip : skip + size + OFFSET.itemsize]


def parse(path: str, raw: npt.NDArray[np.uint8], size: int, computed_crc: int | None) -> Header:
    """Check a header in every way, and return it as views of `raw`.

    Args:
        path: the file, for messages.
        raw: memory from `header_memory`, filled with the first `header_size(n)` bytes of the file.
        size: bytes of the file.
        computed_crc: CRC-32 of the body, computed by the caller; None skips the comparison.
    """
    n = parse_prefix(path, raw[: PREFIX.size].tobytes(), size)
    if len(raw) != header_size(n) + OFFSET.itemsize:
        raise StructureError(
            f"{path}: the header changed while it was read; open the file again when its writer "
            "has finished"
        )
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
    """Raise an error if the header's checksum is wrong. 0 means that the file has no checksum."""
    if stored not in (0, computed):
        raise HeaderChecksumError(
            f"{path}: the header is damaged: its checksum is {computed:#010x}, "
            f"the file says {stored:#010x}; {_COPY_OR_SALVAGE}"
        )


def check_order(path: str, offsets: Offsets, first: int, lowest: int) -> None:
    """Check that offsets do not decrease and that record 0 begins after the header.

    `offsets` begins with record `first`; the header has `lowest` bytes.
    """
    if not first and offsets[0] < lowest:
        raise StructureError(
            f"{path}: record 0 starts at byte {offsets[0]}, inside the header of {lowest} bytes; "
            f"{_COPY_OR_SALVAGE}"
        )
    backwards = np.flatnonzero(offsets[1:] < offsets[:-1])
    if backwards.size:
        i = int(backwards[0])
        raise StructureError(
            f"{path}: record {first + i + 1} starts at byte {offsets[i + 1]}, before record "
            f"{first + i} at byte {offsets[i]}; {_COPY_OR_SALVAGE}"
        )


def body(checksums: Checksums, offsets: Offsets) -> bytes:
    """Return the bytes that a header's crc covers: N, the checksums and the offsets.

    `offsets` has one item for each record, without the end of the file.
    """
    count = struct.pack("<q", len(checksums))
    return count + checksums.astype(CHECKSUM).tobytes() + offsets.astype(OFFSET).tobytes()


def seal(crc: int, header_body: bytes) -> bytes:
    """Return the whole header, from its body and the body's CRC-32."""
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
            f"but the file has {size} bytes; {_COPY_OR_SALVAGE}"
        )
