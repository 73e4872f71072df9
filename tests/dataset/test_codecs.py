"""Every type: round trips over its whole range, its bytes, and the values it refuses."""

from __future__ import annotations

import io
import json
import random
import struct
import subprocess
import sys
import tracemalloc
import zlib
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

import ffrecord
from ffrecord.dataset import optional
from ffrecord.dataset.codecs import decoders, encoders
from tests.dataset.values import LOSSLESS, same
from tests.support import handmade


def there_and_back(name: str, value: Any) -> Any:
    return decoders[name](memoryview(bytearray(encoders[name](value))))


@given(st.data())
@pytest.mark.parametrize("name", sorted(LOSSLESS))
def test_values_round_trip(name: str, data: st.DataObject) -> None:
    value = data.draw(LOSSLESS[name])
    assert same(value, there_and_back(name, value))


def test_encoders_and_decoders_have_the_same_names() -> None:
    assert ffrecord.encoders is encoders
    assert ffrecord.decoders is decoders
    assert encoders.keys() == decoders.keys() == {*LOSSLESS, "jpg"}


BUGS = (MemoryError, SystemError, AttributeError, NameError)

EXAMPLES: dict[str, Any] = {
    "bytes": b"abc", "utf8": "größe", "int": -5, "float": 1.5, "bool": True,
    "json": {"a": [1, 2.5, None, "x"]}, "msgpack": {"a": [1, 2.5, None, b"x"]},
    "array": np.zeros((3, 4), [("a", "<i4"), ("b", ">f8")]),
    "tree": {"a": [1 << 70, np.arange(4), {"b": np.float32(1)}]},
    "jpg": np.zeros((16, 16, 3), np.uint8), "png": np.zeros((16, 16, 4), np.uint8),
}  # fmt: skip


# ---- the bytes in docs/datasets.md -----------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value", "encoded"),
    [
        ("bytes", memoryview(b"abcd")[::2], b"ac"),
        ("bytes", b"", b""),
        ("utf8", "é€", b"\xc3\xa9\xe2\x82\xac"),
        ("int", 0, b"\x00"),
        ("int", 127, b"\x7f"),
        ("int", 128, b"\x80\x00"),
        ("int", -128, b"\x80\xff"),
        ("int", -129, b"\x7f\xff"),
        ("int", 1 << 64, b"\x00" * 8 + b"\x01"),
        ("int", np.uint8(255), b"\xff\x00"),
        ("float", 1.0, b"\x00\x00\x00\x00\x00\x00\xf0\x3f"),
        ("float", -float("inf"), b"\x00\x00\x00\x00\x00\x00\xf0\xff"),
        ("float", np.float32(0.5), struct.pack("<d", 0.5)),
        ("float", 3, struct.pack("<d", 3.0)),
        ("bool", True, b"\x01"),
        ("bool", np.False_, b"\x00"),
        ("json", {"é": [1, None]}, b'{"\xc3\xa9":[1,null]}'),
        ("msgpack", {"a": b"x"}, b"\x81\xa1a\xc4\x01x"),
        ("tree", [1 << 64], b"\x91\xc7\x09\x02" + b"\x00" * 8 + b"\x01"),
    ],
)
def test_a_value_has_the_documented_bytes(name: str, value: Any, encoded: bytes) -> None:
    assert encoders[name](value) == encoded


@pytest.mark.parametrize(
    "array",
    [
        np.arange(24, dtype=np.float32).reshape(2, 3, 4)[:, ::-2].T,
        np.asfortranarray(np.arange(6).reshape(2, 3)),
        np.array(-7, dtype=">i2"),
        np.zeros((0, 3), "<c16"),
        np.array(["", "日本"]),
        np.array([(1, [2.5, 3.5])], [("a", "u1"), ("b", ">f8", (2,))]),
        np.array([(1, 2)], np.dtype([("a", "i1"), ("b", "i4")], align=True)),
        np.array([(1,)], [("größe 日", "i4")]),
        np.array(["2026-01-01", "NaT"], "M8[ms]"),
        np.zeros(3, "V0"),
        np.zeros(3, "S0"),
    ],
    ids=str,
)
def test_an_array_is_a_npy_file_that_numpy_reads(array: np.ndarray[Any, Any]) -> None:
    encoded = encoders["array"](array)
    by_numpy = np.load(io.BytesIO(encoded), allow_pickle=False)
    ours = there_and_back("array", array)
    for other in (by_numpy, ours):
        assert (other.dtype, other.shape) == (array.dtype, array.shape)
        assert str(other.tolist()) == str(array.tolist())  # not the bytes: padding may differ
    assert (len(encoded) - array.nbytes) % 64 == 0


