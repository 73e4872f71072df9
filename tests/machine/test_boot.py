"""The id of the kernel's run: the kernel's own text, and None where there is none."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from ffrecord.machine import boot


def test_the_id_is_that_of_the_kernel() -> None:
    assert str(uuid.UUID(boot.boot_id())) == boot.boot_id()


@pytest.mark.parametrize("content", [None, b"", b"\n", b"\xff\xfe"])
def test_without_an_id_there_is_none(
    content: bytes | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "boot_id"
    if content is not None:
        path.write_bytes(content)
    monkeypatch.setattr(boot, "ID", path)
    assert boot.boot_id.__wrapped__() is None
