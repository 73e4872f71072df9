"""List, check and remove the copies in a cache, for `ffrecord cache`."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ffrecord.atomic.direct import write_all
from ffrecord.format import cachemap
from ffrecord.format.cachemap import BLOCK, MapHeader
from ffrecord.format.checksum import crc32
from ffrecord.remote.cache.folder import COPY, MAP, CacheFolder, Kept, seeds


@dataclass(frozen=True, slots=True)
class Listed:
    """A copy in a cache."""

    name: str
    url: str
    size: int  # of the object
    there: int  # bytes of it that are in the cache
    on_disk: int  # bytes of both files
    used: float  # time of the last use, in seconds since 1970
    in_use: bool


@dataclass(frozen=True, slots=True)
class Checked:
    """The result of a check: numbers of blocks."""

    blocks: int
    damaged: int


def listed(folder: CacheFolder) -> list[Listed]:
    """Return all copies of a cache, the last used first."""
    found = []
    for kept in folder.kept():
        with contextlib.suppress(OSError), _opened(folder, kept) as (fd, map_fd):
            numbers, _ = _there(map_fd, kept.header)
            sizes = np.minimum(BLOCK, kept.header.size - numbers * BLOCK)
            blocks = os.fstat(fd).st_blocks + os.fstat(map_fd).st_blocks
            found.append(
                Listed(
                    kept.name, kept.header.url, kept.header.size, int(sizes.sum()), blocks * 512,
                    kept.used, _is_in_use(map_fd),
                )
            )  # fmt: skip
    return sorted(found, key=lambda copy: copy.used, reverse=True)


def check(folder: CacheFolder, name: str) -> Checked:
    """Compare the checksums of all blocks of a copy. Remove damaged ones from its map."""
    kept = folder.read(name)
    with _opened(folder, kept) as (fd, map_fd):
        fcntl.flock(map_fd, fcntl.LOCK_SH)  # so that no holes are punched meanwhile
        numbers, crcs = _there(map_fd, kept.header)
        damaged = 0
        for number, crc in zip(numbers.tolist(), crcs.tolist(), strict=True):
            if crc32(_block(fd, kept.header, number)) != crc:
                damaged += 1
                entry_at = cachemap.entry_at(number)
                write_all(map_fd, bytes(cachemap.ENTRY.itemsize), entry_at)
        return Checked(len(numbers), damaged)


def remove(folder: CacheFolder, name: str) -> int:
    """Remove a copy; return the bytes that it had on disk. Programs that read it can go on."""
    with folder.locked():
        return folder.remove(name)


@contextlib.contextmanager
def _opened(folder: CacheFolder, kept: Kept) -> Iterator[tuple[int, int]]:
    with contextlib.ExitStack() as files:
        fds = []
        for ending in (COPY, MAP):
            fds.append(folder.open_file(kept.name, ending))
            files.callback(os.close, fds[-1])
        yield fds[0], fds[1]


def _there(map_fd: int, header: MapHeader) -> tuple[np.ndarray, np.ndarray]:
    raw = os.pread(map_fd, header.length, cachemap.ENTRIES_AT)
    mask, crcs = cachemap.there(seeds(header), 0, raw)
    return np.flatnonzero(mask), crcs[mask]


def _block(fd: int, header: MapHeader, number: int) -> bytes:
    try:
        return os.pread(fd, min(BLOCK, header.size - number * BLOCK), number * BLOCK)
    except OSError:  # a bad place on the disk
        return b""


def _is_in_use(map_fd: int) -> bool:
    try:
        fcntl.flock(map_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    fcntl.flock(map_fd, fcntl.LOCK_UN)
    return False
