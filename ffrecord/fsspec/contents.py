"""Read the contents of files as fsspec's functions do: as bytes, and with errors among them.

Paths are as in the archive, without a protocol.
"""

from __future__ import annotations

import errno
import stat
from collections.abc import Iterator, Sequence

import numpy as np

from ffrecord.aliases import Bytes, Ints
from ffrecord.archive.folder import PackedFolder
from ffrecord.archive.index.resolve import resolve
from ffrecord.archive.names import to_bytes
from ffrecord.errors import FFRecordError

BATCH_BYTES = 256 << 20
"""Most bytes that `cat` reads as one batch, because it copies them and needs twice the memory."""

MOST_KEPT = (32 << 20) - 4096
"""Most bytes of a batch whose memory is kept for the next one. glibc has no larger threshold."""

_kept = 128 << 10  # glibc's thresholds at first


def of_one(folder: PackedFolder, path: str, start: int | None, end: int | None) -> bytes:
    """Return the bytes of a file, or of `file[start:end]`."""
    if start is None and end is None:
        return folder.read_one(path).tobytes()
    begin, stop, _step = slice(start, end).indices(folder.stat(path).st_size)
    return folder.read_range(path, begin, max(stop - begin, 0)).tobytes()


def of_records(
    folder: PackedFolder, paths: list[str], records: Ints, on_error: str
) -> dict[str, bytes | Exception]:
    """Return the bytes of files by path, or their errors if `on_error` says so."""
    ends = np.cumsum(folder.reader.record_sizes(records))
    _keep_freed_memory(int(ends[-1]) if len(ends) else 0)
    contents: dict[str, bytes | Exception] = {}
    done = 0
    while done < len(paths):
        before = int(ends[done - 1]) if done else 0
        stop = max(done + 1, int(ends.searchsorted(before + BATCH_BYTES, side="right")))
        some = paths[done:stop]
        try:
            found = folder.archive.read_bytes(records[done:stop], some.__getitem__)
            contents.update(zip(some, found, strict=True))
        except (FFRecordError, OSError):
            if on_error == "raise":
                raise
            contents.update(one_by_one(folder, some, on_error))
        done = stop
    return contents


def one_by_one(
    folder: PackedFolder, paths: list[str], on_error: str
) -> Iterator[tuple[str, bytes | Exception]]:
    """Yield each file by itself. Missing and damaged ones are left out, or are exceptions."""
    for path in paths:
        try:
            yield path, of_one(folder, path, None, None)
        except (FFRecordError, OSError) as error:
            if on_error == "return":
                yield path, error


def of_ranges(
    folder: PackedFolder, paths: list[str], starts: Sequence[int | None],
    ends: Sequence[int | None], on_error: str,
) -> list[bytes | Exception]:  # fmt: skip
    """Return `file[start:end]` for each path, or its error if `on_error` is "return"."""
    try:
        return list(map(np.ndarray.tobytes, _ranges(folder, paths, starts, ends)))
    except (FFRecordError, OSError):
        # One bad range spoils the batch: find it, and name its file in the error.
        results: list[bytes | Exception] = []
        for path, start, end in zip(paths, starts, ends, strict=True):
            try:
                results.append(of_one(folder, path, start, end))
            except (FFRecordError, OSError) as error:
                if on_error != "return":
                    raise
                results.append(error)
        return results


def _ranges(
    folder: PackedFolder, paths: list[str], starts: Sequence[int | None],
    ends: Sequence[int | None],
) -> list[Bytes]:  # fmt: skip
    index = folder.archive.index
    inodes = {path: _file(folder, path) for path in set(paths)}
    wanted = []
    for path, start, end in zip(paths, starts, ends, strict=True):
        inode = inodes[path]
        begin, stop, _ = slice(start, end).indices(index.record_and_length(inode)[1])
        wanted.append((inode, begin, max(stop - begin, 0)))
    return folder.archive.read_ranges(wanted)


def _file(folder: PackedFolder, path: str) -> int:
    index = folder.archive.index
    inode = resolve(index, to_bytes(path))
    if not stat.S_ISREG(index.mode(inode)):
        raise IsADirectoryError(errno.EISDIR, "a folder in the archive", path)
    return inode


def _keep_freed_memory(size: int) -> None:
    """Let the allocator keep the memory of a batch of `size` bytes when the batch is dropped.

    glibc gives freed memory back to the kernel, and the next batch faults in every page again. That
    took as long as reading files of 10 kB. Freeing a block raises glibc's thresholds, once and for
    good, to the size of the block; it then keeps up to twice this size.
    """
    global _kept
    if _kept < size <= MOST_KEPT:
        _kept = size
        np.empty(size, np.uint8)
