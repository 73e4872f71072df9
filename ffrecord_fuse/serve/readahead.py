"""Cold files read one after the other, as `tar`, `cp -a` and `grep -r` do: read ahead.

Most disks, and all that are reached over a network, take about as long for 10 kB as for a
megabyte. Files lie in an archive in the order in which they are listed. So where requests follow
one another there, what comes next is read with them: a window, which the following requests are
answered from, and another one behind it before the first is used up. Windows are memory of this
process, not of the page cache: what is served is cached once, by the mount.

Requests that jump about are not followed, and cost what they ask for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from ffrecord.archive.blocks import FilePiece

FOLLOWING = 3
"""Reads that come one behind the other before more is read than was asked for."""
GAP = 64 << 10
"""Bytes left out between two of them: other names of a file, files that somebody skips."""
SHORTEST = 128 << 10
LONGEST = (2 << 20) - (8 << 10)
"""What fits into one huge page with the disk's alignment at both ends."""
SMALL = LONGEST // 4
"""Longer reads are long enough as they are."""
RUNS = 8
"""Clients, or so, that are followed at a time; each may have two windows."""


class Disk(Protocol):
    """Where windows are read; see `ColdReads`."""

    @property
    def has_room(self) -> bool: ...

    def add(
        self, token: object, file: int, begin: int, length: int, *, kept: bool = False
    ) -> None: ...


@dataclass(eq=False, slots=True)
class Window:
    """Some bytes of an archive's file, read or being read."""

    run: Run
    file: int
    begin: int
    end: int
    memory: memoryview | None = None
    waiting: list[tuple[int, FilePiece]] = field(default_factory=list)
    """Requests, by their numbers, that it is still being read for."""

    def has(self, piece: FilePiece) -> bool:
        return (
            self.begin <= piece.begin
            and piece.begin + piece.length <= self.end
            and self.file == piece.file
        )

    def part(self, piece: FilePiece) -> memoryview:
        """The bytes of a piece, once they are there."""
        assert self.memory is not None
        at = piece.begin - self.begin
        return self.memory[at : at + piece.length]


@dataclass(eq=False, slots=True)
class Run:
    """Reads of which each begins where the one before ended, or not far behind."""

    file: int
    end: int
    length: int = SHORTEST
    followed: int = 1
    windows: list[Window] = field(default_factory=list)


class ReadAhead:
    """The bytes that the requests of one worker are likely to ask for next.

    Args:
        disk: reads windows, and hands each back, as a token, with its memory.
        last_start: of a file and a byte in it, where the record begins that has this byte. A
            window ends with a record: of one that it had in part, nothing could be verified.
    """

    def __init__(self, disk: Disk, last_start: Callable[[int, int], int]) -> None:
        self._disk = disk
        self._last_start = last_start
        self._runs: list[Run] = []  # the one that was used last is the last
        self._windows: list[Window] = []  # of all of them

    def find(self, piece: FilePiece) -> Window | None:
        """The window that has a piece. What comes after that may be put on its way."""
        end = piece.begin + piece.length
        for window in self._windows:
            if window.has(piece):
                run = window.run
                self._use(run, end)
                if window is run.windows[-1] and 2 * end > window.begin + window.end:
                    self._open(run, window.end)
                return window
        return None

    def follow(self, piece: FilePiece) -> Window | None:
        """A window that begins with a piece which is not in any; None if it is to be read alone."""
        end = piece.begin + piece.length
        for run in reversed(self._runs):
            if run.file == piece.file and 0 <= piece.begin - run.end <= GAP:
                run.followed += 1
                self._use(run, end)
                if run.followed < FOLLOWING or piece.length > SMALL:
                    return None
                return self._open(run, piece.begin, end)
        self._runs.append(Run(piece.file, end))
        if len(self._runs) > RUNS:
            self._end(self._runs.pop(0))
        return None

    def forget(self, window: Window) -> None:
        """A window that could not be read."""
        window.run.windows = [other for other in window.run.windows if other is not window]
        window.run.followed = 0
        self._close([window])

    def _use(self, run: Run, end: int) -> None:
        run.end = max(run.end, end)
        if run is not self._runs[-1]:
            self._runs.remove(run)
            self._runs.append(run)

    def _open(self, run: Run, begin: int, least: int | None = None) -> Window | None:
        """Begin to read a run's next window; None if it would not reach beyond `least`, or if
        there is no memory for it: whoever asks for what is in it reads that alone."""
        end = self._last_start(run.file, begin + run.length)
        if end <= (begin if least is None else least) or not self._disk.has_room:
            return None
        window = Window(run, run.file, begin, end)
        try:  # first: who found one that is not being read would wait for ever
            self._disk.add(window, run.file, begin, end - begin, kept=True)
        except (MemoryError, OSError):
            return None
        run.length = min(2 * run.length, LONGEST)
        self._close(run.windows[:-1])
        run.windows = [*run.windows[-1:], window]
        self._windows.append(window)
        return window

    def _end(self, run: Run) -> None:
        self._close(run.windows)
        run.windows = []  # they know it: nobody would find their memory free otherwise

    def _close(self, windows: list[Window]) -> None:
        """Forget windows. Requests that wait for one still get it."""
        self._windows = [window for window in self._windows if window not in windows]
