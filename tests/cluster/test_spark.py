"""Spark with two executors: the bytes of one process, whatever happens to the executors."""

from __future__ import annotations

import functools
import importlib
import json
import os
import re
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import BrokenExecutor, Future
from pathlib import Path
from typing import Any

import obstore
import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import (
    BinaryType,
    DataType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from ffrecord import (
    DatasetWriter,
    FFRecordError,
    FileReader,
    FileWriter,
    MissingPackageError,
    PackedFolder,
    SampleChecksumError,
    ShardedDatasetReader,
    ShardedDatasetWriter,
    SpecError,
    pack_folder,
    write_dataset,
)
from ffrecord.archive import planned
from ffrecord.cluster import reading
from ffrecord.cluster.spark import FFRecordDataSource, SparkExecutor, register
from ffrecord.format.index import INDEX_NAME
from ffrecord.format.records import part_name
from tests.cluster.conftest import SHARD_SIZE
from tests.remote.buckets import bucket
from tests.support import handmade, spark, trees
from tests.support.executors import files_in
from tests.support.packing import contents, require_valid

RECORDS = handmade.random_records([0, 1, 70_000, 4096, 300] * 200, seed=3)
SPEC = {"number": "int", "text": "utf8", "noise": "bytes", "scores": "float[]", "facts": "json"}
ROWS = 1000


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    folder = tmp_path_factory.mktemp("spark")
    with spark.environment(folder), spark.session(folder) as session:
        register(session)
        yield session


@pytest.fixture(scope="module")
def archive(many: Path, alone: dict[str, bytes]) -> Path:
    """The folder of many files, packed in this process."""
    assert alone
    return many.with_name("alone")


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return handmade.write_records(tmp_path_factory.mktemp("records") / "records.ffr", RECORDS)


def datapoint(number: int) -> dict[str, Any]:
    return {
        "number": number, "text": f"text {number}", "noise": trees.content(number % 900, number),
        "scores": [number / 2] * (number % 4), "facts": {"odd": number % 2 == 1},
    }  # fmt: skip


@pytest.fixture(scope="module")
def points(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("points") / "points"
    with ShardedDatasetWriter(path, SPEC, shardlen=300) as writer:
        for number in range(ROWS):
            writer.append(datapoint(number))
    return path


def load(session: SparkSession, path: Path, **options: Any) -> DataFrame:
    return session.read.format("ffrecord").options(**options).load(str(path))


def table(source: reading.Source) -> pa.Table:
    """Read all rows in this process."""
    batches = (batch for task in source.tasks() for batch in task.batches())
    return pa.Table.from_batches(batches, source.schema)


def tasks(frame: DataFrame) -> int:
    """Return how many tasks Spark plans for a query."""
    return int(frame.rdd.getNumPartitions())


# ---- the executor ------------------------------------------------------------------------------


class Points:
    """A dataset whose datapoints are made in the task."""

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, number: int) -> dict[str, Any]:
        return datapoint(number)


def test_its_executor_writes_the_dataset_of_one_process(
    session: SparkSession, points: Path, tmp_path: Path
) -> None:
    with SparkExecutor(session) as executor:
        write_dataset(tmp_path / "points", Points(), SPEC, shardlen=300, executor=executor)
    assert files_in(tmp_path / "points") == files_in(points)


def test_an_error_of_a_call_is_the_error_of_its_future(
    session: SparkSession, tmp_path: Path
) -> None:
    tree = trees.plain_tree(tmp_path / "tree", {"file": b"content"})
    (tree / "loop").symlink_to(".")
    with SparkExecutor(session) as executor:
        assert executor.submit(divmod, 7, 2).result() == (3, 1)
        assert isinstance(executor.submit(divmod, 7, 0).exception(), ZeroDivisionError)
        with pytest.raises(OSError, match="leads to a folder") as caught:
            pack_folder(tree, tmp_path / "x", shard_size=1, dereference=True, executor=executor)
    assert caught.value.filename == str(tree / "loop")
    assert os.listdir(tmp_path) == ["tree"]


def end_worker(task: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_worker_that_is_killed_each_time_is_an_error_that_leaves_nothing(
    session: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = trees.plain_tree(tmp_path / "tree", {"file": b"content"})
    monkeypatch.setattr(planned, "run_task", end_worker)
    with SparkExecutor(session) as executor:
        with pytest.raises(BrokenExecutor, match="Spark could not run a task"):
            executor.submit(end_worker, None).result()
        with pytest.raises(FFRecordError, match="a worker of the executor ended early"):
            pack_folder(tree, tmp_path / "x", shard_size=1, executor=executor)
    assert os.listdir(tmp_path) == ["tree"]


def executor_of_this_task() -> int:
    """Return the process of Spark's executor, which started Python's processes."""
    pid = os.getpid()
    while Path(f"/proc/{pid}/comm").read_text() != "java\n":
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return pid


write_shard = planned._write_shard


def end_once(flag: Path, task: planned.PackTask, path: str) -> Any:
    """Kill the executor in the middle of the first attempt to write shard number 3."""
    if task.number == 3:
        try:
            flag.touch(exist_ok=False)
        except FileExistsError:
            return write_shard(task, path)
        Path(path).write_bytes(b"half a shard")
        os.kill(executor_of_this_task(), signal.SIGKILL)
        signal.pause()  # Spark ends this process
    return write_shard(task, path)


def call_with(write: Callable[..., Any], function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function. If it writes a shard, let another function do that."""
    planned._write_shard = write
    try:
        return function(*arguments)
    finally:
        planned._write_shard = write_shard


class KillingExecutor(SparkExecutor):
    """An executor whose calls kill an executor of Spark once."""

    flag: Path

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        write = functools.partial(end_once, self.flag)
        return super().submit(call_with, write, fn, *args, **kwargs)


def test_its_executor_packs_the_bytes_of_one_process_though_one_of_sparks_is_killed(
    session: SparkSession, many: Path, alone: dict[str, bytes], tmp_path: Path
) -> None:
    with KillingExecutor(session) as executor:
        executor.flag = tmp_path / "flag"
        report = pack_folder(many, tmp_path / "shards", shard_size=SHARD_SIZE, executor=executor)
    assert report.shards == len(alone) - 1
    assert files_in(tmp_path / "shards") == alone
    assert sorted(os.listdir(tmp_path)) == ["flag", "shards"]


def meet(fifo: Path, waits: bool, task: planned.PackTask, path: str) -> Any:
    """Write a shard; in the middle of shard number 3, meet the other call that writes it."""
    if task.number == 3:
        Path(path).write_bytes(b"half a shard")
        if waits:
            fifo.read_bytes()
        else:
            fifo.write_bytes(b"")
    return write_shard(task, path)


class DoublingExecutor(SparkExecutor):
    """An executor that runs each call twice at once, as two jobs."""

    fifo: Path

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        one, other = (functools.partial(meet, self.fifo, waits) for waits in (True, False))
        super().submit(call_with, one, fn, *args, **kwargs)
        return super().submit(call_with, other, fn, *args, **kwargs)


def test_calls_that_run_twice_at_once_change_nothing(session: SparkSession, tmp_path: Path) -> None:
    tree = trees.plain_tree(
        tmp_path / "tree", {f"{number:03}": trees.content(900, number) for number in range(60)}
    )
    pack_folder(tree, tmp_path / "alone", shard_size="10kB")
    os.mkfifo(tmp_path / "fifo")
    with DoublingExecutor(session) as executor:
        executor.fifo = tmp_path / "fifo"
        report = pack_folder(tree, tmp_path / "shards", shard_size="10kB", executor=executor)
    assert report.shards > 4
    assert files_in(tmp_path / "shards") == files_in(tmp_path / "alone")
    assert sorted(os.listdir(tmp_path)) == ["alone", "fifo", "shards", "tree"]


# ---- reading -----------------------------------------------------------------------------------


def test_records_are_read_byte_for_byte(session: SparkSession, records: Path) -> None:
    frame = load(session, records, partitions=3)
    assert tasks(frame) == 3
    assert [(row.number, bytes(row.content)) for row in frame.collect()] == list(enumerate(RECORDS))


def test_files_of_an_archive_are_read_byte_for_byte(
    session: SparkSession, archive: Path, many: Path
) -> None:
    frame = load(session, archive)
    assert frame.columns == ["path", "size", "mode", "mtime", "content"]
    rows = {row.path: row for row in frame.collect()}
    expected = contents(archive)
    assert {path: bytes(row.content) for path, row in rows.items()} == expected
    for path in ("0/00/00000", "6/76/00176"):
        status = (many / path).stat()
        row = rows[path]
        assert (row.size, row.mode) == (status.st_size, status.st_mode & 0o7777)
        assert row.mtime.timestamp() == pytest.approx(status.st_mtime_ns // 1000 / 1e6, abs=1e-6)


def test_datapoints_are_read_with_their_fields(session: SparkSession, points: Path) -> None:
    frame = load(session, points)
    assert frame.dtypes == [
        ("number", "bigint"), ("text", "string"), ("noise", "binary"),
        ("scores", "array<double>"), ("facts", "string"),
    ]  # fmt: skip
    with ShardedDatasetReader(points) as reader:
        for found, expected in zip(frame.collect(), reader, strict=True):
            assert found.number == expected["number"]
            assert found.text == expected["text"]
            assert bytes(found.noise) == expected["noise"]
            assert found.scores == list(expected["scores"])


def test_objects_of_a_store_are_read_and_written_with_its_options(
    session: SparkSession, records: Path, points: Path, server: str, remote: dict[str, Any]
) -> None:
    for top in (records, points):
        for path in [top] if top.is_file() else [p for p in top.rglob("*") if p.is_file()]:
            obstore.put(bucket(server), str(path.relative_to(top.parent)), path)
    options = json.dumps(remote["storage_options"])
    reader = session.read.format("ffrecord").option("partitions", 3)
    reader = reader.option("storage_options", options)
    rows = reader.load("s3://bucket/records.ffr").where("number < 20").collect()
    assert [(row.number, bytes(row.content)) for row in rows] == list(enumerate(RECORDS[:20]))
    frame = reader.load("s3://bucket/points")
    save(frame, "s3://bucket/copy", storage_options=options)
    assert table(reading.dataset("s3://bucket/copy", **remote)) == table(reading.dataset(points))


# ---- reading less ------------------------------------------------------------------------------


def damage(path: Path, spared: range = range(0)) -> None:
    """Change a byte of every record that has one, except some, so that reading it is an error."""
    with FileReader(path) as reader:
        begins = reader.get_offsets(0).tolist()
        sizes = reader.record_sizes().tolist()
        firsts = [record[:1].tobytes() for record in reader]
    with open(path, "r+b") as file:
        for number in set(range(len(sizes))).difference(spared):
            if sizes[number]:
                os.pwrite(file.fileno(), bytes([firsts[number][0] ^ 1]), begins[number])


def damaged_copy(source: Path, tmp_path: Path, spared: range = range(0)) -> Path:
    """Copy record files, or a dataset, and damage all contents except the index."""
    copy = tmp_path / "damaged"
    if source.is_dir():
        shutil.copytree(source, copy)
    else:
        shutil.copy(source, copy)
    for path in sorted(copy.rglob("*.ffr")) if source.is_dir() else [copy]:
        if path.name != INDEX_NAME:
            damage(path, spared)
    return copy


def test_a_filter_on_the_number_reads_only_these_records(
    session: SparkSession, records: Path, tmp_path: Path
) -> None:
    damaged = load(session, damaged_copy(records, tmp_path, range(500, 520)), partitions=10)
    some = damaged.where("number >= 500 AND number < 520 AND length(content) > 0")
    assert (tasks(damaged), tasks(damaged.where("number = 502"))) == (10, 1)
    expected = [(number, RECORDS[number]) for number in range(500, 520) if RECORDS[number]]
    assert [(row.number, bytes(row.content)) for row in some.collect()] == expected
    with pytest.raises(
        PySparkException, match=r"SampleChecksumError: .*damaged: record \d+ is damaged"
    ):
        damaged.collect()
    assert damaged.where("number = 5000").collect() == []


def test_a_filter_on_the_path_reads_only_these_files(
    session: SparkSession, archive: Path, tmp_path: Path
) -> None:
    whole = contents(archive)
    damaged = damaged_copy(archive, tmp_path, range(3))
    with PackedFolder(damaged) as folder:
        first = list(folder.glob("0/00/*"))[:3]
    frame = load(session, damaged)
    conditions = (
        frame.path.isin(first),
        frame.path.startswith("0/00/") & (frame.path <= first[2]),
    )
    rows = frame.where(conditions[0]).union(frame.where(conditions[1])).collect()
    assert [(row.path, bytes(row.content)) for row in rows] == 2 * [(p, whole[p]) for p in first]
    with pytest.raises(SampleChecksumError, match="is damaged"):
        table(reading.folder(damaged, "0/00/*"))


def test_columns_that_nobody_selects_are_not_read(
    session: SparkSession, archive: Path, points: Path, tmp_path: Path
) -> None:
    """Spark does not tell a Python source the columns of a query. The schema tells them."""
    sizes = {path: len(content) for path, content in contents(archive).items()}
    copy = damaged_copy(archive, tmp_path)
    frame = load(session, copy, columns="size, path")
    assert frame.columns == ["size", "path"]
    assert frame.where("size > 300").count() == sum(size > 300 for size in sizes.values())
    frame = session.read.format("ffrecord").schema("size LONG, path STRING").load(str(copy))
    assert {row.path: row.size for row in frame.collect()} == sizes
    with pytest.raises(PySparkException, match="is damaged"):
        load(session, copy).select("path").collect()
    shutil.rmtree(copy)

    dataset = tmp_path / "points"
    shutil.copytree(points, dataset)
    for path in dataset.rglob("noise.ffr"):
        damage(path)
    numbers = load(session, dataset, columns="number").collect()
    assert [row.number for row in numbers] == list(range(ROWS))
    with pytest.raises(SampleChecksumError, match=r"noise\.ffr: record \d+ is damaged"):
        table(reading.dataset(dataset))


def test_a_pattern_selects_files(session: SparkSession, archive: Path) -> None:
    expected = {path for path in contents(archive) if path.startswith("3/03/")}
    some = load(session, archive, pattern="3/03/*", columns="path")
    none = load(session, archive, pattern="nothing", columns="path")
    assert {row.path for row in some.union(none).collect()} == expected
    source = FFRecordDataSource({"path": str(archive), "pattern": "nothing"})
    assert list(source.reader(source.schema()).read(None)) == []  # as Spark 4.0 calls it


def test_without_pushdown_spark_filters_by_itself(session: SparkSession, records: Path) -> None:
    session.dataSource.register(FFRecordDataSource)
    session.conf.set("spark.sql.python.filterPushdown.enabled", "false")
    try:
        rows = load(session, records, partitions=4).where("number = 7").collect()
    finally:
        register(session)
    assert [(row.number, bytes(row.content)) for row in rows] == [(7, RECORDS[7])]


# ---- writing -----------------------------------------------------------------------------------


def save(frame: DataFrame, target: Path | str, mode: str = "append", **options: Any) -> None:
    frame.write.format("ffrecord").mode(mode).options(**options).save(str(target))


def record_shards(source: reading.Source, count: int, folder: Path) -> dict[str, bytes]:
    """Write the contents of each partition in this process; return the bytes of the shards."""
    folder.mkdir()
    for number, task in enumerate(source.tasks(count)):
        with FileWriter(folder / part_name(number)) as writer:
            for batch in task.batches():
                writer.write([content.as_buffer() for content in batch["content"]])
    return files_in(folder)


def test_records_are_written_with_the_bytes_of_one_process(
    session: SparkSession, records: Path, tmp_path: Path
) -> None:
    save(load(session, records, partitions=3), tmp_path / "copy")
    assert os.listdir(tmp_path) == ["copy"]
    expected = record_shards(reading.records(records), 3, tmp_path / "expected")
    assert files_in(tmp_path / "copy") == expected
    with FileReader(tmp_path / "copy") as reader:
        assert [record.tobytes() for record in reader] == RECORDS


def test_partitions_without_rows_write_no_shard(
    session: SparkSession, records: Path, tmp_path: Path
) -> None:
    frame = load(session, records, partitions=5).where("number % 1000 IN (1, 402, 999)")
    assert tasks(frame) == 5
    save(frame, tmp_path / "copy", "overwrite")
    with FileReader(tmp_path / "copy") as reader:
        assert [record.tobytes() for record in reader] == [RECORDS[k] for k in (1, 402, 999)]
    assert sorted(os.listdir(tmp_path / "copy")) == [part_name(number) for number in range(3)]


def test_files_are_written_with_the_contents_and_attributes_of_the_source(
    session: SparkSession, archive: Path, tmp_path: Path
) -> None:
    frame = load(session, archive, partitions=4)
    save(frame, tmp_path / "copy")
    assert os.listdir(tmp_path) == ["copy"]
    require_valid(tmp_path / "copy")
    assert contents(tmp_path / "copy") == contents(archive)
    columns = ["path", "size", "mode", "mtime"]
    copy, whole = (
        table(reading.folder(path, columns=columns)).sort_by("path")
        for path in (tmp_path / "copy", archive)
    )
    of_spark = whole.schema.set(3, pa.field("mtime", pa.timestamp("us", "UTC")))
    assert copy == whole.cast(of_spark, safe=False).cast(whole.schema)
    shards = record_shards(reading.folder(archive), 4, tmp_path / "expected")
    assert {**files_in(tmp_path / "copy"), **shards} == files_in(tmp_path / "copy")


def test_a_dataset_is_written_with_the_bytes_of_one_process(
    session: SparkSession, points: Path, tmp_path: Path
) -> None:
    save(load(session, points, partitions=3), tmp_path / "copy")
    assert os.listdir(tmp_path) == ["copy"]
    first = 0
    for number, task in enumerate(reading.dataset(points).tasks(3)):
        with DatasetWriter(tmp_path / "expected", SPEC) as writer:
            for row in range(first, first + task.rows):
                writer.append(datapoint(row))
        assert files_in(tmp_path / "copy" / f"{number:06}") == files_in(tmp_path / "expected")
        shutil.rmtree(tmp_path / "expected")
        first += task.rows
    assert (first, number) == (ROWS, 2)


def test_a_spec_sets_the_types_of_fields(session: SparkSession, tmp_path: Path) -> None:
    frame = session.range(5).selectExpr("id", "concat('[', id, ']') AS facts")
    save(frame.coalesce(1), tmp_path / "made", spec=json.dumps({"id": "int", "facts": "json"}))
    with ShardedDatasetReader(tmp_path / "made") as reader:
        assert list(reader) == [{"id": number, "facts": [number]} for number in range(5)]


# ---- failures ----------------------------------------------------------------------------------


def end_executor(flag: Path, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Pass batches on; after the first one of all tasks, kill the executor."""
    for batch in batches:
        yield from (batch.slice(row, 1) for row in range(batch.num_rows))
        try:
            flag.touch(exist_ok=False)
        except FileExistsError:
            continue
        os.kill(executor_of_this_task(), signal.SIGKILL)
        signal.pause()


def test_an_executor_killed_while_it_writes_changes_nothing(
    session: SparkSession, records: Path, tmp_path: Path
) -> None:
    frame = load(session, records, partitions=4)
    passed = frame.mapInArrow(functools.partial(end_executor, tmp_path / "flag"), frame.schema)
    save(passed, tmp_path / "copy")
    assert sorted(os.listdir(tmp_path)) == ["copy", "flag"]
    expected = record_shards(reading.records(records), 4, tmp_path / "expected")
    assert files_in(tmp_path / "copy") == expected


def fail_at_the_end(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield batch
        if 999 in batch["number"].to_pylist():
            raise ValueError("no more rows")


def test_a_failing_write_leaves_nothing(
    session: SparkSession, records: Path, tmp_path: Path
) -> None:
    frame = load(session, records, partitions=4)
    with pytest.raises(PySparkException, match="no more rows"):
        save(frame.mapInArrow(fail_at_the_end, frame.schema), tmp_path / "copy")
    assert os.listdir(tmp_path) == []


def test_sparks_default_mode_is_refused_by_spark(
    session: SparkSession, records: Path, tmp_path: Path
) -> None:
    with pytest.raises(PySparkException, match="Append"):
        load(session, records).write.format("ffrecord").save(str(tmp_path / "x"))
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("package", ["pyspark", "pyarrow"])
def test_missing_packages_are_named_with_the_extra(
    package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.startswith("ffrecord.cluster")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingPackageError, match=r"pip install 'ffrecord\[spark\]'"):
        importlib.import_module("ffrecord.cluster.spark")


# ---- options: no query is needed to check them ---------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"colour": "red"}, "ffrecord has no option 'colour' here; there are cache, "),
        ({"format": "tar"}, "the option 'format' is 'tar'; choose one of records, folder"),
        ({"partitions": "many"}, "the option 'partitions' cannot be 'many'"),
        ({"storage_options": "{"}, "the option 'storage_options' cannot be '{'"),
        ({"storage_options": "[1]"}, "'storage_options' cannot be '[1]': pass a JSON object"),
        ({"paths": '"a.ffr"'}, """'paths' cannot be '"a.ffr"': pass a JSON list of paths"""),
        ({"paths": "[1]"}, "'paths' cannot be '[1]': pass a JSON list of paths"),
        ({"pattern": "*.jpg"}, "pattern is for packed folders; remove this option"),
        ({"columns": "number,size"}, "no column 'size'; its columns are number, content"),
        ({"path": "", "paths": "[]"}, "no path was given; pass one to load() or save()"),
    ],
)
def test_wrong_options_for_reading_are_named(
    options: dict[str, str], message: str, records: Path
) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        FFRecordDataSource({"path": str(records), **options}).schema()


@pytest.mark.parametrize(
    ("name", "kind", "message"),
    [
        ("size", LongType(), "there is no column 'size'; there are number, content"),
        ("number", StringType(), "the column 'number' is bigint, not string"),
    ],
)
def test_a_schema_that_does_not_fit_is_an_error(
    name: str, kind: DataType, message: str, records: Path
) -> None:
    with pytest.raises(ValueError, match=message):
        FFRecordDataSource({"path": str(records)}).reader(StructType().add(name, kind))


@pytest.mark.parametrize(
    ("columns", "options", "message"),
    [
        ({"id": LongType()}, {"pattern": "*"}, "ffrecord has no option 'pattern' here; there are "),
        ({"id": LongType()}, {"format": "records"}, "has no place for the columns id; drop them"),
        (
            {"path": StringType(), "content": BinaryType(), "id": LongType()}, {},
            "has no place for the columns id; drop them",
        ),
        ({"id": LongType()}, {"spec": "7"}, "the option 'spec' cannot be '7': pass a JSON object"),
        ({"content": StringType()}, {"spec": "{}"}, "spec is for datasets; remove this option"),
        ({"t": TimestampType()}, {}, "the column 't' has the type timestamp[us, tz=UTC]"),
    ],
)  # fmt: skip
def test_wrong_options_for_writing_are_named(
    columns: dict[str, DataType], options: dict[str, str], message: str, tmp_path: Path
) -> None:
    schema = StructType([StructField(name, kind) for name, kind in columns.items()])
    with pytest.raises((ValueError, SpecError)) as caught:
        FFRecordDataSource({"path": str(tmp_path / "x"), **options}).writer(schema, False)
    assert message in str(caught.value)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_target_that_exists_is_not_touched(overwrite: bool, tmp_path: Path) -> None:
    """Spark passes False for the mode append, and True for overwrite."""
    trees.plain_tree(tmp_path / "mine", {"mine": b"precious"})
    schema = StructType().add("content", BinaryType())
    with pytest.raises(FileExistsError, match=r"already exists\. The modes append and overwrite"):
        FFRecordDataSource({"path": str(tmp_path / "mine")}).writer(schema, overwrite)
    assert files_in(tmp_path) == {"mine/mine": b"precious"}


def test_local_paths_may_be_urls(records: Path) -> None:
    for path in (f"file:{records}", f"file://{records}"):
        assert FFRecordDataSource({"path": path}).schema().names == ["number", "content"]
