"""Words and numbers for people: counts, sizes, and advice for Python and for a command line."""

from __future__ import annotations

import errno
import operator
import re
from collections.abc import Mapping


def counted(count: int, what: str) -> str:
    """`1 file`, `2,000 files`."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def listed(counts: Mapping[str, int]) -> str:
    """`1 fifo, 2 sockets`: by kind, in alphabetical order."""
    return ", ".join(counted(count, kind) for kind, count in sorted(counts.items()))


class Advised(str):
    """A message with advice in it: as a str for Python, and in `shell` for a command line.

    An error keeps it among its arguments, so that it survives pickling, and wrapping of an
    OSError by another one. `for_shell` finds it there.
    """

    shell: str

    def __new__(cls, before: str, python: str = "", shell: str = "", after: str = "") -> Advised:
        message = super().__new__(cls, before + python + after)
        message.shell = before + shell + after
        return message


def for_shell(said: object) -> str:
    """Return an error or its message with the advice for a command line instead of Python's."""
    if isinstance(said, Advised):
        return said.shell
    text = str(said)
    for part in said.args if isinstance(said, BaseException) else ():
        if isinstance(part, Advised):
            text = text.replace(part, part.shell)
    return text


def there_already(name: str | None = None, *, argument: str = "overwrite") -> FileExistsError:
    """Return the error for a file that is in the way, and may be replaced with `argument`."""
    what = Advised("is there already; ", f"{argument}=True", "--force", " replaces it")
    return FileExistsError(errno.EEXIST, what, *([] if name is None else [name]))


def parse_size(size: int | str) -> int:
    """10, "10", "10kB", "1.5 GiB" in bytes."""
    if isinstance(size, str):
        from fractions import Fraction  # and decimal with it: every reader imports this module

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
