"""Rows of typed fields: datasets, granular's datasets, HDF5 files and WebDataset's samples."""

from __future__ import annotations

import gzip
import io
import json
import os
import struct
import tarfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from ffrecord import (
    ConversionError,
    DamagedSourceError,
    DatasetReader,
    DatasetWriter,
    FFRecordError,
    FileReader,
    ShardedDatasetWriter,
    decoders,
    encoders,
)
from ffrecord.convert import convert
from ffrecord.convert.formats import hdf5_heap
from tests.convert import foreign
from tests.support import handmade, trees

h5py = pytest.importorskip("h5py")


@pytest.fixture(scope="module")
def granular() -> Iterator[Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield pytest.importorskip("granular")


def jpg_bytes(number: int) -> bytes:
    out = io.BytesIO()
    Image.fromarray(np.full((8, 9, 3), 20 * number, np.uint8)).save(out, "jpeg")
    return out.getvalue()


SPEC = {
    "n": "int", "x": "float", "ok": "bool", "text": "utf8", "raw": "bytes", "note": "json",
    "a": "array", "t": "tree", "m": "msgpack", "image": "jpg",
}  # fmt: skip


def row(k: int) -> dict[str, Any]:
    return {
        "n": (-1) ** k * 3**k, "x": k / 7, "ok": k % 2 == 0, "text": f"zeile {k} ü€😀",
        "raw": bytes(range(k)), "note": {"k": [k, None]}, "m": [k, "m", b"\0"],
        "a": np.arange(6, dtype=">f4").reshape(2, 3) * k,
        "t": {"deep": [np.arange(k), {"s": "x" * k}], "b": b"\xff"},
        "image": jpg_bytes(k),
    }  # fmt: skip


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    """Return a dataset. Its images are written as raw bytes: encoding a jpg would change them."""
    kept = {**encoders, "jpg": lambda data: data}
    with DatasetWriter(tmp_path / "dataset", SPEC, kept) as writer:
        for k in range(9):
            writer.append(row(k))
    return tmp_path / "dataset"


def stored(path: Path) -> dict[str, list[bytes]]:
    """Return the stored bytes of a dataset's fields."""
    return {
        name: handmade.as_bytes(FileReader(path / f"{name}.ffr"))
        for name in json.loads((path / "spec.json").read_text())["spec"]
    }


def spec_of(path: Path) -> dict[str, str]:
    found: dict[str, str] = json.loads((path / "spec.json").read_text())["spec"]
    return found


def same(one: Any, other: Any) -> bool:
    """Compare nested values. Equal arrays have the same dtype and shape."""
    if isinstance(one, np.ndarray) or isinstance(other, np.ndarray):
        return (
            isinstance(one, np.ndarray) and isinstance(other, np.ndarray)
            and one.dtype == other.dtype and one.shape == other.shape
            and bool(np.array_equal(one, other))
        )  # fmt: skip
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[k], other[k]) for k in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other) and one == other


# ---- round trips ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "target_format"), [("x.h5", None), ("x", "granular"), ("x.tar", None), ("x", "folder")]
)
def test_a_dataset_round_trips_byte_by_byte(
    name: str, target_format: str | None, dataset: Path, tmp_path: Path
) -> None:
    there = convert(dataset, tmp_path / name, target_format=target_format)
    back = convert(tmp_path / name, tmp_path / "back", target_format="dataset")
    assert there.read == back.written == 9
    found, due = stored(tmp_path / "back"), stored(dataset)
    if "__key__" in found:
        assert found.pop("__key__") == [b"%06d" % k for k in range(9)]
    # Another package may order fields differently and encode trees as different msgpack bytes.
    assert found.keys() == due.keys()
    assert [field for field in due if found[field] != due[field]] == []
    back_spec = {k: v for k, v in spec_of(tmp_path / "back").items() if k != "__key__"}
    assert back_spec == SPEC


def test_a_dataset_becomes_a_dataset_with_the_same_compression(
    dataset: Path, tmp_path: Path
) -> None:
    spec = {"text": "utf8+zstd:19:dict", "list": "int[]", "other": "custom+gzip[]"}
    rows = [{"text": f"{k} " * 50, "list": list(range(k)), "other": [b"x" * k]} for k in range(20)]
    with DatasetWriter(tmp_path / "one", spec, {**encoders, "custom": bytes}) as writer:
        for each in rows:
            writer.append(each)
    convert(tmp_path / "one", tmp_path / "two")
    with DatasetReader(tmp_path / "two", {**decoders, "custom": bytes}) as reader:
        assert reader.spec == spec
        assert list(reader) == rows


def decode_int(data: memoryview) -> int:
    return int.from_bytes(data, "little", signed=True)


def test_shards_of_a_dataset_are_read_as_one(tmp_path: Path) -> None:
    with ShardedDatasetWriter(tmp_path / "shards", {"n": "int"}, shardlen=4) as writer:
        for k in range(10):
            writer.append({"n": k})
    convert(tmp_path / "shards", tmp_path / "out.h5")
    with h5py.File(tmp_path / "out.h5") as file:
        assert file["n"][:].tolist() == list(range(10))


