"""The decisions that need no network: gaps, retries, URLs, versions, options."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ffrecord.disk import extents
from ffrecord.remote import link, meter, retries, urls
from ffrecord.remote.answers import Version
from ffrecord.remote.meter import Meter
from ffrecord.remote.options import Options
from ffrecord.remote.trouble import Kind, Span, Trouble, of_obstore, of_status
from tests.support.patience import PATIENCE

METADATA = "http://169.254.169.254/latest/api/token"


def measured(latency: float, bandwidth: float) -> Meter:
    found = Meter()
    for length in (1000, 1 << 20, 1000, 4 << 20):
        found.note(length, latency, latency + length / bandwidth)
    return found


@pytest.mark.parametrize(
    ("latency", "bandwidth", "gap"),
    [
        (0.02, 5e6, 100_000),
        (0.1, 1e6, 100_000),
        (0.0001, 1e6, meter.SMALLEST_GAP),
        (0.2, 1e9, meter.LARGEST_GAP),
    ],
)
def test_the_gap_is_latency_times_bandwidth_within_bounds(
    latency: float, bandwidth: float, gap: int
) -> None:
    assert measured(latency, bandwidth).gap == pytest.approx(gap, rel=0.01)


def test_the_gap_is_a_guess_until_both_were_measured() -> None:
    found = Meter()
    assert found.gap == meter.FIRST_GAP
    found.note(100, 0.01, 0.01)
    assert found.gap == meter.FIRST_GAP


def test_slow_answers_of_a_busy_server_do_not_raise_the_latency_at_once() -> None:
    found = measured(0.02, 5e6)
    found.note(1000, 3.0, 3.0)
    assert found.latency < 0.03
    for _ in range(500):
        found.note(1000, 3.0, 3.0)
    assert found.latency == 3.0


def test_answers_without_a_time_of_the_first_byte_count_too() -> None:
    found = Meter()
    for _ in range(5):
        found.note(1000, 0, 0.02)
        found.note(1 << 20, 0, 0.02 + (1 << 20) / 5e6)
    assert found.gap == pytest.approx(100_000, rel=0.1)


def test_neighbours_are_joined_up_to_the_gap_and_reads_cut_at_the_longest() -> None:
    begin, end = np.array([0, 1500, 9000, 12_000]), np.array([1000, 2000, 11_000, 30_000])
    plan = extents.plan(None, begin, end, 1, gap=600, longest=10_000)
    assert plan.offset.tolist() == [0, 9000, 12_000, 22_000]
    assert plan.length.tolist() == [2000, 2000, 10_000, 8000]


@given(st.integers(1, 5000), st.floats(0, 100), st.floats(0, 1), st.booleans())
def test_pauses_grow_and_never_pass_the_deadline(
    attempts: int, elapsed: float, chance: float, opening: bool
) -> None:
    for kind in Kind:
        wait = retries.pause(kind, attempts, elapsed, 60, chance, opening=opening)
        is_last = opening and attempts >= retries.OPENING_ATTEMPTS
        if kind not in (Kind.BUSY, Kind.CONNECT) or is_last:
            assert wait is None
        elif wait is not None:
            assert elapsed + wait < 60
            full = min(retries.LONGEST, retries.SHORTEST * 2 ** min(attempts - 1, 20))
            assert full / 2 <= wait <= full


def attempts_until(kind: Kind, deadline: float, *, opening: bool) -> tuple[int, float]:
    """Return the attempts until a request is given up, and the seconds of all pauses."""
    attempts, elapsed = 1, 0.0
    while True:
        wait = retries.pause(kind, attempts, elapsed, deadline, 1, opening=opening)
        if wait is None:
            return attempts, elapsed
        attempts, elapsed = attempts + 1, elapsed + wait


def test_a_request_is_given_up_at_the_deadline_and_earlier_while_opening() -> None:
    for kind in (Kind.BUSY, Kind.CONNECT):
        for deadline in (60.0, 300.0, 86400.0):
            assert deadline - retries.LONGEST <= attempts_until(kind, deadline, opening=False)[1]
    assert attempts_until(Kind.BUSY, 300, opening=True)[0] == retries.OPENING_ATTEMPTS
    connecting = attempts_until(Kind.CONNECT, 300, opening=True)
    assert connecting[0] == retries.CONNECT_ATTEMPTS
    assert connecting[1] < 1


def test_an_attempt_gets_time_for_its_bytes_but_not_beyond_the_deadline() -> None:
    assert retries.time_limit(1_000_000, 0, 60) == 20
    assert retries.time_limit(1_000_000, 50, 60) == 10
    assert retries.time_limit(1_000_000, 70, 60) > 0


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.10 does not count cancels")
@pytest.mark.parametrize(
    ("turn", "error"),
    [(["limit"], Trouble), (["cancel"], asyncio.CancelledError),
     (["limit", "cancel"], asyncio.CancelledError), (["cancel", "limit"], asyncio.CancelledError)],
)  # fmt: skip
def test_a_request_that_is_cancelled_at_its_time_limit_is_not_repeated(
    turn: list[str], error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def attempt() -> None:
        running, acts = asyncio.get_running_loop(), dict[str, Callable[[], object]]()

        def call_later(seconds: float, limit: Callable[[], object]) -> asyncio.TimerHandle:
            acts["limit"] = limit
            return running.call_at(running.time() + seconds, limit)

        monkeypatch.setattr(running, "call_later", call_later)
        task = asyncio.create_task(link._within(PATIENCE, asyncio.Event().wait()))
        acts["cancel"] = task.cancel
        await asyncio.sleep(0)  # until it waits
        for act in turn:
            acts[act]()
        with pytest.raises(error):
            await task

    asyncio.run(attempt())


@pytest.mark.parametrize(
    ("status", "kind"),
    [(404, Kind.MISSING), (401, Kind.DENIED), (403, Kind.DENIED), (412, Kind.CHANGED),
     (416, Kind.BEYOND), (429, Kind.BUSY), (408, Kind.BUSY), (500, Kind.BUSY), (503, Kind.BUSY),
     (400, Kind.OTHER)],
)  # fmt: skip
def test_a_status_has_a_kind(status: int, kind: Kind) -> None:
    assert of_status(status).kind is kind
    text = f"Error performing GET https://x/?sig=SECRET - non-2xx status code: {status} Why"
    found = of_obstore(Exception(text), None)
    assert found.kind is kind
    assert "SECRET" not in str(found)


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [(400, "ExpiredToken", Kind.DENIED), (400, "InvalidToken", Kind.DENIED),
     (400, "TokenRefreshRequired", Kind.DENIED), (400, "RequestTimeout", Kind.BUSY),
     (400, "InvalidArgument", Kind.OTHER), (403, "RequestTimeTooSkewed", Kind.DENIED),
     (503, "SlowDown", Kind.BUSY)],
)  # fmt: skip
def test_the_code_of_s3_is_in_the_message(status: int, code: str, kind: Kind) -> None:
    text = f"Server returned non-2xx status code: {status} Why: <?xml?><Error><Code>{code}</Code>"
    found = of_obstore(Exception(f"{text}<Message>SECRET</Message></Error>"), None)
    assert found.kind is kind
    assert found.what == f"the server answered with status {status} ({code})"


def test_a_server_without_a_connection_is_named() -> None:
    text = "Error performing GET https://u:SECRET@h.example:9/b/x?sig=SECRET in 1ms - HTTP error: "
    found = of_obstore(Exception(f"{text}error sending request: ConnectError(tcp connect)"), None)
    assert found.kind is Kind.CONNECT
    assert found.what == "no connection to h.example:9"
    found = of_obstore(Exception(f"Error performing PUT {METADATA}: Connection refused"), None)
    assert found.what.startswith("no credentials were found")


@pytest.mark.parametrize(
    ("url", "kind"),
    [
        ("http://h/partial/a.ffr", Kind.BUSY), ("https://credentials.s3.x/a.ffr", Kind.BUSY),
        ("http://h/BadScheme/tcp%20connect/suffix", Kind.BUSY), (METADATA, Kind.DENIED),
    ],
)  # fmt: skip
def test_the_name_of_an_object_does_not_explain_a_failure(url: str, kind: Kind) -> None:
    text = f"Generic HTTP error: Error performing GET {url} in 1ms - HTTP error: error sending "
    text += f"request\n\nDebug source:\nRetryError {{ uri: Some(\n    {url},\n), inner: Http }}"
    assert of_obstore(Exception(text), Span(-100)).kind is kind


@pytest.mark.parametrize(
    ("text", "is_url"),
    [
        ("s3://bucket/key", True), ("http://h/a?b", True), ("gs://b", True), ("a+b.c-d://x", True),
        ("c://x", False), ("/data/a.ffr", False), ("a.ffr", False), ("./s3://x", False),
        ("://x", False), ("1s://x", False), ("s3:/x", False),
    ],
)  # fmt: skip
def test_a_url_begins_with_a_scheme_of_two_letters(text: str, is_url: bool) -> None:
    assert urls.is_url(text) is is_url
    assert urls.is_remote(text) is is_url
    assert urls.is_remote([text, "a"]) is is_url


@pytest.mark.parametrize(
    ("url", "shown", "joined"),
    [
        ("https://u:p@h:1/a/b?sig=1#f", "https://h:1/a/b", "https://u:p@h:1/a/b/n?sig=1#f"),
        ("s3://bucket/a/", "s3://bucket/a/", "s3://bucket/a/n"),
        ("s3://bucket", "s3://bucket", "s3://bucket/n"),
        ("memory:///a/b", "memory:///a/b", "memory:///a/b/n"),
        ("/local?x", "/local?x", "/local?x/n"),
        ("s3://k:s@bucket/run#1?a", "s3://bucket/run#1?a", "s3://k:s@bucket/run#1?a/n"),
        ("az://b/a.ffr?sv=1&sig=s", "az://b/a.ffr", "az://b/a.ffr?sv=1&sig=s/n"),
        ("GS://bucket/50%\n/", "gs://bucket/50%\n/", "GS://bucket/50%\n/n"),
    ],
)
def test_urls_are_shown_without_secrets_and_joined_before_the_query(
    url: str, shown: str, joined: str
) -> None:
    assert urls.shown(url) == shown
    assert urls.joined(url, "n") == joined


@pytest.mark.parametrize(
    ("folder", "joined"),
    [
        ("https://h/a/", "https://h/a/d/50%25%20%23%3F.ffr"), ("s3://b", "s3://b/d/50% #?.ffr"),
        ("memory://a", "memory://a/d/50% #?.ffr"), ("key", "key/d/50% #?.ffr"),
    ],
)  # fmt: skip
def test_names_are_quoted_in_urls_of_web_servers(folder: str, joined: str) -> None:
    assert urls.joined(folder, "d/50% #?.ffr") == joined


@pytest.mark.parametrize(
    ("path", "is_folder"),
    [
        ("http://h/a/?b", True), ("http://h/a/#b", True), ("http://h/a?b/", False),
        ("s3://b/a?b/", True), ("s3://b/a/?b", False), ("s3://b/", True), ("a/", True),
        ("a", False),
    ],
)  # fmt: skip
def test_a_folder_ends_with_a_slash(path: str, is_folder: bool) -> None:
    assert urls.is_folder(path) is is_folder


def test_versions_agree_by_tag_or_by_time() -> None:
    one = Version(10, '"a"', 1.0)
    assert one.agrees(Version(10, '"a"', 2.0))
    assert one.agrees(Version(10, 'W/"a"', 1.0))
    assert one.agrees(Version(10, None, 1.0))
    assert not one.agrees(Version(10, '"b"', 1.0))
    assert not one.agrees(Version(11, '"a"', 1.0))
    assert not one.agrees(Version(10, None, 2.0))
    assert one.match == '"a"'
    assert Version(10, 'W/"a"', 1.0).match is None


@given(st.integers(0, 100), st.integers(1, 100), st.integers(0, 150))
def test_a_span_lies_within_the_object(begin: int, length: int, size: int) -> None:
    content = bytes(size)
    low, high = Span(begin, begin + length).within(size)
    assert max(0, high - low) == len(content[begin : begin + length])
    low, high = Span(-length).within(size)
    assert (low, high) == (size - len(content[-length:]), size)


def test_options_show_no_secrets() -> None:
    assert "SECRET" not in repr(Options({"secret": "SECRET"}, "SECRET", "SECRET"))
