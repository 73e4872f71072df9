"""`Records`: record files on the page."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ffrecord.aliases import Bytes, Ints
from ffrecord.errors import FFRecordError
from ffrecord.records.reader import FileReader, table_of
from ffrecord.view.contents import Found, Item, message, read_all
from ffrecord.view.kinds import kind_of
from ffrecord.view.listings import Asked

START = 48  # bytes of a record that the table shows
SMALL = 128 << 10
"""Records up to this size are read whole for a table, and verified. The start of larger ones is
shown unverified, and the page says so: their checksum is that of the whole record."""
VERIFIED = 64  # large records of which the reader remembers that they are undamaged


class Records:
    """Record files. An item's key is the number of its record.

    Args:
        reader: the reader of the files. The caller closes it.
    """

    kind = "records"

    def __init__(self, reader: FileReader) -> None:
        self.reader = reader
        self._verified: deque[int] = deque(maxlen=VERIFIED)
        self._orders: dict[tuple[int | None, int, str, bool], Ints] = {}

    def about(self) -> dict[str, Any]:
        return {"entries": self.reader.n}

    def page(
        self, asked: Asked, offset: int, limit: int, go_on: Callable[[], bool]
    ) -> dict[str, Any]:
        """Return the rows of a listing from `offset` on."""
        order = self._order(asked)
        numbers = np.asarray(order[offset : offset + limit], np.int64)
        return {"total": len(order), "offset": offset, "rows": self._rows(numbers)}

    def locate(self, ref: str, asked: Asked | None) -> dict[str, Any]:
        """Return the row of a record, and its position in a listing."""
        number = self._number(ref)
        position: int | None = None
        if asked is not None:
            rows = np.flatnonzero(np.asarray(self._order(asked)) == number)
            position = int(rows[0]) if len(rows) else None
        return {"row": self._rows(np.array([number]))[0], "position": position}

    def _order(self, asked: Asked) -> Ints | range:
        n = self.reader.n
        if asked.seed is None and asked.order != "size":
            return range(n - 1, -1, -1) if asked.reverse else range(n)
        key = asked.seed, asked.count, asked.order, asked.reverse
        numbers = self._orders.get(key)
        if numbers is None:
            self._orders.clear()  # one order is enough: the page shows one
            numbers = np.arange(n)
            if asked.seed is not None:
                generator = np.random.default_rng(asked.seed)
                numbers = generator.choice(n, min(asked.count, n), replace=False)
            if asked.order == "size":
                sizes = self.reader.record_sizes(numbers)
                numbers = numbers[np.argsort(-sizes if asked.reverse else sizes, kind="stable")]
            self._orders[key] = numbers
        return numbers

    def _rows(self, numbers: Ints) -> list[dict[str, Any]]:
        if not len(numbers):
            return []
        sizes = self.reader.record_sizes(numbers)
        starts: dict[int, Found] = {}
        small = numbers[sizes <= SMALL].tolist()
        starts.update(zip(small, read_all(self.reader.read, small), strict=True))
        large = numbers[sizes > SMALL]
        if len(large):
            begin = np.zeros(len(large), np.int64)
            found = table_of(self.reader).read_pieces(large, begin, begin + START, None)
            starts.update(zip(large.tolist(), found, strict=True))
        return [
            _row(number, size, starts[number])
            for number, size in zip(numbers.tolist(), sizes.tolist(), strict=True)
        ]

    def item(self, key: str) -> Item:
        return Item("", self.reader.record_size(self._number(key)))

    def part(self, key: str, offset: int, length: int) -> Bytes:
        number = self._number(key)
        size = self.reader.record_size(number)
        if size <= SMALL:
            return self.reader.read_one(number)[offset : offset + length]
        if number not in self._verified:
            deque(self.reader.stream(number), maxlen=0)  # raises at the end if it is damaged
            self._verified.append(number)
        memory = np.empty(max(0, min(length, size - offset)), np.uint8)
        if len(memory):
            table_of(self.reader).read_unchecked(number, offset, memory)
        return memory

    def whole(self, keys: Sequence[str]) -> list[Found]:
        return read_all(self.reader.read, [self._number(key) for key in keys])

    def _number(self, key: str) -> int:
        number = int(key) if key.isdecimal() else -1
        if not 0 <= number < self.reader.n:
            raise LookupError(f"there is no record {key}; the last is {self.reader.n - 1:,}")
        return number


def _row(number: int, size: int, start: Found) -> dict[str, Any]:
    row: dict[str, Any] = {"id": number, "name": str(number), "ref": str(number), "size": size}
    if isinstance(start, FFRecordError):
        return {**row, "kind": "file", "damaged": message(start)}
    first = start[: START * 2].tobytes()
    return {
        **row, "kind": "file", "content": kind_of("", first), "start": beginning(first[:START]),
        "unverified": size > SMALL,
    }  # fmt: skip


def beginning(first: bytes) -> str:
    """Return the first bytes of a record as text, or as hexadecimal digits if they are not text."""
    text = first.decode("utf-8", "ignore")
    is_text = len(text.encode()) >= len(first) - 3 and all(
        c.isprintable() or c in "\n\t\r" for c in text
    )
    return " ".join(text.split()) if is_text else first[: START // 3].hex(" ")
