"""Plans whose target is in a store: the bytes of one process, and no litter, whatever happens."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import BrokenExecutor, ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import fsspec
import obstore
import pytest

from ffrecord import (
    EncodeError,
    FFRecordError,
    FileReader,
    PackedFolder,
    PlanError,
    ShardedDatasetReader,
    UnfinishedError,
    UrlError,
    pack_folder,
    write_dataset,
)
from ffrecord.archive import planned
from ffrecord.archive.pack import PackProgress, plan_pack
from ffrecord.convert import convert
from ffrecord.dataset import planned as planned_dataset
from ffrecord.plan import requests
from ffrecord.plan.requests import Requests
from ffrecord.plan.values import PackPlan, Plan, WritePlan
from ffrecord.plan.work import Status, work_of
from ffrecord.plan.work_prefix import WorkPrefix
from ffrecord.remote import files, parts, retries, uploads
from ffrecord.remote.answers import Place
from tests.remote.buckets import bucket, content, keys, pending
from tests.remote.servers import empty_bucket, variables
from tests.support import handmade, trees
from tests.support.commands import in_a_shell
from tests.support.executors import EXECUTORS, files_in
from tests.support.patience import PATIENCE

PART = 5 << 20  # the shortest that moto takes
SIZE = 20_000  # of a shard
SPEC = {"number": "int", "text": "utf8"}
ROWS = [{"number": row, "text": "text " * (row % 7)} for row in range(31)]


@pytest.fixture
def server() -> str:
    return empty_bucket()


@pytest.fixture(autouse=True)
def state(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Path]:
    """Use short pauses and parts, and check that no local file is left."""
    place = tmp_path_factory.mktemp("state")
    monkeypatch.setattr(retries, "SHORTEST", 0.001)
    monkeypatch.setattr(retries, "LONGEST", 0.01)
    monkeypatch.setattr(parts, "PART", PART)
    (place / "staging").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(place / "staging"))
    monkeypatch.setenv("TMPDIR", str(place / "staging"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(place / "cache"))
    monkeypatch.delenv("FFRECORD_CACHE", raising=False)
    yield place
    assert not os.listdir(place / "staging")
    assert not uploads.leftovers()


@dataclass
class Store:
    """A store with a target in it, and a way to see all of its objects without our own code."""

    target: str
    options: dict[str, Any]
    everything: Callable[[], dict[str, bytes]]
    """Returns all objects beside the target, and those in it, by path."""
    put: Callable[[str, bytes], object]
    remove: Callable[[str], object]
    pending: Callable[[], list[str]] = field(default=list[str])

    def files(self) -> dict[str, bytes]:
        """Return the objects in the target by name; fail if there are others, or pending parts."""
        assert self.pending() == []
        found = self.everything()
        assert all(name.startswith("out/") for name in found), found.keys()
        return {name.removeprefix("out/"): each for name, each in found.items()}


def in_s3(server: str) -> Store:
    options = {
        "access_key_id": "key", "secret_access_key": "SECRET", "endpoint": server,
        "region": "us-east-1",
    }  # fmt: skip

    def everything() -> dict[str, bytes]:
        while True:  # a request that was on its way at a kill may still remove an object
            with contextlib.suppress(FileNotFoundError):
                return {key.removeprefix("top/"): content(server, key) for key in keys(server)}

    return Store(
        "s3://bucket/top/out", {"storage_options": options}, everything,
        lambda name, data: obstore.put(bucket(server), f"top/{name}", data),
        lambda name: obstore.delete(bucket(server), f"top/{name}"),
        lambda: pending(server),
    )  # fmt: skip


def in_fs(protocol: str, top: str) -> Store:
    fs = fsspec.filesystem(protocol)

    def put(name: str, data: bytes) -> None:
        fs.makedirs(f"{top}/{name}".rpartition("/")[0], exist_ok=True)
        fs.pipe_file(f"{top}/{name}", data)

    def everything() -> dict[str, bytes]:
        return {path.removeprefix(f"{top}/"): fs.cat_file(path) for path in fs.find(top)}

    return Store(
        f"{protocol}://{top}/out", {}, everything,
        put,
        lambda name: fs.rm_file(f"{top}/{name}"),
    )  # fmt: skip


@pytest.fixture(params=["s3", "local"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    if request.param == "s3":
        made = in_s3(request.getfixturevalue("server"))
        yield made
        assert made.pending() == []
    else:
        (tmp_path / "store").mkdir()
        yield in_fs(request.param, f"{tmp_path}/store")


@pytest.fixture
def s3(server: str) -> Iterator[Store]:
    made = in_s3(server)
    yield made
    assert made.pending() == []


@pytest.fixture
def memory(tmp_path: Path) -> Store:
    return in_fs("memory", f"{tmp_path}/store")


@pytest.fixture
def environment(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in variables(server).items():
        monkeypatch.setenv(name, value)


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a folder for some ten shards, one of them in several parts."""
    names = {f"{k % 3}/{k:03}": trees.content(1000 + k, k) for k in range(150)}
    names["large"] = trees.content(12 << 20)
    return trees.plain_tree(tmp_path_factory.mktemp("plans") / "tree", names)


