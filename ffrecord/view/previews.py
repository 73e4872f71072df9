"""Previews: JSON that describes an item, by its kind, and converted pictures."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ffrecord.view import arrays, pictures, texts
from ffrecord.view.contents import Contents, Item
from ffrecord.view.kinds import SNIFFED, kind_of, media_type
from ffrecord.view.listings import shown

HEX_BYTES = 64 << 10  # of a request for hexadecimal digits
LARGEST_PICTURE = 64 << 20  # bytes of a picture that is converted
LARGEST_PDF = 64 << 20

VIEWS = ("text", "hex")
"""Views that a user may choose for every kind."""


def preview(contents: Contents, key: str, view: str = "", offset: int = 0) -> dict[str, Any]:
    """Return a description of an item for the page.

    Args:
        contents: the items.
        key: the item.
        view: one of `VIEWS`, or empty for the view that fits the kind.
        offset: the first byte, for text and hex.
    """
    item = contents.item(key)
    first = contents.part(key, 0, min(SNIFFED, item.size)).tobytes()
    kind = kind_of(item.name, first)
    facts = {
        "key": key, "name": shown(item.name), "size": item.size, "kind": kind,
        "type": media_type(first),
    }  # fmt: skip
    as_kind = view or kind
    if as_kind == "svg":
        as_kind = "text"
    if as_kind in ("hex", "empty"):
        return {**facts, "view": as_kind}
    if as_kind == "text":
        return {**facts, "view": "text", "offset": offset, **_text(contents, key, item, offset)}
    try:
        return {**facts, "view": as_kind, **_MAKERS[as_kind](contents, key, item)}
    except ValueError as error:
        return {**facts, "view": as_kind, "error": str(error)}


def picture(contents: Contents, key: str, frame: int) -> tuple[str, bytes]:
    """Return a picture in a format that browsers show."""
    item = contents.item(key)
    if item.size > LARGEST_PICTURE:
        raise ValueError("the picture is too large to be converted")
    return pictures.converted(contents.part(key, 0, item.size), frame)


def array_slice(contents: Contents, key: str, member: int | None, at: list[int]) -> bytes:
    """Return a slice of an array as a PNG."""
    return arrays.slice_png(_loaded(contents, key, contents.item(key), member), at)


def array_facts(contents: Contents, key: str, member: int) -> dict[str, Any]:
    """Return a description of one array of an `.npz` file."""
    return arrays.describe(_loaded(contents, key, contents.item(key), member))


def _loaded(contents: Contents, key: str, item: Item, member: int | None) -> arrays.Loaded:
    data = contents.part(key, 0, min(item.size, arrays.MOST_BYTES))
    return arrays.load_npy(data) if member is None else arrays.load_member(data, member)


def _text(contents: Contents, key: str, item: Item, offset: int) -> dict[str, Any]:
    data = contents.part(key, offset, texts.TEXT_BYTES).tobytes()
    return texts.text(data, offset + len(data) >= item.size)


def _image(contents: Contents, key: str, item: Item) -> dict[str, Any]:
    """Describe a picture. The page shows the file itself, unless it must be converted."""
    if item.size > LARGEST_PICTURE:
        return {"error": "the file is too large for a preview"}
    found = pictures.size_of(contents.part(key, 0, item.size))
    if found["width"] * found["height"] > pictures.MOST_PIXELS:
        side = f"{found['width']:,} × {found['height']:,}"
        return {**found, "error": f"the picture is too large to be decoded: {side} pixels"}
    deep = found["mode"] == "F" or found["mode"].startswith("I")
    return {**found, "convert": deep}


def _picture(contents: Contents, key: str, item: Item) -> dict[str, Any]:
    return {**_image(contents, key, item), "convert": True}


def _played(contents: Contents, key: str, item: Item) -> dict[str, Any]:
    return {}


def _pdf(contents: Contents, key: str, item: Item) -> dict[str, Any]:
    if item.size > LARGEST_PDF:
        return {"error": "the PDF is too large to be shown here; download it"}
    return {}


def _npy(contents: Contents, key: str, item: Item) -> dict[str, Any]:
    return arrays.describe(_loaded(contents, key, item, None))


def _npz(contents: Contents, key: str, item: Item) -> dict[str, Any]:
    if item.size > arrays.MOST_BYTES:
        return {"error": "the file is too large for a preview"}
    return {"members": arrays.npz_members(contents.part(key, 0, item.size))}


def _json(contents: Contents, key: str, item: Item) -> dict[str, Any]:
    if item.size > texts.JSON_BYTES:
        return {"view": "text", "offset": 0, **_text(contents, key, item, 0)}
    data = contents.part(key, 0, item.size).tobytes()
    tree = texts.json_tree(data)
    if "error" not in tree:
        return tree
    return {**tree, "view": "text", "offset": 0, **_text(contents, key, item, 0)}


def _lines(contents: Contents, key: str, item: Item) -> dict[str, Any]:
    data = contents.part(key, 0, texts.TABLE_BYTES).tobytes()
    return texts.json_lines(data, len(data) >= item.size)


def _csv(contents: Contents, key: str, item: Item) -> dict[str, Any]:
    data = contents.part(key, 0, texts.TABLE_BYTES).tobytes()
    return texts.table(item.name, data, len(data) >= item.size)


_MAKERS: dict[str, Callable[[Contents, str, Item], dict[str, Any]]] = {
    "image": _image, "picture": _picture, "audio": _played, "video": _played, "pdf": _pdf,
    "npy": _npy, "npz": _npz, "json": _json, "jsonl": _lines, "csv": _csv,
}  # fmt: skip
