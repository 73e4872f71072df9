"""Writing to buckets: whole or not at all, the index last, and nothing left after a failure."""

from __future__ import annotations

import io
import itertools
import json
import os
import re
import shlex
import signal
import stat
import subprocess
import sys
import time
import traceback
import urllib.request
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import botocore.auth  # type: ignore[import-untyped]
import botocore.awsrequest  # type: ignore[import-untyped]
import botocore.credentials  # type: ignore[import-untyped]
import fsspec
import obstore
import pytest
from obstore.store import S3Store
from upath import UPath

import ffrecord
from ffrecord import (
    DatasetReader,
    DatasetWriter,
    FFRecordError,
    FileReader,
    FileWriter,
    PackedFolder,
    ShardedDatasetReader,
    ShardedDatasetWriter,
    UploadError,
    UrlError,
    cli,
    pack_folder,
    write_dataset,
)
from ffrecord.atomic import locks
from ffrecord.convert import convert
from ffrecord.records.dump import dump
from ffrecord.remote import multipart, parts, retries, sending, uploads
from tests.remote.buckets import bucket, content, keys, pending
from tests.remote.proxy import Proxy, Request, proxy
from tests.remote.servers import empty_bucket, variables
from tests.support import archives, trees
from tests.support.commands import SYSTEM, in_a_process
from tests.support.forks import forked
from tests.support.patience import PATIENCE

PART = 5 << 20  # the shortest that moto takes
FILES = {"a": b"first", "d/b": trees.content(300_000, 1), "d/large": trees.content(13 << 20, 2)}
ROWS = [{"n": n, "text": f"row {n}"} for n in range(10)]


@pytest.fixture(scope="module")
def running() -> Iterator[tuple[str, Proxy]]:
    url = empty_bucket()
    with proxy(url) as between:
        yield url, between


@pytest.fixture
def through(running: tuple[str, Proxy]) -> Iterator[Proxy]:
    """Yield the proxy in front of an empty bucket."""
    url, between = running
    between.renew()
    empty_bucket()
    yield between
    between.renew()
    assert not pending(url), "parts are left"


@pytest.fixture
def server(running: tuple[str, Proxy], through: Proxy) -> str:
    return running[0]


@pytest.fixture(autouse=True)
def state(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """Use short pauses and parts, and check that no local file is left."""
    monkeypatch.setattr(retries, "SHORTEST", 0.001)
    monkeypatch.setattr(retries, "LONGEST", 0.01)
    monkeypatch.setattr(parts, "PART", PART)
    (tmp_path / "staging").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "staging"))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "staging"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv("FFRECORD_CACHE", raising=False)
    yield tmp_path
    assert not os.listdir(tmp_path / "staging")
    assert not uploads.leftovers()


