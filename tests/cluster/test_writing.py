"""Sinks write the rows that engines give them, whatever happens to the tasks."""

from __future__ import annotations

import datetime
import os
import pickle
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from ffrecord import (
    ConversionError,
    EncodeError,
    FileReader,
    FileWriter,
    PackedFolder,
    PlanError,
    ShardedDatasetReader,
    SpecError,
    UnfinishedError,
    write_dataset,
)
from ffrecord.cluster import reading, writing
from ffrecord.cluster.writing import Receipt, Sink
from ffrecord.plan.work_prefix import WorkPrefix
from tests.remote.buckets import content as stored
from tests.remote.buckets import keys
from tests.support import kills, trees
from tests.support.executors import files_in
from tests.support.packing import require_valid
from tests.support.patience import PATIENCE

ROWS = 60
PER_TASK = 13
KINDS = ("records", "folder", "dataset")


def content(row: int) -> bytes:
    return trees.content(300_000 if row == 20 else row * 31, row)


def rows(numbers: Sequence[int]) -> pa.Table:
    """Return rows that every kind of sink can write."""
    return pa.table({
        "path": [f"{row % 3}/deep/{row:03}" for row in numbers],
        "content": [content(row) for row in numbers],
        "mode": pa.array([0o600 + row % 8 for row in numbers], pa.int32()),
        "mtime": pa.array([10**9 + row for row in numbers], pa.timestamp("s")),
    })  # fmt: skip


def sink(kind: str, target: Path | str, **remote: Any) -> Sink:
    if kind == "dataset":
        spec = {"path": "utf8", "content": "bytes", "mode": "int"}
        return writing.dataset_sink(target, spec, **remote)
    if kind == "records":
        return writing.records_sink(target, **remote)
    return writing.folder_sink(target, **remote)


def parts() -> list[range]:
    return [range(at, min(at + PER_TASK, ROWS)) for at in range(0, ROWS, PER_TASK)]


def run(begun: Sink) -> list[Receipt]:
    """Write all rows in tasks with gaps between their numbers, and an empty one."""
    begun = pickle.loads(pickle.dumps(begun))
    receipts = [
        begun.write(3 * task, [rows(part).slice(0, 5), rows(part).slice(5)])
        for task, part in enumerate(parts())
    ]
    return [*receipts[::-1], begun.write(4, []), begun.write(5, [rows(range(1)).slice(1)])]


def found(kind: str, target: Path | str, **remote: Any) -> Any:
    """Return what a reader finds in a target, in a form that can be compared."""
    if kind == "records":
        with FileReader(target, **remote) as reader:
            return [each.tobytes() for each in reader]
    if kind == "dataset":
        with ShardedDatasetReader(target, **remote) as datapoints:
            return list(datapoints)
    if isinstance(target, Path):
        require_valid(target)
    with PackedFolder(target, **remote) as folder:
        return {
            path: (folder.read_one(path).tobytes(), folder.stat(path).st_mode,
                   folder.stat(path).st_mtime)
            for path in folder
        }  # fmt: skip


def due(kind: str, count: int = ROWS) -> Any:
    table = rows(range(count)).to_pylist()
    if kind == "records":
        return [row["content"] for row in table]
    if kind == "dataset":
        return [{name: row[name] for name in ("path", "content", "mode")} for row in table]
    return {row["path"]: (row["content"], 0o100000 | row["mode"], row["mtime"].replace(
        tzinfo=datetime.timezone.utc).timestamp()) for row in table}  # fmt: skip


