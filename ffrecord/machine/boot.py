"""The present run of the machine's kernel, from its start to its end."""

from __future__ import annotations

from functools import cache
from pathlib import Path

ID = Path("/proc/sys/kernel/random/boot_id")


@cache
def boot_id() -> str | None:
    """Return a text that is another one after each start of the machine; None if not known.

    All containers of a machine have the same one, because they share its kernel and page cache.
    """
    try:
        return ID.read_text().strip() or None
    except (OSError, UnicodeDecodeError):
        return None
