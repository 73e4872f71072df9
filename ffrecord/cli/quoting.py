"""Names of files as a shell takes them back, or as the bytes that they are in an archive."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterable

_PLAIN = re.compile(r"[\w@%+:,./-][\w@%+=:,./-]*")  # `=` comes before a command's name in zsh
_SPECIAL = frozenset('"\\$`!')  # between double quotes
_ESCAPES = {"\n": "\\n", "\t": "\\t", "\r": "\\r", "\x1b": "\\E", "'": "\\'", "\\": "\\\\"}


def quoted(name: str) -> str:
    """Return a name as bash and zsh take it back: as it is if that will do, else `'with space'`.

    If it has what standard output cannot show, `$'new\\nline'`, in octal where it is not ASCII.
    """
    if name.isprintable() and _fits(name):
        if _PLAIN.fullmatch(name):
            return name
        return f'"{name}"' if "'" in name and not _SPECIAL & set(name) else shlex.quote(name)
    return "$'" + "".join(_escaped(each) for each in name) + "'"


def print_names(lines: Iterable[str], *, raw: bool, end: str = "\n") -> None:
    """Print lines with names in them: quoted ones, or with `raw` the bytes that names are in an
    archive, whatever encoding the output has."""
    if not raw:
        sys.stdout.writelines(f"{line}{end}" for line in lines)
        return
    sys.stdout.flush()
    for line in lines:
        sys.stdout.buffer.write(f"{line}{end}".encode("utf-8", "surrogateescape"))


def _escaped(char: str) -> str:
    if char in _ESCAPES:
        return _ESCAPES[char]
    if char.isprintable() and _fits(char):
        return char
    return "".join(f"\\{byte:03o}" for byte in char.encode("utf-8", "surrogateescape"))


def _fits(text: str) -> bool:
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        return False
    return True
