"""Executors for tests of work in tasks, and the bytes of a folder to compare."""

from __future__ import annotations

import contextlib
import multiprocessing
from collections.abc import Callable
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path

from loky import ProcessPoolExecutor as LokyExecutor


def _processes() -> Executor:
    return ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn"))


EXECUTORS: dict[str, Callable[[], contextlib.AbstractContextManager[Executor]]] = {
    "threads": lambda: ThreadPoolExecutor(3),
    "processes": _processes,
    "loky": lambda: LokyExecutor(2),
}


def files_in(folder: Path) -> dict[str, bytes]:
    """Return the content of every file of a folder, by path."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}