@pytest.fixture
def environment(through: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in variables(through.url).items():
        monkeypatch.setenv(name, value)


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trees.plain_tree(tmp_path_factory.mktemp("upload") / "top", FILES)


def options(through: Proxy) -> dict[str, Any]:
    return {"storage_options": {
        "access_key_id": "key", "secret_access_key": "SECRET", "endpoint": through.url,
        "region": "us-east-1",
    }}  # fmt: skip


# ---- all doors -----------------------------------------------------------------------------------


def test_a_packed_folder_has_the_bytes_of_a_local_one(
    server: str, through: Proxy, tree: Path, tmp_path: Path
) -> None:
    seen = []
    report = pack_folder(
        tree, "s3://bucket/x/tree.ffr", progress=lambda now: seen.append((now.sent, now.to_send)),
        **options(through),
    )  # fmt: skip
    archives.pack(tree, tmp_path / "local.ffr")
    local = (tmp_path / "local.ffr").read_bytes()
    assert content(server, "x/tree.ffr") == local
    assert report.files == len(FILES)
    assert seen[-1] == (len(local), len(local))
    assert sum("partNumber" in each.path for each in through.requests) == -(-len(local) // PART)
    with PackedFolder("s3://bucket/x/tree.ffr", **options(through)) as folder:
        assert bytes(folder.read_one("d/large")) == FILES["d/large"]


def test_shards_have_the_bytes_of_local_ones_and_the_index_is_put_last(
    server: str, through: Proxy, tree: Path, tmp_path: Path
) -> None:
    pack_folder(tree, "s3://bucket/shards/", shard_size="1MB", **options(through))
    archives.pack(tree, tmp_path / "shards", shard_size="1MB")
    local = {path.name: path.read_bytes() for path in (tmp_path / "shards").iterdir()}
    assert {key.removeprefix("shards/") for key in keys(server)} == set(local)
    for name, expected in local.items():
        assert content(server, f"shards/{name}") == expected
    completing = [
        urlsplit(each.path).path for each in through.requests
        if (each.method == "POST" and "uploadId" in each.path)
        or (each.method == "PUT" and "partNumber" not in each.path)
    ]  # fmt: skip
    assert len(completing) == len(local)
    assert completing[-1] == "/bucket/shards/index.ffr"
    with PackedFolder("s3://bucket/shards", **options(through)) as folder:
        assert bytes(folder.read_one("d/b")) == FILES["d/b"]


def test_records_are_written_and_replaced(server: str, through: Proxy) -> None:
    for records in ([b"one", b"", b"three" * 1000], [b"x" * (12 << 20)] * 2, []):
        with FileWriter("s3://bucket/r.ffr", **options(through)) as writer:
            writer.write(records)
            assert keys(server) in ([], ["r.ffr"])
        with FileReader("s3://bucket/r.ffr", **options(through)) as reader:
            assert [bytes(each) for each in reader.read(range(reader.n))] == records


def test_a_dataset_is_complete_when_its_spec_appears(server: str, through: Proxy) -> None:
    assert write_dataset("s3://bucket/points", ROWS, progress=False, **options(through)) == 10
    puts = [each.path for each in through.requests if each.method == "PUT"]
    assert puts[-1] == "/bucket/points/spec.json"
    with DatasetReader("s3://bucket/points", **options(through)) as reader:
        assert [reader[i] for i in range(10)] == ROWS


def test_shards_of_a_dataset_are_written(server: str, through: Proxy) -> None:
    spec = {"n": "int", "text": "utf8"}
    with ShardedDatasetWriter("s3://bucket/many", spec, shardlen=4, **options(through)) as writer:
        for row in ROWS:
            writer.append(row)
    with ShardedDatasetReader("s3://bucket/many", **options(through)) as reader:
        assert reader.shards == 3
        assert [reader[i] for i in range(10)] == ROWS


@pytest.mark.parametrize("nfiles", [1, 3])
def test_dump_writes_one_file_or_several(server: str, through: Proxy, nfiles: int) -> None:
    records = [b"%d" % n for n in range(9)]
    dump(records, "s3://bucket/dumped", nfiles, max_workers=1, **options(through))
    with FileReader("s3://bucket/dumped", **options(through)) as reader:
        assert [bytes(each) for each in reader.read(range(9))] == records


@pytest.mark.parametrize(
    ("target", "is_read_by"),
    [
        ("out.ffr", lambda url, given: len(PackedFolder(url, **given)) == 3),
        ("out.tar", None),
        ("rows", lambda url, given: len(DatasetReader(url, **given)) == 3),
    ],
)
def test_convert_writes_to_a_url(
    server: str, through: Proxy, tree: Path, tmp_path: Path, target: str,
    is_read_by: Callable[[str, Any], bool] | None,
) -> None:  # fmt: skip
    source: Path = tree
    if target == "rows":
        write_dataset(tmp_path / "source", ROWS[:3], progress=False)
        source = tmp_path / "source"
    report = convert(source, f"s3://bucket/{target}", **options(through))
    assert report.written == 3
    if is_read_by is not None:
        assert is_read_by(f"s3://bucket/{target}", options(through))
    else:
        convert(source, tmp_path / target)
        assert content(server, target) == (tmp_path / target).read_bytes()
    with pytest.raises(FileExistsError):
        convert(source, f"s3://bucket/{target}", **options(through))


@pytest.mark.parametrize("kind", ["store", "prefix", "upath", "memory", "local", "local fs"])
def test_stores_file_systems_and_upaths_are_targets(
    server: str, through: Proxy, environment: None, tmp_path: Path, kind: str
) -> None:
    path: Any = f"{tmp_path}/sub/k.ffr"
    given: dict[str, Any] = {}
    if kind in ("store", "prefix"):
        prefix = "pre/fix" if kind == "prefix" else None
        store = S3Store("bucket", prefix=prefix, client_options={"allow_http": True})
        path, given = "k.ffr", {"store": store}
    elif kind == "upath":
        path = UPath("memory://bucket/u.ffr", marker=1)
    elif kind == "memory":
        path = "memory://bucket/m.ffr"
    elif kind == "local":
        path = f"local://{tmp_path}/sub/k.ffr"
    else:
        given = {"fs": fsspec.filesystem("local")}
    for records in ([b"a", b"b" * (11 << 20)], [b"second"]):
        with FileWriter(path, **given) as writer:
            writer.write(records)
        with FileReader(path, **given) as reader:
            assert [bytes(each) for each in reader.read(range(reader.n))] == records
    if kind == "prefix":
        assert keys(server) == ["pre/fix/k.ffr"]
    if "local" in kind:
        assert os.listdir(tmp_path / "sub") == ["k.ffr"]


def test_a_dataset_in_a_file_system_of_fsspec(tmp_path: Path) -> None:
    for path, given in ((f"memory://set{tmp_path}", {}), (f"{tmp_path}/set", "local")):
        fs = {"fs": fsspec.filesystem(given)} if isinstance(given, str) else {}
        write_dataset(path, ROWS, progress=False, **fs)
        with DatasetReader(path, **fs) as reader:
            assert reader[3] == ROWS[3]
        with pytest.raises(FileExistsError, match="already has objects"):
            DatasetWriter(path, {"n": "int"}, **fs)


# ---- refusals --------------------------------------------------------------------------------


def test_a_prefix_that_is_not_empty_is_refused_before_anything_is_read(
    server: str, through: Proxy, tmp_path: Path
) -> None:
    obstore.put(bucket(server), "full/x", b"")
    given = options(through)
    for write in (
        lambda: pack_folder(tmp_path, "s3://bucket/full", shard_size="1GB", **given),
        lambda: DatasetWriter("s3://bucket/full/", {"n": "int"}, **given),
        lambda: dump([b""] * 4, "s3://bucket/full", 2, **given),
    ):
        with pytest.raises(FileExistsError, match="already has objects") as caught:
            write()
        assert caught.value.filename == "s3://bucket/full"
    DatasetWriter("s3://bucket/ful", {"n": "int"}, **given).discard()
    assert keys(server) == ["full/x"]


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (lambda: FileWriter("s3://b/a.ffr", append=True), "append=True needs a local file"),
        (lambda: FileWriter("s3://b/a.ffr", resumable=True), "resumable=True needs a local file"),
        (lambda: DatasetWriter("s3://b/a", {"n": "int"}, append=True), "append=True needs"),
        (lambda: ShardedDatasetWriter("s3://b/a", {"n": "int"}, append=True), "append=True needs"),
        (lambda: FileWriter("https://host/a.ffr?sig=SECRET"), "web servers are not written to"),
        (lambda: FileWriter("a", fs=fsspec.filesystem("http")), "web servers are not written to"),
        (lambda: FileWriter("s3://b/folder/"), "names a folder"),
        (lambda: convert(os.curdir, "s3://b/a", target_format="folder"), "have no modes"),
        (lambda: convert(os.curdir, "s3://b/a.bag", drop_names=True), "bag-single"),
    ],
)
def test_targets_that_cannot_work_are_refused_with_the_reason(
    write: Callable[[], Any], message: str
) -> None:
    with pytest.raises(UrlError, match=message) as caught:
        write()
    assert "SECRET" not in str(caught.value)


