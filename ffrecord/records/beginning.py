"""What a `FileWriter` begins with: a file to write to, and the records that are in it already."""

from __future__ import annotations

from array import array
from dataclasses import dataclass

from ffrecord.atomic.file import NewFile
from ffrecord.format import records as record_layout


@dataclass(frozen=True, slots=True)
class Beginning:
    """The next record goes to `end`; the header has `room` bytes in front of the first one."""

    file: NewFile
    room: int
    end: int
    checksums: array[int]
    offsets: array[int]


def new(path: str, n: int | None, kind: type[NewFile] = NewFile) -> Beginning:
    """A file without records. From how many it will hold, the header's size follows."""
    room = 0 if n is None else record_layout.header_size(n)
    return Beginning(kind(path), room, room, array("I"), array("q"))