@pytest.fixture(scope="module")
def packed(tree: Path) -> dict[str, bytes]:
    pack_folder(tree, tree.with_name("packed"), shard_size=SIZE)
    return files_in(tree.with_name("packed"))


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    names = {f"{k % 3}/{k:02}": trees.content(k * 50, k) for k in range(30)}
    return trees.plain_tree(tmp_path_factory.mktemp("small") / "tree", names)


def run(plan: PackPlan, store: Store, *numbers: int) -> None:
    for number in numbers or range(len(plan.parts)):
        planned.run_task(planned.task_of(plan, number, remote=store.options))  # type: ignore[arg-type]


def commit(plan: PackPlan, store: Store) -> Any:
    """Commit as another process does it, which has only the file of the plan."""
    return planned.commit(PackPlan.from_json(plan.to_json()), remote=store.options)  # type: ignore[arg-type]


def status(plan: PackPlan, store: Store) -> Status:
    return planned.status(plan, store.options)  # type: ignore[arg-type]


def prefix(plan: Plan, store: Store) -> WorkPrefix:
    work = work_of(plan, store.options)  # type: ignore[arg-type]
    assert isinstance(work, WorkPrefix)
    return work


# ---- the same bytes ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("store", "kind"),
    [("s3", "threads"), ("s3", "processes"), ("memory", "threads"), ("local", "threads"),
     ("local", "processes")],  # other processes have their own memory
    indirect=["store"],
)  # fmt: skip
def test_an_executor_packs_into_a_store_as_one_process_into_a_folder(
    kind: str, store: Store, tree: Path, packed: dict[str, bytes], tmp_path: Path
) -> None:
    told: list[PackProgress] = []
    with EXECUTORS[kind]() as executor:
        report = pack_folder(
            tree, store.target, shard_size=SIZE, executor=executor, progress=told.append,
            **store.options,
        )  # fmt: skip
    assert store.files() == packed
    assert (report.files, report.shards) == (151, len(packed) - 1)
    assert (told[-1].files, told[-1].bytes) == (told[-1].total_files, told[-1].total_bytes)
    with PackedFolder(store.target, **store.options) as folder:
        assert bytes(folder.read_one("1/001")) == trees.content(1001, 1)


def test_a_job_array_in_a_shell_packs_into_a_store(
    s3: Store, environment: None, tree: Path, packed: dict[str, bytes], tmp_path: Path
) -> None:
    line = """set -e
    f pack "$1" s3://bucket/top/out --shard-size 2MB --plan "$2/plan.json"
    f pack --task 1 "$2/plan.json"
    ! f pack --commit "$2/plan.json" 2>> "$2/errors"
    f pack --status "$2/plan.json"
    f pack --task 0 "$2/plan.json" & f pack --task 0 "$2/plan.json"; wait
    f pack --commit "$2/plan.json"
    f pack --commit "$2/plan.json"
    f pack --task 0 "$2/plan.json"
    f pack --status "$2/plan.json" --json"""
    ran = in_a_shell(line, tree, tmp_path)
    assert ran.returncode == 0, ran.stderr.decode()
    pack_folder(tree, tmp_path / "alone", shard_size="2MB")
    assert s3.files() == files_in(tmp_path / "alone")
    plan = PackPlan.load(tmp_path / "plan.json")
    assert "SECRET" not in plan.to_json()
    out = ran.stdout.decode()
    assert f"no receipt of {len(plan.parts) - 1} of {len(plan.parts)} tasks" in out
    assert "committed before; task 0 has nothing to do\n" in out
    assert '"is_committed": true' in out


