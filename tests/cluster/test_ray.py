"""Ray Data and the executor over Ray's tasks, on a cluster of two nodes on this machine."""

from __future__ import annotations

import importlib
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import BrokenExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import ray
import ray.data
from ray.cluster_utils import Cluster
from ray.data.expressions import col

from ffrecord import (
    FFRecordError,
    FileReader,
    FileWriter,
    MissingPackageError,
    PackedFolder,
    SampleChecksumError,
    ShardedDatasetReader,
    pack_folder,
    write_dataset,
)
from ffrecord.archive import planned
from ffrecord.archive.pack import plan_pack
from ffrecord.cluster import ray as with_ray
from ffrecord.cluster import reading, writing
from ffrecord.cluster.ray import RayExecutor
from ffrecord.plan.work import Receipt
from tests.cluster.conftest import FILES, SHARD_SIZE
from tests.support import trees
from tests.support.executors import files_in
from tests.support.packing import require_valid
from tests.support.patience import PATIENCE

pytestmark = [
    # Ray Data makes its settings from defaults that it has deprecated itself.
    pytest.mark.filterwarnings(r"ignore::DeprecationWarning:ray\."),
    pytest.mark.filterwarnings(r"ignore::FutureWarning:ray\."),
    # Ray ends the processes of a node, but does not wait for all of them.
    pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning"),
]

ROWS = 300
NODE = {"num_cpus": 1, "node_ip_address": "127.0.0.1", "object_store_memory": 150 << 20}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Start two nodes with one processor each."""
    # A killed node is refused connections at once; a slow one has 10 seconds to answer.
    health = {"health_check_period_ms": 1000, "health_check_failure_threshold": 3}
    cluster = Cluster(
        initialize_head=True,
        head_node_args={**NODE, "include_dashboard": False, "_system_config": health},
    )
    try:
        cluster.add_node(**NODE)
        ray.init(address=cluster.address, log_to_driver=False, logging_level="warning")
        ray.data.DataContext.get_current().enable_progress_bars = False
        yield cluster
    finally:
        ray.shutdown()
        cluster.shutdown()


@pytest.fixture(scope="module")
def top(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make records, a packed folder in shards, and a dataset in shards."""
    top = tmp_path_factory.mktemp("sources")
    contents = [trees.content(row * 700 % 70_000, row) for row in range(ROWS)]
    (top / "records").mkdir()
    for file in range(2):
        with FileWriter(top / "records" / f"{file}.ffr") as writer:
            writer.write(contents[file::2])
    files = {f"{row % 3}/{row:03}": each for row, each in enumerate(contents)}
    pack_folder(trees.plain_tree(top / "tree", files), top / "packed", shard_size="2MB")
    datapoints = [
        {"n": row, "text": "é" * (row % 9), "words": ["a"] * (row % 4), "raw": each}
        for row, each in enumerate(contents)
    ]
    spec = {"n": "int", "text": "utf8", "words": "utf8[]", "raw": "bytes"}
    write_dataset(top / "dataset", datapoints, spec, shardlen=77)
    return top


def records_in(place: Path | str, **remote: Any) -> list[bytes]:
    with FileReader(place, **remote) as reader:
        return [each.tobytes() for each in reader]


def packed_in(place: Path | str, **remote: Any) -> dict[str, tuple[bytes, int, int]]:
    require_valid(place, **remote)
    with PackedFolder(place, **remote) as folder:
        return {
            path: (folder.read_one(path).tobytes(), folder.stat(path).st_mode,
                   folder.stat(path).st_mtime_ns)
            for path in folder
        }  # fmt: skip


def datapoints_in(place: Path | str, **remote: Any) -> list[dict[str, Any]]:
    with ShardedDatasetReader(place, **remote) as reader:
        return sorted(reader, key=lambda datapoint: datapoint["n"])


KINDS: dict[str, tuple[str, Callable[..., Any], Any, Any]] = {
    "records": (
        "records", lambda place, **remote: sorted(records_in(place, **remote)),
        with_ray.read_records, with_ray.write_records,
    ),
    "folder": ("packed", packed_in, with_ray.read_folder, with_ray.write_folder),
    "dataset": ("dataset", datapoints_in, with_ray.read_dataset, with_ray.write_dataset),
}  # fmt: skip


# ---- reading and writing -----------------------------------------------------------------------


