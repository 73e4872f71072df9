"""Opening objects of stores that are unlike nginx and moto: a store in memory with such habits."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from ffrecord import ChangedError, RemoteError
from ffrecord.remote import opening, retries, source
from ffrecord.remote.answers import Answer, Place, Version
from ffrecord.remote.link import Link
from ffrecord.remote.opening import open_places
from ffrecord.remote.source import RemoteSources
from ffrecord.remote.trouble import Kind, Span, Trouble
from tests.support.patience import PATIENCE

CONTENT = np.random.default_rng(0).bytes(100_000)


class Memory:
    """A store of one object. `habit` says in which way it differs from others."""

    def __init__(self, habit: str = "") -> None:
        self.habit = habit
        self.spans: list[Span] = []
        self.refusals = 0  # connections to refuse

    async def get(self, key: str, span: Span, pinned: Version | None) -> Answer:
        self.spans.append(span)
        if self.habit == "no suffixes" and span.is_suffix:
            raise Trouble(Kind.NO_SUFFIX, "not supported")
        self.refusals -= self.refusals > 0
        if self.habit == "no connection" or self.refusals:
            raise Trouble(Kind.CONNECT, "no connection to the server")
        tag = f'"{len(self.spans)}"' if self.habit == "replaced all the time" else '"tag"'
        if self.habit == "replaced once":
            tag = f'"{min(len(self.spans), 2)}"'
        begin, end = span.within(len(CONTENT))
        return Answer(CONTENT[begin:end], begin, Version(len(CONTENT), tag, None))

    async def get_unless(self, key: str, span: Span, known: Version) -> Answer | None:
        return await self.get(key, span, None)

    def object_identity(self, key: str) -> str | None:
        return None

    async def recheck(self, key: str, pinned: Version) -> None:
        pass

    async def names(self, key: str) -> list[str]:
        return []


def place(store: Memory, key: str) -> Place:
    return Place(cast(Any, store), key, "s3://bucket/key")  # nothing is written here


def opened(store: Memory, monkeypatch: pytest.MonkeyPatch, guess: int = 1000) -> RemoteSources:
    monkeypatch.setattr(opening, "GUESS", guess)
    monkeypatch.setattr(opening, "SMALLEST_GUESS", guess)
    monkeypatch.setattr(retries, "SHORTEST", 0.001)
    return open_places(Link(64, 5.0), [place(store, "key")])


@pytest.mark.parametrize("guess", [1000, 70_000, 200_000])
@pytest.mark.parametrize("habit", ["", "no suffixes"])
def test_every_byte_can_be_read_wherever_it_was_kept(
    habit: str, guess: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Memory(habit)
    (found,) = opened(store, monkeypatch, guess).each
    assert found.size() == len(CONTENT)
    for offset, length in ((0, 100_000), (500, 1000), (99_000, 1000), (98_999, 1001), (7, 0)):
        assert found.read_bytes(offset, length) == CONTENT[offset : offset + length]
    found.will_need(0, len(CONTENT))
    assert found.read_bytes(2000, 5000) == CONTENT[2000:7000]
    assert found.read_bytes(0, 100_000) == CONTENT
    found.distrust()
    assert found.read_bytes(0, 100_000) == CONTENT


def test_a_store_without_suffixes_is_asked_once_more(monkeypatch: pytest.MonkeyPatch) -> None:
    store = Memory("no suffixes")
    opened(store, monkeypatch)
    assert store.spans[2:] == [Span(99_000, 100_000)]


def test_an_object_that_was_replaced_between_the_first_answers_is_opened_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = Memory("replaced once")
    opened(store, monkeypatch)
    assert len(store.spans) == 4


def test_an_object_that_is_replaced_all_the_time_is_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(ChangedError, match="s3://bucket/key: replaced"):
        opened(Memory("replaced all the time"), monkeypatch)


def test_a_server_that_cannot_be_reached_is_given_up_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    store = Memory("no connection")
    with pytest.raises(RemoteError, match="failed 4 times: no connection"):
        opened(store, monkeypatch)
    assert len(store.spans) == 2 * retries.CONNECT_ATTEMPTS


def test_bytes_whose_read_ahead_failed_are_requested_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = Memory()
    (found,) = opened(store, monkeypatch).each
    store.habit = "no connection"
    found.will_need(5000, 20_000)
    (asked,) = found._ahead.values()
    assert asked[1].exception(PATIENCE)
    with pytest.raises(RemoteError, match="no connection"):
        found.read_bytes(7000, 100)
    store.habit = ""
    assert found.read_bytes(7000, 100) == CONTENT[7000:7100]
    assert found.read_bytes(4000, 30_000) == CONTENT[4000:34_000]


def test_a_reader_survives_a_restart_of_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    store = Memory()
    sources = opened(store, monkeypatch)
    (found,) = sources.each
    monkeypatch.setattr(retries, "LONGEST", 0.002)
    store.refusals = 4 * retries.OPENING_ATTEMPTS
    assert found.read_bytes(2000, 5000) == CONTENT[2000:7000]
    assert sources.link.repeated == 4 * retries.OPENING_ATTEMPTS - 1


def test_bytes_are_copied_to_a_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(source, "PART", 4096)
    (found,) = opened(Memory(), monkeypatch).each
    with open(tmp_path / "copy", "wb") as file:
        found.copy_to(file.fileno(), 500, 50_000)
    assert (tmp_path / "copy").read_bytes() == CONTENT[500:50_500]


def test_many_files_are_asked_for_fewer_first_bytes_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "GUESSES", 64 << 10)
    store = Memory()
    open_places(Link(64, 5.0), [place(store, str(k)) for k in range(3)])
    first = (64 << 10) // 3
    assert sorted(store.spans, key=lambda span: span.begin) == [
        Span(-first), *[Span(0, first)] * 3,
    ]  # fmt: skip
