"""Many O_DIRECT reads in flight at once: AIO and io_uring through a mount."""

from __future__ import annotations

import errno
import hashlib
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.fuse.mounted_faults import daemons
from tests.fuse.mounted_faults.conftest import BLOCK, Packed
from tests.fuse.mounted_faults.test_endings import connections
from tests.support import archives, direct, handmade, trees
from tests.support.direct import Outcome, Read

__all__ = ["connections"]

NAME = "folder/large"
SIZE = (3 << 20) + 5 * BLOCK + 1234
DEPTH = 16
BACKENDS = [(), ("--backend", "fusepy")]
IDS = ["native", "fusepy"]


@pytest.fixture(params=direct.ENGINES)
def engine(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    why = direct.why_not(name)
    if why is not None:
        pytest.skip(why)
    return name


@pytest.fixture(params=BACKENDS, ids=IDS)
def backend(request: pytest.FixtureRequest) -> tuple[str, ...]:
    arguments: tuple[str, ...] = request.param
    if arguments:
        pytest.importorskip("mfusepy")
    return arguments


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Packed:
    """Pack a file that needs more than three requests of the kernel (at most 1 MiB each)."""
    top = tmp_path_factory.mktemp("direct")
    files = {NAME: trees.content(SIZE, 1), "folder/empty": b"", "folder/small": b"some bytes"}
    source = trees.plain_tree(top / "source", files)
    archives.pack(source, top / "packed.ffr")
    return Packed(source, top / "packed.ffr")


def due(whole: bytes, reads: Sequence[Read]) -> list[Outcome]:
    parts = [whole[read.offset : read.offset + read.size] for read in reads]
    return [Outcome(len(part), part) for part in parts]


def random_reads(count: int, seed: int) -> list[Read]:
    """Return reads of any size at any offset, some across the end and some beyond it."""
    generator = random.Random(seed)
    sizes = (1, 511, 4096, 4097, BLOCK, 1 << 20, (2 << 20) + 77)
    return [Read(generator.randrange(SIZE + 5000), generator.choice(sizes)) for _ in range(count)]


EDGES = [
    Read(0, 1), Read(0, SIZE), Read(0, SIZE + 1), Read(SIZE - 1, 4096), Read(SIZE, 4096),
    Read(SIZE + 1, 1), Read(SIZE & -4096, 4096), Read(SIZE - 4096, 4096), Read(1, SIZE - 1),
    Read((1 << 20) - 1, 2), Read(BLOCK - 1, BLOCK + 2), Read(1 << 40, 4096),
]  # fmt: skip


def test_parallel_reads_equal_reads_one_by_one(
    large: Packed, point: Path, engine: str, backend: tuple[str, ...]
) -> None:
    whole = (large.source / NAME).read_bytes()
    with daemons.daemon(large.archive, point, *backend):
        for reads in (EDGES, *(random_reads(64, seed) for seed in range(4))):
            handmade.evict(large.archive)
            assert direct.ENGINES[engine](str(point / NAME), reads) == due(whole, reads)
        for name in ("folder/empty", "folder/small"):
            content = (large.source / name).read_bytes()
            reads = [Read(0, 4096), Read(3, 4096), Read(10, 1), Read(4096, 4096)]
            assert direct.ENGINES[engine](str(point / name), reads) == due(content, reads)


def test_a_damaged_block_fails_only_reads_that_contain_it(
    large: Packed, point: Path, tmp_path: Path, engine: str, backend: tuple[str, ...]
) -> None:
    own = tmp_path / "own.ffr"
    own.write_bytes(large.archive.read_bytes())
    archives.damage(own, NAME, 9 * BLOCK + 17)
    whole = (large.source / NAME).read_bytes()
    reads = [Read(BLOCK * number + 4096, 4096) for number in range(16)]
    reads += [
        Read(0, 3 << 20),
        Read(10 * BLOCK, 2 << 20),
        Read(0, 9 * BLOCK),
        Read(0, 9 * BLOCK + 1),
    ]
    with daemons.daemon(own, point, *backend):
        for read, outcome in zip(
            reads, direct.ENGINES[engine](str(point / NAME), reads), strict=True
        ):
            wanted = range(read.offset, read.offset + read.size)
            if wanted.start < 10 * BLOCK and wanted.stop > 9 * BLOCK:
                assert outcome == Outcome(-errno.EIO, b""), read
            else:
                assert [outcome] == due(whole, [read]), read


@contextmanager
def client(engine: str, path: Path, reads: Sequence[Read]) -> Iterator[subprocess.Popen[str]]:
    pairs = [f"{read.offset}:{read.size}" for read in reads]
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.support.direct", engine, str(path), *pairs], cwd=daemons.ROOT,
        env=daemons.ENVIRONMENT, text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
    )  # fmt: skip
    try:
        yield process
    finally:
        daemons.end(process)


