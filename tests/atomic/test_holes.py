"""Blocks of zeros become holes on request, and the bytes stay the same."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ffrecord import PackedFolder, SampleChecksumError
from ffrecord.atomic.holes import HOLE, data_runs
from tests.support import archives, trees

MIB = 1 << 20
DATA = trees.content(3 * HOLE)

# name -> size, and the data at some offsets of a file that is otherwise zeros
FILES: dict[str, tuple[int, dict[int, bytes]]] = {
    "nothing": (0, {}),
    "one zero": (1, {}),
    "a small hole": (HOLE, {}),
    "no holes": (3 * HOLE, {0: DATA}),
    "ends in a hole": (5 * HOLE + 7, {0: DATA}),
    "begins with a hole": (10 * HOLE + len(DATA), {10 * HOLE: DATA}),
    "a hole between": (20 * HOLE, {0: DATA, 17 * HOLE: DATA}),
    "a byte in the middle": (9 * HOLE, {4 * HOLE + 5: b"x"}),
    "the last byte": (9 * HOLE, {9 * HOLE - 1: b"x"}),
    "a short end": (6 * HOLE + 5, {6 * HOLE: b"12345"}),
    "large, a hole": (40 * MIB + 3, {}),
    "large, islands": (40 * MIB, {k * 5 * MIB + k: DATA for k in range(8)}),
    "large, ends in a hole": (20 * MIB, {0: trees.content(9 * MIB)}),
}


def blocks_of_data(content: bytes) -> int:
    return sum(any(content[at : at + HOLE]) for at in range(0, len(content), HOLE))


def content_of(size: int, parts: dict[int, bytes]) -> bytes:
    content = bytearray(size)
    for at, part in parts.items():
        content[at : at + len(part)] = part
    return bytes(content)


CONTENT = {name: content_of(*parts) for name, parts in FILES.items()}


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an archive of files with holes, if the file system supports holes."""
    top = tmp_path_factory.mktemp("holes")
    (top / "tree").mkdir()
    for name, (size, parts) in FILES.items():
        with open(top / "tree" / name, "wb") as file:
            for at, part in parts.items():
                file.seek(at)
                file.write(part)
            file.truncate(size)
    archives.pack(top / "tree", top / "a.ffr")
    return top / "a.ffr"


def has_holes(folder: Path) -> bool:
    """Return True if the file system has holes with blocks that are not larger than ours."""
    with open(folder / "probe", "wb") as file:
        file.truncate(64 * HOLE)
        file.seek(32 * HOLE)
        file.write(b"x")
    found = os.stat(folder / "probe").st_blocks * 512
    os.unlink(folder / "probe")
    return found <= HOLE


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("again", [False, True])
def test_files_are_the_same_bytes_with_and_without_holes(
    sparse: bool, again: bool, archive: Path, tmp_path: Path
) -> None:
    with PackedFolder(archive) as folder:
        if again:  # over existing files with other bytes
            folder.extract(tmp_path)
            for name, content in CONTENT.items():
                (tmp_path / name).write_bytes(b"\xff" * (len(content) + 1))
        report = folder.extract(tmp_path, overwrite=again, sparse=sparse)
    assert (report.files, report.bytes) == (len(FILES), sum(map(len, CONTENT.values())))
    for name, content in CONTENT.items():
        assert (tmp_path / name).read_bytes() == content, name
    if not has_holes(tmp_path):
        pytest.skip("this file system has no holes")
    for name, content in CONTENT.items():
        taken = os.stat(tmp_path / name).st_blocks * 512
        if sparse:
            own = 16 * HOLE if len(content) > MIB else 0  # for the list of extents
            assert taken <= blocks_of_data(content) * HOLE + own, name
        else:
            assert taken >= len(content), name


def test_the_command_makes_holes_on_request(archive: Path, tmp_path: Path) -> None:
    taken = {}
    for option in ("--no-progress", "--sparse", "-S"):
        dest = tmp_path / f"x{option}"
        words = [sys.executable, "-m", "ffrecord", "extract", str(archive), "-C", str(dest)]
        subprocess.run([*words, option], check=True, capture_output=True)
        assert (dest / "large, islands").read_bytes() == CONTENT["large, islands"]
        taken[option] = sum(each.stat().st_blocks for each in dest.iterdir())
    if not has_holes(tmp_path):
        pytest.skip("this file system has no holes")
    # The sums may differ a little: blocks besides a file's data depend on how full the disk is.
    assert max(taken["--sparse"], taken["-S"]) < taken["--no-progress"] // 4


def test_damage_in_a_hole_is_found(archive: Path, tmp_path: Path) -> None:
    copy = tmp_path / "a.ffr"
    copy.write_bytes(archive.read_bytes())
    archives.damage(copy, "large, a hole", 30 * MIB)
    with PackedFolder(copy) as folder, pytest.raises(SampleChecksumError):
        folder.extract(tmp_path / "x", ["large, a hole"], sparse=True)
    assert os.listdir(tmp_path / "x") == []


@given(
    st.lists(st.tuples(st.just(0) | st.integers(1, 255), st.integers(1, 3 * HOLE)), max_size=6),
    st.integers(0, 7),
)
def test_runs_of_data_cover_all_blocks_that_are_not_zeros(
    parts: list[tuple[int, int]], before: int
) -> None:
    fills = [np.full(size, byte, np.uint8) for byte, size in [(1, before), *parts]]
    data = np.concatenate(fills)[before:]  # at any address
    runs = list(data_runs(data))
    written = np.zeros(len(data), np.uint8)
    inside = np.zeros(len(data), bool)
    for begin, end in runs:
        assert begin < end
        written[begin:end] = data[begin:end]
        inside[begin:end] = True
    assert np.array_equal(written, data)
    for at in range(0, len(data), HOLE):
        assert inside[at : at + HOLE].all() == inside[at : at + HOLE].any()
        assert inside[at] == data[at : at + HOLE].any()
    assert all(end < begin for (_, end), (begin, _) in pairwise(runs))
