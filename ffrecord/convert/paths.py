"""Paths of entries: what may be one, and WebDataset's way of making samples of them."""

from __future__ import annotations

from ffrecord.errors import ConversionError
from ffrecord.index.layout import DEEPEST, LONGEST_NAME
from ffrecord.names import to_text


def parts(path: bytes) -> list[bytes]:
    """The names of a path; none for the top. An error if it leads out, or cannot be a path."""
    if not path:
        return []
    names = path.split(b"/")
    for name in names:
        reason = ""
        if name in (b"", b".", b".."):
            reason = "it has an empty name, . or .. in it"
        elif b"\0" in name or len(name) > LONGEST_NAME:
            reason = f"it has a NUL in it, or a name of more than {LONGEST_NAME} bytes"
        if reason:
            raise ConversionError(f"{to_text(path)[:200]!r} is no path below a folder: {reason}")
    if len(names) > DEEPEST:
        raise ConversionError(f"{to_text(path)[:200]!r}…: more than {DEEPEST} levels deep")
    return names


def sample_key(path: bytes) -> tuple[bytes, bytes]:
    """A path up to the first dot of its last name, and what comes after that dot."""
    folder, slash, name = path.rpartition(b"/")
    key, _, extension = name.partition(b".")
    return folder + slash + key, extension
