"""scripts/bench remote: its server answers late and counts, and our contestants return records."""

from __future__ import annotations

import socket
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from scripts.benchmarks import (
    harness,
    remote,
    remote_archives,
    remote_cases,
    remote_loaders,
    remote_readers,
    remote_server,
    remote_worker,
    summary,
)
from scripts.benchmarks.datasets import RecordSet
from scripts.benchmarks.remote_server import Server
from scripts.benchmarks.results import Results, Sample
from tests.remote.servers import NGINX
from tests.support.patience import PATIENCE

DELAY = 0.05
RECORDS = RecordSet("tiny", 3_000, 300)

pytestmark = pytest.mark.skipif(NGINX is None, reason="nginx is not installed")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("remote")
    for layout in (remote_archives.OURS, remote_archives.SHARDS):
        remote_archives.create(layout, str(folder), **asdict(RECORDS))
    return folder


@pytest.fixture(scope="module")
def server(root: Path) -> Iterator[Server]:
    with remote_server.serving(root, DELAY) as running:
        yield running


def ours(server: Server) -> str:
    return f"{server.url}/{remote_archives.BUCKET}/{remote_archives.key('ffrecord', RECORDS)}"


def arguments(server: Server, root: Path) -> dict[str, Any]:
    return {
        "url": server.url, "answers": str(server.answers), "root": str(root), **asdict(RECORDS),
        "batch": 64, "seed": 1, "budget": PATIENCE,
    }  # fmt: skip


def test_every_answer_is_late_and_is_counted(server: Server, root: Path) -> None:
    content = remote_archives.file(remote_archives.OURS, RECORDS, root).read_bytes()
    requests, size = server.counted()
    for wanted, due in (("", content), ("bytes=10-1009", content[10:1010])):
        request = urllib.request.Request(ours(server), headers={"Range": wanted} if wanted else {})
        began = time.monotonic()
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
            assert answer.read() == due
        assert time.monotonic() - began >= DELAY
    assert server.counted() == (requests + 2, size + len(content) + 1000)


def test_a_client_that_reads_slowly_gets_everything(server: Server, root: Path) -> None:
    content = remote_archives.file(remote_archives.OURS, RECORDS, root).read_bytes()
    host, _, port = server.url.removeprefix("http://").partition(":")
    path = ours(server).removeprefix(server.url)
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.settimeout(PATIENCE)
        client.connect((host, int(port)))
        client.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
        time.sleep(4 * DELAY)  # the buffers of the relay are full now
        answer = b"".join(iter(lambda: client.recv(1 << 16), b""))
    assert answer.partition(b"\r\n\r\n")[2] == content


def test_raw_obstore_asks_for_the_same_ranges_as_our_reader(server: Server, root: Path) -> None:
    figures = [
        harness.call_fresh(
            remote_worker.random_batches, PATIENCE, reader=each.name, most_batches=2,
            **arguments(server, root),
        )
        for each in (remote_readers.OURS, remote_readers.RAW)
    ]  # fmt: skip
    assert [each["records"] for each in figures] == [128, 128]
    assert 0 < figures[0]["requests"] == figures[1]["requests"] <= 1
    assert figures[0]["bytes"] == figures[1]["bytes"] >= 1


@pytest.mark.parametrize(
    ("contestant", "second_requests"),
    [(remote_loaders.BLOCKS, False), (remote_loaders.WEBDATASET, True)],
    ids=lambda one: getattr(one, "name", str(one)),
)
def test_epochs_have_every_record_twice(
    server: Server, root: Path, contestant: remote_loaders.Contestant, second_requests: bool
) -> None:
    before = sorted(root.iterdir())
    values = harness.call_fresh(
        remote_worker.epochs, PATIENCE, contestant=contestant.name, workers=2,
        **arguments(server, root),
    )  # fmt: skip
    assert values["share"] == 1
    assert (values["second_requests"] > 0) == second_requests
    assert 0 < values["first_batch_s"] <= RECORDS.count / values["samples_per_s"]
    assert sorted(root.iterdir()) == before  # no cache is left behind


def test_memory_is_measured_with_a_sparse_object(server: Server, root: Path) -> None:
    key = remote_archives.create_large(str(root), 10_000, 50_000)
    assert (root / remote_archives.BUCKET / key).stat().st_blocks * 512 < 10_000_000
    values = harness.call_fresh(
        remote_worker.peak_memory, PATIENCE, url=server.url, root=str(root), file=key, batch=8,
        number=2, seed=0,
    )  # fmt: skip
    assert values["records"] == 50_000
    assert 0 < values["opened_mb"] <= values["peak_mb"]


def test_goals_name_cases_and_contestants_that_are_measured() -> None:
    loaders, readers = set(remote_loaders.CONTESTANTS), set(remote_readers.READERS)
    for goal in remote.GOALS:
        names = {goal.contestant, goal.over} - {None}
        if goal.case.startswith("epochs"):
            assert names <= loaders
        elif goal.case.startswith("random"):
            assert names <= readers
    sizes = [size.name for size in remote_cases.FULL.sizes]
    assert sizes == [size.name for size in remote_cases.FULL.larger] == list(remote.SIZES)


FIGURES = {"records_per_s": 5.0, "samples_per_s": 7.0, "first_batch_s": 0.25, "share": 0.5}


def test_the_summary_shows_figures_of_this_benchmark() -> None:
    names = {*remote_loaders.CONTESTANTS, *remote_readers.READERS}
    samples = [
        Sample(case, name, 0, FIGURES)
        for case in (remote_cases.batches_of("10kB"), remote_cases.epochs_of("10kB"))
        for name in names
    ]
    plan = remote_cases.QUICK
    document = remote._document(Results(samples), plan, remote.GOALS, 0.0, Path("/"))
    table = summary.of({"benchmark": "remote", **document})
    header, _, *lines = ([cell.strip() for cell in line.split("|")] for line in table.splitlines())
    assert header[2:-1] == ["10 kB: first batch, s", "10 kB: first epoch"]  # no second epoch
    rows = {line[1]: line[2:-1] for line in lines}
    assert rows["ours, whole blocks"] == rows["litdata"] == ["0.25", "7 (50.0%)"]