# ---- granular ------------------------------------------------------------------------------

GRANULAR_SPEC = {
    "foo": "int", "big": "u64", "neg": "i64", "bar": "utf8", "baz": "msgpack", "abc": "png",
    "xyz": "array", "raw": "bytes", "tree": "tree", "video": "mp4",
}  # fmt: skip


def granular_row(k: int) -> dict[str, Any]:
    return {
        "foo": k, "big": (1 << 63) + k, "neg": -k, "bar": "ü" * k, "baz": {"a": [k]},
        "abc": np.full((3, 4, 3), k, np.uint8), "xyz": np.arange(k, dtype="<f4").reshape(1, k),
        "raw": b"\0" * k, "tree": {"x": [np.arange(k), "s"], "y": k}, "video": b"mp4 %d" % k,
    }  # fmt: skip


def test_a_dataset_of_granular_is_read_with_all_its_types(granular: Any, tmp_path: Path) -> None:
    made = {**granular.encoders, "mp4": lambda data: data}
    with granular.DatasetWriter(str(tmp_path / "g"), GRANULAR_SPEC, made) as writer:
        for k in range(6):
            writer.append(granular_row(k))
    convert(tmp_path / "g", tmp_path / "out", target_format="dataset")
    with DatasetReader(tmp_path / "out", {**decoders, "mp4": bytes}) as reader:
        assert reader.spec == {
            name: {"u64": "int", "i64": "int"}.get(type_, type_)
            for name, type_ in sorted(GRANULAR_SPEC.items())
        }
        for k, found in enumerate(reader):
            assert same(found, granular_row(k))


def test_granular_reads_our_files(granular: Any, dataset: Path, tmp_path: Path) -> None:
    convert(dataset, tmp_path / "g", target_format="granular")
    more = {
        "float": lambda data: struct.unpack("<d", data)[0], "bool": lambda data: data == b"\x01",
        "json": json.loads, "jpg": bytes,
    }  # fmt: skip
    with granular.DatasetReader(str(tmp_path / "g"), {**granular.decoders, **more}) as reader:
        assert len(reader) == 9
        for k in range(9):
            assert same(reader[k], row(k)), k


def test_shards_of_granular_are_read_as_one(granular: Any, tmp_path: Path) -> None:
    with granular.ShardedDatasetWriter(
        str(tmp_path / "g"), {"n": "int"}, granular.encoders, shardlen=3
    ) as writer:
        for k in range(8):
            writer.append({"n": k})
    convert(tmp_path / "g", tmp_path / "out.ffr")
    with FileReader(tmp_path / "out.ffr") as reader:
        assert [decode_int(record.data) for record in reader] == list(range(8))


# Written by granular 0.21.2, with the program in the README beside it.
STORED = Path(__file__).parent / "stored"
OLD_SPEC = {
    "abc": "png", "bar": "utf8[]", "baz": "msgpack", "big": "u64", "foo": "int", "frames": "png[]",
    "times": "i64[]", "tree": "tree[]", "xyz": "array",
}  # fmt: skip


def old_row(k: int) -> dict[str, Any]:
    return {
        "foo": k, "bar": [f"hello {j}" for j in range(k)], "baz": {"a": k},
        "abc": np.full((2, 3, 3), k, np.uint8), "xyz": np.arange(1 + k, dtype=np.float32),
        "frames": [np.full((1, 2, 3), j, np.uint8) for j in range(2 * k % 3)],
        "times": [-j for j in range(k % 2)], "big": (1 << 63) + k,
        "tree": [{"x": np.arange(j + 1), "y": ["s", j]} for j in range(k % 3)],
    }  # fmt: skip


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_dataset_that_granular_021_wrote_with_sequences_is_read(tmp_path: Path) -> None:
    report = convert(STORED / "granular-0.21.2", tmp_path / "out", target_format="dataset")
    assert (report.read, report.written) == (4, 4)
    with DatasetReader(tmp_path / "out") as reader:
        assert reader.spec == {**OLD_SPEC, "big": "int", "times": "int[]"}
        for k, found in enumerate(reader):
            assert same(found, old_row(k)), k


@pytest.mark.parametrize("version", [1, 2])
def test_sequences_of_granular_are_read_by_their_refs(version: int, tmp_path: Path) -> None:
    """Use more than 127 elements and datapoints: larger numbers need several MessagePack bytes."""
    spec = {"words": "utf8[]", "n": "int", "none": "bytes[]"}
    rows: list[foreign.Encoded] = [
        {"words": [b"w%d" % j for j in range(k % 5)], "n": bytes([k % 100]), "none": []}
        for k in range(300)
    ]
    folder = tmp_path / "g"
    folder.mkdir()
    for name, data in foreign.granular_with_refs(spec, rows, version).items():
        (folder / name).write_bytes(data)
    assert foreign.read_granular_with_refs(files_of(folder)) == rows
    convert(folder, tmp_path / "out", target_format="dataset")
    with DatasetReader(tmp_path / "out", dict.fromkeys(decoders, bytes)) as reader:
        assert reader.spec == spec
        assert list(reader) == rows


