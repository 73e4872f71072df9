"""Read the file of a resumable writer while it works, and after it is killed at any call."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import random
import signal
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from ffrecord import ChangedError, FileReader, FileWriter
from ffrecord.atomic import file as atomic_file
from ffrecord.records.resume import Journal
from tests.support import handmade, kills
from tests.support.unfinished import (
    RECORDS,
    add,
    all_of,
    data_of,
    flushed,
    follow,
    interrupted,
    journal_of,
)

# ---- races -----------------------------------------------------------------------------------

CALLS = ("stat", "open", "fstat", "preadv")
Event: TypeAlias = "Callable[[FileWriter, Path], None]"


def _finish(writer: FileWriter, path: Path) -> None:
    writer.write(RECORDS[writer.count :])
    writer.close()


def _finish_and_start_another(writer: FileWriter, path: Path) -> None:
    _finish(writer, path)
    interrupted(path, [b"another"])


def _start_again(writer: FileWriter, path: Path) -> None:
    writer.discard()
    interrupted(path, [b"another"])


EVENTS: dict[str, tuple[Event, list[list[bytes]]]] = {
    "flushed": (lambda writer, path: add(writer, RECORDS[4])(), [RECORDS[:4], RECORDS[:5]]),
    "finished": (_finish, [RECORDS[:4], RECORDS]),
    "finished, then another started": (
        _finish_and_start_another,
        [RECORDS[:4], RECORDS, [b"another"]],
    ),
    "given up": (lambda writer, path: writer.discard(), [RECORDS[:4]]),
    "started again": (_start_again, [RECORDS[:4], [b"another"]]),
}


LAST: dict[str, list[bytes]] = {
    "flushed": RECORDS[:5], "finished": RECORDS, "finished, then another started": RECORDS,
    "given up": [], "started again": [],
}  # fmt: skip
"""Records that a reader sees after the event if it saw the first four before. Empty: the first four
are gone."""


class Race:
    """Run an event before one of the system calls of a look, and count those calls."""

    def __init__(self, at: int, event: Callable[[], None]) -> None:
        self._at, self._event = at, event
        self.calls = 0

    def wrap(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            self.calls += 1
            if self.calls == self._at + 1:
                self._event()
            return call(*args, **kwargs)

        return wrapped

    def run(self, look: Callable[[], FileReader]) -> FileReader:
        with pytest.MonkeyPatch.context() as patch:
            for name in CALLS:
                patch.setattr(os, name, self.wrap(getattr(os, name)))
            return look()


def test_a_journal_started_while_a_reader_opens_is_not_mixed_with_the_old_one(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A writer makes its file first, then starts its journal. An older journal may still exist."""
    others = [b"something else", b"x" * 5000, b""]
    start = Journal.start
    finds: list[tuple[bool, list[bytes]]] = []

    def start_while_a_reader_opens(journal: Journal, n: int | None, begin: int) -> None:
        def start_and_add() -> None:
            start(journal, n, begin)
            data_of(path).write_bytes(bytes(begin) + b"".join(others))
            ends = itertools.accumulate(map(len, others), initial=begin)
            journal.add(list(ends)[1:], [zlib.crc32(each) for each in others])

        race = Race(at, start_and_add)
        reader = race.run(lambda: follow(path))
        finds.append((race.calls > at, all_of(reader)))
        reader.refresh()
        assert all_of(reader) == (others if finds[-1][0] else [])

    at = 0
    while not finds or finds[-1][0]:
        interrupted(path, RECORDS[:3])
        data_of(path).unlink()
        with monkeypatch.context() as patch:
            patch.setattr(Journal, "start", start_while_a_reader_opens)
            writer = FileWriter(path, resumable=True)
        writer.discard()
        at += 1
    assert at > 5
    assert all(found in ([], others) for _, found in finds)
    assert others in [found for _, found in finds]


@pytest.mark.parametrize("what", EVENTS)
@pytest.mark.parametrize("first", [True, False], ids=["opening", "looking again"])
def test_a_look_sees_one_state_or_raises_whatever_happens_between_its_calls(
    first: bool, what: str, end: str, path: Path
) -> None:
    event, possible = EVENTS[what]
    at, seen = 0, set()
    while True:
        writer = flushed(path, RECORDS[:4])
        early = None if first else follow(path)

        def look(early: FileReader | None = early) -> FileReader:
            if early is None:
                return follow(path)
            early.refresh()
            return early

        found: list[bytes] = []
        race = Race(at, lambda writer=writer: event(writer, path))  # type: ignore[misc]
        try:
            reader = race.run(look)
            found = all_of(reader)
            assert found in possible
            if early is not None:
                assert found[:4] == RECORDS[:4]
            seen.add(len(found))
            if race.calls > at:  # the event has happened, so the next refresh sees it
                reader.refresh()
                assert all_of(reader) == (LAST[what] if found[:1] != [b"another"] else found)
        except (ChangedError, FileNotFoundError):
            assert what == "given up" or (not LAST[what] and (early is not None or found))
        writer.discard()
        for each in (path, data_of(path), journal_of(path)):
            each.unlink(missing_ok=True)
        if race.calls <= at:
            break
        at += 1
    assert at > 5  # otherwise no race was tried
    assert seen


