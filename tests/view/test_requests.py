"""Requests to the server: who is answered, with which bytes, and under which rules."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import pickle
import resource
import shutil
import socket
import struct
import time
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import numpy as np
import pytest

import ffrecord
from ffrecord.format.index import LEGACY_MAGIC
from ffrecord.view.answers import Answer
from ffrecord.view.opening import open_path
from ffrecord.view.requests import Request
from ffrecord.view.server import MOST_STRANGERS, Server
from tests.remote.servers import nginx
from tests.support import archives, handmade
from tests.view import browsers, corpus
from tests.view.conftest import DAMAGED

PATIENCE = 60  # seconds


class Client:
    """Sends requests to a server as a browser does."""

    def __init__(self, server: Server) -> None:
        split = urlsplit(server.url)
        self.address = str(split.hostname), int(split.port or 0)
        self.token = split.path.strip("/")
        self.host = split.netloc

    def send(
        self, target: str, method: str = "GET", host: str | None = None, **headers: str
    ) -> tuple[int, dict[str, str], bytes]:
        connection = http.client.HTTPConnection(*self.address, timeout=PATIENCE)
        try:
            connection.putrequest(method, target, skip_host=True)
            if host != "":
                connection.putheader("Host", self.host if host is None else host)
            for name, value in headers.items():
                connection.putheader(name, value)
            connection.endheaders()
            answer = connection.getresponse()
            found = {name.lower(): value for name, value in answer.getheaders()}
            return answer.status, found, answer.read()
        finally:
            connection.close()

    def get(self, path: str, **headers: str) -> tuple[int, dict[str, str], bytes]:
        return self.send(f"/{self.token}/{path}", **headers)

    def ask(self, path: str) -> Any:
        status, _, body = self.get(path)
        assert status == 200, body
        return json.loads(body)


@pytest.fixture
def client(folder: Server) -> Client:
    return Client(folder)


def key_of(client: Client, path: str) -> int:
    return int(client.ask(f"api/locate?path={quote(path)}")["row"]["id"])


# ---- who is answered -----------------------------------------------------------------------


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "X"])
@pytest.mark.parametrize(
    "path",
    [
        "/", "", "/x", "/api/about", "/{short}/api/about", "/{token}x/", "/{upper}/", "/%2e%2e/",
        "//{token}x/file?key=0", "/file?key=0&token={token}", "*", "http://127.0.0.1/", "/{token}",
        "/é", "/static/app.js", "/{token}%2fapi/about",
    ],
)  # fmt: skip
def test_without_the_token_everything_is_forbidden(client: Client, method: str, path: str) -> None:
    token = client.token
    target = path.format(token=token, short=token[:-1], upper=token.swapcase()) or "/"
    status, _, body = client.send(quote(target, safe="/?&=*:%"), method)
    assert status == 403
    assert token.encode() not in body


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:{port}", 200), ("localhost:{port}", 200), ("localhost", 200),
        ("LOCALHOST", 200),
        ("[::1]:80", 200), ("192.168.1.7:8000", 200),  # addresses cannot be rebound
        ("evil.example", 403), ("evil.example:{port}", 403), ("127.0.0.1.evil.example", 403),
        ("localhost.evil.example:{port}", 403), ("evil@127.0.0.1.nip.io", 403), ("", 403),
        ("[::1", 403), ("127.0.0.1:x y", 200),
    ],
)  # fmt: skip
def test_a_host_must_be_an_address_or_localhost(client: Client, host: str, status: int) -> None:
    host = host.format(port=client.address[1])
    for token in (client.token, "wrong"):
        found = client.send(f"/{token}/api/about", host=host)[0]
        assert found == (status if token == client.token else 403)


@pytest.mark.parametrize(
    "raw",
    [
        b"GARBAGE\r\n\r\n", b"GET\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET / HTTP/9.9\r\n\r\n", b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\n",
        b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 200 + b"\r\n",
    ],
)  # fmt: skip
def test_garbage_is_forbidden_and_the_server_goes_on(
    client: Client, raw: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_connection(client.address, timeout=PATIENCE) as connection:
        connection.sendall(raw)
        connection.shutdown(socket.SHUT_WR)
        answer = b""
        while piece := connection.recv(65536):
            answer += piece
    assert not answer or b" 403 " in answer.splitlines()[0]
    assert client.ask("api/about")["kind"] == "folder"
    assert capsys.readouterr().err == ""


def test_connections_without_the_token_do_not_keep_others_out(client: Client) -> None:
    with contextlib.ExitStack() as opened:
        waiting = [
            opened.enter_context(socket.create_connection(client.address, timeout=PATIENCE))
            for _ in range(MOST_STRANGERS)
        ]
        for each in waiting:
            each.sendall(b"GET / HTTP/1.1\r\n")
        assert client.ask("api/about")["kind"] == "folder"
        assert waiting[0].recv(1) == b""  # the oldest was closed
        waiting[-1].sendall(b"\r\n")
        assert waiting[-1].recv(100).startswith(b"HTTP/1.1 403")


def test_requests_are_answered_by_a_program_with_many_open_files(client: Client) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 2048:
        pytest.skip("this process may not open more files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2048), hard))
    try:
        with contextlib.ExitStack() as opened:
            for _ in range(1100):
                opened.enter_context(open(os.devnull, "rb"))
            assert client.ask("api/list?pattern=*.jpg&reverse=1")["total"] > 60
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_only_verify_takes_a_post(client: Client) -> None:
    assert client.send(f"/{client.token}/api/about", "POST")[0] == 405
    assert client.send(f"/{client.token}/api/about", "DELETE")[0] == 405
    assert client.send(f"/{client.token}/api/verify", "GET")[0] == 200


def test_every_server_has_its_own_token(archive: Path) -> None:
    with browsers.served(archive) as one, browsers.served(archive) as two:
        assert one.url != two.url
        assert len(Client(one).token) == 24


def test_the_policy_of_the_page_allows_nothing_from_elsewhere(client: Client) -> None:
    status, headers, body = client.get("")
    assert status == 200
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    assert headers["referrer-policy"] == "no-referrer"
    assert b"http" not in body  # no other host


# ---- nothing outside the archive -----------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    [
        "static/../__init__.py", "../../etc/passwd", "%2e%2e/%2e%2e/etc/passwd", "__init__.py",
        "/etc/passwd", "static/app.js", "app.js/../../server.py", "index.html",
    ],
)  # fmt: skip
def test_no_path_leads_out_of_the_page(client: Client, path: str) -> None:
    status, _, body = client.get(path)
    assert status == 404
    assert b"root:" not in body


@pytest.mark.parametrize(
    "path", ["../../../etc/passwd", "way-out", "/etc/passwd", "..", "photos/../../x", "\0"]
)
def test_no_name_leads_out_of_the_archive(client: Client, path: str) -> None:
    status, _, body = client.get(f"api/locate?path={quote(quote(path))}")
    if status == 200:  # the symlink itself; its target is not read
        key = json.loads(body)["row"]["id"]
        status, _, body = client.get(f"file?key={key}")
    assert status == 404
    assert b"root:" not in body


@pytest.mark.parametrize(
    "query",
    [
        "file?key=-1", "file?key=99999999", "file?key=x", "file?key=%00", "file", "file?key=",
        "api/preview?key=0&view=evil", "api/list?offset=x", "api/list?order=evil",
        "api/thumbs?keys=",
        "api/list?limit=-5", "api/list?offset=" + "9" * 30, "api/list?pattern=[z-a]", "api/rows",
        "api/hex?key=99999999", "api/slice?key=0", "api/column?field=x", "api/list?folder=nowhere",
        "api/picture?key=99999999", "api/member?key=0&member=x",
    ],
)  # fmt: skip
def test_wrong_arguments_are_answered_with_one_sentence(client: Client, query: str) -> None:
    status, _, body = client.get(query)
    assert status in (400, 404, 422)
    said = json.loads(body)["error"]
    assert said
    assert "Traceback" not in said


def test_a_dropped_connection_is_closed_without_the_garbage_collector(
    archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def kept(self: Any) -> None:
        # References may form a cycle with a handler, such as an error with its traceback.
        held.append(self)
        setup(self)

    def late(request: Request) -> Answer:
        while request.go_on():  # until the browser has dropped it
            time.sleep(0.01)
        return answer(request)

    with browsers.served(archive) as server:
        client = Client(server)
        held: list[Any] = []
        handler: Any = server._http.RequestHandlerClass
        setup, answer = handler.setup, server._http.app.answer
        monkeypatch.setattr(handler, "setup", kept)
        monkeypatch.setattr(server._http.app, "answer", late)
        with socket.create_connection(client.address, timeout=PATIENCE) as connection:
            request = f"GET /{client.token}/api/about HTTP/1.1\r\nHost: {client.host}\r\n\r\n"
            connection.sendall(request.encode())
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        deadline = time.monotonic() + PATIENCE
        while not held or held[0].request.fileno() >= 0:  # -1: closed
            assert time.monotonic() < deadline, "the socket is open"
            time.sleep(0.01)


def test_a_server_with_more_than_1024_open_files_answers(archive: Path) -> None:
    """A dataset in shards keeps a descriptor for each file of each field."""
    with handmade.many_descriptors(), browsers.served(archive) as server:
        assert len(Client(server).ask("api/list?pattern=*.npy")["rows"]) == 3


# ---- bytes ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("header", "begin", "end"),
    [
        (None, 0, 100_000), ("bytes=0-0", 0, 1), ("bytes=5-9", 5, 10),
        ("bytes=99990-", 99990, 100_000),
        ("bytes=-7", 99993, 100_000), ("bytes=10-9999999", 10, 100_000),
        ("bytes=-999999", 0, 100_000),
        ("bytes=1-2,5-6", 0, 100_000), ("lines=1-2", 0, 100_000), ("bytes=-", 0, 100_000),
    ],
)  # fmt: skip
def test_ranges_of_files(
    client: Client, tree: Path, header: str | None, begin: int, end: int
) -> None:
    key = key_of(client, "kinds/random.bin")
    status, headers, body = client.get(f"file?key={key}", **({"Range": header} if header else {}))
    content = (tree / "kinds/random.bin").read_bytes()
    assert body == content[begin:end]
    partial = (header is not None and (begin, end) != (0, 100_000)) or header == "bytes=-999999"
    assert status == (206 if partial else 200)
    if partial:
        assert headers["content-range"] == f"bytes {begin}-{end - 1}/100000"


def test_a_range_behind_the_end_is_refused(client: Client) -> None:
    key = key_of(client, "kinds/random.bin")
    status, headers, _ = client.get(f"file?key={key}", Range="bytes=100000-")
    assert status == 416
    assert headers["content-range"] == "bytes */100000"


def test_every_file_is_sent_as_it_was_packed(client: Client, tree: Path) -> None:
    for folder in ("kinds", "hostile"):
        rows = client.ask(f"api/list?folder={folder}&limit=100")["rows"]
        sent = {row["ref"]: client.get(f"file?key={row['id']}")[2] for row in rows}
        there = {
            quote(str(path.name).encode("utf-8", "surrogateescape")): path.read_bytes()
            for path in (tree / folder).iterdir()
        }
        assert sent == there


def test_damage_is_an_error_with_its_message(client: Client) -> None:
    key = key_of(client, DAMAGED)
    for request in ("file", "api/preview", "api/hex", "api/picture"):
        status, _, body = client.get(f"{request}?key={key}")
        assert status == 500
        said = json.loads(body)
        assert said["kind"] == "damaged"
        assert DAMAGED in said["error"]


def test_damage_behind_the_start_ends_a_download_early(tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    content = bytes(range(256)) * 40_000
    (tmp_path / "tree/large.bin").write_bytes(content)
    archives.pack(tmp_path / "tree", tmp_path / "t.ffr")
    raw = bytearray((tmp_path / "t.ffr").read_bytes())
    raw[len(raw) // 2] ^= 1
    (tmp_path / "t.ffr").write_bytes(raw)
    with browsers.served(tmp_path / "t.ffr") as server:
        with pytest.raises(http.client.IncompleteRead) as caught:
            Client(server).get("file?key=0")
        assert content.startswith(caught.value.partial)


def frames(body: bytes) -> Iterator[tuple[str, str, bytes]]:
    while body:
        lengths = struct.unpack_from("<III", body)
        at, parts = 12, []
        for length in lengths:
            parts.append(body[at : at + length])
            at += length
        yield parts[0].decode(), parts[1].decode(), parts[2]
        body = body[at:]


def test_thumbnails_come_in_one_answer_with_the_damaged_ones(client: Client) -> None:
    rows = client.ask("api/list?folder=photos&limit=20")["rows"]
    keys = [str(row["id"]) for row in rows]
    for _ in range(2):  # the second time from memory
        status, _, body = client.get(f"api/thumbs?keys={','.join(keys)}")
        assert status == 200
        found = {key: (kind, data) for key, kind, data in frames(body)}
        assert set(found) == set(keys)
        damaged = next(str(row["id"]) for row in rows if row["name"] == Path(DAMAGED).name)
        for key, (kind, data) in found.items():
            assert (kind == "") == (key == damaged)
            assert data.startswith(b"\xff\xd8") or key == damaged


def test_a_bomb_is_refused_before_it_is_decoded(client: Client) -> None:
    picture = key_of(client, "hostile/bomb.png")
    assert "too large" in client.ask(f"api/preview?key={picture}")["error"]
    ((_, kind, said),) = frames(client.get(f"api/thumbs?keys={picture}")[2])
    assert kind == ""
    assert b"too large" in said
    array = key_of(client, "hostile/bomb.npz")
    facts = client.ask(f"api/member?key={array}&member=0")
    assert facts["shape"] == [1 << 30]
    assert facts["whole"] is False


@pytest.mark.parametrize("type_", ["jpg", "jpg+gzip", "jpg[]"])
def test_a_damaged_picture_of_a_dataset_leaves_its_neighbours(tmp_path: Path, type_: str) -> None:
    pictures = [corpus.photo(number) for number in range(5)]
    with ffrecord.DatasetWriter(tmp_path / "ds", {"image": type_}) as writer:
        for picture in pictures:
            writer.append({"image": [picture] if type_ == "jpg[]" else picture})
    with ffrecord.FileReader(tmp_path / "ds/image.ffr") as reader:
        at = int(reader.get_offsets(0)[2]) + 100
    raw = bytearray((tmp_path / "ds/image.ffr").read_bytes())
    raw[at] ^= 0xFF
    (tmp_path / "ds/image.ffr").write_bytes(raw)
    keys = [f"{row}.image{'.0' if type_ == 'jpg[]' else ''}" for row in range(5)]
    with browsers.served(tmp_path / "ds") as server:
        status, _, body = Client(server).get(f"api/thumbs?keys={','.join(keys)}")
    assert status == 200
    found = {key: (kind, data) for key, kind, data in frames(body)}
    assert {key for key, (kind, _) in found.items() if kind} == set(keys) - {keys[2]}
    assert b"image.ffr" in found[keys[2]][1]


def test_large_values_are_not_read_for_a_table(tmp_path: Path) -> None:
    random, zeros = np.random.default_rng(0).bytes(3 << 20), bytes(3 << 20)
    spec = {
        "large": "bytes", "packed": "bytes+gzip", "parts": "bytes[]", "number": "int",
        "document": "json+gzip",
    }  # fmt: skip
    rows: list[dict[str, Any]] = [
        {"large": b"a", "packed": b"b", "parts": [b"c"], "number": 1, "document": [1]},
        {"large": random, "packed": zeros, "parts": [b"d", random], "number": 1 << 80_000,
         "document": ["x" * (9 << 20)]},
    ]  # fmt: skip
    with ffrecord.DatasetWriter(tmp_path / "ds", spec) as writer:
        for row in rows:
            writer.append(row)
    with browsers.served(tmp_path / "ds") as server:
        client = Client(server)
        small, large = (row["cells"] for row in client.ask("api/rows")["rows"])
        assert [small[name]["text"] for name in ("large", "packed", "number")] == ["a", "b", "1"]
        assert small["parts"]["elements"][0]["text"] == "c"
        assert [large[name]["text"] for name in ("large", "packed")] == ["3.1 MB", "3.1 MB"]
        assert large["parts"] == {"length": 2, "start": 0, "elements": []}
        assert large["number"]["text"].startswith("0x1000")
        assert client.get("file?key=1.large")[2] == random
        assert client.get("file?key=1.packed")[2] == zeros
        assert client.get("file?key=1.parts.1", Range="bytes=5-9")[2] == random[5:10]
        assert client.ask("api/preview?key=1.number")["tree"]["$number"].startswith("0x1000")
        assert client.ask("api/preview?key=0.document")["tree"] == [{"$number": "1"}]
        assert client.ask("api/preview?key=1.document")["text"].startswith('["xxx')


@pytest.mark.parametrize("depth", [10, 300, 900, 990, 2_000, 200_000])
def test_nested_json_of_any_depth_is_answered(tmp_path: Path, depth: int) -> None:
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree/deep.json").write_bytes(b"[" * depth + b"]" * depth)
    archives.pack(tmp_path / "tree", tmp_path / "t.ffr")
    with browsers.served(tmp_path / "t.ffr") as server:
        status, _, body = Client(server).get("api/preview?key=0")
    assert status == 200
    facts = json.loads(body)
    assert ("tree" in facts) != ("nested too deeply" in facts.get("error", ""))


def test_a_server_for_the_network_is_reached_by_the_name_of_the_machine(archive: Path) -> None:
    with Server(open_path(archive), "0.0.0.0") as server:
        server.start()
        client = Client(server)
        assert client.host.startswith(socket.gethostname())
        client.address = "127.0.0.1", client.address[1]
        assert client.send(f"/{client.token}/api/about")[0] == 200
        assert client.send(f"/{client.token}/api/about", host="evil.example")[0] == 403


# ---- other archives ------------------------------------------------------------------------


def test_an_archive_of_shards_and_one_of_the_original(tmp_path: Path) -> None:
    files = {"a.txt": b"first", "b/c.txt": b"second" * 1000, "b/d.json": b"{}"}
    for name, content in files.items():
        (tmp_path / "tree" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "tree" / name).write_bytes(content)
    archives.pack(tmp_path / "tree", tmp_path / "shards", shard_size=3000)
    index = OrderedDict([("a.txt", 0), ("b", OrderedDict([("c.txt", 1), ("d.json", 2)]))])
    records = [*files.values(), LEGACY_MAGIC + pickle.dumps(index)]
    original = handmade.write_records(tmp_path / "original.ffr", records)
    for path in (tmp_path / "shards", original):
        with browsers.served(path) as server:
            client = Client(server)
            assert client.ask("api/about")["kind"] == "folder"
            for name, content in files.items():
                assert client.get(f"file?key={key_of(client, name)}")[2] == content
            rows = client.ask("api/list?pattern=*.txt")["rows"]
            assert {row["name"] for row in rows} == {"a.txt", "b/c.txt"}
            assert client.ask("api/overview")["files"] == 3


def test_a_dataset_in_shards(tmp_path: Path) -> None:
    with ffrecord.ShardedDatasetWriter(tmp_path / "ds", {"n": "int"}, shardlen=4) as writer:
        for number in range(10):
            writer.append({"n": number})
    with browsers.served(tmp_path / "ds") as server:
        client = Client(server)
        assert client.ask("api/about")["entries"] == 10
        bars = client.ask("api/column?field=n")["bars"]
        assert [bar["label"] for bar in bars] == [str(number) for number in range(10)]
        rows = client.ask("api/rows?filter=n%3D7")["rows"]
        assert [(row["id"], row["cells"]["n"]["text"]) for row in rows] == [(7, "7")]
        assert client.ask("api/overview")["shards"] == 3


def test_an_archive_and_a_dataset_behind_a_url(
    tmp_path: Path, archive: Path, dataset_path: Path, tree: Path
) -> None:
    site = tmp_path / "site"
    shutil.copytree(dataset_path, site / "dataset")
    shutil.copy(archive, site / "tree.ffr")
    with nginx(site, tmp_path) as address:
        with browsers.served(f"{address}/tree.ffr") as server:
            client = Client(server)
            content = (tree / "kinds/code.py").read_bytes()
            assert client.get(f"file?key={key_of(client, 'kinds/code.py')}")[2] == content
            assert client.ask("api/about")["name"] == "tree.ffr"
        with browsers.served(f"{address}/dataset") as server:
            bars = Client(server).ask("api/column?field=label")["bars"]
            assert [bar["count"] for bar in bars] == [100, 100, 100]