def test_sequences_are_written_as_granular_021_reads_them(tmp_path: Path) -> None:
    spec = {"title": "utf8", "words": "utf8+zstd[]", "images": "jpg[]", "n": "int[]", "a": "array"}
    rows: list[dict[str, Any]] = [
        {"title": f"t{k}", "words": ["ü" * j for j in range(k % 4)], "n": [k, -k] * (k % 2),
         "images": [jpg_bytes(j) for j in range(k % 3)], "a": np.arange(k)}
        for k in range(150)
    ]  # fmt: skip
    with DatasetWriter(tmp_path / "d", spec, {**encoders, "jpg": bytes}) as writer:
        for each in rows:
            writer.append(each)
    convert(tmp_path / "d", tmp_path / "g", target_format="granular")
    found: list[Any] = [*foreign.read_granular_with_refs(files_of(tmp_path / "g"))]
    assert [each["title"] for each in found] == [each["title"].encode() for each in rows]
    assert [each["images"] for each in found] == [each["images"] for each in rows]
    words = [[word.decode() for word in each["words"]] for each in found]
    assert words == [each["words"] for each in rows]
    plain = {"words": "utf8[]"}
    assert json.loads((tmp_path / "g" / "spec.json").read_bytes()) == {**spec, **plain}
    convert(tmp_path / "g", tmp_path / "back", target_format="dataset")
    with DatasetReader(tmp_path / "back", {**decoders, "jpg": bytes}) as reader:
        assert all(same(*pair) for pair in zip(reader, rows, strict=True))


def test_shards_of_granular_with_sequences_are_read_as_one(tmp_path: Path) -> None:
    spec = {"words": "utf8[]"}
    rows: list[foreign.Encoded] = [{"words": [b"x"] * k} for k in range(7)]
    for shard in range(3):
        folder = tmp_path / "g" / f"{shard:06}"
        folder.mkdir(parents=True)
        some = rows[3 * shard : 3 * shard + 3]
        for name, data in foreign.granular_with_refs(spec, some).items():
            (folder / name).write_bytes(data)
    assert convert(tmp_path / "g", tmp_path / "out", target_format="dataset").written == 7
    with DatasetReader(tmp_path / "out") as reader:
        assert [len(each["words"]) for each in reader] == list(range(7))


BAD_REFS: dict[str, tuple[list[bytes], str]] = {
    "not MessagePack": ([b"\xc1"], "refs.bag: record 0"),
    "not a list": ([b"\x01"], "refs.bag: record 0"),
    "too few fields": ([b"\x91\x00"], "refs.bag: record 0"),
    "a number for a sequence": ([b"\x92\x00\x00"], "refs.bag: record 0"),
    "a sequence for a number": ([b"\x92\x92\x00\x01\x90"], "refs.bag: record 0"),
    "a bool for a number": ([b"\x92\xc2\x90"], "refs.bag: record 0"),
    "three numbers": ([b"\x92\x00\x93\x00\x01\x00"], "refs.bag: record 0"),
    "a negative count": ([b"\x92\x00\x92\x00\xff"], "refs.bag: record 0"),
    "another order": ([b"\x92\x00\x92\x01\x01", b"\x92\x01\x92\x00\x01"], "refs.bag: record 0"),
    "a gap": ([b"\x92\x00\x92\x00\x01", b"\x92\x01\x92\x03\x01"], "refs.bag: record 1"),
    "more elements than the bag has": ([b"\x92\x00\x92\x00\x01", b"\x92\x01\x92\x01\x0f"], "s.bag"),
    "2^62 elements": ([b"\x92\x00\x92\x00\xcf\x40" + bytes(7), b"\x92\x01\x90"], "s.bag"),
    "fewer elements than the bag has": ([b"\x92\x00\x92\x00\x01", b"\x92\x01\x90"], "s.bag"),
    "fewer rows": ([b"\x92\x00\x92\x00\x02"], "different numbers of records"),
    "no rows": ([], "different numbers of records"),
}


@pytest.mark.parametrize("case", BAD_REFS)
def test_impossible_refs_of_granular_are_an_error(case: str, tmp_path: Path) -> None:
    refs, where = BAD_REFS[case]
    if where != "different numbers of records":
        refs = [*refs, b"\x92\x01\x92\x01\x01"][:2]
    rows: list[foreign.Encoded] = [
        {"n": b"0", "s": [b"a"]}, {"n": b"1", "s": [b"b"]},
    ]  # fmt: skip
    files = foreign.granular_with_refs({"n": "bytes", "s": "bytes[]"}, rows)
    folder = tmp_path / "g"
    folder.mkdir()
    for name, data in {**files, "refs.bag": foreign.single_bag(refs, 1)}.items():
        (folder / name).write_bytes(data)
    with pytest.raises(DamagedSourceError, match=where):
        convert(folder, tmp_path / "out", source_format="granular", target_format="dataset")
    assert os.listdir(tmp_path) == ["g"]


