"""Kinds of contents, from their first bytes and their names.

The first bytes decide where they can: a file may have any name. The name decides between kinds that
are all text, such as JSON and CSV. A kind decides how the page shows contents. Only the types in
`MEDIA_TYPES` are ever sent to the browser under their own name, and none of them can run scripts.
"""

from __future__ import annotations

import re

SNIFFED = 512  # bytes that `kind_of` looks at

# Formats that browsers show, by their first bytes: the media type and the expression.
_MAGIC = (
    ("image/png", rb"\x89PNG\r\n\x1a\n"),
    ("image/jpeg", rb"\xff\xd8\xff"),
    ("image/gif", rb"GIF8[79]a"),
    ("image/webp", rb"RIFF....WEBP"),
    ("image/bmp", rb"BM.{8}[\x00-\xff]{4}[\x0c\x28\x38\x40\x6c\x7c]\x00\x00\x00"),
    ("image/avif", rb"....ftypavi[fs]"),
    ("video/webm", rb"\x1aE\xdf\xa3"),
    ("audio/mp4", rb"....ftypM4A"),
    ("video/mp4", rb"....ftyp"),
    ("audio/ogg", rb"OggS"),
    ("audio/wav", rb"RIFF....WAVE"),
    ("audio/flac", rb"fLaC"),
    ("audio/mpeg", rb"ID3|\xff[\xfb\xf3\xf2]"),
    ("application/pdf", rb"%PDF-"),
    ("tiff", rb"II\*\x00|MM\x00\*|II\+\x00|MM\x00\+"),
    ("pnm", rb"P[1-6][\s#]"),
    ("npy", rb"\x93NUMPY"),
    ("zip", rb"PK\x03\x04|PK\x05\x06"),
)
_MATCHERS = tuple((kind, re.compile(magic, re.DOTALL).match) for kind, magic in _MAGIC)

_PILLOW = ("tiff", "pnm")
"""Pictures that browsers do not show; Pillow turns them into PNG."""

_TEXTS = {
    "json": "json", "geojson": "json", "ipynb": "json", "jsonl": "jsonl", "ndjson": "jsonl",
    "csv": "csv", "tsv": "csv", "svg": "svg",
}  # fmt: skip

PICTURES = frozenset({
    "png", "jpg", "jpeg", "jpe", "gif", "webp", "bmp", "avif", "tif", "tiff", "ppm", "pgm",
    "pbm", "pnm",
})  # fmt: skip
"""Extensions that get a thumbnail in a grid."""

MEDIA_TYPES = frozenset(kind for kind, _ in _MAGIC if "/" in kind)


def extension(name: str) -> str:
    """Return the extension of a name in small letters, without the dot; empty if there is none."""
    stem, dot, found = name.rpartition("/")[2].rpartition(".")
    return found.lower() if dot and stem and len(found) <= 10 else ""


def media_type(first: bytes) -> str | None:
    """Return the media type of contents that a browser can show; None for all others."""
    found = _magic(first)
    return found if found in MEDIA_TYPES else None


def kind_of(name: str, first: bytes) -> str:
    """Return how the page shows contents.

    The kinds are image, picture (which Pillow must convert), audio, video, pdf, npy, npz, json,
    jsonl, csv, svg, text, empty and hex.
    """
    if not first:
        return "empty"
    found = _magic(first)
    if found is not None:
        if "/" in found:
            return found.partition("/")[0].replace("application", "pdf")
        if found in _PILLOW:
            return "picture"
        if found == "npy":
            return "npy"
        return "npz" if extension(name) == "npz" or b".npy" in first else "hex"
    if not is_text(first):
        return "hex"
    start = first.lstrip(b"\xef\xbb\xbf \r\n\t")
    if not extension(name) and start[:1] in (b"{", b"["):
        return "json"
    if start[:4] == b"<svg":
        return "svg"
    return _TEXTS.get(extension(name), "text")


def is_text(first: bytes) -> bool:
    """Return True if bytes look like text: UTF-8 or UTF-16, without control characters."""
    if first.startswith((b"\xff\xfe", b"\xfe\xff")):
        return True
    if re.search(rb"[\x00-\x08\x0e-\x1a\x1c-\x1f\x7f]", first):
        return False
    try:
        first.decode()
    except UnicodeDecodeError as error:
        return error.start >= len(first) - 3 and len(first) > 3  # a letter is cut in two
    return True


def _magic(first: bytes) -> str | None:
    return next((kind for kind, match in _MATCHERS if match(first)), None)
