"""Words and numbers for people: counts, sizes, and advice as the reader of an error knows it."""

from __future__ import annotations

import contextlib
import errno
import operator
import re
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from fractions import Fraction

_in_a_shell = ContextVar("in_a_shell", default=False)


def counted(count: int, what: str) -> str:
    """`1 file`, `2,000 files`."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def listed(counts: Mapping[str, int]) -> str:
    """`1 fifo, 2 sockets`: by kind, in alphabetical order."""
    return ", ".join(counted(count, kind) for kind, count in sorted(counts.items()))


def said(python: str, shell: str) -> str:
    """The one of both that the reader of an error knows."""
    return shell if _in_a_shell.get() else python


def there_already(name: str | None = None, *, argument: str = "overwrite") -> FileExistsError:
    """The error about something that is in the way, and may be replaced if `argument` says so."""
    what = f"is there already; {said(f'{argument}=True', '--force')} replaces it"
    return FileExistsError(errno.EEXIST, what, *([] if name is None else [name]))


@contextlib.contextmanager
def for_a_shell() -> Iterator[None]:
    """What goes wrong meanwhile is told to somebody who typed a command."""
    before = _in_a_shell.set(True)
    try:
        yield
    finally:
        _in_a_shell.reset(before)


def parse_size(size: int | str) -> int:
    """10, "10", "10kB", "1.5 GiB" in bytes."""
    if isinstance(size, str):
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kMGT]?)(i?)B?\s*", size, re.IGNORECASE)
        if match is None:
            raise ValueError(f"not a size: {size!r}; write 500MB or 10GB")
        number, prefix, binary = match.groups()
        step = 1024 if binary else 1000
        size = int(Fraction(number) * step ** " kmgt".index(prefix.lower() or " "))
    if operator.index(size) < 1:
        raise ValueError(f"a shard must be at least 1 byte, not {size}")
    return size


def human(size: int) -> str:
    """1234567 as `1.2 MB`."""
    value = float(size)
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if value < 1000 or unit == "TB":
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    raise AssertionError("unreachable")
