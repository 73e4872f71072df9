"""Make record files by hand, with `struct` and `zlib` only, and measure this process.

This module must not use the package, because its results are compared with the package's.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import mmap
import os
import random
import re
import resource
import struct
import subprocess
import sys
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest


def header_bytes(records: Sequence[bytes], gap: int = 0) -> bytes:
    """Return the header of a file with `records` and a gap of `gap` bytes after the header."""
    n = len(records)
    at = 4 + 8 + 4 * n + 8 * n + gap
    body = struct.pack("<q", n)
    for record in records:
        body += struct.pack("<I", zlib.crc32(record))
    for record in records:
        body += struct.pack("<q", at)
        at += len(record)
    return struct.pack("<I", zlib.crc32(body)) + body


def record_bytes(records: Sequence[bytes], gap: int = 0, filler: bytes = b"\xa5") -> bytes:
    """Return the bytes of a whole file with `records`; a gap is filled with the byte `filler`."""
    return header_bytes(records, gap) + filler * gap + b"".join(records)


def with_padding(files: Iterable[bytes]) -> list[bytes]:
    """Return the records of an aligned archive before the index: each file, then its padding."""
    records = []
    for content in files:
        records.append(content)
        if len(content) % 512:
            records.append(bytes(512 - len(content) % 512))
    return records


def aligning_gap(n: int) -> int:
    """Return the gap after a header of `n` records that aligns the first record to 512 bytes."""
    return (512 - (12 + 12 * n) % 512) % 512


def sealed(n: int, checksums: Sequence[int], offsets: Sequence[int]) -> bytes:
    """Return a header with these numbers, right or wrong, under a correct checksum."""
    body = struct.pack(f"<q{len(checksums)}I{len(offsets)}q", n, *checksums, *offsets)
    return struct.pack("<I", zlib.crc32(body)) + body


def records_in(data: bytes) -> list[bytes]:
    """Return the records of a whole file; fail if the file does not follow docs/format.md."""
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
    """Return records of these sizes: different for every seed, the same in every run."""
    generator = random.Random(seed)
    return [generator.randbytes(size) for size in sizes]


def write_records(path: Path, records: Sequence[bytes], gap: int = 0) -> Path:
    path.write_bytes(record_bytes(records, gap))
    return path


def as_bytes(arrays: Iterable[Any]) -> list[bytes]:
    return [array.tobytes() for array in arrays]


def evict(path: Path) -> None:
    """Remove a file from the page cache, as far as the file system supports it."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(fd)


def require_memory(path: Path) -> None:
    """Skip a test marked `in_memory` if its file is not in memory because there was no room."""
    if path.stat().st_dev != Path("/dev/shm").stat().st_dev:
        pytest.skip("/dev/shm has too little room")


def cached_pages(path: Path) -> list[bool]:
    """Return, for each page of a file, True if it is in the page cache, according to mincore(2)."""
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
    gc.collect()  # do not count objects that earlier tests left in cycles
    return len(os.listdir("/proc/self/fd"))


@contextlib.contextmanager
def many_descriptors() -> Iterator[None]:
    """Let all new descriptors be above 1023, as in a process with many shards open."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(limits[0], 2048), limits[1]))
    held = [os.open(os.devnull, os.O_RDONLY)]
    try:
        while held[-1] < 1023:
            held.append(os.dup(held[0]))
        yield
    finally:
        for fd in held:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def aio_contexts() -> int:
    """Return the number of AIO contexts of this process: the kernel maps a ring for each."""
    return Path("/proc/self/maps").read_text().count("/[aio]")


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE


def python(script: str, *arguments: str, **variables: str) -> subprocess.Popen[str]:
    """Start `script` in a new interpreter that finds the same packages as this one.

    `variables` are added to its environment.
    """
    found = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    environment = {**os.environ, **found, **variables}
    return subprocess.Popen(
        [sys.executable, "-c", script, *arguments],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True, env=environment,
    )  # fmt: skip


def label(value: object) -> str:
    """Return a value as a part of a test's name, the same in every process that collects it."""
    return re.sub(r" at 0x[0-9a-f]+", "", str(value))


OLD = record_bytes([b"what was there before"])
"""Content of a file that a test then replaces."""
