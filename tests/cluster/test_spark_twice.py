"""Spark runs slow tasks twice at once (speculative execution), and one attempt counts."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.sql import SparkSession

from ffrecord import pack_folder
from ffrecord.archive import planned
from ffrecord.cluster.spark import SparkExecutor, register
from tests.support import handmade, spark, trees
from tests.support.executors import files_in

pytestmark = pytest.mark.long  # a cluster of two hosts starts, and Spark waits before it repeats
RECORDS = handmade.random_records([0, 1, 70_000, 4096, 300] * 20, seed=4)


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    folder = tmp_path_factory.mktemp("spark")
    eager = {
        "spark.speculation": "true",
        "spark.speculation.interval": "100ms",
        "spark.speculation.quantile": "0.5",
        "spark.speculation.multiplier": "1",
        "spark.speculation.task.duration.threshold": "1s",  # for stages of one task
    }
    with (
        spark.environment(folder),
        spark.two_hosts(folder) as master,
        spark.session(folder, master, **eager) as session,
    ):
        register(session)
        yield session


def meet(fifo: Path) -> None:
    """Let the first attempt of a task wait until the second one has begun."""
    context = TaskContext.get()
    assert context is not None
    if context.attemptNumber() == 0:
        fifo.read_bytes()
    else:
        fifo.write_bytes(b"")


def slow_first_rows(fifo: Path, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Pass rows on. In the task that has row 0, meet the other attempt after the first rows."""
    for batch in batches:
        yield batch.slice(0, 10)
        if batch["number"][0].as_py() == 0:
            meet(fifo)
        yield batch.slice(10)


def test_a_write_task_that_runs_twice_at_once_changes_nothing(
    session: SparkSession, tmp_path: Path
) -> None:
    records = handmade.write_records(tmp_path / "records.ffr", RECORDS)
    os.mkfifo(tmp_path / "fifo")
    frame = session.read.format("ffrecord").option("partitions", 4).load(str(records))
    slow = frame.mapInArrow(functools.partial(slow_first_rows, tmp_path / "fifo"), frame.schema)
    for name, each in (("twice", slow), ("once", frame)):
        each.write.format("ffrecord").mode("append").save(str(tmp_path / name))
    assert files_in(tmp_path / "twice") == files_in(tmp_path / "once")
    assert len(files_in(tmp_path / "once")) == 4
    assert sorted(os.listdir(tmp_path)) == ["fifo", "once", "records.ffr", "twice"]


write_shard = planned._write_shard


def meet_once(fifo: Path, task: planned.PackTask, path: str) -> Any:
    if task.number == 3:
        Path(path).write_bytes(b"half a shard")
        meet(fifo)
    return write_shard(task, path)


def call_twice(fifo: Path, function: Callable[..., Any], *arguments: Any) -> Any:
    planned._write_shard = functools.partial(meet_once, fifo)
    try:
        return function(*arguments)
    finally:
        planned._write_shard = write_shard


class TwiceExecutor(SparkExecutor):
    """An executor that lets one shard be written twice at once."""

    fifo: Path

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        return super().submit(call_twice, self.fifo, fn, *args, **kwargs)


def test_a_call_that_runs_twice_at_once_changes_nothing(
    session: SparkSession, tmp_path: Path
) -> None:
    tree = trees.plain_tree(
        tmp_path / "tree", {f"{number:03}": trees.content(900, number) for number in range(100)}
    )
    pack_folder(tree, tmp_path / "alone", shard_size="20kB")
    os.mkfifo(tmp_path / "fifo")
    with TwiceExecutor(session) as executor:
        executor.fifo = tmp_path / "fifo"
        pack_folder(tree, tmp_path / "shards", shard_size="20kB", executor=executor)
    assert files_in(tmp_path / "shards") == files_in(tmp_path / "alone")
    assert sorted(os.listdir(tmp_path)) == ["alone", "fifo", "shards", "tree"]
