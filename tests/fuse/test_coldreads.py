"""Reads from the disk, by AIO or in threads, while the loop answers other requests.

A plain read that stops at a gate stands for a slow disk.
"""

from __future__ import annotations

import errno
import os
import random
import select
import shutil
import threading
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest

from ffrecord.aliases import Bytes
from ffrecord.disk import aio, pagecache
from ffrecord.disk import source as disk_source
from ffrecord.disk.source import Source, SourceSet
from ffrecord.errors import ReadFailedError
from ffrecord_fuse.serve.coldreads import THREADS, ColdReads
from ffrecord_fuse.serve.reading import Reading
from ffrecord_fuse.serve.session import Session
from tests.support import completions, handmade, kernel, trees
from tests.support.kernel import Kernel, Reply
from tests.support.session import BLOCK, FILES, NODES, ColdReading, GatedReading, is_well, talk

needs_libaio = pytest.mark.skipif(aio._lib is None, reason="libaio is not installed")


class SlowDisk:
    """A disk where plain reads of more than `longer_than` bytes wait at a gate."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, longer_than: int = 0) -> None:
        self.gate = threading.Event()
        self.waiting = self.most = self.done = 0
        self.fails: Exception | None = None
        read_into, lock = Source.read_into, threading.Lock()

        def slow(source: Source, memory: Bytes, offset: int) -> None:
            if len(memory) > longer_than:
                with lock:
                    self.waiting += 1
                    self.most = max(self.most, self.waiting)
                assert self.gate.wait(kernel.LIMIT)
                with lock:
                    self.waiting -= 1
                    self.done += 1
                if self.fails is not None:
                    raise self.fails
            read_into(source, memory, offset)

        monkeypatch.setattr(Source, "read_into", slow)

    def until_waiting(self, reads: int) -> None:
        deadline = time.monotonic() + kernel.LIMIT
        while self.waiting < reads:
            assert time.monotonic() < deadline
            time.sleep(0.001)


def without_direct(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_source, "_direct_alignment", lambda fd: 0)


def without_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aio, "contexts", aio.ContextPool())
    monkeypatch.setattr(aio.ContextPool, "borrow", lambda self, wanted: None)


def with_short_completions(monkeypatch: pytest.MonkeyPatch) -> None:
    completions.change(monkeypatch, lambda result: result // 2)


def with_failing_completions(monkeypatch: pytest.MonkeyPatch) -> None:
    completions.change(monkeypatch, lambda result: -errno.EIO)


def with_refused_direct_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    completions.change(monkeypatch, lambda result: -errno.EINVAL)


def with_refused_submissions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aio.Context, "submit", lambda self, at, count: -errno.EAGAIN)


Way = Callable[[pytest.MonkeyPatch], None]
FROM_THE_START: list[Way] = [without_direct, without_room]
LATER: list[Way] = [
    with_short_completions, with_failing_completions, with_refused_direct_reads,
    with_refused_submissions,
]  # fmt: skip


@needs_libaio
@pytest.mark.parametrize("way", FROM_THE_START + LATER)
def test_a_slow_plain_read_delays_no_other_request(
    packed: Path, tree: Path, monkeypatch: pytest.MonkeyPatch, way: Way
) -> None:
    whole = (tree / "big").read_bytes()
    if way in FROM_THE_START:
        way(monkeypatch)
    with talk(packed, reading=ColdReading) as talking:
        assert is_well(talking, tree)
        if way in LATER:
            way(monkeypatch)
        slow = SlowDisk(monkeypatch, longer_than=5000)
        talking.send(kernel.read(NODES["big"], 5, 100_000, 101))
        slow.until_waiting(1)
        assert is_well(talking, tree)  # names, attributes, listings
        assert talking.ask(kernel.read(NODES["a.txt"], 0, 99)).payload == b"hello, kernel\n"
        talking.send(kernel.read(NODES["big"], BLOCK + 7, 1000, 102))
        slow.until_waiting(2)
        assert talking.until_fence() == []
        slow.gate.set()
        found = {reply.unique: reply for reply in (talking.receive(), talking.receive())}
        assert found == {
            101: Reply(101, 0, whole[5:100_005]),
            102: Reply(102, 0, whole[BLOCK + 7 : BLOCK + 1007]),
        }
        assert talking.log == []


def test_cached_pages_are_answered_without_a_thread(
    packed: Path, tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed.read_bytes()
    without_direct(monkeypatch)
    with talk(packed) as talking:
        slow = SlowDisk(monkeypatch)
        slow.gate.set()
        reply = talking.ask(kernel.read(NODES["sub/deep"], 0, 5000))
        assert reply.payload == (tree / "sub/deep").read_bytes()
        if not _has_nowait(packed):
            pytest.skip("this file system has no RWF_NOWAIT")
        assert slow.done == 0


@pytest.mark.in_memory
@pytest.mark.parametrize("may_ask", [True, False])
def test_an_archive_in_memory_is_read_without_a_thread(
    packed: Path, tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, may_ask: bool
) -> None:
    """tmpfs has no RWF_NOWAIT, and before Linux 6.6 no O_DIRECT.

    A thread for each read cost a third of the speed.
    """
    archive = Path(shutil.copy(packed, tmp_path))
    handmade.require_memory(archive)
    without_direct(monkeypatch)
    monkeypatch.setattr(pagecache, "tells", lambda fd: may_ask)
    with talk(archive) as talking:
        slow = SlowDisk(monkeypatch)
        slow.gate.set()
        for _ in range(20):
            reply = talking.ask(kernel.read(NODES["sub/deep"], 0, 5000))
            assert reply.payload == (tree / "sub/deep").read_bytes()
        assert slow.done == 0


def _has_nowait(path: Path) -> bool:
    with path.open("rb") as file:
        try:
            return os.preadv(file.fileno(), [bytearray(1)], 0, os.RWF_NOWAIT) == 1
        except OSError:
            return False


def test_a_file_system_without_nowait_is_read_in_threads(
    packed: Path, tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RWF_NOWAIT fails with EOPNOTSUPP, and any read may then wait for a network."""
    preadv = os.preadv

    def unsupported(fd: int, buffers: list[memoryview], offset: int, flags: int = 0) -> int:
        if flags & os.RWF_NOWAIT:
            raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
        return preadv(fd, buffers, offset, flags)

    packed.read_bytes()
    without_direct(monkeypatch)
    monkeypatch.setattr(os, "preadv", unsupported)
    with talk(packed) as talking:
        slow = SlowDisk(monkeypatch, longer_than=4000)
        talking.send(kernel.read(NODES["sub/deep"], 0, 5000, 101))
        slow.until_waiting(1)
        assert is_well(talking, tree)
        slow.gate.set()
        assert talking.receive() == Reply(101, 0, (tree / "sub/deep").read_bytes())


