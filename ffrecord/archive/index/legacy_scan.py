"""A fast scan of the index that the original FFRecord writes.

The original pickles nested OrderedDicts with Python's pickler, so the opcodes of a file always look
alike: a text, its number in the memo, an integer. numpy finds every byte at which such a group of
opcodes may begin, and where the group would end. Groups that follow each other without a gap are a
run of files. A loop then goes from run to run; only the opcodes of folders are taken one by one.

The scan raises no errors. It declines every pickle that differs from the original's pickles, even
if the difference does no harm; `legacy` then interprets that pickle opcode by opcode. So the scan
may accept only pickles that the interpreter accepts, with the same result. Nothing is unpickled.
"""

from __future__ import annotations

import re
from array import array
from bisect import bisect_left
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ffrecord.aliases import Bytes, Ints, Mask
from ffrecord.format.index import DEEPEST, LONGEST_NAME

ROOT = -1
"""The root in a column of entries. It has no entry of its own."""

BATCH = 1000
"""Items that `pickle` sets at once. The stack never has more items of one dictionary."""

AT_A_TIME = 1 << 18
"""Bytes whose intermediate results are in memory at once."""

_PADDING = bytes(1024)
"""Zeros behind the pickle: any argument can be read to its end. No opcode is 0."""

_MARK, _SETITEMS, _SETITEM, _STOP, _FRAME, _MEMOIZE, _SHORT_TEXT, _TEXT = b"(us.\x95\x94\x8cX"
_FRAME_BYTES = 9  # opcode and argument
_PUT = rb"(\x94|q.|r....)"
_HEADER = re.compile(
    rb"\x80[\x02-\x05](?:\x95.{8})?"
    rb"(?:ccollections\nOrderedDict\n|"
    rb"\x8c\x0bcollections" + _PUT + rb"?\x8c\x0bOrderedDict" + _PUT + rb"?\x93)"
    + _PUT + rb"\)R" + _PUT + rb"?",
    re.DOTALL,
)  # fmt: skip
"""Start of a pickled OrderedDict: protocol, frame, class and the root without its items.

The four groups are the opcodes that put these into the memo: the module's name, the name of the
class, the class, the root.
"""


def _table(values: dict[bytes, int]) -> Ints:
    """Return an array with a value for each opcode, and zeros for all others."""
    table = np.zeros(256, np.int64)
    for opcode, value in values.items():
        table[ord(opcode)] = value
    return table


_NAMES = _table({b"\x8c": 2, b"X": 5, b"h": 2, b"j": 5})
"""Bytes of the opcodes that push a name. The argument is the length of the text behind it, or the
number of a text in the memo."""

_PUTS = _table({b"\x94": 1, b"q": 2, b"r": 5})
"""Bytes of the opcodes that put the top of the stack into the memo."""

_NUMBERS = _table({b"K": 2, b"M": 3, b"J": 5})
"""Bytes of the opcodes that push an integer."""

_BITS = np.array([0, 0, 0xFF, 0xFFFF, 0, 0xFFFFFFFF], np.int64)
"""The bits of an argument in the four bytes after an opcode, for each size of opcode."""

_IS_TEXT = _table({b"\x8c": 1, b"X": 1}) > 0


@dataclass(frozen=True, slots=True)
class Entries:
    """Columns of the files and folders in a pickle. Each folder comes before its contents."""

    data: bytes
    name: Ints  # place of the name in `data`
    length: Ints  # of the name, in bytes
    parent: Ints  # entry of the folder that contains the entry, or ROOT
    is_folder: Mask
    record: Ints  # record number of a file, 0 for a folder


class _UnusualError(Exception):
    """The original does not write such a pickle, or hardly ever."""


def scan(raw: bytes | bytearray, start: int, most_entries: int) -> Entries | None:
    """Return the entries of the pickle that begins at `start`, or None to decline it.

    The caller checks the names, their order, the record numbers and the depth of folders.
    """
    data = b"".join([memoryview(raw)[start:], _PADDING])
    try:
        walk = _Walk(data, most_entries)
        walk.run()
        return _entries(walk)
    except _UnusualError:
        return None


