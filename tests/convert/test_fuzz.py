"""Damaged in any way, a file of another format is converted or one of our errors; nothing else."""

from __future__ import annotations

import io
import os
import random
import shutil
import tarfile
from pathlib import Path

import pytest

from ffrecord import FFRecordError
from ffrecord.convert import convert
from tests.convert import foreign

RECORDS = [b"one", b"", b"three" * 30]


def a_tar(flavour: int, compression: str = "") -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode=f"w:{compression}", format=flavour) as file:  # type: ignore[call-overload]
        for name, content in (("a/b", b"1" * 600), ("x" * 120, b"2"), ("é", b"")):
            info = tarfile.TarInfo(name)
            info.size, info.mtime, info.uid = len(content), 1.5, 1 << 30
            info.pax_headers = {"SCHILY.xattr.user.a": "b"}
            file.addfile(info, io.BytesIO(content))
        for name, kind in (("symlink", tarfile.SYMTYPE), ("hard link", tarfile.LNKTYPE)):
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, "a/b"
            file.addfile(info)
    return out.getvalue()


SEEDS = {
    "tfrecord": ("tfrecord", foreign.tfrecord(RECORDS)),
    "python": (
        "recordio",
        foreign.python_chunk(RECORDS, "snappy") + foreign.python_chunk(RECORDS, "gzip"),
    ),
    "go": ("recordio", foreign.go_chunk(RECORDS, "snappy") + foreign.go_chunk(RECORDS, "gzip")),
    "bag": ("bag", foreign.single_bag(RECORDS, 1)),
    "pax": ("tar", a_tar(tarfile.PAX_FORMAT)),
    "gnu": ("tar", a_tar(tarfile.GNU_FORMAT)),
    "gz": ("tar", a_tar(tarfile.PAX_FORMAT, "gz")),
    "xz": ("tar", a_tar(tarfile.PAX_FORMAT, "xz")),
}
EXTREMES = [b"\xff" * 8, bytes(8), b"\x80\0\0\0", b"\x7f" + b"\xff" * 7]


def damaged(data: bytes, generator: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(generator.choice([1, 1, 2, 5])):
        at = generator.randrange(len(changed) + 1)
        how = generator.randrange(4)
        if how == 0 and at < len(changed):
            changed[at] ^= 1 << generator.randrange(8)
        elif how == 1:
            changed[at : at + generator.choice([1, 4, 8, 12])] = generator.choice(EXTREMES)
        elif how == 2:
            del changed[at : at + generator.randrange(1, 600)]
        else:
            changed[at:at] = generator.randbytes(generator.randrange(1, 40))
    return bytes(changed)


def with_checksums(data: bytes) -> bytes:
    """Tar headers with right checksums: what is damaged in them must get as far as it can."""
    changed = bytearray(data)
    for at in range(0, len(changed) - 511, 512):
        if changed[at + 257 : at + 262] == b"ustar":
            changed[at + 148 : at + 156] = b" " * 8
            changed[at + 148 : at + 156] = b"%06o\0 " % sum(changed[at : at + 512])
    return bytes(changed)


def fuzz(kind: str, rounds: int, seed: int, tmp_path: Path) -> None:
    name, data = SEEDS[kind]
    generator = random.Random(seed)
    source, target = tmp_path / "source", tmp_path / "target"
    for number in range(rounds):
        bad = damaged(data, generator)
        source.write_bytes(with_checksums(bad) if kind in ("pax", "gnu") and number % 2 else bad)
        wanted = generator.choice(["packed", "dataset"]) if name == "tar" else "records"
        try:
            convert(source, target, source_format=name, target_format=wanted)
        except FFRecordError:
            assert os.listdir(tmp_path) == ["source"]
            continue
        shutil.rmtree(target) if target.is_dir() else target.unlink()


@pytest.mark.parametrize("kind", SEEDS)
def test_damaged_files_are_converted_or_our_errors(kind: str, tmp_path: Path) -> None:
    fuzz(kind, 60, 1, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("kind", SEEDS)
def test_many_damaged_files_are_converted_or_our_errors(kind: str, tmp_path: Path) -> None:
    fuzz(kind, 5000, 2, tmp_path)
