"""Faults of servers and networks: right bytes or an error of ours, and nothing hangs."""

from __future__ import annotations

import random
import re
import subprocess
import sys
import traceback
from typing import Any

import pytest

from ffrecord import (
    FFRecordError,
    FileReader,
    PackedFolder,
    RemoteError,
    SampleChecksumError,
)
from ffrecord.remote import retries
from tests.remote.conftest import COUNT, Site
from tests.remote.proxy import REPEATED, Fault, Proxy, Request
from tests.support import archives, handmade, trees
from tests.support.patience import PATIENCE

FILES = {f"d/{i:03}": trees.content(50 * i, i) for i in range(100)}


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retries, "SHORTEST", 0.001)
    monkeypatch.setattr(retries, "LONGEST", 0.01)


def at(numbers: Any, fault: str) -> Fault:
    return lambda request: fault if request.number in numbers else None


@pytest.mark.parametrize("fault", [each for each in REPEATED if each != "200"])
def test_a_fault_that_does_not_last_is_repaired_by_another_attempt(
    through: Proxy, record_file: str, records: list[bytes], fault: str
) -> None:
    through.fault = at({0, 1, 2, 4, 5}, fault)
    with FileReader(f"{through.url}/{record_file}") as reader:
        assert handmade.as_bytes(reader.read(range(100))) == records[:100]
        assert reader.stats()["repeated"] > 0


@pytest.mark.parametrize("fault", ["429", "500", "503", "reset", "short", "long", "lie", "shift"])
def test_a_fault_that_lasts_is_an_error_with_url_range_and_status(
    through: Proxy, record_file: str, fault: str
) -> None:
    with FileReader(f"{through.url}/{record_file}", deadline=1.0) as reader:
        first = len(through.requests)
        through.fault = lambda request: fault if request.number >= first else None
        with pytest.raises(RemoteError) as caught:
            reader.read([500, 1400, 900])
    error = caught.value
    assert error.filename == f"{through.url}/{record_file}"
    assert error.status == (int(fault) if fault.isdigit() else None)
    assert error.attempts > retries.OPENING_ATTEMPTS  # until the deadline
    assert re.search(r"records\.ffr: reading bytes \d+ to \d+ failed \d+ times: ", str(error))
    assert fault in str(error) or not fault.isdigit()


@pytest.mark.parametrize(("fault", "kind"), [("400", RemoteError), ("403", PermissionError)])
def test_a_refusal_is_not_repeated(
    through: Proxy, record_file: str, fault: str, kind: type[OSError]
) -> None:
    through.fault = lambda request: fault
    with pytest.raises(kind) as caught:
        FileReader(f"{through.url}/{record_file}")
    assert caught.value.filename == f"{through.url}/{record_file}"
    assert len(through.requests) == 2


def test_credentials_of_stores_are_no_advice_for_web_servers(
    through: Proxy, record_file: str
) -> None:
    through.fault = lambda request: "403"
    with pytest.raises(PermissionError, match="check the URL: its signature") as caught:
        FileReader(f"{through.url}/{record_file}")
    assert "storage_options" not in str(caught.value)


def test_a_server_without_ranges_is_an_error_that_says_so(through: Proxy, record_file: str) -> None:
    through.fault = lambda request: "200"
    with pytest.raises(RemoteError, match="does not answer requests for ranges"):
        FileReader(f"{through.url}/{record_file}")


def test_a_missing_object_is_a_file_not_found_error(through: Proxy) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        FileReader(f"{through.url}/nowhere.ffr")
    assert caught.value.filename == f"{through.url}/nowhere.ffr"


def test_an_empty_object_is_a_truncated_file(through: Proxy, site: Site) -> None:
    (site.folder / "empty.ffr").write_bytes(b"")
    with pytest.raises(FFRecordError, match="it has 0 bytes"):
        FileReader(f"{through.url}/empty.ffr")


def test_a_server_that_never_answers_is_an_error_after_the_deadline(
    through: Proxy, record_file: str
) -> None:
    with FileReader(f"{through.url}/{record_file}", deadline=0.3) as reader:
        through.fault = lambda request: "hang"
        with pytest.raises(RemoteError, match="no whole answer within"):
            reader.read(range(10))
        through.fault = lambda request: None
        assert len(reader.read(range(10))) == 10


