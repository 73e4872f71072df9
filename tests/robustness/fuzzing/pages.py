"""Targets: requests to the page of `ffrecord view`, and its previews."""

from __future__ import annotations

import io
import json
import os
import re
import struct
import zipfile
import zlib
from collections.abc import Sequence
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import numpy as np
from PIL import Image

import ffrecord
from ffrecord import pack_folder
from ffrecord.dataset.codecs import decoders
from ffrecord.view import answers, arrays, pictures, previews, values
from ffrecord.view.access import Access
from ffrecord.view.app import App
from ffrecord.view.contents import Found, Item
from ffrecord.view.opening import open_path
from ffrecord.view.server import _Handler
from tests.robustness.fuzzing import datasets
from tests.robustness.fuzzing.scratch import folder
from tests.robustness.fuzzing.target import Target
from tests.robustness.fuzzing.wire import KEPT
from tests.support import handmade, trees

# ---- requests to the page --------------------------------------------------------------------

TREE = {
    "a.txt": b"hello\n" * 50, "b.csv": b"x,y\n1,2\n", "c.json": b'{"a": [1]}',
    "sub/d": b"\0\1" * 99, "e.npy": b"", "f.png": b"", "g.npz": b"",
}  # fmt: skip
TOKEN = "t" * 24
REQUESTS = (
    "about", "list?folder=&order=size&limit=3", "list?pattern=*.txt", "list?seed=3&count=2",
    "list?pattern=[a-c]*%2F**", "locate?path=sub%2Fd&order=name", "thumbs?keys=0,1,2&fine",
    "preview?key=1", "preview?key=0&view=text&offset=7", "hex?key=3&offset=5&length=9",
    "picture?key=5&frame=1", "slice?key=4&at=1", "slice?key=6&member=0", "member?key=6&member=0",
    "rows?filter=label=dog&filter=age:1:3:1", "rows?seed=1&count=2", "sequence?row=3&field=words",
    "column?field=age", "overview", "verify", "preview?key=1.words.0", "locate?path=2&seed=1",
)  # fmt: skip


def _array(save: Any, values: Any) -> bytes:
    out = io.BytesIO()
    save(out, values)
    return out.getvalue()


def _picture(kind: str, mode: str = "RGB", **options: Any) -> bytes:
    out = io.BytesIO()
    pixels = np.arange(6 * 7 * 4, dtype=np.uint8).reshape(6, 7, 4)
    Image.fromarray(pixels).convert(mode).save(out, kind, **options)
    return out.getvalue()


def _page_tree() -> dict[str, bytes]:
    cube = np.arange(24.0).reshape(2, 3, 4)
    made = {
        "e.npy": _array(np.save, cube),
        "f.png": _picture("PNG"),
        "g.npz": _array(np.savez, cube),
    }
    return TREE | made


class _Kept(io.BytesIO):
    """A file whose content can be read after it was closed."""

    def close(self) -> None:
        self.flush()


class _Connection:
    """A connection to a browser that has sent some bytes, and waits for the answers."""

    nobody, _ = os.pipe()

    def __init__(self, data: bytes) -> None:
        self.asked, self.answered = io.BytesIO(data), _Kept()

    def makefile(self, mode: str, size: int) -> io.BytesIO:
        return self.asked if mode == "rb" else self.answered

    def fileno(self) -> int:
        return self.nobody

    def _ignore(self, *arguments: Any) -> None: ...

    settimeout = setsockopt = _ignore


