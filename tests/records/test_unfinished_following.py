"""Follow the file of a resumable writer until it is finished, also from other processes."""

from __future__ import annotations

import os
import pickle
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ffrecord import BadRecordWarning, ChangedError, ClosedError, FileReader, TimedOutError
from ffrecord.records import iteration, resume, unfinished
from tests.support import archives, handmade
from tests.support.modes import MODES
from tests.support.unfinished import (
    COUNTS,
    RECORDS,
    add,
    all_of,
    data_of,
    flushed,
    follow,
    interrupted,
)

# ---- following -------------------------------------------------------------------------------


class Clock:
    """A clock that advances only in `sleep`. Each sleep runs the next of `events`."""

    def __init__(self, *events: Callable[[], object]) -> None:
        self.now = 0.0
        self.pauses: list[float] = []
        self._events = iter(events)

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds
        next(self._events, lambda: None)()

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def use_clock(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Clock]:
    """Return a function that replaces the time with a `Clock`."""

    def use(*events: Callable[[], object]) -> Clock:
        clock = Clock(*events)
        monkeypatch.setattr(time, "sleep", clock.sleep)
        monkeypatch.setattr(time, "monotonic", clock.monotonic)
        return clock

    return use


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("n", COUNTS)
def test_following_yields_each_record_after_its_flush_and_ends_with_the_file(
    n: int | None, mode: str, end: str, path: Path, use_clock: Callable[..., Clock]
) -> None:
    writer = flushed(path, RECORDS[:2], n)
    use_clock(
        lambda: writer.write(RECORDS[2:3]), add(writer, RECORDS[3]), lambda: None,
        add(writer, *RECORDS[4:7]), lambda: None, lambda: writer.write(RECORDS[7:]), writer.close,
    )  # fmt: skip
    reader = follow(path, mode=mode)
    seen = []
    counts = []
    for record in reader.iterate(follow=True):
        seen.append(record)
        counts.append(reader.n)
    assert handmade.as_bytes(seen) == RECORDS
    assert counts == [2] * 2 + [4] * 2 + [7] * 3 + [9] * 2
    assert not reader.unfinished


def test_following_begins_at_the_given_record(path: Path, use_clock: Callable[..., Clock]) -> None:
    for start, first in ((3, 3), (5, 5), (-2, 3), (0, 0)):
        writer = flushed(path, RECORDS[:5])
        use_clock(add(writer, *RECORDS[5:]), writer.close)
        with follow(path) as reader:
            assert handmade.as_bytes(reader.iterate(start)) == RECORDS[first:5]
            assert handmade.as_bytes(reader.iterate(start, follow=True)) == RECORDS[first:]
        path.unlink()


def test_a_start_beyond_the_records_is_an_error(path: Path) -> None:
    interrupted(path, RECORDS[:5])
    reader = follow(path)
    for start in (6, -6):
        for options in ({}, {"follow": True}):
            with pytest.raises(IndexError, match=f"record {start} is out of range: there are 5"):
                reader.iterate(start, **options)


def test_the_error_of_the_time_limit_names_the_record_to_continue_with(
    path: Path, use_clock: Callable[..., Clock]
) -> None:
    writer = flushed(path, RECORDS[:2])
    reader = follow(path)
    clock = use_clock()
    following = reader.iterate(follow=True, timeout=30)
    assert handmade.as_bytes([next(following), next(following)]) == RECORDS[:2]
    with pytest.raises(TimedOutError, match=r"long\.ffr: .* within 30 s .*iterate\(2, foll") as it:
        next(following)
    assert clock.now == pytest.approx(30)
    assert isinstance(it.value, TimeoutError)
    assert str(pickle.loads(pickle.dumps(it.value))) == str(it.value)
    assert reader.unfinished
    add(writer, *RECORDS[2:])()
    writer.close()
    assert handmade.as_bytes(reader.iterate(2, follow=True)) == RECORDS[2:]


def test_the_time_limit_starts_again_with_each_record(
    path: Path, use_clock: Callable[..., Clock]
) -> None:
    writer = flushed(path, [])
    clock = use_clock(
        *[event for record in RECORDS for event in (lambda: None, add(writer, record))],
        writer.close,
    )
    # The first record comes after 0.003 s. The second takes as long: too long for one limit in all.
    found = follow(path).iterate(follow=True, timeout=0.004)
    assert handmade.as_bytes(found) == RECORDS
    assert clock.now > 0.004


def test_a_time_limit_of_0_looks_once(path: Path, use_clock: Callable[..., Clock]) -> None:
    writer = flushed(path, RECORDS[:1])
    clock = use_clock()
    following = follow(path).iterate(1, follow=True, timeout=0)
    add(writer, RECORDS[1])()
    assert next(following).tobytes() == RECORDS[1]
    with pytest.raises(TimedOutError):
        next(following)
    assert clock.pauses == []
    writer.discard()


def test_waiting_is_not_a_busy_loop(path: Path, use_clock: Callable[..., Clock]) -> None:
    interrupted(path, [])
    clock = use_clock()
    with pytest.raises(TimedOutError):
        list(follow(path).iterate(follow=True, timeout=600))
    assert len(clock.pauses) < 600 / iteration.LONGEST_PAUSE + 20
    assert max(clock.pauses) == iteration.LONGEST_PAUSE


