"""Explain why a path does not exist in an archive, and what the user probably meant.

Only the folder in which the path stops existing is searched, and only if it has few names.
"""

from __future__ import annotations

import argparse
import errno
import os
import re
import shlex
from typing import NamedTuple

from ffrecord.archive.index.lookup import MISSING, ROOT, Index
from ffrecord.archive.index.resolve import resolve
from ffrecord.archive.names import to_bytes, to_text
from ffrecord.terminal import nearest

MOST_COMPARED = 10_000
"""Most names in a folder that are compared with a misspelled one. Comparing takes up to 0.4 s."""

MOST_PARTS = 64
"""Most names at the start of a path that are left out, one after the other, to find the rest."""


def inside_an_archive(error: OSError, command: str) -> OSError:
    """Return the error for a path such as photos.ffr/cats with the command that is meant."""
    path = os.fsdecode(error.filename or "")
    file = path.rstrip("/")
    while file not in ("", "/") and not os.path.isfile(file):
        file = os.path.dirname(file)
    inside = path[len(file) :].strip("/")
    words = f"ffrecord {command} {shlex.join([file, inside])}"
    what = f"{error.strerror}; a path in an archive is a word of its own: `{words}`"
    return OSError(error.errno, what, path) if os.path.isfile(file) else error


class _End(NamedTuple):
    """Place at which a path stops existing."""

    folder: int
    above: list[bytes]
    """Names that lead to the folder."""
    name: bytes
    """Name that is missing in the folder, or a symlink that leads to nothing."""
    below: list[bytes]


def explain(archive: str, index: Index, path: str, options: argparse.Namespace) -> str:
    """Return the message for a missing path. `options` come from ls, cat, extract or warm."""
    end = _end(index, to_bytes(path))
    if end is None:
        return os.strerror(errno.ENOENT)
    link = index.child(end.folder, end.name)
    if link != MISSING:
        target = index.target(link)
        is_there = _exists(index, target, end.folder)
        what = "leads to no file in the archive" if is_there else "is not in the archive"
        which = f"{_joined(*end.above, end.name)} is " if end.below else ""
        return f"{which}a symlink to {to_text(target)}, which {what}"
    return f"{os.strerror(errno.ENOENT)}; {_advice(archive, index, end, path, options)}"


def _advice(archive: str, index: Index, end: _End, path: str, options: argparse.Namespace) -> str:
    if re.search(rb"\*|\[.+\]", end.name):
        instead = "each file" if options.command == "cat" else "the folder or each file"
        return f"patterns are not expanded, so name {instead}"
    if not end.above and (rest := _below_the_packed_folder(index, end)):
        return f"paths start inside the packed folder: try {rest}"
    if similar := _similar(index, end):
        return f"did you mean {similar}?"
    if options.command == "extract" and options.directory == os.curdir and not end.above:
        return f"to extract into a folder, use -C {shlex.quote(path)}"
    words = [archive, *([_joined(*end.above)] if end.above else [])]
    return f"`ffrecord ls {shlex.join(words)}` lists the names"


def _end(index: Index, path: bytes) -> _End | None:
    """Return the place at which a path stops existing."""
    names = [name for name in path.split(b"/") if name not in (b"", b".")]
    folder = ROOT
    for number, name in enumerate(names):
        try:
            inside = resolve(index, name, start=folder)
        except OSError:
            return _End(folder, names[:number], name, names[number + 1 :])
        folder = inside
    return None


def _exists(index: Index, path: bytes, start: int = ROOT) -> bool:
    try:
        resolve(index, path, follow=False, start=start)
    except OSError:
        return False
    return True


def _below_the_packed_folder(index: Index, end: _End) -> str | None:
    """Return the path without its first names, if it exists then.

    The user probably added the path of the packed folder itself.
    """
    for number in range(min(len(end.below), MOST_PARTS)):
        rest = end.below[number:]
        if _exists(index, b"/".join(rest)):
            return _joined(*rest)
    return None


def _similar(index: Index, end: _End) -> str | None:
    """Return the path of a name in the same folder that differs in case or by a letter or two."""
    if len(index.entries(end.folder)) > MOST_COMPARED:
        return None
    name = to_text(end.name)
    names = [to_text(each) for each, _ in index.children(end.folder)]
    meant = next((each for each in names if each.lower() == name.lower()), None)
    meant = meant or nearest(name, names)
    if meant is None or _without_numbers(meant) == _without_numbers(name):
        return None  # another number is another file, not a misspelled one
    found = [*end.above, to_bytes(meant)]
    whole = [*found, *end.below]
    return _joined(*(whole if _exists(index, b"/".join(whole)) else found))


def _joined(*names: bytes) -> str:
    return to_text(b"/".join(names))


def _without_numbers(name: str) -> str:
    return re.sub(r"\d+", "0", name)
