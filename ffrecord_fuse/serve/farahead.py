"""Read ahead over the network: several windows at a time, as far as the connection needs it.

To use a connection fully, latency × bandwidth bytes must be on their way. Neither number is known
in advance. So a run begins with little, and doubles its reach each time its reader has to wait for
a window. A run never reaches further than its reader has come, because many providers charge for
bytes.

Unlike on a disk, large files are read ahead too: the kernel has only 1 or 2 MiB of a file on their
way. So a window may end inside of a file, and a read may need two windows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ffrecord.archive.blocks import FilePiece
from ffrecord.remote.source import PART
from ffrecord_fuse.serve.readahead import Disk as Network
from ffrecord_fuse.serve.readahead import ReadAhead, Run, Window

NEAREST, FARTHEST = 256 << 10, 32 << 20
"""The first and the largest reach of a run, in bytes. The largest is enough for 10 Gbit/s and 25 ms
with one reader."""

MOST_BYTES = 64 << 20
"""All windows of a worker together. Windows of the run that was not used for longest go first."""

BEHIND = 1 << 20
"""Bytes behind the reader that stay: requests of the kernel may overtake each other."""


class FarAhead(ReadAhead):
    """The runs and windows of one worker that reads over the network.

    Args:
        network: reads windows. The token of a read is its window.
        last_start: as for `ReadAhead`. Windows end there if they can.
        ends: for each file, where its last readable record ends.
        cut: takes a file and a range; returns an earlier end if the cache has only a part of it.
    """

    def __init__(
        self, network: Network, last_start: Callable[[int, int], int], ends: Sequence[int],
        cut: Callable[[int, int, int], int] = lambda file, begin, end: end,
    ) -> None:  # fmt: skip
        super().__init__(network, last_start)
        self._ends = ends
        self._cut = cut

    def find(self, piece: FilePiece) -> Sequence[Window]:
        """Return the windows that have a piece; none if a part is missing. May open more.

        If the first part of a piece is there, the run is extended over the rest.
        """
        end, at = piece.begin + piece.length, piece.begin
        found = []
        for window in sorted(self._windows, key=lambda each: each.begin):
            if window.file == piece.file and window.begin <= at < min(window.end, end):
                found.append(window)
                at = window.end
        if not found:
            return ()
        run = found[-1].run
        self._use(run, end)
        while at < end:
            more = self._open(run, at)
            if more is None:
                return ()
            found.append(more)
            at = more.end
        if any(window.memory is None for window in found):
            run.reach = min(2 * run.reach, FARTHEST)
        self._advance(run)
        return found

    def _start(self, run: Run, piece: FilePiece) -> Sequence[Window]:
        """Open windows behind a piece. The piece itself is read alone, or joined with a window."""
        run.reach = run.reach or NEAREST
        self._advance(run)
        return ()

    def _advance(self, run: Run) -> None:
        """Open windows until the run reaches as far as it should."""
        at = max([run.end, *(window.end for window in run.windows)])
        reach = min(run.reach, run.end - run.begin)
        while at - run.end < reach:
            window = self._open(run, at)
            if window is None:
                break
            at = window.end

    def _open(self, run: Run, begin: int, least: int | None = None) -> Window | None:
        for other in self._runs:
            if self._has_room_for(run) or other is run:
                break
            self._end(other)
        return super()._open(run, begin, least) if self._has_room_for(run) else None

    def _has_room_for(self, run: Run) -> bool:
        held = sum(window.end - window.begin for window in self._windows)
        return held + run.length <= MOST_BYTES

    def _end_of_window(self, run: Run, begin: int) -> int:
        end = super()._end_of_window(run, begin)
        end = min(end if end > begin else begin + run.length, self._ends[run.file])
        return self._cut(run.file, begin, end) if end > begin else end

    def _grow(self, run: Run) -> None:
        run.length = min(2 * run.length, PART)
        passed = [window for window in run.windows if window.end <= run.end - BEHIND]
        self._close(passed)
        run.windows = [window for window in run.windows if window not in passed]

    def _end(self, run: Run) -> None:
        super()._end(run)
        run.followed = 0
