"""Words that errors and reports share: counts, and advice as whoever reads it knows it, by an
argument's name in Python and by an option in a shell."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator, Mapping
from contextvars import ContextVar

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
