"""The CRC-32 of a part of a file, whatever its size: a record's, a header's, an index's."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ffrecord.checksum import crc32
from ffrecord.engine import Source

CHUNK = 8 << 20


class Recheck:
    """Reads parts of one file through one piece of memory."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._memory: npt.NDArray[np.uint8] = np.empty(CHUNK, np.uint8)

    def checksum(self, begin: int, end: int) -> int:
        """The CRC-32 of the bytes from `begin` up to `end`."""
        crc = 0
        for at in range(begin, end, CHUNK):
            piece = self._memory[: min(CHUNK, end - at)]
            self._source.read_into(piece, at)
            crc = crc32(piece, crc)
        return crc
