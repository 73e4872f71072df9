"""What a resumable writer finds that was run once more than needed: its file, finished.

All records are there, and nothing is left to do. The file is not written, renamed or touched.
"""

from __future__ import annotations

import os
import warnings
from array import array
from collections.abc import Iterable
from typing import NoReturn

from ffrecord import layout, planted
from ffrecord.beginning import Beginning
from ffrecord.engine import Source
from ffrecord.errors import CountError, FFRecordError, ReadFailedError
from ffrecord.newfile import Bytes, NewFile
from ffrecord.opening import read_header
from ffrecord.recheck import Recheck


def begin(path: str, n: int) -> Beginning | None:
    """The whole file of `n` records at `path`; None if something else is there, or nothing."""
    try:
        source = Source(path, direct=False)
        planted.refuse(source.fd, path)
        header = read_header(source, check=True)
        if _is_cut_off(source, header):
            return None
    except ReadFailedError:  # it may well be whole, and would be replaced
        raise
    except (FFRecordError, FileNotFoundError):
        return None
    if header.n > n:  # appended to, perhaps
        warnings.warn(
            f"{path}: a finished file of {header.n} records, more than n={n}, will be replaced",
            stacklevel=4,
        )
    if header.n != n:
        return None
    checksums = array("I", header.checksums.tobytes())
    offsets = array("q", header.offsets[:-1].tobytes())
    room = int(header.offsets[0]) if n else layout.header_size(0)
    return Beginning(FinishedFile(path, source), room, int(header.offsets[-1]), checksums, offsets)


def _is_cut_off(source: Source, header: layout.Header) -> bool:
    """Only the last record shows it: it ends where the file does."""
    if not header.n:
        return False
    begin, end = header.offsets[-2:].tolist()
    return Recheck(source).checksum(begin, end) != int(header.checksums[-1])


class FinishedFile(NewFile):
    """A file that has all of its records, its header and its name."""

    def __init__(self, target: str, source: Source) -> None:
        super().__init__(target, os.dup(source.fd))

    def write(self, buffer: Bytes) -> NoReturn:
        raise CountError(f"{self._target}: already holds all of its records")

    def write_at(self, offset: int, data: bytes | memoryview) -> None:
        pass

    def keep(self, ends: Iterable[int], checksums: Iterable[int]) -> None:
        pass

    def publish(self) -> None:
        pass
