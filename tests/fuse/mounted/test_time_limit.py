"""The time limit of this folder's tests, which holds even if a daemon hangs."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.fuse.mounted import mounting
from tests.support import archives, trees


def test_a_test_that_waits_for_a_hanging_daemon_is_ended(tmp_path: Path) -> None:
    archives.pack(trees.plain_tree(tmp_path / "tree", {"file": b"content"}), tmp_path / "tree.ffr")
    with mounting.mounted(tmp_path / "tree.ffr", tmp_path / "mnt") as path:
        for pid in mounting.processes(path):
            os.kill(pid, signal.SIGSTOP)
        with pytest.raises((mounting.OutOfTimeError, OSError)), mounting.time_limit(0.5):
            os.stat(path / "file")
        assert mounting.wait_until_ended(path)