def check(process: subprocess.Popen[str], whole: bytes, reads: Sequence[Read]) -> None:
    out, _ = process.communicate(timeout=daemons.LIMIT)
    expected = [
        f"{result} {hashlib.md5(content).hexdigest()}" for result, content in due(whole, reads)
    ]
    assert out.splitlines() == expected


@contextmanager
def under_way(
    mounted: daemons.Daemon, connections: Path, engine: str, path: Path, reads: Sequence[Read]
) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """Start a client whose reads all wait, because the serving processes are stopped."""
    # Read once first: the kernel sends FUSE_LOOKUP, OPEN and POLL only once.
    assert direct.ENGINES[engine](str(path), [Read(0, 1)])[0].result == 1
    serving = mounted.workers or mounted.processes
    waiting = connections / str(daemons.connection(mounted.point)) / "waiting"
    daemons.wait_until(lambda: int(waiting.read_text()) == 0, "the mount is busy")
    for pid in serving:
        os.kill(pid, signal.SIGSTOP)
    with client(engine, path, reads) as process:
        try:
            daemons.wait_until(
                lambda: int(waiting.read_text()) >= len(reads), "not all reads are in flight"
            )
            yield process, waiting
        finally:  # before waiting for the client, which cannot end before its reads
            for pid in filter(daemons.is_alive, serving):
                os.kill(pid, signal.SIGCONT)


def pages(count: int) -> list[Read]:
    return [Read(37 * 4096 * number % (SIZE & -4096), 4096) for number in range(count)]


def test_all_requested_reads_are_in_flight(
    large: Packed, point: Path, connections: Path, engine: str, backend: tuple[str, ...]
) -> None:
    """Without FUSE_ASYNC_DIO, io_submit waits for each read."""
    whole, reads = (large.source / NAME).read_bytes(), pages(DEPTH)
    with (
        daemons.daemon(large.archive, point, *backend) as mounted,
        under_way(mounted, connections, engine, point / NAME, reads) as (process, _),
    ):
        for pid in mounted.workers or mounted.processes:
            os.kill(pid, signal.SIGCONT)
        check(process, whole, reads)


@pytest.mark.parametrize("workers", ["1", "3"])
def test_reads_of_killed_workers_are_answered_by_other_workers(
    large: Packed, point: Path, connections: Path, engine: str, workers: str
) -> None:
    whole, reads = (large.source / NAME).read_bytes(), pages(64)
    with daemons.daemon(large.archive, point, "--workers", workers) as mounted:
        for _ in range(3):
            with under_way(mounted, connections, engine, point / NAME, reads) as (process, _):
                killed = mounted.workers
                for pid in killed:
                    os.kill(pid, signal.SIGKILL)
                check(process, whole, reads)
            mounted.wait_for_others(killed, int(workers))


def test_a_killed_client_leaves_no_reads_behind(
    large: Packed, point: Path, connections: Path, engine: str, backend: tuple[str, ...]
) -> None:
    whole, reads = (large.source / NAME).read_bytes(), pages(64)
    with daemons.daemon(large.archive, point, *backend) as mounted:
        with under_way(mounted, connections, engine, point / NAME, reads) as (process, waiting):
            process.kill()
        daemons.wait_until(lambda: int(waiting.read_text()) == 0, "requests are left")
        assert process.returncode == -signal.SIGKILL
        with client(engine, point / NAME, reads) as another:
            check(another, whole, reads)
        assert daemons.run("umount", point).returncode == 0
        assert mounted.end() == 0


def test_an_abort_ends_all_reads_in_flight(
    large: Packed, point: Path, connections: Path, engine: str
) -> None:
    reads = pages(DEPTH)
    with (
        daemons.daemon(large.archive, point) as mounted,
        under_way(mounted, connections, engine, point / NAME, reads) as (process, waiting),
    ):
        waiting.with_name("abort").write_text("1")
        out, _ = process.communicate(timeout=daemons.LIMIT)
        assert {int(line.split()[0]) for line in out.splitlines()} <= {
            -errno.ECONNABORTED, -errno.ENOTCONN
        }  # fmt: skip
        assert len(out.splitlines()) == DEPTH