@pytest.mark.parametrize(
    ("spec", "bags"),
    [
        (b"not json", {}),
        (b"[" * 100_000, {}),
        (b'{"../x": "int"}', {}),
        (b'{"n": 3}', {"n": b"x"}),
        (b'{"n": "int[]"}', {"n": b"x"}),
        (b'{"n": "array"}', {"n": b"\x93\xa2|O\x90\xc4\x00"}),
        (b'{"n": "array"}', {"n": b"\x93\xa3<f4\x91\xcf\xff\xff\xff\xff\xff\xff\xff\xff\xc4\x00"}),
        (b'{"n": "array"}', {"n": b"\xdd\xff\xff\xff\xff"}),
        (b'{"n": "tree"}', {"n": b"\x91" * 5000 + b"\x90"}),
        (b'{"n": "utf8"}', {"n": b"\xff"}),
        (b'{"n": "u64"}', {"n": b"\xff"}),
        (b'{"a": "bytes", "n": "bytes"}', {"n": b"xx"}),
    ],
    ids=["text", "nested", "path", "number", "sequence", "objects", "shape", "list", "deep",
         "utf8", "u64", "lengths"],
)  # fmt: skip
def test_a_hostile_dataset_of_granular_is_an_error(
    spec: bytes, bags: Mapping[str, bytes], tmp_path: Path
) -> None:
    folder = tmp_path / "g"
    folder.mkdir()
    (folder / "spec.json").write_bytes(spec)
    for name, record in {"a": b"", **bags}.items():
        (folder / f"{name}.bag").write_bytes(record)
        (folder / f"{name}.idx").write_bytes(struct.pack("<Q", len(record)) if record else b"")
    with pytest.raises(DamagedSourceError, match=str(folder)):
        convert(folder, tmp_path / "out", source_format="granular", target_format="dataset")
    assert os.listdir(tmp_path) == ["g"]


def test_values_that_granular_cannot_hold_are_an_error(tmp_path: Path) -> None:
    cases: list[tuple[str, Any]] = [
        ("int", 1 << 200), ("int[]", [1, 1 << 200]), ("array", np.zeros(2, [("x", "i4")])),
    ]  # fmt: skip
    for number, (type_, value) in enumerate(cases):
        with DatasetWriter(tmp_path / str(number), {"f": type_}) as writer:
            writer.append({"f": value})
        with pytest.raises(ConversionError, match="'f'"):
            convert(tmp_path / str(number), tmp_path / "out", target_format="granular")
        assert not (tmp_path / "out").exists()
    with DatasetWriter(tmp_path / "refs", {"refs": "int[]"}) as writer:
        writer.append({"refs": [1]})
    with pytest.raises(ConversionError, match="field 'refs'"):
        convert(tmp_path / "refs", tmp_path / "out", target_format="granular")


# ---- HDF5 ----------------------------------------------------------------------------------


def test_hdf5_becomes_fields_of_matching_types(tmp_path: Path) -> None:
    path = tmp_path / "x.h5"
    images = np.random.default_rng(0).integers(0, 255, (7, 4, 5, 3), np.uint8)
    labels = np.arange(7, dtype=">i2")
    texts = [f"ü{k}" * k for k in range(7)]
    with h5py.File(path, "w") as file:
        file.create_dataset("images", data=images, chunks=(3, 4, 5, 3), compression="gzip")
        file["group/labels"] = labels
        file.create_dataset("texts", data=texts, dtype=h5py.string_dtype())
        file.create_dataset("raw", data=[t.encode() for t in texts],
                            dtype=h5py.special_dtype(vlen=bytes))  # fmt: skip
        ragged = file.create_dataset("ragged", (7,), h5py.vlen_dtype(np.float32))
        for k in range(7):
            ragged[k] = np.arange(k, dtype=np.float32)
        file["pairs"] = np.array([(k, k / 2) for k in range(7)], [("i", "<i4"), ("f", "<f8")])
        file["fixed"] = np.array([b"ab", b"c"] * 3 + [b""])
        file["truth"] = np.arange(7) % 2 == 0
    convert(path, tmp_path / "out")
    with DatasetReader(tmp_path / "out") as reader:
        assert reader.spec == {
            "images": "array", "group.labels": "array", "texts": "utf8", "raw": "bytes",
            "ragged": "array", "pairs": "array", "fixed": "array", "truth": "array",
        }  # fmt: skip
        for k, found in enumerate(reader):
            assert same(found["images"], images[k])
            assert same(found["group.labels"], np.array(k, ">i2"))
            assert (found["texts"], found["raw"]) == (texts[k], texts[k].encode())
            assert same(found["ragged"], np.arange(k, dtype=np.float32))
            assert found["pairs"].item() == (k, k / 2)
            assert found["fixed"].item() == [b"ab", b"c", b"ab", b"c", b"ab", b"c", b""][k]
            assert found["truth"].item() is (k % 2 == 0)


