"""Files and readers that the tests of records share."""

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

# A file of which the number of records is not known is copied when it is closed, if that saves much
# room, or else renamed.
ENDS = {"renamed": 64, "copied": 1 << 20, "copied for want of room": 48}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "long.ffr"


@pytest.fixture(params=ENDS)
def end(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """How a file of an unknown number of records gets its name."""
    room = ENDS[request.param]
    if request.param == "renamed":
        room = 12 + 12 * len(RECORDS)
    monkeypatch.setattr(resume, "ROOM", room)
    return str(request.param)


# ---- readers -------------------------------------------------------------------------------


@pytest.fixture(params=MODES)
def mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def reader(sample_file: Path, mode: str) -> Iterator[FileReader]:
    with FileReader(sample_file, mode=mode) as reader:
        yield reader


@pytest.fixture
def three_files(tmp_path: Path) -> tuple[list[str], list[bytes]]:
    """Three files in a folder, the second without records, and all records in order."""
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
    """A path at which a file exists already, in a folder of its own."""
    folder = tmp_path / "folder"
    folder.mkdir()
    path = folder / "target.ffr"
    path.write_bytes(OLD)
    return path


@pytest.fixture
def _no_writer_is_left_open() -> Iterator[None]:
    yield
    gc.collect()
