"""Files and readers that the tests of records share."""

from __future__ import annotations

from pathlib import Path

import pytest

from ffrecord.records import resume
from tests.support.unfinished import RECORDS

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