def pages() -> Target:
    """Fuzz requests. The first byte chooses what is shown: a folder, records or a dataset."""
    top = folder()
    tree = _page_tree()
    trees.plain_tree(top / "tree", tree)
    pack_folder(top / "tree", top / "tree.ffr")
    handmade.write_records(top / "records.ffr", [*tree.values()])
    with ffrecord.DatasetWriter(
        top / "dataset", {"label": "utf8", "age": "int", "words": "utf8[]", "x": "array"}
    ) as writer:
        for n in range(6):
            row = {
                "label": ["cat", "dog"][n % 2],
                "age": n,
                "words": ["w"] * n,
                "x": np.eye(n + 2),
            }
            writer.append(row)
    opened = [open_path(top / name) for name in ("tree.ffr", "records.ffr", "dataset")]
    KEPT.append(opened)
    access = Access(TOKEN, "127.0.0.1")
    servers: list[Any] = [
        SimpleNamespace(access=access, app=App(each), is_known=lambda connection: None)
        for each in opened
    ]
    contents = [tree[name] for name in sorted(tree) if "/" not in name], [*tree.values()]

    def run(data: bytes) -> str:
        number = data[0] % 3 if data else 0
        connection = _Connection(data[1:])
        _Handler(connection, ("127.0.0.1", 1), servers[number])  # type: ignore[arg-type]
        statuses = []
        for status, fields, body in _responses(connection.answered.getvalue()):
            assert status in (200, 206, 400, 403, 404, 405, 408, 416, 422), (status, body[:300])
            assert status == 403 or TOKEN.encode() in data
            assert {"x-content-type-options", "content-security-policy"} <= fields.keys()
            if fields["content-type"].startswith("application/json") and body:
                json.loads(body, parse_constant=_refuse)
            statuses.append((status, body))
        if number < 2:
            _require_file(data[1:], contents[number], statuses)
        return " ".join(str(status) for status, _ in statuses[:2]) or "nothing"

    lines = [f"GET /{TOKEN}/api/{each} HTTP/1.1\r\n" for each in REQUESTS]
    ranges = ("3-5", "7-999", "-9", "4-", "-", "9-3", "0-0,5-6", "999-")
    lines += [f"GET /{TOKEN}/file?key=0 HTTP/1.1\r\nRange: bytes={each}\r\n" for each in ranges]
    lines += [
        f"HEAD /{TOKEN}/ HTTP/1.1\r\n",
        f"POST /{TOKEN}/api/verify?stop HTTP/1.1\r\nContent-Length: 2\r\n",
        f"GET http://localhost/{TOKEN}/file?key=0&download HTTP/1.0\r\n",
    ]
    whole = [f"{line}Host: localhost:8000\r\n\r\n".encode() for line in lines]
    seeds = tuple(bytes([number]) + each for each in whole for number in range(3))
    words = [word for each in REQUESTS for word in re.split("[?&]", each)]
    tokens = (
        *(word.encode() for word in words), TOKEN.encode(), b"/", b"&", b"%00", b"%2F", b"=",
        b"300", b"..", b"\r\n", b"-", b"Range: bytes=-7\r\n", b"Content-Length: ", b"9" * 5000,
        b"Transfer-Encoding: chunked\r\n", b"[--a]", b"1e999", b"nan", b"*", b"**", b"?", b"[",
    )  # fmt: skip
    return Target("page", run, seeds, tokens=tokens, memory=64 << 20)


def _refuse(word: str) -> None:
    raise AssertionError(f"the answer has {word}, which is no JSON")


