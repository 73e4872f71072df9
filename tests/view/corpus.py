"""Contents for the page: a file of every kind, and hostile names and contents."""

from __future__ import annotations

import io
import json
import struct
import wave
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

MARK = "window.hacked"
"""Hostile contents set this variable if the browser ever runs them."""
SVG = "http://www.w3.org/2000/svg"
SCRIPT = f"<script>{MARK}=1;parent.postMessage('hacked','*')</script>"


def photo(seed: int, width: int = 160, height: int = 120) -> npt.NDArray[np.uint8]:
    """Return a picture that differs from seed to seed, and compresses like a photograph."""
    random = np.random.default_rng(seed)
    y, x = np.mgrid[0:height, 0:width] / height
    waves = [
        np.sin(x * random.uniform(1, 6) + y * random.uniform(1, 6) + random.uniform(0, 6))
        for _ in range(3)
    ]
    noise = random.normal(0, 4, (height, width, 3))
    coloured = np.stack(waves, -1) * 90 + random.uniform(60, 190, 3) + noise
    return coloured.clip(0, 255).astype(np.uint8)


def image_bytes(kind: str, pixels: npt.NDArray[Any], **options: Any) -> bytes:
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, kind, **options)
    return out.getvalue()


def npy(values: npt.NDArray[Any]) -> bytes:
    out = io.BytesIO()
    np.save(out, values, allow_pickle=True)
    return out.getvalue()


def npz(**arrays: npt.NDArray[Any]) -> bytes:
    out = io.BytesIO()
    np.savez_compressed(out, **arrays)  # type: ignore[arg-type]
    return out.getvalue()


