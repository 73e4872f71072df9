"""`Server`: HTTP from the standard library, with a thread for each connection of the browser.

It was measured against uvicorn with starlette, and was as fast: docs/architecture.md has the
figures. The page opens six connections at most, so threads are few.
"""

from __future__ import annotations

import contextlib
import errno
import select
import socket
import sys
import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from ffrecord.aliases import Closing
from ffrecord.errors import FFRecordError
from ffrecord.view import answers
from ffrecord.view.access import Access, new_token
from ffrecord.view.answers import Answer
from ffrecord.view.app import App
from ffrecord.view.opening import Opened
from ffrecord.view.requests import BadRequest, Request, parse_target

LOOPBACK = "127.0.0.1"
EVERYWHERE = ("0.0.0.0", "::")  # addresses that stand for all of this machine
PATIENCE = 120.0  # seconds after which an idle connection is closed
MOST_STRANGERS = 64  # connections that have not shown the token
METHODS = ("GET", "HEAD", "POST")

_REFUSED = {
    errno.EADDRNOTAVAIL: "not an address of this machine; "
    "`hostname -I` lists them, and 0.0.0.0 stands for all",
    errno.EADDRINUSE: "another program listens there; choose another --port",
    errno.EACCES: "only root may listen on this port; choose a --port of 1024 or more",
}


class Server(Closing):
    """Serves one page. `close` ends it and closes the files.

    Args:
        opened: what the page shows. The server closes it.
        host: the address to listen on.
        port: the port; 0 chooses a free one.
        framed: allow notebooks to show the page in a frame.
    """

    def __init__(
        self, opened: Opened, host: str = LOOPBACK, port: int = 0, *, framed: bool = False
    ) -> None:
        self.opened = opened
        self._name = socket.gethostname() if host in EVERYWHERE else host
        self._access = Access(new_token(), self._name, framed=framed)
        try:
            self._http = _Listener((host, port), self._access, App(opened))
        except OSError as error:
            opened.close()
            why = _REFUSED.get(error.errno or 0, error.strerror)
            raise OSError(error.errno, why, f"{host}:{port}" if port else host) from error
        self._thread: threading.Thread | None = None

    @property
    def url(self) -> str:
        """The URL of the page, with the token."""
        name, port = self._name, self._http.server_address[1]
        return f"http://{f'[{name}]' if ':' in name else name}:{port}/{self._access.token}/"

    def serve(self) -> None:
        """Answer requests until `close` is called, or Ctrl-C."""
        self._http.serve_forever(poll_interval=0.2)

    def start(self) -> None:
        """Answer requests in a thread of their own."""
        self._thread = threading.Thread(target=self.serve, name="view", daemon=True)
        self._thread.start()

    def close(self) -> None:
        if self._thread is not None:
            self._http.shutdown()
            self._thread.join()
        self._http.server_close()
        self.opened.close()