def ask_for_many(talking: Kernel, reads: int) -> dict[int, int]:
    """Send reads of 100 bytes of `big`; return the offset of each."""
    offsets = {1000 + number: 3001 * number % (3 * BLOCK) for number in range(reads)}
    for unique, offset in offsets.items():
        talking.send(kernel.read(NODES["big"], offset, 100, unique))
    return offsets


def expect_many(talking: Kernel, offsets: dict[int, int], whole: bytes) -> None:
    found = {reply.unique: reply for reply in (talking.receive() for _ in offsets)}
    assert found == {
        unique: Reply(unique, 0, whole[offset : offset + 100]) for unique, offset in offsets.items()
    }


def test_more_slow_reads_than_threads_take_turns(
    packed: Path, tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_direct(monkeypatch)
    before = threading.active_count()
    with talk(packed, reading=ColdReading) as talking:
        slow = SlowDisk(monkeypatch)
        offsets = ask_for_many(talking, 3 * THREADS)
        slow.until_waiting(THREADS)
        assert answers_only_other_requests(talking)
        assert threading.active_count() <= before + 1 + THREADS  # the session has a thread too
        slow.gate.set()
        expect_many(talking, offsets, (tree / "big").read_bytes())
    assert slow.most == THREADS
    assert threading.active_count() == before


def answers_only_other_requests(talking: Kernel) -> bool:
    """Return True if a GETATTR is answered while all reads still wait."""
    return talking.until_fence() == []


@needs_libaio
def test_more_reads_than_slots_are_all_answered(
    packed: Path, tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Completions are held back until all reads are sent: the disk is faster than the test."""
    monkeypatch.setattr(aio, "CAPACITIES", (2,))
    monkeypatch.setattr(aio, "contexts", aio.ContextPool())
    getevents, told = aio._io_getevents, threading.Event()
    with talk(packed, reading=ColdReading) as talking:
        monkeypatch.setattr(
            aio, "_io_getevents", lambda *args: getevents(*args) if told.is_set() else 0
        )
        slow = SlowDisk(monkeypatch)
        offsets = ask_for_many(talking, 12)
        slow.until_waiting(min(THREADS, 12 - 2))  # all reads but the two with a slot
        assert answers_only_other_requests(talking)
        told.set()
        slow.gate.set()
        expect_many(talking, offsets, (tree / "big").read_bytes())
        expect_many(talking, ask_for_many(talking, 1), (tree / "big").read_bytes())
    assert slow.done == 10


@needs_libaio
def test_failing_o_direct_is_given_up_and_no_slot_is_used_again(
    packed: Path, tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit, submitted = aio.Context.submit, []

    def noted(self: aio.Context, at: int, count: int) -> int:
        submitted.append(count)
        return submit(self, at, count)

    whole = (tree / "big").read_bytes()
    with talk(packed, reading=ColdReading) as talking:
        monkeypatch.setattr(aio.Context, "submit", noted)
        given = completions.change(monkeypatch, lambda result: -errno.EINVAL)
        for number in range(5):
            reply = talking.ask(kernel.read(NODES["big"], number * 1000, 1000))
            assert reply == Reply(2, 0, whole[number * 1000 :][:1000])
    if not given:
        pytest.skip("this file system has no O_DIRECT")
    assert sum(submitted) == 1


def test_without_a_thread_reads_are_answered_by_the_loop(
    packed: Path, tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_direct(monkeypatch)
    whole = (tree / "big").read_bytes()
    start, read_into = threading.Thread.start, Source.read_into

    def refuse(thread: threading.Thread) -> None:
        if thread.name == "ffrecord-fuse":
            raise RuntimeError("can't start new thread")
        start(thread)

    def fail(source: Source, _memory: Bytes, offset: int) -> None:
        raise ReadFailedError(source.path, errno.EIO, offset)

    with talk(packed, reading=ColdReading) as talking:
        monkeypatch.setattr(threading.Thread, "start", refuse)
        assert talking.ask(kernel.read(NODES["big"], 9, 1000)) == Reply(2, 0, whole[9:1009])
        expect_many(talking, ask_for_many(talking, 20), whole)
        monkeypatch.setattr(Source, "read_into", fail)
        assert talking.ask(kernel.read(NODES["sub/deep"], 0, 10)) == Reply(2, errno.EIO)
        monkeypatch.setattr(Source, "read_into", read_into)
        monkeypatch.setattr(threading.Thread, "start", start)
        assert talking.ask(kernel.read(NODES["big"], 7, 1000)) == Reply(2, 0, whole[7:1007])
        assert is_well(talking, tree)


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (ReadFailedError("a.ffr", errno.EIO, 0), "damaged: /big"),
        (ZeroDivisionError("a defect"), "reading node 3 failed: ZeroDivisionError('a defect')"),
        (MemoryError(), "reading node 3 failed: MemoryError()"),
    ],
)
def test_a_failing_plain_read_fails_only_its_request(
    packed: Path, tree: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, told: str
) -> None:
    without_direct(monkeypatch)
    with talk(packed, reading=ColdReading) as talking:
        slow = SlowDisk(monkeypatch)
        slow.gate.set()
        slow.fails = error
        assert talking.ask(kernel.read(NODES["big"], 0, 10)) == Reply(2, errno.EIO)
        slow.fails = None
        assert talking.ask(kernel.read(NODES["a.txt"], 0, 99)).payload == b"hello, kernel\n"
        assert len(talking.log) == 1
        assert talking.log[0].startswith(told)


def test_closing_a_session_waits_for_threads_that_read(
    packed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_direct(monkeypatch)
    before = threading.active_count()
    with talk(packed, reading=ColdReading) as talking:
        slow = SlowDisk(monkeypatch)
        ask_for_many(talking, 3 * THREADS)
        slow.until_waiting(THREADS)
        threading.Timer(0.2, slow.gate.set).start()
    assert slow.done == THREADS  # no other read was started
    assert threading.active_count() <= before + 1  # perhaps the timer


def test_a_session_ends_although_a_thread_waits_for_a_dead_disk(
    packed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker process ends when its loop ends, without closing the session."""
    without_direct(monkeypatch)
    close, done = Session.close, list[int]()
    with talk(packed, reading=ColdReading) as talking:
        slow = SlowDisk(monkeypatch)

        def note(session: Session) -> None:
            done.append(slow.done)
            slow.gate.set()
            close(session)

        monkeypatch.setattr(Session, "close", note)
        ask_for_many(talking, 1)
        slow.until_waiting(1)
    assert done == [0]


@needs_libaio
def test_a_completed_read_is_reported_while_a_refused_one_is_still_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without this report, nothing would wake the loop, because the eventfd was reset."""
    path = tmp_path / "data"
    path.write_bytes(trees.content(1 << 20))
    slow = SlowDisk(monkeypatch)
    cold = ColdReads(SourceSet([str(path)], direct=True))
    cold.add("taken", 0, 1, 50_000)
    cold.submit()
    cold.add("refused", 0, 100_001, 50_000)
    with monkeypatch.context() as patched:
        patched.setattr(aio.Context, "submit", lambda self, at, count: -errno.EBADF)
        cold.submit()
    assert select.select([cold.eventfd], [], [], kernel.LIMIT)[0]
    cold.clear_event()
    assert [token for token, _ in cold.landed()] == ["taken"]
    slow.gate.set()
    assert select.select([cold.eventfd], [], [], kernel.LIMIT)[0]
    assert [token for token, _ in cold.landed()] == ["refused"]
    cold.close()


@needs_libaio
def test_after_closing_no_thread_writes_to_the_eventfd(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Later the eventfd's number may belong to another file."""
    path = tmp_path / "data"
    path.write_bytes(trees.content(1 << 20))
    slow = SlowDisk(monkeypatch)
    completions.change(monkeypatch, lambda result: result // 2)
    cold = ColdReads(SourceSet([str(path)], direct=True))
    for number in range(5):
        cold.add(number, 0, 100_001 * number, 50_000)
    cold.submit()
    turns = count()
    while slow.waiting < 5 and next(turns) < 10_000:
        assert not list(cold.landed())
        time.sleep(0.001)
    closing = threading.Thread(target=cold.close)
    closing.start()
    time.sleep(0.1)
    assert closing.is_alive()
    slow.gate.set()
    closing.join(kernel.LIMIT)
    assert not closing.is_alive()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.eventfd_read(cold.eventfd)


# ---- reads that the kernel's AIO refuses or cuts short --------------------------------------


def read_everything(archive: Path, tree: Path, reading: type[Reading] = ColdReading) -> None:
    with talk(archive, reading=reading) as talking:
        for _ in range(2):
            for name in FILES:
                whole = (tree / name).read_bytes()
                for offset in range(0, len(whole), 70_001):
                    reply = talking.ask(kernel.read(NODES[name], offset, 100_000))
                    assert reply == Reply(2, 0, whole[offset : offset + 100_000])
        assert talking.log == []
        assert is_well(talking, tree)


@pytest.mark.parametrize("code", [errno.EAGAIN, errno.EBADF, 0])
def test_a_refused_submission_is_read_another_way(
    packed: Path, tree: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    monkeypatch.setattr(aio.Context, "submit", lambda self, at, count: -code)
    read_everything(packed, tree)
    read_in_batches(packed, tree)


def test_a_kernel_that_takes_one_read_and_refuses_the_next_loses_nothing(
    packed: Path, tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit, turns = aio.Context.submit, iter(range(1 << 30))

    def moody(self: aio.Context, at: int, count: int) -> int:
        return -errno.EAGAIN if next(turns) % 2 else submit(self, at, 1)

    monkeypatch.setattr(aio.Context, "submit", moody)
    read_in_batches(packed, tree)


@pytest.mark.parametrize(
    "shorten",
    [lambda result: 0, lambda result: 1, lambda result: result - 1, lambda result: -errno.EIO],
    ids=["nothing", "one byte", "one byte less", "EIO"],
)
def test_a_short_read_is_finished_by_a_plain_read(
    packed: Path, tree: Path, monkeypatch: pytest.MonkeyPatch, shorten: Callable[[int], int]
) -> None:
    given = completions.change(monkeypatch, shorten)
    read_everything(packed, tree)
    read_in_batches(packed, tree)
    assert given


def test_without_an_aio_context_all_reads_are_plain(
    packed: Path, tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(aio.ContextPool, "borrow", lambda self, wanted: None)
    read_everything(packed, tree)
    read_in_batches(packed, tree)


def test_without_o_direct_all_reads_are_plain(
    packed: Path, tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk_source, "_direct_alignment", lambda fd: 0)
    read_everything(packed, tree)


@pytest.mark.parametrize("may_ask", [True, False])
def test_a_page_cache_that_comes_and_goes_changes_nothing(
    packed: Path, tree: Path, monkeypatch: pytest.MonkeyPatch, may_ask: bool
) -> None:
    preadv, turns = os.preadv, iter(range(1 << 30))

    def moody(fd: int, buffers: list[memoryview], offset: int, flags: int = 0) -> int:
        turn = next(turns) % 4 if flags & os.RWF_NOWAIT else 0
        if turn == 1:
            raise BlockingIOError(errno.EAGAIN, "not cached")
        if turn == 2:
            return preadv(fd, [buffers[0][: len(buffers[0]) // 2]], offset, flags)
        if turn == 3:
            raise OSError(errno.EOPNOTSUPP, "cannot tell")
        return preadv(fd, buffers, offset, flags)

    monkeypatch.setattr(os, "preadv", moody)
    monkeypatch.setattr(
        disk_source.SourceSet, "ask_about_the_cache",
        lambda self: setattr(self.cache, "use_cachestat", may_ask),
    )  # fmt: skip
    for _ in range(3):
        read_everything(packed, tree, Reading)


def test_cold_reads_that_wait_together_are_all_answered_correctly(packed: Path, tree: Path) -> None:
    read_in_batches(packed, tree)


def read_in_batches(archive: Path, tree: Path) -> None:
    """Send 8 reads at a time, and check that each is answered."""
    whole = (tree / "big").read_bytes()
    generator = random.Random(5)
    spans = {100 + n: (generator.randrange(len(whole)), 3000) for n in range(160)}
    with talk(archive, reading=GatedReading) as talking:
        waiting = list(spans)
        while waiting:
            batch, waiting = waiting[:8], waiting[8:]
            GatedReading.gate.clear()
            for unique in batch:
                talking.send(kernel.read(NODES["big"], *spans[unique], unique))
            GatedReading.gate.set()
            found = {reply.unique: reply for reply in (talking.receive() for _ in batch)}
            for unique in batch:
                offset, size = spans[unique]
                assert found[unique] == Reply(unique, 0, whole[offset : offset + size])
        assert is_well(talking, tree)