def test_the_store_has_no_credentials_before_the_commit(s3: Store, small: Path) -> None:
    plan = plan_pack(small, s3.target, 4000, **s3.options)
    run(plan, s3)
    for name, data in s3.everything().items():
        assert b"SECRET" not in data, name
    assert "SECRET" not in repr(planned.task_of(plan, 0, remote=s3.options))  # type: ignore[arg-type]
    assert commit(plan, s3) == commit(plan, s3)


@pytest.mark.parametrize("count", [0, 1, 31])
def test_a_dataset_is_written_in_tasks(store: Store, count: int, tmp_path: Path) -> None:
    write_dataset(tmp_path / "alone", ROWS[:count], SPEC, shardlen=4)
    with ThreadPoolExecutor(3) as executor:
        wrote = write_dataset(
            store.target, ROWS[:count], SPEC, shardlen=4, executor=executor, **store.options
        )
    assert wrote == count
    assert store.files() == files_in(tmp_path / "alone")
    with ShardedDatasetReader(store.target, **store.options) as reader:
        assert list(reader[range(count)]) == ROWS[:count]


@pytest.mark.parametrize("target", ["records", "dataset"])
@pytest.mark.parametrize("in_tasks", [True, False])
def test_sources_behind_urls_are_converted_into_a_store(
    s3: Store, environment: None, target: str, in_tasks: bool, tmp_path: Path
) -> None:
    local, remote = [], []
    for number in range(5):
        records = handmade.random_records([10, 2000, 0] * (number + 1), seed=number)
        local.append(handmade.write_records(tmp_path / f"{number}.ffr", records))
        s3.put(f"out/sources/{number}.ffr", local[-1].read_bytes())
        remote.append(f"s3://bucket/top/out/sources/{number}.ffr")
    options: dict[str, Any] = {"target_format": target, "shard_per_source": True}
    due = convert(local, tmp_path / "alone", **options)
    with ProcessPoolExecutor(2) as executor:
        report = convert(
            remote, "s3://bucket/top/out/shards", executor=executor if in_tasks else None, **options
        )
    assert report == due
    found = {name: each for name, each in s3.files().items() if name.startswith("shards/")}
    assert {name.removeprefix("shards/"): each for name, each in found.items()} == files_in(
        tmp_path / "alone"
    )
    assert len(s3.files()) == len(found) + 5
    if target == "records":
        assert FileReader("s3://bucket/top/out/shards/").n == due.written


# ---- before the commit -------------------------------------------------------------------------


def readers(store: Store) -> list[Callable[[], Any]]:
    return [
        lambda: PackedFolder(store.target, **store.options),
        lambda: FileReader(f"{store.target}/", **store.options),
        lambda: ShardedDatasetReader(store.target, **store.options),
    ]


def test_readers_refuse_a_target_before_the_commit(store: Store, small: Path) -> None:
    plan = plan_pack(small, store.target, 4000, **store.options)
    for numbers in ((0,), ()):
        run(plan, store, *numbers)
        for read in readers(store):
            with pytest.raises(UnfinishedError, match="out: not finished: the tasks of a plan"):
                read()
    commit(plan, store)
    with PackedFolder(store.target, **store.options) as folder:
        assert len(folder) == 30


def test_a_single_process_is_told_of_the_plan_that_owns_its_target(
    store: Store, small: Path
) -> None:
    plan = plan_pack(small, store.target, 4000, **store.options)
    with pytest.raises(FileExistsError, match="tasks of a plan write it, and were not committed"):
        pack_folder(small, store.target, shard_size=4000, **store.options)
    prefix(plan, store).discard()