def test_hdf5_is_written_with_ordinary_types(dataset: Path, tmp_path: Path) -> None:
    convert(dataset, tmp_path / "x.h5")
    with h5py.File(tmp_path / "x.h5") as file:
        assert list(file) == list(SPEC)
        assert file["n"][:].tolist() == [row(k)["n"] for k in range(9)]
        assert file["x"][:].tolist() == [row(k)["x"] for k in range(9)]
        assert file["ok"][:].tolist() == [row(k)["ok"] for k in range(9)]
        assert file["text"].asstr()[:].tolist() == [row(k)["text"] for k in range(9)]
        assert same(file["a"][:], np.stack([row(k)["a"] for k in range(9)]))
        assert [bytes(each) for each in file["raw"]] == [row(k)["raw"] for k in range(9)]
        assert [bytes(each) for each in file["image"]] == [row(k)["image"] for k in range(9)]


@settings(max_examples=20)
@given(
    st.lists(
        st.tuples(
            st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False),
            st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])),
            st.binary(max_size=30), st.lists(st.integers(-(2**63), 2**63 - 1), max_size=4),
            st.lists(st.floats(allow_nan=False), max_size=4),
        ),
        max_size=6,
    )
)  # fmt: skip
def test_any_rows_round_trip_through_hdf5(
    tmp_path_factory: pytest.TempPathFactory, values: list[tuple[Any, ...]]
) -> None:
    tmp_path = tmp_path_factory.mktemp("rows")
    spec = dict(zip("abcdef", ["int", "float", "utf8", "bytes", "int[]", "float[]"], strict=True))
    with DatasetWriter(tmp_path / "one", spec) as writer:
        for each in values:
            writer.append(dict(zip("abcdef", each, strict=True)))
    convert(tmp_path / "one", tmp_path / "x.h5")
    convert(tmp_path / "x.h5", tmp_path / "two")
    assert stored(tmp_path / "one") == stored(tmp_path / "two")
    assert spec_of(tmp_path / "two") == spec


@pytest.mark.parametrize(
    ("type_", "values", "why"),
    [
        ("array", [np.zeros(2), np.zeros(3)], "row 1, field 'f'.*shape"),
        ("array", [np.zeros(2), np.zeros(2, "f4")], "row 1, field 'f'.*float32"),
        ("array", [np.array("ü")], "row 0, field 'f'"),
        ("int", [0, 1 << 63], "row 1, field 'f'"),
        ("utf8", ["a\0b"], "row 0, field 'f'.*NUL"),
        ("utf8[]", [["a"]], "field 'f'"),
    ],
)
def test_values_that_hdf5_cannot_hold_are_an_error(
    type_: str, values: list[Any], why: str, tmp_path: Path
) -> None:
    with DatasetWriter(tmp_path / "d", {"f": type_}) as writer:
        for value in values:
            writer.append({"f": value})
    with pytest.raises(ConversionError, match=why):
        convert(tmp_path / "d", tmp_path / "x.h5")
    assert os.listdir(tmp_path) == ["d"]


def virtual(file: Any) -> None:
    layout = h5py.VirtualLayout((3,), "i4")
    layout[:] = h5py.VirtualSource("other.h5", "x", (3,))
    file.create_virtual_dataset("v", layout)


def h5record_row(k: int) -> dict[str, Any]:
    """Return a row for an H5Record schema that has each of its classes."""
    return {
        "string": "ü" * k + f"Sent {k}", "integer": k - 1, "float": k / 3, "float16": k / 7,
        "image": np.full((3, 4, 5), k, np.uint8), "sequence": np.arange(k, dtype=np.int32),
        "float_sequence": np.arange(k + 2, dtype=np.float32) / 3,
        "float16_sequence": np.arange(k + 1, dtype=np.float16) / 5,
        "img_seq": (np.arange(3 * 2 * 3 * (k + 1)) % 251).astype(np.uint8),
    }  # fmt: skip


H5RECORD_DTYPES = {"integer": "i8", "float": "f4", "float16": "f2"}
H5RECORD_SEQUENCES = {
    "sequence": "i4", "float_sequence": "f4", "float16_sequence": "f2", "img_seq": "u1",
}  # fmt: skip


