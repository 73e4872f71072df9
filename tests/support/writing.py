"""Checks of a replaced file, file systems that lack a feature, and streams to write."""

from __future__ import annotations

import errno
import io
import os
from pathlib import Path
from typing import Any

import pytest

from ffrecord import FileReader
from ffrecord.atomic import file as atomic_file
from tests.support import handmade
from tests.support.handmade import OLD


def untouched(path: Path) -> bool:
    """Return True if the file is as before, and its folder contains nothing else."""
    return path.read_bytes() == OLD and os.listdir(path.parent) == [path.name]


def read_all(path: Path) -> list[bytes]:
    with FileReader(path) as reader:
        return handmade.as_bytes(reader.read(range(reader.n)))


def without_tmpfile(monkeypatch: pytest.MonkeyPatch, code: int = errno.EOPNOTSUPP) -> None:
    plain = os.open

    def refusing(path: Any, flags: int, *args: Any, **kwargs: Any) -> int:
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(code, os.strerror(code), path)
        return plain(path, flags, *args, **kwargs)

    monkeypatch.setattr(os, "open", refusing)


def without_insert_range(monkeypatch: pytest.MonkeyPatch) -> None:
    def refusing(*_args: int) -> None:
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

    monkeypatch.setattr(atomic_file, "insert_range", refusing)


class Pattern(io.RawIOBase):
    """A stream of `size` bytes that are never in memory all at once."""

    BLOCK = bytes(range(256)) * 4096

    def __init__(self, size: int) -> None:
        self._left = size

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1, /) -> bytes:
        count = min(self._left, len(self.BLOCK), size if size >= 0 else self._left)
        self._left -= count
        return self.BLOCK[:count]
