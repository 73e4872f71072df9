"""Read ahead when cold files are read one after the other, as `tar`, `cp -a` and `grep -r` do.

Most disks, and all network disks, take about as long for 10 kB as for a megabyte. Files lie in an
archive in the order in which they are listed. So when requests follow one another in the archive,
the worker reads a larger part of the archive at once: a window. Later requests are answered from
the window, and the next window is read before the current one is used up. Windows are in the memory
of the worker, not in the page cache, so that the kernel caches data once, for the mount.

Random requests open no windows. Only the needed bytes are read for them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from ffrecord.archive.blocks import FilePiece

FOLLOWING = 3
"""The number of consecutive reads that opens a window."""
GAP = 64 << 10
"""Bytes that may lie between two consecutive reads, because a program skips files or hard links."""
SHORTEST = 128 << 10
"""The length of a run's first window. Each further window is twice as long, up to LONGEST."""
LONGEST = (2 << 20) - (8 << 10)
"""The longest window. With the disk's alignment at both ends, it fits into one huge page."""
SMALL = LONGEST // 4
"""The longest read that opens a window. Longer reads are efficient without one."""
RUNS = 8
"""The most runs that are followed at the same time, about one for each client. Each run has up to
two windows."""


class Disk(Protocol):
    """The reader of windows; see `ColdReads`."""

    @property
    def has_room(self) -> bool: ...

    def add(
        self, token: object, file: int, begin: int, length: int, *, kept: bool = False
    ) -> None: ...


@dataclass(eq=False, slots=True)
class Window:
    """A range of bytes of an archive's file, read or being read."""

    run: Run
    file: int
    begin: int
    end: int
    memory: memoryview | None = None
    error: Exception | None = None  # if it could not be read
    waiting: list[tuple[int, FilePiece, Sequence[Window]]] = field(default_factory=list)
    """Requests (number and piece) that wait until the window is read. The windows are all that the
    piece needs."""

    def has(self, piece: FilePiece) -> bool:
        return (
            self.begin <= piece.begin
            and piece.begin + piece.length <= self.end
            and self.file == piece.file
        )

    def part(self, piece: FilePiece) -> memoryview:
        """Return the bytes of a piece that are in this window. It must have been read."""
        assert self.memory is not None
        at = piece.begin - self.begin
        return self.memory[max(at, 0) : at + piece.length]


def bytes_of(piece: FilePiece, windows: Sequence[Window]) -> memoryview:
    """Return the bytes of a piece from the windows that have it. All must have been read."""
    if len(windows) == 1:
        return windows[0].part(piece)
    return memoryview(b"".join(window.part(piece) for window in windows))


@dataclass(eq=False, slots=True)
class Run:
    """Consecutive reads: each begins where the previous one ended, or up to GAP bytes later."""

    file: int
    end: int
    length: int = SHORTEST
    followed: int = 1
    windows: list[Window] = field(default_factory=list)
    begin: int = field(init=False)
    reach: int = 0  # see `farahead`

    def __post_init__(self) -> None:
        self.begin = self.end


class ReadAhead:
    """The runs and windows of one worker.

    Args:
        disk: reads windows. The token of a read is its window.
        last_start: takes a file and a byte offset, and returns the start of the record at that
            offset. Windows end there, because a partial record could not be verified.
    """

    def __init__(self, disk: Disk, last_start: Callable[[int, int], int]) -> None:
        self._disk = disk
        self._last_start = last_start
        self._runs: list[Run] = []  # the most recently used one is last
        self._windows: list[Window] = []  # of all runs

    def find(self, piece: FilePiece) -> Sequence[Window]:
        """Return the window that contains a piece. May start to read the run's next window."""
        end = piece.begin + piece.length
        for window in self._windows:
            if window.has(piece):
                run = window.run
                self._use(run, end)
                if window is run.windows[-1] and 2 * end > window.begin + window.end:
                    self._open(run, window.end)
                return (window,)
        return ()

    def follow(self, piece: FilePiece) -> Sequence[Window]:
        """Open a window that begins with a piece. Without one, the piece must be read alone."""
        end = piece.begin + piece.length
        for run in reversed(self._runs):
            if run.file == piece.file and 0 <= piece.begin - run.end <= GAP:
                run.followed += 1
                self._use(run, end)
                return () if run.followed < FOLLOWING else self._start(run, piece)
        self._runs.append(Run(piece.file, end))
        if len(self._runs) > RUNS:
            self._end(self._runs.pop(0))
        return ()

    def forget(self, window: Window) -> None:
        """Drop a window that could not be read."""
        window.run.windows = [other for other in window.run.windows if other is not window]
        window.run.followed = 0
        self._close([window])

    def _start(self, run: Run, piece: FilePiece) -> Sequence[Window]:
        """Open the first window of a run, or another one after a gap; return it."""
        if piece.length > SMALL:
            return ()
        window = self._open(run, piece.begin, piece.begin + piece.length)
        return () if window is None else (window,)

    def _use(self, run: Run, end: int) -> None:
        run.end = max(run.end, end)
        if run is not self._runs[-1]:
            self._runs.remove(run)
            self._runs.append(run)

    def _open(self, run: Run, begin: int, least: int | None = None) -> Window | None:
        """Start to read a run's next window from `begin` on.

        Return None if no window can be opened: no record ends after `least` (by default `begin`)
        within the window's length, the disk is busy, or memory is short. The caller then reads its
        piece alone.
        """
        end = self._end_of_window(run, begin)
        if end <= (begin if least is None else least) or not self._disk.has_room:
            return None
        window = Window(run, run.file, begin, end)
        try:  # list the window only after this: requests would wait for ever for an unread window
            self._disk.add(window, run.file, begin, end - begin, kept=True)
        except (MemoryError, OSError):
            return None
        self._grow(run)
        run.windows.append(window)
        self._windows.append(window)
        return window

    def _end_of_window(self, run: Run, begin: int) -> int:
        return self._last_start(run.file, begin + run.length)

    def _grow(self, run: Run) -> None:
        """Make room for another window of a run, and let the one after it be longer."""
        run.length = min(2 * run.length, LONGEST)
        self._close(run.windows[:-1])
        run.windows = run.windows[-1:]

    def _end(self, run: Run) -> None:
        """Drop the windows of a run."""
        self._close(run.windows)
        run.windows = []  # break the reference cycle, so that the memory is freed at once

    def _close(self, windows: list[Window]) -> None:
        """Stop offering windows to new requests. Requests that wait for one still get it."""
        self._windows = [window for window in self._windows if window not in windows]