class _Listener(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False  # a browser keeps its connections open
    request_queue_size = 64

    def __init__(self, address: tuple[str, int], access: Access, app: App) -> None:
        self.access, self.app = access, app
        self._strangers: dict[socket.socket, None] = {}  # the oldest first
        self._lock = threading.Lock()
        if ":" in address[0]:
            self.address_family = socket.AF_INET6
        super().__init__(address, _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve a connection in a thread, and end the oldest stranger's if there are too many.

        A stranger is a connection that has not shown the token yet. So nobody can keep the browser
        out, or take all descriptors of a notebook, with connections that only wait.
        """
        with self._lock:
            self._strangers[request] = None
            if len(self._strangers) > MOST_STRANGERS:
                oldest = next(iter(self._strangers))
                del self._strangers[oldest]
                with contextlib.suppress(OSError):
                    oldest.shutdown(socket.SHUT_RDWR)  # its thread reads the end, and closes it
        super().process_request(request, client_address)

    def is_known(self, request: Any) -> None:
        """Note that a connection has shown the token, or that it ends."""
        with self._lock:
            self._strangers.pop(request, None)

    def shutdown_request(self, request: Any) -> None:
        self.is_known(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing about connections that a browser drops; show all other errors."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version = "ffrecord"
    sys_version = ""
    timeout = PATIENCE
    disable_nagle_algorithm = True
    wbufsize = 64 << 10
    server: _Listener

    def __getattr__(self, name: str) -> Any:
        # The base class asks for `do_GET` and so on. Every method gets its answer here, so that
        # unknown methods without the token are refused like all others.
        if name.startswith("do_"):
            return self._handle
        raise AttributeError(name)

    def finish(self) -> None:
        # The base class leaves rfile open, and so the socket, if the browser dropped the connection
        # and the last bytes cannot be sent.
        try:
            super().finish()
        finally:
            self.rfile.close()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - of the base class
        """Log nothing: the URL of every request has the token in it."""

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answer a request that the base class cannot parse."""
        self.close_connection = True
        self.command = self.command or "GET"
        self.request_version = self.protocol_version  # an answer to HTTP/0.9 would have no status
        self._send(answers.of_error(403 if code != 408 else code, "not allowed"))

    def _handle(self) -> None:
        if self.request_version == "HTTP/0.9":
            self.send_error(HTTPStatus.HTTP_VERSION_NOT_SUPPORTED)  # it has no headers
            return
        if not self._drop_body():
            return
        self._send(self._answer())

    def _answer(self) -> Answer:
        try:
            path, arguments = parse_target(self.path)
        except (BadRequest, ValueError):
            return answers.of_error(403, "not allowed")
        rest = self.server.access.path(path, self.headers.get("Host"))
        if rest is None:
            return answers.of_error(403, "not allowed: open the URL that `ffrecord view` printed")
        self.server.is_known(self.request)
        if self.command not in METHODS or (self.command == "POST" and rest != "api/verify"):
            return answers.of_error(405, "not allowed")
        asked = Request(self.command, rest, arguments, self.headers.get("Range"), self._is_awaited)
        return self.server.app.answer(asked)

    def _drop_body(self) -> bool:
        """Read and ignore a short body. Close the connection if there is a long one."""
        length = self.headers.get("Content-Length", "0")
        # Looked at as text: int() refuses thousands of digits.
        is_short = length.isdecimal() and len(length) <= 5
        if self.headers.get("Transfer-Encoding") or not is_short:
            self.close_connection = True
            self._send(answers.of_error(403, "not allowed"))
            return False
        self.rfile.read(int(length))
        return True

    def _send(self, answer: Answer) -> None:
        self.send_response_only(answer.status, HTTPStatus(answer.status).phrase)
        fields = {"Content-Type": answer.media_type, **answer.headers}
        fields.update(self.server.access.headers(contents=answer.contents))
        if answer.length is None:
            fields["Transfer-Encoding"] = "chunked"
        else:
            fields["Content-Length"] = str(answer.length)
        if self.close_connection:
            fields["Connection"] = "close"
        for name, value in fields.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self._send_body(answer)

    def _send_body(self, answer: Answer) -> None:
        try:
            for piece in answer.pieces():
                data = memoryview(piece).cast("B")
                if answer.length is None:
                    self.wfile.write(b"%x\r\n" % len(data))
                self.wfile.write(data)
                if answer.length is None:
                    self.wfile.write(b"\r\n")
                    self.wfile.flush()
        except FFRecordError:
            # The status is sent already. A body that is too short tells the browser that it failed.
            self.close_connection = True
            return
        if answer.length is None:
            self.wfile.write(b"0\r\n\r\n")

    def _is_awaited(self) -> bool:
        """Return False if the browser has closed the connection: it dropped the request."""
        poll = select.poll()  # select() takes no descriptors above 1023
        poll.register(self.connection, select.POLLIN)
        try:
            return not poll.poll(0) or bool(self.connection.recv(1, socket.MSG_PEEK))
        except OSError:
            return False
