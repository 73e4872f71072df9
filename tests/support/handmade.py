"""Record files made by hand, with `struct` and `zlib` only, and other things tests are checked by.

Nothing here may use the package: what it computes is compared with what the package does.
"""

from __future__ import annotations

import ctypes
import gc
import mmap
import os
import random
import re
import struct
import subprocess
import sys
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest


def header_bytes(records: Sequence[bytes], gap: int = 0) -> bytes:
    """The header of a file that holds `records`, with `gap` unused bytes after it."""
    n = len(records)
    at = 4 + 8 + 4 * n + 8 * n + gap
    body = struct.pack("<q", n)
    for record in records:
        body += struct.pack("<I", zlib.crc32(record))
    for record in records:
        body += struct.pack("<q", at)
        at += len(record)
    return struct.pack("<I", zlib.crc32(body)) + body


def record_bytes(records: Sequence[bytes], gap: int = 0) -> bytes:
    """A whole file that holds `records`."""
    return header_bytes(records, gap) + b"\xa5" * gap + b"".join(records)


def sealed(n: int, checksums: Sequence[int], offsets: Sequence[int]) -> bytes:
    """A header with these numbers, right or wrong, under a checksum that is right."""
    body = struct.pack(f"<q{len(checksums)}I{len(offsets)}q", n, *checksums, *offsets)
    return struct.pack("<I", zlib.crc32(body)) + body


def records_in(data: bytes) -> list[bytes]:
    """The records of a whole file, as its specification says; an assertion fails if it is not."""
    crc, n = struct.unpack_from("<Iq", data)
    size = 12 + 12 * n
    assert zlib.crc32(data[4:size]) == crc
    checksums = struct.unpack_from(f"<{n}I", data, 12)
    offsets = [*struct.unpack_from(f"<{n}q", data, 12 + 4 * n), len(data)]
    assert size <= offsets[0] or not n
    assert sorted(offsets) == offsets or not n
    records = [data[offsets[i] : offsets[i + 1]] for i in range(n)]
    assert [zlib.crc32(record) for record in records] == list(checksums)
    return records


def random_records(sizes: Iterable[int], seed: int = 0) -> list[bytes]:
    """Records of these sizes, different for every seed, the same in every run."""
    generator = random.Random(seed)
    return [generator.randbytes(size) for size in sizes]


def write_records(path: Path, records: Sequence[bytes], gap: int = 0) -> Path:
    path.write_bytes(record_bytes(records, gap))
    return path


def as_bytes(arrays: Iterable[Any]) -> list[bytes]:
    return [array.tobytes() for array in arrays]


def evict(path: Path) -> None:
    """Put a file out of the page cache, as far as the file system knows how."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(fd)


def require_memory(path: Path) -> None:
    """Skip a test, marked `in_memory`, whose file is on a disk for want of room."""
    if path.stat().st_dev != Path("/dev/shm").stat().st_dev:
        pytest.skip("there is no room in /dev/shm")


def cached_pages(path: Path) -> list[bool]:
    """Which pages of a file are in the page cache, as mincore(2) tells."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p)
    size = path.stat().st_size
    pages = -(-size // mmap.PAGESIZE)
    answer = ctypes.create_string_buffer(pages)
    with path.open("r+b") as file, mmap.mmap(file.fileno(), size) as mapping:
        start = ctypes.c_char.from_buffer(mapping)
        code = libc.mincore(ctypes.addressof(start), size, answer)
        del start
    if code != 0:
        raise OSError(ctypes.get_errno(), "mincore")
    return [bool(byte & 1) for byte in answer.raw]


def open_descriptors() -> int:
    gc.collect()  # what earlier tests left in cycles is not counted
    return len(os.listdir("/proc/self/fd"))


def aio_contexts() -> int:
    """How many AIO contexts this process has: the kernel maps a ring for each."""
    return Path("/proc/self/maps").read_text().count("/[aio]")


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE


def python(script: str, *arguments: str, **variables: str) -> subprocess.Popen[str]:
    """Start `script` in a fresh interpreter that finds the same packages as this one, with more
    variables in its environment."""
    found = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    environment = {**os.environ, **found, **variables}
    return subprocess.Popen(
        [sys.executable, "-c", script, *arguments],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True, env=environment,
    )  # fmt: skip


def label(value: object) -> str:
    """A value in the name of a test: the same in every process that collects it."""
    return re.sub(r" at 0x[0-9a-f]+", "", str(value))


OLD = record_bytes([b"what was there before"])
"""A file where another will be written."""
