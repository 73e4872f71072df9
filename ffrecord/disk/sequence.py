"""Decide how far to read ahead of plain reads that follow one another in a file. No I/O.

The kernel's own readahead is switched off for files that are also read with O_DIRECT, because it
leaves marks on pages. A later cached read that touches a mark makes the kernel read the next 8 MiB
(on this project's machines), which get a mark too. With marks, random batches of 10 kB records read
2.1 bytes from the disk for each byte they returned; without marks, 1.1.

Readers that take one record after the other still need readahead. `Sequence` provides it through
POSIX_FADV_WILLNEED, which leaves no marks.
"""

from __future__ import annotations

NEAR = 16 << 10  # a read that begins at most this far after the last one continues it
READS = 2  # reads in a row after which the next bytes are read ahead
SHORTEST = 128 << 10  # the kernel's usual readahead
LONGEST = 2 << 20


class Sequence:
    """The last plain reads of one file.

    Threads may share it: a lost update costs a little readahead, never a wrong byte.
    """

    def __init__(self) -> None:
        self._end = -1 - NEAR  # end of the last read; at first, no read continues it
        self.reads = 0
        self._window = SHORTEST
        self._advised = 0  # end of the bytes that were read ahead

    def after(self, offset: int, end: int) -> tuple[int, int] | None:
        """Return the range to read ahead while [offset, end) is read; None for no range."""
        near = 0 <= offset - self._end <= NEAR
        self._end = end
        if not near:
            self.reads, self._window, self._advised = 0, SHORTEST, end
            return None
        self.reads += 1
        if self.reads < READS or end + self._window // 2 < self._advised:
            return None
        begin = max(self._advised, end)
        self._advised = begin + self._window
        self._window = min(2 * self._window, LONGEST)
        return begin, self._advised
