"""Read-ahead over the network, and requests that are joined: no byte is asked for twice."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ffrecord.archive.blocks import FilePiece
from ffrecord.remote.source import PART
from ffrecord_fuse.serve import remotereads
from ffrecord_fuse.serve.farahead import FARTHEST, MOST_BYTES, FarAhead
from ffrecord_fuse.serve.readahead import FOLLOWING, RUNS, Run, Window, bytes_of
from ffrecord_fuse.serve.remotereading import RemoteReading
from ffrecord_fuse.serve.remotereads import Wanted, joined
from ffrecord_fuse.wire import reply
from tests.fuse.test_readahead import Records

REQUEST = 1 << 20
"""Bytes of the kernel's largest read."""


class FarRecords(Records):
    """Records that are read over the network. The last one is the index."""

    def __init__(self, sizes: list[int]) -> None:
        super().__init__(sizes)
        self.far = FarAhead(self.disk, self.last_start, [self.starts[-2]])

    def ask_for(self, begin: int, end: int) -> list[Window]:
        """Ask for bytes, as a session does. Windows that are found arrive afterwards."""
        piece = FilePiece(0, 0, begin, end - begin, 0, end - begin, None, 0)
        found = list(self.far.find(piece) or self.far.follow(piece))
        for window in found:
            size = window.end - window.begin
            window.memory = memoryview(content(window.begin, size)).toreadonly()
        if found:
            assert bytes_of(piece, found) == content(begin, end - begin)
        return found