def test_a_failure_leaves_nothing(store: Store, tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [{"x": 1}] * 9
    rows[7] = {"x": "text"}
    with ThreadPoolExecutor(2) as pool, pytest.raises(EncodeError, match="out/000002: datapoint 1"):
        write_dataset(store.target, rows, {"x": "int"}, shardlen=3, executor=pool, **store.options)
    assert store.everything() == {}
    if store.target.startswith("local"):
        assert os.listdir(tmp_path / "store") == []


# ---- tasks that are killed, repeated, doubled or late ------------------------------------------

write_shard = planned._write_shard


def kill_in_part(task: planned.PackTask, path: str) -> Any:
    """Kill this process when the first part of its shard has been sent."""
    whole = parts.Parts.__iter__

    def some(self: parts.Parts) -> Iterator[bytes]:
        for number, part in enumerate(whole(self)):
            if number == 2 and not self.is_single:
                while not pending(os.environ["AWS_ENDPOINT_URL"]):
                    pass  # the upload has begun, in another thread
                os.kill(os.getpid(), signal.SIGKILL)
            yield part

    parts.Parts.__iter__ = some  # type: ignore[method-assign]
    return write_shard(task, path)


def run_killed(plan: PackPlan, number: int) -> None:
    """Run a task in a forked process, which inherits the patches, and is killed."""
    killed = pytest.raises(BrokenExecutor, match="terminated abruptly")
    with ProcessPoolExecutor(1) as executor, killed:
        executor.submit(planned.run_task, planned.task_of(plan, number)).result()


def test_a_killed_task_is_repeated_and_its_parts_are_removed(
    s3: Store, environment: None, tree: Path, packed: dict[str, bytes], state: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    plan = plan_pack(tree, s3.target, SIZE)
    large = max(range(len(plan.parts)), key=lambda number: plan.parts[number].bytes)
    with monkeypatch.context() as patched:
        patched.setattr(planned, "_write_shard", kill_in_part)
        run_killed(plan, large)
    name = f"top/out/{plan.shard_name(large)}"
    assert s3.pending() == [name]
    assert status(plan, s3).missing == list(range(len(plan.parts)))
    run(plan, s3)
    assert s3.pending() == [name]
    commit(plan, s3)
    assert s3.files() == packed
    left = uploads.leftovers()  # the local files of the killed process
    assert [each.name for each in left] == ["s3://bucket/top/out"]
    uploads.abort(left[0])
    assert s3.files() == packed


def test_the_record_of_a_killed_task_removes_its_parts(
    s3: Store, environment: None, tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = plan_pack(tree, s3.target, "100MB")
    monkeypatch.setattr(planned, "_write_shard", kill_in_part)
    run_killed(plan, 0)
    assert s3.pending() != []
    for each in uploads.leftovers():
        uploads.abort(each)
    assert s3.pending() == []
    prefix(plan, s3).discard()
    assert s3.everything() == {}


def test_a_task_that_runs_twice_at_once_changes_nothing(
    store: Store, tree: Path, packed: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = plan_pack(tree, store.target, SIZE, **store.options)
    both = threading.Barrier(2)

    def write(task: planned.PackTask, path: str) -> Any:
        receipt = write_shard(task, path)
        both.wait(PATIENCE)  # both shards are ready before one is put
        return receipt

    with monkeypatch.context() as patched, ThreadPoolExecutor(2) as pool:
        patched.setattr(planned, "_write_shard", write)
        for number in range(len(plan.parts)):
            doubled = [pool.submit(run, plan, store, number) for _ in range(2)]
            errors = [each.exception() for each in doubled]
            assert None in errors, errors
    commit(plan, store)
    assert store.files() == packed


def test_a_task_that_is_run_again_puts_nothing(s3: Store, small: Path) -> None:
    plan = plan_pack(small, s3.target, 4000, **s3.options)
    run(plan, s3)
    before = s3.everything()
    run(plan, s3)
    assert s3.everything() == before
    s3.remove(f".out.work/{plan.key}/receipts/1")
    assert status(plan, s3).missing == [1]
    run(plan, s3, 1)
    assert s3.everything() == before


@pytest.mark.parametrize("step", ["write", "leave"])
def test_a_task_that_ends_after_the_commit_leaves_nothing(
    store: Store, small: Path, tmp_path: Path, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = plan_pack(small, store.target, 4000, **store.options)
    begun, committed = threading.Event(), threading.Event()
    leave = WorkPrefix._leave

    def write(task: planned.PackTask, path: str) -> Any:
        begun.set()
        assert committed.wait(PATIENCE)
        return write_shard(task, path)

    def leave_late(self: WorkPrefix, receipt: Any) -> Any:
        begun.set()
        assert committed.wait(PATIENCE)
        return leave(self, receipt)

    with ThreadPoolExecutor(1) as pool:
        with monkeypatch.context() as patched:
            if step == "write":
                patched.setattr(planned, "_write_shard", write)
            else:
                patched.setattr(WorkPrefix, "_leave", leave_late)
            late = pool.submit(run, plan, store, 1)
            assert begun.wait(PATIENCE)
        run(plan, store)
        commit(plan, store)
        committed.set()
        with pytest.raises(PlanError, match="this plan has ended"):
            late.result()
    assert store.files() == one_process(plan, tmp_path)


# ---- plans that were cancelled -----------------------------------------------------------------


def test_receipts_are_read_a_few_at_a_time(
    memory: Store, small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of many large shards are too long to have the texts of all in memory."""
    monkeypatch.setattr(requests, "AT_ONCE", 2)
    plan = plan_pack(small, memory.target, 4000, **memory.options)
    run(plan, memory)
    work = prefix(plan, memory)
    places = [(work._receipt_place(number), 1 << 20) for number in range(len(plan.parts))]
    assert len(places) > 4
    found, link = work._requests.read_all(places), work._requests._link
    for count in range(1, len(places) + 1):
        text = next(found)
        assert text is not None
        assert f'"task": {count - 1},'.encode() in text
        assert link.sent == min(count + count % 2, len(places))
    prefix(plan, memory).discard()


def one_process(plan: PackPlan, tmp_path: Path, size: int = 4000) -> dict[str, bytes]:
    """Return the files that one process writes for a plan."""
    pack_folder(plan.folder, tmp_path / "alone", shard_size=size)
    return files_in(tmp_path / "alone")


def test_a_commit_removes_what_cancelled_plans_left(
    store: Store, small: Path, tmp_path: Path
) -> None:
    cancelled = plan_pack(small, store.target, 1000, **store.options)
    run(cancelled, store)
    again = plan_pack(small, store.target, 4000, **store.options)
    run(again, store, 0)
    few, many = len(again.parts), len(cancelled.parts)
    assert few < many
    found = status(again, store)
    assert found.missing == list(range(1, few))
    assert found.litter == [
        prefix(cancelled, store).place,
        *(f"{store.target}/{cancelled.shard_name(number)}" for number in range(few, many)),
    ]
    with pytest.raises(PlanError, match="this plan has ended"):
        run(cancelled, store, 0)
    with pytest.raises(PlanError, match="this plan has ended"):
        commit(cancelled, store)
    assert status(cancelled, store).has_ended
    run(again, store)
    commit(again, store)
    assert store.files() == one_process(again, tmp_path)
    assert status(again, store) == Status(few, [], True, [])
    assert status(cancelled, store).has_ended
    if store.target.startswith("local"):
        assert os.listdir(tmp_path / "store") == ["out"]


@pytest.mark.parametrize("protocol", ["local", "memory"])
def test_a_plan_that_is_discarded_leaves_the_objects_of_one_that_begins_meanwhile(
    protocol: str, small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = in_fs(protocol, f"{tmp_path}/store")
    plan = plan_pack(small, store.target, 4000, **store.options)
    run(plan, store, 0)
    real = Requests.remove_folders

    def remove_folders(self: Requests, folder: Place) -> None:
        if folder.key.endswith("out"):
            store.put("out/a/new", b"new")
        real(self, folder)

    monkeypatch.setattr(Requests, "remove_folders", remove_folders)
    work = prefix(plan, store)
    work.discard()
    assert store.files() == {"a/new": b"new"}
    store.remove("out/a/new")
    real(work._requests, work._target)
    fs = fsspec.filesystem(protocol)
    fs.invalidate_cache()
    assert fs.ls(f"{tmp_path}/store") == []


@pytest.mark.parametrize("is_there", [True, False])
def test_a_late_task_of_an_ended_plan_replaces_no_shard(
    s3: Store, small: Path, is_there: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The new plan comes and goes between the last look of the late task and its request."""
    old = plan_pack(small, s3.target, 3000, **s3.options)
    if is_there:
        s3.put(f"out/{old.shard_name(1)}", b"of an earlier plan")
    require_own, calls = WorkPrefix._require_own, 0
    made: list[PackPlan] = []

    def late(self: WorkPrefix) -> None:
        nonlocal calls
        require_own(self)
        calls += self._plan.key == old.key
        if calls == 2 and not made:  # the call before the put
            made.append(plan_pack(small, s3.target, 4000, **s3.options))
            run(made[0], s3)
            commit(made[0], s3)

    monkeypatch.setattr(WorkPrefix, "_require_own", late)
    with pytest.raises(PlanError, match="this plan has ended"):
        run(old, s3, 1)
    assert s3.files() == one_process(made[0], tmp_path)


def test_a_late_upload_in_parts_of_an_ended_plan_is_aborted(
    s3: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("old", "new"):
        trees.plain_tree(tmp_path / name, {"large": trees.content(12 << 20, ord(name[0]))})
    begun, committed = threading.Event(), threading.Event()
    whole = parts.Parts.__iter__

    def slow(self: parts.Parts) -> Iterator[bytes]:
        is_late = not (self.is_single or begun.is_set())
        for number, part in enumerate(whole(self)):
            if is_late and number == 2:
                begun.set()
                assert committed.wait(PATIENCE)
            yield part

    old = plan_pack(tmp_path / "old", s3.target, "100MB", **s3.options)
    monkeypatch.setattr(parts.Parts, "__iter__", slow)
    with ThreadPoolExecutor(1) as pool:
        late = pool.submit(run, old, s3, 0)
        assert begun.wait(PATIENCE)
        new = plan_pack(tmp_path / "new", s3.target, "100MB", **s3.options)
        run(new, s3)
        commit(new, s3)
        committed.set()
        with pytest.raises(PlanError, match="this plan has ended"):
            late.result()
    assert s3.files() == one_process(new, tmp_path, 100_000_000)


# ---- the commit --------------------------------------------------------------------------------

REQUESTS = ("get", "get_unless", "names", "version", "is_empty", "objects", "put", "delete",
            "remove_folders")  # fmt: skip


class Killed(BaseException):
    """Ends a process at a request. The library must not catch it."""


class Mortal:
    """Counts requests. From the request `stop` on, no request is sent or answered."""

    def __init__(self, stop: int | None = None, when: str = "") -> None:
        self.requests = 0
        self.under_way = 0
        self._stop = stop
        self._when = when
        self._is_dead = False

    def before(self) -> int:
        """Return the number of the request that is to be sent."""
        self._is_dead |= self._when == "before" and self.requests == self._stop
        self._live()
        self.requests += 1
        return self.requests - 1

    def after(self, number: int) -> None:
        self._is_dead |= self._when == "after" and number == self._stop
        self._live()

    def landed(self, request: asyncio.Future[Any]) -> None:
        self.under_way -= 1
        if not request.cancelled():
            request.exception()

    def _live(self) -> None:
        if self._is_dead:
            raise Killed

    def within(self, patched: pytest.MonkeyPatch) -> None:
        """Let all requests count."""
        real = files.Access.place

        def place(access: files.Access, path: str) -> Place:
            found = real(access, path)
            return Place(MortalStore(found.store, self), found.key, found.shown)

        patched.setattr(files.Access, "place", place)


class MortalStore:
    """A store whose requests count."""

    def __init__(self, store: Any, mortal: Mortal) -> None:
        self._store = store
        self._mortal = mortal

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._store, name)
        if name not in REQUESTS:
            return attribute

        async def request(*arguments: Any, **options: Any) -> Any:
            number = self._mortal.before()
            sent = asyncio.ensure_future(attribute(*arguments, **options))
            self._mortal.under_way += 1
            sent.add_done_callback(self._mortal.landed)
            answer = await asyncio.shield(sent)  # a request that was sent arrives after a kill, too
            self._mortal.after(number)
            return answer

        return request

    def unfinished(self, key: str) -> Any:
        self._mortal.before()
        return self._store.unfinished(key)


def prepared(kind: str, store: Store, small: Path, tmp_path: Path) -> tuple[Any, dict[str, bytes]]:
    """Run all tasks of a plan; return its commit, and the files that are due."""
    if kind == "packed":
        plan = plan_pack(small, store.target, 2000, **store.options)
        run(plan, store)
        return lambda: commit(plan, store), one_process(plan, tmp_path, 2000)
    if kind == "sink":
        pa = pytest.importorskip("pyarrow")
        from ffrecord.cluster import writing

        there, here = (
            writing.folder_sink(target, **options).begin()
            for target, options in ((store.target, store.options), (tmp_path / "alone", {}))
        )
        receipts, local = (
            [sink.write(k, [pa.table({"path": [f"{k}/a"], "content": [b"1"]})]) for k in range(9)]
            for sink in (there, here)
        )
        here.commit(local)
        return lambda: there.commit(receipts), files_in(tmp_path / "alone")
    rows = planned_dataset.begin_plan(store.target, len(ROWS), SPEC, 3, store.options)  # type: ignore[arg-type]
    for number, part in enumerate(rows.parts):
        task = planned_dataset.task_of(rows, number, remote=store.options)  # type: ignore[arg-type]
        planned_dataset.write_rows(task, (ROWS[row] for row in part.rows))
    write_dataset(tmp_path / "alone", ROWS, SPEC, shardlen=3)
    text = rows.to_json()
    return (
        lambda: planned_dataset.commit(WritePlan.from_json(text), store.options),  # type: ignore[arg-type]
        files_in(tmp_path / "alone"),
    )


@pytest.mark.parametrize(
    ("place", "kind", "count"),
    [
        ("memory", "packed", 50),
        ("memory", "dataset", 50),
        ("memory", "sink", 50),
        ("s3", "packed", 12),
    ],
)
def test_a_commit_is_killed_at_any_request_and_repeated(
    place: str, kind: str, count: int, small: Path, tmp_path: Path,
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    store: Store = request.getfixturevalue(place)
    finish, due = prepared(kind, store, small, tmp_path)
    if place == "s3":
        leave_parts(store)
    before = store.everything()
    mortal = Mortal()
    with monkeypatch.context() as patched:
        mortal.within(patched)
        finish()
    assert store.files() == due
    moments = [(stop, when) for stop in range(mortal.requests) for when in ("before", "after")]
    assert len(moments) >= count
    seen = set()
    for number in range(count):
        restore(store, before)
        for step in (number, number * 7 % count):  # the repeated commit is killed, too
            mortal = Mortal(*moments[step * (len(moments) - 1) // (count - 1)])
            with monkeypatch.context() as patched:
                mortal.within(patched)
                with contextlib.suppress(Killed):
                    finish()
                while mortal.under_way:
                    time.sleep(0.001)
            there = store.everything()
            is_whole = {n.removeprefix("out/"): each for n, each in there.items()
                        if n.startswith("out/")} == due  # fmt: skip
            seen.add(is_whole)
            if is_whole:
                continue
            for read in readers(store):
                with pytest.raises(UnfinishedError):
                    read()
        finish()
        assert store.files() == due
    assert seen == {True, False}


def leave_parts(store: Store) -> None:
    """Leave an unfinished upload in the target, as a killed task does."""
    s3 = bucket(store.options["storage_options"]["endpoint"])
    writer = obstore.open_writer(s3, "top/out/PART_00001.ffr", buffer_size=PART)
    writer.write(bytes(2 * PART + 1))
    writer.flush()
    while not store.pending():
        pass
    kept.append(writer)


kept: list[Any] = []  # a writer that is freed would complete its upload


def restore(store: Store, before: Mapping[str, bytes]) -> None:
    for name in store.everything():
        store.remove(name)
    for name, data in before.items():
        store.put(name, data)


def test_two_commits_at_once_publish_once(store: Store, small: Path, tmp_path: Path) -> None:
    plan = plan_pack(small, store.target, 4000, **store.options)
    run(plan, store)
    with ThreadPoolExecutor(4) as pool:
        ends = [pool.submit(commit, plan, store) for _ in range(4)]
        errors = [end.exception() for end in ends]
    assert None in errors
    assert all(error is None or isinstance(error, (FFRecordError, OSError)) for error in errors)
    assert store.files() == one_process(plan, tmp_path)


def test_a_commit_without_all_receipts_names_the_missing_tasks(memory: Store, small: Path) -> None:
    plan = plan_pack(small, memory.target, 4000, **memory.options)
    run(plan, memory, 0)
    with pytest.raises(PlanError, match="5 of 6 tasks have no receipt: tasks 1-5; "):
        commit(plan, memory)
    for number in range(1, 5):
        run(plan, memory, number)
    with pytest.raises(PlanError, match="1 of 6 tasks has no receipt: task 5; run it, then commit"):
        commit(plan, memory)


DAMAGES: dict[str, Callable[[str, bytes], bytes | None]] = {
    "lost": lambda name, data: None,
    "cut": lambda name, data: data[:-1],
    "exchanged": lambda name, data: bytes(len(data)),
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("which", ["shard", "receipt"])
def test_a_commit_refuses_shards_that_are_not_those_of_their_receipts(
    memory: Store, small: Path, damage: str, which: str
) -> None:
    plan = plan_pack(small, memory.target, 4000, **memory.options)
    run(plan, memory)
    name = f"out/{plan.shard_name(2)}" if which == "shard" else f".out.work/{plan.key}/receipts/2"
    data = DAMAGES[damage](name, memory.everything()[name])
    memory.remove(name)
    if data is not None:
        memory.put(name, data)
    with pytest.raises(PlanError, match="receipt"):
        commit(plan, memory)
    with pytest.raises(UnfinishedError):
        PackedFolder(memory.target)
    receipt = f".out.work/{plan.key}/receipts/2"
    if receipt in memory.everything():
        memory.remove(receipt)
    run(plan, memory)
    commit(plan, memory)
    with PackedFolder(memory.target) as folder:
        assert len(folder) == 30


# ---- refusals ----------------------------------------------------------------------------------


def test_objects_of_others_are_neither_mixed_in_nor_removed(store: Store, small: Path) -> None:
    store.put("out/mine", b"precious")
    with pytest.raises(FileExistsError, match="already has objects"):
        plan_pack(small, store.target, 4000, **store.options)
    store.remove("out/mine")
    plan = plan_pack(small, store.target, 4000, **store.options)
    store.put("out/mine", b"precious")
    run(plan, store)
    with pytest.raises(FileExistsError, match="not part of any plan"):
        commit(plan, store)
    prefix(plan, store).discard()
    assert store.everything() == {"out/mine": b"precious"}


@pytest.mark.parametrize(
    ("target", "options", "match"),
    [
        ("https://host/out?sig=SECRET", {}, "web servers are not written to"),
        ("out", {"fs": fsspec.filesystem("http")}, "web servers are not written to"),
        ("s3://bucket", {"storage_options": {"region": "x"}}, "is a whole bucket"),
        ("s3://bucket/", {"storage_options": {"region": "x"}}, "is a whole bucket"),
    ],
)
def test_targets_that_cannot_work_are_refused_with_the_reason(
    target: str, options: dict[str, Any], match: str, small: Path
) -> None:
    with ThreadPoolExecutor(1) as executor:
        for write in (
            lambda: pack_folder(small, target, shard_size=4000, executor=executor, **options),
            lambda: write_dataset(target, ROWS, SPEC, executor=executor, **options),
        ):
            with pytest.raises(UrlError, match=match) as caught:
                write()
            assert "SECRET" not in str(caught.value)


def test_a_plan_in_a_file_has_a_url_without_credentials(small: Path, tmp_path: Path) -> None:
    with pytest.raises(UrlError, match="keeps neither a store nor a file system"):
        plan_pack(small, "out", 4000, fs=fsspec.filesystem("memory"))
    plan = PackPlan("sftp://user:SECRET@host/out", "0a", (), "/in")
    with pytest.raises(UrlError, match="sftp://host/out: this URL has a user") as caught:
        plan.save(tmp_path / "plan.json")
    assert "SECRET" not in str(caught.value)
    assert os.listdir(tmp_path) == []
    with pytest.raises(PlanError, match="not a plan"):
        PackPlan.from_json(PackPlan("key", "0a", (), "/in").to_json())


@pytest.mark.parametrize("kind", ["store", "fs"])
def test_stores_and_file_systems_are_targets(kind: str, s3: Store, tmp_path: Path) -> None:
    target, options = "top/out", dict[str, Any]()
    if kind == "store":
        options = {"store": bucket(s3.options["storage_options"]["endpoint"])}
    else:
        (tmp_path / "store").mkdir()
        target, options = f"{tmp_path}/store/out", {"fs": fsspec.filesystem("local")}
    write_dataset(tmp_path / "alone", ROWS, SPEC, shardlen=4)
    with ProcessPoolExecutor(2) as executor:  # the tasks are pickled
        write_dataset(target, ROWS, SPEC, shardlen=4, executor=executor, **options)
    found = s3.files() if kind == "store" else files_in(tmp_path / "store" / "out")
    assert found == files_in(tmp_path / "alone")
