"""Shared fixtures of the record tests: files, readers and writers."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest

from ffrecord import FileReader
from ffrecord.records import resume
from tests.support import handmade
from tests.support.handmade import OLD
from tests.support.modes import MODES
from tests.support.unfinished import RECORDS

# ---- unfinished files ----------------------------------------------------------------------

# Bytes reserved for the header of a file whose number of records is unknown. If these are too many
# or too few, closing copies the file; otherwise closing renames it.
ENDS = {"renamed": 64, "copied": 1 << 20, "copied for lack of room": 48}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return the path of a file that is not written yet."""
    return tmp_path / "long.ffr"


@pytest.fixture(params=ENDS)
def end(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Set the room for the header so that closing renames or copies the file; return which."""
    room = ENDS[request.param]
    if request.param == "renamed":
        room = 12 + 12 * len(RECORDS)
    monkeypatch.setattr(resume, "ROOM", room)
    return str(request.param)


# ---- readers -------------------------------------------------------------------------------


@pytest.fixture(params=MODES)
def mode(request: pytest.FixtureRequest) -> str:
    """Return each mode of reading in turn."""
    return str(request.param)


@pytest.fixture
def reader(sample_file: Path, mode: str) -> Iterator[FileReader]:
    """Open the sample file in each mode."""
    with FileReader(sample_file, mode=mode) as reader:
        yield reader


@pytest.fixture
def three_files(tmp_path: Path) -> tuple[list[str], list[bytes]]:
    """Write three files, the second without records; return their paths and all records."""
    sizes = [[100, 0, 5000, 17], [], [4096] * 5 + [1]]
    shards = [handmade.random_records(s, seed) for seed, s in enumerate(sizes)]
    folder = tmp_path / "shards"
    folder.mkdir()
    paths = [
        str(handmade.write_records(folder / f"{i}.ffr", records, gap=i))
        for i, records in enumerate(shards)
    ]
    return paths, [record for records in shards for record in records]


# ---- writers -------------------------------------------------------------------------------


@pytest.fixture
def target(tmp_path: Path) -> Path:
    """Return the path of an existing file that is alone in its folder."""
    folder = tmp_path / "folder"
    folder.mkdir()
    path = folder / "target.ffr"
    path.write_bytes(OLD)
    return path


@pytest.fixture
def _no_writer_is_left_open() -> Iterator[None]:
    """Collect garbage after the test, so that a writer left open warns in that test."""
    yield
    gc.collect()