def test_a_npy_file_of_numpy_in_any_version_and_order_is_an_array() -> None:
    array = np.asfortranarray(np.arange(12, dtype=">i4").reshape(3, 4))
    for version in ((1, 0), (2, 0), (3, 0)):
        stream = io.BytesIO()
        np.lib.format.write_array(stream, array, version=version)
        assert same(np.array(array), np.array(decoders["array"](memoryview(stream.getvalue()))))


def test_an_array_is_a_writable_view_of_its_record() -> None:
    record = bytearray(encoders["array"](np.arange(5)))
    array = decoders["array"](memoryview(record))
    array[0] = 99
    assert decoders["array"](memoryview(record))[0] == 99


def test_an_array_that_is_not_aligned_in_its_record_is_copied() -> None:
    record = bytearray(b"x" + encoders["array"](np.arange(5)))
    array = decoders["array"](memoryview(record)[1:])
    assert array.flags.aligned
    assert array.tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("name", sorted(EXAMPLES))
def test_decoders_take_any_bytes_like_object(name: str) -> None:
    encoded = encoders[name](EXAMPLES[name])
    expected = decoders[name](memoryview(encoded))
    for buffer in (encoded, bytearray(encoded), np.frombuffer(encoded, np.uint8)):
        assert same(decoders[name](buffer), expected)


def test_images_are_files_of_their_format_that_others_read() -> None:
    picture = np.arange(60 * 80 * 3, dtype=np.uint32).reshape(60, 80, 3).astype(np.uint8)
    with Image.open(io.BytesIO(encoders["png"](picture))) as image:
        assert image.format == "PNG"
        assert (np.array(image) == picture).all()
    smooth = np.add.outer(np.arange(60), np.arange(80)).astype(np.uint8)
    for flat in (smooth, np.stack([smooth] * 3, axis=2)):
        encoded = encoders["jpg"](flat)
        with Image.open(io.BytesIO(encoded)) as image:
            assert image.format == "JPEG"
        back = decoders["jpg"](memoryview(encoded))
        assert (back.dtype, back.shape) == (np.uint8, flat.shape)
        assert np.abs(back.astype(int) - flat).max() <= 4
        back[0] = 0  # the array is writable


@pytest.mark.parametrize(
    ("mode", "given"), [("P", (2, 3, 4)), ("1", (2, 3)), ("L", (2, 3)), ("LA", (2, 3, 2))]
)
def test_other_writers_png_files_are_read_as_8_bit_channels(
    mode: str, given: tuple[int, ...]
) -> None:
    stream = io.BytesIO()
    Image.new(mode, (3, 2)).save(stream, format="PNG")
    assert decoders["png"](memoryview(stream.getvalue())).shape == given


def test_a_tree_keeps_numpy_scalars_and_returns_lists_for_tuples() -> None:
    tree = {"a": (1, np.float64(2.5)), "b": {3: np.int8(4), "c": np.datetime64("2026-01-01", "D")}}
    back = there_and_back("tree", tree)
    assert same({**tree, "a": [1, np.float64(2.5)]}, back)


def test_arrays_in_a_tree_are_writable() -> None:
    back = there_and_back("tree", {"a": np.zeros(3)})
    back["a"][0] = 1
    assert back["a"].tolist() == [1, 0, 0]


# ---- values that cannot be stored ------------------------------------------------------------

