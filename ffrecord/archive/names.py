"""Names in an archive: bytes inside, text for users. And paths that users give.

As text they are UTF-8, and what is not is escaped as Python's `os` does. The locale has no part in
it: an archive's names are the same everywhere.
"""

from __future__ import annotations

import base64
import errno
import os

NO_WORKING_FOLDER = "the working directory was deleted: give an absolute path"


def to_bytes(name: str | os.PathLike[str]) -> bytes:
    text = os.fspath(name) if isinstance(name, os.PathLike) else name
    if not isinstance(text, str):
        raise TypeError(f"a name is a str or a path, not {type(name).__name__}")
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:  # a surrogate that stands for no byte: no file can have it
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), text) from None


def to_text(name: bytes) -> str:
    return name.decode("utf-8", "surrogateescape")


def absolute(path: str | os.PathLike[str]) -> str:
    """A path on this machine. An empty one, as of a shell's variable that is not set, would be the
    current folder."""
    text = os.fsdecode(path)
    if not text:
        raise FileNotFoundError(errno.ENOENT, "an empty name is no file or folder")
    try:
        return os.path.abspath(text)
    except FileNotFoundError:
        raise FileNotFoundError(errno.ENOENT, NO_WORKING_FOLDER, text) from None


def json_facts(key: str, text: str) -> dict[str, str]:
    """A name for JSON. One that is not UTF-8 is escaped as Python's `os` does, which other
    languages cannot undo: it comes as base64, too."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return {key: text, f"{key}_base64": base64.b64encode(to_bytes(text)).decode()}
    return {key: text}
