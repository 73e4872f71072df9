"""Targets: answers of servers to requests, and URLs."""

from __future__ import annotations

import http.client
import io
import os
import socket
import threading
import urllib.request
from collections.abc import Callable, Coroutine
from contextlib import suppress
from types import SimpleNamespace
from typing import Any
from unittest import mock
from xml.dom import Node, minidom
from xml.parsers.expat import ExpatError

from ffrecord.remote import link, loop, obstores, urls
from ffrecord.remote.answers import Answer, Version
from ffrecord.remote.multipart import Unfinished
from ffrecord.remote.trouble import Span, Trouble
from tests.robustness.fuzzing.target import Target

# ---- lists of unfinished uploads, as S3 answers them -----------------------------------------

LIST = (
    b'<?xml version="1.0"?><ListMultipartUploadsResult xmlns="http://s3/"><Upload><Key>a/b</Key>'
    b"<UploadId>1&amp;2</UploadId></Upload><Upload><Key>c</Key><UploadId>3</UploadId></Upload>"
    b"</ListMultipartUploadsResult>"
)
HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n"


class _Connection(http.client.HTTPConnection):
    """A connection to a server that has answered already."""

    answer = b""

    def connect(self) -> None:
        self.sock: Any = SimpleNamespace(
            makefile=lambda mode: io.BytesIO(self.answer), sendall=len, close=lambda: None
        )


