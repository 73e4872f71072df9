"""Check that a reader's open files are still the files at their paths.

A pickled reader opens its files by path in the other process. If a file was replaced in between,
that process would read other records than this one.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable

from ffrecord.errors import ChangedError, FFRecordError


def refuse_replaced(
    opened: Iterable[tuple[str, int]], fingerprint: str, again: Callable[[], str]
) -> None:
    """Raise ChangedError if a path leads to other records than its descriptor.

    Args:
        opened: paths and their open descriptors.
        fingerprint: the fingerprint of the open files.
        again: opens the paths again and returns the fingerprint of the files there now.
    """
    others = [path for path, fd in opened if not _is_same(path, fd)]
    if not others:
        return
    with contextlib.suppress(FFRecordError, OSError):
        if again() == fingerprint:
            return  # replaced by a copy
    raise changed(others[0])


def changed(path: str) -> ChangedError:
    """Return the error for a file that was replaced before another process opened it."""
    return ChangedError(
        f"{path}: replaced since it was opened, so another process would read different records; "
        "open it again before you start workers"
    )


def _is_same(path: str, fd: int) -> bool:
    try:
        return os.path.samestat(os.stat(path), os.fstat(fd))
    except FileNotFoundError:
        return False
