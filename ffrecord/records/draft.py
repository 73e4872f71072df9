"""A record file that is being written: where a `FileWriter` begins, or goes on."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ffrecord.atomic.file import Naming, NewFile
from ffrecord.format import records as record_layout


@dataclass(frozen=True, slots=True)
class Draft:
    """The next record goes to `end`; the header has `room` bytes in front of the first one.

    Args:
        checksums, offsets: of the records that are in it already.
        note: is told the ends and checksums of records that are on disk from now on.
        is_finished: it is a finished file, which stays as it is.
    """

    file: NewFile
    room: int
    end: int
    checksums: array[int] = field(default_factory=lambda: array("I"))
    offsets: array[int] = field(default_factory=lambda: array("q"))
    note: Callable[[Sequence[int], Sequence[int]], None] | None = None
    is_finished: bool = False


def new(naming: Naming, n: int | None) -> Draft:
    """A file without records. The header's size follows from how many it will hold."""
    room = 0 if n is None else record_layout.header_size(n)
    return Draft(NewFile(naming), room, room)