def _responses(raw: bytes) -> list[tuple[int, dict[str, str], bytes]]:
    """Split answers. An answer to HEAD is one whose body is missing."""
    found = []
    while raw:
        head, end, raw = raw.partition(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        version, status, _ = first.split(" ", 2)
        assert end
        assert version == "HTTP/1.1"
        pairs = [line.split(": ", 1) for line in lines]
        fields = {name.lower(): value for name, value in pairs}
        assert len(fields) == len(pairs), "a field is there twice"
        body = b""
        if raw and not raw.startswith(b"HTTP/1.1 "):
            body, raw = _body(raw, fields.get("content-length"))
        found.append((int(status), fields, body))
    return found


def _body(raw: bytes, length: str | None) -> tuple[bytes, bytes]:
    if length is not None:
        assert len(raw) >= int(length), "the answer is too short"
        return raw[: int(length)], raw[int(length) :]
    whole = b""
    while True:
        size, _, raw = raw.partition(b"\r\n")
        piece, raw = raw[: int(size, 16)], raw[int(size, 16) :]
        assert raw[:2] == b"\r\n"
        raw = raw[2:]
        if not piece:
            return whole, raw
        whole += piece


_FILE = re.compile(
    rb"GET /t{24}/file\?key=(\d) HTTP/1\.1\r\n(?:Range: bytes=(\d*)-(\d*)\r\n)?"
    rb"Host: localhost:8000\r\n\r\n"
)


def _require_file(
    asked: bytes, contents: Sequence[bytes], answered: list[tuple[int, bytes]]
) -> None:
    """Compare the answer to a plain request for a file, or for a range of it."""
    found = _FILE.fullmatch(asked)
    if found is None or int(found[1]) >= len(contents):
        return
    content, first, last = contents[int(found[1])], found[2], found[3]
    due = 206, content
    if first:
        due = 206, content[int(first) : int(last) + 1 if last else None]
    elif last:
        due = 206, content[max(0, len(content) - int(last)) :]
    else:
        due = 200, content
    assert answered == [due] or (not due[1] and answered[0][0] == 416)


# ---- previews --------------------------------------------------------------------------------

NAMES = ("a", "a.csv", "a.tsv", "a.json", "a.jsonl", "a.npy", "a.npz", "a.svg", "a.txt")
TYPES = [*decoders]


class _One:
    """Contents that are one file."""

    def __init__(self, name: str, data: bytes) -> None:
        self.name, self.data = name, np.frombuffer(data, np.uint8)

    def item(self, key: str) -> Item:
        return Item(self.name, len(self.data))

    def part(self, key: str, offset: int, length: int) -> ffrecord.aliases.Bytes:
        return self.data[offset : offset + length]

    def whole(self, keys: Sequence[str]) -> list[Found]:
        return [self.data for _ in keys]


def previews_() -> Target:
    """Fuzz contents that are previewed. The first two bytes choose the name or type, and a part.

    Pictures may be smaller than usual, because decoding large ones takes long.
    """

    def run(data: bytes) -> str:
        with datasets.lower_limits((pictures, "MOST_PIXELS")):
            return show(data)

    def show(data: bytes) -> str:
        which, part = (*data[:2], 0, 0)[:2]
        content = data[2:]
        if which >= 128:
            type_ = TYPES[which % len(TYPES)]
            raw = np.frombuffer(content, np.uint8)
            _require_json(values.short(type_, raw), values.full(type_, raw))
            return str(type_)
        one = _One(NAMES[which % len(NAMES)], content)
        found = _shown(one, part)
        if found["kind"] in ("image", "picture"):
            pictures.thumbnail(one.data, 160)
            previews.picture(one, "", part % 4)
        elif found["kind"] == "npy":
            _compare(content, arrays.load_npy(one.data))
            previews.array_slice(one, "", None, [part])
        elif found["kind"] == "npz":
            _require_json(previews.array_facts(one, "", part))
            previews.array_slice(one, "", part, [part % 3] * 3)
        return f"{found['view']} with an error" if "error" in found else str(found["view"])

    seeds = [bytes([NAMES.index(name), 0]) + each for name, each in _files()]
    for each in datasets._seeds():
        if each[0] < len(TYPES):
            seeds.append(bytes([128 + (each[0] - 128) % len(TYPES), 0]) + each[1:])
    tokens = (
        *datasets._JSON, b"(3,", b"'<f8'", b"'<c16'", b"'<U1'", b"'<M8[s]'", b"True", b"IDAT",
        b"\x7f\xf0\0\0\0\0\0\0", b"\n", b",", b'"', b"\t", b";", b"\xff\xfe", b"1e308", b"[" * 2000,
    )  # fmt: skip
    return Target("preview", run, tuple(seeds), _sealed_png, tokens, (ValueError,), 128 << 20)


def _shown(one: _One, part: int) -> dict[str, Any]:
    """Return the preview, which must exist for all contents."""
    try:
        first, *others = (
            previews.preview(one, "", view, part % (len(one.data) + 1) * bool(view))
            for view in ("", "text", "hex")
        )
    except ValueError as error:
        raise AssertionError("there is no preview") from error
    _require_json(first, *others)
    return first


def _require_json(*facts: Any) -> None:
    try:
        for each in facts:
            answers.of_json(each)
    except ValueError as error:
        raise AssertionError("the preview cannot be sent") from error


def _compare(content: bytes, loaded: arrays.Loaded) -> None:
    with suppress(ValueError, EOFError):
        due = np.lib.format.read_array(io.BytesIO(content), allow_pickle=False)
        if loaded.is_whole:
            assert (loaded.values.dtype, loaded.values.tobytes()) == (due.dtype, due.tobytes())


def _files() -> list[tuple[str, bytes]]:
    """Return small files of all kinds, with names."""
    pixels = [_picture(kind) for kind in ("JPEG", "BMP", "WEBP", "GIF", "TIFF", "PPM", "PNG")]
    pixels += [_picture("PNG", mode) for mode in ("P", "L", "1", "I;16", "RGBA", "LA")]
    pixels += [_picture("TIFF", mode) for mode in ("F", "CMYK", "I", "L")]
    frames = [Image.new("L", (5, 4), shade) for shade in (1, 2)]
    for kind in ("GIF", "TIFF", "WEBP", "PNG"):
        out = io.BytesIO()
        frames[0].save(out, kind, save_all=True, append_images=frames)
        pixels.append(out.getvalue())
    kinds = ("<f8", "<f2", ">i4", "?", "<c16", "<U3", "<M8[s]", "u1", "<f16")
    npy = [_array(np.save, np.arange(6).astype(kind).reshape(2, 3)) for kind in kinds[:5]]
    npy += [_array(np.save, np.zeros(4, kind)) for kind in kinds[4:]]
    npy += [_array(np.save, np.asfortranarray(np.arange(24.0).reshape(2, 3, 4)))]
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as made:
        made.writestr("x.npy", npy[0])
        made.writestr("é.npy", npy[-1])
    return [
        *(("a", each) for each in pixels), *(("a.npy", each) for each in npy),
        ("a.npz", packed.getvalue()), ("a.npz", _array(np.savez, np.arange(5))),
        ("a.csv", b'name,age\n"Ada, L.",36\nBob,41\n'), ("a.tsv", b"name\tage\nAda\t36\n"),
        ("a.json", b'{"a": [1, 2.50, {"b": 1e400}], "c": null, "d": NaN}'), ("a", b"[1]"),
        ("a.jsonl", b'{"n": 1}\n{"n": 2}\nnot json\n'), ("a.txt", "Grüße\r\n".encode("utf-16")),
        ("a.svg", b"<svg/>"), ("a", b"%PDF-1.4"), ("a", b"RIFF1234WAVE"), ("a", b"\x1aE\xdf\xa3"),
    ]  # fmt: skip


def _sealed_png(data: bytes) -> bytes:
    """Return a PNG with correct checksums."""
    changed, at = bytearray(data), 10
    if data[2:10] != b"\x89PNG\r\n\x1a\n":
        return data
    while at + 12 <= len(changed):
        (length,) = struct.unpack_from(">I", changed, at)
        if (end := at + 8 + length) + 4 > len(changed):
            break
        struct.pack_into(">I", changed, end, zlib.crc32(changed[at + 4 : end]))
        at = end + 4
    return bytes(changed)
