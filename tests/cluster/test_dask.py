"""Dask on a real cluster of two worker processes: the bytes of one process, whatever is killed."""

from __future__ import annotations

import importlib
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import dask
import dask.bag
import dask.dataframe
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from distributed import Client, Event, LocalCluster

import ffrecord
from ffrecord import (
    ConversionError,
    FileReader,
    FileWriter,
    MissingPackageError,
    PackedFolder,
    SampleChecksumError,
    ShardedDatasetReader,
    ShardedDatasetWriter,
    pack_folder,
)
from ffrecord.archive import planned
from ffrecord.archive.pack import plan_pack
from ffrecord.cluster import dask as adapter
from ffrecord.cluster import writing
from ffrecord.cluster.dask import Columns
from ffrecord.convert import convert
from ffrecord.plan.work import Receipt
from tests.cluster.conftest import SHARD_SIZE
from tests.support import handmade, trees
from tests.support.executors import files_in
from tests.support.packing import require_valid
from tests.support.patience import PATIENCE

RECORDS = handmade.random_records([0, 1, 70_000, 4096, 300] * 200, seed=3)
SPEC = {"number": "int", "text": "utf8", "noise": "bytes", "scores": "float[]"}
ROWS = 1000
SHARDLEN = 250


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    # A worker that was killed may take long to come back. Dask would give it up after 15 s.
    with (
        dask.config.set({"distributed.deploy.lost-worker-timeout": f"{PATIENCE}s"}),
        LocalCluster(
            n_workers=2, threads_per_worker=1, processes=True, host="127.0.0.1",
            dashboard_address=None, worker_dashboard_address=None,
            local_directory=str(tmp_path_factory.mktemp("dask")),
        ) as cluster,
        Client(cluster) as client,
    ):  # fmt: skip
        yield client


def row(number: int) -> dict[str, Any]:
    return {
        "number": number, "text": f"text {number}", "noise": trees.content(number % 900, number),
        "scores": [number / 2] * (number % 4),
    }  # fmt: skip


class Rows:
    """A dataset whose rows are made in the worker. Only its type is sent."""

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, number: int) -> dict[str, Any]:
        return row(number)


