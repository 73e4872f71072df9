"""A proxy in front of a web server that counts requests and makes faults on purpose."""

from __future__ import annotations

import asyncio
import contextlib
import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from urllib.parse import urlsplit


@dataclass(frozen=True, slots=True)
class Request:
    """A request, and its number from 0."""

    number: int
    method: str
    path: str
    headers: dict[str, str]

    @property
    def range(self) -> str:
        return self.headers.get("range", "").removeprefix("bytes=")


Fault = Callable[[Request], "str | None"]
"""Returns the fault for a request, or None to answer rightly."""

STATUSES = {"429": "Too Many Requests", "500": "Internal", "503": "Slow Down", "400": "Bad",
            "403": "Forbidden", "501": "Not Implemented"}  # fmt: skip
HUGE = 10**15
"""Bytes of an object, as the fault "huge" tells them."""
REPEATED = ("429", "500", "503", "reset", "short", "long", "lie", "shift", "garbage", "200")
"""Faults that an honest second answer repairs."""


@dataclass(slots=True)
class Proxy:
    """The requests so far, and the faults to make.

    The URL changes with every `renew`. So a late request of an earlier client, which a server may
    get even after the client gave it up, is neither counted nor answered.
    """

    base: str
    requests: list[Request] = field(default_factory=list)
    fault: Fault = lambda request: None
    delay: float = 0.0
    gates: list[int] = field(default_factory=list)
    """Numbers of requests. Requests before a number are answered when that many have arrived. So
    each number ends a round trip, and a client that needs more round trips is never answered."""
    most: int = 0
    """Largest number of requests that were under way at once."""
    now: int = 0
    turn: int = 0
    is_held: bool = False
    """Answer nothing for the time being."""

    @property
    def url(self) -> str:
        return f"{self.base}{self.prefix}"

    @property
    def prefix(self) -> str:
        return f"/turn-{self.turn}"

    def renew(self) -> None:
        """Forget the clients so far."""
        self.turn += 1
        self.reset()

    def reset(self) -> None:
        self.requests.clear()
        self.gates.clear()
        self.fault, self.delay, self.most = (lambda request: None), 0.0, 0
        self.is_held = False

    def ranges(self) -> list[str]:
        return [request.range for request in self.requests]


