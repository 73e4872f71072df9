"""Read-ahead for consecutive reads, and none for random reads."""

from __future__ import annotations

import gc
import random
import weakref
from bisect import bisect_right
from itertools import accumulate, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ffrecord.archive.blocks import FilePiece
from ffrecord_fuse.serve.readahead import (
    FOLLOWING,
    GAP,
    LONGEST,
    RUNS,
    SHORTEST,
    SMALL,
    ReadAhead,
    Window,
)

SIZE = 10_000


class FakeDisk:
    """A disk that records the reads and returns nothing."""

    def __init__(self) -> None:
        self.has_room = True
        self.read: list[Window] = []

    def add(self, token: object, file: int, begin: int, length: int, *, kept: bool = False) -> None:
        assert isinstance(token, Window)
        assert kept
        assert (token.file, token.begin, token.end) == (file, begin, begin + length)
        self.read.append(token)


class Records:
    """An archive whose records have the given sizes; the first one begins at byte 100."""

    def __init__(self, sizes: list[int]) -> None:
        self.starts = list(accumulate(sizes, initial=100))
        self.disk = FakeDisk()
        self.ahead = ReadAhead(self.disk, self.last_start)

    def last_start(self, file: int, byte: int) -> int:
        return self.starts[bisect_right(self.starts, byte) - 1]

    def piece(self, number: int, file: int = 0) -> FilePiece:
        begin, end = self.starts[number], self.starts[number + 1]
        return FilePiece(number, file, begin, end - begin, 0, end - begin, None, 0)

    def ask(self, number: int, file: int = 0) -> Window | None:
        """Ask for a record, as a session with an empty page cache does."""
        piece = self.piece(number, file)
        windows = self.ahead.find(piece) or self.ahead.follow(piece)
        window = windows[0] if windows else None
        if window is not None:
            assert window.file == file
            assert window.begin <= piece.begin
            assert piece.begin + piece.length <= window.end
        return window


def test_the_third_consecutive_read_opens_a_window() -> None:
    records = Records([SIZE] * 1000)
    assert [records.ask(number) for number in range(FOLLOWING - 1)] == [None] * (FOLLOWING - 1)
    window = records.ask(FOLLOWING - 1)
    assert window is not None
    assert window.begin == records.starts[FOLLOWING - 1]
    assert window.end in records.starts  # a partial record could not be served
    assert SHORTEST - SIZE < window.end - window.begin <= SHORTEST


def test_windows_grow_and_are_read_once_and_in_time() -> None:
    records = Records([SIZE] * 2000)
    for number in range(2000):
        window = records.ask(number)
        if window is not None:  # the next window is read as soon as half of this one is used
            used = records.starts[number + 1] - window.begin
            if used > (window.end - window.begin) / 2 and window.end < records.starts[-1]:
                assert records.disk.read[-1].begin == window.end
        assert len(records.ahead._windows) <= 2  # each takes memory
    read = records.disk.read
    assert all(one.end == next_.begin for one, next_ in pairwise(read))
    assert read[-1].end == records.starts[-1]
    sizes = [window.end - window.begin for window in read]
    assert max(sizes) <= LONGEST
    assert sum(size > LONGEST - SIZE for size in sizes) >= 5
    assert len(read) < 20


def test_skipped_files_do_not_end_a_run() -> None:
    records = Records([SIZE] * 1000)
    step = GAP // SIZE
    found = [records.ask(number) for number in range(0, 1000, step)]
    assert None not in found[FOLLOWING - 1 :]


def test_a_run_continues_after_a_gap_with_a_new_window() -> None:
    records = Records([SIZE] * 1000)
    for number in range(10):
        records.ask(number)
    end = records.disk.read[-1].end
    number = records.starts.index(end) + 3  # a few records after the window
    for each in range(10, records.starts.index(end)):
        records.ask(each)
    window = records.ask(number)
    assert window is not None