def test_records_are_read_as_by_the_reader(cluster: Cluster, top: Path) -> None:
    rows = with_ray.read_records(top / "records").take_all()
    found = {row["number"]: row["content"] for row in rows}
    assert [found[number] for number in range(ROWS)] == records_in(top / "records")


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_read_and_written_again_is_the_same(
    kind: str, cluster: Cluster, top: Path, tmp_path: Path
) -> None:
    name, found, read, write = KINDS[kind]
    report = write(read(top / name, override_num_blocks=5), tmp_path / "again")
    assert found(tmp_path / "again") == found(top / name)
    assert (report.rows, report.target) == (ROWS, str(tmp_path / "again"))
    assert os.listdir(tmp_path) == ["again"]
    sink = getattr(writing, f"{kind}_sink")(tmp_path / "alone").begin()
    tasks = enumerate(getattr(reading, kind)(top / name).tasks(5))
    sink.commit([sink.write(number, task.batches()) for number, task in tasks])
    assert files_in(tmp_path / "again") == files_in(tmp_path / "alone")


@pytest.mark.parametrize("kind", KINDS)
def test_targets_and_sources_in_a_store_take_options(
    kind: str, cluster: Cluster, top: Path, server: str, remote: dict[str, Any]
) -> None:
    name, found, read, write = KINDS[kind]
    url = "s3://bucket/top/again"
    write(read(top / name, override_num_blocks=3), url, **remote)
    assert found(url, **remote) == found(top / name)
    rows = read(url, override_num_blocks=2, **remote)
    assert rows.select_columns(rows.schema().names[:1]).count() == ROWS
    with pytest.raises(FileExistsError, match="again"):
        write(rows, url, **remote)


def test_rows_of_an_engines_own_are_written(cluster: Cluster, tmp_path: Path) -> None:
    rows = ray.data.range(50, override_num_blocks=4).map_batches(
        lambda batch: {"path": [f"f/{n}" for n in batch["id"]], "content": batch["id"].astype("S")}
    )
    report = with_ray.write_folder(rows, tmp_path / "packed")
    found = {path: each[0] for path, each in packed_in(tmp_path / "packed").items()}
    assert found == {f"f/{n}": b"%d" % n for n in range(50)}
    assert report.rows == 50
    tensors = ray.data.range_tensor(20, shape=(2, 3)).map(
        lambda row: {"n": int(row["data"][0, 0]), "data": row["data"]}
    )
    with_ray.write_dataset(tensors, tmp_path / "dataset")
    with ShardedDatasetReader(tmp_path / "dataset") as reader:
        assert reader.spec == {"n": "int", "data": "array"}
        assert all((each["data"] == each["n"]).all() for each in reader)
        assert reader[0]["data"].shape == (2, 3)
    none = ray.data.range(5).filter(expr=col("id") > 9).map(lambda row: {"content": b""})
    with_ray.write_records(none, tmp_path / "empty")
    assert records_in(tmp_path / "empty") == []


def test_columns_and_rows_that_are_left_out_are_not_read(
    cluster: Cluster, top: Path, tmp_path: Path
) -> None:
    with FileWriter(tmp_path / "r.ffr") as writer:
        writer.write([b"%d" % row for row in range(100)])
    with open(tmp_path / "r.ffr", "r+b") as file:  # damage record 0
        with FileReader(tmp_path / "r.ffr") as reader:
            file.seek(int(reader.get_offsets(0)[0]))
        file.write(b"x")
    whole = with_ray.read_records(tmp_path / "r.ffr")
    assert whole.select_columns(["number"]).count() == 100
    some = whole.filter(expr=(col("number") >= 7) & (col("number") < 9))
    assert [row["content"] for row in some.take_all()] == [b"7", b"8"]
    with pytest.raises(SampleChecksumError, match=r"r\.ffr: record 0"):
        whole.take_all()
    files = with_ray.read_folder(top / "packed")
    assert files.filter(expr=col("path").is_in(["0/003", "1/004"])).count() == 2
    assert files.filter(expr=(col("size") > 50_000) & (col("mode") > 0)).count() == sum(
        len(each[0]) > 50_000 for each in packed_in(top / "packed").values()
    )
    words = with_ray.read_dataset(top / "dataset").select_columns(["words"])
    assert words.schema().names == ["words"]


