"""Sources give the rows of the single-process readers, from the bytes that they need."""

from __future__ import annotations

import datetime
import gc
import os
import pickle
import shutil
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pytest

from ffrecord import (
    ChangedError,
    DatasetReader,
    DecodeError,
    FFRecordError,
    FileReader,
    FileWriter,
    PackedFolder,
    SampleChecksumError,
    UrlError,
    pack_folder,
    write_dataset,
)
from ffrecord.cluster import content, reading, source
from ffrecord.cluster.folder import FolderSource
from ffrecord.cluster.reading import Source
from ffrecord.dataset import decoders
from ffrecord.records.blocks import PendingBlock
from ffrecord.records.reader import table_of
from tests.support import trees

COUNTS = (None, 1, 3, 1000)

SPEC = {
    "whole": "int", "real": "float", "truth": "bool", "text": "utf8", "tree": "json",
    "raw": "bytes", "array": "array", "words": "utf8[]", "numbers": "int[]", "small": "utf8+zstd",
    "several": "int+zstd[]",
}  # fmt: skip


def datapoint(row: int) -> dict[str, Any]:
    return {
        "whole": (-1) ** row * 3 ** (row % 39), "real": row / 3, "truth": row % 3 == 0,
        "text": "é" * (row % 5), "tree": {"row": row}, "raw": trees.content(row, row),
        "array": np.arange(row % 7), "words": [str(each) for each in range(row % 4)],
        "numbers": list(range(-3, row % 6)), "small": "x" * row, "several": [row] * (row % 3),
    }  # fmt: skip


@pytest.fixture(scope="module")
def contents() -> list[bytes]:
    return [trees.content(size * 37 % 9000, size) for size in range(120)]


@pytest.fixture(scope="module")
def top(tmp_path_factory: pytest.TempPathFactory, contents: list[bytes]) -> Path:
    """Make a folder of record files, a packed folder in each layout, and datasets."""
    top = tmp_path_factory.mktemp("sources")
    (top / "records").mkdir()
    for file, rows in enumerate((slice(0, 50), slice(50, 50), slice(50, 120))):
        with FileWriter(top / "records" / f"{file}.ffr") as writer:
            writer.write(contents[rows])
    files = {f"{row % 3}/{row:03}.{('a', 'b')[row % 2]}": each for row, each in enumerate(contents)}
    tree = trees.plain_tree(top / "tree", {**files, "large": trees.content(300_000)})
    os.link(tree / "0" / "000.a", tree / "linked")
    (tree / "symlink").symlink_to("large")
    pack_folder(tree, top / "one.ffr")
    pack_folder(tree, top / "shards", shard_size=100_000)
    pack_folder(tree, top / "aligned.ffr", align=512)
    datapoints = [datapoint(row) for row in range(200)]
    write_dataset(top / "plain", datapoints, SPEC)
    write_dataset(top / "sharded", datapoints, SPEC, shardlen=60)
    return top


@pytest.fixture
def copy(top: Path, tmp_path: Path) -> Path:
    return shutil.copytree(top, tmp_path / "copy", symlinks=True)


def table(source: Source, count: int | None = None) -> pa.Table:
    """Return all rows, as workers would read them."""
    tasks = pickle.loads(pickle.dumps(source.tasks(count)))
    batches = [batch for task in tasks for batch in task.batches()]
    found = pa.Table.from_batches(batches, source.schema)
    found.validate(full=True)
    assert found.num_rows == source.rows == sum(task.rows for task in tasks)
    assert sum(task.bytes for task in tasks) == source.bytes
    assert count is None or len(tasks) <= count
    assert all(task.rows for task in tasks)
    return found


def damage(path: Path, at: int) -> None:
    with open(path, "r+b") as file:
        file.seek(at)
        byte = file.read(1)
        file.seek(at)
        file.write(bytes([byte[0] ^ 1]))


# ---- records -----------------------------------------------------------------------------------