class _Answered(urllib.request.HTTPHandler):
    def http_open(self, request: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(_Connection, request)

    https_open = http_open


def lists() -> Target:
    """Fuzz the answer of S3 to a question for unfinished uploads. The first byte adds a head."""
    opener = urllib.request.OpenerDirector()
    for name in ("ErrorProcessor", "RedirectHandler", "DefaultErrorHandler"):
        opener.add_handler(getattr(urllib.request, f"HTTP{name}")())
    opener.add_handler(_Answered())
    opener.add_handler(urllib.request.UnknownHandler())
    asked = object.__new__(Unfinished)
    asked._key, asked._bucket = "a", "http://s3/bucket"
    asked._signed = lambda method, key, endpoint, **_: endpoint  # type: ignore[method-assign]

    def run(data: bytes) -> str:
        alone = data[:1] == b"<"
        _Connection.answer = HEAD % len(data) + data if alone else data[1:]
        with mock.patch("urllib.request.urlopen", opener.open):
            found = asked.inside()
        with suppress(ExpatError):  # it refuses spaces in the names of namespaces
            due = _uploads(data) if alone else None
            assert due in (None, [(f"a/{key}", number) for key, number in found])
        return "uploads" if found else "none"

    seeds = (
        LIST, b"!" + HEAD % len(LIST) + LIST, b"!HTTP/1.1 404 Not Found\r\n\r\n", b"<html/>",
        b"!HTTP/1.1 302 Found\r\nLocation: http://s3/\r\n\r\n",
        b"!HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n7\r\n<none/>\r\n0\r\n\r\n",
    )  # fmt: skip
    tokens = (
        b"<Upload>", b"</Upload>", b"<Key>a/", b"</Key>", b"&lt;", b"<![CDATA[", b"]]>", b"<!--",
        b"-->", b'<!DOCTYPE a [<!ENTITY b "c">]>', b"&b;", b'encoding="utf-16"', b"ftp://a",
        b'encoding="cp037"', b"\r\n", b": ", b"Content-Encoding: gzip\r\n",
    )  # fmt: skip
    return Target("multipart", run, seeds, tokens=tokens, errors=(Trouble,))


def _uploads(data: bytes) -> list[tuple[str, str]]:
    """Return keys and ids in the folder `a` as another reader of XML finds them."""
    found = []
    for element in minidom.parseString(data).getElementsByTagName("*"):
        if element.localName == "Upload":
            inner = [each for each in element.childNodes if each.nodeType == Node.ELEMENT_NODE]
            facts = {each.localName: _text(each) for each in inner}
            if facts.get("Key", "").startswith("a/") and facts.get("UploadId"):
                found.append((facts["Key"], facts["UploadId"]))
    return found


def _text(element: Any) -> str:
    """Return the text before the first element in an element."""
    text = ""
    for each in element.childNodes:
        if each.nodeType == Node.ELEMENT_NODE:
            break
        text += each.data if each.nodeType in (Node.TEXT_NODE, Node.CDATA_SECTION_NODE) else ""
    return text


# ---- answers to requests for objects ---------------------------------------------------------

OBJECT = b"".join(b"%03d " % number for number in range(50))
VERSION = Version(len(OBJECT), '"tag"', 1.4e9)
RANGE = (
    b"HTTP/1.1 206 Partial Content\r\nContent-Length: %d\r\nContent-Range: bytes %d-%d/200\r\n"
    b'ETag: "tag"\r\nLast-Modified: Wed, 21 Oct 2015 07:28:00 GMT\r\n\r\n'
)
WHOLE = RANGE.replace(b"206 Partial Content", b"200 OK").replace(
    b"Content-Range: bytes %d-%d/200\r\n", b""
)
OBJECTS = (
    b'<?xml version="1.0"?><ListBucketResult><IsTruncated>false</IsTruncated><Contents>'
    b"<Key>a/b</Key><LastModified>2015-10-21T07:28:00.000Z</LastModified><ETag>x</ETag><Size>7</Size></Contents>"
    b"<CommonPrefixes><Prefix>a/c/</Prefix></CommonPrefixes></ListBucketResult>"
)


class _Server(threading.Thread):
    """A server on loopback that gives one answer to the next request, and 404 to all others."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self._socket = socket.create_server(("127.0.0.1", 0), backlog=16)
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self.answer: bytes | None = None

    def run(self) -> None:
        while True:
            connection, _ = self._socket.accept()
            with connection:
                asked = b""
                while b"\r\n\r\n" not in asked and (more := connection.recv(65536)):
                    asked += more
                answer, self.answer = self.answer, None
                connection.sendall(answer or b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")


def answers() -> Target:
    """Fuzz answers of web servers and of S3. The first byte chooses the question."""
    server = _Server()
    server.start()
    client = {"client_options": {"pool_max_idle_per_host": "0"}}
    keys = {"access_key_id": "k", "secret_access_key": "s", "region": "us-east-1"}
    web = obstores.open_store(("http", f"{server.url}/"), client, 20)
    s3 = obstores.open_store(("s3", "s3://bucket"), {**client, **keys, "endpoint": server.url}, 20)

    async def read(
        asked: Coroutine[Any, Any, Answer | None], span: Span, pinned: Version | None = None
    ) -> Answer | None:
        answer = await asked
        if answer is not None:
            link._check(answer, span, pinned)
            assert answer.version.size == VERSION.size or not pinned
            begin, end = span.within(answer.version.size)
            assert (answer.begin, len(answer.body)) == (begin, end - begin)
        return answer

    some, last, first = Span(4, 24), Span(-20), Span(0, 1000)
    questions: list[Callable[[], Coroutine[Any, Any, Any]]] = [
        lambda: read(web.get("a.ffr", some, VERSION), some, VERSION),
        lambda: read(web.get("a.ffr", last, None), last),
        lambda: read(web.get("a.ffr", first, None), first),
        lambda: read(web.get_unless("a.ffr", some, VERSION), some),
        lambda: web.version("a.ffr"), lambda: s3.version("a.ffr"), lambda: s3.names("a"),
        lambda: s3.objects("a"),
    ]  # fmt: skip

    def run(data: bytes) -> str:
        number = data[0] % len(questions) if data else 0
        server.answer = data[1:]
        try:
            found = loop.wait(link._within(10.0, questions[number]()))
        except Trouble as trouble:
            return f"trouble: {trouble.kind.value}"
        if isinstance(found, Answer):
            _require_sent(found, data[1:])
            return "bytes"
        if isinstance(found, list):
            assert all("/" not in name for name in found)
        elif isinstance(found, dict):
            assert all(isinstance(size, int) and size >= 0 for size in found.values())
        return type(found).__name__

    bodies = [
        RANGE % (20, 4, 23) + OBJECT[4:24], RANGE % (20, 180, 199) + OBJECT[180:],
        RANGE % (200, 0, 199) + OBJECT, b"HTTP/1.1 304 Not Modified\r\n\r\n", WHOLE % 200,
        WHOLE % 200, WHOLE % len(OBJECTS) + OBJECTS, WHOLE % len(OBJECTS) + OBJECTS,
        b"HTTP/1.1 503 Slow Down\r\nContent-Length: 0\r\n\r\n", WHOLE % 200 + OBJECT,
        b"HTTP/1.1 412 Precondition Failed\r\n\r\n", b"HTTP/1.1 416 Range\r\n\r\n",
    ]  # fmt: skip
    seeds = tuple(bytes([number]) + each for number, each in enumerate(bodies))
    seeds += (b"\0" + bodies[0].replace(b"/200", b"/300"),)  # of another version
    tokens = (
        b"\r\n", b": ", b"bytes ", b"*/200", b"W/", b"206", b"200", b"<Key>", b"</Key>", b"../",
        b"Transfer-Encoding: chunked\r\n", b"HTTP/1.1 100 Continue\r\n\r\n", b"-1",
        b"<IsTruncated>true", b"<NextContinuationToken>a</NextContinuationToken>",
        b"18446744073709551615",
    )  # fmt: skip
    return Target("answer", run, seeds, tokens=tokens, memory=64 << 20)


def _require_sent(answer: Answer, raw: bytes) -> None:
    """Require that the server has sent these bytes, and has said that they begin there."""
    head, _, body = raw.partition(b"\r\n\r\n")
    fields = [line.lower().replace(b" ", b"") for line in head.split(b"\r\n")]
    if b"\n" in head.replace(b"\r\n", b"") or b"transfer-encoding:chunked" in fields:
        return
    found = bytes(memoryview(answer.body))
    if b"100" in head or not found:
        assert found in raw
        return
    begin, end = answer.begin, answer.begin + len(found)
    assert body.startswith(found)
    assert b"content-range:bytes%d-%d/%d" % (begin, end - 1, answer.version.size) in fields


# ---- URLs ------------------------------------------------------------------------------------

URLS = (
    b"s3://bucket/a b/c.ffr", b"https://user:secret@host:8080/a/b.ffr?x=1&X-Amz-Signature=secret#f",
    b"http://[::1]:80/a", b"gs://b", b"file:///a//b", b"a/b://c", b"C://x", b"memory://a?b=c&sig=d",
)  # fmt: skip


def urls_() -> Target:
    def run(data: bytes) -> str:
        url = os.fsdecode(data)
        if not urls.is_url(url):
            assert urls.shown(url) == url
            return "a path"
        scheme, _, rest = url.partition("://")
        place, rest = _cut(rest, "/?#")
        shown = f"{scheme.lower()}://{place.split('@')[-1]}"
        if scheme.lower() in urls.BUCKETS:  # the rest is a key, which a signature may follow
            key = rest.partition("?")[0]
            assert urls.shown(url) in (shown + rest, shown + key)
            assert urls.joined(url, "a.ffr") == f"{scheme}://{place}{rest.rstrip('/')}/a.ffr"
            assert urls.shown(f"{scheme}://{place}{key}?X-Amz-Signature=secret") == shown + key
        else:
            path, rest = _cut(rest, "?#")
            assert urls.shown(url) == shown + path
            inside, unsigned = urls.joined(url, "a.ffr"), urls.unsigned(url)
            assert urls.shown(inside) == f"{shown}{path.rstrip('/')}/a.ffr"
            assert unsigned.startswith(shown + path)
            if "#" not in rest:
                signed = f"{url}{'&' if rest else '?'}X-Amz-Signature=secret"
                assert urls.unsigned(signed) == unsigned
        (kind, _), _ = obstores.from_url(url)
        assert kind == scheme.lower()
        return kind if kind in obstores.SCHEMES else "another protocol"

    tokens = (b"://", b"s3", b"http", b"@", b"?", b"#", b"[", b"]", b"%", b":", b"\t", b"\n")
    return Target("url", run, URLS, tokens=(*tokens, b"\xe2\x84\x80", b"&sig=", b"\xed\xa0\x80"))


def _cut(text: str, ends: str) -> tuple[str, str]:
    """Split text before the first of some letters."""
    at = min((text.index(each) for each in ends if each in text), default=len(text))
    return text[:at], text[at:]
