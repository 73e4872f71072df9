"""The content of one file in another, which shares its blocks where the file system can.

XFS and btrfs can: a gigabyte takes milliseconds there and no room. Elsewhere it is read and written
here and not by copy_file_range, which goes through the page cache: for 1 GB on ext4 that took 1.0
to 4.1 s, this 0.6 to 1.2 s, fsync included.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import struct

import numpy as np

from ffrecord.atomic.file import ALIGN, NewFile
from ffrecord.disk.source import Source

CHUNK = 8 << 20
_FICLONERANGE = 0x4020940D
_CLONE = struct.Struct("qQQQ")  # descriptor, where from, how much, where to


def whole_blocks(size: int) -> int:
    """The least number of bytes in whole blocks that is not less than `size`: content that moves by
    so much can share its blocks."""
    return -(-size // ALIGN) * ALIGN


def take_over(source: Source, begin: int, end: int, file: NewFile, to: int) -> None:
    """Put the bytes from `begin` up to `end` of one file at `to` of a new one, whose next write
    goes behind them."""
    moved = to - begin
    first = min(whole_blocks(begin), end)
    last = first + (end - first) // ALIGN * ALIGN
    if moved % ALIGN or first == last or not _share(source, first, last, file, first + moved):
        first = last = end
    _copy(source, begin, first, file, to)
    _copy(source, last, end, file, last + moved)


def _share(source: Source, begin: int, end: int, file: NewFile, to: int) -> bool:
    with contextlib.suppress(OSError):  # another file system, or one that cannot
        fcntl.ioctl(file.fd, _FICLONERANGE, _CLONE.pack(source.fd, begin, end - begin, to))
        return True
    return False


def _copy(source: Source, begin: int, end: int, file: NewFile, to: int) -> None:
    file.flush()
    file.rewind(to)
    memory = np.empty(min(CHUNK, end - begin), np.uint8)
    for at in range(begin, end, CHUNK):
        piece = memory[: end - at]
        source.read_into(piece, at)
        file.write(piece)


def inherit(fd: int, old: int, path: str) -> None:
    """Take over owner, group, mode and attributes, access control lists among them, from the old
    file or folder."""
    status, ours = os.fstat(old), os.fstat(fd)
    if (status.st_uid, status.st_gid) != (ours.st_uid, ours.st_gid):
        try:
            os.fchown(fd, status.st_uid, status.st_gid)
        except PermissionError as error:
            what = (
                "appending replaces the file or folder, whose owner or group you cannot give away"
            )
            raise PermissionError(error.errno, what, path) from error
    os.fchmod(fd, stat.S_IMODE(status.st_mode))
    with contextlib.suppress(OSError):  # a file system without attributes
        for name in os.listxattr(old):
            with contextlib.suppress(OSError):  # one that only the system sets
                os.setxattr(fd, name, os.getxattr(old, name))