OUT_OF_ORDER = np.dtype({"names": ["b", "a"], "formats": ["i1", "i4"], "offsets": [4, 0]})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("bytes", "text"),
        ("bytes", 5),
        ("utf8", b"bytes"),
        ("utf8", "\ud800"),
        ("int", 1.0),
        ("int", "1"),
        ("float", "1.5"),
        ("float", (1 << 53) + 1),
        ("float", 1 << 2000),
        ("float", None),
        ("bool", 1),
        ("json", {1, 2}),
        ("json", b"bytes"),
        ("msgpack", 1 << 64),
        ("msgpack", object()),
        ("array", np.array([object()])),
        ("array", [1, "a", None]),
        ("array", np.zeros(1, [("a", object)])),
        ("array", np.ma.masked_array([1, 2], [True, False])),
        ("array", np.zeros(1, OUT_OF_ORDER)),
        ("array", np.zeros(1, [(f"a long name {i}", "i4") for i in range(1000)])),
        ("tree", {"a": object()}),
        ("tree", {"a": np.array([object()])}),
        ("jpg", np.zeros((4, 4, 4), np.uint8)),
        ("png", np.zeros((4, 4), np.uint16)),
        ("png", np.zeros((4, 4, 1), np.uint8)),
        ("png", np.zeros((4,), np.uint8)),
        ("png", np.zeros((0, 4), np.uint8)),
    ],
    ids=lambda value: handmade.label(value)[:30],
)  # fmt: skip
def test_a_value_that_its_type_cannot_hold_is_refused(name: str, value: Any) -> None:
    with pytest.raises(ffrecord.EncodeError, match=r"."):
        encoders[name](value)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("int", "3", "expected an int, got str"),
        ("int", 3.0, "expected an int, got float"),
        ("bytes", 3, "expected bytes or another buffer, got int"),
        ("jpg", "cats/0007.jpg", "an image must be an array of uint8, not str; decode it first"),
        ("png", b"\x89PNG", "not bytes; .* the bytes of the file in a field of type bytes"),
        ("jpg", Path("cats/0007.jpg"), "an image must be an array of uint8, not PosixPath; decode"),
    ],
)
def test_a_refused_value_is_named_by_its_python_type(name: str, value: Any, message: str) -> None:
    with pytest.raises(ffrecord.EncodeError, match=message):
        encoders[name](value)


def test_a_list_that_contains_itself_is_refused() -> None:
    endless: list[Any] = []
    endless.append(endless)
    for name in ("json", "msgpack", "tree"):
        with pytest.raises(ffrecord.EncodeError):
            encoders[name](endless)


# ---- hostile records -------------------------------------------------------------------------


def npy(header: str | bytes, data: bytes = b"", version: int = 1) -> bytes:
    encoded = header.encode() if isinstance(header, str) else header
    length = struct.pack("<H" if version == 1 else "<I", len(encoded))
    return b"\x93NUMPY" + bytes([version, 0]) + length + encoded + data


def described(descr: str, shape: str, fortran: str = "False") -> str:
    return f"{{'descr': {descr}, 'fortran_order': {fortran}, 'shape': {shape}}}"


