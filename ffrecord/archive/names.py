"""Conversion of names between bytes, as in an archive, and text, as users see them.

Text is decoded as UTF-8. Other bytes are escaped in the way of Python's `os` (surrogateescape). The
locale has no influence: the names of an archive are the same everywhere. `absolute` is for paths on
this machine.
"""

from __future__ import annotations

import base64
import errno
import os

from ffrecord.text import path_text

NO_WORKING_FOLDER = "the working directory was deleted; pass an absolute path"


def to_bytes(name: str | os.PathLike[str]) -> bytes:
    text = os.fspath(name) if isinstance(name, os.PathLike) else name
    if not isinstance(text, str):
        raise TypeError(f"a name must be a str or a path, not {type(name).__name__}")
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:  # a surrogate that stands for no byte: no file has such a name
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), text) from None


def to_text(name: bytes) -> str:
    return name.decode("utf-8", "surrogateescape")


def absolute(path: str | os.PathLike[str]) -> str:
    """Return the absolute form of a path on this machine."""
    text = path_text(path)
    try:
        return os.path.abspath(text)
    except FileNotFoundError:
        raise FileNotFoundError(errno.ENOENT, NO_WORKING_FOLDER, text) from None


def json_facts(key: str, text: str) -> dict[str, str]:
    """Return a name for JSON, under `key`.

    A name that is not UTF-8 is escaped in the way of Python's `os`. Other languages cannot undo
    this, so the result also has the name as base64.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        return {key: text, f"{key}_base64": base64.b64encode(to_bytes(text)).decode()}
    return {key: text}
