"""The starting point of a `FileWriter`: a new file, possibly with records in it already."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ffrecord.atomic.file import Naming, NewFile
from ffrecord.format import records as record_layout
from ffrecord.format.padding import UNALIGNED, rounded_up


@dataclass(frozen=True, slots=True)
class Draft:
    """A file that is being written. The next record goes to byte `end`.

    Args:
        file: the file.
        room: bytes reserved for the header, in front of the first record.
        end: end of the last record.
        checksums: the CRC-32 of each record that the file already has.
        offsets: the start of each of these records.
        note: called with the ends and checksums of records when they have reached the disk.
        is_finished: True for a finished file, which stays unchanged.
    """

    file: NewFile
    room: int
    end: int
    checksums: array[int] = field(default_factory=lambda: array("I"))
    offsets: array[int] = field(default_factory=lambda: array("q"))
    note: Callable[[Sequence[int], Sequence[int]], None] | None = None
    is_finished: bool = False


def new(naming: Naming, n: int | None, align: int = UNALIGNED) -> Draft:
    """Return a draft without records, with room for the header of `n` records if `n` is known.

    The room is a multiple of `align`.
    """
    room = 0 if n is None else rounded_up(record_layout.header_size(n), align)
    return Draft(NewFile(naming), room, room)