def content(begin: int, size: int) -> bytes:
    """Return bytes that depend on their place."""
    first = begin // 8
    words = b"".join(word.to_bytes(8, "little") for word in range(first, first + size // 8 + 2))
    return words[begin - 8 * first :][:size]


def test_a_large_file_is_read_ahead_in_windows_that_follow_each_other() -> None:
    records = FarRecords([300 << 20, 1000])
    for begin in range(100, 200 << 20, REQUEST):
        piece = FilePiece(0, 0, begin, REQUEST, 0, REQUEST, None, 0)
        found = records.far.find(piece) or records.far.follow(piece)
        assert bool(found) == (begin >= 100 + FOLLOWING * REQUEST)
        ahead = records.disk.read[-1].end - begin if records.disk.read else 0
        assert ahead <= FARTHEST + PART + REQUEST
        for window in found:
            window.memory = memoryview(b"")
        assert sum(w.end - w.begin for w in records.far._windows) <= MOST_BYTES
    assert all(one.end == other.begin for one, other in pairwise(records.disk.read))
    assert max(window.end - window.begin for window in records.disk.read) <= PART


def test_a_reader_that_waits_makes_its_run_reach_further() -> None:
    reach = {}
    for waits in (False, True):
        records = FarRecords([300 << 20, 1000])
        for begin in range(100, 100 << 20, REQUEST):
            piece = FilePiece(0, 0, begin, REQUEST, 0, REQUEST, None, 0)
            for window in records.far.find(piece) or records.far.follow(piece):
                if window.memory is None and not waits:
                    window.memory = memoryview(b"")
            if not waits:
                for window in records.disk.read:
                    window.memory = memoryview(b"")
        reach[waits] = records.disk.read[-1].end - (100 << 20)
    assert reach[True] > 8 * max(reach[False], 1 << 20)


def test_a_run_reaches_no_further_than_its_reader_has_come() -> None:
    records = FarRecords([10_000] * 1000)
    for number in range(20):
        records.ask_for(records.starts[number], records.starts[number + 1])
        if records.disk.read:
            used = records.starts[number + 1] - records.starts[1]
            ahead = records.disk.read[-1].end - records.starts[number + 1]
            assert ahead <= used + PART


def test_the_index_is_never_read() -> None:
    records = FarRecords([50_000] * 40 + [10 << 20])
    for number in range(40):
        records.ask_for(records.starts[number], records.starts[number + 1])
    assert records.disk.read[-1].end == records.starts[-2]


def test_a_network_without_room_opens_no_window() -> None:
    records = FarRecords([50_000] * 40)
    records.disk.has_room = False
    for number in range(39):
        assert records.ask_for(records.starts[number], records.starts[number + 1]) == []
    assert records.disk.read == []


class Waiting(RemoteReading):
    """Requests that wait for windows, without a session."""

    def __init__(self, ahead: FarAhead) -> None:
        self._ahead = ahead
        self.answers: list[tuple[int, bytes | None]] = []

    def _check(self, piece: FilePiece, memory: memoryview) -> None:
        pass

    def _send(self, answer: bytes | memoryview, content: memoryview | None = None) -> None:
        assert content is not None
        self.answers.append((reply.unique_of(answer), content.tobytes()))

    def _fail(self, unique: int, inode: int, error: Exception) -> None:
        self.answers.append((unique, None))


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
@pytest.mark.parametrize("failed", [(), (0,), (1,), (0, 1)])
def test_a_read_that_needs_two_windows_is_answered_once(
    order: tuple[int, int], failed: tuple[int, ...]
) -> None:
    run, data = Run(0, 0), content(0, 200)
    windows = Window(run, 0, 0, 100), Window(run, 0, 100, 200)
    waiting = Waiting(FarRecords([200, 1000]).far)
    waiting._take_from(windows, 7, FilePiece(0, 0, 50, 100, 0, 100, None, 0))
    for number in order:
        window = windows[number]
        arrived = memoryview(data)[window.begin : window.end]
        waiting._answer_from(window, OSError("lost") if number in failed else arrived)
    assert waiting.answers == [(7, None if failed else data[50:150])]


def test_many_readers_share_the_memory() -> None:
    records = FarRecords([1 << 30, 1000])
    for step in range(64):
        for run in range(RUNS):
            begin = 100 + run * (100 << 20) + step * REQUEST
            piece = FilePiece(0, 0, begin, REQUEST, 0, REQUEST, None, 0)
            records.far.find(piece) or records.far.follow(piece)
            held = sum(window.end - window.begin for window in records.far._windows)
            assert held <= MOST_BYTES


@given(
    st.lists(st.integers(1, 3 << 20), min_size=1, max_size=20),
    st.lists(st.integers(1, 1 << 20), min_size=1, max_size=60),
    st.integers(1, 200_000),
)
def test_every_read_in_order_gets_its_own_bytes(
    sizes: list[int], steps: list[int], align: int
) -> None:
    """Reads of any size, with a cache that cuts windows at any multiple of `align`."""
    records = FarRecords([*sizes, 1000])
    records.far._cut = lambda file, begin, end: (
        end // align * align if end // align * align > begin else end
    )
    at, end = records.starts[0], records.starts[-2]
    for step in steps:
        if at < end:
            records.ask_for(at, min(at + step, end))
            at += step
    assert all(one.end <= other.begin for one, other in pairwise(records.disk.read))
    assert all(window.end <= end for window in records.disk.read)


# ---- joined requests ---------------------------------------------------------------------------


def as_it_is(file: int, begin: int, end: int) -> tuple[int, int]:
    return begin, end


def in_blocks(file: int, begin: int, end: int) -> tuple[int, int]:
    return begin // 4096 * 4096, -(-end // 4096) * 4096


@given(
    st.lists(
        st.tuples(
            st.integers(0, 1), st.integers(0, 20 << 20), st.integers(1, 1 << 20), st.booleans()
        ),
        min_size=1, max_size=30,
    ),
    st.integers(0, 256 << 10),
    st.sampled_from([as_it_is, in_blocks]),
)  # fmt: skip
def test_every_read_is_inside_of_one_request(
    rows: list[tuple[int, int, int, bool]], gap: int, around: remotereads.Around
) -> None:
    reads = [
        Wanted(file, begin, begin + length, number, again)
        for number, (file, begin, length, again) in enumerate(rows)
    ]
    requests = joined(reads, gap, around)
    assert sorted(str(read) for each in requests for read in each.reads) == sorted(map(str, reads))
    for request in requests:
        assert all(request.has(read) for read in request.reads)
        assert len({read.again for read in request.reads}) == 1
        assert request.end - request.begin <= max(PART, (1 << 20) + 8192)
        assert request.begin == around(*request.reads[0][:3])[0]
        assert request.end == max(around(*read[:3])[1] for read in request.reads)


@pytest.mark.parametrize(("hole", "due"), [(100, 1), (101, 2)])
def test_neighbours_share_a_request_up_to_the_gap(hole: int, due: int) -> None:
    reads = [Wanted(0, 0, 1000, "a", False), Wanted(0, 1000 + hole, 3000, "b", False)]
    assert len(joined(reads, 100, as_it_is)) == due