@pytest.mark.parametrize("count", COUNTS)
def test_records_are_those_of_the_reader(
    count: int | None, top: Path, contents: list[bytes]
) -> None:
    found = table(reading.records(top / "records"), count)
    assert found["content"].to_pylist() == contents
    assert found["number"].to_pylist() == list(range(len(contents)))


@pytest.mark.parametrize(
    ("conditions", "rows"),
    [
        ([("==", 55)], range(55, 56)),
        ([("<", 55)], range(55)),
        ([("<=", 55)], range(56)),
        ([(">", 55)], range(56, 120)),
        ([(">=", 55)], range(55, 120)),
        ([(">=", 40), ("<", 60)], range(40, 60)),
        ([("==", 1000)], range(0)),
        ([("<", -3)], range(0)),
        ([("<", 3), (">", 3)], range(0)),
    ],
)
def test_conditions_on_the_number_select_records(
    conditions: list[tuple[str, int]], rows: range, top: Path, contents: list[bytes]
) -> None:
    some: Source | None = reading.records(top / "records")
    for op, value in conditions:
        assert some is not None
        some = some.where("number", op, value)
    assert some is not None
    assert table(some, 3)["content"].to_pylist() == contents[rows.start : rows.stop]


def test_a_task_of_many_batches_gives_the_same(
    top: Path, contents: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source, "BATCH_BYTES", 50_000)
    monkeypatch.setattr(source, "BATCH_ROWS", 20)
    (task,) = reading.records(top / "records").tasks(1)
    batches = list(task.batches())
    assert max(batch.num_rows for batch in batches) == 20
    assert [each for batch in batches for each in batch["content"].to_pylist()] == contents
    found = table(reading.folder(top / "shards"), 1)
    assert found.equals(table(reading.folder(top / "shards")))
    found = table(reading.dataset(top / "sharded"), 1)
    assert found.num_rows == 200


