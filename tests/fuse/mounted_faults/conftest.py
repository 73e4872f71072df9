"""Archives to mount, and the check that this machine can mount."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support import archives, trees

BLOCK = 128 << 10


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    why = ""
    if not os.path.exists("/dev/fuse"):
        why = "/dev/fuse is missing"
    elif os.geteuid() != 0:
        why = "these tests mount as root"
    for item in items:
        if why and Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.skip(reason=why))


@dataclass(frozen=True)
class Packed:
    source: Path
    archive: Path


def files() -> dict[str, bytes]:
    """Return small files, and some of several blocks, in several folders."""
    sizes = [(number * 7919) % 40_000 for number in range(150)]
    sizes += [BLOCK * number + 1234 for number in range(1, 7)]
    return {
        f"folder {number % 5}/file {number:03d}": trees.content(size, number)
        for number, size in enumerate(sizes)
    }


@pytest.fixture(scope="package")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Packed:
    top = tmp_path_factory.mktemp("faults")
    source = trees.plain_tree(top / "source", files())
    archives.pack(source, top / "packed.ffr")
    return Packed(source, top / "packed.ffr")


@pytest.fixture
def own(packed: Packed, tmp_path: Path) -> Packed:
    """Return a copy of the archive that the test may damage."""
    copy = tmp_path / "own.ffr"
    copy.write_bytes(packed.archive.read_bytes())
    return Packed(packed.source, copy)


@pytest.fixture
def point(tmp_path: Path) -> Path:
    return tmp_path / "mounted"
