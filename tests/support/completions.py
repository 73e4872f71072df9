"""Replace AIO completions of the kernel by short or failed ones."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import pytest

from ffrecord.disk import aio


def change(monkeypatch: pytest.MonkeyPatch, change: Callable[[int], int]) -> list[int]:
    """Replace the result of every completion by `change(result)`.

    The bytes that the new result does not count are overwritten, so that the code under test must
    read them again. Returns a list that collects the new results.
    """
    real, given = aio._io_getevents, []

    def changed(context: object, least: int, most: int, events_at: int, timeout: object) -> int:
        code = int(real(context, least, most, events_at, timeout))
        for number in range(code):
            event = (ctypes.c_int64 * 4).from_address(events_at + 32 * number)
            result = event[2]
            if result > 0:
                event[2] = change(result)
                got = max(event[2], 0)
                buffer = ctypes.c_uint64.from_address(event[1] + 24).value
                ctypes.memset(buffer + got, 0xEE, result - got)
                given.append(event[2])
        return code

    monkeypatch.setattr(aio, "_io_getevents", changed)
    return given
