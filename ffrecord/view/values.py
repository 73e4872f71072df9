"""Values of a dataset's cells, as the page shows them: short in a table, whole in a preview."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from ffrecord.dataset.codecs import decoders, view_decoder
from ffrecord.errors import DecodeError, FFRecordError
from ffrecord.text import human
from ffrecord.view import arrays, texts
from ffrecord.view.contents import Found, message
from ffrecord.view.kinds import kind_of
from ffrecord.view.records import beginning

SHORT = 120  # letters of a value in a table
MOST_ITEMS = 1000  # of a list or dict in a preview
DEEPEST = 20  # levels of a tree in a preview
IMAGES = ("jpg", "png")
_limit = threading.local()


@dataclass(frozen=True, slots=True)
class Large:
    """A value that is too large for a table."""

    size: int


@contextlib.contextmanager
def limited(most: int) -> Iterator[None]:
    """Let this thread's reads return `Large` for values of more than `most` bytes.

    A few bytes of a compressed value may unpack to a gigabyte, and a table has many values.
    """
    _limit.most = most
    try:
        yield
    finally:
        del _limit.most


@view_decoder
def stored(value: memoryview) -> bytes | Large:
    """Return the bytes of a value. The page's readers use this decoder for all types."""
    most = getattr(_limit, "most", len(value))
    return Large(len(value)) if len(value) > most else bytes(value)


def short(type_: str, found: Found | Large) -> dict[str, Any]:
    """Return a value for a cell of the table. `type_` is the type's name."""
    if isinstance(found, FFRecordError):
        return {"damaged": message(found)}
    if isinstance(found, Large):
        return {"image": type_ in IMAGES, "text": human(found.size), "bytes": found.size}
    if type_ in IMAGES:
        return {"image": True, "bytes": len(found)}
    try:
        value = decoded(type_, found)
    except FFRecordError as error:
        return {"damaged": message(error)}
    if isinstance(value, (bytes, bytearray)):
        kind = kind_of("", bytes(value[:512]))
        return {"image": kind in ("image", "picture"), "text": beginning(bytes(value[:96])),
                "bytes": len(value)}  # fmt: skip
    if isinstance(value, np.ndarray):
        return {"text": _array_text(value)}
    if isinstance(value, float):
        return {"text": f"{value:.6g}"}
    return {"text": _text(value)[:SHORT]}


def full(type_: str, found: Found) -> dict[str, Any]:
    """Return a value for a preview: a text, a tree or the description of an array."""
    if isinstance(found, FFRecordError):
        return {"damaged": message(found)}
    try:
        value = decoded(type_, found)
    except FFRecordError as error:
        return {"damaged": message(error)}
    if isinstance(value, np.ndarray):
        return {"view": "npy", **arrays.describe(arrays.Loaded(value, value.shape))}
    if isinstance(value, str):
        part = texts.text(bytes(found[: texts.TEXT_BYTES]), len(found) <= texts.TEXT_BYTES)
        return {"view": "text", "offset": 0, **part}
    return {"view": "json", "tree": _tree(value)}


def decoded(type_: str, data: Any) -> Any:
    """Decode a value. A type of the user's own has no decoder here, and stays bytes."""
    decode = decoders.get(type_, bytes)
    try:
        return bytes(data) if decode is bytes else decode(memoryview(data))
    except FFRecordError:
        raise
    except Exception as error:
        raise DecodeError(f"cannot be decoded as {type_}: {error}") from error


def _array_text(value: Any) -> str:
    shape = " × ".join(map(str, value.shape))
    if value.size <= 4 and value.dtype.kind in "biufc":
        return f"{np.array2string(value, precision=4, separator=', ')[:SHORT]}  {value.dtype}"
    if value.size <= 4:
        return f"[{', '.join(arrays.texts_of(value.ravel()))[:SHORT]}]  {value.dtype}"
    return f"{value.dtype} {shape}"


def _text(value: Any) -> str:
    if isinstance(value, (dict, list)):
        return _summary(value)
    return value if isinstance(value, str) else _written(value)


def _written(value: Any) -> str:
    """Return a value as Python writes it, and an integer of thousands of digits in hexadecimal."""
    try:
        return repr(value)
    except ValueError:  # Python's limit of decimal digits
        return hex(value) if isinstance(value, int) else "…"


def _summary(value: Any) -> str:
    if isinstance(value, dict):
        inner = ", ".join(f"{_text(key)}: {_leaf(below)}" for key, below in list(value.items())[:6])
        return f"{{{inner}{', …' if len(value) > 6 else ''}}}"
    inner = ", ".join(map(_leaf, value[:6]))
    return f"[{inner}{', …' if len(value) > 6 else ''}]"


def _leaf(value: Any) -> str:
    if isinstance(value, (dict, list)):
        return "…"
    return _array_text(value) if isinstance(value, np.ndarray) else _written(value)[:40]


def _tree(value: Any, depth: int = 0) -> Any:
    """Return a value as JSON can hold it. Long and deep parts are cut."""
    if depth > DEEPEST:
        return "…"
    if isinstance(value, dict):
        items = list(value.items())[:MOST_ITEMS]
        return {_text(key): _tree(below, depth + 1) for key, below in items}
    if isinstance(value, (list, tuple)):
        return [_tree(below, depth + 1) for below in value[:MOST_ITEMS]]
    if isinstance(value, np.ndarray):
        return _array_text(value)
    if isinstance(value, (bytes, bytearray)):
        return beginning(bytes(value[:96]))
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return value
    return {"$number": _written(value)}