class _Walk:
    """One pass over a pickle, which finds the place and the folder of each entry.

    A run of entries is a pair of numbers: its first entry, and the entry after its last. A folder
    is a run of its own.
    """

    def __init__(self, data: bytes, most_entries: int) -> None:
        header = _HEADER.match(data)
        if header is None:
            raise _UnusualError
        self.data = data
        self.places = array("q")  # of the opcode that pushes the name of each entry
        self.folders = array("q")  # entries that are folders
        self.runs = array("q")  # three numbers each: a run, and the folder that contains it
        puts = [group for group in range(1, 5) if header.group(group)]
        self.puts = array("q", map(header.start, puts))  # places of all puts but those of names
        self._opening = (b"h" + bytes([puts.index(3)]), b")", b"R")  # fetch the class, and call it
        self._whole_opening = b"".join(self._opening)
        self._most_entries = most_entries
        self._stack: list[tuple[int, int]] = []  # runs that no folder contains yet
        self._pending = 0  # entries in these runs
        self._marks: list[int] = []
        self._is_folder = {ROOT}
        self._after_frame(2)  # checks only the size: the header includes the frame
        self._begin = header.end()

    def run(self) -> None:
        """Walk to the end of the pickle."""
        data, marks, at = self.data, self._marks, self._begin
        raw = _Raw(data)
        files = _Files(raw, at)
        while (opcode := data[at]) != _STOP:
            if opcode == _SETITEMS:
                self._set_batch()
                at += 1
            elif opcode == _MARK:
                marks.append(len(self._stack))
                if len(marks) > DEEPEST:
                    raise _UnusualError
                at += 1
            elif opcode == _SETITEM:
                self._set_item()
                at += 1
            elif opcode == _FRAME:
                at = self._after_frame(at)
            else:
                if at >= files.end:
                    files = _Files(raw, at)
                places, end = files.following(at)
                at = self._push(places, end) if places else self._entry(at)
        if self._stack or marks:
            raise _UnusualError

    def _push(self, places: array[int], end: int) -> int:
        """Push a run of entries; return where it ends."""
        first = len(self.places)
        self.places += places
        self._stack.append((first, first + len(places)))
        self._pending += len(places)
        # With these limits, the limits of the interpreter hold too.
        if self._pending > BATCH * (len(self._marks) + 1) or len(self.places) > self._most_entries:
            raise _UnusualError
        return end

    def _entry(self, at: int) -> int:
        """Push an entry, opcode by opcode; return where it ends, or where its items begin."""
        data, entry = self.data, len(self.places)
        at = self._push(array("q", (at,)), self._after_frame(self._after_name(at)))
        if size := _NUMBER_SIZES[data[at]]:
            return at + size
        if data.startswith(self._whole_opening, at):
            at += len(self._whole_opening)
        else:
            for opcode in self._opening:  # with a frame between them
                if not data.startswith(opcode, at):
                    raise _UnusualError
                at = self._after_frame(at + len(opcode))
        self.folders.append(entry)
        self._is_folder.add(entry)
        if size := _PUT_SIZES[data[at]]:
            self.puts.append(at)
        return at + size

    def _after_name(self, at: int) -> int:
        """Return where the opcodes of a name end: those of a text, and its put into the memo."""
        data, opcode = self.data, self.data[at]
        size = _NAME_SIZES[opcode]
        if not size:
            raise _UnusualError
        if opcode not in (_SHORT_TEXT, _TEXT):
            return at + size
        length = int.from_bytes(data[at + 1 : at + size], "little")
        if length > LONGEST_NAME:
            raise _UnusualError
        at += size + length
        return at + _PUT_SIZES[data[at]]

    def _after_frame(self, at: int) -> int:
        """Return the place after the frame header at `at`; `at` itself if no frame begins there."""
        if self.data[at] != _FRAME:
            return at
        begin = at + _FRAME_BYTES
        size = int.from_bytes(self.data[at + 1 : begin], "little")
        if size > len(self.data) - len(_PADDING) - begin:
            raise _UnusualError
        return begin

    def _set_batch(self) -> None:
        """Put the entries since the last mark into the folder before them."""
        if not self._marks:
            raise _UnusualError
        self._set(self._marks.pop())

    def _set_item(self) -> None:
        """Put the last entry into the folder before it."""
        first, stop = self._stack[-1] if self._stack else (0, 0)
        if stop - first != 1:  # there is no entry, or the one before it is a file
            raise _UnusualError
        self._set(len(self._stack) - 1)

    def _set(self, place: int) -> None:
        """Put the runs from a place of the stack on into the folder before it."""
        stack, marks = self._stack, self._marks
        folder = stack[place - 1][0] if place else ROOT
        if folder not in self._is_folder or (marks and marks[-1] > place):
            raise _UnusualError
        for first, stop in stack[place:]:
            self.runs.extend((first, stop, folder))
            self._pending -= stop - first
        del stack[place:]


_NAME_SIZES, _PUT_SIZES, _NUMBER_SIZES = (
    bytes(table.astype(np.uint8)) for table in (_NAMES, _PUTS, _NUMBERS)
)
_NAME_OPCODES = _NAMES.nonzero()[0].tolist()
_NOTHING = array("q")