def test_the_least_recently_used_run_is_given_up() -> None:
    records = Records([SIZE] * 100_000)
    for number in range(FOLLOWING):
        records.ask(number)
    for client in range(1, 2 * RUNS):
        records.ask(client * 1000)
        assert records.ask(FOLLOWING + client // 4) is not None  # this run is used all the time
    assert len(records.disk.read) == 1


def test_random_reads_open_no_window() -> None:
    records = Records([SIZE] * 100_000)
    order = random.Random(1).sample(range(100_000), 5000)
    assert [number for number in order if records.ask(number) is not None] == []
    assert records.disk.read == []


def test_backward_reads_are_not_a_run() -> None:
    records = Records([SIZE] * 100)
    for number in reversed(range(100)):
        assert records.ask(number) is None


def test_several_runs_are_followed_at_the_same_time() -> None:
    records = Records([SIZE] * 100_000)
    for step in range(300):
        for client in range(RUNS):
            window = records.ask(client * 10_000 + step)
            assert (window is None) == (step < FOLLOWING - 1)
    assert len(records.disk.read) < RUNS * 10


def test_two_files_make_two_runs() -> None:
    records = Records([SIZE] * 100)
    for number in range(100):
        records.ask(number, file=number % 2)
    for window in records.disk.read:
        assert window.file in (0, 1)
    assert {window.file for window in records.disk.read} == {0, 1}


def test_without_free_slots_no_window_is_opened() -> None:
    records = Records([SIZE] * 100)
    records.disk.has_room = False
    assert [records.ask(number) for number in range(50)] == [None] * 50
    records.disk.has_room = True
    assert records.ask(50) is not None


def test_a_window_ends_before_a_record_that_is_too_large_for_it() -> None:
    records = Records([SIZE] * 10 + [1 << 40] + [SIZE] * 10)
    for number in range(10):
        records.ask(number)
    assert [window.end for window in records.disk.read] == [records.starts[10]]
    assert records.ask(10) is None  # the large record is read alone, and the run continues
    assert records.ask(11) is not None


def test_long_reads_open_no_window() -> None:
    records = Records([SMALL + 1] * 20)
    assert [records.ask(number) for number in range(20)] == [None] * 20
    assert records.disk.read == []


def test_an_unreadable_window_is_not_used_again() -> None:
    records = Records([SIZE] * 100)
    for number in range(FOLLOWING):
        records.ask(number)
    (window,) = records.disk.read
    records.ahead.forget(window)
    records.ahead.forget(window)
    assert records.ask(FOLLOWING) is None


def test_memory_is_freed_with_its_last_user() -> None:
    records = Records([SIZE] * 100_000)
    for number in range(FOLLOWING):
        records.ask(number)
    (window,) = records.disk.read
    memory = np.zeros(10, np.uint8)
    watch, window.memory = weakref.ref(memory), memory.data
    records.disk.read.clear()
    del memory, window
    gc.disable()
    try:
        for client in range(1, RUNS):
            records.ask(1000 * client)
        assert watch() is not None
        records.ask(1000 * RUNS)
        assert watch() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("piece", [0, 5_000])
def test_a_part_of_a_file_is_found_in_the_window_of_the_file(piece: int) -> None:
    records = Records([SIZE] * 100)
    for number in range(5):
        records.ask(number)
    begin = records.starts[6] + piece
    (window,) = records.ahead.find(FilePiece(6, 0, begin, 5_000, 0, 5_000, None, 0))
    assert window is records.disk.read[0]
    window.memory = memoryview(bytes(range(256)) * 1000)
    part = window.part(FilePiece(6, 0, begin, 5_000, 0, 5_000, None, 0))
    assert part == window.memory[begin - window.begin :][:5_000]


@given(
    sizes=st.lists(st.integers(0, 2 * SMALL), min_size=1, max_size=60),
    steps=st.lists(st.integers(-3, 3), max_size=200),
)
def test_windows_always_contain_the_request_and_are_bounded(
    sizes: list[int], steps: list[int]
) -> None:
    records = Records(sizes)
    number = 0
    for step in steps:
        number = (number + step) % len(sizes)
        records.ask(number)  # checks that the window contains the piece
        assert len(records.ahead._windows) <= 2 * RUNS
    for window in records.disk.read:
        assert 0 < window.end - window.begin <= LONGEST
        assert window.end in records.starts