@pytest.fixture(scope="module")
def points(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a dataset in this process."""
    path = tmp_path_factory.mktemp("points") / "points"
    with ShardedDatasetWriter(path, SPEC, shardlen=SHARDLEN) as writer:
        for number in range(ROWS):
            writer.append(row(number))
    return path


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return handmade.write_records(tmp_path_factory.mktemp("records") / "records.ffr", RECORDS)


@pytest.fixture(scope="module")
def archive(many: Path, alone: dict[str, bytes]) -> Path:
    assert alone
    return many.with_name("alone")


# ---- the executor ------------------------------------------------------------------------------


def test_its_executor_packs_the_bytes_of_one_process(
    client: Client, many: Path, alone: dict[str, bytes], tmp_path: Path
) -> None:
    report = pack_folder(
        many, tmp_path / "shards", shard_size=SHARD_SIZE, executor=client.get_executor()
    )
    assert report.shards == len(alone) - 1
    assert files_in(tmp_path / "shards") == alone
    assert os.listdir(tmp_path) == ["shards"]


def test_its_executor_writes_and_converts_the_bytes_of_one_process(
    client: Client, points: Path, records: Path, tmp_path: Path
) -> None:
    ffrecord.write_dataset(
        tmp_path / "points", Rows(), SPEC, shardlen=SHARDLEN, executor=client.get_executor()
    )
    assert files_in(tmp_path / "points") == files_in(points)
    options: dict[str, Any] = {"target_format": "dataset", "shard_per_source": True}
    convert([records, records], tmp_path / "one", **options)
    convert([records, records], tmp_path / "tasks", executor=client.get_executor(), **options)
    assert files_in(tmp_path / "tasks") == files_in(tmp_path / "one")
    assert sorted(os.listdir(tmp_path)) == ["one", "points", "tasks"]


def test_a_folder_that_is_packed_again_is_listed_again(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dask gives equal calls one result while anything holds a future, as a notebook may."""
    tree = trees.plain_tree(tmp_path / "tree", {"a/1": b"1", "b/2": b"2"})
    executor, kept = client.get_executor(), list[Any]()
    submit = executor.submit

    def keep(*call: Any) -> Any:
        kept.append(submit(*call))
        return kept[-1]

    monkeypatch.setattr(executor, "submit", keep)
    for count in (2, 3):
        pack_folder(tree, tmp_path / "shards", shard_size=1, executor=executor)
        with PackedFolder(tmp_path / "shards") as folder:
            assert len(folder) == count
        shutil.rmtree(tmp_path / "shards")
        (tree / "a" / "3").write_bytes(b"3")


def die_in_shard(number: int) -> None:
    """Let this worker kill itself in the middle of that shard."""
    write_shard = planned._write_shard

    def write(task: planned.PackTask, path: str) -> Receipt:
        if task.number == number:
            Path(path).write_bytes(b"half a shard")
            os.kill(os.getpid(), signal.SIGKILL)
        return write_shard(task, path)

    planned._write_shard = write


def die_after_a_table() -> None:
    """Let this worker kill itself when it has written the first rows of its next partition."""

    def tables(rows: Iterable[Any], columns: Columns, target: str) -> Iterator[pa.Table]:
        yield next(first_tables(rows, columns, target))
        os.kill(os.getpid(), signal.SIGKILL)

    first_tables = adapter._tables
    adapter._tables = tables


def pids(client: Client) -> set[int]:
    return set(client.run(os.getpid).values())


@pytest.fixture
def deadly(client: Client) -> Iterator[Client]:
    """Yield the cluster for a test that kills workers; Dask starts others. Check that it did."""
    before = pids(client)
    yield client
    client.restart(timeout=PATIENCE)  # a worker that was armed and not killed
    assert not before & pids(client)


def test_the_tasks_of_a_killed_worker_run_again(
    deadly: Client, many: Path, alone: dict[str, bytes], tmp_path: Path
) -> None:
    before = pids(deadly)
    deadly.run(die_in_shard, 3)
    pack_folder(many, tmp_path / "shards", shard_size=SHARD_SIZE, executor=deadly.get_executor())
    deadly.wait_for_workers(2, timeout=PATIENCE)
    assert before - pids(deadly)
    assert files_in(tmp_path / "shards") == alone
    assert os.listdir(tmp_path) == ["shards"]


def wait_for_the_other(own: str, other: str) -> None:
    """Let this worker write its next shard at the same time as another worker."""
    write_shard = planned._write_shard

    def write(task: planned.PackTask, path: str) -> Receipt:
        receipt = write_shard(task, path)
        Event(own).set()
        assert Event(other).wait(PATIENCE)
        return receipt

    planned._write_shard = write


def test_a_task_that_runs_twice_at_once_changes_nothing(
    client: Client, many: Path, alone: dict[str, bytes], tmp_path: Path
) -> None:
    plan = plan_pack(many, tmp_path / "shards", SHARD_SIZE)
    first, second = client.scheduler_info()["workers"]
    client.run(wait_for_the_other, "one", "two", workers=[first])
    client.run(wait_for_the_other, "two", "one", workers=[second])
    task = planned.task_of(plan, 2)
    both = [
        client.submit(planned.run_task, task, workers=[worker], pure=False)
        for worker in (first, second)
    ]
    one, two = client.gather(both)
    assert one.attempt != two.attempt
    assert (one.bytes, one.checksums) == (two.bytes, two.checksums)
    client.restart(timeout=PATIENCE)
    for number in range(len(plan.parts)):
        planned.run_task(planned.task_of(plan, number))
    planned.commit(plan)
    assert files_in(tmp_path / "shards") == alone
    assert os.listdir(tmp_path) == ["shards"]


# ---- reading -----------------------------------------------------------------------------------


def test_records_are_a_bag(client: Client, records: Path) -> None:
    bag = adapter.read_records(records, npartitions=4)
    assert bag.npartitions == 4
    assert bag.compute() == [{"number": k, "content": each} for k, each in enumerate(RECORDS)]
    assert adapter.read_records(records, ["number"]).pluck("number").sum().compute() == sum(
        range(len(RECORDS))
    )


@pytest.mark.parametrize("pattern", ["**", "7/*7/*17"])
def test_files_of_a_folder_are_a_bag(client: Client, archive: Path, pattern: str) -> None:
    bag = adapter.read_folder(archive, pattern, ["path", "content"], npartitions=3)
    found = {each["path"]: each["content"] for each in bag.compute()}
    with PackedFolder(archive) as folder:
        paths = [path for path in folder.glob(pattern) if folder.is_file(path)]
        expected = [each.tobytes() for each in folder.read(paths)]
    assert len(paths) > 10
    assert found == dict(zip(paths, expected, strict=True))


def test_a_dataset_is_a_dataframe(client: Client, points: Path) -> None:
    frame = adapter.read_dataset(points, npartitions=3)
    assert frame.npartitions == 3
    found = frame.compute()
    assert found.to_dict("records") == [row(number) for number in range(ROWS)]
    assert list(found.index) == list(range(ROWS))
    assert [str(each) for each in found.dtypes] == [str(each) for each in frame.dtypes]
    assert len(frame) == ROWS
    assert frame.loc[777].compute()["text"].tolist() == ["text 777"]
    assert (frame["number"] * 2 + frame.number).sum().compute() == 3 * sum(range(ROWS))


def test_fields_that_are_not_used_are_not_read(
    client: Client, points: Path, tmp_path: Path
) -> None:
    for name, content in files_in(points).items():
        copy = tmp_path / "points" / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(content[:-1] + bytes([content[-1] ^ 1]) if "noise" in name else content)
    frame = adapter.read_dataset(tmp_path / "points", npartitions=2)
    assert frame["number"].sum().compute() == sum(range(ROWS))
    assert len(frame[[]].compute()) == ROWS
    assert frame[["text", "number"]].compute()["text"][5] == "text 5"
    with pytest.raises(SampleChecksumError, match="noise"):
        frame["noise"].compute()


@pytest.mark.parametrize("read", [adapter.read_records, adapter.read_folder, adapter.read_dataset])
def test_nothing_is_an_empty_collection(
    read: Callable[[Path], Any], client: Client, tmp_path: Path
) -> None:
    (tmp_path / "empty").mkdir()
    pack_folder(tmp_path / "empty", tmp_path / "read_folder")
    handmade.write_records(tmp_path / "read_records", [])
    ffrecord.write_dataset(tmp_path / "read_dataset", [], SPEC)
    assert len(read(tmp_path / read.__name__).compute()) == 0


# ---- writing -----------------------------------------------------------------------------------


def test_records_are_written_with_the_bytes_of_one_process(
    client: Client, records: Path, tmp_path: Path
) -> None:
    bag = adapter.read_records(records, npartitions=3)
    sizes = bag.map_partitions(lambda rows: [len(list(rows))]).compute()
    assert sum(sizes) == len(RECORDS)
    report = adapter.write_records(bag, tmp_path / "dicts")
    adapter.write_records(bag.pluck("content"), tmp_path / "bytes")
    adapter.write_records(bag.to_dataframe(), tmp_path / "frame")
    assert (report.shards, report.rows) == (3, len(RECORDS))
    first = 0
    for number, size in enumerate(sizes):
        with FileWriter(tmp_path / "alone") as writer:  # like a task, it knows no number beforehand
            writer.write(RECORDS[first : first + size])
        for target in ("dicts", "bytes", "frame"):
            shard = tmp_path / target / f"PART_{number:05}.ffr"
            assert shard.read_bytes() == (tmp_path / "alone").read_bytes()
        first += size
    with FileReader(tmp_path / "dicts") as reader:
        assert reader.n == len(RECORDS)


def test_a_folder_is_written_with_the_bytes_of_one_process(
    client: Client, archive: Path, tmp_path: Path
) -> None:
    bag = adapter.read_folder(archive, npartitions=3)
    adapter.write_folder(bag, tmp_path / "dask")
    with dask.config.set(scheduler="synchronous"):
        adapter.write_folder(bag, tmp_path / "alone")
    assert files_in(tmp_path / "dask") == files_in(tmp_path / "alone")
    assert sorted(os.listdir(tmp_path)) == ["alone", "dask"]
    require_valid(tmp_path / "dask")
    with PackedFolder(archive) as given, PackedFolder(tmp_path / "dask") as written:
        names = list(given)
        assert sorted(written) == sorted(names)
        for name in names[::500]:
            assert written.read_one(name).tobytes() == given.read_one(name).tobytes()
            was, now = given.stat(name), written.stat(name)
            assert (was.st_mode, was.st_mtime_ns) == (now.st_mode, now.st_mtime_ns)


def test_all_kinds_go_to_a_store_and_back(
    client: Client, records: Path, points: Path, remote: dict[str, Any], tmp_path: Path
) -> None:
    """Only the arguments have the credentials, so they must reach the workers."""
    url = "s3://bucket"
    bag = adapter.read_records(records, npartitions=2)
    adapter.write_records(bag, f"{url}/records", **remote)
    assert adapter.read_records(f"{url}/records", **remote).compute() == bag.compute()
    files = [{"path": f"{number}", "content": b"%d" % number} for number in range(20)]
    adapter.write_folder(dask.bag.from_sequence(files, npartitions=2), f"{url}/folder", **remote)
    found = adapter.read_folder(f"{url}/folder", columns=["path", "content"], **remote).compute()
    assert sorted(found, key=lambda file: int(file["path"])) == files
    adapter.write_dataset(adapter.read_dataset(points), f"{url}/points", SPEC, **remote)
    frame = adapter.read_dataset(f"{url}/points", **remote)
    assert frame.compute().to_dict("records") == [row(number) for number in range(ROWS)]


@pytest.mark.parametrize("kind", ["frame", "bag"])
def test_a_dataset_is_written_with_the_bytes_of_one_process(
    kind: str, client: Client, points: Path, tmp_path: Path
) -> None:
    if kind == "frame":
        frame = adapter.read_dataset(points, npartitions=3)
        frame = frame.repartition(divisions=[*range(0, ROWS, SHARDLEN), ROWS - 1])
        adapter.write_dataset(frame, tmp_path / "out", SPEC)
    else:
        bag = dask.bag.from_sequence(range(ROWS), npartitions=4).map(row)
        adapter.write_dataset(bag, tmp_path / "out", SPEC)
    assert files_in(tmp_path / "out") == files_in(points)
    assert os.listdir(tmp_path) == ["out"]


def unusual(number: int) -> dict[str, Any]:
    return {
        "pixels": np.full((2, 3), number, np.uint8), "boxes": [np.arange(4)] * (number % 3),
        "about": {"number": number, "names": ["a", None]},
    }  # fmt: skip


def test_values_that_arrow_has_no_type_for_are_encoded(client: Client, tmp_path: Path) -> None:
    spec = {"pixels": "array+zstd", "boxes": "array[]", "about": "json"}
    bag = dask.bag.from_sequence(range(10), npartitions=2).map(unusual)
    adapter.write_dataset(bag, tmp_path / "out", spec)
    ffrecord.write_dataset(tmp_path / "alone", map(unusual, range(10)), spec, shardlen=5)
    assert files_in(tmp_path / "out") == files_in(tmp_path / "alone")


def test_the_types_of_a_dataset_follow_from_a_dataframe(client: Client, tmp_path: Path) -> None:
    frame = pd.DataFrame({"number": np.arange(10), "name": [f"name {k}" for k in range(10)]})
    report = adapter.write_dataset(
        dask.dataframe.from_pandas(frame, npartitions=2), tmp_path / "out"
    )
    assert (report.shards, report.rows) == (2, 10)
    with ShardedDatasetReader(tmp_path / "out") as reader:
        assert reader.spec == {"number": "int", "name": "utf8"}
        assert reader[7] == {"number": 7, "name": "name 7"}


def test_partitions_without_rows_make_no_shard(client: Client, tmp_path: Path) -> None:
    bag = dask.bag.from_sequence(range(40), npartitions=4).filter(lambda k: k < 10 or k >= 30)
    report = adapter.write_records(bag.map(lambda k: b"%d" % k), tmp_path / "out")
    assert (report.shards, report.rows) == (2, 20)
    assert sorted(os.listdir(tmp_path / "out")) == ["PART_00000.ffr", "PART_00001.ffr"]


def test_rows_of_a_killed_worker_are_written_again(
    deadly: Client, records: Path, tmp_path: Path
) -> None:
    bag = adapter.read_records(records, npartitions=3)
    with dask.config.set(scheduler="synchronous"):
        adapter.write_records(bag, tmp_path / "alone")
    before = pids(deadly)
    deadly.run(die_after_a_table)
    adapter.write_records(bag, tmp_path / "out")
    deadly.wait_for_workers(2, timeout=PATIENCE)
    assert before - pids(deadly)
    assert files_in(tmp_path / "out") == files_in(tmp_path / "alone")
    assert sorted(os.listdir(tmp_path)) == ["alone", "out"]


# ---- errors ------------------------------------------------------------------------------------


def test_values_of_several_types_are_refused(client: Client, tmp_path: Path) -> None:
    bag = dask.bag.from_sequence([{"x": 1}, {"x": "one"}], npartitions=1)
    with pytest.raises(ConversionError, match="the values of 'x' do not fit into one column"):
        adapter.write_dataset(bag, tmp_path / "out", {"x": "int"})
    with dask.config.set({"dataframe.convert-string": False}):
        frame = dask.dataframe.from_pandas(pd.DataFrame({"x": [1, b"one"]}), npartitions=1)
    with pytest.raises(ConversionError, match=r"do not fit into one column .* column x"):
        adapter.write_dataset(frame, tmp_path / "out", {"x": "int"})
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("number", [1 << 63, -(1 << 63) - 1])
def test_an_int_that_arrow_cannot_hold_is_named(number: int, tmp_path: Path) -> None:
    sink, rows = writing.dataset_sink(tmp_path / "out", {"x": "int"}), [{"x": 1}, {"x": number}]
    with pytest.raises(ConversionError, match="the values of 'x' have an int that does not fit"):
        adapter._write_part(sink, 0, rows, {"x": None})


def test_an_error_about_values_does_not_show_the_password_of_a_url() -> None:
    sink = writing.records_sink("sftp://user:SECRET@host/out", "x")
    with pytest.raises(ConversionError, match="sftp://host/out: the values of 'x'") as caught:
        adapter._write_part(sink, 0, [{"x": 1}, {"x": "one"}], {"x": None})
    assert "SECRET" not in str(caught.value)


def fail_late(number: int) -> bytes:
    if number == 33:
        raise ZeroDivisionError
    return b"%d" % number


def test_after_an_error_nothing_is_left(client: Client, tmp_path: Path) -> None:
    bag = dask.bag.from_sequence(range(40), npartitions=4).map(fail_late)
    with pytest.raises(ZeroDivisionError):
        adapter.write_records(bag, tmp_path / "out")
    assert os.listdir(tmp_path) == []


def test_an_existing_target_is_not_replaced(client: Client, tmp_path: Path) -> None:
    trees.plain_tree(tmp_path / "out", {"mine": b"precious"})
    with pytest.raises(FileExistsError):
        adapter.write_records(dask.bag.from_sequence([b"1"]), tmp_path / "out")
    assert files_in(tmp_path / "out") == {"mine": b"precious"}
    assert os.listdir(tmp_path) == ["out"]


@pytest.mark.parametrize(
    ("write", "match"),
    [
        (lambda out: adapter.write_records([b"1"], out), "cannot write a list; pass a dask.bag"),
        (
            lambda out: adapter.write_dataset(dask.bag.from_sequence([{"x": 1}]), out),
            "pass spec",
        ),
    ],
)
def test_arguments_of_another_type_are_refused(
    write: Callable[[Path], Any], match: str, tmp_path: Path
) -> None:
    with pytest.raises(TypeError, match=match):
        write(tmp_path / "out")
    assert os.listdir(tmp_path) == []


def test_without_dask_the_error_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "ffrecord.cluster.dask")
    monkeypatch.setitem(sys.modules, "dask.dataframe", None)
    with pytest.raises(MissingPackageError, match=r"pip install 'ffrecord\[dask\]'"):
        importlib.import_module("ffrecord.cluster.dask")