def h5record_by_hand(path: Path, rows: int, compression: str | None) -> None:
    """Write a file as H5Record 1.0.4 does: chunks of one row, variable-length values in (n, 1)."""
    each = [h5record_row(k) for k in range(rows)]
    with h5py.File(path, "w", libver="latest") as file:
        for name, dtype in H5RECORD_DTYPES.items():
            values = np.array([row[name] for row in each], dtype)
            file.create_dataset(
                name, data=values, maxshape=(None,), chunks=(1,), compression=compression
            )
        images = np.stack([row["image"] for row in each])
        file.create_dataset("image", data=images, chunks=(1, 3, 4, 5), compression=compression)
        kinds = {name: h5py.vlen_dtype(np.dtype(kind)) for name, kind in H5RECORD_SEQUENCES.items()}
        for name, kind in {"string": h5py.string_dtype("utf-8"), **kinds}.items():
            made = file.create_dataset(
                name, (rows, 1), kind, maxshape=(None, 1), chunks=(1, 1), compression=compression
            )
            for k, row in enumerate(each):
                made[k] = row[name]


def from_h5record(k: int) -> dict[str, Any]:
    return {
        name: np.array(value, H5RECORD_DTYPES[name]) if name in H5RECORD_DTYPES else value
        for name, value in h5record_row(k).items()
    }


@pytest.mark.parametrize("compression", [None, "lzf", "gzip"])
def test_strings_and_sequences_of_shape_n_1_are_one_value_per_row(
    compression: str | None, tmp_path: Path
) -> None:
    h5record_by_hand(tmp_path / "x.h5", 40, compression)
    convert(tmp_path / "x.h5", tmp_path / "out")
    with DatasetReader(tmp_path / "out") as reader:
        assert {name for name, type_ in reader.spec.items() if type_ != "array"} == {"string"}
        assert reader.spec["string"] == "utf8"
        for k, found in enumerate(reader):
            assert same(found, from_h5record(k)), k


def test_a_file_that_h5record_wrote_converts_value_by_value(tmp_path: Path) -> None:
    with gzip.open(STORED / "h5record-1.0.4.h5.gz") as packed:
        (tmp_path / "x.h5").write_bytes(packed.read())
    assert convert(tmp_path / "x.h5", tmp_path / "out").written == 4
    with DatasetReader(tmp_path / "out") as reader:
        for k, found in enumerate(reader):
            assert same(found, from_h5record(k)), k