@pytest.mark.parametrize("options", [{"timeout": 1}, {"follow": True, "timeout": -1}])
def test_an_invalid_time_limit_is_refused(options: Any, path: Path) -> None:
    interrupted(path, [])
    with pytest.raises(ValueError, match="timeout"):
        follow(path).iterate(**options)


def test_closing_a_reader_stops_following(path: Path, use_clock: Callable[..., Clock]) -> None:
    interrupted(path, RECORDS[:1])
    reader = follow(path)
    use_clock(lambda: None, reader.close)
    following = reader.iterate(follow=True)
    assert next(following).tobytes() == RECORDS[0]
    with pytest.raises(ClosedError):
        next(following)
    with pytest.raises(ClosedError):
        reader.refresh()


def test_a_reader_closed_during_a_refresh_stays_closed(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = flushed(path, RECORDS[:1])
    reader = follow(path)
    descriptors = handmade.open_descriptors()
    look = unfinished.UnfinishedFile.look

    def look_and_close(growing: unfinished.UnfinishedFile) -> None:
        look(growing)
        reader.close()

    add(writer, RECORDS[1])()
    monkeypatch.setattr(unfinished.UnfinishedFile, "look", look_and_close)
    reader.refresh()
    with pytest.raises(ClosedError):
        reader.read_one(0)
    assert handmade.open_descriptors() < descriptors
    writer.close()


def test_following_raises_when_the_writer_gives_up(
    path: Path, use_clock: Callable[..., Clock]
) -> None:
    writer = flushed(path, RECORDS[:2])
    use_clock(writer.discard, lambda: None)
    following = follow(path).iterate(follow=True)
    assert handmade.as_bytes([next(following), next(following)]) == RECORDS[:2]
    with pytest.raises(ChangedError):
        next(following)


def test_following_can_skip_damaged_records(path: Path, use_clock: Callable[..., Clock]) -> None:
    writer = flushed(path, RECORDS[:3])
    archives.flip(data_of(path), resume.ROOM + 100)
    use_clock(add(writer, *RECORDS[3:]))
    found = follow(path, on_error="skip").iterate(follow=True, timeout=1)
    with pytest.warns(BadRecordWarning, match="record 2"):
        some = [next(found).tobytes() for _ in range(len(RECORDS) - 1)]
    assert some == RECORDS[:2] + RECORDS[3:]
    with pytest.raises(TimedOutError):
        next(found)
    writer.discard()


# ---- other processes -------------------------------------------------------------------------


def test_a_pickled_reader_has_the_same_records_until_it_is_refreshed(end: str, path: Path) -> None:
    writer = flushed(path, RECORDS[:3])
    pickled = pickle.dumps(follow(path))
    for more in (add(writer), add(writer, *RECORDS[3:5]), add(writer, *RECORDS[5:]), writer.close):
        more()
        reader = pickle.loads(pickled)
        assert (all_of(reader), reader.unfinished) == (RECORDS[:3], True)
        assert reader.partition(1, 3) == pickle.loads(pickled).partition(1, 3)
        reader.refresh()
        assert all_of(reader) == RECORDS[: writer.count]
    assert not reader.unfinished
    with flushed(path, [b"another"]):
        again = pickle.loads(pickle.dumps(reader))  # it reads the finished file
        assert (all_of(again), again.unfinished) == (RECORDS, False)
        again = pickle.loads(pickled)  # it saw the beginning of the finished file
        assert all_of(again) == RECORDS[:3]
        again.refresh()
        assert (all_of(again), again.unfinished) == (RECORDS, False)


def test_unpickling_a_reader_whose_records_are_gone_is_a_changed_error(path: Path) -> None:
    writer = flushed(path, RECORDS[:3])
    pickled = pickle.dumps(follow(path))
    writer.discard()
    for others in (RECORDS[:2], RECORDS[1:]):
        with flushed(path, others) as writer:
            with pytest.raises(ChangedError, match="pickled"):
                pickle.loads(pickled)
            writer.discard()


def test_a_reader_pickled_by_an_older_version_opens(path: Path) -> None:
    handmade.write_records(path, RECORDS)
    state = FileReader(path).__getstate__()
    del state["unfinished"]
    reader = FileReader.__new__(FileReader)
    reader.__setstate__(state)
    assert all_of(reader) == RECORDS


def test_a_forked_child_reads_and_refreshes_independently(path: Path) -> None:
    writer = flushed(path, RECORDS[:3])
    reader = follow(path)
    add(writer, *RECORDS[3:])()
    pid = os.fork()
    if pid == 0:
        right = all_of(reader) == RECORDS[:3] and reader.refresh() == len(RECORDS) - 3
        os._exit(0 if right and all_of(reader) == RECORDS else 1)
    assert os.waitpid(pid, 0)[1] == 0
    assert reader.n == 3
    writer.close()


def test_all_descriptors_are_closed_in_the_end(path: Path) -> None:
    before = handmade.open_descriptors()
    writer = flushed(path, RECORDS[:2])
    reader = follow(path)
    for record in RECORDS[2:]:
        add(writer, record)()
        reader.refresh()
    writer.close()
    reader.refresh()
    assert all_of(reader) == RECORDS
    reader.close()
    assert handmade.open_descriptors() == before
