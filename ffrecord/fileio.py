"""Names that programs for the original FFRecord import from `ffrecord.fileio`."""

from __future__ import annotations

import fcntl
import struct

from ffrecord.records.reader import FileReader
from ffrecord.records.writer import FileWriter

__all__ = ["FileReader", "FileWriter", "checkFsAlign"]

_IOC_CHECK_FS_ALIGN = 2147772004  # an ioctl of the file system that FFRecord was first made for


def checkFsAlign(fd: int) -> bool:  # noqa: N802 - the original's name
    """Return True if the file system of `fd` aligns unaligned O_DIRECT requests by itself.

    The answer is False on nearly every file system. This library aligns its requests and does not
    need the answer.
    """
    answer = bytearray(4)
    try:
        fcntl.ioctl(fd, _IOC_CHECK_FS_ALIGN, answer)
    except OSError:
        return False
    return bool(struct.unpack("i", answer)[0] == 1)