def test_options_for_urls_are_refused_for_local_targets(tmp_path: Path) -> None:
    given: dict[str, Any] = {"storage_options": {"a": 1}}
    for write in (
        lambda: FileWriter(tmp_path / "a", **given),
        lambda: DatasetWriter(tmp_path / "a", {"n": "int"}, **given),
        lambda: ShardedDatasetWriter(tmp_path / "a", {"n": "int"}, **given),
        lambda: pack_folder(tmp_path, tmp_path / "a", **given),
        lambda: dump([], tmp_path / "a", 1, **given),
        lambda: convert(tmp_path, tmp_path / "a.tar", **given),
    ):
        with pytest.raises(ValueError, match="storage_options is for URLs"):
            write()


@pytest.mark.parametrize("variable", ["FFRECORD_CACHE", "XDG_CACHE_HOME"])
def test_the_note_of_an_upload_needs_a_folder(
    through: Proxy, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, variable: str
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv(variable, str(tmp_path / "file"))
    with pytest.raises(OSError, match=f"set {variable} to another folder"):
        FileWriter("s3://bucket/a.ffr", **options(through))


def test_a_writer_that_fails_or_is_dropped_uploads_nothing(server: str, through: Proxy) -> None:
    with pytest.raises(KeyError), FileWriter("s3://bucket/a.ffr", 1, **options(through)) as writer:
        raise KeyError
    writer = FileWriter("s3://bucket/a.ffr", 1, **options(through))
    writer.write_one(b"all")
    with pytest.warns(ffrecord.UnclosedWarning, match=r"s3://bucket/a\.ffr: .* never closed"):
        del writer
    with pytest.raises(ffrecord.CountError, match=r"s3://bucket/a\.ffr: 0 records"):
        FileWriter("s3://bucket/a.ffr", 1, **options(through)).close()
    with pytest.raises(KeyError), DatasetWriter("s3://bucket/a", {"n": "int"}, **options(through)):
        raise KeyError
    assert keys(server) == []


# ---- faults --------------------------------------------------------------------------------------

STEPS: dict[str, Callable[[Request], bool]] = {
    "single": lambda each: each.method == "PUT" and "?" not in each.path,
    "begin": lambda each: each.path.endswith("?uploads=") and each.method == "POST",
    "part": lambda each: "partNumber=2" in each.path,
    "complete": lambda each: each.method == "POST" and "uploadId" in each.path,
    "check": lambda each: each.method == "HEAD",
}


def write_large(through: Proxy, **more: Any) -> None:
    with FileWriter("s3://bucket/k.ffr", 2, **options(through), **more) as writer:
        writer.write([b"z" * (12 << 20), b"end"])


def write_step(through: Proxy, step: str, **more: Any) -> None:
    if step == "single":
        with FileWriter("s3://bucket/k.ffr", 1, **options(through), **more) as writer:
            writer.write_one(b"small")
    else:
        write_large(through, **more)


# tests/remote/test_policy.py has all statuses that mean that a server is busy.
@pytest.mark.parametrize("fault", ["503", "reset", "lost"])
@pytest.mark.parametrize("step", STEPS)
def test_a_fault_that_does_not_last_is_repaired(
    server: str, through: Proxy, step: str, fault: str
) -> None:
    made: list[Request] = []

    def faulty(request: Request) -> str | None:
        if STEPS[step](request) and len(made) < 3:
            made.append(request)
            return fault
        return None

    through.fault = faulty
    write_step(through, step)
    assert made
    with FileReader("s3://bucket/k.ffr", **options(through)) as reader:
        assert bytes(reader.read_one(-1)) == (b"small" if step == "single" else b"end")


LASTING = [*itertools.product(STEPS, ["400", "403", "503", "reset", "hang"]),
           ("part", "garbage")]  # fmt: skip


@pytest.mark.parametrize("fault", ["403", "garbage", "short", "flip"])
def test_a_store_that_does_not_list_uploads_is_written_to(
    server: str, through: Proxy, fault: str
) -> None:
    through.fault = lambda each: fault if each.method == "GET" and "uploads" in each.path else None
    write_large(through)
    assert keys(server) == ["k.ffr"]


@pytest.mark.parametrize(("step", "fault"), LASTING)
def test_a_fault_that_lasts_is_an_error_and_leaves_nothing(
    server: str, through: Proxy, step: str, fault: str
) -> None:
    through.fault = lambda request: fault if STEPS[step](request) else None
    with pytest.raises((UploadError, PermissionError)) as caught:
        write_step(through, step, deadline=0.5 if fault == "hang" else 1.0)
    assert caught.value.filename == "s3://bucket/k.ffr"
    text = "".join(traceback.format_exception(caught.value)) + repr(caught.value)
    assert "SECRET" not in re.sub(r"(?m)^    .*$", "", text)
    if fault.isdigit() and fault != "403":
        assert f"status {fault}" in str(caught.value)
    if step != "check":  # otherwise the object is whole, but nobody could verify it
        assert keys(server) == []


@pytest.mark.parametrize("step", ["single", "part"])
def test_bytes_that_arrive_wrong_are_found_out(server: str, through: Proxy, step: str) -> None:
    through.fault = lambda request: "spoil" if STEPS[step](request) else None
    with pytest.raises(UploadError, match="the store got other bytes than were sent"):
        write_step(through, step)
    assert keys(server) == []


def test_an_object_whose_tag_is_no_md5_of_its_bytes_is_read_back(
    server: str, through: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts.Parts, "tag", lambda self: '"another"')  # as with keys of KMS
    write_large(through)
    assert sum(each.method == "GET" and bool(each.range) for each in through.requests) == 3


def test_a_failed_upload_of_several_objects_leaves_none(
    server: str, through: Proxy, tree: Path
) -> None:
    through.fault = lambda each: "403" if "index" in each.path and each.method == "PUT" else None
    with pytest.raises(PermissionError):
        pack_folder(tree, "s3://bucket/shards", shard_size="1MB", **options(through))
    assert keys(server) == []


def test_uploads_of_others_to_the_same_key_are_left_alone(
    server: str, through: Proxy, environment: None
) -> None:
    store = S3Store("bucket", client_options={"allow_http": True})
    other = obstore.open_writer(store, "k.ffr", buffer_size=PART)
    other.write(bytes(2 * PART + 1))
    other.flush()
    while not pending(server):
        time.sleep(0.01)
    through.fault = lambda request: "403" if STEPS["complete"](request) else None
    with pytest.raises(PermissionError):
        write_large(through)
    through.fault = lambda request: None
    assert pending(server) == ["k.ffr"]
    other.close()
    assert keys(server) == ["k.ffr"]


@pytest.mark.parametrize("size", [100, 12 << 20])
def test_a_target_that_appears_meanwhile_is_not_replaced(
    server: str, through: Proxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    real = sending.send

    async def late(*arguments: Any, **more: Any) -> None:
        obstore.put(bucket(server), "k.ffr", b"")
        await real(*arguments, **more)

    monkeypatch.setattr(sending, "send", late)
    tree = trees.plain_tree(tmp_path / "tree", {"a": bytes(size)})
    with pytest.raises(FileExistsError, match="another program created it meanwhile"):
        convert(tree, "s3://bucket/k.ffr", **options(through))
    assert content(server, "k.ffr") == b""


def test_a_store_without_conditions_is_written_to(server: str, through: Proxy) -> None:
    through.fault = lambda request: "501" if "if-none-match" in request.headers else None
    write_dataset("s3://bucket/points", ROWS, progress=False, **options(through))
    with DatasetReader("s3://bucket/points", **options(through)) as reader:
        assert reader[9] == ROWS[9]


def test_a_file_system_that_fails_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fs = fsspec.filesystem("local", skip_instance_cache=True)
    real, failures = fs.put_file, 0

    def fails(source: str, target: str, **more: Any) -> None:
        nonlocal failures
        real(source, target)
        failures += 1
        raise OSError("broken")

    monkeypatch.setattr(fs, "put_file", fails)
    path = tmp_path / "out" / "a.ffr"
    failed = pytest.raises(UploadError, match="writing failed 10 times")
    with failed, FileWriter(str(path), fs=fs) as writer:
        writer.write_one(b"one")
    assert failures == retries.OPENING_ATTEMPTS
    assert not os.listdir(path.parent)


# ---- kills -----------------------------------------------------------------------------------

KILLED = """
import json, sys
from ffrecord import FileWriter, pack_folder
from ffrecord.remote import parts
parts.PART = 5 << 20
if sys.argv[1] == "file":
    given = json.loads(sys.argv[2])
    with FileWriter("s3://bucket/dir/k ä.ffr", 1, **given) as writer:
        writer.write_one(b"z" * (22 << 20))
else:
    pack_folder(sys.argv[2], "s3://bucket/shards", shard_size="1MB")
"""


@pytest.mark.parametrize(
    ("what", "step"),
    [("file", "partNumber=3"), ("file", "uploadId"), ("shards", "partNumber=2"),
     ("shards", "index.ffr")],
)  # fmt: skip
def test_a_killed_upload_is_invisible_and_is_aborted_later(
    server: str, through: Proxy, environment: None, tree: Path, tmp_path: Path, what: str,
    step: str, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    reached: list[Request] = []

    def fault(request: Request) -> str | None:
        is_late = request.method in ("PUT", "POST") and step in request.path
        if is_late and (step != "uploadId" or request.method == "POST"):
            reached.append(request)
            return "hang"
        return None

    through.fault = fault
    argument = "{}" if what == "file" else str(tree)
    child = subprocess.Popen([sys.executable, "-c", KILLED, what, argument])
    try:
        while not reached:
            assert child.poll() is None
            time.sleep(0.01)
        assert not uploads.leftovers()  # it is running
    finally:
        child.kill()
        child.wait()
    through.fault = lambda request: None
    assert "dir/k ä.ffr" not in keys(server)
    assert "shards/index.ffr" not in keys(server)
    assert pending(server) or step == "index.ffr"
    [left] = uploads.leftovers(str(tmp_path / "state/ffrecord"))
    assert left.name.startswith("s3://bucket/")
    assert left.size > 0
    assert stat.S_IMODE(os.stat(left.path).st_mode) == 0o600
    text = Path(left.path).read_text()
    assert "SECRET" not in text
    assert "SECRET" not in repr(left)
    folder = str(tmp_path / "state/ffrecord")
    assert cli.main(["cache", "ls", "--cache", folder]) == 0
    listed = capsys.readouterr().out
    assert f"unfinished upload, begun 0 seconds ago: {left.name}" in re.sub(
        r"begun \d+ (second|minute)s? ago", "begun 0 seconds ago", listed
    )
    advised = re.search("`ffrecord (.*)` aborts them", listed)
    assert advised
    assert cli.main(shlex.split(advised[1])) == 0
    assert "aborted 1 unfinished upload" in capsys.readouterr().out
    assert keys(server) == []
    assert pending(server) == []


def test_abort_uses_the_options_that_it_gets_and_keeps_the_record_of_a_failure(
    server: str, through: Proxy, state: Path
) -> None:
    through.fault = lambda request: "hang" if "partNumber=2" in request.path else None
    given = json.dumps(options(through))
    child = subprocess.Popen([sys.executable, "-c", KILLED, "file", given])
    try:
        while not any("partNumber=2" in each.path for each in through.requests):
            assert child.poll() is None
            time.sleep(0.01)
    finally:
        child.kill()
        child.wait()
    through.fault = lambda request: "403" if request.method == "DELETE" else None
    [left] = uploads.leftovers()
    with pytest.raises(PermissionError, match="check the credentials"):
        uploads.abort(left, options(through)["storage_options"])
    through.fault = lambda request: None
    [left] = uploads.leftovers()
    first = json.loads(Path(left.path).read_text().splitlines()[0])
    assert first["url"] == "s3://bucket/dir/k ä.ffr"
    uploads.abort(left, options(through)["storage_options"])


def test_a_record_that_is_not_whole_is_removed_without_harm(state: Path) -> None:
    folder = state / "state/ffrecord" / uploads.FOLDER
    folder.mkdir(parents=True)
    for name, text in (("a", b""), ("b", b'{"version": 1, "name": "x"'), ("c", b"\xff\n{}\n")):
        (folder / f"{name}{uploads.SUFFIX}").write_bytes(text)
    (folder / "precious").write_text("not ours")
    line = {"version": 1, "name": "x", "staging": str(state), "host": os.uname().nodename}
    (folder / f"d{uploads.SUFFIX}").write_text(json.dumps(line) + "\n")
    for left in uploads.leftovers():
        uploads.abort(left)
    assert [path.name for path in folder.iterdir()] == ["precious"]
    assert state.exists()


def test_a_record_that_a_listing_has_locked_is_made_again(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, answers = locks.take, [False]
    monkeypatch.setattr(uploads, "take", lambda *args: answers.pop() if answers else real(*args))
    record = uploads.Record("s3://bucket/a", None, {})
    monkeypatch.undo()
    assert not uploads.leftovers(str(state / "state/ffrecord"))  # it is running
    record.end()
    assert os.listdir(state / "state/ffrecord" / uploads.FOLDER) == []


def test_the_record_of_a_failure_is_a_leftover_while_a_forked_child_lives(state: Path) -> None:
    record = uploads.Record("s3://bucket/a", None, {})
    with forked():
        record.end(kept=True)
        [left] = uploads.leftovers()
        uploads.abort(left)


def test_a_deadline_may_be_infinite(server: str, through: Proxy) -> None:
    write_large(through, deadline=float("inf"))
    assert len(content(server, "k.ffr")) > 12 << 20
    assert pending(server) == []


def test_signatures_are_those_of_amazon(environment: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """moto does not check signed URLs. botocore signs the same request again."""
    store = S3Store("bucket", prefix="a b", client_options={"allow_http": True})
    found = multipart.Unfinished(obstore, store, "ä/k+&.ffr")
    asked: list[tuple[str, str]] = []

    def answered(request: urllib.request.Request, timeout: float) -> io.BytesIO:
        asked.append((request.full_url, request.get_method()))
        return io.BytesIO(b"<none/>")

    monkeypatch.setattr(urllib.request, "urlopen", answered)
    assert found.ids() == []
    found.abort("id/+=")
    monkeypatch.undo()
    for url, method in asked:
        query = {name: value[0] for name, value in parse_qs(urlsplit(url).query).items()}
        when = datetime.strptime(query["X-Amz-Date"], "%Y%m%dT%H%M%SZ").replace(tzinfo=timezone.utc)
        request = botocore.awsrequest.AWSRequest(method, url.partition("&X-Amz-Algorithm")[0])
        credentials = botocore.credentials.Credentials("key", "SECRET")
        signer = botocore.auth.S3SigV4QueryAuth(credentials, "s3", "us-east-1", expires=300)
        monkeypatch.setattr(
            botocore.auth, "get_current_datetime", lambda *args, now=when, **more: now
        )
        signer.add_auth(request)
        again = parse_qs(urlsplit(request.url).query)["X-Amz-Signature"][0]
        assert query["X-Amz-Signature"] == again
    assert unquote(urlsplit(asked[1][0]).path).endswith("/bucket/a b/ä/k+&.ffr")


# ---- commands --------------------------------------------------------------------------------


def test_commands_write_to_urls(
    server: str, through: Proxy, environment: None, tree: Path, tmp_path: Path
) -> None:
    def run(*arguments: str | Path, code: int = 0) -> str:
        ran = in_a_process(*arguments)
        assert ran.returncode == code, ran.stderr.decode()
        assert b"Traceback" not in ran.stderr
        assert b"SECRET" not in ran.stderr + ran.stdout
        return (ran.stderr if code else ran.stdout).decode()

    assert run("pack", tree, "s3://bucket/a.ffr").startswith("s3://bucket/a.ffr: 3 files")
    said = run("pack", tree, "s3://bucket/a.ffr", code=SYSTEM)
    assert said == "ffrecord: s3://bucket/a.ffr: already exists; pass --force to replace it\n"
    run("pack", tree, "s3://bucket/a.ffr", "--force")
    run("convert", "s3://bucket/a.ffr", "s3://bucket/b.tar")
    said = run("convert", tree, "s3://bucket/b.tar", code=SYSTEM)
    assert said == "ffrecord: s3://bucket/b.tar: already exists; pass --force to replace it\n"
    run("convert", tree, "s3://bucket/b.tar", "--force")
    run("pack", tree, "s3://bucket/shards", "--shard-size", "1MB")
    assert run("verify", "s3://bucket/shards").startswith("s3://bucket/shards: OK")
    said = run("pack", tree, "http://h/a?sig=SECRET", code=UrlError.exit_code)
    assert said.count("\n") == 1
    through.fault = lambda request: "400" if request.method == "PUT" else None
    said = run("convert", tree, "s3://bucket/c.ffr", code=UploadError.exit_code)
    assert "s3://bucket/c.ffr: writing failed" in said


def test_an_interrupt_aborts_the_upload(
    server: str, through: Proxy, environment: None, tree: Path
) -> None:
    through.fault = lambda request: "hang" if "partNumber=2" in request.path else None
    child = subprocess.Popen(
        [sys.executable, "-c", KILLED, "file", "{}"], stderr=subprocess.PIPE, text=True
    )
    while not any("partNumber=2" in each.path for each in through.requests):
        time.sleep(0.01)
    through.fault = lambda request: None
    child.send_signal(signal.SIGINT)
    _, said = child.communicate(timeout=PATIENCE)
    assert "KeyboardInterrupt" in said
    assert keys(server) == []


def test_no_error_of_ours_is_a_bare_exception() -> None:
    error = UploadError("s3://b/k", "the server answered with status 500", 500, 3)
    assert isinstance(error, FFRecordError)
    assert str(error) == "s3://b/k: writing failed 3 times: the server answered with status 500"
