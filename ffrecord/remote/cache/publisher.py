"""The thread that flushes blocks to disk and adds them to their maps, a moment after they came."""

from __future__ import annotations

import atexit
import multiprocessing
import os
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ffrecord.remote.cache.copy import Copy

PAUSE = 0.5
"""Seconds in which blocks are collected. Each flush waits for the disk."""

_lock = threading.Lock()
_publishing = threading.Lock()
_dirty: dict[int, Copy] = {}
_hurry = threading.Event()
_thread_of = 0  # process whose thread runs
_registered_in = 0


def note(copy: Copy, *, hurry: bool = False) -> None:
    """Publish the blocks of a copy soon. It is kept until then, even if its reader is closed."""
    global _thread_of
    with _lock:
        _dirty[id(copy)] = copy
        if _thread_of != os.getpid():
            _register()
            try:
                threading.Thread(target=_run, name="ffrecord-cache", daemon=True).start()
                _thread_of = os.getpid()
            except RuntimeError:  # the interpreter is shutting down: `publish_all` is called
                pass
    if hurry:
        _hurry.set()


def hurry() -> None:
    """Publish without a pause, because a reader is closed."""
    if _dirty:
        _hurry.set()


def publish_all() -> None:
    """Publish all blocks of this process now."""
    with _publishing:  # at the end of the process, wait for the thread
        while True:
            with _lock:
                if not _dirty:
                    return
                # One by one: a filter may turn the warning about a copy into an error.
                copy = _dirty.pop(next(iter(_dirty)))
            copy.publish()


def _run() -> None:
    global _thread_of
    try:
        while True:
            _hurry.wait(PAUSE)
            _hurry.clear()
            publish_all()
            with _lock:
                if not _dirty:
                    _thread_of = 0
                    return
    except BaseException:  # such as a warning that a filter turns into an error
        _thread_of = 0
        raise


def _register() -> None:
    """Publish when the process ends. Workers of multiprocessing do not call atexit's functions."""
    global _registered_in
    if _registered_in == os.getpid():
        return
    _registered_in = os.getpid()
    if multiprocessing.parent_process() is None:
        atexit.register(publish_all)
    else:
        from multiprocessing import util  # needed in workers only

        util.Finalize(None, publish_all, exitpriority=0)


def _forget() -> None:
    """Leave the parent's blocks to the parent."""
    global _lock, _publishing, _hurry, _thread_of
    _lock, _publishing = threading.Lock(), threading.Lock()
    _hurry, _thread_of = threading.Event(), 0
    _dirty.clear()


os.register_at_fork(after_in_child=_forget)
