"""Run every operation with one failing system call at a time. `cases` lists the requirements."""

from __future__ import annotations

import pytest

from tests.robustness.faults import converting
from tests.robustness.faults.conftest import Server
from tests.robustness.faults.server import MAKERS

# Calls that an operation must make. Otherwise its test would miss its purpose.
CALLS = {
    "read aio, unchecked": {"io_setup", "io_submit", "io_getevents", "completion"},
    "read buffered": {"read"},
    "folder": {"sendfile", "completion"},
    "write": {"open", "write", "fsync", "rename", "truncate"},
    "resume": {"read", "write", "fsync", "rename", "lock"},
    "append to dataset": {"read", "write", "fsync", "rename", "lock", "link"},
    "extract over": {"read", "write", "rename"},
    "convert tfrecord": {"read", "write", "fsync", "rename"},
    "convert to tar": {"read", "write", "fsync", "rename"},
    "serve, cold": {"io_submit", "io_getevents", "completion"},
    "serve, cached": {"read"},
    "serve a failing kernel": {"read", "write"},
}
FEWEST = 5
IO_CALLS = {"io_submit", "io_getevents", "completion"}


EVERY = [
    pytest.param(name, marks=pytest.mark.long if name in converting.LONG else []) for name in MAKERS
]


@pytest.mark.parametrize("name", EVERY)
def test_a_failing_call_gives_the_right_result_or_an_error_with_the_file(
    name: str, server: Server, every: bool
) -> None:
    tally = server.run(name, every=every)
    assert not tally.bad, f"{len(tally.bad)} of {tally.cases}: " + "\n".join(tally.bad[:10])
    assert tally.cases > FEWEST
    missing = CALLS.get(name, set()) - tally.calls.keys()
    assert missing <= IO_CALLS
    if missing:  # other programs use all AIO contexts that fs.aio-max-nr allows
        pytest.skip("no AIO context was available, so the operation was tested without AIO")