class _Files:
    """The files that begin in a part of a pickle, AT_A_TIME bytes from `begin` on.

    A file is a name with a number behind it. The middle of a name may look like a file too, so
    the caller must ask only for places where an opcode begins.
    """

    def __init__(self, raw: _Raw, begin: int) -> None:
        self.end = min(begin + AT_A_TIME, len(raw.bytes) - len(_PADDING))
        some = raw.bytes[begin : self.end]
        found = [(some == opcode).nonzero()[0] for opcode in _NAME_OPCODES]
        places = np.sort(np.concatenate(found)) + begin
        names = raw.names(places)
        sizes = _NUMBERS[raw.bytes[names.end]]
        is_file = (sizes > 0) & (names.length <= LONGEST_NAME)
        places, ends = places[is_file], (names.end + sizes)[is_file]
        is_last = np.ones(len(places), bool)  # True for the last file of each run
        is_last[:-1] = ends[:-1] != places[1:]
        last = is_last.nonzero()[0]
        self._places = array("q", places.tobytes())
        self._ends = array("q", ends.tobytes())
        self._last = array("q", np.repeat(last, np.diff(last, prepend=-1)).tobytes())

    def following(self, at: int) -> tuple[array[int], int]:
        """Return the places of files that follow each other from `at` on, and where they end."""
        places = self._places
        first = bisect_left(places, at)
        if first == len(places) or places[first] != at:
            return _NOTHING, at
        last = self._last[first]
        return places[first : last + 1], self._ends[last]


@dataclass(frozen=True, slots=True)
class _Names:
    """Columns of the opcodes that push names, and perhaps put them into the memo."""

    argument: Ints
    is_text: Mask
    text: Ints  # place of the text
    length: Ints  # of the text, at most LONGEST_NAME + 1
    put: Ints  # place where the text is put into the memo
    is_put: Mask
    end: Ints


class _Raw:
    """The bytes of a pickle, read at many places at once."""

    def __init__(self, data: bytes) -> None:
        self.bytes: Bytes = np.frombuffer(data, np.uint8)
        # A word of four bytes begins at each byte.
        self._words: npt.NDArray[Any] = np.ndarray((len(data) - 3,), "<u4", data, strides=(1,))

    def arguments(self, places: Ints, sizes: Ints) -> Ints:
        """Return the arguments of opcodes that have `sizes` bytes each."""
        found: Ints = self._words[places + 1] & _BITS[sizes]
        return found

    def names(self, places: Ints) -> _Names:
        """Return the names that are pushed at these places."""
        opcodes = self.bytes[places]
        sizes, is_text = _NAMES[opcodes], _IS_TEXT[opcodes]
        argument = self.arguments(places, sizes)
        text = places + sizes
        length = np.minimum(argument, LONGEST_NAME + 1) * is_text
        put = text + length
        put_size = _PUTS[self.bytes[put]] * is_text
        return _Names(argument, is_text, text, length, put, put_size > 0, put + put_size)


def _entries(walk: _Walk) -> Entries:
    """Return the columns of the entries that a walk has found."""
    raw = _Raw(walk.data)
    names = raw.names(np.frombuffer(walk.places, np.int64))
    text, length = _texts(raw, names, np.frombuffer(walk.puts, np.int64))
    is_folder = np.zeros(len(text), bool)
    is_folder[np.frombuffer(walk.folders, np.int64)] = True
    runs = np.frombuffer(walk.runs, np.int64).reshape(-1, 3)
    first, stop, folder = runs[np.argsort(runs[:, 0])].T
    parent = np.repeat(folder, stop - first)
    return Entries(walk.data, text, length, parent, is_folder, _records(raw, names.end))


def _texts(raw: _Raw, names: _Names, other_puts: Ints) -> tuple[Ints, Ints]:
    """Return the place and length of each name, also of names that are fetched from the memo."""
    in_memo = names.is_put.nonzero()[0]
    puts = np.sort(np.concatenate([other_puts, names.put[in_memo]]))
    opcodes = raw.bytes[puts]
    numbers = raw.arguments(puts, _PUTS[opcodes])
    if (numbers != np.arange(len(puts)))[opcodes != _MEMOIZE].any():
        raise _UnusualError
    fetched = (~names.is_text).nonzero()[0]
    if not len(fetched):
        return names.text, names.length
    # The entry whose name each put stores. Other puts get a number larger than any entry's.
    memo = np.full(len(puts), len(names.text))
    memo[np.searchsorted(puts, names.put[in_memo])] = in_memo
    number = names.argument[fetched]
    if number.max() >= len(memo) or (memo[number] >= fetched).any():
        raise _UnusualError
    source = np.arange(len(names.text))
    source[fetched] = memo[number]
    return names.text[source], names.length[source]


def _records(raw: _Raw, places: Ints) -> Ints:
    """Return the record numbers at these places, with 0 for a folder."""
    places = places + _FRAME_BYTES * (raw.bytes[places] == _FRAME)
    records = raw.arguments(places, _NUMBERS[raw.bytes[places]])
    if records.size and records.max() >= 1 << 31:  # a negative number
        raise _UnusualError
    return records