def test_several_values_of_variable_length_per_row_are_an_error(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.create_dataset("t", data=[["a", "b"]], dtype=h5py.string_dtype())
    with pytest.raises(ConversionError, match=r"x\.h5: t has 2 values of variable length per row"):
        convert(tmp_path / "x.h5", tmp_path / "out")


BAD_HDF5: dict[str, Callable[[Any], object]] = {
    "no datasets": lambda file: None,
    "a scalar": lambda file: file.create_dataset("s", data=3),
    "two lengths": lambda file: [file.create_dataset(n, data=[0] * len(n)) for n in ("a", "bb")],
    "a path in place of data": lambda file: file.create_dataset(
        "e", (10,), "u1", external=[("/etc/passwd", 0, 10)]
    ),
    "data of another file": virtual,
    "only a link to another file": lambda file: file.__setitem__(
        "x", h5py.ExternalLink("other.h5", "/x")
    ),
    "references": lambda file: file.create_dataset("r", (2,), h5py.ref_dtype),
    "a row of 2^40 bytes": lambda file: file.create_dataset("r", (1, 1 << 40), "u1"),
    "2^60 rows that were never written": lambda file: file.create_dataset(
        "r", (1 << 60,), "u1", chunks=(1 << 20,)
    ),
    "one name twice": lambda file: [file.create_dataset(n, data=[0]) for n in ("a.b", "a/b")],
    "invalid text": lambda file: file.create_dataset(
        "t", data=np.array([b"\xff\xfe"], object), dtype=h5py.string_dtype()
    ),
}


@pytest.mark.parametrize("case", BAD_HDF5)
def test_hdf5_without_rows_or_hostile_hdf5_is_an_error(case: str, tmp_path: Path) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as file:
        BAD_HDF5[case](file)
    with pytest.raises((ConversionError, DamagedSourceError), match=r"x\.h5"):
        convert(tmp_path / "x.h5", tmp_path / "out")
    assert os.listdir(tmp_path) == ["x.h5"]


def test_truncated_or_damaged_hdf5_is_an_error(dataset: Path, tmp_path: Path) -> None:
    convert(dataset, tmp_path / "x.h5")
    whole = (tmp_path / "x.h5").read_bytes()
    for length in (8, 100, len(whole) // 2, len(whole) - 1):
        (tmp_path / "x.h5").write_bytes(whole[:length])
        with pytest.raises(DamagedSourceError, match=r"x\.h5"):
            convert(tmp_path / "x.h5", tmp_path / "out")
    checked = tmp_path / "checked.h5"
    with h5py.File(checked, "w") as file:
        file.create_dataset("a", data=np.arange(1000), fletcher32=True, chunks=(100,))
    data = bytearray(checked.read_bytes())
    data[data.index(struct.pack("<3q", 500, 501, 502))] ^= 1
    checked.write_bytes(data)
    with pytest.raises(DamagedSourceError) as caught:
        convert(checked, tmp_path / "out")
    assert caught.value.record == 500


def test_a_damaged_heap_is_an_error_and_not_an_endless_loop(tmp_path: Path) -> None:
    path = tmp_path / "x.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("t", data=["some text"] * 9, dtype=h5py.string_dtype())
    whole = path.read_bytes()
    heap = whole.index(b"GCOL")
    hdf5_heap.check_heaps(str(path))
    for offset in (8, 16 + 8):  # the size of the heap, and of its first object
        damaged = bytearray(whole)
        damaged[heap + offset : heap + offset + 8] = b"\xff" * 8
        path.write_bytes(damaged)
        with pytest.raises(DamagedSourceError, match=r"x\.h5.*heap"):
            hdf5_heap.check_heaps(str(path))
        with pytest.raises(DamagedSourceError):
            convert(path, tmp_path / "out")


# ---- samples -------------------------------------------------------------------------------


def test_a_shard_of_webdataset_becomes_typed_fields(tmp_path: Path) -> None:
    wds = pytest.importorskip("webdataset")
    with wds.TarWriter(str(tmp_path / "w.tar")) as sink:
        for k in range(5):
            sink.write({
                "__key__": f"sub/{k:04}", "jpg": jpg_bytes(k), "cls": k, "txt": f"ü {k}",
                "json": {"k": k}, "left.png": b"png %d" % k, "npy": np.arange(k), "blob": b"%d" % k,
            })  # fmt: skip
    report = convert(tmp_path / "w.tar", tmp_path / "out", target_format="dataset")
    assert (report.read, report.written) == (35, 5)
    kept = {**decoders, "jpg": bytes, "png": bytes}
    with DatasetReader(tmp_path / "out", kept) as reader:
        assert reader.spec == {
            "__key__": "utf8", "jpg": "jpg", "cls": "int", "txt": "utf8", "json": "json",
            "left": "png", "npy": "array", "blob": "bytes",
        }  # fmt: skip
        for k, found in enumerate(reader):
            due = {
                "__key__": f"sub/{k:04}", "jpg": jpg_bytes(k), "cls": k, "txt": f"ü {k}",
                "json": {"k": k}, "left": b"png %d" % k, "npy": np.arange(k), "blob": b"%d" % k,
            }  # fmt: skip
            assert same(found, due)


def test_webdataset_reads_our_files(tmp_path: Path) -> None:
    wds = pytest.importorskip("webdataset")
    spec = {"image": "jpg", "label": "int", "text": "utf8", "data": "array", "note": "json"}
    with DatasetWriter(tmp_path / "d", spec, {**encoders, "jpg": bytes}) as writer:
        for k in range(4):
            writer.append({"image": jpg_bytes(k), "label": k, "text": "ü" * k,
                           "data": np.arange(k), "note": {"k": k}})  # fmt: skip
    convert(tmp_path / "d", tmp_path / "w.tar")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = list(wds.WebDataset(str(tmp_path / "w.tar"), shardshuffle=False).decode("rgb8"))
    assert [each["__key__"] for each in found] == [f"{k:06}" for k in range(4)]
    for k, each in enumerate(found):
        assert (each["label.cls"], each["text.txt"], each["note.json"]) == (k, "ü" * k, {"k": k})
        assert each["image.jpg"].shape == (8, 9, 3)
        assert same(each["data.npy"], np.arange(k))


def sample_tree(tmp_path: Path, files: Mapping[str, bytes]) -> Path:
    return trees.plain_tree(tmp_path / "tree", files)


def test_a_folder_of_samples_becomes_rows_and_the_types_can_be_chosen(tmp_path: Path) -> None:
    files = {"a.cls": b" 7\n", "a.txt": b"x", "b.cls": b"8", "b.txt": b"y"}
    top = sample_tree(tmp_path, files)
    convert(top, tmp_path / "one", target_format="dataset")
    assert spec_of(tmp_path / "one") == {"__key__": "utf8", "cls": "int", "txt": "utf8"}
    assert stored(tmp_path / "one")["cls"] == [b"\x07", b"\x08"]
    convert(top, tmp_path / "two", target_format="dataset", types={"cls": "bytes+gzip"})
    assert spec_of(tmp_path / "two")["cls"] == "bytes+gzip"
    with DatasetReader(tmp_path / "two") as reader:
        assert [each["cls"] for each in reader] == [b" 7\n", b"8"]
    with pytest.raises(ConversionError, match="no field 'nix'"):
        convert(top, tmp_path / "three", target_format="dataset", types={"nix": "int"})


def test_one_field_of_the_samples_becomes_records(tmp_path: Path) -> None:
    top = sample_tree(tmp_path, {"a.jpg": b"1", "a.txt": b"x", "b.jpg": b"2", "b.txt": b"y"})
    convert(top, tmp_path / "out.ffr", field="jpg")
    with FileReader(tmp_path / "out.ffr") as reader:
        assert handmade.as_bytes(reader) == [b"1", b"2"]


@pytest.mark.parametrize(
    ("files", "why"),
    [
        (
            {"a.jpg": b"", "a.txt": b"", "b.jpg": b""},
            "'b' has the files jpg,.*first sample has jpg, txt",
        ),
        ({"README": b""}, "'README'"),
        ({".hidden": b""}, "hidden"),
        ({"a.cls": b"seven"}, r"a\.cls cannot be read as int.*types={'cls': 'bytes'}"),
        ({"a.txt": b"\xff"}, r"a\.txt cannot be read as utf8"),
        ({"a.json": b"{"}, r"a\.json cannot be read as json"),
        ({"a.npy": b"\x93NUMPY\x01\x00\x06\x00{'descr"}, r"a\.npy cannot be read as array"),
        ({"a.mp": b"\xdd\xff\xff\xff\xff"}, r"a\.mp cannot be read as msgpack"),
        ({"a.bool": b"maybe"}, r"a\.bool cannot be read as bool"),
        ({"a.__key__": b""}, "__key__"),
    ],
)
def test_files_that_are_not_samples_are_an_error(
    files: Mapping[str, bytes], why: str, tmp_path: Path
) -> None:
    top = sample_tree(tmp_path, files)
    with pytest.raises(ConversionError, match=why):
        convert(top, tmp_path / "out", target_format="dataset")
    assert os.listdir(tmp_path) == ["tree"]


def test_two_files_with_the_same_field_name_are_two_fields(tmp_path: Path) -> None:
    top = sample_tree(tmp_path, {"a.left.png": b"1", "a.left.txt": b"2", "a.right.png": b"3"})
    convert(top, tmp_path / "out", target_format="dataset")
    assert spec_of(tmp_path / "out") == {
        "__key__": "utf8", "left.png": "png", "left.txt": "utf8", "right": "png"
    }  # fmt: skip
    convert(tmp_path / "out", tmp_path / "w.tar")
    with tarfile.open(tmp_path / "w.tar") as tar:
        assert sorted(tar.getnames()) == ["a.left.png", "a.left.txt", "a.right.png"]


@pytest.mark.parametrize("key", ["../../x", "/x", "a.b", "", "a/../b", "a/./b", "a//b"])
def test_invalid_keys_are_refused(key: str, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    with DatasetWriter(tmp_path / "in/d", {"__key__": "utf8", "x": "bytes"}) as writer:
        writer.append({"__key__": key, "x": b"evil"})
    for target in ("out", "out.tar", "out.ffr"):
        with pytest.raises(ConversionError):
            convert(tmp_path / "in/d", tmp_path / "in" / target, target_format={
                "out": "folder", "out.tar": "tar", "out.ffr": "packed"}[target])  # fmt: skip
    assert os.listdir(tmp_path / "in") == ["d"]
    assert os.listdir(tmp_path) == ["in"]


def test_a_row_with_the_key_of_the_previous_row_is_an_error(tmp_path: Path) -> None:
    with DatasetWriter(tmp_path / "d", {"__key__": "utf8", "x": "bytes"}) as writer:
        for _ in range(2):
            writer.append({"__key__": "same", "x": b""})
    with pytest.raises(ConversionError, match="row 1: 'same'"):
        convert(tmp_path / "d", tmp_path / "w.tar")


# ---- one field -----------------------------------------------------------------------------


def test_rows_become_records_of_one_field(dataset: Path, tmp_path: Path) -> None:
    with pytest.raises(ConversionError, match=r"field.*n, x, ok"):
        convert(dataset, tmp_path / "out.ffr")
    convert(dataset, tmp_path / "out.ffr", field="image")
    with FileReader(tmp_path / "out.ffr") as reader:
        assert handmade.as_bytes(reader) == [jpg_bytes(k) for k in range(9)]
    with pytest.raises(ConversionError, match="no field 'nix'"):
        convert(dataset, tmp_path / "other.ffr", field="nix")
    convert(dataset, tmp_path / "one.h5", field="n")
    with h5py.File(tmp_path / "one.h5") as file:
        assert list(file) == ["n"]


def test_records_become_a_field_with_a_name_and_a_type(tmp_path: Path) -> None:
    ours = handmade.write_records(tmp_path / "r.ffr", [b"eins", "zwö".encode()])
    convert(ours, tmp_path / "out", field="text", types={"text": "utf8"})
    with DatasetReader(tmp_path / "out") as reader:
        assert list(reader) == [{"text": "eins"}, {"text": "zwö"}]
    handmade.write_records(ours, [b"good", b"\xff"])
    with pytest.raises(FFRecordError, match="record 1 cannot be decoded as utf8"):
        convert(ours, tmp_path / "bad", field="text", types={"text": "utf8"})


def test_types_for_rows_are_refused(dataset: Path, tmp_path: Path) -> None:
    with pytest.raises(ConversionError, match="types is for files or records that become rows"):
        convert(dataset, tmp_path / "x.h5", types={"n": "float"})