@contextlib.contextmanager
def proxy(upstream: str, port: int = 0) -> Iterator[Proxy]:
    """Run a proxy in a thread, and yield it. `port` 0 stands for any free port."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    host = urlsplit(upstream)
    assert host.hostname is not None
    assert host.port is not None
    address = host.hostname, host.port
    running = Proxy("")

    tasks: set[asyncio.Task[None] | None] = set()  # asyncio itself keeps only weak references

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.add(asyncio.current_task())
        try:
            await _serve(running, address, reader, writer)
        finally:
            tasks.discard(asyncio.current_task())

    async def start() -> asyncio.Server:
        return await asyncio.start_server(serve, "127.0.0.1", port)

    server = asyncio.run_coroutine_threadsafe(start(), loop).result()
    running.base = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield running
    finally:

        async def stop() -> None:
            server.close()
            tasks = asyncio.all_tasks() - {asyncio.current_task()}
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        asyncio.run_coroutine_threadsafe(stop(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


async def _serve(
    state: Proxy, address: tuple[str, int], reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
) -> None:  # fmt: skip
    with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            if f" {state.prefix}/".encode() not in head[: len(state.prefix) + 20]:
                break
            head = head.replace(state.prefix.encode(), b"", 1)
            request = _parsed(head, len(state.requests))
            body = await reader.readexactly(int(request.headers.get("content-length", 0)))
            state.requests.append(request)
            state.now += 1
            state.most = max(state.most, state.now)
            try:
                gate = next((gate for gate in state.gates if request.number < gate), 0)
                while len(state.requests) < gate:
                    await asyncio.sleep(0.005)
                while state.is_held:
                    await asyncio.sleep(0.005)
                await asyncio.sleep(state.delay)
                alive = await _answer(state.fault(request), address, head, body, reader, writer)
            finally:
                state.now -= 1
            if not alive:
                break
    writer.close()


def _parsed(head: bytes, number: int) -> Request:
    first, *lines = head.decode("latin-1").split("\r\n")
    method, path, _ = first.split(" ")
    pairs = (line.partition(": ") for line in lines if line)
    return Request(number, method, path, {name.lower(): value for name, _, value in pairs})


async def _answer(
    fault: str | None, address: tuple[str, int], head: bytes, sent: bytes,
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter,
) -> bool:  # fmt: skip
    """Send an answer, right or wrong. Return False if the connection must end."""
    if fault == "reset":
        writer.transport.abort()
        return False
    if fault == "hang":  # until the client gives up
        await reader.read()
        return False
    if fault in STATUSES:
        body = b"signature=SECRET"
        writer.write(
            f"HTTP/1.1 {fault} {STATUSES[fault]}\r\nContent-Length: {len(body)}\r\n\r\n".encode()
            + body
        )
        await writer.drain()
        return True
    if fault == "spoil":  # a byte of the request's body arrives wrong
        sent = sent[:-1] + bytes([sent[-1] ^ 1])
    top, body = await _upstream(address, head + sent)
    if fault == "lost":  # the server did it, but its answer does not arrive
        writer.transport.abort()
        return False
    if fault == "garbage":
        writer.write(b"\x00\xff" * 50)
        return False
    if fault == "200":  # the whole object, whatever range was asked for
        writer.write(re.sub(rb"^HTTP/1.1 206[^\r]*", b"HTTP/1.1 200 OK", top) + body)
    elif fault == "short":
        writer.write(top + body[: len(body) // 2])
        await writer.drain()
        writer.transport.abort()
        return False
    elif fault == "long":
        writer.write(_with_length(top, len(body) + 3) + body + b"xyz")
    elif fault == "lie":  # the length is that of the body, but not that of the range
        writer.write(_with_length(top, max(0, len(body) - 1)) + body[:-1])
    elif fault == "shift":  # another range than the one that was asked for
        shifted = re.sub(
            rb"(?i)(content-range: bytes )(\d+)-(\d+)",
            lambda m: b"%s%d-%d" % (m[1], int(m[2]) + 1, int(m[3]) + 1), top,
        )  # fmt: skip
        writer.write(shifted + body)
    elif fault == "huge":  # the size of the object is a lie, and the same in all answers
        writer.write(_of_size(top, HUGE, is_suffix=b"bytes=-" in head) + body)
    elif fault == "flip":
        wrong = bytearray(body)
        if wrong:
            wrong[len(wrong) // 2] ^= 0x10
        writer.write(top + wrong)
    else:
        writer.write(top + body)
    await writer.drain()
    return True


async def _upstream(address: tuple[str, int], head: bytes) -> tuple[bytes, bytes]:
    reader, writer = await asyncio.open_connection(*address)
    try:
        top, _, rest = head.partition(b"\r\n\r\n")
        writer.write(re.sub(rb"(?i)\r\nconnection: [^\r]*", b"", top) + b"\r\n\r\n" + rest)
        await writer.drain()
        top = await reader.readuntil(b"\r\n\r\n")
        found = re.search(rb"(?i)content-length: (\d+)", top)
        has_body = found is not None and not head.startswith(b"HEAD") and b" 304 " not in top[:20]
        body = await reader.readexactly(int(found[1])) if found and has_body else b""
        return top, body
    finally:
        writer.close()


def _of_size(top: bytes, size: int, *, is_suffix: bool) -> bytes:
    """Change the size of the object in the head of an answer to a request for a range."""

    def stated(found: re.Match[bytes]) -> bytes:
        begin, end = int(found[2]), int(found[3])
        if is_suffix:
            begin, end = size - (end - begin + 1), size - 1
        return b"%s%d-%d/%d" % (found[1], begin, end, size)

    return re.sub(rb"(?i)(content-range: bytes )(\d+)-(\d+)/\d+", stated, top)


def _with_length(top: bytes, length: int) -> bytes:
    return re.sub(rb"(?i)content-length: \d+", b"Content-Length: %d" % length, top)
