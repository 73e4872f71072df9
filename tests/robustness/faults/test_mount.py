"""The mount command and its daemon while system calls fail.

Either the command reports the error in one line and leaves nothing behind, or it mounts the archive
and serves the right files.
"""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fuse.mounted import mounting
from tests.fuse.mounted_faults import daemons
from tests.robustness.faults.conftest import ROOT, environment, note
from tests.robustness.faults.reading import FILES
from tests.robustness.faults.shim import Fault
from tests.support import archives, trees
from tests.support.patience import PATIENCE

SECONDS = PATIENCE
STARTING = {"read": 2, "write": 0}
"""The number of the last call of each kind that belongs to mounting, before files are served."""

SOME = [
    Fault("open", "EIO", 0, lasting=False),  # the archive
    Fault("open", "EMFILE", 2, lasting=True),  # /dev/fuse
    Fault("open", "EMFILE", 3, lasting=True),  # the first open of a worker
    Fault("read", "EIO", 3, lasting=False),  # the first request
    Fault("write", "EIO", 0, lasting=False),  # the first reply
    Fault("completion", "EIO", 0, lasting=True),
]  # fmt: skip
ALL = [
    Fault(call, kind, number, lasting)
    for call, count in (("open", 5), ("read", 6), ("write", 3), ("sendfile", 6), ("ioctl", 1))
    for kind in ("EIO", "EAGAIN", "EINTR", "ENOSPC")
    for number in range(count)
    for lasting in (False, True)
    # Leave out faults that last while files are served: no worker could serve then.
    if not lasting or number <= STARTING.get(call, number)
] + [
    Fault(call, kind, 0, lasting)
    for call in ("io_setup", "io_submit", "io_getevents", "completion", "disk")
    for kind in ("EIO", "EAGAIN", "ENOSPC")
    for lasting in (False, True)
]  # fmt: skip


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if mounting.why_not() is not None or os.geteuid() != 0:
        pytest.skip("these tests mount as root")
    folder = tmp_path_factory.mktemp("faults-mount")
    path = folder / "packed" / "packed.ffr"
    path.parent.mkdir()
    archives.pack(trees.plain_tree(folder / "source", FILES), path)
    return path


@pytest.fixture
def point(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "mounted"
    path.mkdir()
    with mounting.time_limit(SECONDS), mounting.released(path):
        yield path


@pytest.mark.parametrize(
    "fault",
    [*SOME, *(pytest.param(each, marks=pytest.mark.long) for each in ALL if each not in SOME)],
    ids=str,
)
def test_a_mount_is_refused_in_one_line_or_serves_the_right_files(
    fault: Fault, archive: Path, point: Path, library: Path
) -> None:
    done = mount(archive, point, library, fault)
    if done.returncode == 0:
        assert mounting.is_mounted(point)
        found = {name: served(point / name) for name in FILES}
        wrong = [name for name, content in found.items() if content not in (FILES[name], None)]
        assert not wrong
        refused = any(content is None for content in found.values())
        assert not refused or fault.call in ("read", "write", "disk")
        note("mount", "RefusedError" if refused else "right")
    else:
        assert len(done.stderr.splitlines()) == 1, done.stderr
        assert "Traceback" not in done.stderr
        assert not mounting.is_mounted(point)
        assert mounting.wait_until_ended(point)
        note("mount", f"exit code {done.returncode}")


def mount(
    archive: Path, point: Path, library: Path, fault: Fault
) -> subprocess.CompletedProcess[str]:
    told = ":".join(map(str, fault.arguments))
    return subprocess.run(
        [sys.executable, "-m", "ffrecord_fuse", str(archive), str(point), "--workers", "1",
         "--log", str(point.with_name("log"))],
        cwd=ROOT, env=environment(library, FAULTS=told, FAULTS_BASE=str(archive.parent)),
        stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=SECONDS,
    )  # fmt: skip


def served(path: Path) -> bytes | None:
    """Return the content of a file; None if it cannot be read."""
    try:
        return daemons.read(path)
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        return None
