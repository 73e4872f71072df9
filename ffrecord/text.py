"""Text for users: counts, sizes, and messages whose advice differs in Python and in a shell."""

from __future__ import annotations

import errno
import operator
import os
import re
from collections.abc import Mapping
from typing import Any


def counted(count: int, what: str) -> str:
    """Return a count with its noun: `1 file`, `2,000 files`."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def listed(counts: Mapping[str, int]) -> str:
    """Return counts by kind, in alphabetical order: `1 fifo, 2 sockets`."""
    return ", ".join(counted(count, kind) for kind, count in sorted(counts.items()))


class Advised(str):
    """Message with advice: the string itself is for Python, `shell` is for a command line.

    An error keeps the message in its `args`, where `for_shell` finds it. The message survives
    pickling, and also an OSError that is made from the `strerror` of another one.
    """

    shell: str

    def __new__(cls, before: str, python: str = "", shell: str = "", after: str = "") -> Advised:
        message = super().__new__(cls, before + python + after)
        message.shell = before + shell + after
        return message


def for_shell(said: object) -> str:
    """Return the text of an error or message, with the advice for a command line."""
    if isinstance(said, Advised):
        return said.shell
    text = str(said)
    for part in said.args if isinstance(said, BaseException) else ():
        if isinstance(part, Advised):
            text = text.replace(part, part.shell)
    return text


def integer(value: Any, name: str) -> int:
    """Return an integer argument as an int; raise a TypeError that names the argument."""
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(f"{name} must be an int, not {type(value).__name__}") from None


def path_text(path: str | os.PathLike[str]) -> str:
    """Return a path as text.

    An empty path is an error. It would mean the current folder, but probably comes from a shell
    variable that is not set.
    """
    text = os.fsdecode(path)
    if not text:
        what = 'the path is empty; pass the name of a file or folder, or "." for this folder'
        raise FileNotFoundError(errno.ENOENT, what)
    return text


def there_already(name: str | None = None, *, argument: str = "overwrite") -> FileExistsError:
    """Return the error for a file that already exists.

    `argument` is the name of the Python argument that permits replacing the file.
    """
    what = Advised("already exists; pass ", f"{argument}=True", "--force", " to replace it")
    return FileExistsError(errno.EEXIST, what, *([] if name is None else [name]))


def parse_size(size: int | str) -> int:
    """Return a size such as 10, "10", "10kB" or "1.5 GiB" as a number of bytes."""
    if isinstance(size, str):
        # Imported here: every reader imports this module, and Fraction also loads decimal.
        from fractions import Fraction

        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kMGT]?)(i?)B?\s*", size, re.IGNORECASE)
        if match is None:
            raise ValueError(f"not a size: {size!r}; write it like 500MB or 10GB")
        number, prefix, binary = match.groups()
        step = 1024 if binary else 1000
        size = int(Fraction(number) * step ** " kmgt".index(prefix.lower() or " "))
    if integer(size, "a size") < 1:
        raise ValueError(f"a size must be at least 1 byte, not {size}")
    return size


def human(size: int) -> str:
    """Return a number of bytes as short text: `1.2 MB` for 1234567."""
    value = float(size)
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if value < 1000 or unit == "TB":
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    raise AssertionError("unreachable")