# ---- kills -----------------------------------------------------------------------------------

SHORT, LONG = 6, 60
KILLS = [SHORT, pytest.param(LONG, marks=pytest.mark.long)]
MANY = handmade.random_records([50_000, 0, 123_456, 7, 4096] * 5, seed=2)


def write_resumably(path: Path, n: int | None, tell: Callable[[int], None]) -> None:
    with FileWriter(path, n, resumable=True) as writer:
        while writer.count < len(MANY):
            writer.write_one(MANY[writer.count])
            if writer.count % 3 == 0:
                writer.flush()
                tell(writer.count)


@pytest.mark.parametrize("n", [None, len(MANY)])
def test_after_every_call_of_the_writer_a_reader_sees_the_first_records(
    n: int | None, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(atomic_file, "SMALL_BUFFER", 16 << 10)
    told = 0
    readers: dict[str, FileReader] = {}

    def tell(count: int) -> None:
        nonlocal told
        told = count

    def watch() -> None:
        """Check, after each call of the writer, that all flushed records are visible.

        There may be more: the journal entry is written before `flush` returns.
        """
        try:
            fresh = follow(path, mode="buffered")
        except FileNotFoundError:
            assert not told
            return
        for each in (fresh, readers.setdefault("first", fresh)):
            before = each.n
            added = each.refresh()
            assert each.n == before + added >= told
            assert handmade.as_bytes(each[before:]) == MANY[before : each.n]
        assert fresh.n == readers["first"].n

    def work(_tell: Callable[[int], None]) -> None:
        write_resumably(path, n, tell)

    kills.run(work, None, watch)
    assert handmade.records_in(path.read_bytes()) == MANY


@pytest.mark.parametrize("count", KILLS)
@pytest.mark.parametrize("n", [None, len(MANY)])
def test_a_reader_survives_killed_writers_and_sees_all_records_in_the_end(
    n: int | None, count: int, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(atomic_file, "SMALL_BUFFER", 16 << 10)
    # Without fsync, for speed: a kill loses no written data.
    monkeypatch.setattr(os, "fsync", lambda _fd: None)

    def work(tell: Callable[[int], None]) -> None:
        write_resumably(path, n, tell)

    _, calls, _ = kills.run(work, None)
    path.unlink()
    for number, point in enumerate(kills.points(calls, count)):
        reader, flushed_so_far = None, 0
        for stop in (point, kills.points(calls, count)[number // 2], None):
            told, _, _ = kills.run(work, stop)
            flushed_so_far = max(flushed_so_far, told if stop is not None else len(MANY))
            try:
                reader = reader or follow(path)
            except FileNotFoundError:
                assert not flushed_so_far
                continue
            reader.refresh()
            assert reader.n >= flushed_so_far or not reader.unfinished
            assert all_of(reader) == MANY[: reader.n]
        assert reader is not None
        assert (reader.n, reader.unfinished) == (len(MANY), False)
        path.unlink()


def _consume(path: str, mode: str, out: str) -> None:
    """Wait until the file exists, follow it, and write all records to `out`."""
    while True:
        try:
            reader = FileReader(path, unfinished=True, mode=mode)
            break
        except FileNotFoundError:
            time.sleep(0.001)
    with open(out, "wb") as file:
        for record in reader.iterate(follow=True, timeout=600):
            file.write(len(record).to_bytes(8, "little") + record.tobytes())


def records_in_output(raw: bytes) -> Iterator[bytes]:
    while raw:
        size = int.from_bytes(raw[:8], "little")
        yield raw[8 : 8 + size]
        raw = raw[8 + size :]


@pytest.mark.parametrize("count", KILLS)
@pytest.mark.parametrize("n", [None, len(MANY)])
@pytest.mark.parametrize("mode", ["auto", "mmap"])
def test_a_process_follows_a_writer_that_is_killed_and_restarted_at_random(
    mode: str, n: int | None, count: int, tmp_path: Path
) -> None:
    path, out = tmp_path / "long.ffr", tmp_path / "seen"
    consumer = multiprocessing.get_context("fork").Process(
        target=_consume, args=(str(path), mode, str(out))
    )
    consumer.start()

    def work() -> None:
        write_resumably(path, n, lambda _: None)

    seed = random.randrange(1 << 32)
    print(f"seed {seed}")  # shown if the test fails, to repeat these moments
    chance = random.Random(seed)
    try:
        for _ in range(count):
            if not kills.run_for(chance.uniform(0, 0.05), work, lambda: None) and path.exists():
                break
        if not path.exists():
            work()
        consumer.join(600)
        assert consumer.exitcode == 0
    finally:
        if consumer.is_alive() and consumer.pid is not None:
            os.kill(consumer.pid, signal.SIGKILL)
            consumer.join()
    assert list(records_in_output(out.read_bytes())) == MANY
