"""Print names of files: quoted for a shell, or as the bytes that the archive stores."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterable

_PLAIN = re.compile(r"[\w@%+:,./-][\w@%+=:,./-]*")  # not `=` first: zsh expands `=name`
_SPECIAL = frozenset('"\\$`!')  # special between double quotes
_ESCAPES = {"\n": "\\n", "\t": "\\t", "\r": "\\r", "\x1b": "\\E", "'": "\\'", "\\": "\\\\"}


def quoted(name: str) -> str:
    """Return a name as bash and zsh read it: unchanged if possible, otherwise `'with space'`.

    A name that standard output cannot show becomes `$'new\\nline'`, with octal escapes for bytes
    that are not ASCII.
    """
    if name.isprintable() and _fits(name):
        if _PLAIN.fullmatch(name):
            return name
        return f'"{name}"' if "'" in name and not _SPECIAL & set(name) else shlex.quote(name)
    return "$'" + "".join(_escaped(each) for each in name) + "'"


def print_names(lines: Iterable[str], *, raw: bool, end: str = "\n") -> None:
    """Print lines that contain names.

    With `raw`, print names as the bytes that the archive stores, whatever the output's encoding.
    """
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