def test_a_record_that_arrives_damaged_is_fetched_once_more(
    through: Proxy, record_file: str, records: list[bytes]
) -> None:
    with FileReader(f"{through.url}/{record_file}") as reader:
        first = len(through.requests)
        longest = max(range(COUNT), key=lambda i: len(records[i]))
        through.fault = at({first}, "flip")
        assert bytes(reader.read_one(longest)) == records[longest]
        assert len(through.requests) == first + 2
        through.fault = at({first + 2}, "flip")
        assert handmade.as_bytes(reader.read(range(100))) == records[:100]
        assert len(through.requests) == first + 4
        through.fault = lambda request: "flip"
        with pytest.raises(SampleChecksumError, match=r"records\.ffr: record \d+ is damaged"):
            reader.read_one(longest)


@pytest.mark.parametrize("which", [0, 1])
def test_a_header_or_index_that_arrives_damaged_is_fetched_once_more(
    through: Proxy, packed: str, which: int
) -> None:
    wrong = "0-262143" if which else "-262144"
    through.fault = lambda request: "flip" if request.range == wrong else None
    with PackedFolder(f"{through.url}/{packed}") as folder:
        assert handmade.as_bytes(folder.read(list(FILES))) == list(FILES.values())


@pytest.fixture(scope="module")
def packed(site: Site, tmp_path_factory: pytest.TempPathFactory) -> str:
    top = trees.plain_tree(tmp_path_factory.mktemp("faults") / "top", FILES)
    archives.pack(top, site.folder / "faults.ffr")
    return "faults.ffr"


@pytest.mark.parametrize("seed", range(8))
def test_random_faults_give_right_bytes_or_an_error_of_ours(
    through: Proxy, record_file: str, packed: str, records: list[bytes], seed: int
) -> None:
    """About 1,000 faults in all."""
    chance = random.Random(seed)
    faults = [*REPEATED, "flip", "flip", "400", "hang"]
    made: list[str] = []

    def fault(request: Request) -> str | None:
        if chance.random() > 0.3:
            return None
        made.append(chance.choices(faults, [8] * (len(faults) - 2) + [1, 1])[0])
        return made[-1]

    through.fault = fault
    right = failed = 0
    while len(made) < 130:
        try:
            if chance.random() < 0.2:
                names = chance.sample(list(FILES), 20)
                with PackedFolder(f"{through.url}/{packed}", deadline=2.0) as folder:
                    assert handmade.as_bytes(folder.read(names)) == [FILES[n] for n in names]
                    right += 1
                continue
            with FileReader(f"{through.url}/{record_file}", deadline=2.0) as reader:
                for _ in range(4):
                    chosen = chance.choices(range(COUNT), k=chance.choice([1, 2, 20]))
                    found = handmade.as_bytes(reader.read(chosen))
                    assert found == [records[i] for i in chosen]
                    right += 1
        except (FFRecordError, OSError):
            failed += 1
    assert right
    assert set(made) & {"flip", "reset", "503"}


LATE = """
import atexit, sys
import ffrecord
def late():
    for ask in (lambda: reader.read([0]), started.result, reader.close):
        try:
            ask()
        except RuntimeError as error:
            print(error)
atexit.register(late)  # before the first request, so it is called after the end of all requests
reader = ffrecord.FileReader(sys.argv[1])
started = reader.read_async(range(1000))
"""


def test_requests_at_the_end_of_the_interpreter_are_errors(
    through: Proxy, record_file: str
) -> None:
    through.fault = lambda request: "hang" if request.number > 1 else None
    words = [sys.executable, "-c", LATE, f"{through.url}/{record_file}"]
    run = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE, check=True)
    assert run.stderr == ""
    assert run.stdout.count("Python is shutting down, so no request can be sent") == 2


def test_no_message_contains_a_secret(through: Proxy, record_file: str) -> None:
    url = through.url.replace("://", "://user:PASSWORD@") + f"/{record_file}?X-Signature=SECRET"
    for fault in ("403", "400", "503", "reset", "200", "lie"):
        through.fault = lambda request, fault=fault: fault  # type: ignore[misc]
        with pytest.raises((FFRecordError, OSError)) as caught:
            FileReader(url, storage_options={"client_options": {"user_agent": "TOKEN"}})
        text = "".join(traceback.format_exception(caught.value)) + repr(caught.value)
        for secret in ("SECRET", "PASSWORD", "TOKEN"):
            assert secret not in re.sub(r"(?m)^    .*$", "", text)
