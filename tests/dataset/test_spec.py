"""Types and names in a spec, and attacks on spec.json."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ffrecord import DatasetError, DatasetReader, DatasetWriter, FFRecordError, SpecError, encoders
from ffrecord.dataset.compression import Compression
from ffrecord.dataset.spec import FieldType, check_spec, parse_type


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("int", ("int", None, False)),
        ("utf8[]", ("utf8", None, True)),
        ("array+zstd", ("array", Compression("zstd", 3), False)),
        ("array+gzip:9[]", ("array", Compression("gzip", 9), True)),
    ],
)
def test_a_type_has_a_codec_a_compression_and_brackets(
    text: str, parsed: tuple[str, Compression | None, bool]
) -> None:
    assert parse_type(text, encoders) == FieldType(text, *parsed)


def test_a_codec_with_a_plus_in_its_name_takes_precedence() -> None:
    assert parse_type("c++", {"c++": bytes}).name == "c++"
    assert parse_type("c+++gzip", {"c++": bytes}).compression == Compression("gzip", 6)
    assert parse_type("utf8+zstd", {"utf8+zstd": bytes}).compression is None


@pytest.mark.parametrize(
    "text",
    ["", "what", "[]", "int[][]", "utf8[]+zstd", "utf8+zstd+gzip", "utf8+", "+zstd", "utf8+what",
     "utf8 ", "INT", "utf8+zstd:99"],
)  # fmt: skip
def test_an_unknown_type_is_an_error_and_creates_no_folder(text: str, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="field 'x'"):
        DatasetWriter(tmp_path / "new", {"x": text})
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("wrong", "advice"),
    [
        ("array[3]", r"a type has no length or shape; write array\[\] for a list of any length"),
        ("int[3, 4]", r"write int\[\] for a list of any length, or int for one value"),
        (int, "field 'x' is the class int; pass the text 'int'"),
        (str, "field 'x' is the class str; pass the text 'utf8'"),
        (np.ndarray, "field 'x' is the class ndarray; pass the text 'array'"),
    ],
)
def test_a_common_mistake_is_answered_with_the_right_type(wrong: Any, advice: str) -> None:
    with pytest.raises(SpecError, match=advice):
        DatasetWriter("unused", {"x": wrong})


def test_the_error_shows_how_to_write_a_compressed_sequence() -> None:
    with pytest.raises(SpecError, match=r"write utf8\+zstd\[\] for compressed elements"):
        parse_type("utf8[]+zstd", encoders)


BAD_NAMES: list[Any] = [
    "", ".", "..", ".hidden", "a/b", "../x", "/etc/passwd", "a\x00b", "a\nb", "x" * 201, "é" * 101,
    "\ud800", "a\u202eb", 5, None,
]  # fmt: skip


@pytest.mark.parametrize("name", BAD_NAMES)
def test_a_field_name_unfit_for_a_file_is_refused(name: Any) -> None:
    with pytest.raises(SpecError):
        check_spec({name: "int"})


@pytest.mark.parametrize(
    "spec", [{}, [], None, "int", {"a": 5}, {"a": None}, {"a": ["int"]}, {"a": "\ud800"}]
)
def test_an_invalid_spec_is_refused(spec: Any) -> None:
    with pytest.raises(SpecError):
        check_spec(spec)


def test_names_may_have_any_letters_spaces_and_dots(tmp_path: Path) -> None:
    names = ["größe 1", "日本", "a.b", "-x", "spec.json", "CON", "x" * 200]
    with DatasetWriter(tmp_path / "new", dict.fromkeys(names, "int")) as writer:
        writer.append({name: k for k, name in enumerate(names)})
    assert DatasetReader(tmp_path / "new")[0] == {name: k for k, name in enumerate(names)}


# ---- attacks on spec.json --------------------------------------------------------------------


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    with DatasetWriter(tmp_path / "data", {"a": "int", "b": "utf8[]"}) as writer:
        for k in range(3):
            writer.append({"a": k, "b": ["x"] * k})
    return tmp_path / "data"


def changed(**changes: Any) -> Callable[[dict[str, Any]], Any]:
    return lambda content: {**content, **changes}


def field(name: str, type_: str) -> Callable[[dict[str, Any]], Any]:
    """Return a change of spec.json: one more field, or another type for a field."""

    def change(content: dict[str, Any]) -> Any:
        content["spec"][name] = type_
        content["checksums"].setdefault(name, 0)
        return content

    return change


ATTACKS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "a list": lambda content: [content],
    "null": lambda content: None,
    "another format": changed(format="granular"),
    "a future version": changed(version=2),
    "a version that is a list": changed(version=[1]),
    "a negative length": changed(length=-1),
    "a huge length": changed(length=1 << 80),
    "a longer length": changed(length=4),
    "a shorter length": changed(length=2),
    "a length that is true": changed(length=True),
    "a length in floating point": changed(length=3.0),
    "a length in text": changed(length="3"),
    "no spec": changed(spec={}),
    "a spec that is a list": changed(spec=[["a", "int"]]),
    "checksums of other fields": changed(checksums={"a": 1}),
    "checksums in text": changed(checksums=dict.fromkeys("ab", "1")),
    "checksums beyond 32 bits": changed(checksums=dict.fromkeys("ab", 1 << 32)),
    "wrong checksums": changed(checksums=dict.fromkeys("ab", 1)),
    "a path": field("../../../../../../etc/passwd", "int"),
    "an absolute path": field("/etc/passwd", "int"),
    "a hidden name": field(".ssh", "int"),
    "a name with a NUL": field("a\x00b", "int"),
    "a field without a file": field("c", "int"),
    "a type without a codec": field("a", "pickle"),
    "a sequence instead of a value": field("a", "int[]"),
    "a value instead of a sequence": field("b", "utf8"),
    "a type with a dictionary": field("a", "int+zstd:dict"),
    "a type with a dictionary and bounds": field("b", "utf8+zstd:dict[]"),
    "a type with many brackets": field("a", "int" + "[]" * 100_000),
}  # fmt: skip


@pytest.mark.parametrize("cache_index", [True, False])
@pytest.mark.parametrize("attack", ATTACKS)
def test_a_tampered_spec_is_an_error(attack: str, cache_index: bool, dataset: Path) -> None:
    path = dataset / "spec.json"
    content = ATTACKS[attack](json.loads(path.read_text()))
    path.write_text(json.dumps(content))
    with pytest.raises((FFRecordError, FileNotFoundError)):
        DatasetReader(dataset, cache_index=cache_index)


@pytest.mark.parametrize(
    "text",
    [b"", b"{", b"\xff\xfe", b"[" * 100_000, b" " * (5 << 20), b'{"format": NaN}', b"1" * 10_000],
    ids=lambda text: repr(text[:5]),
)
def test_a_spec_that_is_not_json_is_an_error_with_its_path(text: bytes, dataset: Path) -> None:
    (dataset / "spec.json").write_bytes(text)
    with pytest.raises(DatasetError, match=r"spec\.json: "):
        DatasetReader(dataset)


def test_a_fifo_as_spec_or_field_is_an_error_without_waiting(dataset: Path) -> None:
    for name in ("spec.json", "a.ffr"):
        path = dataset / name
        content = path.read_bytes()
        path.unlink()
        os.mkfifo(path)
        for cache_index in (True, False):
            with pytest.raises(FFRecordError, match=r"not a|regular file"):
                DatasetReader(dataset, cache_index=cache_index)
        path.unlink()
        path.write_bytes(content)
    assert len(DatasetReader(dataset)) == 3


def test_a_folder_without_a_spec_is_not_a_dataset(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match=r"not a dataset: it has no spec\.json"):
        DatasetReader(tmp_path)
    with pytest.raises(FileNotFoundError):
        DatasetReader(tmp_path / "nothing")
    (tmp_path / "file").write_text("x")
    with pytest.raises(DatasetError, match="not a folder"):
        DatasetReader(tmp_path / "file")
