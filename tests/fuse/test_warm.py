"""The thread behind `-o warm`: one line in the log, whatever happens, and never an exception."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from ffrecord.archive.archive import Archive
from ffrecord.disk import warming
from ffrecord.machine import memory
from ffrecord_fuse.serve import warm
from tests.support import archives, handmade, trees


@pytest.fixture
def path(tmp_path: Path) -> Path:
    tree = trees.plain_tree(tmp_path / "tree", {"a": trees.content(5 << 20), "b": b"short"})
    archives.pack(tree, tmp_path / "tree.ffr")
    return tmp_path / "tree.ffr"


def test_the_archive_is_cached_and_the_log_says_so(path: Path) -> None:
    handmade.evict(path)
    lines: list[str] = []
    with Archive.open(path) as archive:
        warm.warm(archive, lines.append)
    (line,) = lines
    assert line.startswith(f"{path}: 5.")
    assert line.endswith("5.2 MB in the page cache")
    # A kernel that pages out unused memory (DAMON) may take single pages at any time.
    pages = handmade.cached_pages(path)
    assert sum(map(bool, pages)) > 0.9 * len(pages)


def test_an_archive_larger_than_the_memory_is_logged(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "available", lambda: 1000)
    lines: list[str] = []
    with Archive.open(path) as archive:
        warm.warm(archive, lines.append)
    assert "5.2 MB do not fit into the available memory of 1.0 kB" in lines[0]
    assert lines[1].endswith("in the page cache")


def test_a_truncated_archive_is_logged(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []
    with Archive.open(path) as archive:
        monkeypatch.setattr(warming, "excess", lambda _: os.truncate(path, 1 << 20))
        warm.warm(archive, lines.append)
    (line,) = lines
    assert line.startswith(f"warming has stopped: {path}: truncated")


def test_a_closed_archive_is_logged(path: Path) -> None:
    lines: list[str] = []
    archive = Archive.open(path)
    archive.close()
    warm.warm(archive, lines.append)
    assert "warming has stopped: " in lines[0]


def test_the_thread_does_not_keep_its_process_alive(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[threading.Thread] = []

    def start(thread: threading.Thread) -> None:
        started.append(thread)

    monkeypatch.setattr(threading.Thread, "start", start)
    with Archive.open(path) as archive:
        warm.start(archive, print)
    assert [thread.daemon for thread in started] == [True]


def test_a_missing_thread_is_logged(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    lines: list[str] = []
    with Archive.open(path) as archive:
        warm.start(archive, lines.append)
    assert lines == [f"{path}: cannot be warmed: can't start new thread"]