def test_tasks_are_about_equal_in_bytes_and_have_64_mb_by_default() -> None:
    sizes = np.random.default_rng(0).integers(0, 1 << 20, 1000)
    for count in (None, 7):
        cuts = source.cut(sizes, count)
        assert [cuts[0].start, cuts[-1].stop] == [0, 1000]
        assert all(a.stop == b.start for a, b in pairwise(cuts))
        due = sizes.sum() / len(cuts)
        assert all(abs(sizes[each.start : each.stop].sum() - due) < 2 << 20 for each in cuts)
    assert len(source.cut(sizes, None)) == -(-sizes.sum() // (64 << 20))


def test_arrays_use_the_memory_that_was_read_and_keep_it(top: Path, contents: list[bytes]) -> None:
    with FileReader(top / "records") as reader:
        block = PendingBlock(table_of(reader), range(50, 120)).result()
    array = content.binary(block)
    assert array.buffers()[2].address == block.content.ctypes.data
    del block
    gc.collect()
    # Memory that returned to the pool would be used by these reads.
    others = [table(reading.records(top / "records")) for _ in range(3)]
    assert array.to_pylist() == contents[50:]
    assert others[0].equals(others[2])


def test_a_damaged_record_is_an_error_that_names_it(copy: Path) -> None:
    path = copy / "records" / "2.ffr"
    damage(path, os.path.getsize(path) - 1)
    with pytest.raises(SampleChecksumError, match=r"2\.ffr: record 69") as caught:
        table(reading.records(copy / "records"), 2)
    assert caught.value.path == str(path)


def test_a_record_too_large_for_arrow_is_an_error(
    top: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(content, "MOST", 4000)
    with pytest.raises(FFRecordError, match="an Arrow array holds at most 4,000"):
        table(reading.records(top / "records"))


# ---- folders -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["one.ffr", "shards", "aligned.ffr"])
@pytest.mark.parametrize("count", COUNTS)
def test_files_are_those_of_the_packed_folder(name: str, count: int | None, top: Path) -> None:
    rows = table(reading.folder(top / name), count).to_pylist()
    with PackedFolder(top / name) as folder:
        assert sorted(row["path"] for row in rows) == sorted(folder)
        for row in rows:
            status = folder.stat(row["path"])
            assert row["content"] == folder.read_one(row["path"]).tobytes()
            assert (row["size"], row["mode"]) == (status.st_size, status.st_mode & 0o7777)
            due = datetime.datetime.fromtimestamp(
                status.st_mtime_ns // 10**9, datetime.timezone.utc
            )
            assert row["mtime"].to_pydatetime(warn=False).replace(microsecond=0) == due


@pytest.mark.parametrize("pattern", ["**", "*/*.a", "1/**", "large", "nothing", "**/*[05].b"])
def test_a_pattern_selects_the_regular_files_that_it_matches(pattern: str, top: Path) -> None:
    found = table(reading.folder(top / "shards", pattern, ["path"]), 3)["path"].to_pylist()
    with PackedFolder(top / "shards") as folder:
        due = [path for path in folder.glob(pattern)
               if folder.is_file(path) and not folder.is_symlink(path)]  # fmt: skip
    assert sorted(found) == sorted(due)


@pytest.mark.parametrize(
    ("condition", "meets"),
    [
        (("path", "==", "large"), lambda path, size: path == "large"),
        (
            ("path", "in", ["large", "1/001.b", "no"]),
            lambda path, size: path in ("large", "1/001.b"),
        ),
        (("path", "startswith", "1/"), lambda path, size: path.startswith("1/")),
        (("path", "<", "1"), lambda path, size: path < "1"),
        (("size", ">", 5000), lambda path, size: size > 5000),
        (("size", "<=", 37), lambda path, size: size <= 37),
        (("size", "in", {0, 37}), lambda path, size: size in (0, 37)),
    ],
    ids=lambda each: str(each) if isinstance(each, tuple) else "",
)
def test_conditions_select_files(
    condition: tuple[str, str, Any], meets: Callable[[str, int], bool], top: Path
) -> None:
    whole = reading.folder(top / "shards")
    some = whole.select(["content", "path"]).where(*condition)
    assert some is not None
    due = [row["path"] for row in table(whole).to_pylist() if meets(row["path"], row["size"])]
    for each in (some, pickle.loads(pickle.dumps(some))):
        assert table(each, 2)["path"].to_pylist() == due


@pytest.mark.parametrize(
    "condition",
    [
        ("mode", "==", 0o644), ("path", "like", "a"), ("path", "==", 5), ("content", "==", b""),
        ("size", "startswith", "1"), ("size", ">", "many"), ("size", "==", 1 << 70),
    ],
    ids=str,
)  # fmt: skip
def test_other_conditions_are_left_to_the_engine(
    condition: tuple[str, str, Any], top: Path
) -> None:
    assert reading.folder(top / "one.ffr").where(*condition) is None


def test_conditions_on_records_and_datasets_may_be_left_to_the_engine(top: Path) -> None:
    assert reading.records(top / "records").where("content", "==", b"") is None
    assert reading.records(top / "records").where("number", "in", [1]) is None
    assert reading.dataset(top / "plain").where("whole", "==", 1) is None


def test_a_damaged_file_is_an_error_that_names_it(copy: Path) -> None:
    with PackedFolder(copy / "shards") as folder:
        record = folder.record("1/100.a")
        file, at = table_of(folder.reader).locate(record)
        path = folder.reader.fnames[file]
    damage(Path(path), at)
    with pytest.raises(SampleChecksumError, match=r"\(1/100\.a\)"):
        table(reading.folder(copy / "shards", columns=["content"]))


def test_a_path_that_is_no_text_is_an_error_with_a_way_out(tmp_path: Path) -> None:
    trees.plain_tree(tmp_path / "tree", {"good": b"1"})
    (tmp_path / "tree" / os.fsdecode(b"bad\xff")).write_bytes(b"2")
    pack_folder(tmp_path / "tree", tmp_path / "a.ffr")
    with pytest.raises(FFRecordError, match=r"'bad\\udcff' is not UTF-8.*pass a pattern"):
        reading.folder(tmp_path / "a.ffr")
    assert table(reading.folder(tmp_path / "a.ffr", "g*"))["content"].to_pylist() == [b"1"]


# ---- datasets ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["plain", "sharded"])
@pytest.mark.parametrize("count", COUNTS)
def test_datapoints_are_those_of_the_reader(name: str, count: int | None, top: Path) -> None:
    found = table(reading.dataset(top / name), count)
    types = {field.name: str(field.type) for field in found.schema}
    assert types == {
        "whole": "int64", "real": "double", "truth": "bool", "text": "string", "tree": "string",
        "raw": "binary", "array": "binary", "words": "list<item: string>",
        "numbers": "list<item: int64>", "small": "string", "several": "list<item: int64>",
    }  # fmt: skip
    for row, values in enumerate(found.to_pylist()):
        due = datapoint(row)
        tree, array = values.pop("tree"), values.pop("array")
        assert decoders["json"](memoryview(tree.encode())) == due.pop("tree")
        assert (decoders["array"](memoryview(bytearray(array))) == due.pop("array")).all()
        assert values == due


def test_fields_come_in_the_order_that_was_asked_for(top: Path) -> None:
    found = table(reading.dataset(top / "sharded", ["numbers", "whole"]), 5)
    with DatasetReader(top / "plain") as reader:
        due = reader.read(range(200), ["numbers", "whole"])
    assert found.schema.names == ["numbers", "whole"]
    assert found.to_pylist() == due


@pytest.mark.parametrize("value", [1 << 63, -(1 << 63) - 1, 1 << 90])
def test_an_int_that_arrow_cannot_hold_is_an_error(value: int, tmp_path: Path) -> None:
    ends = (1 << 63) - 1, -(1 << 63)
    write_dataset(tmp_path / "fits", [{"n": each} for each in ends])
    assert table(reading.dataset(tmp_path / "fits"))["n"].to_pylist() == list(ends)
    write_dataset(tmp_path / "d", [{"n": 1}, {"n": value}])
    with pytest.raises(DecodeError, match=r"n\.ffr: record 1 is an int of more than 64 bits"):
        table(reading.dataset(tmp_path / "d"))


@pytest.mark.parametrize(
    ("type_", "record"),
    [("int", b""), ("float", b"1234567"), ("bool", b"\2"), ("utf8", b"\xff"), ("json", b"\xff")],
)
def test_a_value_that_is_not_of_its_type_is_an_error_that_names_the_record(
    type_: str, record: bytes, tmp_path: Path
) -> None:
    encoders = {type_: lambda value: value}
    good = {"int": b"\1", "float": bytes(8), "bool": b"\1", "utf8": b"a", "json": b"1"}[type_]
    write_dataset(tmp_path / "d", [{"f": good}, {"f": record}], {"f": type_}, encoders)
    with pytest.raises(DecodeError, match=rf"f\.ffr: record 1 cannot be decoded as {type_}"):
        table(reading.dataset(tmp_path / "d"))


def test_a_type_of_the_users_own_is_bytes(tmp_path: Path) -> None:
    write_dataset(tmp_path / "d", [{"f": "abc"}], {"f": "mine"}, {"mine": str.encode})
    assert table(reading.dataset(tmp_path / "d"))["f"].to_pylist() == [b"abc"]


@pytest.mark.parametrize("compression", ["zstd", "zstd:3:dict", "gzip", "lz4"])
@pytest.mark.parametrize("sequence", ["", "[]"])
def test_batches_of_compressed_values_are_limited_by_their_size_in_memory(
    compression: str, sequence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = [0, 3000, 2000, 1000, 9000, 500, *[700] * 200]
    values = [b"%d" % row + bytes(size) for row, size in enumerate(sizes)]
    points = [{"n": row, "f": [b"a", each] if sequence else each}
              for row, each in enumerate(values)]  # fmt: skip
    write_dataset(tmp_path / "d", points, {"n": "int", "f": f"bytes+{compression}{sequence}"})
    monkeypatch.setattr(source, "BATCH_BYTES", 6000)
    whole = reading.dataset(tmp_path / "d")
    assert table(whole, 1).to_pylist() == points
    for task in whole.tasks(1):
        for batch in task.batches():
            held = sum(len(b"".join(each.as_py())) if sequence else len(each.as_py())
                       for each in batch["f"])  # fmt: skip
            assert held <= 6000 or batch.num_rows == 1


@pytest.mark.parametrize("type_", ["bytes", "bytes[]", "utf8[]", "bytes+gzip", "utf8+gzip[]"])
def test_a_datapoint_too_large_for_arrow_is_an_error_that_names_it(
    type_: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    value: Any = {"b": b"x" * 1500, "u": "x" * 1500}[type_[0]]
    small = [value] if type_.endswith("[]") else value
    large = small * 3
    write_dataset(tmp_path / "d", [{"n": 1, "f": each} for each in (small, large)],
                  {"n": "int", "f": type_})  # fmt: skip
    whole = reading.dataset(tmp_path / "d")
    monkeypatch.setattr(content, "MOST", 4500)
    assert table(whole)["f"].to_pylist() == [small, large]
    monkeypatch.setattr(content, "MOST", 4499)
    with pytest.raises(FFRecordError, match=r"f\.ffr: datapoint 1 has 4,500 bytes in the field"):
        table(whole)
    assert table(whole.select(["n"])).num_rows == 2


# ---- only what is needed -----------------------------------------------------------------------


def test_content_that_is_not_selected_is_not_read(copy: Path, contents: list[bytes]) -> None:
    for path in [*(copy / "records").glob("*.ffr"), copy / "one.ffr"]:
        with FileReader(path) as reader:
            sizes, offsets = reader.record_sizes(), reader.get_offsets(0)
        for record in sizes.nonzero()[0].tolist()[: len(contents)]:
            damage(path, int(offsets[record]))
    numbers = table(reading.records(copy / "records", ["number"]), 3)
    assert numbers["number"].to_pylist() == list(range(len(contents)))
    columns = ["path", "size", "mode", "mtime"]
    files = table(reading.folder(copy / "one.ffr", columns=columns), 3)
    assert files.num_rows == len(contents) + 2
    for damaged in (reading.records(copy / "records"), reading.folder(copy / "one.ffr")):
        with pytest.raises(SampleChecksumError):
            table(damaged)


def test_files_of_other_fields_and_shards_are_not_opened(copy: Path) -> None:
    whole = reading.dataset(copy / "sharded")
    tasks = whole.select(["words"]).tasks(4)
    for path in (copy / "sharded").rglob("*.ffr"):
        if path.stem != "words":
            path.unlink()
    found = [
        row for task in tasks for batch in task.batches() for row in batch["words"].to_pylist()
    ]
    assert found == [datapoint(row)["words"] for row in range(200)]
    tasks = reading.folder(copy / "shards").tasks(1000)
    (copy / "shards" / "index.ffr").unlink()
    (copy / "shards" / "PART_00000.ffr").unlink()
    assert next(tasks[-1].batches()).num_rows == tasks[-1].rows
    with pytest.raises(FileNotFoundError):
        next(tasks[0].batches())


@pytest.mark.parametrize("kind", ["records", "folder", "dataset"])
def test_no_columns_give_the_number_of_rows(kind: str, top: Path) -> None:
    name = {"records": "records", "folder": "shards", "dataset": "sharded"}[kind]
    none = getattr(reading, kind)(top / name).select([])
    assert (none.bytes, len(none.schema)) == (0, 0)
    assert sum(batch.num_rows for task in none.tasks(3) for batch in task.batches()) == none.rows


# ---- changes and errors ------------------------------------------------------------------------


def _rewrite_records(top: Path) -> None:
    with FileWriter(top / "records" / "2.ffr") as writer:
        writer.write([b"other"] * 70)


def _rewrite_folder(top: Path) -> None:
    (top / "tree" / "large").write_bytes(b"other")
    pack_folder(top / "tree", top / "one.ffr")


def _rewrite_dataset(top: Path) -> None:
    write_dataset(top / "plain", [datapoint(3)], SPEC, append=True)


@pytest.mark.parametrize(
    ("kind", "name", "rewrite"),
    [
        ("records", "records", _rewrite_records),
        ("folder", "one.ffr", _rewrite_folder),
        ("dataset", "plain", _rewrite_dataset),
    ],
)
def test_a_file_that_was_replaced_since_is_an_error(
    kind: str, name: str, rewrite: Callable[[Path], None], copy: Path
) -> None:
    before = getattr(reading, kind)(copy / name)
    tasks = before.tasks(2)
    list(tasks[-1].batches())  # the file is open now
    rewrite(copy)
    with pytest.raises(ChangedError, match="replaced since it was opened"):
        list(tasks[-1].batches())


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda top: reading.records(top / "no"), FileNotFoundError, "no"),
        (lambda top: reading.records(top / "records", ["x"]), ValueError, "are number, content"),
        (lambda top: reading.folder(top / "one.ffr", "**", ["path", "path"]), ValueError, "twice"),
        (lambda top: reading.dataset(top / "plain", ["x"]), ValueError, "are whole, real"),
        (lambda top: reading.dataset(top / "records"), FFRecordError, "no shards"),
        (
            lambda top: reading.dataset(top / "plain", deadline=1),
            (UrlError, ValueError),
            "deadline",
        ),
        (lambda top: reading.records(top / "records").tasks(0), ValueError, "count must be 1"),
    ],
)
def test_a_wrong_argument_is_an_error(
    make: Callable[[Path], Any], error: type[Exception], message: str, top: Path
) -> None:
    with pytest.raises(error, match=message):
        make(top)


def test_shards_with_different_specs_are_an_error(copy: Path) -> None:
    shutil.rmtree(copy / "sharded" / "000003")
    write_dataset(copy / "sharded" / "000003", [{"other": 1}])
    with pytest.raises(FFRecordError, match="000003: this shard has another spec"):
        reading.dataset(copy / "sharded")


# ---- URLs --------------------------------------------------------------------------------------


@pytest.mark.parametrize("listed", [True, False])
def test_the_name_of_a_folder_has_no_password(listed: bool) -> None:
    url = "sftp://user:SECRET@host/photos.ffr"
    source = FolderSource([url] if listed else url, {}, "**", "")
    assert source.name == "sftp://host/photos.ffr"


@pytest.fixture
def urls(top: Path) -> dict[str, Any]:
    return {"fs": fsspec.filesystem("file"), "cache": False}


@pytest.mark.parametrize("kind", ["records", "folder", "dataset"])
@pytest.mark.parametrize("is_whole", [True, False])
def test_the_same_is_read_over_the_network(
    kind: str, is_whole: bool, top: Path, urls: dict[str, Any]
) -> None:
    for name in {"records": ["records"], "folder": ["one.ffr", "shards"],
                 "dataset": ["plain", "sharded"]}[kind]:  # fmt: skip
        slash = "" if kind == "dataset" or name == "one.ffr" else "/"
        there = getattr(reading, kind)(f"{top / name}{slash}", **urls)
        here = getattr(reading, kind)(top / name)
        if not is_whole:
            columns = here.schema.names[1:3]
            there, here = there.select(columns), here.select(columns)
        assert table(pickle.loads(pickle.dumps(there)), 4).equals(table(here))