@pytest.fixture(scope="module", params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def expected(kind: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """Return the files of a target that was written without trouble."""
    target = tmp_path_factory.mktemp("expected") / "target"
    begun = sink(kind, target).begin()
    begun.commit(run(begun))
    return files_in(target)


# ---- what is written ---------------------------------------------------------------------------


def test_rows_are_written_in_the_order_of_the_tasks(kind: str, tmp_path: Path) -> None:
    begun = sink(kind, tmp_path / "target").begin()
    report = begun.commit(run(begun))
    assert found(kind, tmp_path / "target") == due(kind)
    assert (report.shards, report.rows) == (len(parts()), ROWS)
    assert report.bytes == sum(map(len, files_in(tmp_path / "target").values())) - (
        (tmp_path / "target" / "index.ffr").stat().st_size if kind == "folder" else 0
    )
    assert os.listdir(tmp_path) == ["target"]


def test_the_files_are_those_of_a_single_process(tmp_path: Path) -> None:
    datapoints = due("dataset")
    spec = {"path": "utf8", "content": "bytes", "mode": "int"}
    write_dataset(tmp_path / "d-alone", datapoints, spec, shardlen=PER_TASK)
    begun = sink("dataset", tmp_path / "d").begin()
    begun.commit(run(begun))
    assert files_in(tmp_path / "d") == files_in(tmp_path / "d-alone")
    with FileWriter(tmp_path / "alone.ffr") as writer:
        writer.write(due("records"))
    for kind in ("records", "folder"):
        begun = sink(kind, tmp_path / kind).begin()
        begun.commit([begun.write(7, [rows(part) for part in parts()])])
        shard = files_in(tmp_path / kind)["PART_00000.ffr"]
        assert shard == (tmp_path / "alone.ffr").read_bytes()


@pytest.mark.parametrize("name", ["plain", "sharded"])
def test_a_dataset_that_is_read_and_written_keeps_its_types(name: str, tmp_path: Path) -> None:
    spec = {
        "whole": "int", "tree": "json", "nested": "tree", "array": "array", "words": "utf8[]",
        "packed": "bytes+zstd", "photo": "jpg", "several": "array[]",
    }  # fmt: skip
    datapoints = [
        {
            "whole": -row, "tree": {"row": [row]}, "nested": {"a": [1, None]},
            "array": np.arange(row, dtype=np.int16), "words": ["a"] * row, "packed": bytes(row),
            "photo": np.full((4, 4, 3), row, np.uint8), "several": [np.ones(2)] * (row % 3),
        }
        for row in range(20)
    ]  # fmt: skip
    write_dataset(tmp_path / name, datapoints, spec, shardlen=None if name == "plain" else 7)
    begun = writing.dataset_sink(tmp_path / "again").begin()
    tasks = reading.dataset(tmp_path / name).tasks(3)
    begun.commit([begun.write(number, task.batches()) for number, task in enumerate(tasks)])
    before, after = reading.dataset(tmp_path / name), reading.dataset(tmp_path / "again")
    assert after.schema.equals(before.schema, check_metadata=True)
    with ShardedDatasetReader(tmp_path / "again") as reader:
        assert reader.spec == spec

    def table(tasks: Iterable[reading.ReadTask]) -> pa.Table:
        return pa.Table.from_batches([batch for task in tasks for batch in task.batches()])

    assert table(after.tasks()).combine_chunks().equals(table(before.tasks()).combine_chunks())


@pytest.mark.parametrize(
    ("values", "spec", "type_", "read"),
    [
        (pa.array([True]), None, "bool", True),
        (pa.array([7], pa.uint64()), None, "int", 7),
        (pa.array([1.5], pa.float32()), None, "float", 1.5),
        (pa.array(["é"], pa.large_string()), None, "utf8", "é"),
        (pa.array([b"ab"], pa.binary(2)), None, "bytes", b"ab"),
        (pa.array(["x"]).dictionary_encode(), None, "utf8", "x"),
        (pa.array([[1, 2]], pa.large_list(pa.int8())), None, "int[]", [1, 2]),
        (pa.array([[1, 2]], pa.list_(pa.int16())), "array", "array", np.array([1, 2], np.int16)),
        (pa.array([{"a": 1}]), "json", "json", {"a": 1}),
        (pa.array(['{"a": 1}']), "json", "json", {"a": 1}),
        (pa.array([{"a": [1]}]), "tree+zstd", "tree+zstd", {"a": [1]}),
        (
            pa.FixedShapeTensorArray.from_numpy_ndarray(np.ones((1, 2, 3), np.float32)),
            None, "array", np.ones((2, 3), np.float32),
        ),
    ],
)  # fmt: skip
def test_arrow_types_become_types_of_fields(
    values: pa.Array, spec: str | None, type_: str, read: Any, tmp_path: Path
) -> None:
    begun = writing.dataset_sink(tmp_path / "d", {"f": spec} if spec else None).begin()
    begun.commit([begun.write(0, [pa.table({"f": values, "g": [0]}).select(["f"])])])
    with ShardedDatasetReader(tmp_path / "d") as reader:
        assert reader.spec == {"f": type_}
        value = reader[0]["f"]
    assert type(value) is type(read)
    assert getattr(value, "dtype", None) == getattr(read, "dtype", None)
    assert np.array_equal(value, read)


@pytest.mark.parametrize(
    "type_", [pa.string(), pa.large_binary(), pa.binary_view(), pa.string_view(), pa.binary(2)]
)
def test_records_may_come_in_every_type_of_bytes(type_: pa.DataType, tmp_path: Path) -> None:
    values = pa.array([b"ab", b"cd", b"ef", b"gh"]).cast(type_)
    begun = writing.records_sink(tmp_path / "r", "column").begin()
    some = [pa.table({"column": values[1:3]}), pa.record_batch({"column": values[3:]})]
    begun.commit([begun.write(0, some)])
    assert found("records", tmp_path / "r") == [b"cd", b"ef", b"gh"]


@pytest.mark.parametrize("kind", KINDS)
def test_no_rows_make_an_empty_target(kind: str, tmp_path: Path) -> None:
    begun = sink(kind, tmp_path / "target").begin()
    report = begun.commit([begun.write(0, []), begun.write(1, [rows(range(1)).slice(1)])])
    assert not found(kind, tmp_path / "target")
    assert (report.shards, report.rows) == (0, 0)


# ---- tasks and commits in trouble --------------------------------------------------------------


def test_a_task_that_runs_twice_at_once_changes_nothing(
    kind: str, expected: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, both = sink(kind, tmp_path / "target").begin(), threading.Barrier(2)
    write = type(begun)._write_shard

    def write_both(*args: Any) -> Receipt:
        receipt = write(*args)
        both.wait(PATIENCE)  # both shards are on disk before one has a receipt
        return receipt

    monkeypatch.setattr(type(begun), "_write_shard", write_both)
    receipts: list[Receipt] = []
    with ThreadPoolExecutor(2) as pool:
        for task, part in enumerate(parts()):
            receipts += pool.map(lambda _, t=task, p=part: begun.write(t, [rows(p)]), range(2))
    assert len({receipt.attempt for receipt in receipts}) == 2 * len(parts())
    begun.commit(receipts[1::2])  # those that the engine chose
    assert files_in(tmp_path / "target") == expected
    assert os.listdir(tmp_path) == ["target"]


def test_a_task_that_is_repeated_with_other_rows_has_the_rows_of_the_attempt_that_counts(
    kind: str, tmp_path: Path
) -> None:
    """Its first attempt left a receipt, but was lost with its worker. Then rows moved on."""
    begun = sink(kind, tmp_path / "target").begin()
    begun.write(0, [rows(range(4))])
    begun.commit([begun.write(0, [rows(range(2))]), begun.write(1, [rows(range(2, 4))])])
    assert found(kind, tmp_path / "target") == due(kind, 4)


def test_an_attempt_that_ends_after_the_commit_changes_nothing(
    kind: str, expected: dict[str, bytes], tmp_path: Path
) -> None:
    """An engine gave a worker up, which is still alive and writing."""
    begun = sink(kind, tmp_path / "target").begin()
    writing_now, committed = threading.Event(), threading.Event()

    def slow() -> Iterator[pa.Table]:
        yield rows(range(5))
        writing_now.set()
        assert committed.wait(PATIENCE)
        yield rows(range(5))

    with ThreadPoolExecutor(1) as pool:
        late = pool.submit(begun.write, 0, slow())
        assert writing_now.wait(PATIENCE)
        begun.commit(run(begun))
        committed.set()
        with pytest.raises(PlanError, match="the work folder of this plan is missing"):
            late.result()
    assert files_in(tmp_path / "target") == expected
    assert os.listdir(tmp_path) == ["target"]


def test_a_commit_removes_what_cancelled_jobs_left(
    kind: str, expected: dict[str, bytes], tmp_path: Path
) -> None:
    run(sink(kind, tmp_path / "target").begin())
    begun = sink(kind, tmp_path / "target").begin()
    assert len(os.listdir(tmp_path)) == 2
    begun.commit(run(begun))
    assert files_in(tmp_path / "target") == expected
    assert os.listdir(tmp_path) == ["target"]


def test_a_killed_task_is_run_again(kind: str, expected: dict[str, bytes], tmp_path: Path) -> None:
    begun = sink(kind, tmp_path / "target").begin()

    def work(_tell: Callable[[int], None]) -> None:
        begun.write(0, [rows(parts()[0])])

    _, calls, _ = kills.run(work, None)
    begun.abort()
    for point in kills.points(calls, 5):
        begun = sink(kind, tmp_path / "target").begin()
        kills.run(work, point)
        begun.commit(run(begun))
        assert files_in(tmp_path / "target") == expected
        assert os.listdir(tmp_path) == ["target"]
        for path in sorted((tmp_path / "target").rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
        (tmp_path / "target").rmdir()


def _commit(begun: Sink, receipts: list[Receipt], _tell: object) -> None:
    begun.commit(receipts)


@pytest.mark.parametrize("count", [20, pytest.param(50, marks=pytest.mark.long)])
def test_a_killed_commit_is_repeated(
    count: int, kind: str, expected: dict[str, bytes], tmp_path: Path
) -> None:
    """The target has nothing or everything, and the next commit completes it."""

    def prepared(name: str) -> tuple[Sink, list[Receipt]]:
        begun = sink(kind, tmp_path / name).begin()
        return begun, run(begun)

    begun, receipts = prepared("first")
    _, calls, _ = kills.run(partial(_commit, begun, receipts), None)
    for number, point in enumerate(kills.points(calls, count)):
        target = tmp_path / f"{number}"
        begun, receipts = prepared(target.name)
        kills.run(partial(_commit, begun, receipts), point)
        if target.exists():
            assert files_in(target) == expected
        assert begun.commit(receipts) == replace(begun.commit(receipts), target=str(target))
        assert files_in(target) == expected
        assert not [name for name in os.listdir(tmp_path) if name.startswith(".")]


def test_rows_that_raise_leave_nothing(kind: str, tmp_path: Path) -> None:
    begun = sink(kind, tmp_path / "target").begin()

    def broken() -> Iterator[pa.Table]:
        yield rows(range(5))
        raise RuntimeError("no more rows")

    with pytest.raises(RuntimeError, match="no more rows"):
        begun.write(0, broken())
    work = next(tmp_path.iterdir())
    assert not [path for path in work.rglob("*") if path.is_file()]
    begun.write(1, [rows(range(5))])
    begun.abort()
    assert os.listdir(tmp_path) == []
    with pytest.raises(PlanError, match="the work folder of this plan is missing"):
        begun.write(2, [rows(range(5))])
    begun.abort()


def test_an_existing_target_is_refused(kind: str, tmp_path: Path) -> None:
    (tmp_path / "target").mkdir()
    (tmp_path / "target" / "mine").write_bytes(b"1")
    with pytest.raises(FileExistsError):
        sink(kind, tmp_path / "target").begin()
    assert os.listdir(tmp_path) == ["target"]
    late = sink(kind, tmp_path / "late").begin()
    receipts = run(late)
    (tmp_path / "late").mkdir()
    (tmp_path / "late" / "mine").write_bytes(b"1")
    with pytest.raises(FileExistsError):
        late.commit(receipts)
    late.abort()
    assert files_in(tmp_path / "late") == {"mine": b"1"}


def test_a_shard_that_is_not_the_one_of_its_receipt_is_an_error(kind: str, tmp_path: Path) -> None:
    begun = sink(kind, tmp_path / "target").begin()
    receipts = run(begun)
    wrong = replace(receipts[1], checksums=dict.fromkeys(receipts[1].checksums, 1))
    with pytest.raises(PlanError, match=rf"the shard of task {wrong.task} is not the one"):
        begun.commit([receipts[0], wrong, *receipts[2:]])
    assert not (tmp_path / "target").exists()


# ---- wrong rows --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "columns", "error", "message"),
    [
        (writing.records_sink, {"path": ["a"]}, ConversionError, "no column 'content'"),
        (writing.records_sink, {"content": [b"a", None]}, ConversionError, "has 1 null, which"),
        (writing.records_sink, {"content": [1]}, ConversionError, "type int64; it must be binary"),
        (writing.folder_sink, {"content": [b""]}, ConversionError, "no column 'path'"),
        (writing.folder_sink, {"path": ["../a"], "content": [b""]}, ConversionError, r"'\.\./a'"),
        (writing.folder_sink, {"path": ["/a"], "content": [b""]}, ConversionError, "'/a'"),
        (writing.folder_sink, {"path": [""], "content": [b""]}, ConversionError, "an empty path"),
        (writing.folder_sink, {"path": ["a//b"], "content": [b""]}, ConversionError, "'a//b'"),
        (writing.folder_sink, {"path": ["a\0b"], "content": [b""]}, ConversionError, "a NUL"),
        (writing.folder_sink, {"path": ["a" * 256], "content": [b""]}, ConversionError, "of 256"),
        (
            writing.folder_sink, {"path": ["a"], "content": [b""], "mode": ["x"]},
            ConversionError, "must be an integer",
        ),
        (
            writing.folder_sink, {"path": ["a"], "content": [b""], "mtime": [1]},
            ConversionError, "must be a timestamp",
        ),
        (
            writing.folder_sink,
            {"path": ["a"], "content": [b""], "mtime": pa.array([1 << 50], pa.timestamp("s"))},
            ConversionError, "outside the years",
        ),
        (writing.dataset_sink, {"f": pa.array([1], pa.date64())}, SpecError, "a dataset cannot"),
        (writing.dataset_sink, {"f": [{"a": 1}]}, SpecError, "pass a spec with its type"),
        (writing.dataset_sink, {"f": [1, None]}, ConversionError, "'f' has 1 null, which"),
        (
            lambda target: writing.dataset_sink(target, {"f": "array"}), {"f": [b"no array"]},
            EncodeError, "target: task 0: datapoint 0: field 'f' cannot be encoded as array",
        ),
        (
            lambda target: writing.dataset_sink(target, {"f": "jpg"}), {"f": [b"no picture"]},
            EncodeError, "the bytes are not a jpg file",
        ),
        (
            lambda target: writing.dataset_sink(target, {"f": "json"}), {"f": ["{"]},
            EncodeError, "cannot be encoded as json",
        ),
        (
            lambda target: writing.dataset_sink(target, {"g": "int"}), {"f": [1]},
            ConversionError, "no column 'g'",
        ),
    ],
)  # fmt: skip
def test_wrong_rows_are_an_error_that_names_the_column(
    make: Callable[[Path], Sink], columns: dict[str, Any], error: type[Exception], message: str,
    tmp_path: Path,
) -> None:  # fmt: skip
    begun = make(tmp_path / "target").begin()
    with pytest.raises(error, match=message) as caught:
        begun.write(0, [pa.table(columns)])
    assert str(caught.value).startswith(f"{tmp_path / 'target'}: ")
    begun.abort()
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("paths", "message"),
    [
        (["a/b", "c", "a/b"], "'a/b' cannot be packed: another file or folder has the same path"),
        (["a/b", "a/b/c"], "'a/b/c' cannot be packed: a file has the path of one of its folders"),
        (["a/b/c", "a/b"], "'a/b' cannot be packed: another file or folder has the same path"),
    ],
)
def test_paths_that_exclude_each_other_are_refused_at_the_commit(
    paths: list[str], message: str, tmp_path: Path
) -> None:
    begun = writing.folder_sink(tmp_path / "target").begin()
    receipts = [
        begun.write(task, [pa.table({"path": [path], "content": [b""]})])
        for task, path in enumerate(paths)
    ]
    with pytest.raises(ConversionError, match=message):
        begun.commit(receipts)
    assert not (tmp_path / "target").exists()


def test_tasks_whose_rows_have_different_types_are_refused_at_the_commit(tmp_path: Path) -> None:
    begun = writing.dataset_sink(tmp_path / "target").begin()
    receipts = [begun.write(0, [pa.table({"f": [1]})]), begun.write(1, [pa.table({"f": ["a"]})])]
    with pytest.raises(SpecError, match="'utf8'}; pass spec, or cast the columns"):
        begun.commit(receipts)
    with pytest.raises(SpecError, match="there is no row to infer the types from"):
        begun.commit([])


def test_only_small_values_travel_through_the_driver(tmp_path: Path) -> None:
    begun = writing.folder_sink(tmp_path / "target").begin()
    many = pa.table({"path": [f"{row:09}" for row in range(20_000)], "content": [b"1"] * 20_000})
    receipt = begun.write(0, [many])
    assert len(pickle.dumps(receipt)) < 1000
    begun.commit([receipt])
    with PackedFolder(tmp_path / "target") as folder:
        assert len(folder) == 20_000
        assert folder.stat("000000007").st_mode == 0o100644


def test_values_are_written_without_an_object_for_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One piece of memory for each batch, which is the column's own."""
    appended = []
    append = FileWriter.append

    def noting(writer: Any, data: memoryview) -> None:
        appended.append(np.frombuffer(data, np.uint8).ctypes.data)
        append(writer, data)

    monkeypatch.setattr(FileWriter, "append", noting)
    column = pa.array([b"abc", b"de"])
    begun = writing.records_sink(tmp_path / "target").begin()
    begun.commit([begun.write(0, [pa.record_batch({"content": column})])])
    assert appended == [column.buffers()[2].address]


# ---- targets in a store ------------------------------------------------------------------------


def test_a_target_in_a_store_has_the_same_rows_and_shards(
    kind: str, expected: dict[str, bytes], server: str, remote: dict[str, Any]
) -> None:
    begun = sink(kind, "s3://bucket/top/out", **remote).begin()
    assert "SECRET" not in repr(begun)
    receipts = [*run(begun), *run(begun)]  # each task runs twice
    for key in keys(server):
        assert b"SECRET" not in stored(server, key)
    with pytest.raises(UnfinishedError):
        found(kind, "s3://bucket/top/out/", **remote)
    report = begun.commit(receipts)
    assert begun.commit(receipts) == report
    begun.abort()
    assert (report.shards, report.rows) == (len(parts()), ROWS)
    assert found(kind, "s3://bucket/top/out/", **remote) == due(kind)
    there = {key.removeprefix("top/out/"): stored(server, key) for key in keys(server)}
    last = 3 * (len(parts()) - 1)
    if kind == "dataset":  # the tasks between have empty shards
        assert {name.partition("/")[0] for name in there} == {f"{n:06}" for n in range(last + 1)}
        there = {name: each for name, each in there.items() if int(name[:6]) % 3 == 0}
    else:
        names = {f"PART_{number:05}.ffr" for number in range(0, last + 1, 3)}
        assert there.keys() == names | expected.keys() - {f"PART_{n:05}.ffr" for n in range(last)}
        there.pop("index.ffr", None)
    assert list(there.values()) == [
        each for name, each in sorted(expected.items()) if name != "index.ffr"
    ]


def test_a_task_that_is_repeated_with_other_rows_is_refused(
    kind: str, server: str, remote: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second attempt puts its shard after the first, before or after that has a receipt."""
    begun = sink(kind, "s3://bucket/top/out", **remote).begin()
    begun.write(0, [rows(range(4))])
    receipt = begun.write(0, [rows(range(5, 9))])
    with pytest.raises(PlanError, match="is not the one of its receipt"):
        begun.commit([receipt])
    begun.abort()
    begun = sink(kind, "s3://bucket/top/out", **remote).begin()
    leave = WorkPrefix._leave
    others: list[Receipt] = []

    def leave_after_the_other(self: WorkPrefix, receipt: Receipt) -> Receipt:
        others.append(receipt)
        if len(others) == 1:
            begun.write(0, [rows(range(5, 9))])
        return leave(self, others[0])

    with monkeypatch.context() as patched:
        patched.setattr(WorkPrefix, "_leave", leave_after_the_other)
        receipt = begun.write(0, [rows(range(4))])
    with pytest.raises(PlanError, match="is not the one of its receipt"):
        begun.commit([receipt])
    begun.abort()
    assert keys(server) == []


def test_a_cluster_that_fails_leaves_nothing_in_a_store(
    kind: str, server: str, remote: dict[str, Any]
) -> None:
    def failing() -> Iterator[pa.Table]:
        yield rows(range(3))
        raise KeyError

    begun = sink(kind, "s3://bucket/top/out", **remote).begin()
    run(begun)
    with pytest.raises(KeyError):
        begun.write(10, failing())
    begun.abort()
    assert keys(server) == []
    with pytest.raises(PlanError, match="this plan has ended"):
        run(begun)
    assert keys(server) == []


def test_no_rows_make_an_empty_target_in_a_store(
    kind: str, server: str, remote: dict[str, Any]
) -> None:
    begun = sink(kind, "s3://bucket/top/out", **remote).begin()
    begun.commit([begun.write(0, [])])
    assert not found(kind, "s3://bucket/top/out/", **remote)