def sound(seconds: float = 1.0) -> bytes:
    out = io.BytesIO()
    with wave.open(out, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(8000)
        times = np.arange(int(8000 * seconds)) / 8000
        file.writeframes((np.sin(times * 2765) * 9000).astype("<i2").tobytes())
    return out.getvalue()


def film(seconds: int = 1, padding: int = 0) -> bytes:
    """Return a WebM video of one frame a second, in `film_colour(second)`.

    No encoder is needed: a WebP picture of Pillow is a key frame of VP8. `padding` makes each
    second longer by so many bytes, which players skip.
    """
    width, height = 64, 48
    clusters = []
    for second in range(seconds):
        pixels = np.full((height, width, 3), film_colour(second), np.uint8)
        webp = image_bytes("WEBP", pixels, quality=80)
        assert webp[12:16] == b"VP8 "
        frame = webp[20 : 20 + int.from_bytes(webp[16:20], "little")]
        block = b"\x81\0\0\x80" + frame  # track 1, at the cluster's time, a key frame
        parts = _number(0xE7, second * 1000), _element(0xA3, block), _element(0xEC, bytes(padding))
        clusters.append(_element(0x1F43B675, *parts))
    head = _element(
        0x1A45DFA3, _number(0x4286, 1), _number(0x42F7, 1), _number(0x42F2, 4), _number(0x42F3, 8),
        _element(0x4282, b"webm"), _number(0x4287, 2), _number(0x4285, 2),
    )  # fmt: skip
    duration = _element(0x4489, struct.pack(">d", seconds * 1000))
    info = _element(0x1549A966, _number(0x2AD7B1, 10**6), duration)  # times are in milliseconds
    size = _element(0xE0, _number(0xB0, width), _number(0xBA, height))
    codec = _element(0x86, b"V_VP8")
    entry = _element(0xAE, _number(0xD7, 1), _number(0x73C5, 1), _number(0x83, 1), codec, size)
    before = info + _element(0x1654AE6B, entry)

    def cues(at: int) -> bytes:
        """Return the places of all clusters, of which the first is at `at`."""
        points = []
        for second, cluster in enumerate(clusters):
            place = _element(0xB7, _number(0xF7, 1), _number(0xF1, at))
            points.append(_element(0xBB, _number(0xB3, second * 1000), place))
            at += len(cluster)
        return _element(0x1C53BB6B, *points)

    first = len(before) + len(cues(0))
    return head + _element(0x18538067, before, cues(first), *clusters)


def film_colour(second: int) -> tuple[int, int, int]:
    return second * 4 % 256, 255 - second * 4 % 256, 100


def _element(name: int, *contents: bytes) -> bytes:
    """Return an element of Matroska: its name, its length in 8 bytes, and its contents."""
    data = b"".join(contents)
    length = (1 << 56 | len(data)).to_bytes(8, "big")
    return name.to_bytes((name.bit_length() + 7) // 8, "big") + length + data


def _number(name: int, value: int) -> bytes:
    return _element(name, value.to_bytes(8, "big"))


def pdf(text: str = "Hello", action: str = "") -> bytes:
    """Return a PDF of one page. `action` is JavaScript that runs when it is opened."""
    opened = f"/OpenAction<</S/JavaScript/JS({action})>>" if action else ""
    stream = f"BT /F1 40 Tf 40 100 Td ({text}) Tj ET"
    objects = [
        f"<</Type/Catalog/Pages 2 0 R{opened}>>",
        "<</Type/Pages/Kids[3 0 R]/Count 1>>",
        "<</Type/Page/Parent 2 0 R/MediaBox[0 0 300 200]/Contents 4 0 R"
        "/Resources<</Font<</F1 5 0 R>>>>>>",
        f"<</Length {len(stream)}>>stream\n{stream}\nendstream",
        "<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>",
    ]
    out, places = b"%PDF-1.4\n", []
    for number, content in enumerate(objects, 1):
        places.append(len(out))
        out += f"{number} 0 obj{content}endobj\n".encode()
    table = "".join(f"{place:010} 00000 n \n" for place in places)
    end = f"xref\n0 6\n0000000000 65535 f \n{table}trailer<</Size 6/Root 1 0 R>>\n"
    return out + f"{end}startxref\n{len(out)}\n%%EOF".encode()


KINDS: dict[str, tuple[str, Any]] = {}
"""Name of a file -> the view that the page must choose, and its content."""


def _add(name: str, view: str, content: Any) -> None:
    KINDS[name] = view, content


_add("photo.jpg", "image", lambda: image_bytes("JPEG", photo(1)))
_add("photo.png", "image", lambda: image_bytes("PNG", photo(2)))
_add("photo.webp", "image", lambda: image_bytes("WEBP", photo(3)))
_add("photo.gif", "image", lambda: image_bytes("GIF", photo(4)))
_add("scan.tiff", "picture", lambda: image_bytes("TIFF", photo(5)))
_add(
    "depth16.png",
    "image",
    lambda: image_bytes("PNG", np.arange(64 * 64, dtype=np.uint16).reshape(64, 64) * 12),
)
_add("depth16.tiff", "picture", lambda: image_bytes("TIFF", np.eye(32, dtype=np.uint16) * 4000))
_add("notes.txt", "text", lambda: "".join(f"line {i}\n" for i in range(1, 300)).encode())
_add("code.py", "text", lambda: b"def answer():\n    return 42\n")
_add("utf16.txt", "text", lambda: "Grüße\n".encode("utf-16"))
_add("tree.json", "json", lambda: json.dumps({"a": [1, 2, {"b": 2**70}], "c": None}).encode())
_add("broken.json", "text", lambda: b'{"a": [1, 2')
_add("deep.json", "text", lambda: b"[" * 100_000 + b"]" * 100_000)
_add("lines.jsonl", "jsonl", lambda: b'{"n": 1}\n{"n": 2}\nnot json\n')
_add("table.csv", "csv", lambda: b'name,age\n"Ada, L.",36\nBob,41\n')
_add("table.tsv", "csv", lambda: b"name\tage\nAda\t36\n")
_add("matrix.npy", "npy", lambda: npy(np.random.default_rng(0).normal(size=(4, 32, 48))))
_add("series.npy", "npy", lambda: npy(np.sin(np.arange(500) / 20)))
_add("arrays.npz", "npz", lambda: npz(images=photo(6), labels=np.arange(10)))
_add("pickled.npy", "npy", lambda: npy(np.array([{"a": 1}], object)))
_add("tone.wav", "audio", sound)
_add("film.webm", "video", film)
_add("page.pdf", "pdf", pdf)
_add(
    "drawing.svg", "text", lambda: b'<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"/>'
)
_add("random.bin", "hex", lambda: np.random.default_rng(1).bytes(100_000))
_add("nothing", "empty", lambda: b"")


def png_bomb(side: int = 60_000) -> bytes:
    """Return a small PNG that claims to have billions of pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        crc = zlib.crc32(kind + data)
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", crc)

    header = struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0)
    rows = zlib.compress(bytes(1 << 20), 9)
    parts = chunk(b"IHDR", header), chunk(b"IDAT", rows), chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def zip_bomb() -> bytes:
    """Return an .npz whose array unpacks to a gigabyte."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as made, made.open("big.npy", "w") as file:
        head = npy(np.zeros(0, np.uint8)).replace(b"(0,)", b"(1073741824,)")
        file.write(head[:128])
        for _ in range(64):
            file.write(bytes(1 << 20))
    return out.getvalue()


HOSTILE: dict[str, bytes] = {
    "evil.html": f"<html><body>{SCRIPT}<img src=x onerror={MARK}=1></body></html>".encode(),
    "evil.svg": f'<svg xmlns="{SVG}" onload="{MARK}=1">{SCRIPT}</svg>'.encode(),
    "evil.xhtml": f'<html xmlns="http://www.w3.org/1999/xhtml">{SCRIPT}</html>'.encode(),
    "html-as.jpg": f"<html>{SCRIPT}</html>".encode(),
    "polyglot.gif": b"GIF89a/*"
    + image_bytes("GIF", photo(7))[8:]
    + f"*/={MARK}=1;{SCRIPT}".encode(),
    "polyglot.pdf": pdf(action=f"{MARK}=1; app.alert(1)") + SCRIPT.encode(),
    "script.js": f"{MARK}=1".encode(),
    "evil.json": json.dumps(
        {
            SCRIPT: f"<img src=x onerror={MARK}=1>",
            "__proto__": {"a": 1},
            "$number": {"length": 10_000},  # looks like the page's own mark
        }
    ).encode(),
    "evil.csv": f"{SCRIPT},<img src=x onerror={MARK}=1>\n1,2\n".encode(),
    "bomb.png": png_bomb(),
    "bomb.npz": zip_bomb(),
    f"<img src=x onerror={MARK}=1>.txt": b"a name with markup",
    f'"><script>{MARK}=1<&script>.png': image_bytes("PNG", photo(8)),
    "new\nline \x1b[31m.txt": b"a name with control characters",
    "\udcff\udcfe not UTF-8.txt": b"a name that is not UTF-8",
    "# ?%2e%2e&=+;.txt": b"a name with letters that URLs use",
    "..%2f..%2fetc%2fpasswd": b"a name that looks like a way out",
    "rtl \u202egpj.exe": b"a name that runs backwards",
    "x" * 255: b"a long name",
}


def write_tree(top: Path) -> None:
    """Write a file of every kind, hostile files, and a few folders."""
    for folder in ("kinds", "hostile", "photos", "empty", "deep/er/and/deeper"):
        (top / folder).mkdir(parents=True)
    for name, (_, content) in KINDS.items():
        (top / "kinds" / name).write_bytes(content())
    for name, data in HOSTILE.items():
        (top / "hostile" / name).write_bytes(data)
    for number in range(60):
        data = image_bytes("JPEG", photo(number))
        (top / "photos" / f"{number:04}.jpg").write_bytes(data)
    (top / "deep/er/and/deeper/file.txt").write_bytes(b"deep\n")
    (top / "link.txt").symlink_to("kinds/notes.txt")
    (top / "way-out").symlink_to("../../../../etc/passwd")
    (top / "broken-link").symlink_to("missing")