def test_a_read_without_contents_has_tasks_enough(
    cluster: Cluster, top: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each task has the paths of its files, so no task must have all of them."""
    monkeypatch.setattr("ffrecord.cluster.folder.TASK_FILES", ROWS // 5)
    assert with_ray._task_count(reading.folder(top / "packed", columns=["path"])) == 5
    assert with_ray._task_count(reading.folder(top / "packed", "no/*")) == 1


@pytest.mark.parametrize("kind", KINDS)
def test_a_failed_write_leaves_nothing(
    kind: str, cluster: Cluster, top: Path, tmp_path: Path
) -> None:
    name, _, read, write = KINDS[kind]

    def fail(batch: pa.Table) -> pa.Table:
        raise ValueError("these rows are wrong")

    with pytest.raises(Exception, match="these rows are wrong"):
        write(read(top / name).map_batches(fail, batch_format="pyarrow"), tmp_path / "again")
    assert os.listdir(tmp_path) == []
    (tmp_path / "again").mkdir()
    (tmp_path / "again" / "mine").touch()
    with pytest.raises(FileExistsError):
        write(read(top / name), tmp_path / "again")
    assert files_in(tmp_path) == {"again/mine": b""}


# ---- nodes and workers that are killed ---------------------------------------------------------


class KillOnce:
    """Kill the worker of a call, or its whole node, the first time that a call is on that node.

    Calls on other nodes wait for that.
    """

    def __init__(self, flag: Path, node: str, *, whole: bool) -> None:
        self._flag, self._node, self._whole = flag, node, whole

    def __call__(self, batch: pa.Table) -> pa.Table:
        if ray.get_runtime_context().get_node_id() != self._node:
            deadline = time.monotonic() + PATIENCE
            while not self._flag.exists() and time.monotonic() < deadline:
                time.sleep(0.02)  # another process makes the file, then dies
        elif not self._flag.exists():
            self._flag.touch()
            if self._whole:
                os.kill(os.getppid(), signal.SIGKILL)
            os.kill(os.getpid(), signal.SIGKILL)
        return batch

    def pack(self, task: Any) -> Any:
        """Run a task of a plan. The first one on the node leaves half a shard."""
        write = planned._write_shard

        def write_or_die(task: Any, path: str) -> Any:
            if not self._flag.exists():
                Path(path).write_bytes(b"half a shard")
            self(pa.table({}))
            return write(task, path)

        planned._write_shard = write_or_die
        try:
            return planned.run_task(task)
        finally:
            planned._write_shard = write


KILLS = [
    ("worker", "records"), ("worker", "folder"), ("worker", "dataset"), ("node", "folder"),
]  # fmt: skip
"""A new node takes seconds, and is the same for all kinds."""


@pytest.fixture
def killer(request: pytest.FixtureRequest, cluster: Cluster, tmp_path: Path) -> Iterator[KillOnce]:
    """Kill a worker of the second node; or add a third node and kill it."""
    if request.param == "worker":
        (node,) = cluster.worker_nodes
        yield KillOnce(tmp_path / "flag", node.node_id, whole=False)
        return
    node = cluster.add_node(**NODE)
    cluster.wait_for_nodes(PATIENCE)
    yield KillOnce(tmp_path / "flag", node.node_id, whole=True)
    cluster.remove_node(node, allow_graceful=False)


@pytest.mark.parametrize(("killer", "kind"), KILLS, indirect=["killer"])
def test_rows_of_a_killed_node_are_written_again(
    kind: str, killer: KillOnce, top: Path, tmp_path: Path
) -> None:
    name, found, read, write = KINDS[kind]
    rows = read(top / name, override_num_blocks=9).map_batches(killer, batch_format="pyarrow")
    write(rows, tmp_path / "again")
    assert found(tmp_path / "again") == found(top / name)
    assert sorted(os.listdir(tmp_path)) == ["again", "flag"]


@pytest.mark.parametrize("killer", ["worker", "node"], indirect=True)
def test_a_folder_is_packed_with_the_same_bytes_although_a_node_is_killed(
    killer: KillOnce, top: Path, tmp_path: Path
) -> None:
    plan = plan_pack(top / "tree", tmp_path / "packed", 500_000)
    with RayExecutor() as executor:
        tasks = [planned.task_of(plan, number) for number in range(len(plan.parts))]
        list(executor.map(killer.pack, tasks))
    planned.commit(plan)
    pack_folder(top / "tree", tmp_path / "alone", shard_size=500_000)
    assert files_in(tmp_path / "packed") == files_in(tmp_path / "alone")
    assert sorted(os.listdir(tmp_path)) == ["alone", "flag", "packed"]


# ---- the executor ------------------------------------------------------------------------------


def test_the_executor_packs_the_bytes_of_one_process(
    cluster: Cluster, many: Path, alone: dict[str, bytes], tmp_path: Path
) -> None:
    with RayExecutor() as executor:
        report = pack_folder(many, tmp_path / "ray", shard_size=SHARD_SIZE, executor=executor)
        datapoints = [{"n": row, "text": str(row)} for row in range(500)]
        write_dataset(tmp_path / "d", datapoints, shardlen=90, executor=executor)
    write_dataset(tmp_path / "d-alone", datapoints, shardlen=90)
    assert report.files + report.hard_links == FILES
    assert files_in(tmp_path / "ray") == alone
    assert files_in(tmp_path / "d") == files_in(tmp_path / "d-alone")
    assert sorted(os.listdir(tmp_path)) == ["d", "d-alone", "ray"]


def pack_with_another(fifo: Path, waits: bool, task: planned.PackTask) -> Receipt:
    """Run a task of a plan; in the middle, meet the other call that runs it."""
    write_shard = planned._write_shard

    def write(task: planned.PackTask, path: str) -> Receipt:
        receipt = write_shard(task, path)
        if waits:
            fifo.read_bytes()
        else:
            fifo.write_bytes(b"")
        return receipt

    planned._write_shard = write
    try:
        return planned.run_task(task)
    finally:
        planned._write_shard = write_shard


def test_a_task_that_runs_twice_at_once_changes_nothing(
    cluster: Cluster, top: Path, tmp_path: Path
) -> None:
    plan = plan_pack(top / "tree", tmp_path / "packed", 1_000_000)
    tasks = [planned.task_of(plan, number) for number in range(len(plan.parts))]
    os.mkfifo(tmp_path / "fifo")
    with RayExecutor() as executor:
        both = [
            executor.submit(pack_with_another, tmp_path / "fifo", waits, tasks[1])
            for waits in (True, False)
        ]
        one, two = (each.result(PATIENCE) for each in both)
        assert one.attempt != two.attempt
        list(executor.map(planned.run_task, tasks))
    planned.commit(plan)
    pack_folder(top / "tree", tmp_path / "alone", shard_size=1_000_000)
    assert files_in(tmp_path / "packed") == files_in(tmp_path / "alone")
    assert sorted(os.listdir(tmp_path)) == ["alone", "fifo", "packed"]


def _end(number: int) -> None:
    os.kill(os.getpid(), number)


def _work_for_ever(flag: Path) -> None:
    flag.touch()
    while True:  # an interrupt comes between two steps of Python
        time.sleep(0.02)


def test_errors_of_a_call_are_those_that_it_raised(cluster: Cluster, tmp_path: Path) -> None:
    with RayExecutor(retries=0) as executor:
        assert executor.submit(divmod, 7, 2).result() == (3, 1)
        assert isinstance(executor.submit(int, "x").exception(), ValueError)
        missing = executor.submit(FileReader, tmp_path / "no").exception()
        assert isinstance(missing, FileNotFoundError)
        with pytest.raises(BrokenExecutor, match="a worker of Ray was killed"):
            executor.submit(_end, signal.SIGKILL).result()
    with pytest.raises(RuntimeError, match="was shut down"):
        executor.submit(int, "1")


def test_a_killed_worker_without_retries_is_an_error_that_leaves_nothing(
    cluster: Cluster, top: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with RayExecutor(retries=0) as executor:
        monkeypatch.setattr(planned, "run_task", _kill_worker)
        with pytest.raises(FFRecordError, match="a worker of the executor ended early"):
            pack_folder(top / "tree", tmp_path / "packed", shard_size="1MB", executor=executor)
    assert os.listdir(tmp_path) == []


def _kill_worker(task: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_cancel_interrupts_a_call(cluster: Cluster, tmp_path: Path) -> None:
    with RayExecutor() as executor:
        future = executor.submit(_work_for_ever, tmp_path / "flag")
        deadline = time.monotonic() + PATIENCE
        while not (tmp_path / "flag").exists() and time.monotonic() < deadline:
            time.sleep(0.02)  # another process makes the file
        assert not future.cancel()
        assert future.exception(PATIENCE) is not None
        assert executor.submit(int, "1").result() == 1


def test_a_missing_ray_is_an_error_that_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "ffrecord.cluster.ray")
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingPackageError, match=r"pip install 'ffrecord\[ray\]'"):
        importlib.import_module("ffrecord.cluster.ray")
