"""Whether the files that a reader has open are still those of their names.

A reader that is sent to another process opens its files there by name. A file that was replaced
meanwhile would give that process other records than this one has.
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
        opened: paths and their descriptors.
        fingerprint: of what was opened.
        again: opens the paths, and returns the fingerprint of what is there now.
    """
    others = [path for path, fd in opened if not _is_same(path, fd)]
    if not others:
        return
    with contextlib.suppress(FFRecordError, OSError):
        if again() == fingerprint:
            return  # a copy took its place
    raise changed(others[0])


def changed(path: str) -> ChangedError:
    """Return the error for a file that another process would find to be a different one."""
    return ChangedError(
        f"{path}: replaced since it was opened, so that another process would read other records; "
        "open it again before its workers are started"
    )


def _is_same(path: str, fd: int) -> bool:
    try:
        return os.path.samestat(os.stat(path), os.fstat(fd))
    except FileNotFoundError:
        return False
