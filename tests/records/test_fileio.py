"""`checkFsAlign`, called as programs for the original FFRecord call it."""

from __future__ import annotations

import fcntl
import os
import struct
from pathlib import Path

import pytest

from ffrecord import checkFsAlign


def test_an_ordinary_file_system_does_not_align_by_itself(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"x")
    with path.open("rb") as file:
        assert checkFsAlign(file.fileno()) is False


def test_a_closed_descriptor_gives_false() -> None:
    fd = os.dup(0)
    os.close(fd)
    assert checkFsAlign(fd) is False


@pytest.mark.parametrize(("answer", "aligned"), [(1, True), (0, False), (2, False)])
def test_only_the_answer_1_of_the_file_system_gives_true(
    answer: int, aligned: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ioctl(_fd: int, request: int, buffer: bytearray) -> int:
        assert request == 0x80046664  # the request number of the original
        struct.pack_into("i", buffer, 0, answer)
        return 0

    monkeypatch.setattr(fcntl, "ioctl", ioctl)
    assert checkFsAlign(0) is aligned