def png_of(width: int, height: int, depth: int = 8, colour: int = 0) -> bytes:
    """Return a PNG that claims a size, with a little data."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    body = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(bytes(100))) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


def jpg_of(width: int, height: int) -> bytes:
    """Return a JPEG whose frame header claims another size."""
    encoded = bytearray(encoders["jpg"](np.zeros((8, 8), np.uint8)))
    at = encoded.index(b"\xff\xc0")
    encoded[at + 5 : at + 9] = struct.pack(">HH", height, width)
    return bytes(encoded)


HUGE_LISTS = b"".join(b"\xdd" + struct.pack(">I", 900_000) for _ in range(200)) + bytes(900_000)

HOSTILE = {
    "invalid utf8": ("utf8", b"\xff\xfe"),
    "int without a byte": ("int", b""),
    "float too short": ("float", b"1234567"),
    "float too long": ("float", b"123456789"),
    "bool without a byte": ("bool", b""),
    "bool with the value 2": ("bool", b"\x02"),
    "bool too long": ("bool", b"\x01\x01"),
    "json cut off": ("json", b'{"a": 1'),
    "json with more after it": ("json", b"{} {}"),
    "json not in utf-8": ("json", b'"\xff"'),
    "json nested deeply": ("json", b"[" * 1_000_000),
    "json of a very long number": ("json", b"1" * 1_000_000),
    "msgpack empty": ("msgpack", b""),
    "msgpack cut off": ("msgpack", b"\x92\x01"),
    "msgpack with more after it": ("msgpack", b"\x01\x01"),
    "msgpack nested deeply": ("msgpack", b"\x91" * 1_000_000),
    "msgpack of lists that claim too much": ("msgpack", HUGE_LISTS),
    "msgpack of a map that claims too much": ("msgpack", b"\xdf\xff\xff\xff\xff"),
    "msgpack with a list for a key": ("msgpack", b"\x81\x90\x01"),
    "msgpack of an undefined type": ("msgpack", b"\xc1"),
    "tree with an unknown leaf": ("tree", b"\xd4\x63\x00"),
    "tree with an invalid array": ("tree", b"\xd4\x01\x00"),
    "tree with an int of no bytes": ("tree", b"\xc7\x00\x02"),
    "tree of lists that claim too much": ("tree", HUGE_LISTS),
    "array empty": ("array", b""),
    "array that is a zip file": ("array", b"PK\x03\x04" + bytes(100)),
    "array with objects": ("array", npy(described("'|O'", "(1,)"), b"cos\nsystem\n(S'id'\ntR.")),
    "array with objects in a field": ("array", npy(described("[('a', '|O')]", "(1,)"), bytes(8))),
    "array that runs code": ("array", npy("__import__('os').abort()")),
    "array of a future version": ("array", npy(described("'<i4'", "()"), bytes(4), version=9)),
    "array with too long a header": ("array", npy(b" " * 60_000, version=1)),
    "array with a header beyond its end": ("array", b"\x93NUMPY\x02\x00\xff\xff\xff\x7f"),
    "array cut off in its header": ("array", npy(described("'<i4'", "(3,)"))[:40]),
    "array with a nested header": ("array", npy("(" * 9_000)),
    "array with a header of minus signs": ("array", npy("-" * 9_000 + "1")),
    "array with more keys": ("array", npy(described("'<i4'", "(), 'x': 1"), bytes(4))),
    "array of too little data": ("array", npy(described("'<i4'", "(3,)"), bytes(11))),
    "array of too much data": ("array", npy(described("'<i4'", "(3,)"), bytes(13))),
    "array of a huge shape": ("array", npy(described("'<i4'", "(1000000000,)"))),
    "array of a shape beyond 64 bits": ("array", npy(described("'<i4'", f"({1 << 62}, 4)"))),
    "array of many items of 0 bytes": ("array", npy(described("'V0'", f"({1 << 62}, {1 << 62})"))),
    "array of a negative shape": ("array", npy(described("'<i4'", "(-1, -1)"), bytes(4))),
    "array of a shape of booleans": ("array", npy(described("'<i4'", "(True,)"), bytes(4))),
    "array of a shape of floats": ("array", npy(described("'<i4'", "(1.0,)"), bytes(4))),
    "array of an unknown dtype": ("array", npy(described("'what'", "(1,)"), bytes(4))),
    "array of a dtype that is a number": ("array", npy(described("5", "(1,)"), bytes(4))),
    "array of unhashable keys": ("array", npy("{[]: 1}")),
    "array in an unknown order": ("array", npy(described("'<i4'", "()", "'yes'"), bytes(4))),
    "array with a header that is not UTF-8": ("array", npy(b"\xff\xfe", version=3)),
    "jpg empty": ("jpg", b""),
    "jpg that is a png": ("jpg", png_of(2, 2)),
    "jpg cut off": ("jpg", encoders["jpg"](np.zeros((64, 64), np.uint8))[:-60]),
    "jpg of many pixels": ("jpg", jpg_of(65_000, 65_000)),
    "png that is a jpg": ("png", jpg_of(8, 8)),
    "png of many pixels": ("png", png_of(1 << 30, 1 << 30)),
    "png of 16 bits": ("png", png_of(2, 2, depth=16)),
    "png cut off": ("png", png_of(1000, 1000)[:60]),
}  # fmt: skip


@pytest.mark.parametrize("what", HOSTILE)
def test_hostile_bytes_raise_an_error_and_allocate_no_memory(what: str) -> None:
    name, record = HOSTILE[what]
    tracemalloc.start()
    try:
        with pytest.raises(ffrecord.DecodeError, match=r".") as caught:
            decoders[name](memoryview(record))
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert not isinstance(caught.value.__cause__, BUGS)
    assert most < 16 * len(record) + (32 << 20)


def test_hostile_bytes_in_a_dataset_raise_a_decode_error(tmp_path: Path) -> None:
    """Write each hostile record unchanged into a field of its type."""
    fields = {f"{k} {what}": pair for k, (what, pair) in enumerate(HOSTILE.items())}
    raw = dict.fromkeys(decoders, bytes)
    spec = {field: name for field, (name, _) in fields.items()}
    with ffrecord.DatasetWriter(tmp_path / "data", spec, raw) as writer:
        writer.append({field: record for field, (_, record) in fields.items()})
    with ffrecord.DatasetReader(tmp_path / "data") as reader:
        for field, (name, _) in fields.items():
            where = f"{field}.ffr: record 0 cannot be decoded as {name}: ."
            with pytest.raises(ffrecord.DecodeError, match=where):
                reader[0, [field]]


def tampered(record: bytes, seed: int) -> bytes:
    """Draw a copy with some bytes changed, removed or inserted."""
    generator = random.Random(seed)
    changed = bytearray(record)
    for _ in range(generator.randint(1, 4)):
        at = generator.randrange(len(changed) + 1)
        kind = generator.randrange(3)
        if kind == 0:
            changed[at : at + 1] = generator.randbytes(1)
        elif kind == 1:
            del changed[at : at + generator.randint(1, 8)]
        else:
            changed[at:at] = generator.choice([b"\xff" * 4, b"\x00" * 8, b"\x7f\xff\xff\xff", b"["])
    return bytes(changed)


@pytest.mark.parametrize("name", sorted(EXAMPLES))
def test_tampered_bytes_give_a_value_or_a_decode_error(name: str) -> None:
    record = encoders[name](EXAMPLES[name])
    outcomes = set()
    for seed in range(400):
        try:
            decoders[name](memoryview(tampered(record, seed)))
            outcomes.add("value")
        except ffrecord.DecodeError as error:
            outcomes.add("bug" if isinstance(error.__cause__, BUGS) else "error")
    assert outcomes <= {"value", "error"}
    assert name in ("bytes", "int") or "error" in outcomes


# ---- missing packages ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("type_", "module", "package"),
    [
        ("msgpack", "msgpack", "msgpack"),
        ("tree", "msgpack", "msgpack"),
        ("jpg", "PIL", "pillow"),
        ("png", "PIL", "pillow"),
        ("utf8+zstd", "zstandard", "zstandard"),
        ("utf8+lz4", "lz4", "lz4"),
    ],
)
def test_a_missing_package_is_named_with_the_pip_command(
    type_: str, module: str, package: str
) -> None:
    """Run in a new interpreter in which the package cannot be imported."""
    script = f"""
import sys, tempfile
sys.modules[{module!r}] = None
import ffrecord, numpy
values = {{"msgpack": 1, "tree": 1, "utf8+zstd": "x", "utf8+lz4": "x"}}
value = values.get({type_!r}, numpy.zeros((2, 2), numpy.uint8))
with ffrecord.DatasetWriter(tempfile.mkdtemp() + "/new", {{"plain": "int"}}) as writer:
    writer.append({{"plain": 1}})
try:
    with ffrecord.DatasetWriter(tempfile.mkdtemp() + "/new", {{"x": {type_!r}}}) as writer:
        writer.append({{"x": value}})
except ffrecord.MissingPackageError as error:
    print(error)
"""
    run = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True,
        env={"PYTHONPATH": ":".join(filter(None, sys.path))},
    )  # fmt: skip
    assert f"pip install {package}" in run.stdout


def test_an_installed_package_is_loaded() -> None:
    assert optional.load("msgpack") is msgpack


def test_encoded_json_is_valid_json() -> None:
    value = {"a": [1, {"b": None}], "ü": "\ud800"}
    assert json.loads(encoders["json"](value)) == value
